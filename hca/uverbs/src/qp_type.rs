//! Types of queue pairs, and the attributes that their state transitions require and allow.

use std::fmt;

use crate::abi::qp_flag;
use crate::errno::Errno;

/// Type of a queue pair (`ib_uverbs_qp_type`, or the driver-specific type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpType {
    Rc,
    Uc,
    Ud,
    /// XRC initiator.
    XrcSend,
    /// XRC target.
    XrcReceive,
    /// DC initiator.
    Dci,
    /// DC target.
    Dct,
}

/// `IB_UVERBS_QPT_...`.
pub(crate) const XRC_RECEIVE: u8 = 10;
const RAW_PACKET: u64 = 8;

impl QpType {
    /// Returns the type for a verbs type and driver flags.
    pub(crate) fn of(kind: u64, flags: u32) -> Result<Self, Errno> {
        match (kind, flags & (qp_flag::TYPE_DCT | qp_flag::TYPE_DCI)) {
            (2, 0) => Ok(Self::Rc),
            (3, 0) => Ok(Self::Uc),
            (4, 0) => Ok(Self::Ud),
            (9, 0) => Ok(Self::XrcSend),
            (10, 0) => Ok(Self::XrcReceive),
            (0xff, qp_flag::TYPE_DCI) => Ok(Self::Dci),
            (0xff, qp_flag::TYPE_DCT) => Ok(Self::Dct),
            (RAW_PACKET, 0) => {
                Err(Errno::UNSUPPORTED.because("qp_type: IBV_QPT_RAW_PACKET is not supported"))
            }
            (0..0xff, 0) => {
                let reason = format_args!("qp_type: the type {kind} is not supported");
                Err(Errno::UNSUPPORTED.because(reason))
            }
            _ => Err(Errno::INVALID),
        }
    }

    /// Returns the attributes of `mask` that apply to this type (linux uverbs_cmd.c:
    /// `modify_qp_mask`).
    pub(crate) fn meant(self, mask: u32) -> u32 {
        match self {
            Self::XrcSend => mask & !(bit::RESPONDER_DEPTH | bit::RNR_TIMER),
            Self::XrcReceive => mask & !(bit::INITIATOR_DEPTH | bit::RETRIES | bit::RNR_RETRIES),
            _ => mask,
        }
    }

    /// Returns whether it needs the peer's address to become ready.
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcSend | Self::XrcReceive)
    }
}

/// `enum ib_qp_state`.
pub(crate) mod state {
    pub(crate) const RESET: u8 = 0;
    pub(crate) const INIT: u8 = 1;
    pub(crate) const RTR: u8 = 2;
    pub(crate) const RTS: u8 = 3;
    pub(crate) const ERROR: u8 = 6;

    /// The name of a state, as in verbs.h without its prefix.
    pub(crate) fn name(state: u8) -> &'static str {
        const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        NAMES.get(usize::from(state)).copied().unwrap_or("an unknown state")
    }
}

/// `enum ib_qp_attr_mask`.
pub(crate) mod bit {
    pub(crate) const STATE: u32 = 1 << 0;
    pub(crate) const CURRENT_STATE: u32 = 1 << 1;
    pub(crate) const ACCESS: u32 = 1 << 3;
    pub(crate) const PKEY: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const PATH: u32 = 1 << 7;
    pub(crate) const MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRIES: u32 = 1 << 10;
    pub(crate) const RNR_RETRIES: u32 = 1 << 11;
    pub(crate) const RECEIVE_PSN: u32 = 1 << 12;
    pub(crate) const INITIATOR_DEPTH: u32 = 1 << 13;
    pub(crate) const ALTERNATE_PATH: u32 = 1 << 14;
    pub(crate) const RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SEND_PSN: u32 = 1 << 16;
    pub(crate) const RESPONDER_DEPTH: u32 = 1 << 17;
    pub(crate) const MIGRATION: u32 = 1 << 18;
    pub(crate) const DESTINATION: u32 = 1 << 20;
}

