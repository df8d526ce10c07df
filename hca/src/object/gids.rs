//! The table of a port's source addresses.

use std::net::IpAddr;

use barewire_layouts::command::gid::{RoceAddress, RoceL3Type, RoceVersion};
use barewire_layouts::prm::{Layout, View, ViewMut};

use crate::address::{from_gid, gid, link_local, mac};
use crate::limits;

/// An entry in the format of commands. All zero: no entry.
pub(crate) type Entry = [u8; RoceAddress::BYTES];

/// The addresses that queue pairs may use as their source.
#[derive(Debug)]
pub(crate) struct Gids {
    entries: [Entry; limits::GIDS as usize],
}

/// An entry is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// No single host has the address, or its IP version is not the entry's.
    Address,
    /// The MAC address is that of a group.
    Mac,
    /// The RoCE version or VLAN is not supported.
    Version,
}

impl Gids {
    /// Creates the table of a port at `address`, which is the first entry. Its link-local GID is
    /// the second, as on hosts: the kernel adds one for each address of the network interface.
    pub(crate) fn new(address: IpAddr) -> Self {
        let mut entries = [[0; RoceAddress::BYTES]; limits::GIDS as usize];
        let gids = [Some(gid(address)), link_local(address)];
        for (entry, gid) in entries.iter_mut().zip(gids.into_iter().flatten()) {
            if let Some(mut entry) = ViewMut::<RoceAddress>::new(entry) {
                entry
                    .set_array(RoceAddress::SOURCE_L3_ADDRESS, gid)
                    .set_array(RoceAddress::SOURCE_MAC, mac(address))
                    .set(RoceAddress::ROCE_L3_TYPE, l3_type(gid))
                    .set(RoceAddress::ROCE_VERSION, RoceVersion::V2);
            }
        }
        Self { entries }
    }

    /// Returns the entry at `index`; `None` beyond the table.
    pub(crate) fn entry(&self, index: u16) -> Option<Entry> {
        self.entries.get(usize::from(index)).copied()
    }

    /// Returns the GIDs of all entries.
    pub(crate) fn all(&self) -> impl Iterator<Item = [u8; 16]> {
        self.entries.iter().filter_map(|entry| {
            View::<RoceAddress>::new(entry).map(|entry| entry.array(RoceAddress::SOURCE_L3_ADDRESS))
        })
    }

    /// Returns the address of the entry at `index`, if there is one.
    pub(crate) fn address(&self, index: u16) -> Option<IpAddr> {
        let entry = self.entry(index)?;
        from_gid(View::<RoceAddress>::new(&entry)?.array(RoceAddress::SOURCE_L3_ADDRESS))
    }

    /// Sets the entry at `index`, which is within the table; one whose address is zero clears it.
    pub(crate) fn set(&mut self, index: u16, mut entry: Entry) -> Result<(), Invalid> {
        if let Some(view) = View::<RoceAddress>::new(&entry) {
            let gid = view.array(RoceAddress::SOURCE_L3_ADDRESS);
            // Also of an entry that is cleared, as by firmware.
            if view.get(RoceAddress::ROCE_VERSION) != Ok(RoceVersion::V2) {
                return Err(Invalid::Version);
            }
            if view.array(RoceAddress::SOURCE_MAC)[0] & 1 != 0 {
                return Err(Invalid::Mac);
            }
            if gid == [0; 16] {
                entry = [0; RoceAddress::BYTES];
            } else {
                from_gid(gid).ok_or(Invalid::Address)?;
                if view.get(RoceAddress::ROCE_L3_TYPE) != Ok(l3_type(gid)) {
                    return Err(Invalid::Address);
                }
            }
        }
        if let Some(slot) = self.entries.get_mut(usize::from(index)) {
            *slot = entry;
        }
        Ok(())
    }
}

/// Returns the IP version of packets with this GID.
fn l3_type(gid: [u8; 16]) -> RoceL3Type {
    if IpAddr::from(gid).to_canonical().is_ipv4() { RoceL3Type::Ipv4 } else { RoceL3Type::Ipv6 }
}
