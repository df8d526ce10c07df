//! RoCEv2 transport headers: what follows the UDP header of a packet (IBTA chapter 9, annex A17).
//!
//! Every packet starts with a [`Bth`]; its opcode says which extended headers follow ([`BthOpcode::headers`]), then come the
//! payload, up to three bytes of padding, and the [`crate::icrc`].

use core::fmt;

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be32, Be64};
use crate::prm::field_enum;

/// The UDP port of RoCEv2 (IANA, IBTA A17.4.5.1).
pub const UDP_PORT: u16 = 4791;
/// The partition key that every port has (IBTA 10.9.1.2: full member of the default partition).
pub const DEFAULT_PKEY: u16 = 0xffff;
/// A packet sequence number (PSN) or a queue pair number has 24 bits.
pub const MASK_24: u32 = 0x00ff_ffff;

field_enum! {
    /// The operation of a reliable connected packet (IBTA table 38).
    BthOpcode: u8, "RC packet opcode" {
        /// First packet of a send.
        SendFirst = 0x00, "SEND first";
        /// A packet inside a send.
        SendMiddle = 0x01, "SEND middle";
        /// Last packet of a send.
        SendLast = 0x02, "SEND last";
        /// Last packet of a send, with immediate.
        SendLastImmediate = 0x03, "SEND last with immediate";
        /// A send of one packet.
        SendOnly = 0x04, "SEND only";
        /// A send of one packet, with immediate.
        SendOnlyImmediate = 0x05, "SEND only with immediate";
        /// First packet of an RDMA write.
        WriteFirst = 0x06, "RDMA WRITE first";
        /// A packet inside an RDMA write.
        WriteMiddle = 0x07, "RDMA WRITE middle";
        /// Last packet of an RDMA write.
        WriteLast = 0x08, "RDMA WRITE last";
        /// Last packet of an RDMA write, with immediate.
        WriteLastImmediate = 0x09, "RDMA WRITE last with immediate";
        /// An RDMA write of one packet.
        WriteOnly = 0x0a, "RDMA WRITE only";
        /// An RDMA write of one packet, with immediate.
        WriteOnlyImmediate = 0x0b, "RDMA WRITE only with immediate";
        /// Asks for an RDMA read.
        ReadRequest = 0x0c, "RDMA READ request";
        /// First packet of a read's answer.
        ReadResponseFirst = 0x0d, "RDMA READ response first";
        /// A packet inside a read's answer.
        ReadResponseMiddle = 0x0e, "RDMA READ response middle";
        /// Last packet of a read's answer.
        ReadResponseLast = 0x0f, "RDMA READ response last";
        /// A read's answer of one packet.
        ReadResponseOnly = 0x10, "RDMA READ response only";
        /// Acknowledgment, positive or negative.
        Acknowledge = 0x11, "acknowledge";
        /// An atomic's answer.
        AtomicAcknowledge = 0x12, "atomic acknowledge";
        /// Compare and swap.
        CompareSwap = 0x13, "compare and swap";
        /// Fetch and add.
        FetchAdd = 0x14, "fetch and add";
        /// Last packet of a send that invalidates a key.
        SendLastInvalidate = 0x16, "SEND last with invalidate";
        /// A send of one packet that invalidates a key.
        SendOnlyInvalidate = 0x17, "SEND only with invalidate";
    }
}

bitflags::bitflags! {
    /// The extended headers of a packet, in the order in which they follow the [`Bth`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Headers: u8 {
        /// [`Reth`].
        const RETH = 1 << 0;
        /// [`AtomicEth`].
        const ATOMIC_ETH = 1 << 1;
        /// [`Aeth`].
        const AETH = 1 << 2;
        /// [`AtomicAckEth`].
        const ATOMIC_ACK_ETH = 1 << 3;
        /// [`ImmDt`].
        const IMM_DT = 1 << 4;
        /// [`Ieth`].
        const IETH = 1 << 5;
    }
}

