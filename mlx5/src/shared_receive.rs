//! Creating shared receive queues.

use core::any::Any;
use std::sync::Arc;

use barewire_layouts::wqe::DataSegment;

use crate::backend::commands::{SharedOwner, SharedShape};
#[cfg(feature = "verbs")]
use crate::backend::init_obj;
use crate::backend::{Backend, commands};
#[cfg(feature = "verbs")]
use crate::context::DomainObject;
use crate::context::{Context, ProtectionDomain};
use crate::cq;
use crate::error::Error;
#[cfg(feature = "verbs")]
use crate::error::system;
use crate::queue::shared_receive::{
    MOST_STRIDES, SharedReceiveParts, SharedReceiveQueue, Strides, StridingReceiveQueue, Topology,
    link, wqe_bytes,
};

/// The resources of a shared receive queue, dropped in this order.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) number: u32,
    object: Object,
    tags: Option<TagResources>,
    pub(crate) domain: ProtectionDomain,
    /// Its WQEs have strides.
    pub(crate) striding: bool,
}

/// What a queue with tag matching has in addition.
#[derive(Debug)]
pub(crate) struct TagResources {
    pub(crate) completions: Arc<cq::Resources>,
    pub(crate) user_index: u32,
    /// log2 of the entries of the list.
    pub(crate) log_entries: u8,
    /// The device reads the data of rendezvous messages that match.
    pub(crate) rendezvous: bool,
    /// The completions of the list and of the receive WQEs.
    pub(crate) _reserved: cq::Reservation,
}

impl TagResources {
    fn owner(&self) -> SharedOwner {
        SharedOwner::Tags {
            cqn: self.completions.number,
            user_index: self.user_index,
            log_entries: self.log_entries,
            rendezvous: self.rendezvous,
        }
    }
}

impl Resources {
    /// Returns whether the device reads the data of rendezvous messages that match.
    pub(crate) fn offloads_rendezvous(&self) -> bool {
        self.tags.as_ref().is_some_and(|tags| tags.rendezvous)
    }
}

/// The device's object.
#[derive(Debug)]
enum Object {
    Commands(#[expect(dead_code, reason = "held for its drop")] commands::SharedObject),
    #[cfg(feature = "verbs")]
    Verbs(barewire_verbs::dv::SharedReceiveQueue),
}

#[cfg(feature = "verbs")]
impl Resources {
    /// The handle by which queue pairs of verbs refer to the queue.
    pub(crate) fn reference(&self) -> Result<barewire_verbs::SharedReceiveQueueRef, Error> {
        match &self.object {
            Object::Verbs(queue) => Ok(queue.reference()),
            Object::Commands(_) => Context::foreign(),
        }
    }
}

/// The WQEs of the ring of a queue of at least `entries` WQEs.
pub(crate) fn ring_entries(context: &Context, entries: u32) -> Result<u32, Error> {
    let most = context.capabilities().max_shared_entries;
    if !(2..=most).contains(&entries) {
        return Err(Error::parameter("shared receive WQEs", entries, format!("2 to {most}")));
    }
    Ok(entries.next_power_of_two())
}

impl<T: Topology> SharedReceiveQueue<T> {
    /// Creates a queue of at least `entries` WQEs with room for `segments` segments each.
    ///
    /// A context that was set up by `mlx5dv_init_obj` has lists only: libmlx5 creates no cyclic
    /// queues.
    ///
    /// # Errors
    /// If a size exceeds the limit of the device, the context has no such queues, or the device
    /// refused.
    pub fn create(domain: &ProtectionDomain, entries: u32, segments: usize) -> Result<Self, Error> {
        Self::create_with(domain, entries, segments, None, None)
    }

