//! Creating completion queues.

use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::backend::{Backend, CompletionInfo, commands};
use crate::channel::CompletionEvents;
use crate::context::{Context, Registers, Uar};
use crate::error::Error;
use crate::notifier::Notifier;
use crate::queue::completion::{CompletionParts, CompletionQueue};

/// The resources of a completion queue.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) number: u32,
    pub(crate) context: Context,
    entries: u32,
    /// CQEs that the queue pairs of this queue can have outstanding.
    reserved: AtomicU32,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "held for its drop"))]
    pub(crate) object: Box<dyn Any + Send + Sync>,
    /// The destination of its events, dropped after the object.
    _events: Option<Arc<dyn CompletionEvents>>,
}

impl Resources {
    /// Reserves entries for a queue pair. Unless `overcommit`, fails if the queue has fewer.
    ///
    /// # Errors
    /// [`Error::Parameter`], with the number of entries that would do.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        entries: u32,
        overcommit: bool,
    ) -> Result<Reservation, Error> {
        let before = self.reserved.fetch_add(entries, Ordering::Relaxed);
        // The drop gives back what is refused.
        let reservation = Reservation { queue: Arc::clone(self), entries };
        let needed = u64::from(before) + u64::from(entries);
        if needed > self.entries.into() && !overcommit {
            let wanted =
                format!("at least {needed}, for every WQE of its queue pairs, or see overcommit");
            return Err(Error::parameter("completion queue entries", self.entries, wanted));
        }
        Ok(reservation)
    }
}

/// Entries of a completion queue that a queue pair may fill. Keeps the queue alive.
#[derive(Debug)]
pub(crate) struct Reservation {
    queue: Arc<Resources>,
    entries: u32,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.queue.reserved.fetch_sub(self.entries, Ordering::Relaxed);
    }
}

impl CompletionQueue {
    /// Creates a queue of at least `entries` CQEs of 64 bytes, without overrun checks: see
    /// [`CompletionQueue`].
    ///
    /// # Errors
    /// If `entries` exceeds the limit of the device, or the device refused.
    pub fn create(context: &Context, uar: &Uar, entries: u32) -> Result<Self, Error> {
        context.owns(uar.context())?;
        let entries = checked(context, entries)?;
        let held = (context.queue_memory(), context.object_events());
        let facts = match (context.backend(), uar.own()) {
            (Backend::Commands(channel), Registers::Page(page)) => {
                commands::create_cq(&**channel, held, page, entries, None)?
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(device), _) => device.create_cq(entries)?,
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        Ok(Self::of(context, facts, entries, None))
    }

    /// Like [`Self::create`], and returns a notifier to sleep on, or `None` if the channel has no
    /// events. All channels of this crate have them.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// use barewire_mlx5::{CompletionQueue, Context, Uar, channel::soft::Soft, hca};
    /// use std::os::fd::AsFd;
    ///
    /// let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
    /// let uar = Uar::allocate(&context)?;
    /// let (mut completions, notifier) =
    ///     CompletionQueue::create_with_notifier(&context, &uar, 1024)?;
    /// let notifier = notifier.ok_or("no descriptor")?;
    /// // Arm, and only sleep on the descriptor if the queue is empty then.
    /// if notifier.arm(&mut completions) {
    ///     let _sleep_on = notifier.as_fd();
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Self::create`].
    pub fn create_with_notifier(
        context: &Context,
        uar: &Uar,
        entries: u32,
    ) -> Result<(Self, Option<Notifier>), Error> {
        context.owns(uar.context())?;
        let entries = checked(context, entries)?;
        let held = (context.queue_memory(), context.object_events());
        let (facts, doorbell, events) = match (context.backend(), uar.own()) {
            (Backend::Commands(channel), Registers::Page(page)) => {
                let (Some(doorbell), Some(events)) =
                    (page.completion_doorbell(), channel.completion_events(page)?)
                else {
                    return Ok((Self::create(context, uar, entries)?, None));
                };
                let info = commands::create_cq(&**channel, held, page, entries, Some(&*events))?;
                (info, doorbell, events)
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(device), _) => {
                let (facts, doorbell, events) = device.create_cq_with_events(entries)?;
                (facts, doorbell, Arc::new(events) as _)
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        let (number, record) = (facts.number, facts.doorbell_record);
        let queue = Self::of(context, facts, entries, Some(Arc::clone(&events)));
        // SAFETY: the record has two consecutive words. The queue's `keep`, which the notifier
        // holds, keeps the record and the doorbell page alive.
        let notifier =
            unsafe { Notifier::new(events, queue.keep().clone(), doorbell, record.add(1), number) };
        Ok((queue, Some(notifier)))
    }

    fn of(
        context: &Context,
        facts: CompletionInfo,
        entries: u32,
        events: Option<Arc<dyn CompletionEvents>>,
    ) -> Self {
        let CompletionInfo { number, ring, doorbell_record, object } = facts;
        let keep = Arc::new(Resources {
            number,
            context: context.clone(),
            entries,
            reserved: AtomicU32::new(0),
            object,
            _events: events,
        });
        // SAFETY: ring and record lie in memory that `keep` owns and frees after the device's
        // object. Nothing else has their address except a notifier, which writes the other word of
        // the record.
        unsafe {
            CompletionQueue::from_parts(CompletionParts { ring, entries, doorbell_record, keep })
        }
    }

    /// Returns the number of the device's completion queue, by which
    /// [events](crate::channel::DeviceEvent) name it. `None` for a queue that was built from parts.
    pub fn number(&self) -> Option<u32> {
        self.resources().ok().map(|resources| resources.number)
    }

    /// The resources of a queue that [`Self::create`] created.
    pub(crate) fn resources(&self) -> Result<Arc<Resources>, Error> {
        let keep: Arc<dyn Any + Send + Sync> = Arc::clone(self.keep());
        keep.downcast::<Resources>()
            .map_err(|_| Error::parameter("completion queue", 0u32, "a queue of this device"))
    }
}

/// Rounds a number of entries up to a power of two within the limit of the device.
fn checked(context: &Context, entries: u32) -> Result<u32, Error> {
    let most = context.capabilities().max_cq_entries;
    if entries == 0 || entries > most {
        return Err(Error::parameter("completion queue entries", entries, format!("1 to {most}")));
    }
    Ok(entries.next_power_of_two())
}
