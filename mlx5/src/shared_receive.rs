//! Creating shared receive queues.

use core::any::Any;
use std::sync::Arc;

use barewire_layouts::wqe::DataSegment;

use crate::backend::commands::{SharedObject, arm_limit, create_shared};
use crate::context::ProtectionDomain;
use crate::error::Error;
use crate::queue::shared_receive::{
    SharedReceiveParts, SharedReceiveQueue, Topology, link, wqe_bytes,
};

/// The resources of a shared receive queue, dropped in this order.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) number: u32,
    object: SharedObject,
    pub(crate) domain: ProtectionDomain,
}

impl<T: Topology> SharedReceiveQueue<T> {
    /// Creates a queue of at least `entries` WQEs with room for `segments` segments each.
    ///
    /// The driver creates it by PRM commands only: a context that was set up by `mlx5dv_init_obj`
    /// has none.
    ///
    /// # Errors
    /// If a size exceeds the limit of the device, the context has no PRM commands, or the device
    /// refused.
    pub fn create(domain: &ProtectionDomain, entries: u32, segments: usize) -> Result<Self, Error> {
        let context = domain.context();
        let most = context.capabilities().max_queue_entries.min(1 << 15);
        if !(2..=most).contains(&entries) {
            return Err(Error::parameter("shared receive WQEs", entries, format!("2 to {most}")));
        }
        let entries = entries.next_power_of_two();
        // The largest stride of a receive ring is 1 KiB.
        if !(1..1024 / size_of::<DataSegment>()).contains(&segments) {
            return Err(Error::parameter("segments", segments as u32, "1 to 63"));
        }
        let channel = context.backend().commands()?;
        let stride = wqe_bytes(segments);
        let number = domain.object().number();
        // SAFETY: the ring was allocated with this size, starts at a page, and nothing else has its
        // address yet.
        let prepare = |ring| unsafe { link(ring, entries, stride) };
        let made = create_shared(channel, number, T::LINKED, entries, stride, prepare)?;
        let (ring, doorbell_record) = (made.ring, made.doorbell_record);
        let keep = Arc::new(Resources {
            number: made.number,
            object: made.object,
            domain: domain.clone(),
        });
        let parts = SharedReceiveParts { ring, entries, segments, doorbell_record, keep };
        // SAFETY: ring and record lie in memory that `keep` owns and frees after the device's
        // object, and nothing else has their address. The ring has `entries` WQEs of `stride`
        // bytes and starts at a page.
        Ok(unsafe { Self::from_parts(parts) })
    }

    /// Requests the event `SRQ_LIMIT` of the device for the time when fewer than `limit` WQEs are
    /// posted. It is sent once; 0 requests none.
    ///
    /// # Errors
    /// If `limit` is not less than [`Self::entries`], or the device refused.
    pub fn arm_limit(&self, limit: u16) -> Result<(), Error> {
        if u32::from(limit) >= self.entries() {
            let most = format!("less than the {} entries", self.entries());
            return Err(Error::parameter("limit", u32::from(limit), most));
        }
        let resources = self.resources()?;
        arm_limit(&resources.object, resources.number, limit)
    }

    /// The resources of a queue that [`Self::create`] created.
    pub(crate) fn resources(&self) -> Result<&Resources, Error> {
        (&**self.keep() as &dyn Any)
            .downcast_ref::<Resources>()
            .ok_or_else(|| Error::parameter("shared receive queue", 0u32, "one of this device"))
    }
}
