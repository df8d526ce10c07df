//! RoCEv2 transport headers: what follows the UDP header of a packet (IBTA chapter 9, annex A17).
//!
//! Every packet starts with a [`Bth`]; its opcode determines which extended headers follow
//! ([`BthOpcode::headers`]), then the payload, up to three bytes of padding, and the
//! [`crate::icrc`].

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be32, Be64};
use crate::prm::UnknownValue;

mod aeth;
mod connection;
mod opcode;

pub use aeth::{Aeth, AethSyndrome, INVALID_CREDITS, NakCode, ack_timeout_ns, rnr_delay_ns};
pub use connection::{DcEth, DcRefusal};
pub use opcode::{BthOpcode, CONGESTION_NOTIFICATION, CONGESTION_RESERVED, Headers, Transport};

/// The UDP port of RoCEv2 (IANA, IBTA A17.4.5.1).
pub const UDP_PORT: u16 = 4791;
/// The partition key that every port has (IBTA 10.9.1.2: full member of the default partition).
pub const DEFAULT_PKEY: u16 = 0xffff;
/// A packet sequence number (PSN) or a queue pair number has 24 bits.
pub const MASK_24: u32 = 0x00ff_ffff;

/// The destination queue pair of datagrams to a multicast group (IBTA 10.5.2).
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// Offset of the byte of a [`Bth`] with [`FECN`].
pub const FECN_OFFSET: usize = 4;
/// The packet met congestion on its way here (forward explicit congestion notification).
pub const FECN: u8 = 1 << 7;

/// The UDP source ports of RoCEv2 by which routers and bonded ports spread connections, from the
/// lowest to the highest (linux ib_verbs.h: `IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`).
pub const UDP_SOURCE_PORTS: (u16, u16) = (0xc000, 0xffff);

/// Returns the UDP source port of a connection between queue pairs `a` and `b`: one of
/// [`UDP_SOURCE_PORTS`], the same in both directions (as linux ib_verbs.h: `rdma_calc_flow_label`).
pub const fn udp_source_port(a: u32, b: u32) -> u16 {
    let product = a as u64 * b as u64;
    let folded = product ^ product >> 20;
    let label = (folded ^ folded >> 40) & 0xf_ffff;
    UDP_SOURCE_PORTS.0 | (label ^ label >> 14) as u16 & 0x3fff
}

/// Returns the UDP source port of a connection between queue pairs `a` and `b` in the range that a
/// device allows: that of [`udp_source_port`] where possible. Connections get different ports, so
/// that routers spread them over paths.
pub fn udp_source_port_within(a: u32, b: u32, (first, last): (u16, u16)) -> u16 {
    let span = u32::from(last.saturating_sub(first)) + 1;
    let port = udp_source_port(a, b);
    if (first..=last).contains(&port) { port } else { first + (u32::from(port) % span) as u16 }
}

/// Base transport header (IBTA 9.2): starts every packet.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// Solicited event, migration state, pad count, header version.
    flags: u8,
    /// Partition key.
    pub pkey: Be16,
    /// Congestion bits and the destination queue pair.
    destination: Be32,
    /// Acknowledge request and packet sequence number.
    sequence: Be32,
}

const_assert_eq!(size_of::<Bth>(), 12);

impl Bth {
    const SOLICITED: u8 = 0x80;
    const MIGRATED: u8 = 0x40;
    const PAD_SHIFT: u32 = 4;
    const PAD: u8 = 0x30;
    const VERSION: u8 = 0x0f;
    const ACK_REQUEST: u32 = 1 << 31;
    const FECN: u32 = 1 << 31;
    const BECN: u32 = 1 << 30;
    const TRANSPORT_SHIFT: u32 = 5;
    const OPERATION: u8 = 0x1f;

    /// A header in the default partition, in migration state 'migrated' (there is one path),
    /// without padding.
    #[inline]
    pub const fn new(opcode: BthOpcode, destination: u32, psn: u32) -> Self {
        Self {
            opcode: opcode as u8,
            flags: Self::MIGRATED,
            pkey: Be16::new(DEFAULT_PKEY),
            destination: Be32::new(destination & MASK_24),
            sequence: Be32::new(psn & MASK_24),
        }
    }

