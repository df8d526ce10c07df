//! Deadlines of queue pairs, and the virtual clock of Stepped mode. Times are nanoseconds on the
//! device's clock.

use std::collections::BTreeSet;

/// Deadlines of many queue pairs, at most one each. An entry may expire early: the queue pair's
/// state has the actual deadline, and an early entry is inserted again. So a deadline that moves
/// with every acknowledgment costs nothing until its entry expires.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BTreeSet<(u64, u32)>,
}

impl Timers {
    /// Arms the timer of queue pair `qpn` for `deadline` or earlier. The queue pair keeps the time
    /// in `entry`.
    pub(crate) fn arm(&mut self, qpn: u32, deadline: u64, entry: &mut Option<u64>) {
        if entry.is_some_and(|armed| armed <= deadline) {
            return;
        }
        if let Some(armed) = entry.replace(deadline) {
            self.entries.remove(&(armed, qpn));
        }
        self.entries.insert((deadline, qpn));
    }

    /// Removes an expired entry and returns its time and queue pair.
    pub(crate) fn expired(&mut self, now: u64) -> Option<(u64, u32)> {
        self.entries.first().filter(|(deadline, _)| *deadline <= now)?;
        self.entries.pop_first()
    }

    /// Returns when the next entry expires.
    pub(crate) fn next(&self) -> Option<u64> {
        self.entries.first().map(|(deadline, _)| *deadline)
    }
}

/// Consecutive idle passes before virtual time jumps. A peer that is stepped in turn with this
/// device has had as many passes to respond, so a jump does not cause a false timeout.
const PATIENCE: u32 = 16;

/// The clock of a stepped device: it stands still while there is work and jumps to the next
/// deadline when there is none.
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

    /// Records whether a pass did anything (`busy`). Returns whether more steps may have an effect:
    /// there was work, or there is a deadline.
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
        assert_eq!(
            (timers.entries.len(), timers.expired(1), timers.next()),
            (1, Some((1, 1)), None)
        );
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
