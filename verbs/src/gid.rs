//! Global identifiers (GIDs): the addresses of a port, and the choice of one of them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use barewire_layouts::command::port::{is_limited, partition_index};

use crate::device::LinkLayer;
use crate::{AddressHandle, Context, Error, Port, ProtectionDomain, Route, sys};

/// A 128-bit address in the format of IPv6. On RoCE it is an IP address; IPv4 addresses are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address, if the GID is a mapped one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Returns true for a link-local address (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

/// The packet format of a GID. verbs.h: `enum ibv_gid_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand with a global routing header.
    InfiniBand,
    /// RoCE version 1: its own Ethertype.
    RoceV1,
    /// RoCE version 2: UDP over IP.
    RoceV2,
    /// A value that verbs.h does not define.
    Unknown(u32),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCEv1"),
            Self::RoceV2 => f.write_str("RoCEv2"),
            Self::Unknown(kind) => write!(f, "kind {kind}"),
        }
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the port's table, by which queue pairs name it.
    pub index: u32,
    /// The port.
    pub port: u8,
    /// The packet format.
    pub kind: GidKind,
    /// Index of the network interface with this address; 0 if there is none.
    pub interface: u32,
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {} ({}, {})", self.index, self.kind, self.gid)
    }
}

/// A GID that was chosen, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The entry.
    pub entry: GidEntry,
    /// The reason, as text for a user.
    pub reason: String,
}

/// What a user may choose of a port; `None` for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortOptions {
    /// Index in the GID table.
    pub gid_index: Option<u8>,
    /// A partition, by its key; the bit for full membership does not matter.
    pub partition_key: Option<u16>,
}

/// The GID and the partition that queue pairs of a port use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChoice {
    /// The GID.
    pub gid: GidChoice,
    /// Index in the partition table.
    pub partition_index: u16,
    /// Whether the port is a limited member of the partition.
    pub limited_member: bool,
}

impl Context {
    /// Returns the used entries of the GID tables of all ports. verbs.h: `ibv_query_gid_table`.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn gids(&self) -> Result<Vec<GidEntry>, Error> {
        let failed = |source| Error::new(self.name(), "read the GID table", source);
        let most = (1..=self.port_count()).try_fold(0, |sum, port| {
            let length = self.open_context().query_port(port).map_err(failed)?.gid_tbl_len;
            Ok(sum + usize::try_from(length).unwrap_or(0))
        })?;
        let entries = self.open_context().gid_table(most).map_err(failed)?;
        let entry = |entry: &rdma_sys::ibv_gid_entry| GidEntry {
            gid: Gid(sys::gid_bytes(&entry.gid)),
            index: entry.gid_index,
            port: u8::try_from(entry.port_num).unwrap_or(0),
            kind: match entry.gid_type {
                0 => GidKind::InfiniBand,
                1 => GidKind::RoceV1,
                2 => GidKind::RoceV2,
                other => GidKind::Unknown(other),
            },
            interface: entry.ndev_ifindex,
        };
        Ok(entries.iter().map(entry).collect())
    }

    /// Chooses the GID and the partition of `port` for its queue pairs: those that `wanted` names,
    /// or else the defaults of [`Self::choose_gid`] and of the partition table, in which the first
    /// partition with full membership is preferred.
    ///
    /// # Errors
    /// If an entry does not exist or is not usable.
    pub fn choose_port(
        &self,
        domain: &ProtectionDomain,
        port: &Port,
        wanted: PortOptions,
    ) -> Result<PortChoice, Error> {
        let failed = |step: &str, reason: String| {
            let source = std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, reason);
            Error::new(self.name(), format!("{step} of port {}", port.number), source)
        };
        let gid = match wanted.gid_index {
            None => self.choose_gid(domain, port)?,
            Some(index) => {
                let gids = self.gids()?.into_iter();
                let mut gids = gids.filter(|entry| entry.port == port.number);
                let entry =
                    gids.find(|entry| entry.index == u32::from(index)).ok_or_else(|| {
                        let reason = format!("entry {index} of its table is empty");
                        failed("find the wanted GID", reason).with_hint(
                            "show_gids lists the entries; set gid_index to one".to_owned(),
                        )
                    })?;
                GidChoice { entry, reason: format!("{entry}: as set by gid_index") }
            }
        };
        let keys = (0..port.partitions).map(|index| {
            self.open_context()
                .partition_key(port.number, index)
                .map_err(|error| failed("read the partition table", error.to_string()))
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let partition_index = partition_index(&keys, wanted.partition_key).ok_or_else(|| {
            let keys: Vec<_> = keys.iter().map(|key| format!("{key:#06x}")).collect();
            let reason = format!("its table has only {}", keys.join(", "));
            failed("find the wanted partition", reason)
        })?;
        let limited_member = is_limited(keys[usize::from(partition_index)]);
        Ok(PortChoice { gid, partition_index, limited_member })
    }

    /// Chooses the default GID of `port`. On Ethernet it prefers RoCEv2 to RoCEv1, and IPv4 to IPv6
    /// to link-local addresses, because these can be routed; otherwise it takes the first one. Only
    /// GIDs for which the kernel can create an address handle are considered: the table also lists
    /// addresses of interfaces that are down or in another namespace.
    ///
    /// # Errors
    /// If no entry is usable, with the reason for each.
    pub fn choose_gid(&self, domain: &ProtectionDomain, port: &Port) -> Result<GidChoice, Error> {
        let mut entries = self.gids()?;
        entries.retain(|entry| entry.port == port.number);
        let handle = |entry: &GidEntry| {
            // Address handles hold the table index in 8 bits.
            let index =
                u8::try_from(entry.index).map_err(|_| "its index exceeds 8 bits".to_owned())?;
            let route = Route::to_gid(port.number, entry.gid, index).with_lid(port.lid);
            AddressHandle::new(domain, &route)
                .map(drop)
                .map_err(|error| error.source_error().to_string())
        };
        choose(entries, port.link_layer == LinkLayer::Ethernet, handle).map_err(|reason| {
            let source = std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, reason);
            Error::new(self.name(), format!("find a usable GID of port {}", port.number), source)
                .with_hint(
                    "give the network interface of the port an IP address and bring it up"
                        .to_owned(),
                )
        })
    }
}

