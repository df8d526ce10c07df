//! Completion queues (CREATE_CQ).

use std::sync::Arc;

use barewire_layouts::command::cq::{Cqc, CqeSize, CreateCqIn, CreateCqOut};
use barewire_layouts::cqe::Cqe64;

use crate::backend::CompletionInfo;
use crate::channel::queue_memory::QueueMemory;
use crate::channel::{Command, CommandChannel, CompletionEvents, Object, Uar};
use crate::error::Error;
use crate::queue::completion::CompletionQueue;

/// The resources of a queue, dropped in this order.
#[derive(Debug)]
struct Held {
    _object: Box<dyn Object>,
    _memory: QueueMemory,
    _uar: Arc<dyn Uar>,
}

/// Creates a queue of `entries` CQEs, a power of two, without overrun checks, whose events go to
/// `events`.
pub(crate) fn create_cq(
    channel: &dyn CommandChannel,
    uar: &Arc<dyn Uar>,
    entries: u32,
    events: Option<&dyn CompletionEvents>,
) -> Result<CompletionInfo, Error> {
    let event_queue = match events {
        Some(events) => events.event_queue(),
        None => channel.event_queue()?,
    };
    let ring_bytes = entries as usize * size_of::<Cqe64>();
    // The doorbell record follows the ring, in a separate cache line.
    let memory = QueueMemory::allocate(channel, ring_bytes + 64, "a completion queue")?;
    let ring = memory.start().cast();
    // SAFETY: the allocation has 64 bytes after the ring.
    let doorbell_record = unsafe { memory.start().add(ring_bytes) }.cast();

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
        .set(Cqc::UAR_PAGE, uar.index())
        .set(Cqc::C_EQN, event_queue)
        .set(Cqc::DBR_UMEM_VALID, true)
        .set(Cqc::DBR_UMEM_ID, memory.umem_id())
        .set(Cqc::DBR_ADDR, ring_bytes as u64);
    // SAFETY: the allocation starts with room for `entries` CQEs, and nothing else uses it yet.
    unsafe { CompletionQueue::initialise(ring, entries) };
    let (object, answer) = create.create(channel)?;
    if let Some(events) = events {
        events.watch(&*object)?;
    }
    Ok(CompletionInfo {
        number: answer.fields().get(CreateCqOut::CQN),
        ring,
        doorbell_record,
        object: Box::new(Held { _object: object, _memory: memory, _uar: uar.clone() }),
    })
}
