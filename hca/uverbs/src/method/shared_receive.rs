//! Shared receive queues: `UVERBS_METHOD_SRQ_CREATE`, MODIFY_SRQ, QUERY_SRQ.

use barewire_layouts::command::rmp::Wq;
use barewire_layouts::command::srq::{
    ArmRqIn, ArmRqKind, CreateSrqIn, CreateSrqOut, QuerySrqIn, QuerySrqOut, Srqc,
};
use barewire_layouts::command::xrc::{
    ARM_XRC_SRQ, ArmXrcSrqIn, CreateXrcSrqIn, CreateXrcSrqOut, QueryXrcSrqIn, QueryXrcSrqOut,
    XrcSrqc,
};
use barewire_layouts::command::xrq::{
    CreateXrqIn, CreateXrqOut, QueryXrqIn, QueryXrqOut, TagMatchingContext, XrqOffload,
    XrqTopology, Xrqc,
};
use zerocopy::IntoBytes;

use crate::abi::{CreateSrqDriver, ModifySrq, QuerySrq, QuerySrqResponse, driver};
use crate::adapter::{Adapter, UserMemory};
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Kind;
use crate::object::{Cq, Object, Pd, Srq, SrqKind};
use crate::shared::Domain;

use super::completion::DOORBELL;
use super::device::tag_matching;
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

/// `IB_UVERBS_SRQT_BASIC`, `IB_UVERBS_SRQT_XRC`, `IB_UVERBS_SRQT_TM`.
const BASIC: u64 = 0;
const XRC: u64 = 1;
const TAGS: u64 = 2;
const USER_INDEX: u32 = 0x00ff_ffff;
/// A WQE begins with a link segment; each data segment has the same size.
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
    let kind = call.number(TYPE)?;
    let request: CreateSrqDriver = call.structure(driver::IN)?;
    let (max_wr, max_sge) = (call.word(MAX_WR)?, call.word(MAX_SGE)?);
    let user_handle = call.number(USER_HANDLE)?;
    if max_wr >= MOST || max_sge > LARGEST_STRIDE / SEGMENT - 1 || request.flags != 0 {
        return Err(Errno::INVALID);
    }
    // The size that mlx5_ib and libmlx5 compute.
    let entries = (max_wr + 1).next_power_of_two();
    let stride = (SEGMENT * (max_sge + 1)).next_power_of_two().max(SMALLEST_STRIDE);
    let adapter = &context.adapter;
    let mut state = context.state();
    let pd = state.objects.get::<Pd>(call.handle(PD)?)?.number;
    let bytes = u64::from(entries) * u64::from(stride);
    let ring = UserMemory::register(adapter, request.buf_addr, bytes, true)?;
    let doorbell = UserMemory::register_uncounted(adapter, request.db_addr, DOORBELL, true)?;
    let shape = Shape { entries, stride, pd, memory: [ring.id(), doorbell.id()] };
    let user_index = request.uidx & USER_INDEX;
    let cq = || Ok::<u32, Errno>(state.objects.get::<Cq>(call.handle(CQ)?)?.number);
    let (number, kind) = match kind {
        BASIC => (shape.make(adapter)?, SrqKind::Basic),
        XRC => {
            let handle = call.handle(XRCD)?;
            let domain = state.objects.get::<Domain>(handle)?.number;
            (shape.make_extended(adapter, domain, cq()?, user_index)?, SrqKind::Xrc(handle))
        }
        TAGS => {
            // As mlx5_ib: a list of a power of two, with one entry more than requested.
            let (tags, [_, most, ..]) = (call.word(MAX_TAGS)?, tag_matching(adapter)?);
            if tags == 0 || tags > most {
                return Err(Errno::INVALID);
            }
            let log_list = tags.ilog2() as u8 + 1;
            (shape.make_matching(adapter, cq()?, user_index, log_list)?, SrqKind::Tags)
        }
        _ => return Err(Errno::UNSUPPORTED),
    };
    adapter.events().on_event(Kind::Srq, number, user_handle, &state.asynchronous());
    let max_wr = entries - 1;
    let max_sge = stride / SEGMENT - 1;
    let srq = Srq { number, kind, max_wr, max_sge, memory: [ring, doorbell] };
    state.objects.insert_given(adapter, Object::Srq(srq), |handle| {
        call.put_word(RESULT_MAX_WR, max_wr)?;
        call.put_word(RESULT_MAX_SGE, max_sge)?;
        call.put_word(RESULT_NUMBER, number)?;
        call.put(driver::OUT, &u64::from(number).to_ne_bytes())?;
        call.put_handle(HANDLE, handle)
    })
}

/// Parameters of a queue, including the UMEM numbers of ring and doorbell record.
struct Shape {
    entries: u32,
    stride: u32,
    pd: u32,
    memory: [u32; 2],
}

impl Shape {
    fn make(&self, adapter: &Adapter) -> Result<u32, Errno> {
        let [ring, doorbell] = self.memory;
        let answer = adapter.command::<CreateSrqIn>(|create| {
            create.set(CreateSrqIn::SRQ_UMEM_VALID, true).set(CreateSrqIn::SRQ_UMEM_ID, ring);
            create
                .nested(CreateSrqIn::SRQ_CONTEXT_ENTRY)
                .set(Srqc::LOG_SRQ_SIZE, self.entries.ilog2() as u8)
                .set(Srqc::LOG_RQ_STRIDE, (self.stride / SEGMENT).ilog2() as u8)
                .set(Srqc::PD, self.pd)
                .set(Srqc::DBR_UMEM_VALID, true)
                .set(Srqc::DBR_UMEM_ID, doorbell);
        })?;
        Ok(answer.view::<CreateSrqIn>()?.get(CreateSrqOut::SRQN))
    }

