//! Shared receive queues: receive memory pools (CREATE_RMP, MODIFY_RMP), and those of XRC domains
//! (CREATE_XRC_SRQ).

use core::ptr::NonNull;

use barewire_layouts::command::rmp::{
    CreateRmpIn, CreateRmpOut, ModifyRmpIn, RmpState, Rmpc, Wq, WqType,
};
use barewire_layouts::command::xrc::{
    AllocXrcdIn, AllocXrcdOut, CreateXrcSrqIn, CreateXrcSrqOut, XrcSrqc,
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

/// The queue pairs that receive from a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedOwner {
    /// Those that were created with it.
    Pool,
    /// Those of an XRC domain. Messages complete in queue `cqn` and carry `user_index`.
    Xrc { domain: u32, cqn: u32, user_index: u32 },
}

/// Creates a queue of `entries` WQEs, a power of two, of `stride` bytes each. `prepare` writes the
/// ring before the device has it.
pub(crate) fn create_shared(
    channel: &dyn CommandChannel,
    domain: u32,
    owner: SharedOwner,
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
    let sizes = (entries, stride, record as u64);
    let (object, number) = match owner {
        SharedOwner::Pool => create_pool(channel, domain, linked, sizes, memory.umem_id())?,
        SharedOwner::Xrc { domain: xrcd, cqn, user_index } => {
            let xrc = (xrcd, cqn, user_index);
            create_xrc(channel, domain, xrc, sizes, memory.umem_id())?
        }
    };
    let object = SharedObject { object, _memory: memory };
    Ok(SharedInfo { number, ring, doorbell_record, object })
}

/// Creates a pool whose ring and record lie in `umem`.
fn create_pool(
    channel: &dyn CommandChannel,
    domain: u32,
    linked: bool,
    (entries, stride, record): (u32, usize, u64),
    umem: u32,
) -> Result<(Box<dyn Object>, u32), Error> {
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
        .set(Wq::WQ_UMEM_ID, umem)
        .set(Wq::WQ_UMEM_OFFSET, 0)
        .set(Wq::DBR_UMEM_VALID, true)
        .set(Wq::DBR_UMEM_ID, umem)
        .set(Wq::DBR_ADDR, record);
    let (object, answer) = create.create(channel)?;
    let number = answer.fields().get(CreateRmpOut::RMPN);
    Ok((object, number))
}

/// Creates a queue of an XRC domain, a list, whose ring and record lie in `umem`.
fn create_xrc(
    channel: &dyn CommandChannel,
    domain: u32,
    xrc: (u32, u32, u32),
    (entries, stride, record): (u32, usize, u64),
    umem: u32,
) -> Result<(Box<dyn Object>, u32), Error> {
    let (xrcd, cqn, user_index) = xrc;
    let mut create = Command::<CreateXrcSrqIn>::new();
    let mut fields = create.fields();
    fields
        .set(CreateXrcSrqIn::XRC_SRQ_UMEM_VALID, true)
        .set(CreateXrcSrqIn::XRC_SRQ_UMEM_ID, umem)
        .set(CreateXrcSrqIn::XRC_SRQ_UMEM_OFFSET, 0)
        .nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY)
        .set(XrcSrqc::LOG_XRC_SRQ_SIZE, entries.ilog2() as u8)
        // In units of 16 bytes.
        .set(XrcSrqc::LOG_RQ_STRIDE, stride.ilog2() as u8 - 4)
        .set(XrcSrqc::XRCD, xrcd)
        .set(XrcSrqc::DBR_UMEM_VALID, true)
        .set(XrcSrqc::DBR_UMEM_ID, umem)
        .set(XrcSrqc::DBR_ADDR, record)
        .set(XrcSrqc::CQN, cqn)
        .set(XrcSrqc::USER_INDEX, user_index)
        .set(XrcSrqc::PD, domain);
    let (object, answer) = create.create(channel)?;
    Ok((object, answer.fields().get(CreateXrcSrqOut::XRC_SRQN)))
}

/// Allocates an XRC domain (ALLOC_XRCD).
pub(crate) fn allocate_xrcd(channel: &dyn CommandChannel) -> Result<(Box<dyn Object>, u32), Error> {
    let (object, answer) = Command::<AllocXrcdIn>::new().create(channel)?;
    Ok((object, answer.fields().get(AllocXrcdOut::XRCD)))
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
