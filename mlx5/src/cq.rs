//! Creating completion queues.

use core::any::Any;
use std::sync::Arc;

use crate::context::{Context, Registers, Uar};
use crate::error::Error;
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
        let most = context.capabilities().max_cq_entries;
        if entries == 0 || entries > most {
            return Err(Error::parameter("completion queue entries", entries, format!("1 to {most}")));
        }
        let entries = entries.next_power_of_two();
        let CompletionFacts { number, ring, doorbell_record, object } = match (context.way(), uar.own()) {
            (Way::Commands(channel), Registers::Page(page)) => {
                commands::create_cq(&**channel, page, entries)?
            }
            #[cfg(feature = "verbs")]
            (Way::InitObj(device), _) => device.create_cq(entries)?,
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        let keep = Arc::new(Resources { number, object });
        // SAFETY: ring and record lie in memory that `keep` owns, which is freed after the device's object; nothing else has their address.
        Ok(unsafe { CompletionQueue::from_parts(CompletionParts { ring, entries, doorbell_record, keep }) })
    }

    /// What the queue is made of, if it was made by [`Self::create`].
    pub(crate) fn resources(&self) -> Result<&Resources, Error> {
        (&**self.keep() as &dyn Any)
            .downcast_ref::<Resources>()
            .ok_or_else(|| Error::parameter("completion queue", 0u32, "one of this device"))
    }
}
