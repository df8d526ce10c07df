//! Shared receive queues: `UVERBS_METHOD_SRQ_CREATE`, MODIFY_SRQ, QUERY_SRQ.

use barewire_layouts::command::srq::{
    ArmRqIn, ArmRqKind, CreateSrqIn, CreateSrqOut, QuerySrqIn, QuerySrqOut, Srqc,
};
use zerocopy::IntoBytes;

use crate::abi::{CreateSrqDriver, ModifySrq, QuerySrq, QuerySrqResponse, driver};
use crate::adapter::UserMemory;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Kind;
use crate::object::{Object, Pd, Srq};

use super::completion::DOORBELL;
use super::legacy::{CORE_IN, CORE_OUT};

const HANDLE: u16 = 0;
const PD: u16 = 1;
const XRCD: u16 = 2;
const CQ: u16 = 3;
const USER_HANDLE: u16 = 4;
const MAX_WR: u16 = 5;
const MAX_SGE: u16 = 6;
const LIMIT: u16 = 7;
const MAX_TAGS: u16 = 8;
const TYPE: u16 = 9;
const EVENT_FD: u16 = 10;
const RESULT_MAX_WR: u16 = 11;
const RESULT_MAX_SGE: u16 = 12;
const RESULT_NUMBER: u16 = 13;

/// `IB_UVERBS_SRQT_BASIC`.
const BASIC: u64 = 0;
/// A WQE begins with a link to the next; each data segment has as many bytes.
const SEGMENT: u32 = 16;
const SMALLEST_STRIDE: u32 = 32;
const LARGEST_STRIDE: u32 = 512;
const MOST: u32 = 1 << 15;

/// `UVERBS_METHOD_SRQ_CREATE`.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[
        HANDLE,
        PD,
        XRCD,
        CQ,
        USER_HANDLE,
        MAX_WR,
        MAX_SGE,
        LIMIT,
        MAX_TAGS,
        TYPE,
        EVENT_FD,
        RESULT_MAX_WR,
        RESULT_MAX_SGE,
        RESULT_NUMBER,
        driver::IN,
        driver::OUT,
    ])?;
    if call.number(TYPE)? != BASIC {
        return Err(Errno::UNSUPPORTED);
    }
    let request: CreateSrqDriver = call.structure(driver::IN)?;
    let (max_wr, max_sge) = (call.word(MAX_WR)?, call.word(MAX_SGE)?);
    if max_wr >= MOST || max_sge > LARGEST_STRIDE / SEGMENT - 1 || request.flags != 0 {
        return Err(Errno::INVALID);
    }
    // As mlx5_ib sizes it, and libmlx5 with it.
    let entries = (max_wr + 1).next_power_of_two();
    let stride = (SEGMENT * (max_sge + 1)).next_power_of_two().max(SMALLEST_STRIDE);
    let adapter = &context.adapter;
    let mut state = context.state();
    let pd = state.objects.get::<Pd>(call.handle(PD)?)?.number;
    let bytes = u64::from(entries) * u64::from(stride);
    let ring = UserMemory::register(adapter, request.buf_addr, bytes, true)?;
    let doorbell = UserMemory::register(adapter, request.db_addr, DOORBELL, true)?;
    let answer = adapter.command::<CreateSrqIn>(|create| {
        create.set(CreateSrqIn::SRQ_UMEM_VALID, true).set(CreateSrqIn::SRQ_UMEM_ID, ring.id());
        create
            .nested(CreateSrqIn::SRQ_CONTEXT_ENTRY)
            .set(Srqc::LOG_SRQ_SIZE, entries.ilog2() as u8)
            .set(Srqc::LOG_RQ_STRIDE, (stride / SEGMENT).ilog2() as u8)
            .set(Srqc::PD, pd)
            .set(Srqc::DBR_UMEM_VALID, true)
            .set(Srqc::DBR_UMEM_ID, doorbell.id());
    })?;
    let number = answer.view::<CreateSrqIn>()?.get(CreateSrqOut::SRQN);
    let user_handle = call.number(USER_HANDLE)?;
    adapter.events().on_event(Kind::Srq, number, user_handle, &state.asynchronous());
    let max_wr = entries - 1;
    let max_sge = stride / SEGMENT - 1;
    let handle = state.objects.insert(Object::Srq(Srq { number, max_wr, max_sge, memory: [ring, doorbell] }));
    call.put_word(RESULT_MAX_WR, max_wr)?;
    call.put_word(RESULT_MAX_SGE, max_sge)?;
    call.put_word(RESULT_NUMBER, number)?;
    call.put(driver::OUT, &u64::from(number).to_ne_bytes())?;
    call.put_handle(HANDLE, handle)
}

/// MODIFY_SRQ: the limit. The size is fixed, as mlx5_ib has it.
pub(super) fn modify(context: &Context, call: &Attributes) -> Result<(), Errno> {
    /// `enum ib_srq_attr_mask`.
    const MAX_WR: u32 = 1;
    const LIMIT: u32 = 2;
    let request: ModifySrq = call.structure(CORE_IN)?;
    if request.attr_mask & MAX_WR != 0 || request.attr_mask & !(MAX_WR | LIMIT) != 0 {
        return Err(Errno::INVALID);
    }
    let state = context.state();
    let srq: &Srq = state.objects.get(request.srq_handle)?;
    if request.attr_mask & LIMIT == 0 {
        return Ok(());
    }
    if request.srq_limit > srq.max_wr {
        return Err(Errno::INVALID);
    }
    context
        .adapter
        .command::<ArmRqIn>(|input| {
            input
                .set(ArmRqIn::OP_MOD, ArmRqKind::Srq)
                .set(ArmRqIn::SRQ_NUMBER, srq.number)
                .set(ArmRqIn::LWM, request.srq_limit as u16);
        })
        .map(drop)
}

/// QUERY_SRQ.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: QuerySrq = call.structure(CORE_IN)?;
    let state = context.state();
    let srq: &Srq = state.objects.get(request.srq_handle)?;
    let answer = context.adapter.command::<QuerySrqIn>(|input| {
        input.set(QuerySrqIn::SRQN, srq.number);
    })?;
    let limit = answer.view::<QuerySrqIn>()?.nested(QuerySrqOut::SRQ_CONTEXT_ENTRY).get(Srqc::LWM);
    let response =
        QuerySrqResponse { max_wr: srq.max_wr, max_sge: srq.max_sge, srq_limit: limit.into(), reserved: 0 };
    call.put(CORE_OUT, response.as_bytes())
}