/// Returns the best entry for which `works` succeeds, or the reasons why there is none.
fn choose(
    mut entries: Vec<GidEntry>,
    ethernet: bool,
    mut works: impl FnMut(&GidEntry) -> Result<(), String>,
) -> Result<GidChoice, String> {
    let rank = |entry: &GidEntry| match (ethernet, entry.kind) {
        (true, GidKind::RoceV2) if entry.gid.ipv4().is_some() => {
            (0, "the first RoCEv2 with an IPv4 address")
        }
        (true, GidKind::RoceV2) if !entry.gid.is_link_local() => {
            (1, "RoCEv2 with an IPv6 address, because there is none with an IPv4 address")
        }
        (true, GidKind::RoceV2) => {
            (2, "RoCEv2 with a link-local address, because there is no other RoCEv2 entry")
        }
        (true, _) => (3, "the first entry, because there is no RoCEv2"),
        (false, _) => (0, "the first"),
    };
    entries.sort_by_key(|entry| (rank(entry).0, entry.index));
    let mut refused = Vec::new();
    for entry in entries {
        match works(&entry) {
            Ok(()) => {
                let mut reason = format!("{entry}: {}", rank(&entry).1);
                if !refused.is_empty() {
                    reason = format!("{reason}; not usable: {}", refused.join("; "));
                }
                return Ok(GidChoice { entry, reason });
            }
            Err(error) => refused.push(format!("{entry}: {error}")),
        }
    }
    Err(if refused.is_empty() {
        "the GID table of the port is empty".to_owned()
    } else {
        refused.join("; ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, kind: GidKind, gid: &str) -> GidEntry {
        let gid = Gid::from(gid.parse::<Ipv6Addr>().unwrap());
        GidEntry { gid, index, port: 1, kind, interface: 0 }
    }

    fn table() -> Vec<GidEntry> {
        vec![
            entry(0, GidKind::RoceV1, "fe80::1"),
            entry(1, GidKind::RoceV2, "fe80::1"),
            entry(2, GidKind::RoceV1, "::ffff:10.0.0.1"),
            entry(3, GidKind::RoceV2, "::ffff:10.0.0.1"),
            entry(4, GidKind::RoceV2, "2001:db8::1"),
            entry(5, GidKind::RoceV2, "::ffff:10.0.1.1"),
        ]
    }

    #[test]
    fn ipv4_over_udp_is_preferred() {
        let choice = choose(table(), true, |_| Ok(())).unwrap();
        assert_eq!(choice.entry.index, 3);
        assert_eq!(
            choice.reason,
            "GID 3 (RoCEv2, ::ffff:10.0.0.1): the first RoCEv2 with an IPv4 address"
        );
    }

    #[test]
    fn gids_without_an_address_handle_are_skipped() {
        let mut order = Vec::new();
        let choice = choose(table(), true, |entry| {
            order.push(entry.index);
            if order.len() < 3 { Err("No such device".to_owned()) } else { Ok(()) }
        });
        assert_eq!(order, [3, 5, 4]);
        let reason = choice.unwrap().reason;
        assert!(
            reason
                .contains("because there is none with an IPv4 address; not usable: GID 3 (RoCEv2"),
            "{reason}"
        );
        let mut order = Vec::new();
        let error = choose(table(), true, |entry| {
            order.push(entry.index);
            Err("No such device".to_owned())
        });
        assert_eq!(order, [3, 5, 4, 1, 0, 2]);
        assert_eq!(error.unwrap_err().matches("No such device").count(), 6);
        assert_eq!(
            choose(Vec::new(), true, |_| Ok(())).unwrap_err(),
            "the GID table of the port is empty"
        );
    }

    #[test]
    fn infiniband_takes_the_first() {
        let table = vec![
            entry(1, GidKind::InfiniBand, "fec0::1"),
            entry(0, GidKind::InfiniBand, "fe80::1"),
        ];
        assert_eq!(choose(table, false, |_| Ok(())).unwrap().entry.index, 0);
    }

    #[test]
    fn addresses_are_told_apart() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        let gid = Gid::from("fe80::1".parse::<Ipv6Addr>().unwrap());
        assert!(gid.is_link_local() && gid.ipv4().is_none());
    }
}
