//! Memberships of identifiers in multicast groups (linux cma.c: `cma_iboe_join_multicast`, ucma.c:
//! `ucma_process_join`).
//!
//! On Ethernet the kernel only sends an IGMP report: librdmacm attaches the identifier's queue pair
//! to the group, and the device then joins it on the network.

use std::net::IpAddr;

use barewire_layouts::roce::{DEFAULT_PKEY, MULTICAST_QPN};
use zerocopy::FromZeros;

use super::UDP_QKEY;
use super::abi::{EventType, UdParam};
use super::address::{self, Address, same_family};
use super::message::HOP_LIMIT;
use super::receive::path_to;
use super::state::{PS_UDP, State, datagram_event};
use crate::abi::AhAttribute;
use crate::errno::Errno;

/// `ENOTSUPP`, with which the kernel refuses groups that a port does not have.
const NOT_SUPPORTED: Errno = Errno(524);
/// The multicast LIDs of InfiniBand, of which the last is not one.
const FIRST_LID: u16 = 0xc000;
const LIDS: u16 = 0x4000;
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
        group: Address,
    ) -> Result<u32, Errno> {
        let entry = self.id(channel, id)?;
        let is_new = entry.listening.is_none() && entry.link.is_none() && !entry.routed;
        if !entry.is_datagram() || !is_new || group.ip().is_unspecified() {
            return Err(Errno::INVALID);
        }
        let (traffic_class, space) = (entry.traffic_class, entry.space);
        let port = entry.port.and_then(|index| self.ports.get(index));
        let port = *port.ok_or(Errno::INVALID.because("id: it is bound to no device"))?;
        let path = match port.infiniband {
            Some(_) => {
                let gid = infiniband_group(group, space);
                AhAttribute {
                    dgid: gid,
                    hop_limit: HOP_LIMIT,
                    traffic_class,
                    dlid: group_lid(gid),
                    is_global: 1,
                    port_num: port.number,
                    ..AhAttribute::new_zeroed()
                }
            }
            None if group.native.is_some() => {
                return Err(NOT_SUPPORTED
                    .because("addr: a GID as a group (AF_IB) needs an InfiniBand port (--ib)"));
            }
            None if !same_family(port.address, group.ip()) => return Err(NOT_SUPPORTED),
            None => path_to(group.ip(), &port, traffic_class),
        };
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
                parameters.ah_attr = path;
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

/// Returns the GID of a group on InfiniBand ports: a GID itself, or the group of link-local scope
/// that IPoIB has for an IP address (linux cma.c: `cma_set_mgid`; RFC 4391, section 4).
fn infiniband_group(group: Address, space: u16) -> [u8; 16] {
    /// The lower byte of the signature of IPoIB, and of UDP in its place.
    const SIGNATURE: u8 = 0x1b;
    const UDP_SIGNATURE: u8 = 0x01;
    /// The first segments of a GID that a subnet manager has chosen, but for the scope.
    const CHOSEN: (u16, u16) = (0xff10, 0xa01b);
    let [partition, key] = DEFAULT_PKEY.to_be_bytes();
    let signature = if space == PS_UDP { UDP_SIGNATURE } else { SIGNATURE };
    let start = |version| [0xff, 0x12, version, signature, partition, key];
    let mut gid = [0; 16];
    match group.ip() {
        _ if group.native.is_some() => return address::gid(group.ip()),
        IpAddr::V6(group) if (group.segments()[0] & 0xfff0, group.segments()[1]) == CHOSEN => {
            return group.octets();
        }
        IpAddr::V4(group) => {
            gid[..6].copy_from_slice(&start(0x40));
            gid[12..].copy_from_slice(&group.octets());
            gid[12] &= 0x0f;
        }
        IpAddr::V6(group) => {
            gid[..6].copy_from_slice(&start(0x60));
            gid[6..].copy_from_slice(&group.octets()[6..]);
        }
    }
    gid
}

/// Returns a multicast LID for a group. Devices here do not need it.
fn group_lid(gid: [u8; 16]) -> u16 {
    let [.., high, low] = gid;
    FIRST_LID + u16::from_be_bytes([high, low]) % (LIDS - 1)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use zerocopy::FromBytes;

    use super::{group_lid, infiniband_group};
    use crate::rdma_cm::abi::{JoinIpMcast, JoinMcast};
    use crate::rdma_cm::state::PS_UDP;

    /// As the kernel's `ip_ib_mc_map` and `ipv6_ib_mc_map` make them.
    #[test]
    fn groups_of_ip_addresses_have_gids_of_ipoib() {
        for (address, space, group) in [
            ("239.1.2.3", PS_UDP, "ff12:4001:ffff::f01:203"),
            ("239.1.2.3", 2, "ff12:401b:ffff::f01:203"),
            ("ff0e::1:2:3", PS_UDP, "ff12:6001:ffff:0:0:1:2:3"),
            ("ff12:a01b:fe80::7", PS_UDP, "ff12:a01b:fe80::7"),
        ] {
            let socket = SocketAddr::new(address.parse().unwrap(), 0);
            let group: std::net::Ipv6Addr = group.parse().unwrap();
            let gid = infiniband_group(socket.into(), space);
            assert_eq!(gid, group.octets(), "{address}");
            assert!((0xc000..0xffff).contains(&group_lid(gid)));
        }
        assert!((0xc000..0xffff).contains(&group_lid([0xff; 16])));
    }

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
