//! When a completion queue sends an event: arming, solicited completions, moderation.
//!
//! Software arms a queue by storing a word to the doorbell record (sequence number, solicited
//! completions only or all, entries consumed) and ringing the CQ doorbell of the UAR page. Since
//! one doorbell overwrites another, a doorbell only means "check all queues of the page"; the
//! records say which are armed. The word is a new request if it differs from the last one seen,
//! which the sequence number ensures. The last word starts as [`UNARMED`], since the first request
//! may be all zeros.
//!
//! A request is for entries that no event has announced (IBTA 11.4.2.2; the context of the queue
//! has the last that one has, `last_notified_index`). Programs that arm the queue between an event
//! and the poll for it, such as those of perftest with `-e` and of librpma, would otherwise get a
//! second event without an entry.

use barewire_layouts::doorbell::CqArm;

use crate::limits;

/// Not a valid request: sets bits that an arm word does not have.
pub(crate) const UNARMED: u32 = u32::MAX;
const COUNTER: u32 = 0x00ff_ffff;
/// Longer than any ring.
const LONGEST: u32 = 1 << limits::LOG_CQ_ENTRIES;
const MICROSECOND: u64 = 1000;

/// The event state of a completion queue.
#[derive(Debug)]
pub(crate) struct Notify {
    /// The event queue.
    pub(crate) eq: u32,
    /// Moderation: an event is due at most this many microseconds after the first completion; 0
    /// for no limit.
    pub(crate) period: u16,
    /// Moderation: an event is due after this many completions; 0 for no limit.
    pub(crate) max_count: u16,
    /// The pending request.
    armed: Option<CqArm>,
    /// The last arm word seen.
    seen: u32,
    /// Whether software armed the queue at all.
    requested: bool,
    /// When moderation ends, on the device's clock.
    deadline: Option<u64>,
    /// One past the last solicited entry; not updated for entries consumed long ago.
    solicited: Option<u32>,
    /// Entries written before the last event.
    notified: u32,
    /// The same; `None` if all of them were consumed long ago.
    announced: Option<u32>,
    fired: bool,
}

/// What to do about a completion queue's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing now.
    Nothing,
    /// Check again at this time.
    Later(u64),
    /// Send the event.
    Fire,
}

/// Returns how far `index` is ahead of `first`.
fn ahead(index: u32, first: u32) -> u32 {
    index.wrapping_sub(first) & COUNTER
}

impl Notify {
    pub(crate) fn new(eq: u32, period: u16, max_count: u16, seen: u32) -> Self {
        Self {
            eq,
            period,
            max_count,
            armed: None,
            seen,
            requested: false,
            deadline: None,
            solicited: None,
            notified: 0,
            announced: None,
            fired: false,
        }
    }

    /// Notes that `producer` entries are written, the last of them `solicited` if its sender asked
    /// for an event or it reports an error.
    pub(crate) fn wrote(&mut self, producer: u32, solicited: bool) {
        let producer = producer & COUNTER;
        if solicited {
            self.solicited = Some(producer);
        } else {
            self.solicited = self.solicited.filter(|&last| ahead(producer, last) <= LONGEST);
        }
        self.announced = self.announced.filter(|&last| ahead(producer, last) <= LONGEST);
    }

    /// Notes that a CQ doorbell of the queue's UAR page was rung, with `word` in the doorbell
    /// record. A record in memory that the device cannot write starts with any word, also with the
    /// first request. The doorbell may be that of another queue of the page, which then costs one
    /// superfluous event: a later doorbell overwrites the number of an earlier one.
    pub(crate) fn rung(&mut self, word: u32) {
        if !self.requested && word != UNARMED {
            self.arm(word);
        }
    }

    /// Takes a request. One for solicited completions changes nothing while one for all of them is
    /// pending (IBTA 11.4.2.2).
    fn arm(&mut self, word: u32) {
        self.seen = word;
        self.requested = true;
        let request = CqArm::from_bits(word);
        if self.armed.is_none_or(|pending| pending.solicited_only || !request.solicited_only) {
            self.armed = Some(request);
            self.deadline = None;
        }
    }

    /// Decides what to do, with `producer` entries written and `word` in the doorbell record.
    pub(crate) fn judge(&mut self, word: u32, producer: u32, now: u64) -> Verdict {
        if word != self.seen {
            self.arm(word);
        }
        let Some(arm) = self.armed else { return Verdict::Nothing };
        let newest = if arm.solicited_only { self.solicited } else { Some(producer) };
        let Some(newest) = newest else { return Verdict::Nothing };
        // An entry has one event, also if it is not consumed when the queue is armed again.
        let announced = self.announced.filter(|last| ahead(*last, arm.consumer) <= LONGEST);
        let waiting = ahead(newest, announced.unwrap_or(arm.consumer));
        // Half of the numbers lie before the first entry that counts: there is no new one.
        if waiting == 0 || waiting > COUNTER / 2 {
            return Verdict::Nothing;
        }
        let moderated = (self.max_count, self.period) != (0, 0);
        let enough = self.max_count != 0 && waiting >= u32::from(self.max_count);
        let late = self.deadline.is_some_and(|deadline| deadline <= now);
        if moderated && !enough && !late {
            if self.period == 0 {
                return Verdict::Nothing;
            }
            let after = u64::from(self.period) * MICROSECOND;
            return Verdict::Later(*self.deadline.get_or_insert(now.saturating_add(after)));
        }
        (self.armed, self.deadline, self.fired) = (None, None, true);
        self.notified = producer & COUNTER;
        self.announced = Some(self.notified);
        Verdict::Fire
    }

    /// Returns the armed state for QUERY_CQ: armed, and for solicited completions only.
    pub(crate) fn request(&self) -> Option<bool> {
        self.armed.map(|arm| arm.solicited_only)
    }