/// Returns the required and optional attributes of a state transition, or `None` if there is no
/// such transition. Those of DC are mlx5_ib's (`modify_dci_qp_is_ok`, `mlx5_ib_modify_dct`), the
/// others IBTA 11.2.5.2 as in `ib_modify_qp_is_ok`. SQD is not supported.
fn attributes(kind: QpType, from: u8, to: u8) -> Option<(u32, u32)> {
    match kind {
        QpType::Dct => target(from, to),
        QpType::Dci => initiator(from, to),
        _ => verbs(kind, from, to),
    }
}

fn verbs(kind: QpType, from: u8, to: u8) -> Option<(u32, u32)> {
    use QpType::{Rc, Ud, XrcReceive, XrcSend};
    let pick = |condition: bool, bits: u32| if condition { bits } else { 0 };
    let connected = kind != Ud;
    let requests = matches!(kind, Rc | XrcSend);
    let responds = matches!(kind, Rc | XrcReceive);
    let rights = pick(connected, bit::ACCESS | bit::ALTERNATE_PATH);
    let sending = bit::CURRENT_STATE
        | rights
        | pick(!connected, bit::QKEY)
        | pick(connected, bit::MIGRATION)
        | pick(responds, bit::RNR_TIMER);
    let first = if connected { bit::ACCESS } else { bit::QKEY } | bit::PKEY | bit::PORT;
    let peer = bit::PATH | bit::MTU | bit::DESTINATION | bit::RECEIVE_PSN;
    match (from, to) {
        (_, state::RESET | state::ERROR) => Some((0, 0)),
        (state::RESET, state::INIT) => Some((first, 0)),
        (state::INIT, state::INIT) => Some((0, first)),
        (state::INIT, state::RTR) => Some((
            pick(connected, peer) | pick(responds, bit::RESPONDER_DEPTH | bit::RNR_TIMER),
            bit::PKEY | rights | pick(!connected, bit::QKEY),
        )),
        (state::RTR, state::RTS) => Some((
            bit::SEND_PSN
                | pick(requests || responds, bit::TIMEOUT)
                | pick(requests, bit::RETRIES | bit::RNR_RETRIES | bit::INITIATOR_DEPTH),
            sending,
        )),
        (state::RTS, state::RTS) => Some((0, sending)),
        _ => None,
    }
}

fn initiator(from: u8, to: u8) -> Option<(u32, u32)> {
    let first = bit::PKEY | bit::PORT;
    match (from, to) {
        (_, state::RESET | state::ERROR) => Some((0, 0)),
        (state::RESET, state::INIT) => Some((first, 0)),
        (state::INIT, state::INIT) => Some((0, first)),
        (state::INIT, state::RTR) => Some((bit::MTU, bit::PKEY | bit::PATH)),
        (state::RTR, state::RTS) => Some((
            bit::TIMEOUT | bit::RETRIES | bit::RNR_RETRIES | bit::INITIATOR_DEPTH | bit::SEND_PSN,
            bit::RNR_TIMER,
        )),
        (state::RTS, state::RTS) => Some((0, bit::RNR_TIMER)),
        _ => None,
    }
}

fn target(from: u8, to: u8) -> Option<(u32, u32)> {
    match (from, to) {
        (state::RESET, state::INIT) => Some((bit::ACCESS | bit::PKEY | bit::PORT, 0)),
        (state::INIT, state::RTR) => Some((bit::RNR_TIMER | bit::PATH | bit::MTU, 0)),
        _ => None,
    }
}