    /// The operation.
    ///
    /// # Errors
    /// [`UnknownValue`] if it is none of reliable connections.
    #[inline]
    pub fn opcode(&self) -> Result<BthOpcode, UnknownValue> {
        BthOpcode::try_from(self.opcode)
    }

    /// The transport service.
    ///
    /// # Errors
    /// [`UnknownValue`] if it is none of [`Transport`].
    #[inline]
    pub fn transport(&self) -> Result<Transport, UnknownValue> {
        Transport::try_from(self.opcode >> Self::TRANSPORT_SHIFT)
    }

    /// The operation, whatever the transport service.
    ///
    /// # Errors
    /// [`UnknownValue`] if it is none of [`BthOpcode`].
    #[inline]
    pub fn operation(&self) -> Result<BthOpcode, UnknownValue> {
        BthOpcode::try_from(self.opcode & Self::OPERATION)
    }

    /// Makes it a packet of another partition.
    #[inline]
    #[must_use]
    pub const fn with_pkey(mut self, pkey: u16) -> Self {
        self.pkey = Be16::new(pkey);
        self
    }

    /// Whether a queue pair with partition key `own` accepts the packet: both are in the same
    /// partition, and one of them is a full member (IBTA 10.9.3).
    #[inline]
    pub const fn is_in_partition(&self, own: u16) -> bool {
        const FULL: u16 = 1 << 15;
        let pkey = self.pkey.get();
        (pkey ^ own) & !FULL == 0 && (pkey | own) & FULL != 0
    }

    /// Makes it a packet of another transport service.
    #[inline]
    #[must_use]
    pub const fn with_transport(mut self, transport: Transport) -> Self {
        self.opcode = self.opcode & Self::OPERATION | (transport as u8) << Self::TRANSPORT_SHIFT;
        self
    }

    /// Whether the packet met congestion on its way here (FECN).
    #[inline]
    pub const fn met_congestion(&self) -> bool {
        self.destination.get() & Self::FECN != 0
    }

    /// Sets the bit that reports congestion on the return path (BECN), and clears the migration
    /// state, as adapters do.
    #[inline]
    #[must_use]
    pub const fn with_congestion_notice(mut self) -> Self {
        self.flags &= !Self::MIGRATED;
        self.destination = Be32::new(self.destination.get() | Self::BECN);
        self
    }

    /// Transport header version; 0 is the only one.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.flags & Self::VERSION
    }

    /// Whether the receiver raises a solicited event.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.flags & Self::SOLICITED != 0
    }

    /// Sets or clears the solicited event bit.
    #[inline]
    #[must_use]
    pub const fn with_solicited(mut self, solicited: bool) -> Self {
        self.flags = self.flags & !Self::SOLICITED | if solicited { Self::SOLICITED } else { 0 };
        self
    }

    /// Bytes of padding after the payload, 0 to 3.
    #[inline]
    pub const fn pad(&self) -> usize {
        ((self.flags & Self::PAD) >> Self::PAD_SHIFT) as usize
    }

    /// Sets the pad count that extends `payload` bytes to a multiple of four.
    #[inline]
    #[must_use]
    pub const fn padded_for(mut self, payload: usize) -> Self {
        self.flags =
            self.flags & !Self::PAD | ((payload.wrapping_neg() & 3) as u8) << Self::PAD_SHIFT;
        self
    }

    /// The queue pair that the packet is for.
    #[inline]
    pub const fn destination(&self) -> u32 {
        self.destination.get() & MASK_24
    }

    /// Whether the sender asks for an acknowledgment.
    #[inline]
    pub const fn ack_request(&self) -> bool {
        self.sequence.get() & Self::ACK_REQUEST != 0
    }

    /// Sets or clears the acknowledge request bit.
    #[inline]
    #[must_use]
    pub const fn with_ack_request(mut self, request: bool) -> Self {
        let bit = if request { Self::ACK_REQUEST } else { 0 };
        self.sequence = Be32::new(self.sequence.get() & !Self::ACK_REQUEST | bit);
        self
    }

    /// Packet sequence number.
    #[inline]
    pub const fn psn(&self) -> u32 {
        self.sequence.get() & MASK_24
    }
}

