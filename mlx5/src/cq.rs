//! Creating completion queues.

use core::any::Any;
use std::sync::Arc;

use crate::context::{Context, Registers, Uar};
use crate::error::Error;
use crate::notifier::Notifier;
use crate::queue::completion::{CompletionParts, CompletionQueue};
use crate::setup::{CompletionFacts, Way, commands};

/// What a completion queue holds on to.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) number: u32,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "held for its drop"))]
    pub(crate) object: Box<dyn Any + Send + Sync>,
}

impl CompletionQueue {
    /// Creates a queue of at least `entries` CQEs of 64 bytes, without overrun checks: see [`CompletionQueue`].
    ///
    /// # Errors
    /// If `entries` is more than the device takes, or it refused.
    pub fn create(context: &Context, uar: &Uar, entries: u32) -> Result<Self, Error> {
        let entries = checked(context, entries)?;
        let facts = match (context.way(), uar.own()) {
            (Way::Commands(channel), Registers::Page(page)) => {
                commands::create_cq(&**channel, page, entries, channel.event_queue()?)?
            }
            #[cfg(feature = "verbs")]
            (Way::InitObj(device), _) => device.create_cq(entries)?,
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        Ok(Self::of(facts, entries))
    }

    /// As [`Self::create`], with a descriptor to sleep on; `None` where the device gives none: so far the software HCA does.
    ///
    /// # Errors
    /// As there.
    pub fn create_with_notifier(
        context: &Context,
        uar: &Uar,
        entries: u32,
    ) -> Result<(Self, Option<Notifier>), Error> {
        if let (Way::Commands(channel), Registers::Page(page)) = (context.way(), uar.own())
            && let Some(doorbell) = page.completion_doorbell()
            && let Some(events) = channel.completion_events(&**page)?
        {
            let entries = checked(context, entries)?;
            let facts = commands::create_cq(&**channel, page, entries, events.event_queue())?;
            // SAFETY: the record's two words are one after the other, in memory that the queue holds.
            let notifier = unsafe {
                let arm_word = facts.doorbell_record.add(1);
                Notifier::new(events, Arc::clone(page), doorbell, arm_word, facts.number)
            };
            return Ok((Self::of(facts, entries), Some(notifier)));
        }
        Ok((Self::create(context, uar, entries)?, None))
    }

    fn of(facts: CompletionFacts, entries: u32) -> Self {
        let CompletionFacts { number, ring, doorbell_record, object } = facts;
        let keep = Arc::new(Resources { number, object });
        // SAFETY: ring and record lie in memory that `keep` owns, which is freed after the device's object; nothing else has their address
        // but a notifier, which writes the record's other word.
        unsafe { CompletionQueue::from_parts(CompletionParts { ring, entries, doorbell_record, keep }) }
    }

    /// What the queue is made of, if it was made by [`Self::create`].
    pub(crate) fn resources(&self) -> Result<&Resources, Error> {
        (&**self.keep() as &dyn Any)
            .downcast_ref::<Resources>()
            .ok_or_else(|| Error::parameter("completion queue", 0u32, "one of this device"))
    }
}

/// A number of entries that the device takes, a power of two.
fn checked(context: &Context, entries: u32) -> Result<u32, Error> {
    let most = context.capabilities().max_cq_entries;
    if entries == 0 || entries > most {
        return Err(Error::parameter("completion queue entries", entries, format!("1 to {most}")));
    }
    Ok(entries.next_power_of_two())
}
