//! Events: doorbells of completion and event queues, moderation, and asynchronous events.

use barewire_layouts::be::Be32;
use barewire_layouts::doorbell::{
    CQ_DOORBELL_OFFSET, EQ_ARM_OFFSET, EQ_CONSUMER_OFFSET, EqDoorbell,
};
use barewire_layouts::eqe::{CqErrorSyndrome, Eqe, EventType, PortChange};
use barewire_layouts::roce::NakCode;

use super::{Context, Objects, Port, Qp};
use crate::object::Events;

/// Serves CQ and EQ doorbells and event moderation. Returns whether there was anything to do.
pub(super) fn look(context: &mut Context<'_>) -> bool {
    let Objects { uars, events, cqs, .. } = &mut *context.objects;
    let mut any = events.expire(cqs, context.now);
    for uar in uars.iter_mut() {
        let page = &uar.page;
        for (offset, arm) in [(EQ_CONSUMER_OFFSET, false), (EQ_ARM_OFFSET, true)] {
            if page.load(offset) != 0 {
                any = true;
                consumed(events, page.swap(offset, 0), arm);
            }
        }
        // Load first: an exchange would take the cache line from the driver on every pass.
        if page.load(CQ_DOORBELL_OFFSET) != 0 && page.swap(CQ_DOORBELL_OFFSET, 0) != 0 {
            any = true;
            for &cqn in &uar.armable {
                if let Some(cq) = cqs.get_mut(cqn) {
                    cq.rung();
                    events.check(cqn, cq, context.now);
                }
            }
        }
    }
    any
}

/// Returns whether no doorbell that [`look`] serves is pending.
pub(super) fn is_quiet(objects: &Objects) -> bool {
    let offsets = [CQ_DOORBELL_OFFSET, EQ_CONSUMER_OFFSET, EQ_ARM_OFFSET];
    objects.uars.iter().all(|(_, uar)| offsets.iter().all(|&offset| uar.page.load(offset) == 0))
}

/// Serves an EQ doorbell, of which only the first four bytes are used.
fn consumed(events: &mut Events, rung: u64, arm: bool) {
    let bytes = u64::from_be_bytes(rung.to_ne_bytes());
    let doorbell = EqDoorbell(Be32::new((bytes >> 32) as u32));
    if let Some(eq) = events.queues.get_mut(doorbell.eqn()) {
        eq.consumed(doorbell.consumer(), arm);
    }
}

/// Reports that the link of port `number` went up or down.
pub(crate) fn link_changed(events: &mut Events, number: u8, up: bool) {
    let change = if up { PortChange::Active } else { PortChange::Down };
    events.tell(EventType::PortChange, Eqe::port(change, number));
}

/// Reports that the device failed.
pub(crate) fn fatal(events: &mut Events) {
    events.tell(EventType::InternalError, Eqe::queue(EventType::InternalError, 0));
}

/// Reports that completion queue `cqn` lost an entry.
pub(super) fn overrun(events: &mut Events, cqn: u32) {
    events.tell(EventType::CqError, Eqe::cq_error(cqn, CqErrorSyndrome::Overrun));
}

impl Port<'_> {
    /// Reports an event of queue pair, DC target or shared receive queue `number`.
    pub(super) fn tell(&mut self, event_type: EventType, number: u32) {
        self.events.tell(event_type, Eqe::queue(event_type, number));
    }

    /// Reports that the responder of `qp` ended the connection with this NAK, for which there is no
    /// completion. DC targets have no such event.
    pub(super) fn tell_refusal(&mut self, qp: &Qp, code: NakCode) {
        let event = match code {
            NakCode::RemoteAccess => {
                self.counters.access_errors += 1;
                EventType::WqAccess
            }
            NakCode::InvalidRequest => {
                self.counters.invalid_requests += 1;
                EventType::WqInvalidRequest
            }
            // A receive WQE at fault completes with its own syndrome.
            NakCode::RemoteOperational | NakCode::PsnSequence => return,
        };
        if qp.dct.is_none() {
            self.tell(event, qp.number);
        }
    }

    /// Reports that completion queue `cqn` lost an entry.
    pub(super) fn tell_overrun(&mut self, cqn: u32) {
        overrun(self.events, cqn);
    }
}