impl Headers {
    /// Bytes of all the headers in the set.
    pub const fn bytes(self) -> usize {
        let mut bytes = 0;
        let mut index = 0;
        while index < HEADER_BYTES.len() {
            if self.bits() & 1 << index != 0 {
                bytes += HEADER_BYTES[index];
            }
            index += 1;
        }
        bytes
    }
}

/// Bytes of the extended headers, by bit of [`Headers`].
const HEADER_BYTES: [usize; 6] = [
    size_of::<Reth>(),
    size_of::<AtomicEth>(),
    size_of::<Aeth>(),
    size_of::<AtomicAckEth>(),
    size_of::<ImmDt>(),
    size_of::<Ieth>(),
];

impl BthOpcode {
    /// The extended headers of such a packet (IBTA table 38).
    pub const fn headers(self) -> Headers {
        match self {
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendOnly
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::ReadResponseMiddle => Headers::empty(),
            Self::SendLastImmediate | Self::SendOnlyImmediate | Self::WriteLastImmediate => Headers::IMM_DT,
            Self::WriteFirst | Self::WriteOnly | Self::ReadRequest => Headers::RETH,
            Self::WriteOnlyImmediate => Headers::RETH.union(Headers::IMM_DT),
            Self::ReadResponseFirst | Self::ReadResponseLast | Self::ReadResponseOnly | Self::Acknowledge => {
                Headers::AETH
            }
            Self::AtomicAcknowledge => Headers::AETH.union(Headers::ATOMIC_ACK_ETH),
            Self::CompareSwap | Self::FetchAdd => Headers::ATOMIC_ETH,
            Self::SendLastInvalidate | Self::SendOnlyInvalidate => Headers::IETH,
        }
    }

    /// Whether the packet goes from responder to requester.
    pub const fn is_response(self) -> bool {
        self as u8 >= Self::ReadResponseFirst as u8 && self as u8 <= Self::AtomicAcknowledge as u8
    }

    /// Whether a message starts with this packet.
    pub const fn is_first(self) -> bool {
        !matches!(
            self,
            Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImmediate
                | Self::SendLastInvalidate
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImmediate
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
        )
    }

    /// Whether a message ends with this packet.
    pub const fn is_last(self) -> bool {
        !matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::WriteFirst
                | Self::WriteMiddle
                | Self::ReadResponseFirst
                | Self::ReadResponseMiddle
        )
    }
}

/// Base transport header (IBTA 9.2): starts every packet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
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

    /// A header in the default partition, in migration state 'migrated' (there is one path), without padding.
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
    /// [`crate::prm::UnknownValue`] if it is none of reliable connections.
    #[inline]
    pub fn opcode(&self) -> Result<BthOpcode, crate::prm::UnknownValue> {
        BthOpcode::try_from(self.opcode)
    }

    /// Transport header version; 0 is the only one.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.flags & Self::VERSION
    }

    /// Whether the receiver shall raise a solicited event.
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

    /// Sets the pad count to what makes `payload` bytes a multiple of four.
    #[inline]
    #[must_use]
    pub const fn padded_for(mut self, payload: usize) -> Self {
        self.flags = self.flags & !Self::PAD | ((payload.wrapping_neg() & 3) as u8) << Self::PAD_SHIFT;
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

/// RDMA extended transport header (IBTA 9.3.3): where an RDMA write goes, or a read comes from.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
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
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AtomicEth {
    /// Address at the responder, a multiple of 8.
    pub address: Be64,
    /// Remote key.
    pub rkey: Be32,
    /// What to store, or to add.
    pub swap_or_add: Be64,
    /// What to compare with.
    pub compare: Be64,
}

const_assert_eq!(size_of::<AtomicEth>(), 28);

/// Atomic acknowledge extended transport header (IBTA 9.3.5.3).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AtomicAckEth {
    /// What was there before.
    pub original: Be64,
}