    /// Returns whether no request is pending.
    pub(crate) fn fired(&self) -> bool {
        self.fired
    }

    /// Returns the entries written before the last event, modulo 2^24.
    pub(crate) fn last_notified(&self) -> u32 {
        self.notified
    }

    /// Returns one past the last solicited entry, modulo 2^24; 0 if there was none recently.
    pub(crate) fn last_solicited(&self) -> u32 {
        self.solicited.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(sequence: u8, solicited_only: bool, consumer: u32) -> u32 {
        CqArm { sequence, solicited_only, consumer }.bits()
    }

    #[test]
    fn one_request_is_one_event() {
        let mut notify = Notify::new(1, 0, 0, UNARMED);
        assert_eq!(notify.judge(UNARMED, 3, 0), Verdict::Nothing);
        // The first request may be all zeros, and there may be completions already.
        assert_eq!(notify.judge(arm(0, false, 0), 0, 0), Verdict::Nothing);
        assert_eq!(notify.request(), Some(false));
        assert_eq!(notify.judge(0, 1, 0), Verdict::Fire);
        assert_eq!(notify.judge(0, 2, 0), Verdict::Nothing);
        assert_eq!(notify.judge(arm(1, false, 1), 2, 0), Verdict::Fire);
        assert_eq!((notify.last_notified(), notify.request(), notify.fired()), (2, None, true));
    }

    /// As perftest with `-e`: event, request, poll.
    #[test]
    fn an_entry_that_an_event_has_announced_has_no_second_one() {
        let mut notify = Notify::new(1, 0, 0, UNARMED);
        assert_eq!(notify.judge(arm(0, false, 0), 1, 0), Verdict::Fire);
        let again = arm(1, false, 0);
        assert_eq!(notify.judge(again, 1, 0), Verdict::Nothing);
        assert_eq!(notify.judge(again, 2, 0), Verdict::Fire);
        // One that arrived before the request has an event.
        assert_eq!(notify.judge(arm(2, false, 1), 3, 0), Verdict::Fire);
        assert_eq!(notify.judge(arm(3, false, 3), 3, 0), Verdict::Nothing);
    }

    /// Indices come again.
    #[test]
    fn an_event_of_long_ago_does_not_matter() {
        let mut notify = Notify::new(1, 0, 0, UNARMED);
        assert_eq!(notify.judge(arm(0, false, 7), 8, 0), Verdict::Fire);
        for producer in [9, 9 + LONGEST, 9 + 2 * LONGEST] {
            notify.wrote(producer, false);
        }
        // Consumed but for the last; the index of the event lies ahead of it.
        assert_eq!(notify.judge(arm(1, false, 5), 6, 0), Verdict::Fire);
    }

    #[test]
    fn a_first_request_may_equal_the_record_of_a_new_queue() {
        let mut notify = Notify::new(1, 0, 0, 0);
        assert_eq!(notify.judge(0, 1, 0), Verdict::Nothing);
        notify.rung(arm(0, false, 0));
        assert_eq!(notify.judge(0, 1, 0), Verdict::Fire);
        notify.rung(0);
        assert_eq!(notify.judge(0, 2, 0), Verdict::Nothing);
        let mut notify = Notify::new(1, 0, 0, UNARMED);
        notify.rung(UNARMED);
        assert_eq!(notify.judge(UNARMED, 1, 0), Verdict::Nothing);
    }

    #[test]
    fn solicited_requests_wait_for_solicited_entries() {
        let mut notify = Notify::new(1, 0, 0, UNARMED);
        let word = arm(0, true, 0x00ff_ffff);
        notify.wrote(0x0100_0000, false);
        assert_eq!(notify.judge(word, 0x0100_0000, 0), Verdict::Nothing);
        notify.wrote(0x0100_0001, true);
        assert_eq!(notify.judge(word, 0x0100_0001, 0), Verdict::Fire);
        assert_eq!(notify.last_solicited(), 1);
    }

    #[test]
    fn a_request_for_solicited_entries_does_not_replace_one_for_all() {
        let mut notify = Notify::new(1, 0, 0, UNARMED);
        assert_eq!(notify.judge(arm(0, false, 0), 0, 0), Verdict::Nothing);
        assert_eq!(notify.judge(arm(1, true, 0), 0, 0), Verdict::Nothing);
        assert_eq!(notify.request(), Some(false));
        notify.wrote(1, false);
        assert_eq!(notify.judge(arm(1, true, 0), 1, 0), Verdict::Fire);
        // The other way round, the stronger request counts.
        assert_eq!(notify.judge(arm(2, true, 1), 1, 0), Verdict::Nothing);
        assert_eq!(notify.judge(arm(3, false, 1), 2, 0), Verdict::Fire);
    }

    #[test]
    fn moderation_ends_by_count_or_time() {
        let mut notify = Notify::new(1, 10, 3, UNARMED);
        let first = arm(0, false, 0);
        assert_eq!(notify.judge(first, 1, 5_000), Verdict::Later(15_000));
        assert_eq!(notify.judge(first, 2, 6_000), Verdict::Later(15_000));
        assert_eq!(notify.judge(first, 3, 7_000), Verdict::Fire);
        let second = arm(1, false, 3);
        assert_eq!(notify.judge(second, 4, 20_000), Verdict::Later(30_000));
        assert_eq!(notify.judge(second, 4, 30_000), Verdict::Fire);
        // Moderation by count only.
        let mut notify = Notify::new(1, 0, 2, UNARMED);
        assert_eq!(notify.judge(first, 1, 0), Verdict::Nothing);
        assert_eq!(notify.judge(first, 2, 0), Verdict::Fire);
    }
}
