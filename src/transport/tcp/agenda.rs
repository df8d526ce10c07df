//! The endpoints that progress has to visit although epoll does not report them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The reasons to visit an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Task {
    /// Bytes wait to be sent, or completions may be due.
    Send,
    /// This end makes a connection.
    Connect,
    /// The peer will connect.
    AwaitPeer,
    /// Messages that waited for buffers can be delivered.
    Resume,
    /// The endpoint ends.
    End,
}

/// A queue of slots for each [`Task`].
#[derive(Debug, Default)]
pub(super) struct Agenda {
    queues: [RefCell<VecDeque<u32>>; 5],
    /// One bit for each task whose queue is not empty, and [`WATCH`].
    filled: Cell<u8>,
}

/// Connections that are being accepted or closed have deadlines.
const WATCH: u8 = 1 << 7;
/// These deadlines are checked once in so many rounds of progress: a check costs time, and peers
/// can have connections accepted or closed at any time.
pub(super) const WATCH_ROUNDS: u64 = 32;

impl Agenda {
    pub(super) fn push(&self, task: Task, slot: u32) {
        self.queues[task as usize].borrow_mut().push_back(slot);
        self.filled.set(self.filled.get() | 1 << task as u8);
    }

    fn pop(&self, task: Task) -> Option<u32> {
        let mut queue = self.queues[task as usize].borrow_mut();
        let slot = queue.pop_front();
        if queue.is_empty() {
            self.filled.set(self.filled.get() & !(1 << task as u8));
        }
        slot
    }

    /// Takes the slots that are queued now; those that are pushed meanwhile stay.
    pub(super) fn take(&self, task: Task) -> impl Iterator<Item = u32> + '_ {
        let count = self.queues[task as usize].borrow().len();
        (0..count).map_while(move |_| self.pop(task))
    }

    #[inline]
    pub(super) fn has(&self, task: Task) -> bool {
        self.filled.get() & 1 << task as u8 != 0
    }

    /// Sets whether connections that are being accepted or closed have deadlines.
    pub(super) fn watch(&self, on: bool) {
        let tasks = self.filled.get() & !WATCH;
        self.filled.set(if on { tasks | WATCH } else { tasks });
    }

    /// There is a task other than [`Task::Send`], or deadlines of [`Self::watch`] are to be checked in
    /// the round of this number.
    #[inline]
    pub(super) fn is_due(&self, round: u64) -> bool {
        let filled = self.filled.get() & !(1 << Task::Send as u8);
        filled != 0 && (filled != WATCH || round.is_multiple_of(WATCH_ROUNDS))
    }

    pub(super) fn any(&self, task: Task, test: impl FnMut(u32) -> bool) -> bool {
        self.queues[task as usize].borrow().iter().copied().any(test)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_are_pushed_during_a_visit_are_for_the_next() {
        let agenda = Agenda::default();
        agenda.push(Task::Send, 1);
        agenda.push(Task::End, 2);
        agenda.push(Task::End, 3);
        assert!(agenda.has(Task::Send) && !agenda.has(Task::Connect) && agenda.is_due(1));
        let visited: Vec<u32> =
            agenda.take(Task::End).inspect(|slot| agenda.push(Task::End, slot + 10)).collect();
        assert_eq!(visited, [2, 3]);
        assert!(agenda.has(Task::End) && agenda.any(Task::End, |slot| slot == 13));
        assert_eq!(agenda.take(Task::End).count(), 2);
        assert!(!agenda.is_due(1) && agenda.has(Task::Send));
        agenda.watch(true);
        assert_eq!((0..2 * WATCH_ROUNDS).filter(|round| agenda.is_due(*round)).count(), 2);
        agenda.watch(false);
        assert!(!agenda.is_due(0));
    }

    #[test]
    fn a_nested_visit_takes_what_is_left() {
        let agenda = Agenda::default();
        (0..3).for_each(|slot| agenda.push(Task::Send, slot));
        let outer: Vec<u32> = agenda
            .take(Task::Send)
            .inspect(|_| assert!(agenda.take(Task::Send).count() < 3))
            .collect();
        assert_eq!(outer, [0]);
    }
}
