//! Creating completion queues (CREATE_CQ).

use core::any::Any;
use std::sync::Arc;

use barewire_layouts::command::cq::{Cqc, CqeSize, CreateCqIn, CreateCqOut};
use barewire_layouts::cqe::Cqe64;

use crate::channel::{self, Command, Object};
use crate::context::{Context, Uar};
use crate::error::Error;
use crate::memory::QueueMemory;
use crate::queue::completion::{CompletionParts, CompletionQueue};

/// What a completion queue holds on to; dropped in this order.
#[derive(Debug)]
struct Resources {
    _object: Box<dyn Object>,
    _memory: QueueMemory,
    _uar: Arc<dyn channel::Uar>,
    number: u32,
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
        let ring_bytes = entries as usize * size_of::<Cqe64>();
        // The doorbell record lies behind the ring, in a cache line of its own.
        let memory = QueueMemory::allocate(context, ring_bytes + 64, "a completion queue")?;
        // SAFETY: inside the allocation.
        let record = unsafe { memory.start().add(ring_bytes) }.cast();

        let mut create = Command::<CreateCqIn>::new();
        create
            .fields()
            .set(CreateCqIn::CQ_UMEM_VALID, true)
            .set(CreateCqIn::CQ_UMEM_ID, memory.umem_id())
            .set(CreateCqIn::CQ_UMEM_OFFSET, 0)
            .nested(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::CQE_SZ, CqeSize::Bytes64)
            .set(Cqc::OI, true)
            .set(Cqc::LOG_CQ_SIZE, entries.ilog2() as u8)
            .set(Cqc::UAR_PAGE, uar.page().index())
            .set(Cqc::DBR_UMEM_VALID, true)
            .set(Cqc::DBR_UMEM_ID, memory.umem_id())
            .set(Cqc::DBR_ADDR, ring_bytes as u64);
        let ring = memory.start().cast();
        // SAFETY: `entries` CQEs at the start of the allocation, which nobody else uses yet.
        unsafe { CompletionQueue::initialise(ring, entries) };
        let (object, answer) = create.create(context.channel())?;
        let number = answer.fields().get(CreateCqOut::CQN);
        let keep = Arc::new(Resources { _object: object, _memory: memory, _uar: uar.page().clone(), number });
        // SAFETY: ring and record lie in memory that `keep` owns, which is freed after the device's object; nothing else has their address.
        Ok(unsafe {
            CompletionQueue::from_parts(CompletionParts { ring, entries, doorbell_record: record, keep })
        })
    }

    /// The queue's number, if it was made by [`Self::create`].
    pub(crate) fn number(&self) -> Option<u32> {
        (&**self.keep() as &dyn Any).downcast_ref::<Resources>().map(|resources| resources.number)
    }
}
