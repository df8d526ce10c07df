//! Options of identifiers, which the kernel takes in some of their states only (linux cma.c:
//! `rdma_set_ack_timeout`, `rdma_set_reuseaddr`, `rdma_set_afonly`).

use super::abi::option;
use super::state::Id;
use crate::errno::Errno;

/// Longest timeout: it has 5 bits.
const LONGEST_TIMEOUT: u8 = 31;

/// Returns the size of an option's value.
pub(super) fn width(name: u32) -> Result<usize, Errno> {
    match name {
        option::TOS | option::ACK_TIMEOUT => Ok(1),
        option::REUSEADDR | option::AFONLY => Ok(4),
        _ => Err(Errno(libc::ENOSYS)),
    }
}

impl Id {
    /// Sets an option to a value of which shorter options have the first byte.
    pub(super) fn set_option(&mut self, name: u32, value: [u8; 4]) -> Result<(), Errno> {
        let (byte, set) = (value[0], value != [0; 4]);
        let is_idle = self.source.is_none();
        // The address of an identifier is not resolved, and it neither listens nor connects.
        let is_bound = self.destination.is_none() && self.listening.is_none();
        match name {
            option::TOS => self.traffic_class = byte,
            option::ACK_TIMEOUT if byte <= LONGEST_TIMEOUT && self.has_timeout() => {
                self.ack_timeout = Some(byte);
            }
            option::REUSEADDR if is_idle || set && self.listening.is_none() => self.reuse = set,
            option::AFONLY if is_bound => self.only_family = set,
            _ => return Err(Errno::INVALID),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::signal::Signal;
    use super::super::state::State;
    use super::*;

    const ON: [u8; 4] = [1, 0, 0, 0];
    const OFF: [u8; 4] = [0; 4];

    fn state() -> (State, u64) {
        let mut state = State::new();
        let channel = state.open(Signal::new(0).unwrap().1);
        (state, channel)
    }

    #[test]
    fn a_timeout_is_for_requesters_with_acknowledgments() {
        let (mut state, channel) = state();
        // RC, UC, UD, XRC initiator and target, by the port space that names no kind itself.
        for (kind, taken) in [(2, true), (3, false), (4, false), (9, true), (10, false)] {
            let id = state.create(channel, 0, (0x013f, kind)).unwrap();
            let id = state.id(channel, id).unwrap();
            let result = id.set_option(option::ACK_TIMEOUT, [31, 0, 0, 0]);
            assert_eq!(result, if taken { Ok(()) } else { Err(Errno::INVALID) }, "kind {kind}");
            assert_eq!(id.ack_timeout, taken.then_some(31));
            assert_eq!(id.set_option(option::ACK_TIMEOUT, [32, 0, 0, 0]), Err(Errno::INVALID));
        }
    }

    #[test]
    fn a_listener_keeps_its_options() {
        let (mut state, channel) = state();
        let id = state.create(channel, 0, (0x0106, 2)).unwrap();
        let set =
            |state: &mut State, name, value| state.id(channel, id).unwrap().set_option(name, value);
        for name in [option::REUSEADDR, option::AFONLY] {
            assert_eq!(set(&mut state, name, ON), Ok(()));
            assert_eq!(set(&mut state, name, OFF), Ok(()));
        }
        state.bind(channel, id, SocketAddr::from(([0; 4], 7174)), true).unwrap();
        assert_eq!(set(&mut state, option::AFONLY, ON), Ok(()));
        assert_eq!(set(&mut state, option::REUSEADDR, ON), Ok(()));
        assert_eq!(set(&mut state, option::REUSEADDR, OFF), Err(Errno::INVALID));
        state.listen(channel, id, 1).unwrap();
        for (name, value) in [option::REUSEADDR, option::AFONLY].map(|name| (name, ON)) {
            assert_eq!(set(&mut state, name, value), Err(Errno::INVALID));
        }
        assert_eq!(set(&mut state, option::TOS, ON), Ok(()));
        let id = state.id(channel, id).unwrap();
        assert!(id.reuse && id.only_family);
    }
}
