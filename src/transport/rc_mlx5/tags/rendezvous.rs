//! Rendezvous of this side: data that peers have not read yet.

use crate::base::completion::Counted;
use crate::base::error::OperationError;

/// An operation.
#[derive(Debug)]
struct Operation {
    /// Numbers of the queue pairs of its endpoint, by which its end arrives: to the first from the
    /// peer's device, to the second from its program.
    qpns: [u32; 2],
    completion: Counted,
}

/// A place for an operation.
#[derive(Debug, Default)]
struct Slot {
    /// Operations that the place has had, modulo 2^16.
    generation: u16,
    operation: Option<Operation>,
}

/// The operations of an interface. The number of one is its place, and in the upper half the
/// generation: peers return it, and may return any.
#[derive(Debug, Default)]
pub(super) struct Announced {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Operations whose endpoint has ended, which progress finishes.
    failed: Vec<(Counted, OperationError)>,
}

impl Announced {
    /// Returns the number that the next operation will have; `None` if there are 2^16.
    pub(super) fn next(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let place = u16::try_from(self.slots.len()).ok()?;
            self.slots.push(Slot::default());
            self.free.push(place);
        }
        let place = *self.free.last()?;
        let slot = self.slots.get(usize::from(place))?;
        Some(u32::from(slot.generation) << 16 | u32::from(place))
    }

    /// Adds the operation of the endpoint with these queue pairs and with the number that
    /// [`Self::next`] returned.
    pub(super) fn add(&mut self, qpns: [u32; 2], completion: Counted) {
        let place = self.free.pop().map_or(0, usize::from);
        if let Some(slot) = self.slots.get_mut(place) {
            slot.operation = Some(Operation { qpns, completion });
        }
    }

    /// Removes the operation with this number, if it is one of queue pair `qpn`.
    pub(super) fn take(&mut self, number: u32, qpn: u32) -> Option<Counted> {
        let place = number as u16;
        let slot = self.slots.get_mut(usize::from(place))?;
        if slot.generation != (number >> 16) as u16 {
            return None;
        }
        let operation = slot.operation.take_if(|operation| operation.qpns.contains(&qpn))?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(place);
        Some(operation.completion)
    }

    /// Fails the operations of queue pair `qpn`, or all. [`Self::take_failed`] returns them.
    pub(super) fn fail(&mut self, qpn: Option<u32>, error: OperationError) {
        for (place, slot) in self.slots.iter_mut().enumerate() {
            let ended =
                |operation: &mut Operation| qpn.is_none_or(|qpn| operation.qpns.contains(&qpn));
            let Some(operation) = slot.operation.take_if(ended) else { continue };
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(place as u16);
            self.failed.push((operation.completion, error));
        }
    }

    pub(super) fn take_failed(&mut self) -> Vec<(Counted, OperationError)> {
        std::mem::take(&mut self.failed)
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::completion::Completion;

    #[test]
    fn numbers_of_peers_end_only_their_own_operations() {
        let mut announced = Announced::default();
        let done = Completion::counter();
        let first = announced.next().unwrap();
        announced.add([7, 17], done.begin());
        let second = announced.next().unwrap();
        announced.add([8, 18], done.begin());
        assert_ne!(first, second);
        for (number, qpn) in [(first, 8), (second, 7), (first + (1 << 16), 7), (99, 7)] {
            assert!(announced.take(number, qpn).is_none(), "{number:#x} of {qpn}");
        }
        announced.take(first, 7).unwrap().finish(Ok(()));
        assert!(announced.take(first, 7).is_none(), "twice");
        assert_eq!(done.pending(), 1);
        // The place is used again, under another number.
        let third = announced.next().unwrap();
        assert_eq!((third as u16, third == first), (first as u16, false));
        announced.add([7, 17], done.begin());
        announced.fail(Some(8), OperationError::CANCELED);
        assert!(announced.take(second, 8).is_none() && announced.has_failed());
        for (completion, error) in announced.take_failed() {
            completion.finish(Err(error));
        }
        assert_eq!(done.pending(), 1);
        announced.take(third, 17).unwrap().finish(Ok(()));
        assert_eq!(done.status(), Err(OperationError::CANCELED));
    }
}