    /// As [`Self::create`], with tag matching if `tags` is given, and with `strides` of each WQE if
    /// given, at most as many as segments. The backend has commands for either.
    pub(crate) fn create_with(
        domain: &ProtectionDomain,
        entries: u32,
        segments: usize,
        tags: Option<TagResources>,
        strides: Option<Strides>,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let entries = ring_entries(context, entries)?;
        // The largest stride of a receive ring is 1 KiB.
        if !(1..1024 / size_of::<DataSegment>()).contains(&segments) {
            return Err(Error::parameter("segments", segments as u32, "1 to 63"));
        }
        let stride = wqe_bytes(segments);
        let (number, ring, doorbell_record, object) = match (context.backend(), domain.object()) {
            (Backend::Commands(channel), object) => {
                // SAFETY: the ring was allocated with this size, starts at a page, and nothing
                // else has its address yet.
                let prepare = |ring| unsafe { link(ring, entries, stride) };
                let (channel, domain) = (&**channel, object.number());
                let shape = SharedShape { linked: T::LINKED, strides, entries, stride };
                let owner = tags.as_ref().map_or(SharedOwner::Pool, TagResources::owner);
                let made = commands::create_shared(
                    channel,
                    context.queue_memory(),
                    domain,
                    owner,
                    shape,
                    prepare,
                )?;
                (made.number, made.ring, made.doorbell_record, Object::Commands(made.object))
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(_), _) if !T::LINKED => {
                return Err(Error::Unsupported {
                    what: "cyclic shared receive queues",
                    reason: "libmlx5 creates lists only; set the device up by DEVX",
                });
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(_), DomainObject::Verbs { domain, .. }) => {
                let made = init_obj::create_shared(domain, entries, segments, stride)?;
                (made.number, made.ring, made.doorbell_record, Object::Verbs(made.queue))
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        let domain = domain.clone();
        let keep =
            Arc::new(Resources { number, object, tags, domain, striding: strides.is_some() });
        let parts = SharedReceiveParts { ring, entries, segments, doorbell_record, keep };
        // SAFETY: ring and record lie in memory that `keep` owns and frees after the device's
        // object. Nothing else writes there: libmlx5 does so only when verbs post, and nothing is
        // posted yet. The ring has `entries` WQEs of `stride` bytes and starts at a page.
        Ok(unsafe { Self::from_parts(parts) })
    }

    /// Requests the event `SRQ_LIMIT` of the device for the time when fewer than `limit` WQEs are
    /// posted. It is sent once; 0 requests none.
    ///
    /// # Errors
    /// If `limit` is not less than [`Self::entries`], the device was not set up by verbs objects,
    /// or it refused. The kernel delivers no such event of a queue that DEVX created, because it
    /// finds neither an RMP nor an XRQ by it (linux devx.c: `get_legacy_obj_type`).
    pub fn arm_limit(&self, limit: u16) -> Result<(), Error> {
        if u32::from(limit) >= self.entries() {
            let most = format!("less than the {} entries", self.entries());
            return Err(Error::parameter("limit", u32::from(limit), most));
        }
        let resources = self.resources()?;
        match &resources.object {
            Object::Commands(_) => Err(Error::Unsupported {
                what: "the event at a limit of a shared receive queue",
                reason: "the kernel delivers none of queues that DEVX created; use verbs objects",
            }),
            #[cfg(feature = "verbs")]
            Object::Verbs(queue) => {
                queue.set_limit(limit.into()).map_err(|e| system("arming the limit", e))
            }
        }
    }

    /// The resources of a queue that [`Self::create`] created.
    pub(crate) fn resources(&self) -> Result<Arc<Resources>, Error> {
        let keep: Arc<dyn Any + Send + Sync> = Arc::clone(self.keep());
        keep.downcast()
            .map_err(|_| Error::parameter("shared receive queue", 0u32, "one of this device"))
    }
}

impl StridingReceiveQueue {
    /// Creates a queue of at least `entries` WQEs of `strides` each, by PRM commands.
    ///
    /// A packet that is longer than a stride fails, so a stride has at least the bytes of the path
    /// MTU of the queue pairs. These must not request
    /// [inline data](crate::RcConfig::inline_receive). No public source says that devices accept
    /// such a queue without tag matching; one that does not refuses it here.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// use barewire_mlx5::channel::soft::Soft;
    /// use barewire_mlx5::queue::shared_receive::{Strides, StridingReceiveQueue};
    /// use barewire_mlx5::{Access, Buffer, Context, ProtectionDomain, hca};
    ///
    /// let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
    /// let domain = ProtectionDomain::allocate(&context)?;
    /// // 16 strides of 1 KiB.
    /// let strides = Strides::new(4, 10).expect("devices have them");
    /// let mut queue = StridingReceiveQueue::create(&domain, 64, strides)?;
    /// let bytes = queue.buffer_bytes() as usize;
    /// let memory = Buffer::allocate(&domain, 64 * bytes, Access::all())?;
    /// let segment = |index| memory.region().segment(usize::from(index) * bytes, bytes);
    /// assert!(queue.fill(|index| segment(index).expect("within the memory")));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the device has no such queues, the context was not set up by PRM commands, a size exceeds
    /// the limit of the device or 16 strides, or the device refused.
    pub fn create(
        domain: &ProtectionDomain,
        entries: u32,
        strides: Strides,
    ) -> Result<Self, Error> {
        if !domain.context().capabilities().striding {
            return Err(Error::Unsupported {
                what: "striding shared receive queues",
                reason: "the device reports no ib_striding_wq, or was not set up by DEVX",
            });
        }
        if strides.count() > MOST_STRIDES {
            return Err(Error::parameter("strides of a WQE", strides.count(), "8 or 16"));
        }
        let segments = strides.count() as usize;
        let queue =
            SharedReceiveQueue::create_with(domain, entries, segments, None, Some(strides))?;
        let refused = || Error::parameter("strides of a WQE", strides.count(), "8 or 16");
        Self::new(queue, strides).ok_or_else(refused)
    }
}
