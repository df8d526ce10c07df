//! How dynamic connections are created and ended.
//!
//! The packets of devices are not public. This is the software HCA's own protocol, in packets of
//! [`super::Transport::Dc`]:
//!
//! | packet | from, to | meaning |
//! |---|---|---|
//! | connect | initiator, target | access key, initiator, first sequence number (in the base header) |
//! | accept | target, initiator | queue pair number of the connection's responder context |
//! | refuse | target, initiator | no connection exists, or it ends now ([`DcRefusal`]) |
//! | disconnect | initiator, responder context | everything is acknowledged, and the context may be freed |
//! | disconnected | target, initiator | the context is freed |
//! | accept, again | target, initiator | asks a silent initiator whether it still needs the connection |
//! | keep alive | initiator, responder context | it does; otherwise the response is a disconnect |
//!
//! Between accept and disconnect requests go to the responder context's number, responses to the
//! initiator's, with the operations and headers of reliable connections.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be32, Be64};
use crate::prm::field_enum;

/// Dynamic connection extended transport header: follows the base header of a packet that creates
/// or ends a connection.
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
pub struct DcEth {
    /// Connect: the target's access key. Zero in the others.
    pub access_key: Be64,
    /// The connection: a number that its initiator's device assigns once, in increasing order.
    pub connection: Be64,
    /// Connect, disconnect and keep alive: the initiator. Accept: the responder context. Zero in
    /// the others.
    pub qpn: Be32,
    /// Connect: path MTU code (8 bits), acknowledgment timeout code (8). Refuse: a [`DcRefusal`]
    /// (8) and the timer code of the pause before the next attempt (8), see
    /// [`super::rnr_delay_ns`]. The upper half is zero.
    pub detail: Be32,
}

const_assert_eq!(size_of::<DcEth>(), 24);
const_assert_eq!(core::mem::offset_of!(DcEth, connection), 8);
const_assert_eq!(core::mem::offset_of!(DcEth, qpn), 16);
const_assert_eq!(core::mem::offset_of!(DcEth, detail), 20);

field_enum! {
    /// Why a target has no connection for an initiator.
    DcRefusal: u8, "refusal of a dynamic connection" {
        /// The target does not exist.
        Unknown = 1, "no such target";
        /// It takes no connections any more.
        Closed = 2, "the target is closed";
        /// The access key is not the target's.
        AccessKey = 3, "wrong access key";
        /// The initiator's path MTU is larger than the target's.
        PathMtu = 4, "path MTU too large";
        /// No responder context is free: try again after the pause.
        Busy = 5, "no responder context is free";
    }
}

impl DcEth {
    /// The detail of a connect or a refusal: a code, and a timer code above it.
    #[inline]
    pub const fn detail(code: u8, timer: u8) -> Be32 {
        Be32::new((timer as u32) << 8 | code as u32)
    }

    /// The lower code of the detail.
    #[inline]
    pub const fn code(&self) -> u8 {
        self.detail.get() as u8
    }

    /// The upper code of the detail.
    #[inline]
    pub const fn timer(&self) -> u8 {
        (self.detail.get() >> 8) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_for_byte() {
        let header = DcEth {
            access_key: 0x0102_0304_0506_0708.into(),
            connection: 0x1112_1314_1516_1718.into(),
            qpn: 0x0021_2223.into(),
            detail: DcEth::detail(DcRefusal::Busy as u8, 12),
        };
        let bytes = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0, 0x21, 0x22,
            0x23, 0, 0, 12, 5,
        ];
        assert_eq!(header.as_bytes(), bytes);
        assert_eq!(DcEth::read_from_bytes(&bytes), Ok(header));
        assert_eq!((DcRefusal::try_from(header.code()), header.timer()), (Ok(DcRefusal::Busy), 12));
    }
}
