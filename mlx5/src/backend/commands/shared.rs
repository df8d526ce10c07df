//! Shared receive queues: receive memory pools (CREATE_RMP), those of XRC domains
//! (CREATE_XRC_SRQ), and those with tag matching (CREATE_XRQ).

use core::ptr::NonNull;

use barewire_layouts::command::rmp::{CreateRmpIn, CreateRmpOut, RmpState, Rmpc, Wq, WqType};
use barewire_layouts::command::strides::Strides;
use barewire_layouts::command::xrc::{
    AllocXrcdIn, AllocXrcdOut, CreateXrcSrqIn, CreateXrcSrqOut, XrcSrqc,
};
use barewire_layouts::command::xrq::{
    CreateXrqIn, CreateXrqOut, TagMatchingContext, XrqOffload, XrqTopology, Xrqc,
};
use barewire_layouts::prm::ViewMut;

use crate::channel::owned::Owned;
use crate::channel::queue_memory::QueueMemory;
use crate::channel::shared_memory::{Piece, SharedMemory};
use crate::channel::{Command, CommandChannel, Object};
use crate::error::Error;

/// A shared receive queue that was created.
pub(crate) struct SharedInfo {
    pub(crate) number: u32,
    pub(crate) ring: NonNull<u8>,
    pub(crate) doorbell_record: NonNull<u32>,
    pub(crate) object: SharedObject,
}

/// The pool, its ring, and its doorbell record: apart, as those of completion queues.
pub(crate) type SharedObject = Owned<(QueueMemory, Piece)>;

/// The queue pairs that receive from a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedOwner {
    /// Those that were created with it.
    Pool,
    /// Those of an XRC domain. Messages complete in queue `cqn` and carry `user_index`.
    Xrc { domain: u32, cqn: u32, user_index: u32 },
    /// Those that were created with it; messages are first matched with a list of
    /// `1 << log_entries` tags. Messages complete in queue `cqn` and carry `user_index`.
    Tags { cqn: u32, user_index: u32, log_entries: u8, rendezvous: bool },
}

/// Where ring and record of a queue lie: umem of the ring, umem and offset of the record.
#[derive(Clone, Copy)]
struct Place {
    shape: SharedShape,
    umem: u32,
    record: (u32, u64),
}

impl Place {
    /// Describes a queue of WQEs.
    fn describe(self, mut wq: ViewMut<'_, Wq>, domain: u32) {
        let SharedShape { linked, strides, entries, stride } = self.shape;
        if let Some(strides) = strides {
            strides.write(&mut wq);
        }
        let kind = match (linked, strides) {
            (true, None) => WqType::LinkedList,
            (true, Some(_)) => WqType::LinkedListStriding,
            (false, None) => WqType::Cyclic,
            (false, Some(_)) => WqType::CyclicStriding,
        };
        wq.set(Wq::WQ_TYPE, kind)
            .set(Wq::PD, domain)
            .set(Wq::LOG_WQ_STRIDE, stride.ilog2() as u8)
            .set(Wq::LOG_WQ_SZ, entries.ilog2() as u8)
            .set(Wq::WQ_UMEM_VALID, true)
            .set(Wq::WQ_UMEM_ID, self.umem)
            .set(Wq::WQ_UMEM_OFFSET, 0)
            .set(Wq::DBR_UMEM_VALID, true)
            .set(Wq::DBR_UMEM_ID, self.record.0)
            .set(Wq::DBR_ADDR, self.record.1);
    }
}

/// The ring of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedShape {
    /// Whether every WQE names the next.
    pub(crate) linked: bool,
    /// The strides of each WQE, in a striding queue.
    pub(crate) strides: Option<Strides>,
    /// WQEs, a power of two.
    pub(crate) entries: u32,
    /// Bytes of a WQE.
    pub(crate) stride: usize,
}