/// Returns an error unless a transition accepts exactly these attributes.
pub(crate) fn check_move(kind: QpType, from: u8, to: u8, mask: u32) -> Result<(), Errno> {
    let (old, new) = (state::name(from), state::name(to));
    let Some((required, optional)) = attributes(kind, from, to) else {
        return Err(Errno::INVALID.because(format_args!(
            "qp_state: a queue pair of type {kind:?} does not go from {old} to {new}"
        )));
    };
    let missing = required & !mask;
    let excess = mask & !(required | optional | bit::STATE);
    let (attributes, fault) = match (missing, excess) {
        (0, 0) => return Ok(()),
        (0, _) => (excess, "is not for"),
        _ => (missing, "is missing for"),
    };
    let names = Names(attributes);
    Err(Errno::INVALID.because(format_args!(
        "attr_mask: {names} {fault} a queue pair of type {kind:?} from {old} to {new}"
    )))
}

/// The names of attributes, as in verbs.h.
struct Names(u32);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 21] = [
            "STATE",
            "CUR_STATE",
            "EN_SQD_ASYNC_NOTIFY",
            "ACCESS_FLAGS",
            "PKEY_INDEX",
            "PORT",
            "QKEY",
            "AV",
            "PATH_MTU",
            "TIMEOUT",
            "RETRY_CNT",
            "RNR_RETRY",
            "RQ_PSN",
            "MAX_QP_RD_ATOMIC",
            "ALT_PATH",
            "MIN_RNR_TIMER",
            "SQ_PSN",
            "MAX_DEST_RD_ATOMIC",
            "PATH_MIG_STATE",
            "CAP",
            "DEST_QPN",
        ];
        let bits = (0..u32::BITS).filter(|bit| self.0 >> bit & 1 != 0);
        for (place, bit) in bits.enumerate() {
            let separator = if place == 0 { "" } else { " | " };
            match NAMES.get(bit as usize) {
                Some(name) => write!(f, "{separator}IBV_QP_{name}")?,
                None => write!(f, "{separator}{:#x}", 1_u32 << bit)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(kind: QpType, from: u8, to: u8, mask: u32) -> bool {
        check_move(kind, from, to, mask).is_ok()
    }

    #[test]
    fn moves_need_their_attributes() {
        use QpType::{Dci, Dct, Rc, Ud, XrcReceive, XrcSend};
        let first = bit::STATE | bit::PKEY | bit::PORT | bit::ACCESS;
        assert!(is_allowed(Rc, state::RESET, state::INIT, first));
        assert!(!is_allowed(Rc, state::RESET, state::INIT, first & !bit::PORT));
        assert!(!is_allowed(Rc, state::RESET, state::INIT, first | bit::QKEY));
        assert!(!is_allowed(Ud, state::RESET, state::INIT, first));
        assert!(is_allowed(Ud, state::INIT, state::RTR, bit::STATE));
        assert!(!is_allowed(Rc, state::INIT, state::RTS, bit::STATE));
        assert!(is_allowed(Rc, state::RTS, state::ERROR, bit::STATE));
        assert!(!is_allowed(Rc, state::ERROR, state::RTS, bit::STATE));
        let peer = bit::STATE | bit::PATH | bit::MTU | bit::DESTINATION | bit::RECEIVE_PSN;
        assert!(is_allowed(XrcSend, state::INIT, state::RTR, peer));
        assert!(!is_allowed(XrcReceive, state::INIT, state::RTR, peer));
        assert!(is_allowed(
            XrcReceive,
            state::RTR,
            state::RTS,
            bit::STATE | bit::SEND_PSN | bit::TIMEOUT
        ));
        assert!(!is_allowed(Dci, state::RESET, state::INIT, first));
        assert!(is_allowed(Dct, state::RESET, state::INIT, first));
        assert!(!is_allowed(Dct, state::RTR, state::RTS, bit::STATE));
    }

    #[test]
    fn the_drivers_kinds_need_their_flag() {
        assert_eq!(QpType::of(0xff, qp_flag::TYPE_DCI), Ok(QpType::Dci));
        for (kind, flags) in [(0xff, 0), (2, qp_flag::TYPE_DCT), (0x100, 0)] {
            assert_eq!(QpType::of(kind, flags), Err(Errno::INVALID));
        }
        assert_eq!(QpType::of(8, 0), Err(Errno::UNSUPPORTED));
    }
}
