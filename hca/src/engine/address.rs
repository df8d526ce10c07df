//! The destination of a datagram or DC request: the address vector of its WQE.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::roce::MASK_24;
use barewire_layouts::wqe::{AddressVector, CompactAddressVector, EXTENDED_ADDRESS_VECTOR};

use super::report::Finding;
use super::segments::Segments;
use crate::address::{from_gid, group_on_wire};
use crate::limits;

/// A Q_Key with this bit stands for the sender's own (IBTA 10.2.5: privileged Q_Keys).
const OWN_QKEY: u32 = 1 << 31;

/// The unspecified GID.
const NO_GID: [u8; 16] = [0; 16];

/// How the WQE names the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Gid([u8; 16]),
    Lid(u16),
}

/// The receiver of a datagram, or the target of a DC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) qpn: u32,
    key: u64,
    route: Route,
    /// Index of the source GID, if the address vector has one.
    pub(super) source: Option<u16>,
    /// The traffic class of the packets.
    pub(super) class: u8,
}

impl Destination {
    /// Returns the receiver's address as seen from `own`, or `None` if no host can have it.
    pub(super) fn address(&self, own: IpAddr) -> Option<IpAddr> {
        match self.route {
            Route::Gid(gid) => from_gid(gid),
            Route::Lid(lid) => Some(lid_address(own, lid)),
        }
    }

    /// Returns the address that a datagram from a port of this type with address `own` goes to: the
    /// receiver's, or that of a multicast group.
    pub(super) fn receiver(&self, port_type: PortType, own: IpAddr) -> Option<IpAddr> {
        let group = match self.route {
            Route::Gid(gid) => group_on_wire(gid, port_type, own),
            Route::Lid(_) => None,
        };
        group.or_else(|| self.address(own))
    }

    /// Returns the Q_Key that the datagram carries, sent by a queue pair with Q_Key `own`.
    pub(super) fn qkey(&self, own: u32) -> u32 {
        let qkey = (self.key >> 32) as u32;
        if qkey & OWN_QKEY == 0 { qkey } else { own }
    }

    /// Returns the DC access key.
    pub(super) fn access_key(&self) -> u64 {
        self.key
    }
}

/// Reads an address vector of either form.
pub(super) fn destination(
    segments: &mut Segments<'_>,
    ds: u32,
    service: ServiceType,
) -> Result<Destination, Finding> {
    const ROOM: &str = "room for the address vector";
    let extended = segments
        .peek::<CompactAddressVector>()
        .is_some_and(|base| base.qpn.get() & EXTENDED_ADDRESS_VECTOR != 0);
    let (base, route, source, class) = if extended {
        let vector: AddressVector = segments.next(ds, ROOM)?;
        segments.reserved().check("address vector", vector.reserved.get())?;
        if u16::from(vector.source_index()) >= limits::GIDS {
            let (what, got) = ("address vector: source GID index", vector.source_index().into());
            return Err(Finding::Value { what, got, wanted: "below the size of the GID table" });
        }
        // InfiniBand without a GRH.
        let route = match (vector.gid, vector.base.lid_or_port.get()) {
            (NO_GID, lid) if lid != 0 => Route::Lid(lid),
            (gid, _) => Route::Gid(gid),
        };
        let source = matches!(route, Route::Gid(_)).then(|| vector.source_index().into());
        (vector.base, route, source, vector.traffic_class)
    } else {
        let vector: CompactAddressVector = segments.next(ds, ROOM)?;
        (vector, Route::Lid(vector.lid_or_port.get()), None, 0)
    };
    // A datagram uses half of the key, DC all of it.
    let (what, reserved) = if service == ServiceType::Ud {
        ("address vector", base.reserved.get())
    } else {
        ("address vector: target number", base.qpn.get() & !(MASK_24 | EXTENDED_ADDRESS_VECTOR))
    };
    segments.reserved().check(what, reserved)?;
    Ok(Destination { qpn: base.qpn.get() & MASK_24, key: base.access_key(), route, source, class })
}

/// Returns the LID that represents an address on InfiniBand ports: its last 16 bits.
pub(super) fn address_lid(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(address) => address.to_bits() as u16,
        IpAddr::V6(address) => address.to_bits() as u16,
    }
}

/// Returns the address of `lid` as seen from `own`; the two differ in the last 16 bits only.
pub(crate) fn lid_address(own: IpAddr, lid: u16) -> IpAddr {
    match own {
        IpAddr::V4(own) => Ipv4Addr::from_bits(own.to_bits() & !0xffff | u32::from(lid)).into(),
        IpAddr::V6(own) => Ipv6Addr::from_bits(own.to_bits() & !0xffff | u128::from(lid)).into(),
    }
}
