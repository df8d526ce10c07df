//! Deadlines of queue pairs, and the virtual clock of Stepped mode. All times are nanoseconds on the device's own clock.

use std::collections::BTreeSet;

/// Deadlines of many queue pairs, at most one each. An entry may come early: the queue pair's own state says what is due, and an
/// early entry is put back with the later time. So a deadline that moves with every acknowledgment costs nothing until it passes.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BTreeSet<(u64, u32)>,
}

impl Timers {
    /// Wakes queue pair `qpn` at `deadline`, or before. `entry` is the time of its entry, kept by it.
    pub(crate) fn arm(&mut self, qpn: u32, deadline: u64, entry: &mut Option<u64>) {
        if entry.is_some_and(|armed| armed <= deadline) {
            return;
        }
        if let Some(armed) = entry.replace(deadline) {
            self.entries.remove(&(armed, qpn));
        }
        self.entries.insert((deadline, qpn));
    }

    /// Takes one entry that has passed: its time and its queue pair.
    pub(crate) fn expired(&mut self, now: u64) -> Option<(u64, u32)> {
        self.entries.first().filter(|(deadline, _)| *deadline <= now)?;
        self.entries.pop_first()
    }

    /// When the next entry passes.
    pub(crate) fn next(&self) -> Option<u64> {
        self.entries.first().map(|(deadline, _)| *deadline)
    }
}

/// Idle passes in a row before virtual time jumps. A peer that is stepped in turn with this device has had as many passes to
/// answer, so a jump does not fake a timeout.
const PATIENCE: u32 = 16;

/// The clock of a stepped device: it stands still while there is work and jumps to the next deadline when there is none.
#[derive(Debug, Default)]
pub(crate) struct StepClock {
    now: u64,
    idle: u32,
}

impl StepClock {
    /// The virtual time.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Takes note of a pass that did (`busy`) or did not do anything. Returns whether stepping on may bring anything: there was
    /// work, or there is a deadline to wait for.
    pub(crate) fn after_pass(&mut self, busy: bool, deadline: Option<u64>) -> bool {
        self.idle = if busy { 0 } else { self.idle + 1 };
        if let Some(deadline) = deadline.filter(|_| self.idle >= PATIENCE) {
            self.now = self.now.max(deadline);
            self.idle = 0;
        }
        busy || deadline.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_order_of_time() {
        let mut timers = Timers::default();
        let (mut a, mut b) = (None, None);
        timers.arm(1, 50, &mut a);
        timers.arm(2, 30, &mut b);
        timers.arm(1, 70, &mut a);
        assert_eq!((a, timers.next()), (Some(50), Some(30)));
        assert_eq!(timers.expired(29), None);
        assert_eq!(timers.expired(60), Some((30, 2)));
        assert_eq!(timers.expired(60), Some((50, 1)));
        assert_eq!(timers.expired(1000), None);
    }

    #[test]
    fn an_earlier_deadline_takes_the_place_of_a_later_one() {
        let mut timers = Timers::default();
        let mut entry = None;
        for deadline in (1..=100).rev() {
            timers.arm(1, deadline, &mut entry);
        }
        assert_eq!((timers.entries.len(), timers.expired(1), timers.next()), (1, Some((1, 1)), None));
    }

    #[test]
    fn virtual_time_jumps_only_after_patience() {
        let mut clock = StepClock::default();
        for _ in 1..PATIENCE {
            assert!(clock.after_pass(false, Some(1000)));
            assert_eq!(clock.now(), 0);
        }
        assert!(clock.after_pass(false, Some(1000)));
        assert_eq!(clock.now(), 1000);
        assert!(clock.after_pass(true, None));
        assert!(!clock.after_pass(false, None));
    }
}
