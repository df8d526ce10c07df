//! Memberships of identifiers in multicast groups (linux cma.c: `cma_iboe_join_multicast`, ucma.c:
//! `ucma_process_join`).
//!
//! On Ethernet the kernel only sends an IGMP report: librdmacm attaches the identifier's queue pair
//! to the group, and the device then joins it on the network.

use std::net::IpAddr;

use barewire_layouts::roce::MULTICAST_QPN;

use super::UDP_QKEY;
use super::abi::{EventType, UdParam};
use super::address::same_family;
use super::receive::path_to;
use super::state::{State, datagram_event};
use crate::errno::Errno;

/// `ENOTSUPP`, with which the kernel refuses groups that a port does not have.
const NOT_SUPPORTED: Errno = Errno(524);
/// Most memberships of a process.
const MOST: usize = 1 << 16;

/// A membership of an identifier.
#[derive(Debug)]
pub(super) struct Membership {
    /// The identifier.
    pub(super) id: u32,
    /// Events that the program has read.
    pub(super) reported: u32,
}

impl State {
    /// Joins a group. The result is an event, which names the membership as `uid`. Returns its
    /// number.
    pub(super) fn join(
        &mut self,
        channel: u64,
        (id, uid): (u32, u64),
        group: IpAddr,
    ) -> Result<u32, Errno> {
        let entry = self.id(channel, id)?;
        let is_new = entry.listening.is_none() && entry.link.is_none() && !entry.routed;
        if !entry.is_datagram() || !is_new || group.is_unspecified() {
            return Err(Errno::INVALID);
        }
        let traffic_class = entry.traffic_class;
        let port = entry.port.and_then(|index| self.ports.get(index)).ok_or(Errno::INVALID)?;
        let number = port.number;
        if !same_family(port.address, group) {
            return Err(NOT_SUPPORTED);
        }
        if self.memberships.len() >= MOST {
            return Err(Errno::NO_MEMORY);
        }
        // A number is free among so many.
        let membership = (0..=MOST as u32).find(|number| !self.memberships.contains_key(number));
        let membership = membership.ok_or(Errno::NO_MEMORY)?;
        self.memberships.insert(membership, Membership { id, reported: 0 });
        self.tell_as((id, Some(membership)), EventType::MulticastJoin, 0, |response| {
            (response.uid, response.id) = (uid, membership);
            let parameters = |parameters: &mut UdParam| {
                (parameters.qp_num, parameters.qkey) = (MULTICAST_QPN, UDP_QKEY);
                parameters.ah_attr = path_to(group, number, traffic_class);
            };
            datagram_event(response, parameters, &[]);
        });
        Ok(membership)
    }

    /// Ends a membership with its unread events. Returns how many the program has read.
    pub(super) fn leave(&mut self, channel: u64, number: u32) -> Result<u32, Errno> {
        let membership = self.memberships.get(&number).ok_or(Errno::NO_ENTRY)?;
        let (id, reported) = (membership.id, membership.reported);
        self.id(channel, id)?;
        self.memberships.remove(&number);
        if let Some(events) = self.channels.get_mut(&channel) {
            events.waiting.retain(|event| event.membership != Some(number));
            if events.waiting.is_empty() {
                events.signal.clear();
            }
        }
        Ok(reported)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use crate::rdma_cm::abi::{JoinIpMcast, JoinMcast};

    /// As librdmacm 44 writes them.
    #[test]
    fn both_commands_byte_for_byte() {
        let group = [2, 0, 0, 0, 239, 1, 2, 3];
        let mut bytes = [0; 48];
        (bytes[0], bytes[8], bytes[44]) = (1, 2, 3);
        bytes[16..24].copy_from_slice(&group);
        let command = JoinIpMcast::read_from_bytes(&bytes).unwrap();
        assert_eq!((command.response, command.uid, command.id), (1, 2, 3));
        assert_eq!(command.addr[..8], group);
        let mut bytes = [0; 152];
        (bytes[0], bytes[8], bytes[16], bytes[20], bytes[22]) = (1, 2, 3, 16, 1);
        bytes[24..32].copy_from_slice(&group);
        let command = JoinMcast::read_from_bytes(&bytes).unwrap();
        assert_eq!((command.response, command.uid, command.id), (1, 2, 3));
        assert_eq!((command.addr_size, command.join_flags), (16, 1));
        assert_eq!(command.addr[..8], group);
    }
}