/// RDMA extended transport header (IBTA 9.3.3): the destination of an RDMA write, or the source of
/// a read.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Reth {
    /// Address at the responder.
    pub address: Be64,
    /// Remote key.
    pub rkey: Be32,
    /// Bytes of the whole message.
    pub length: Be32,
}

const_assert_eq!(size_of::<Reth>(), 16);

/// Atomic extended transport header (IBTA 9.3.2).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct AtomicEth {
    /// Address at the responder, a multiple of 8.
    pub address: Be64,
    /// Remote key.
    pub rkey: Be32,
    /// The value to store, or to add.
    pub swap_or_add: Be64,
    /// The value to compare with.
    pub compare: Be64,
}

const_assert_eq!(size_of::<AtomicEth>(), 28);

/// XRC extended transport header (IBTA annex A14): starts every request of an extended reliable
/// connection.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct XrcEth {
    /// The shared receive queue that the message goes to: 8 reserved bits and 24 of its number.
    pub srqn: Be32,
}

const_assert_eq!(size_of::<XrcEth>(), 4);

/// Datagram extended transport header (IBTA 9.3.1): the sender's queue pair, and the Q_Key that the
/// receiver must have.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Deth {
    /// Queue key.
    pub qkey: Be32,
    /// The sender's queue pair: 8 reserved bits and 24 of its number.
    pub source_qpn: Be32,
}

const_assert_eq!(size_of::<Deth>(), 8);

/// Operands of a masked atomic on the wire. The packets of devices are not public: this is the
/// software HCA's own header, in a packet of [`Transport::Vendor`].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct MaskedAtomicEth {
    /// Address at the responder, a multiple of the size.
    pub address: Be64,
    /// Remote key.
    pub rkey: Be32,
    /// Bytes of the operand: 4 or 8. Smaller operands lie in the lower bits of the fields that
    /// follow.
    pub size: Be32,
    /// The value to store, or to add.
    pub swap_or_add: Be64,
    /// The value to compare with, or the highest bits of the fields that are added to.
    pub compare: Be64,
    /// The bits that are stored.
    pub swap_mask: Be64,
    /// The bits that are compared.
    pub compare_mask: Be64,
}

const_assert_eq!(size_of::<MaskedAtomicEth>(), 48);

/// Atomic acknowledge extended transport header (IBTA 9.3.5.3).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct AtomicAckEth {
    /// The previous value.
    pub original: Be64,
}

const_assert_eq!(size_of::<AtomicAckEth>(), 8);

/// Immediate data (IBTA 9.3.6), handed through as the sender stored it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ImmDt {
    /// The immediate.
    pub data: Be32,
}

const_assert_eq!(size_of::<ImmDt>(), 4);

/// Invalidate extended transport header (IBTA 9.3.7).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Ieth {
    /// The key that the receiver invalidates.
    pub rkey: Be32,
}

