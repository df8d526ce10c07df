//! Event queues (CREATE_EQ) of the software HCA. For other devices the kernel owns them.

use std::sync::Arc;

use barewire_layouts::command::eq::{CreateEqIn, CreateEqOut, EQE_BYTES, Eqc};

use super::queue_memory::QueueMemory;
use super::{Command, CommandChannel, Object, Uar};
use crate::error::Error;

/// Entries as log2. The entries are not read: only the interrupt matters.
const LOG_ENTRIES: u8 = 6;

/// The device's object and its ring, dropped in this order.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub(crate) number: u32,
    _object: Box<dyn Object>,
    _memory: QueueMemory,
    _uar: Arc<dyn Uar>,
}

/// Creates an event queue for completion queues, without overrun checks.
pub(crate) fn create_eq(
    channel: &dyn CommandChannel,
    uar: &Arc<dyn Uar>,
) -> Result<EventQueue, Error> {
    let memory = QueueMemory::allocate(channel, EQE_BYTES << LOG_ENTRIES, "an event queue")?;
    let mut create = Command::<CreateEqIn>::new();
    create
        .fields()
        .set(CreateEqIn::EQ_UMEM_VALID, true)
        .set(CreateEqIn::EQ_UMEM_ID, memory.umem_id())
        .set(CreateEqIn::EQ_UMEM_OFFSET, 0)
        .nested(CreateEqIn::EQ_CONTEXT_ENTRY)
        .set(Eqc::OI, true)
        .set(Eqc::LOG_EQ_SIZE, LOG_ENTRIES)
        .set(Eqc::UAR_PAGE, uar.index());
    let (object, answer) = create.create(channel)?;
    Ok(EventQueue {
        number: answer.fields().get(CreateEqOut::EQ_NUMBER),
        _object: object,
        _memory: memory,
        _uar: Arc::clone(uar),
    })
}