const_assert_eq!(size_of::<AtomicAckEth>(), 8);

/// Immediate data (IBTA 9.3.6), handed through as the sender stored it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ImmDt {
    /// The immediate.
    pub data: Be32,
}

const_assert_eq!(size_of::<ImmDt>(), 4);

/// Invalidate extended transport header (IBTA 9.3.7).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ieth {
    /// The key that the receiver shall invalidate.
    pub rkey: Be32,
}

const_assert_eq!(size_of::<Ieth>(), 4);

/// Acknowledge extended transport header (IBTA 9.3.5).
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Aeth {
    word: Be32,
}

const_assert_eq!(size_of::<Aeth>(), 4);

impl Aeth {
    /// An acknowledgment of message `msn` (24 bits).
    #[inline]
    pub const fn new(syndrome: AethSyndrome, msn: u32) -> Self {
        Self { word: Be32::new((syndrome.bits() as u32) << 24 | msn & MASK_24) }
    }

    /// What the responder says; `None` for a code that is reserved.
    #[inline]
    pub const fn syndrome(&self) -> Option<AethSyndrome> {
        AethSyndrome::from_bits((self.word.get() >> 24) as u8)
    }

    /// Message sequence number: messages that the responder completed.
    #[inline]
    pub const fn msn(&self) -> u32 {
        self.word.get() & MASK_24
    }
}

impl fmt::Debug for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aeth").field("syndrome", &self.syndrome()).field("msn", &self.msn()).finish()
    }
}

/// What a responder says of a request (IBTA table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethSyndrome {
    /// Done, and how many more messages the responder has room for: a credit code of 5 bits, [`INVALID_CREDITS`] for 'not said'.
    Ack(u8),
    /// Receiver not ready: try again after the pause that the 5-bit code names, see [`rnr_delay_ns`].
    RnrNak(u8),
    /// Not done.
    Nak(NakCode),
}

/// The credit code of a responder that does not do end-to-end flow control (IBTA 9.7.7.2.5).
pub const INVALID_CREDITS: u8 = 0x1f;

field_enum! {
    /// Why a request was not done (IBTA table 44).
    NakCode: u8, "NAK code" {
        /// A packet is missing before this one.
        PsnSequence = 0, "PSN sequence error";
        /// The request makes no sense, or is not allowed on this queue pair.
        InvalidRequest = 1, "invalid request";
        /// The remote key does not allow it.
        RemoteAccess = 2, "remote access error";
        /// The responder itself failed.
        RemoteOperational = 3, "remote operational error";
    }
}

impl AethSyndrome {
    const CODE: u8 = 0x1f;
    const RNR: u8 = 0b001 << 5;
    const NAK: u8 = 0b011 << 5;

