//! Which attributes a queue pair's move needs and allows (IBTA 11.2.5.2, `ib_modify_qp_is_ok`).

use super::queue_pair::kind;

/// `enum ib_qp_state`.
pub(crate) mod state {
    pub(crate) const RESET: u8 = 0;
    pub(crate) const INIT: u8 = 1;
    pub(crate) const RTR: u8 = 2;
    pub(crate) const RTS: u8 = 3;
    pub(crate) const ERROR: u8 = 6;
}

/// `enum ib_qp_attr_mask`.
pub(super) mod bit {
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

/// What the move from one state to another must and may bring; `None` if there is no such move.
pub(super) fn attributes(service: u8, from: u8, to: u8) -> Option<(u32, u32)> {
    let datagram = service == kind::UD;
    let reliable = service == kind::RC;
    let pick = |ud, uc, rc| {
        if datagram {
            ud
        } else if reliable {
            rc
        } else {
            uc
        }
    };
    let connected = bit::ACCESS | bit::ALTERNATE_PATH;
    let sending = connected | bit::CURRENT_STATE | bit::MIGRATION;
    let first = pick(bit::QKEY, bit::ACCESS, bit::ACCESS) | bit::PKEY | bit::PORT;
    let peer = bit::PATH | bit::MTU | bit::DESTINATION | bit::RECEIVE_PSN;
    match (from, to) {
        (_, state::RESET | state::ERROR) => Some((0, 0)),
        (state::RESET, state::INIT) => Some((first, 0)),
        (state::INIT, state::INIT) => Some((0, first)),
        (state::INIT, state::RTR) => Some((
            pick(0, peer, peer | bit::RESPONDER_DEPTH | bit::RNR_TIMER),
            bit::PKEY | pick(bit::QKEY, connected, connected),
        )),
        (state::RTR, state::RTS) => Some((
            bit::SEND_PSN | pick(0, 0, bit::TIMEOUT | bit::RETRIES | bit::RNR_RETRIES | bit::INITIATOR_DEPTH),
            pick(bit::CURRENT_STATE | bit::QKEY, sending, sending | bit::RNR_TIMER),
        )),
        (state::RTS, state::RTS) => {
            Some((0, pick(bit::CURRENT_STATE | bit::QKEY, sending, sending | bit::RNR_TIMER)))
        }
        _ => None,
    }
}

/// Whether a move may come with exactly these attributes.
pub(super) fn is_allowed(service: u8, from: u8, to: u8, mask: u32) -> bool {
    attributes(service, from, to).is_some_and(|(required, optional)| {
        mask & required == required && mask & !(required | optional | bit::STATE) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_need_their_attributes() {
        let first = bit::STATE | bit::PKEY | bit::PORT | bit::ACCESS;
        assert!(is_allowed(kind::RC, state::RESET, state::INIT, first));
        assert!(!is_allowed(kind::RC, state::RESET, state::INIT, first & !bit::PORT));
        assert!(!is_allowed(kind::RC, state::RESET, state::INIT, first | bit::QKEY));
        assert!(!is_allowed(kind::UD, state::RESET, state::INIT, first));
        assert!(is_allowed(kind::UD, state::INIT, state::RTR, bit::STATE));
        assert!(!is_allowed(kind::RC, state::INIT, state::RTS, bit::STATE));
        assert!(is_allowed(kind::RC, state::RTS, state::ERROR, bit::STATE));
        assert!(!is_allowed(kind::RC, state::ERROR, state::RTS, bit::STATE));
    }
}
