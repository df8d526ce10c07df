//! Queue pairs: `UVERBS_METHOD_QP_CREATE`, QUERY_QP. Their moves are in [`super::modify`].

use barewire_layouts::command::qp::{
    CreateQpIn, CreateQpOut, PathMigration, QpState, Qpc, QueryQpIn, QueryQpOut, ReceiveQueueType,
    ServiceType,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{CreateQpDriver, ModifyQp, QpCap, QueryQp, QueryQpResponse, driver};
use crate::adapter::UserMemory;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Kind;
use crate::object::{Cq, Object, Pd, Qp, Srq};

use super::completion::DOORBELL;
use super::legacy::{CORE_IN, CORE_OUT};

const HANDLE: u16 = 0;
const XRCD: u16 = 1;
const PD: u16 = 2;
const SRQ: u16 = 3;
const SEND_CQ: u16 = 4;
const RECEIVE_CQ: u16 = 5;
const USER_HANDLE: u16 = 7;
const CAP: u16 = 8;
const TYPE: u16 = 9;
const FLAGS: u16 = 10;
const SOURCE_QPN: u16 = 11;
const EVENT_FD: u16 = 12;
const RESULT_CAP: u16 = 13;
const RESULT_NUMBER: u16 = 14;

/// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`.
const SIGNAL_ALL: u64 = 1 << 12;
/// `IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`: there is no multicast that could come back.
const BLOCK_MULTICAST_LOOPBACK: u64 = 1 << 1;
/// `MLX5_QP_FLAG_...`.
const SCATTER_CQE: u32 = 1 << 1;
const ALLOW_SCATTER_CQE: u32 = 1 << 8;
const UAR_PAGE_INDEX: u32 = 1 << 10;
const WQEBB: u64 = 64;
const MOST: u32 = 1 << 15;
/// `qpc.cs_res`, `qpc.cs_req`: data of at most 32 or 64 bytes in the completion.
const RESPONDER: [u8; 2] = [0x1, 0x2];
const REQUESTER: [u8; 2] = [0x11, 0x22];

/// `IB_UVERBS_QPT_...`.
pub(super) mod kind {
    pub(crate) const RC: u8 = 2;
    pub(crate) const UC: u8 = 3;
    pub(crate) const UD: u8 = 4;
}

/// The rings of a queue pair: the receive ring first, the send ring right behind it.
struct Rings {
    receive: Option<(u8, u8)>,
    send: Option<u8>,
    bytes: u64,
}

impl Rings {
    fn of(request: &CreateQpDriver, shared: bool) -> Result<Self, Errno> {
        let power = |count: u32| {
            if count.is_power_of_two() && count <= MOST {
                Ok(count.ilog2() as u8)
            } else {
                Err(Errno::INVALID)
            }
        };
        let mut rings = Self { receive: None, send: None, bytes: 0 };
        if request.rq_wqe_count > 0 && !shared {
            let shift = u8::try_from(request.rq_wqe_shift).map_err(|_| Errno::INVALID)?;
            if !(4..=9).contains(&shift) {
                return Err(Errno::INVALID);
            }
            rings.receive = Some((power(request.rq_wqe_count)?, shift - 4));
            rings.bytes += u64::from(request.rq_wqe_count) << shift;
        }
        if request.sq_wqe_count > 0 {
            rings.send = Some(power(request.sq_wqe_count)?);
            rings.bytes += u64::from(request.sq_wqe_count) * WQEBB;
        }
        Ok(rings)
    }
}

/// `UVERBS_METHOD_QP_CREATE`.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[
        HANDLE,
        XRCD,
        PD,
        SRQ,
        SEND_CQ,
        RECEIVE_CQ,
        USER_HANDLE,
        CAP,
        TYPE,
        FLAGS,
        SOURCE_QPN,
        EVENT_FD,
        RESULT_CAP,
        RESULT_NUMBER,
        driver::IN,
        driver::OUT,
    ])?;
    let kind = u8::try_from(call.number(TYPE)?).map_err(|_| Errno::INVALID)?;
    let service = match kind {
        kind::RC => ServiceType::Rc,
        kind::UC => ServiceType::Uc,
        kind::UD => ServiceType::Ud,
        _ => return Err(Errno::UNSUPPORTED),
    };
    let request: CreateQpDriver = call.structure(driver::IN)?;
    let flags = call.optional_number(FLAGS)?.unwrap_or(0);
    if flags & !(SIGNAL_ALL | BLOCK_MULTICAST_LOOPBACK) != 0
        || request.flags & !(SCATTER_CQE | ALLOW_SCATTER_CQE | UAR_PAGE_INDEX) != 0
    {
        return Err(Errno::UNSUPPORTED);
    }
    let mut cap: QpCap = call.structure(CAP)?;
    let signal_all = flags & SIGNAL_ALL != 0;
    let adapter = &context.adapter;
    let mut state = context.state();
    let objects = &state.objects;
    let pd = objects.get::<Pd>(call.handle(PD)?)?.number;
    let send: &Cq = objects.get(call.handle(SEND_CQ)?)?;
    let receive: &Cq = objects.get(call.handle(RECEIVE_CQ)?)?;
    let srq = match call.optional_handle(SRQ)? {
        Some(handle) => Some(objects.get::<Srq>(handle)?.number),
        None => None,
    };
    let rings = Rings::of(&request, srq.is_some())?;
    // As mlx5_ib answers: what there is room for.
    (cap.max_recv_wr, cap.max_recv_sge) = match rings.receive {
        Some((log_entries, log_segments)) => (1 << log_entries, 1 << log_segments),
        None => (0, 0),
    };
    let mut memory = Vec::new();
    if rings.bytes > 0 {
        memory.push(UserMemory::register(adapter, request.buf_addr, rings.bytes, true)?);
    }
    let ring = memory.first().map_or(0, UserMemory::id);
    let doorbell = UserMemory::register(adapter, request.db_addr, DOORBELL, true)?;
    let reliable = kind != kind::UD;
    let scatter = reliable && request.flags & SCATTER_CQE != 0;
    let scatter_sent = scatter && (signal_all || request.flags & ALLOW_SCATTER_CQE != 0);
    let wide = |cq: &Cq| usize::from(cq.entry_bytes == 128);
    let answer = adapter.command::<CreateQpIn>(|create| {
        create.set(CreateQpIn::WQ_UMEM_VALID, true).set(CreateQpIn::WQ_UMEM_ID, ring);
        let mut qpc = create.nested(CreateQpIn::QPC);
        qpc.set(Qpc::ST, service)
            .set(Qpc::PM_STATE, PathMigration::Migrated)
            .set(Qpc::PD, pd)
            .set(Qpc::NO_SQ, rings.send.is_none())
            .set(Qpc::LOG_SQ_SIZE, rings.send.unwrap_or(0))
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Zero)
            .set(Qpc::UAR_PAGE, request.bfreg_index)
            .set(Qpc::USER_INDEX, request.uidx & 0x00ff_ffff)
            .set(Qpc::CQN_SND, send.number)
            .set(Qpc::CQN_RCV, receive.number)
            .set(Qpc::DBR_UMEM_VALID, true)
            .set(Qpc::DBR_UMEM_ID, doorbell.id());
        if let Some((log_entries, log_stride)) = rings.receive {
            qpc.set(Qpc::RQ_TYPE, ReceiveQueueType::Regular)
                .set(Qpc::LOG_RQ_SIZE, log_entries)
                .set(Qpc::LOG_RQ_STRIDE, log_stride);
        }
        if let Some(srq) = srq {
            qpc.set(Qpc::RQ_TYPE, ReceiveQueueType::Shared).set(Qpc::SRQN_RMPN_XRQN, srq);
        }
        if scatter {
            qpc.set(Qpc::CS_RES, RESPONDER[wide(receive)]);
        }
        if scatter_sent {
            qpc.set(Qpc::CS_REQ, REQUESTER[wide(send)]);
        }
    })?;
    memory.push(doorbell);
    let number = answer.view::<CreateQpIn>()?.get(CreateQpOut::QPN);
    let user_handle = call.number(USER_HANDLE)?;
    adapter.events().on_event(Kind::Qp, number, user_handle, &state.asynchronous());
    let attributes = ModifyQp::new_zeroed();
    let qp = Qp { number, kind, state: 0, cap, signal_all, attributes, memory };
    let handle = state.objects.insert(Object::Qp(Box::new(qp)));
    call.put(RESULT_CAP, cap.as_bytes())?;
    call.put_word(RESULT_NUMBER, number)?;
    call.put(driver::OUT, &[])?;
    call.put_handle(HANDLE, handle)
}

