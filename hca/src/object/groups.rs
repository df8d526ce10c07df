//! The multicast groups of a device, and the queue pairs that are attached to them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::limits;

/// The groups that have queue pairs, each with those in the order of attaching.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<IpAddr, Vec<u32>>);

/// Why a queue pair cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The device has as many groups as it can.
    Groups,
    /// The group has as many queue pairs as it can.
    Members,
}

impl Groups {
    /// Returns the queue pairs of a group.
    fn of(&self, group: IpAddr) -> &[u32] {
        self.0.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a group has any queue pair.
    pub(crate) fn has(&self, group: IpAddr) -> bool {
        self.0.contains_key(&group)
    }

    /// Returns queue pair `at` of a group, from 0.
    pub(crate) fn member(&self, group: IpAddr, at: usize) -> Option<u32> {
        self.of(group).get(at).copied()
    }

    /// Returns whether a queue pair is attached to a group.
    pub(crate) fn is_attached(&self, group: IpAddr, qpn: u32) -> bool {
        self.of(group).contains(&qpn)
    }

    /// Returns why no queue pair can be attached to a group.
    pub(crate) fn room(&self, group: IpAddr) -> Result<(), Full> {
        match self.of(group).len() {
            0 if self.0.len() >= limits::GROUPS => Err(Full::Groups),
            limits::GROUP_MEMBERS.. => Err(Full::Members),
            _ => Ok(()),
        }
    }

    /// Attaches a queue pair that is not attached.
    pub(crate) fn attach(&mut self, group: IpAddr, qpn: u32) {
        self.0.entry(group).or_default().push(qpn);
    }

    /// Detaches a queue pair.
    pub(crate) fn detach(&mut self, group: IpAddr, qpn: u32) {
        let Some(members) = self.0.get_mut(&group) else { return };
        members.retain(|&member| member != qpn);
        if members.is_empty() {
            self.0.remove(&group);
        }
    }

    /// Returns a group to which a queue pair is attached.
    pub(crate) fn group_of(&self, qpn: u32) -> Option<IpAddr> {
        self.0.iter().find(|(_, members)| members.contains(&qpn)).map(|(&group, _)| group)
    }
}
