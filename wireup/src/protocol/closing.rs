//! Closing a link: what was sent before arrives, and the peer is informed.
//!
//! Each side that closes sends CLOSE with the number of its messages. The other side receives them
//! all, sends CLOSED, and keeps the link until DONE or GONE says that the CLOSED arrived.
//!
//! A peer that makes no progress, for example because it waits in a barrier for this side, sends no
//! CLOSED. Over a reliable lane, the owner therefore reports the CLOSE as delivered.

use std::time::Duration;

use super::action::{Action, CallError};
use super::id::LinkId;
use super::link::{Stage, State};
use super::links::Links;
use super::message::{Kind, Message};
use super::reason::{Cause, Reason};

impl Links {
    /// Closes the link, on which this side sent `last` messages since it was connected.
    ///
    /// A connected link ends once the peer has received these messages; one that is not connected
    /// ends at once. To send before it is connected and then close it, wait for
    /// [`Action::Connected`].
    pub fn close(&mut self, link: LinkId, last: u64, now: Duration) -> Result<(), CallError> {
        let now = self.at(now);
        let (stage, complete) = match &self.slot(link)?.live {
            None => (Stage::Waiting, false),
            Some(live) => (live.stage, live.complete),
        };
        let both_ends = match stage {
            Stage::Completing | Stage::Connected | Stage::Closing => true,
            // The peer may be connected.
            Stage::Answered => complete,
            _ => false,
        };
        if both_ends {
            self.begin_close(link, last, now);
        } else {
            self.abandon(link);
        }
        self.admit();
        Ok(())
    }

    fn begin_close(&mut self, link: LinkId, last: u64, now: u64) {
        self.enter_closing(link, now);
        let Some(live) = self.live(link) else { return };
        if !std::mem::replace(&mut live.closing.sent, true) {
            live.last = last;
            live.resends = 0;
            self.transmit(link, now);
        }
    }

    /// The number of the link is free from now on, for a new link with the same peer.
    fn enter_closing(&mut self, link: LinkId, now: u64) {
        self.table.unpair(link);
        self.uncount(link);
        self.leave(link);
        let Some(live) = self.live(link) else { return };
        if live.stage != Stage::Closing {
            live.stage = Stage::Closing;
            live.body = Box::default();
        }
        live.deadline = now.saturating_add(live.patience);
    }

    /// Reports that everything before the peer's CLOSE has been received, as [`Action::Drain`]
    /// asked.
    ///
    /// # Errors
    /// [`CallError::Ended`], or [`CallError::Superseded`] if the peer has not closed the link.
    pub fn drained(&mut self, link: LinkId, now: Duration) -> Result<(), CallError> {
        let now = self.at(now);
        self.slot(link)?;
        let live =
            self.live(link).filter(|live| live.closing.received).ok_or(CallError::Superseded)?;
        live.closing.drained = true;
        live.resends = 0;
        live.deadline = now.saturating_add(live.patience);
        self.transmit(link, now);
        self.settle(link, now);
        self.admit();
        Ok(())
    }

    /// Reports that the CLOSE of this side, and every message before it, is in the peer's memory,
    /// so that it is received whenever the peer makes progress. The link is closed for the user;
    /// its slot remains until CLOSED arrives or the deadline passes.
    ///
    /// # Errors
    /// [`CallError::Ended`], or [`CallError::Superseded`] if this side has not closed the link.
    pub fn delivered(&mut self, link: LinkId, now: Duration) -> Result<(), CallError> {
        self.slot(link)?;
        let live = self.live(link).filter(|live| live.closing.sent).ok_or(CallError::Superseded)?;
        live.closing.delivered = true;
        let now = self.at(now);
        self.settle(link, now);
        self.admit();
        Ok(())
    }

    pub(super) fn on_close(&mut self, link: LinkId, message: &Message<'_>, now: u64) {
        self.imply_done(link, now);
        let Some(live) = self.live(link) else { return };
        match live.stage {
            Stage::Closing if live.closing.drained => {
                return self.send(link, Kind::Closed, 0, Reason::None, &[]);
            }
            Stage::Closing if live.closing.received => return,
            Stage::Completing | Stage::Connected | Stage::Closing => {}
            // The peer closed it before its ANSWER arrived here, or although it was not connected.
            _ => {
                (live.peer_link, live.peer_order) = (message.from, message.order);
                self.send(link, Kind::Closed, 0, Reason::None, &[]);
                return self.end(link, State::Failed(Cause::Refused(Reason::Closed)));
            }
        }
        self.enter_closing(link, now);
        let Some(live) = self.live(link) else { return };
        live.closing.received = true;
        self.act(Action::Drain { link, last: message.last() });
        self.arm_unless_sending(link);
    }

    /// A CLOSE of this side is sent again at its own time.
    fn arm_unless_sending(&mut self, link: LinkId) {
        let Some(live) = self.live(link) else { return };
        let again = if live.closing.sent { live.timer } else { u64::MAX };
        self.arm(link, again);
    }

    pub(super) fn on_closed(&mut self, link: LinkId, now: u64) {
        let Some(live) = self.live(link).filter(|live| live.closing.sent) else { return };
        live.closing.acknowledged = true;
        self.send(link, Kind::Done, 0, Reason::None, &[]);
        self.settle(link, now);
    }
}
