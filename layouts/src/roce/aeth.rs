//! The response of a responder: acknowledgments, negative acknowledgments, and the pauses that they
//! request.

use core::fmt;

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MASK_24;
use crate::be::Be32;
use crate::prm::field_enum;

/// Acknowledge extended transport header (IBTA 9.3.5).
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
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

    /// The response; `None` for a reserved code.
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
        f.debug_struct("Aeth")
            .field("syndrome", &self.syndrome())
            .field("msn", &self.msn())
            .finish()
    }
}

/// The response to a request (IBTA table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethSyndrome {
    /// Done, and the number of further messages for which the responder has room: a 5-bit credit
    /// code, [`INVALID_CREDITS`] if the responder does not report it.
    Ack(u8),
    /// Receiver not ready: try again after the pause that the 5-bit code names, see
    /// [`rnr_delay_ns`].
    RnrNak(u8),
    /// Not done.
    Nak(NakCode),
}

/// The credit code of a responder without end-to-end flow control (IBTA 9.7.7.2.5).
pub const INVALID_CREDITS: u8 = 0x1f;

field_enum! {
    /// Why a request was not done (IBTA table 44).
    NakCode: u8, "NAK code" {
        /// A packet is missing before this one.
        PsnSequence = 0, "PSN sequence error";
        /// The request is invalid, or not permitted on this queue pair.
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

    /// The header's byte; codes are truncated to five bits.
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
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The pause in nanoseconds for a 5-bit timer code: 10 us to 655.36 ms.
pub const fn rnr_delay_ns(code: u8) -> u64 {
    RNR_DELAYS[(code & 0x1f) as usize] * 10_000
}

/// The time in nanoseconds that a 5-bit timeout code means, 4.096 us * 2^code; `None` for 0,
/// 'never' (IBTA 9.7.6.1.3).
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
    fn timers() {
        assert_eq!(rnr_delay_ns(0), 655_360_000);
        assert_eq!(rnr_delay_ns(1), 10_000);
        assert_eq!(rnr_delay_ns(12), 640_000);
        assert_eq!(rnr_delay_ns(31), 491_520_000);
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
    }
}
