//! Shared receive queues: receive memory pools (CREATE_RMP, MODIFY_RMP).

use core::ptr::NonNull;

use barewire_layouts::command::rmp::{
    CreateRmpIn, CreateRmpOut, ModifyRmpIn, RmpState, Rmpc, Wq, WqType,
};

use crate::channel::queue_memory::QueueMemory;
use crate::channel::{Command, CommandChannel, Object};
use crate::error::Error;

/// A shared receive queue that was created.
pub(crate) struct SharedInfo {
    pub(crate) number: u32,
    pub(crate) ring: NonNull<u8>,
    pub(crate) doorbell_record: NonNull<u32>,
    pub(crate) object: SharedObject,
}

/// The pool and its memory, dropped in this order.
#[derive(Debug)]
pub(crate) struct SharedObject {
    object: Box<dyn Object>,
    _memory: QueueMemory,
}

/// Creates a queue of `entries` WQEs, a power of two, of `stride` bytes each. `prepare` writes the
/// ring before the device has it.
pub(crate) fn create_shared(
    channel: &dyn CommandChannel,
    domain: u32,
    linked: bool,
    entries: u32,
    stride: usize,
    prepare: impl FnOnce(NonNull<u8>),
) -> Result<SharedInfo, Error> {
    let bytes = entries as usize * stride;
    // The doorbell record follows the ring, in a separate cache line.
    let record = bytes.next_multiple_of(64);
    let memory = QueueMemory::allocate(channel, record + 64, "a shared receive queue")?;
    let ring = memory.start();
    prepare(ring);
    // SAFETY: the allocation has 64 bytes after the ring.
    let doorbell_record = unsafe { ring.add(record) }.cast();
    let mut create = Command::<CreateRmpIn>::new();
    let mut fields = create.fields();
    let mut context = fields.nested(CreateRmpIn::CTX);
    context
        .set(Rmpc::STATE, RmpState::Ready)
        .nested(Rmpc::WQ)
        .set(Wq::WQ_TYPE, if linked { WqType::LinkedList } else { WqType::Cyclic })
        .set(Wq::PD, domain)
        .set(Wq::LOG_WQ_STRIDE, stride.ilog2() as u8)
        .set(Wq::LOG_WQ_SZ, entries.ilog2() as u8)
        .set(Wq::WQ_UMEM_VALID, true)
        .set(Wq::WQ_UMEM_ID, memory.umem_id())
        .set(Wq::WQ_UMEM_OFFSET, 0)
        .set(Wq::DBR_UMEM_VALID, true)
        .set(Wq::DBR_UMEM_ID, memory.umem_id())
        .set(Wq::DBR_ADDR, record as u64);
    let (object, answer) = create.create(channel)?;
    let number = answer.fields().get(CreateRmpOut::RMPN);
    let object = SharedObject { object, _memory: memory };
    Ok(SharedInfo { number, ring, doorbell_record, object })
}

/// Requests an event when fewer than `limit` WQEs are posted; 0 requests none.
pub(crate) fn arm_limit(shared: &SharedObject, number: u32, limit: u16) -> Result<(), Error> {
    let mut modify = Command::<ModifyRmpIn>::new();
    let mut fields = modify.fields();
    fields
        .set(ModifyRmpIn::RMP_STATE, RmpState::Ready)
        .set(ModifyRmpIn::RMPN, number)
        .set(ModifyRmpIn::BITMASK_LWM, true)
        .nested(ModifyRmpIn::CTX)
        .set(Rmpc::STATE, RmpState::Ready)
        .nested(Rmpc::WQ)
        .set(Wq::LWM, limit);
    modify.send_to(&*shared.object).map(drop)
}