    /// The header's byte; codes are cut to five bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & Self::CODE,
            Self::RnrNak(timer) => Self::RNR | timer & Self::CODE,
            Self::Nak(code) => Self::NAK | code as u8,
        }
    }

    /// Reads the header's byte; `None` for a code that is reserved.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        let code = bits & Self::CODE;
        match bits & !Self::CODE {
            0 => Some(Self::Ack(code)),
            Self::RNR => Some(Self::RnrNak(code)),
            Self::NAK => match code {
                0 => Some(Self::Nak(NakCode::PsnSequence)),
                1 => Some(Self::Nak(NakCode::InvalidRequest)),
                2 => Some(Self::Nak(NakCode::RemoteAccess)),
                3 => Some(Self::Nak(NakCode::RemoteOperational)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// IBTA table 45, in units of 10 microseconds.
const RNR_DELAYS: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The pause in nanoseconds that a timer code of five bits asks for: 10 us to 655.36 ms.
pub const fn rnr_delay_ns(code: u8) -> u64 {
    RNR_DELAYS[(code & 0x1f) as usize] * 10_000
}

/// The time in nanoseconds that a 5-bit timeout code means, 4.096 us * 2^code; `None` for 0, 'never' (IBTA 9.7.6.1.3).
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((back.destination(), back.psn(), back.pad(), back.version()), (0x020304, 0x050607, 3, 0));
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
    fn extended_headers_byte_for_byte() {
        let reth = Reth {
            address: 0x0102_0304_0506_0708.into(),
            rkey: 0x1112_1314.into(),
            length: 0x2122_2324.into(),
        };
        assert_eq!(reth.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]);
        assert_eq!(Reth::read_from_bytes(reth.as_bytes()).unwrap(), reth);

        let atomic =
            AtomicEth { address: 8.into(), rkey: 9.into(), swap_or_add: 10.into(), compare: 11.into() };
        let mut bytes = [0; 28];
        (bytes[7], bytes[11], bytes[19], bytes[27]) = (8, 9, 10, 11);
        assert_eq!(atomic.as_bytes(), bytes);
        assert_eq!(AtomicEth::read_from_bytes(&bytes).unwrap(), atomic);

        assert_eq!(AtomicAckEth { original: 1.into() }.as_bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(ImmDt { data: 0x0102_0304.into() }.as_bytes(), [1, 2, 3, 4]);
        assert_eq!(Ieth { rkey: 0x0102_0304.into() }.as_bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn aeth_byte_for_byte() {
        for (syndrome, byte) in [
            (AethSyndrome::Ack(INVALID_CREDITS), 0x1f),
            (AethSyndrome::Ack(0), 0x00),
            (AethSyndrome::RnrNak(12), 0x2c),
            (AethSyndrome::Nak(NakCode::PsnSequence), 0x60),
            (AethSyndrome::Nak(NakCode::InvalidRequest), 0x61),
            (AethSyndrome::Nak(NakCode::RemoteAccess), 0x62),
            (AethSyndrome::Nak(NakCode::RemoteOperational), 0x63),
        ] {
            let aeth = Aeth::new(syndrome, 0xff01_0203);
            assert_eq!(aeth.as_bytes(), [byte, 1, 2, 3]);
            let back = Aeth::read_from_bytes(&[byte, 1, 2, 3]).unwrap();
            assert_eq!((back.syndrome(), back.msn()), (Some(syndrome), 0x010203));
        }
        for reserved in [0x40, 0x5f, 0x64, 0x7f, 0x80, 0xff] {
            assert_eq!(AethSyndrome::from_bits(reserved), None, "{reserved:#x}");
        }
    }

    #[test]
    fn opcodes_know_their_place() {
        for &opcode in BthOpcode::ALL {
            let name = std::format!("{opcode}");
            let only = name.contains("only");
            if name.contains("first") || name.contains("middle") || name.contains("last") || only {
                assert_eq!(opcode.is_first(), only || name.contains("first"), "{name}");
                assert_eq!(opcode.is_last(), only || name.contains("last"), "{name}");
            } else {
                assert!(opcode.is_first() && opcode.is_last(), "{name}");
            }
            assert_eq!(
                opcode.is_response(),
                name.contains("response") || name.contains("acknowledge"),
                "{name}"
            );
            assert_eq!(opcode.headers().contains(Headers::IMM_DT), name.contains("immediate"), "{name}");
        }
        assert_eq!(BthOpcode::WriteOnlyImmediate.headers().bytes(), 20);
        assert_eq!(BthOpcode::AtomicAcknowledge.headers().bytes(), 12);
        assert_eq!(BthOpcode::CompareSwap.headers().bytes(), 28);
        assert_eq!(BthOpcode::SendOnly.headers().bytes(), 0);
    }

    #[test]
    fn timers() {
        assert_eq!(rnr_delay_ns(0), 655_360_000);
        assert_eq!(rnr_delay_ns(1), 10_000);
        assert_eq!(rnr_delay_ns(12), 640_000);
        assert_eq!(rnr_delay_ns(31), 491_520_000);
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
    }
}
