//! Completion queues (CREATE_CQ).

use std::sync::Arc;

use barewire_layouts::command::cq::{Cqc, CqeSize, CreateCqIn, CreateCqOut};
use barewire_layouts::cqe::Cqe64;

use crate::backend::CompletionInfo;
use crate::channel::owned::Owned;
use crate::channel::queue_memory::QueueMemory;
use crate::channel::shared_memory::{Piece, SharedMemory};
use crate::channel::{Command, CommandChannel, CompletionEvents, Uar};
use crate::error::Error;
use crate::object_events::{Hub, Watched};
use crate::queue::completion::CompletionQueue;

/// The resources of a queue, dropped in this order. Its memory are ring and doorbell record: apart,
/// so that the pages of the ring can be as large as it is (linux devx.c:
/// `devx_umem_find_best_pgsize`).
#[derive(Debug)]
struct Held {
    _owned: Owned<(QueueMemory, Piece)>,
    _watched: Option<Watched>,
    _uar: Arc<dyn Uar>,
}

/// Creates a queue of `entries` CQEs, a power of two, without overrun checks, whose events go to
/// `events`, and its errors to `errors`.
pub(crate) fn create_cq(
    channel: &dyn CommandChannel,
    (memory, errors): (&SharedMemory, Option<&Arc<Hub>>),
    uar: &Arc<dyn Uar>,
    entries: u32,
    events: Option<&dyn CompletionEvents>,
) -> Result<CompletionInfo, Error> {
    let event_queue = match events {
        Some(events) => events.event_queue(),
        None => channel.event_queue()?,
    };
    let ring_bytes = entries as usize * size_of::<Cqe64>();
    let record = memory.record(channel)?;
    let memory = QueueMemory::allocate(channel, ring_bytes, "a completion queue")?;
    let ring = memory.start().cast();

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
        .set(Cqc::DBR_UMEM_ID, record.umem_id())
        .set(Cqc::DBR_ADDR, record.offset());
    // SAFETY: the allocation has room for `entries` CQEs, and nothing else uses it yet.
    unsafe { CompletionQueue::initialise(ring, entries) };
    let (object, answer) = create.create(channel)?;
    if let Some(events) = events {
        events.watch(&*object)?;
    }
    let number = answer.fields().get(CreateCqOut::CQN);
    let watched = errors.and_then(|errors| errors.watch_queue(channel, &*object, number));
    let doorbell_record = record.start().cast();
    let owned = Owned::new(object, (memory, record));
    let object = Box::new(Held { _owned: owned, _watched: watched, _uar: uar.clone() });
    Ok(CompletionInfo { number, ring, doorbell_record, object })
}