const_assert_eq!(size_of::<Ieth>(), 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_spread_and_stay_in_range() {
        for range in [UDP_SOURCE_PORTS, (50_000, 50_099), (1_000, 1_099), (7, 7)] {
            let port = |qpn| udp_source_port_within(qpn, 0x48, range);
            let mut ports: std::vec::Vec<u16> = (0x100..0x200).map(port).collect();
            ports.sort_unstable();
            ports.dedup();
            assert!(ports.iter().all(|port| (range.0..=range.1).contains(port)), "{range:?}");
            assert!(range == (7, 7) || ports.len() > 30, "{range:?}: {}", ports.len());
            let back = udp_source_port_within(0x48, 0x100, range);
            assert_eq!(udp_source_port_within(0x100, 0x48, range), back);
        }
    }

    #[test]
    fn bth_byte_for_byte() {
        let bth = Bth::new(BthOpcode::WriteOnlyImmediate, 0x0102_0304, 0xff05_0607)
            .with_solicited(true)
            .with_ack_request(true)
            .padded_for(5);
        let bytes = [0x0b, 0xf0, 0xff, 0xff, 0, 2, 3, 4, 0x80, 5, 6, 7];
        assert_eq!(bth.as_bytes(), bytes);
        let back = Bth::read_from_bytes(&bytes).unwrap();
        assert_eq!(back, bth);
        assert_eq!(back.opcode(), Ok(BthOpcode::WriteOnlyImmediate));
        assert_eq!(
            (back.destination(), back.psn(), back.pad(), back.version()),
            (0x020304, 0x050607, 3, 0)
        );
        assert!(back.solicited() && back.ack_request());
        let cleared = back.with_solicited(false).with_ack_request(false).padded_for(8);
        assert_eq!(cleared.as_bytes(), [0x0b, 0x40, 0xff, 0xff, 0, 2, 3, 4, 0, 5, 6, 7]);
    }

    #[test]
    fn foreign_opcodes_are_named() {
        let bth = Bth::read_from_bytes(&[0x64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(bth.opcode().unwrap_err().bits, 0x64);
    }

    #[test]
    fn the_transport_is_part_of_the_opcode() {
        let bth = Bth::new(BthOpcode::SendOnlyImmediate, 0x48, 1).with_transport(Transport::Ud);
        assert_eq!(bth.as_bytes()[0], 0x65);
        assert_eq!(
            (bth.transport(), bth.operation()),
            (Ok(Transport::Ud), Ok(BthOpcode::SendOnlyImmediate))
        );
        let uc = bth.with_transport(Transport::Uc);
        assert_eq!((uc.as_bytes()[0], uc.transport()), (0x25, Ok(Transport::Uc)));
        let bth =
            Bth::read_from_bytes(&[0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]).unwrap();
        assert_eq!((bth.transport(), bth.destination()), (Ok(Transport::Congestion), 0x118));
        assert!(
            !bth.met_congestion() && Bth::read_from_bytes(&[0x80; 12]).unwrap().met_congestion()
        );
        // That of a ConnectX-4 Lx.
        let notice = Bth::new(BthOpcode::SendMiddle, 0x118, 0)
            .with_transport(Transport::Congestion)
            .with_congestion_notice();
        assert_eq!(notice, bth);
    }

    #[test]
    fn extended_headers_byte_for_byte() {
        let reth = Reth {
            address: 0x0102_0304_0506_0708.into(),
            rkey: 0x1112_1314.into(),
            length: 0x2122_2324.into(),
        };
        assert_eq!(
            reth.as_bytes(),
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]
        );
        assert_eq!(Reth::read_from_bytes(reth.as_bytes()).unwrap(), reth);

        let atomic = AtomicEth {
            address: 8.into(),
            rkey: 9.into(),
            swap_or_add: 10.into(),
            compare: 11.into(),
        };
        let mut bytes = [0; 28];
        (bytes[7], bytes[11], bytes[19], bytes[27]) = (8, 9, 10, 11);
        assert_eq!(atomic.as_bytes(), bytes);
        assert_eq!(AtomicEth::read_from_bytes(&bytes).unwrap(), atomic);

        let deth = Deth { qkey: 0x0102_0304.into(), source_qpn: 0x48.into() };
        assert_eq!(deth.as_bytes(), [1, 2, 3, 4, 0, 0, 0, 0x48]);
        assert_eq!(XrcEth { srqn: 0x0102_0304.into() }.as_bytes(), [1, 2, 3, 4]);
        assert_eq!(AtomicAckEth { original: 1.into() }.as_bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(ImmDt { data: 0x0102_0304.into() }.as_bytes(), [1, 2, 3, 4]);
        assert_eq!(Ieth { rkey: 0x0102_0304.into() }.as_bytes(), [1, 2, 3, 4]);
    }
}
