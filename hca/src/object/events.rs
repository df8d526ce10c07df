//! All event queues of a device, and the delivery of events to them.

use std::io;
use std::sync::Arc;

use barewire_layouts::eqe::{Eqe, EventType};

use super::cq::Cq;
use super::notify::Verdict;
use super::{Eq, EventWatch, ObjectWatch, Table};
use crate::limits;

/// Numbers of event queues have 8 bits and start here: 0 in a completion queue's context means
/// none.
const FIRST: u32 = 1;
const LAST: u32 = 0xff;

/// The event queues.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) queues: Table<Eq>,
    /// Ends of the moderation of completion queues, with their times.
    moderated: Vec<(u64, u32)>,
    /// Completion queues that hold back entries for compression.
    open: Vec<u32>,
    /// Events lost because their queue was full.
    lost: u64,
    /// Programs without an event queue of their own.
    watches: Vec<Arc<EventWatch>>,
    /// Programs that subscribe to events of their queues.
    subscribers: Vec<Arc<ObjectWatch>>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            queues: Table::new(FIRST, LAST, limits::EQS),
            moderated: Vec::new(),
            open: Vec::new(),
            lost: 0,
            watches: Vec::new(),
            subscribers: Vec::new(),
        }
    }

    /// Returns the events lost because their queue was full.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Notes that completion queue `cqn` holds back entries until [`Events::close_blocks`].
    pub(crate) fn opened(&mut self, cqn: u32) {
        self.open.push(cqn);
    }

    /// Makes the completion queues write what they hold back. Called when a pass or a command ends.
    pub(crate) fn close_blocks(&mut self, cqs: &mut Table<Cq>, now: u64) {
        while let Some(cqn) = self.open.pop() {
            if let Some(cq) = cqs.get_mut(cqn) {
                cq.close_block();
                self.check(cqn, cq, now);
            }
        }
    }

    /// Sends the event of completion queue `cqn` if it is due; called after an entry or a possible
    /// arm.
    pub(crate) fn check(&mut self, cqn: u32, cq: &mut Cq, now: u64) {
        let (producer, word) = (cq.producer, cq.arm_word());
        let Some(notify) = &mut cq.notify else { return };
        match notify.judge(word, producer, now) {
            Verdict::Nothing => {}
            Verdict::Later(deadline) => {
                if !self.moderated.iter().any(|&(_, waiting)| waiting == cqn) {
                    self.moderated.push((deadline, cqn));
                }
            }
            Verdict::Fire => {
                // A completion queue keeps its event queue alive.
                if let Some(eq) = self.queues.get_mut(notify.eq) {
                    self.lost += u64::from(eq.push(Eqe::completion(cqn)).is_err());
                }
            }
        }
    }

    /// Returns a new watch, which gets the events from now on.
    pub(crate) fn watch(&mut self) -> io::Result<Arc<EventWatch>> {
        let watch = Arc::new(EventWatch::new()?);
        self.watches.retain(|watch| Arc::strong_count(watch) > 1);
        self.watches.push(Arc::clone(&watch));
        Ok(watch)
    }

    /// Returns a new watch, which gets the events of the queues that its owner subscribes to.
    pub(crate) fn watch_objects(&mut self) -> io::Result<Arc<ObjectWatch>> {
        let watch = Arc::new(ObjectWatch::new()?);
        self.subscribers.retain(|watch| Arc::strong_count(watch) > 1);
        self.subscribers.push(Arc::clone(&watch));
        Ok(watch)
    }

    /// Ends the subscriptions of a completion queue or queue pair, which is destroyed.
    pub(crate) fn end(&self, is_completion_queue: bool, number: u32) {
        self.subscribers.iter().for_each(|watch| watch.end(is_completion_queue, number));
    }

    /// Sends an event to every event queue that receives events of its type, to every watch, and to
    /// the subscribers of its queue.
    pub(crate) fn tell(&mut self, event_type: EventType, event: Eqe) {
        self.watches.iter().for_each(|watch| watch.push(event_type, event));
        let number = match event_type {
            EventType::CqError => event.failed_cqn(),
            _ => event.number(),
        };
        self.subscribers.iter().for_each(|watch| watch.push(event_type, number));
        for eq in self.queues.iter_mut().filter(|eq| eq.mask & event_type.mask() != 0) {
            self.lost += u64::from(eq.push(event).is_err());
        }
    }

    /// Returns whether an event queue receives page faults.
    pub(crate) fn take_page_faults(&self) -> bool {
        self.queues.iter().any(|(_, eq)| eq.mask & EventType::PageFault.mask() != 0)
    }

    /// Sends a page fault to the event queues that receive them: programs learn of none. Returns
    /// false if no queue has room.
    pub(crate) fn page_fault(&mut self, event: Eqe) -> bool {
        let mut sent = false;
        for eq in self.queues.iter_mut().filter(|eq| eq.mask & EventType::PageFault.mask() != 0) {
            let pushed = eq.push(event).is_ok();
            self.lost += u64::from(!pushed);
            sent |= pushed;
        }
        sent
    }

    /// Returns when the next moderation ends.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.moderated.iter().map(|&(deadline, _)| deadline).min()
    }

    /// Ends the moderations whose time has come. Returns whether there were any.
    pub(crate) fn expire(&mut self, cqs: &mut Table<Cq>, now: u64) -> bool {
        let mut any = false;
        while let Some(at) = self.moderated.iter().position(|&(deadline, _)| deadline <= now) {
            let (_, cqn) = self.moderated.swap_remove(at);
            any = true;
            // If its moderation is over or started again, it is inserted again with its new time.
            if let Some(cq) = cqs.get_mut(cqn) {
                self.check(cqn, cq, now);
            }
        }
        any
    }
}