    fn make_extended(
        &self,
        adapter: &Adapter,
        domain: u32,
        cq: u32,
        user_index: u32,
    ) -> Result<u32, Errno> {
        let [ring, doorbell] = self.memory;
        let answer = adapter.command::<CreateXrcSrqIn>(|create| {
            create
                .set(CreateXrcSrqIn::XRC_SRQ_UMEM_VALID, true)
                .set(CreateXrcSrqIn::XRC_SRQ_UMEM_ID, ring);
            create
                .nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY)
                .set(XrcSrqc::LOG_XRC_SRQ_SIZE, self.entries.ilog2() as u8)
                .set(XrcSrqc::LOG_RQ_STRIDE, (self.stride / SEGMENT).ilog2() as u8)
                .set(XrcSrqc::XRCD, domain)
                .set(XrcSrqc::CQN, cq)
                .set(XrcSrqc::USER_INDEX, user_index)
                .set(XrcSrqc::PD, self.pd)
                .set(XrcSrqc::DBR_UMEM_VALID, true)
                .set(XrcSrqc::DBR_UMEM_ID, doorbell);
        })?;
        Ok(answer.view::<CreateXrcSrqIn>()?.get(CreateXrcSrqOut::XRC_SRQN))
    }

    fn make_matching(
        &self,
        adapter: &Adapter,
        cq: u32,
        user_index: u32,
        log_list: u8,
    ) -> Result<u32, Errno> {
        let [ring, doorbell] = self.memory;
        let answer = adapter.command::<CreateXrqIn>(|create| {
            let mut context = create.nested(CreateXrqIn::XRQ_CONTEXT);
            context
                .set(Xrqc::TOPOLOGY, XrqTopology::TagMatching)
                .set(Xrqc::OFFLOAD, XrqOffload::Rendezvous)
                .set(Xrqc::USER_INDEX, user_index)
                .set(Xrqc::CQN, cq);
            context
                .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
                .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, log_list);
            context
                .nested(Xrqc::WQ)
                .set(Wq::PD, self.pd)
                .set(Wq::LOG_WQ_STRIDE, self.stride.ilog2() as u8)
                .set(Wq::LOG_WQ_SZ, self.entries.ilog2() as u8)
                .set(Wq::DBR_UMEM_VALID, true)
                .set(Wq::WQ_UMEM_VALID, true)
                .set(Wq::DBR_UMEM_ID, doorbell)
                .set(Wq::WQ_UMEM_ID, ring);
        })?;
        Ok(answer.view::<CreateXrqIn>()?.get(CreateXrqOut::XRQN))
    }
}

/// MODIFY_SRQ: sets the limit. The size is fixed, as in mlx5_ib.
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
    let (adapter, limit) = (&context.adapter, request.srq_limit as u16);
    let arm = |kind| {
        adapter.command::<ArmRqIn>(|input| {
            input
                .set(ArmRqIn::OP_MOD, kind)
                .set(ArmRqIn::SRQ_NUMBER, srq.number)
                .set(ArmRqIn::LWM, limit);
        })
    };
    match srq.kind {
        SrqKind::Basic => arm(ArmRqKind::Srq),
        SrqKind::Tags => arm(ArmRqKind::Xrq),
        SrqKind::Xrc(_) => adapter.command::<ArmXrcSrqIn>(|input| {
            input
                .set(ArmXrcSrqIn::OP_MOD, ARM_XRC_SRQ)
                .set(ArmXrcSrqIn::XRC_SRQN, srq.number)
                .set(ArmXrcSrqIn::LWM, limit);
        }),
    }
    .map(drop)
}

/// QUERY_SRQ.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: QuerySrq = call.structure(CORE_IN)?;
    let state = context.state();
    let srq: &Srq = state.objects.get(request.srq_handle)?;
    let adapter = &context.adapter;
    let limit = match srq.kind {
        SrqKind::Xrc(_) => {
            let answer = adapter.command::<QueryXrcSrqIn>(|input| {
                input.set(QueryXrcSrqIn::XRC_SRQN, srq.number);
            })?;
            answer
                .view::<QueryXrcSrqIn>()?
                .nested(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY)
                .get(XrcSrqc::LWM)
        }
        SrqKind::Tags => {
            let answer = adapter.command::<QueryXrqIn>(|input| {
                input.set(QueryXrqIn::XRQN, srq.number);
            })?;
            let context = answer.view::<QueryXrqIn>()?.nested(QueryXrqOut::XRQ_CONTEXT);
            context.nested(Xrqc::WQ).get(Wq::LWM)
        }
        SrqKind::Basic => {
            let answer = adapter.command::<QuerySrqIn>(|input| {
                input.set(QuerySrqIn::SRQN, srq.number);
            })?;
            answer.view::<QuerySrqIn>()?.nested(QuerySrqOut::SRQ_CONTEXT_ENTRY).get(Srqc::LWM)
        }
    };
    let response = QuerySrqResponse {
        max_wr: srq.max_wr,
        max_sge: srq.max_sge,
        srq_limit: limit.into(),
        reserved: 0,
    };
    call.put(CORE_OUT, response.as_bytes())
}