/// QUERY_QP: the state from the device, what was set from here.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: QueryQp = call.structure(CORE_IN)?;
    let state = context.state();
    let qp = state.objects.get::<Box<Qp>>(request.qp_handle)?;
    let answer = context.adapter.command::<QueryQpIn>(|input| {
        input.set(QueryQpIn::QPN, qp.number);
    })?;
    let qpc = answer.view::<QueryQpIn>()?.nested(QueryQpOut::QPC);
    let now = match qpc.get(Qpc::STATE) {
        // What the device does not tell apart is known from here.
        Ok(QpState::Err) => super::modify::state::ERROR,
        _ => qp.state,
    };
    let set = &qp.attributes;
    let response = QueryQpResponse {
        dest: set.dest,
        alt_dest: set.alt_dest,
        cap: qp.cap,
        qkey: set.qkey,
        rq_psn: set.rq_psn,
        sq_psn: set.sq_psn,
        dest_qp_num: set.dest_qp_num,
        qp_access_flags: set.qp_access_flags,
        pkey_index: set.pkey_index,
        alt_pkey_index: set.alt_pkey_index,
        qp_state: now,
        cur_qp_state: now,
        path_mtu: set.path_mtu,
        path_mig_state: set.path_mig_state,
        sq_draining: 0,
        max_rd_atomic: set.max_rd_atomic,
        max_dest_rd_atomic: set.max_dest_rd_atomic,
        min_rnr_timer: set.min_rnr_timer,
        port_num: set.port_num,
        timeout: set.timeout,
        retry_cnt: set.retry_cnt,
        rnr_retry: set.rnr_retry,
        alt_port_num: set.alt_port_num,
        alt_timeout: set.alt_timeout,
        sq_sig_all: u8::from(qp.signal_all),
        reserved: [0; 5],
    };
    call.put(CORE_OUT, response.as_bytes())
}
