//! Times: resends, deadlines and liveness.

use std::time::Duration;

use super::id::LinkId;
use super::link::{Side, Stage, State};
use super::links::Links;
use super::message::Kind;
use super::reason::{Cause, Phase, Reason};

/// Pauses between resends: 1, 2, 4 .. 64 ms, then this.
const LONGEST_PAUSE: u64 = 100_000;
/// The longest pause of an OFFER without a pass. Of these, a peer reads only as many as it has time
/// for.
const LONGEST_KNOCK: u64 = 32_000;
/// A link that a peer offered, and that is not connected after this time, makes room for one of a
/// way that has no place.
pub(super) const STALE: u64 = 1_000_000;

impl Links {
    /// Returns when [`tick`](Self::tick) has something to do.
    pub fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|(time, _)| Duration::from_micros(*time))
    }

    /// Sends again what was not acknowledged in time, and fails links whose deadline has passed.
    pub fn tick(&mut self, now: Duration) {
        let now = self.at(now);
        while let Some((time, slot)) = self.timers.first().copied().filter(|(time, _)| *time <= now)
        {
            self.timers.remove(&(time, slot));
            if let Some(link) = self.table.in_slot(slot) {
                self.expire(link, now);
            }
        }
        self.admit();
    }

    /// Sets the link's timer to `time` or its deadline, whichever is first.
    pub(super) fn arm(&mut self, link: LinkId, time: u64) {
        self.disarm(link);
        let Some(live) = self.live(link) else { return };
        live.timer = time.min(live.deadline);
        let timer = live.timer;
        if timer != u64::MAX {
            self.timers.insert((timer, link.slot));
        }
    }

    pub(super) fn disarm(&mut self, link: LinkId) {
        let Some(live) = self.live(link) else { return };
        let timer = std::mem::replace(&mut live.timer, u64::MAX);
        self.timers.remove(&(timer, link.slot));
    }

    fn expire(&mut self, link: LinkId, now: u64) {
        let Some(live) = self.live(link) else { return };
        live.timer = u64::MAX;
        let overdue = now >= live.deadline;
        match live.stage {
            _ if overdue => self.give_up(link, now),
            Stage::Offered | Stage::Answered | Stage::Closing => self.transmit(link, now),
            Stage::Connected => self.probe(link, now),
            _ => self.arm(link, u64::MAX),
        }
    }

    fn give_up(&mut self, link: LinkId, now: u64) {
        let Some(live) = self.live(link) else { return };
        let busy = live.stage == Stage::Offered && live.busy;
        let (phase, reason) = match live.stage {
            Stage::Waiting => (Phase::Waiting, Reason::Deadline),
            Stage::Arriving | Stage::Queued => (Phase::Waiting, Reason::Busy),
            Stage::Preparing | Stage::Completing | Stage::Answering => {
                (Phase::Lanes, Reason::Deadline)
            }
            Stage::Offered => (Phase::Offer, Reason::Deadline),
            Stage::Answered => (Phase::Answer, Reason::Deadline),
            Stage::Closing if live.closing.received && !live.closing.drained => {
                (Phase::Drain, Reason::Deadline)
            }
            Stage::Closing | Stage::Connected => (Phase::Close, Reason::Deadline),
        };
        let keep = live.stage.answers() && !live.wanted;
        let quiet = live.stage == Stage::Closing && live.closing.is_done();
        if !quiet {
            self.dismiss(link, reason);
        }
        let cause = if busy { Cause::Refused(Reason::Busy) } else { Cause::Deadline(phase) };
        if keep { self.fall_back(link, cause, now) } else { self.end(link, State::Failed(cause)) }
    }

    /// Sends the message that the link's stage repeats, and sets the timer for the next time.
    pub(super) fn transmit(&mut self, link: LinkId, now: u64) {
        let Some(live) = self.live(link) else { return };
        let (stage, closing, last) = (live.stage, live.closing, live.last);
        let (attempt, peer_attempt) = (live.attempt, live.peer_attempt);
        let resends = live.resends;
        live.resends = resends.saturating_add(1);
        match stage {
            Stage::Offered | Stage::Answered => {
                let mut body = std::mem::take(&mut live.body);
                let left = live.deadline.saturating_sub(now) / 1000;
                if stage == Stage::Offered {
                    let left = u32::try_from(left).unwrap_or(u32::MAX);
                    if let Some(place) = body.first_chunk_mut() {
                        *place = left.to_be_bytes();
                    }
                    if live.pass == 0 {
                        let pass = self.known_pass(link);
                        if let Some(live) = self.live(link) {
                            live.pass = pass;
                        }
                    }
                    self.send(link, Kind::Offer, attempt, Reason::None, &body);
                } else {
                    self.send(link, Kind::Answer, peer_attempt, Reason::None, &body);
                }
                if let Some(live) = self.live(link) {
                    live.body = body;
                }
            }
            Stage::Closing => {
                if closing.sent && !closing.delivered && !closing.acknowledged {
                    self.send(link, Kind::Close, 0, Reason::None, &last.to_be_bytes());
                }
                if closing.drained && !closing.released {
                    self.send(link, Kind::Closed, 0, Reason::None, &[]);
                }
                let repeats = closing.sent && !closing.delivered && !closing.acknowledged
                    || closing.drained && !closing.released;
                if !repeats {
                    return self.arm(link, u64::MAX);
                }
            }
            _ => return,
        }
        let pause = self.pause(link, resends);
        self.arm(link, now.saturating_add(pause));
    }

    /// Returns the pause after the message was sent for the `resends + 1`-th time.
    ///
    /// Up to one half is added, by uuid and link, so that processes that began together do not stay
    /// in step.
    fn pause(&self, link: LinkId, resends: u8) -> u64 {
        let knocks = self.table.get(link).and_then(|slot| slot.live.as_ref());
        let knocks = knocks.is_some_and(|live| live.stage == Stage::Offered && live.pass == 0);
        let longest = if knocks { LONGEST_KNOCK } else { LONGEST_PAUSE };
        let base = (1000 << resends.min(7)).min(longest);
        let seed = u128::from_be_bytes(self.uuid);
        let mut mixed =
            (seed >> 64) as u64 ^ seed as u64 ^ link.to_bits() << 8 ^ u64::from(resends);
        // The finaliser of MurmurHash3.
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        base + (base >> 9) * (mixed >> 56)
    }

    /// Asks the peer of a connected link for a sign of life now: something suggests that it has
    /// ended. Without [`Config::liveness`](super::Config::liveness), it has half a deadline.
    pub fn check(&mut self, link: LinkId, now: Duration) {
        let (now, liveness) = (self.at(now), self.liveness);
        let Some(live) = self.live(link).filter(|live| live.stage == Stage::Connected) else {
            return;
        };
        if live.missed == 0 {
            live.heard = now.saturating_sub(liveness.unwrap_or(live.patience / 2).max(2));
            self.probe(link, now);
        }
    }

    /// Checks whether the peer of a connected link is alive.
    fn probe(&mut self, link: LinkId, now: u64) {
        let liveness = self.liveness;
        let Some(live) = self.live(link) else { return };
        let interval = liveness.unwrap_or(live.patience / 2).max(2);
        let due = live.heard.saturating_add(interval);
        if now < due && live.missed == 0 && !live.suspect {
            return self.arm(link, liveness.map_or(u64::MAX, |_| due));
        }
        if live.missed >= 2 {
            self.dismiss(link, Reason::Deadline);
            return self.end(link, State::Failed(Cause::Silent));
        }
        live.missed += 1;
        let address = std::mem::take(&mut self.address);
        self.send(link, Kind::Ping, 0, Reason::None, &address);
        self.address = address;
        self.arm(link, now.saturating_add(interval / 2));
    }

    /// Reports the end of a close, and frees the link once the peer does not need it either.
    pub(super) fn settle(&mut self, link: LinkId, now: u64) {
        let Some(live) = self.live(link) else { return };
        if !live.closing.is_done() {
            return;
        }
        let side = if live.closing.sent { Side::Here } else { Side::Peer };
        let first = !std::mem::replace(&mut live.closing.reported, true);
        if first {
            live.deadline = now.saturating_add(live.patience);
        }
        let closing = live.closing;
        let remains =
            closing.received && !closing.released || closing.delivered && !closing.acknowledged;
        let shown = live.shown;
        let requested = self.table.get(link).is_some_and(|slot| slot.requested);
        if first && (shown || requested) {
            self.act(super::Action::Ended { link, state: State::Closed(side) });
        }
        if !remains {
            self.end(link, State::Closed(side));
        }
    }
}
