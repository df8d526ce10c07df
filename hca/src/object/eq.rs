//! Event queues.

use std::sync::Arc;

use barewire_layouts::command::eq::{EQE_BYTES, EqState, EqStatus};
use barewire_layouts::eqe::{Eqe, OWNER_OFFSET};

use super::EventChannel;
use crate::memory::Window;

/// An event queue: a ring of entries in user memory that the device writes and software reads.
#[derive(Debug)]
pub(crate) struct Eq {
    /// The ring: a power of two of entries of [`EQE_BYTES`], in a umem that this queue keeps
    /// registered.
    pub(crate) ring: Window,
    /// log2 of the number of entries.
    pub(crate) log_size: u8,
    /// Software guarantees that the ring has room.
    pub(crate) ignore_overrun: bool,
    /// Asynchronous event types that it receives: bit n for type n, up to 63. There are no higher
    /// types.
    pub(crate) mask: u64,
    /// Interrupt vector, chosen by the user.
    pub(crate) vector: u16,
    /// Entries written, modulo 2^32.
    pub(crate) producer: u32,
    /// Entries consumed according to the last doorbell, modulo 2^24.
    pub(crate) consumer: u32,
    /// Whether the queue has not overrun.
    pub(crate) status: EqStatus,
    /// Whether it is armed.
    pub(crate) state: EqState,
    /// The interrupt.
    pub(crate) channel: Arc<EventChannel>,
    /// The UAR page with its doorbells.
    pub(crate) uar: u32,
    /// The umem of the ring.
    pub(crate) ring_umem: u32,
    /// Completion queues that report to it.
    pub(crate) users: u32,
}

/// An event was lost because the ring was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventLost;

impl Eq {
    /// The counters of doorbells and context have 24 bits.
    pub(crate) const COUNTER: u32 = 0x00ff_ffff;

    fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Writes the next entry, its owner byte last, and signals the interrupt. A full queue stops:
    /// all later events are lost.
    pub(crate) fn push(&mut self, event: Eqe) -> Result<(), EventLost> {
        let waiting = self.producer.wrapping_sub(self.consumer) & Self::COUNTER;
        if self.status != EqStatus::Ok || !self.ignore_overrun && waiting >= self.entries() {
            self.status = EqStatus::WriteFailure;
            return Err(EventLost);
        }
        let offset = (self.producer & (self.entries() - 1)) as usize * EQE_BYTES;
        let lap = self.producer >> self.log_size & 1;
        if let (Some(body), Some(owner)) =
            (self.ring.slice(offset, OWNER_OFFSET), self.ring.slice(offset + OWNER_OFFSET, 1))
        {
            // The driver polls the owner byte, which shares the last word.
            body.alone().write(&event.to_bytes()[..OWNER_OFFSET]);
            owner.publish_byte(lap as u8);
        }
        self.producer = self.producer.wrapping_add(1);
        self.fire();
        Ok(())
    }

    fn fire(&mut self) {
        if self.state == EqState::Armed {
            self.state = EqState::Fired;
        }
        self.channel.ring();
    }

    /// Notes that software consumed up to `consumer` and, if `arm`, wants an interrupt for present
    /// or later entries.
    pub(crate) fn consumed(&mut self, consumer: u32, arm: bool) {
        self.consumer = consumer & Self::COUNTER;
        if arm {
            self.state = EqState::Armed;
            if self.producer & Self::COUNTER != self.consumer {
                self.fire();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::leaked;

    fn eq() -> Eq {
        Eq {
            ring: leaked(EQE_BYTES << 1),
            log_size: 1,
            ignore_overrun: false,
            mask: 0,
            vector: 0,
            producer: 0,
            consumer: 0,
            status: EqStatus::Ok,
            state: EqState::Idle,
            channel: Arc::new(EventChannel::new().unwrap()),
            uar: 0,
            ring_umem: 0,
            users: 0,
        }
    }

    #[test]
    fn the_owner_bit_is_the_lap() {
        let mut eq = eq();
        for number in 0..9 {
            assert_eq!(eq.push(Eqe::completion(number)), Ok(()));
            let entry = &eq.ring.bytes()[number as usize % 2 * EQE_BYTES..][..EQE_BYTES];
            assert_eq!((entry[0x3b], entry[63]), (number as u8, (number / 2 % 2) as u8));
            eq.consumed(number + 1, false);
        }
        assert_eq!(eq.channel.take(), 9);
    }

    #[test]
    fn a_full_queue_stops() {
        let mut eq = eq();
        let pushed = [1, 2, 3].map(|number| eq.push(Eqe::completion(number)));
        assert_eq!(pushed, [Ok(()), Ok(()), Err(EventLost)]);
        assert_eq!(eq.status, EqStatus::WriteFailure);
        eq.consumed(2, false);
        assert_eq!(eq.push(Eqe::completion(4)), Err(EventLost));
        let mut careless = Eq { ignore_overrun: true, ..self::eq() };
        assert!((0..5).all(|number| careless.push(Eqe::completion(number)).is_ok()));
    }

    #[test]
    fn arming_tells_of_what_is_there() {
        let mut eq = eq();
        eq.consumed(0, true);
        assert_eq!((eq.state, eq.channel.take()), (EqState::Armed, 0));
        eq.push(Eqe::completion(1)).unwrap();
        assert_eq!((eq.state, eq.channel.take()), (EqState::Fired, 1));
        eq.consumed(0, true);
        assert_eq!((eq.state, eq.channel.take()), (EqState::Fired, 1));
        eq.consumed(1, true);
        assert_eq!((eq.state, eq.channel.take()), (EqState::Armed, 0));
    }
}