/// Creates a queue of `shape`; that of an XRC domain is a list without strides. `prepare` writes the
/// ring before the device has it.
pub(crate) fn create_shared(
    channel: &dyn CommandChannel,
    memory: &SharedMemory,
    domain: u32,
    owner: SharedOwner,
    shape: SharedShape,
    prepare: impl FnOnce(NonNull<u8>),
) -> Result<SharedInfo, Error> {
    let SharedShape { entries, stride, .. } = shape;
    let record = memory.record(channel)?;
    let bytes = entries as usize * stride;
    let memory = QueueMemory::allocate(channel, bytes, "a shared receive queue")?;
    let ring = memory.start();
    prepare(ring);
    let umem = memory.umem_id();
    let place = Place { shape, umem, record: (record.umem_id(), record.offset()) };
    let (object, number) = match owner {
        SharedOwner::Pool => create_pool(channel, domain, place)?,
        SharedOwner::Xrc { domain: xrcd, cqn, user_index } => {
            create_xrc(channel, domain, (xrcd, cqn, user_index), place)?
        }
        SharedOwner::Tags { cqn, user_index, log_entries, rendezvous } => {
            let list = (log_entries, rendezvous);
            create_tags(channel, domain, (cqn, user_index), list, place)?
        }
    };
    let doorbell_record = record.start().cast();
    let object = SharedObject::new(object, (memory, record));
    Ok(SharedInfo { number, ring, doorbell_record, object })
}

/// Creates a pool.
fn create_pool(
    channel: &dyn CommandChannel,
    domain: u32,
    place: Place,
) -> Result<(Box<dyn Object>, u32), Error> {
    let mut create = Command::<CreateRmpIn>::new();
    let mut fields = create.fields();
    let mut context = fields.nested(CreateRmpIn::CTX);
    place.describe(context.set(Rmpc::STATE, RmpState::Ready).nested(Rmpc::WQ), domain);
    let (object, answer) = create.create(channel)?;
    let number = answer.fields().get(CreateRmpOut::RMPN);
    Ok((object, number))
}

/// Creates a queue of an XRC domain, a list.
fn create_xrc(
    channel: &dyn CommandChannel,
    domain: u32,
    (xrcd, cqn, user_index): (u32, u32, u32),
    place: Place,
) -> Result<(Box<dyn Object>, u32), Error> {
    let mut create = Command::<CreateXrcSrqIn>::new();
    let mut fields = create.fields();
    fields
        .set(CreateXrcSrqIn::XRC_SRQ_UMEM_VALID, true)
        .set(CreateXrcSrqIn::XRC_SRQ_UMEM_ID, place.umem)
        .set(CreateXrcSrqIn::XRC_SRQ_UMEM_OFFSET, 0)
        .nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY)
        .set(XrcSrqc::LOG_XRC_SRQ_SIZE, place.shape.entries.ilog2() as u8)
        // In units of 16 bytes.
        .set(XrcSrqc::LOG_RQ_STRIDE, place.shape.stride.ilog2() as u8 - 4)
        .set(XrcSrqc::XRCD, xrcd)
        .set(XrcSrqc::DBR_UMEM_VALID, true)
        .set(XrcSrqc::DBR_UMEM_ID, place.record.0)
        .set(XrcSrqc::DBR_ADDR, place.record.1)
        .set(XrcSrqc::CQN, cqn)
        .set(XrcSrqc::USER_INDEX, user_index)
        .set(XrcSrqc::PD, domain);
    let (object, answer) = create.create(channel)?;
    Ok((object, answer.fields().get(CreateXrcSrqOut::XRC_SRQN)))
}

/// Creates a queue with tag matching, whose WQEs are a list.
fn create_tags(
    channel: &dyn CommandChannel,
    domain: u32,
    (cqn, user_index): (u32, u32),
    (log_entries, rendezvous): (u8, bool),
    place: Place,
) -> Result<(Box<dyn Object>, u32), Error> {
    let mut create = Command::<CreateXrqIn>::new();
    let mut fields = create.fields();
    let mut context = fields.nested(CreateXrqIn::XRQ_CONTEXT);
    context
        .set(Xrqc::TOPOLOGY, XrqTopology::TagMatching)
        .set(Xrqc::OFFLOAD, if rendezvous { XrqOffload::Rendezvous } else { XrqOffload::None })
        .set(Xrqc::USER_INDEX, user_index)
        .set(Xrqc::CQN, cqn)
        .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
        .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, log_entries);
    place.describe(context.nested(Xrqc::WQ), domain);
    let (object, answer) = create.create(channel)?;
    Ok((object, answer.fields().get(CreateXrqOut::XRQN)))
}

/// Allocates an XRC domain (ALLOC_XRCD).
pub(crate) fn allocate_xrcd(channel: &dyn CommandChannel) -> Result<(Box<dyn Object>, u32), Error> {
    let (object, answer) = Command::<AllocXrcdIn>::new().create(channel)?;
    Ok((object, answer.fields().get(AllocXrcdOut::XRCD)))
}
