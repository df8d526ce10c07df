//! Completion queues: `UVERBS_METHOD_CQ_CREATE`, RESIZE_CQ, MODIFY_CQ.

use std::sync::Arc;

use barewire_layouts::command::cq::{
    CqParameters, CqResize, Cqc, CqeSize, CreateCqIn, CreateCqOut, ModifyCqIn, ModifyCqKind,
};

use barewire_layouts::cqe::compressed::MiniFormat;

use crate::abi::{CreateCqDriver, ModifyCq, ResizeCq, ResizeCqDriver, driver};
use crate::adapter::UserMemory;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Kind;
use crate::object::{Cq, Object};

use super::device::VECTORS;
use super::legacy::{CORE_IN, CORE_OUT};

const HANDLE: u16 = 0;
const ENTRIES: u16 = 1;
const USER_HANDLE: u16 = 2;
const CHANNEL: u16 = 3;
const VECTOR: u16 = 4;
const FLAGS: u16 = 5;
const RESULT: u16 = 6;
const EVENT_FD: u16 = 7;

/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`. Completions always have time stamps.
const IGNORE_OVERRUN: u64 = 1 << 1;
const TIMESTAMPS: u64 = 1 << 0;
/// `MLX5_IB_CREATE_CQ_FLAGS_...`: a UAR page is given; 128-byte entries are padded (they always
/// are).
const UAR_PAGE_INDEX: u16 = 1 << 1;
const PADDED: u16 = 1 << 0;
/// Bytes of a doorbell record.
pub(super) const DOORBELL: u64 = 8;
const LOG_LONGEST: u32 = 22;

/// Returns the number of ring entries for `wanted` completions: the next larger power of two.
fn ring_entries(wanted: u64) -> Result<u32, Errno> {
    if wanted == 0 || wanted >= 1 << LOG_LONGEST {
        let most = (1_u64 << LOG_LONGEST) - 1;
        return Err(Errno::INVALID.because(format_args!("cqe: it is {wanted}, not 1 to {most}")));
    }
    Ok((wanted as u32 + 1).next_power_of_two())
}

fn size(entry_bytes: u32) -> Result<CqeSize, Errno> {
    match entry_bytes {
        64 => Ok(CqeSize::Bytes64),
        128 => Ok(CqeSize::Bytes128),
        _ => Err(Errno::INVALID),
    }
}

/// Returns the layout of compressed entries (`enum mlx5_ib_cqe_comp_res_format`), of which exactly
/// one may be given (linux cq.c: `mini_cqe_res_format_to_hw`).
fn mini_format(format: u8) -> Result<MiniFormat, Errno> {
    match format {
        1 => Ok(MiniFormat::Hash),
        2 => Ok(MiniFormat::Checksum),
        4 => Ok(MiniFormat::ChecksumStride),
        _ => Err(Errno::INVALID),
    }
}

/// `UVERBS_METHOD_CQ_CREATE`.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[
        HANDLE,
        ENTRIES,
        USER_HANDLE,
        CHANNEL,
        VECTOR,
        FLAGS,
        RESULT,
        EVENT_FD,
        driver::IN,
        driver::OUT,
    ])?;
    let request: CreateCqDriver = call.structure(driver::IN)?;
    let entries = ring_entries(call.number(ENTRIES)?)?;
    let entry = size(request.cqe_size)?;
    let flags = call.optional_number(FLAGS)?.unwrap_or(0);
    if call.number(VECTOR)? >= VECTORS.into() {
        let reason = format_args!("comp_vector: the device has {VECTORS}");
        return Err(Errno::INVALID.because(reason));
    }
    if flags & !(IGNORE_OVERRUN | TIMESTAMPS) != 0 {
        return Err(Errno::INVALID);
    }
    let padded = request.flags & PADDED != 0;
    if request.flags & !(UAR_PAGE_INDEX | PADDED) != 0 || padded && entry != CqeSize::Bytes128 {
        return Err(Errno::UNSUPPORTED);
    }
    let compressed = if request.cqe_comp_en == 1 {
        Some(mini_format(request.cqe_comp_res_format)?)
    } else {
        None
    };
    let adapter = &context.adapter;
    let mut state = context.state();
    let channel = match call.optional_descriptor(CHANNEL)? {
        Some(descriptor) => Some(Arc::clone(state.channel(descriptor)?)),
        None => None,
    };
    let bytes = u64::from(entries) * u64::from(request.cqe_size);
    let ring = UserMemory::register(adapter, request.buf_addr, bytes, true)?;
    let doorbell = UserMemory::register_uncounted(adapter, request.db_addr, DOORBELL, true)?;
    let answer = adapter.command::<CreateCqIn>(|create| {
        create.set(CreateCqIn::CQ_UMEM_VALID, true).set(CreateCqIn::CQ_UMEM_ID, ring.id());
        create
            .nested(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::CQE_SZ, entry)
            .set(Cqc::CQE_COMP_EN, compressed.is_some())
            .set(Cqc::MINI_CQE_RES_FORMAT, compressed.map_or(0, |format| format as u8))
            .set(Cqc::OI, flags & IGNORE_OVERRUN != 0)
            .set(Cqc::LOG_CQ_SIZE, entries.ilog2() as u8)
            .set(Cqc::UAR_PAGE, request.uar_page_index.into())
            .set(Cqc::C_EQN, adapter.eqn)
            .set(Cqc::DBR_UMEM_VALID, true)
            .set(Cqc::DBR_UMEM_ID, doorbell.id());
    })?;
    let number = answer.view::<CreateCqIn>()?.get(CreateCqOut::CQN);
    let user_handle = call.number(USER_HANDLE)?;
    let mut events = adapter.events();
    if let Some(channel) = &channel {
        events.on_completion(number, user_handle, channel);
    }
    events.on_event(Kind::Cq, number, user_handle, &state.asynchronous());
    drop(events);
    let cq = Cq { number, entry_bytes: request.cqe_size, ring, doorbell };
    state.objects.insert_given(adapter, Object::Cq(cq), |handle| {
        call.put_word(RESULT, entries - 1)?;
        call.put(driver::OUT, &u64::from(number).to_ne_bytes())?;
        call.put_handle(HANDLE, handle)
    })
}

/// RESIZE_CQ. libmlx5 then copies the unread entries from the old ring.
pub(super) fn resize(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: ResizeCq = call.structure(CORE_IN)?;
    let place: ResizeCqDriver = call.structure(driver::IN)?;
    let entries = ring_entries(request.cqe.into())?;
    let adapter = &context.adapter;
    let mut state = context.state();
    let cq: &mut Cq = state.objects.get_mut(request.cq_handle)?;
    if u32::from(place.cqe_size) != cq.entry_bytes {
        return Err(Errno::INVALID);
    }
    let entry = size(cq.entry_bytes)?;
    let bytes = u64::from(entries) * u64::from(cq.entry_bytes);
    let ring = UserMemory::register(adapter, place.buf_addr, bytes, true)?;
    adapter.command::<ModifyCqIn>(|input| {
        input
            .set(ModifyCqIn::OP_MOD, ModifyCqKind::Resize)
            .set(ModifyCqIn::CQN, cq.number)
            .set(ModifyCqIn::FIELD_SELECT, CqResize::all().bits())
            .set(ModifyCqIn::CQ_UMEM_ID, ring.id())
            .set(ModifyCqIn::CQ_UMEM_VALID, true);
        input
            .nested(ModifyCqIn::CQ_CONTEXT)
            .set(Cqc::CQE_SZ, entry)
            .set(Cqc::LOG_CQ_SIZE, entries.ilog2() as u8);
    })?;
    cq.ring = ring;
    call.put_word(CORE_OUT, entries - 1)
}

/// MODIFY_CQ: event moderation.
pub(super) fn modify(context: &Context, call: &Attributes) -> Result<(), Errno> {
    /// `IB_CQ_MODERATE`.
    const MODERATE: u32 = 1;
    let request: ModifyCq = call.structure(CORE_IN)?;
    if request.attr_mask != MODERATE {
        return Err(Errno::UNSUPPORTED);
    }
    let state = context.state();
    let number = state.objects.get::<Cq>(request.cq_handle)?.number;
    context
        .adapter
        .command::<ModifyCqIn>(|input| {
            input.set(ModifyCqIn::OP_MOD, ModifyCqKind::Modify).set(ModifyCqIn::CQN, number).set(
                ModifyCqIn::FIELD_SELECT,
                (CqParameters::PERIOD | CqParameters::MAX_COUNT).bits(),
            );
            input
                .nested(ModifyCqIn::CQ_CONTEXT)
                .set(Cqc::CQ_MAX_COUNT, request.cq_count)
                .set(Cqc::CQ_PERIOD, request.cq_period.min(Cqc::CQ_PERIOD.max() as u16));
        })
        .map(drop)
}
