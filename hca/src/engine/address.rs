//! Where a datagram goes: the address vector of its WQE.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barewire_layouts::roce::MASK_24;
use barewire_layouts::wqe::{AddressVector, CompactAddressVector, EXTENDED_ADDRESS_VECTOR};

use super::fetch::Segments;
use super::report::Finding;
use crate::command::gid_address;
use crate::limits;

/// A key with this bit stands for the sender's own (IBTA 10.2.5: what only privileged users may name).
const OWN_QKEY: u32 = 1 << 31;

/// How the receiver is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Gid([u8; 16]),
    Lid(u16),
}

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) qpn: u32,
    qkey: u32,
    route: Route,
    /// Index of the own address, where the address vector has one.
    pub(super) source: Option<u16>,
}

impl Destination {
    /// The receiver's address, as the device at `own` sees it; `None` if no host has such an address.
    pub(super) fn address(&self, own: IpAddr) -> Option<IpAddr> {
        match self.route {
            Route::Gid(gid) => gid_address(gid),
            Route::Lid(lid) => Some(lid_address(own, lid)),
        }
    }

    /// The key that the datagram carries, sent by a queue pair with key `own`.
    pub(super) fn qkey(&self, own: u32) -> u32 {
        if self.qkey & OWN_QKEY == 0 { self.qkey } else { own }
    }
}

/// Reads the address vector behind the control segment, in either form.
pub(super) fn destination(segments: &mut Segments<'_>, ds: u32) -> Result<Destination, Finding> {
    const ROOM: &str = "room for the address vector";
    let extended = segments
        .peek::<CompactAddressVector>()
        .is_some_and(|base| base.qpn.get() & EXTENDED_ADDRESS_VECTOR != 0);
    let (base, route, source) = if extended {
        let vector: AddressVector = segments.next(ds, ROOM)?;
        let reserved = vector.reserved.get();
        if reserved != 0 {
            return Err(Finding::Reserved { what: "address vector", got: reserved.into() });
        }
        if u16::from(vector.source_index()) >= limits::GIDS {
            let (what, got) = ("address vector: source GID index", vector.source_index().into());
            return Err(Finding::Value { what, got, wanted: "below the size of the GID table" });
        }
        (vector.base, Route::Gid(vector.gid), Some(vector.source_index().into()))
    } else {
        let vector: CompactAddressVector = segments.next(ds, ROOM)?;
        (vector, Route::Lid(vector.lid_or_port.get()), None)
    };
    let reserved = base.reserved.get();
    if reserved != 0 {
        return Err(Finding::Reserved { what: "address vector", got: reserved.into() });
    }
    Ok(Destination { qpn: base.qpn.get() & MASK_24, qkey: base.qkey.get(), route, source })
}

/// The local identifier (LID) that goes for an address where InfiniBand has one: its last 16 bits.
pub(super) fn address_lid(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(address) => address.to_bits() as u16,
        IpAddr::V6(address) => address.to_bits() as u16,
    }
}

/// The address of `lid` as a device at `own` sees it: they differ in the last 16 bits only.
fn lid_address(own: IpAddr, lid: u16) -> IpAddr {
    match own {
        IpAddr::V4(own) => Ipv4Addr::from_bits(own.to_bits() & !0xffff | u32::from(lid)).into(),
        IpAddr::V6(own) => Ipv6Addr::from_bits(own.to_bits() & !0xffff | u128::from(lid)).into(),
    }
}
