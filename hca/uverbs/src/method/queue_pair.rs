//! Queue pairs: `UVERBS_METHOD_QP_CREATE`, OPEN_QP. State transitions are in [`super::modify`].

use std::sync::{Arc, Mutex};

use barewire_layouts::command::qp::{
    CreateQpIn, CreateQpOut, PathMigration, Qpc, ReceiveQueueType, ServiceType, TimestampFormat,
};
use barewire_layouts::command::xrq::XrqOffload;
use barewire_layouts::prm::ViewMut;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{
    CreateQpDriver, CreateQpDriverResponse, OpenQp, OpenQpResponse, QpCap, driver, qp_flag,
};
use crate::adapter::{Adapter, UserMemory};
use crate::attributes::Attributes;
use crate::context::{Context, State};
use crate::errno::Errno;
use crate::event::Kind;
use crate::object::{Cq, Object, Pd, Qp, Srq, SrqKind, Standing, Target};
use crate::qp_type::{QpType, XRC_RECEIVE};
use crate::shared::Domain;

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
/// `IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`.
const BLOCK_MULTICAST_LOOPBACK: u64 = 1 << 1;
const DRIVER_FLAGS: u32 = qp_flag::SCATTER_CQE
    | qp_flag::ALLOW_SCATTER_CQE
    | qp_flag::UAR_PAGE_INDEX
    | qp_flag::TYPE_DCI
    | qp_flag::TYPE_DCT
    | qp_flag::DCI_STREAM;
const WQEBB: u64 = 64;
const MOST: u32 = 1 << 15;
const USER_INDEX: u32 = 0x00ff_ffff;
/// `qpc.cs_res`, `qpc.cs_req`: data of up to 32 or 64 bytes in the CQE.
const RESPONDER: [u8; 2] = [0x1, 0x2];
const REQUESTER: [u8; 2] = [0x11, 0x22];
/// `dctc.cs_res`: DC targets have no 32-byte mode.
const TARGET: [u8; 2] = [0x0, 0x2];

/// The rings of a queue pair: the receive ring first, immediately followed by the send ring.
#[derive(Default)]
struct Rings {
    receive: Option<(u8, u8)>,
    send: Option<u8>,
    bytes: u64,
}

impl Rings {
    fn of(request: &CreateQpDriver, kind: QpType, shared: bool) -> Result<Self, Errno> {
        let power = |count: u32| {
            if count.is_power_of_two() && count <= MOST {
                Ok(count.ilog2() as u8)
            } else {
                Err(Errno::INVALID)
            }
        };
        let mut rings = Self::default();
        if kind == QpType::XrcReceive {
            return Ok(rings);
        }
        let receives = matches!(kind, QpType::Rc | QpType::Uc | QpType::Ud) && !shared;
        if request.rq_wqe_count > 0 && receives {
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

/// Numbers of the objects that a queue pair refers to.
struct Parts {
    pd: u32,
    send_cq: u32,
    receive_cq: u32,
    srq: Option<u32>,
    /// The shared receive queue has tag matching.
    matching: bool,
    /// Handle and number.
    xrcd: Option<(u32, u32)>,
    /// Whether the completion queues, of sends and receives, have 128-byte entries.
    wide: [usize; 2],
}

impl Parts {
    fn of(
        call: &Attributes,
        state: &State,
        adapter: &Adapter,
        kind: QpType,
    ) -> Result<Self, Errno> {
        let objects = &state.objects;
        if kind == QpType::XrcReceive {
            let handle = call.handle(XRCD)?;
            let xrcd = Some((handle, objects.get::<Domain>(handle)?.number));
            let spare = &adapter.spare;
            return Ok(Self {
                pd: spare.pd,
                send_cq: spare.cq,
                receive_cq: spare.cq,
                srq: None,
                matching: false,
                xrcd,
                wide: [0; 2],
            });
        }
        let send: &Cq = objects.get(call.handle(SEND_CQ)?)?;
        let receive = match call.optional_handle(RECEIVE_CQ)? {
            Some(handle) => objects.get(handle)?,
            // An XRC initiator has no receive completion queue, but the device requires one.
            None if kind == QpType::XrcSend => send,
            None => return Err(Errno::INVALID),
        };
        let shared = match call.optional_handle(SRQ)? {
            Some(handle) => Some(objects.get::<Srq>(handle)?),
            None => None,
        };
        let (srq, matching) =
            (shared.map(|srq| srq.number), shared.is_some_and(|srq| srq.kind == SrqKind::Tags));
        let pd = objects.get::<Pd>(call.handle(PD)?)?.number;
        let wide = [send, receive].map(|cq| usize::from(cq.entry_bytes == 128));
        let (send_cq, receive_cq) = (send.number, receive.number);
        Ok(Self { pd, send_cq, receive_cq, srq, matching, xrcd: None, wide })
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
    let request: CreateQpDriver = call.structure(driver::IN)?;
    let kind = QpType::of(call.number(TYPE)?, request.flags)?;
    let flags = call.optional_number(FLAGS)?.unwrap_or(0);
    if flags & !(SIGNAL_ALL | BLOCK_MULTICAST_LOOPBACK) != 0 || request.flags & !DRIVER_FLAGS != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if request.bfreg_index > Qpc::UAR_PAGE.max() as u32 {
        return Err(Errno::INVALID);
    }
    // What the context has room for; the device checks its own limits.
    let streams = [Qpc::LOG_NUM_DCI_STREAM_CHANNELS, Qpc::LOG_NUM_DCI_ERRORED_STREAMS];
    if request.dci_streams.iter().zip(streams).any(|(&log, field)| u64::from(log) > field.max()) {
        return Err(Errno::INVALID);
    }
    let mut cap: QpCap = call.structure(CAP)?;
    let signal_all = flags & SIGNAL_ALL != 0;
    let adapter = &context.adapter;
    let mut state = context.state();
    let parts = Parts::of(call, &state, adapter, kind)?;
    let user_handle = call.number(USER_HANDLE)?;
    let mut memory = Vec::new();
    let (number, enhancements, target) = if kind == QpType::Dct {
        (0, 0, Some(plan(&request, &parts, user_handle)?))
    } else {
        let rings = Rings::of(&request, kind, parts.srq.is_some())?;
        // Returns the actual capacity, as mlx5_ib does.
        (cap.max_recv_wr, cap.max_recv_sge) = match rings.receive {
            Some((log_entries, log_segments)) => (1 << log_entries, 1 << log_segments),
            None => (0, 0),
        };
        memory = register(adapter, kind, &request, &rings)?;
        let (number, enhancements) =
            make(adapter, kind, &request, &parts, (&rings, &memory), flags)?;
        (number, enhancements, None)
    };
    let standing = Arc::new(Mutex::new(Standing::reset()));
    if let Some((_, domain)) = parts.xrcd {
        adapter.shared().enter(number, domain, &standing);
    }
    if number != 0 {
        adapter.events().on_event(Kind::Qp, number, user_handle, &state.asynchronous());
    }
    let xrcd = parts.xrcd.map(|(handle, _)| handle);
    let groups = Vec::new();
    let qp = Qp { number, kind, xrcd, cap, signal_all, groups, standing, target, memory };
    let mut response = CreateQpDriverResponse::new_zeroed();
    response.ece_options = enhancements;
    state.objects.insert_given(adapter, Object::Qp(Box::new(qp)), |handle| {
        call.put(RESULT_CAP, cap.as_bytes())?;
        call.put_word(RESULT_NUMBER, number)?;
        call.put(driver::OUT, response.as_bytes())?;
        call.put_handle(HANDLE, handle)
    })
}

/// Records the parameters of a DC target. The device creates it when it becomes ready to receive.
fn plan(request: &CreateQpDriver, parts: &Parts, user_handle: u64) -> Result<Target, Errno> {
    let scatter = if request.flags & qp_flag::SCATTER_CQE != 0 { TARGET[parts.wide[1]] } else { 0 };
    Ok(Target {
        pd: parts.pd,
        cq: parts.receive_cq,
        srq: parts.srq.ok_or(Errno::INVALID)?,
        access_key: request.access_key,
        user_index: request.uidx & USER_INDEX,
        scatter,
        enhancements: request.ece_options,
        user_handle,
    })
}

/// Registers the rings, if there are any, and the doorbell record last.
fn register(
    adapter: &Arc<Adapter>,
    kind: QpType,
    request: &CreateQpDriver,
    rings: &Rings,
) -> Result<Vec<UserMemory>, Errno> {
    let mut memory = Vec::new();
    if kind != QpType::XrcReceive {
        if rings.bytes > 0 {
            memory.push(UserMemory::register(adapter, request.buf_addr, rings.bytes, true)?);
        }
        memory.push(UserMemory::register_uncounted(adapter, request.db_addr, DOORBELL, true)?);
    }
    Ok(memory)
}

/// Creates the queue pair in the device. Returns its number, and the enhancements that the device
/// supports.
fn make(
    adapter: &Adapter,
    kind: QpType,
    request: &CreateQpDriver,
    parts: &Parts,
    (rings, memory): (&Rings, &[UserMemory]),
    flags: u64,
) -> Result<(u32, u32), Errno> {
    // As in mlx5_ib: libmlx5 does not expect inline data in other completions.
    let scatter = request.flags & qp_flag::SCATTER_CQE != 0;
    let scatter_received = scatter && matches!(kind, QpType::Rc | QpType::Uc);
    let scatter_sent = scatter
        && matches!(kind, QpType::Rc | QpType::Dci)
        && (flags & SIGNAL_ALL != 0 || request.flags & qp_flag::ALLOW_SCATTER_CQE != 0);
    let ring = if rings.bytes > 0 { memory.first() } else { None };
    let answer = adapter.command::<CreateQpIn>(|create| {
        if let Some(ring) = ring {
            create.set(CreateQpIn::WQ_UMEM_VALID, true).set(CreateQpIn::WQ_UMEM_ID, ring.id());
        }
        if adapter.has_enhancements() {
            create.set(CreateQpIn::ECE, request.ece_options);
        }
        let mut qpc = create.nested(CreateQpIn::QPC);
        qpc.set(Qpc::ST, service_type(kind))
            .set(Qpc::PM_STATE, PathMigration::Migrated)
            .set(Qpc::PD, parts.pd)
            // The kernel sets the default where the device has formats.
            .set(Qpc::TS_FORMAT, TimestampFormat::Default)
            .set(Qpc::NO_SQ, rings.send.is_none())
            .set(Qpc::LOG_SQ_SIZE, rings.send.unwrap_or(0))
            .set(Qpc::UAR_PAGE, request.bfreg_index)
            .set(Qpc::USER_INDEX, request.uidx & USER_INDEX)
            .set(Qpc::CQN_SND, parts.send_cq)
            .set(Qpc::CQN_RCV, parts.receive_cq)
            .set(Qpc::XRCD, parts.xrcd.map_or(0, |(_, number)| number));
        if let Some(doorbell) = memory.last() {
            qpc.set(Qpc::DBR_UMEM_VALID, true).set(Qpc::DBR_UMEM_ID, doorbell.id());
        }
        receive_side(&mut qpc, rings, parts.srq);
        if parts.matching && rings.send.is_none() {
            qpc.set(Qpc::OFFLOAD_TYPE, XrqOffload::Rendezvous);
        }
        if flags & BLOCK_MULTICAST_LOOPBACK != 0 {
            qpc.set(Qpc::BLOCK_LB_MC, true);
        }
        if scatter_received {
            qpc.set(Qpc::CS_RES, RESPONDER[parts.wide[1]]);
        }
        if request.flags & qp_flag::DCI_STREAM != 0 {
            let [log_channels, log_errored] = request.dci_streams;
            qpc.set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, log_channels)
                .set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, log_errored);
        }
        if scatter_sent {
            qpc.set(Qpc::CS_REQ, REQUESTER[parts.wide[0]]);
        }
    })?;
    let created = answer.view::<CreateQpIn>()?;
    Ok((created.get(CreateQpOut::QPN), created.get(CreateQpOut::ECE)))
}

fn receive_side(qpc: &mut ViewMut<'_, Qpc>, rings: &Rings, srq: Option<u32>) {
    match (rings.receive, srq) {
        (_, Some(srq)) => {
            qpc.set(Qpc::RQ_TYPE, ReceiveQueueType::Shared).set(Qpc::SRQN_RMPN_XRQN, srq)
        }
        (Some((log_entries, log_stride)), None) => qpc
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Regular)
            .set(Qpc::LOG_RQ_SIZE, log_entries)
            .set(Qpc::LOG_RQ_STRIDE, log_stride),
        (None, None) => qpc.set(Qpc::RQ_TYPE, ReceiveQueueType::Zero),
    };
}

fn service_type(kind: QpType) -> ServiceType {
    match kind {
        QpType::Rc => ServiceType::Rc,
        QpType::Uc => ServiceType::Uc,
        QpType::Ud => ServiceType::Ud,
        QpType::XrcSend | QpType::XrcReceive => ServiceType::Xrc,
        QpType::Dci | QpType::Dct => ServiceType::Dci,
    }
}

/// OPEN_QP: another handle of an XRC target. Its events go to its creator.
pub(super) fn open(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let request: OpenQp = call.structure(CORE_IN)?;
    if request.qp_type != XRC_RECEIVE {
        return Err(Errno::INVALID);
    }
    let mut state = context.state();
    let domain = state.objects.get::<Domain>(request.pd_handle)?.number;
    let standing = context.adapter.shared().receiver(request.qpn, domain)?;
    let cap = QpCap::new_zeroed();
    let qp = Qp {
        number: request.qpn,
        kind: QpType::XrcReceive,
        xrcd: Some(request.pd_handle),
        cap,
        signal_all: false,
        groups: Vec::new(),
        standing,
        target: None,
        memory: Vec::new(),
    };
    let qpn = request.qpn;
    state.objects.insert_given(&context.adapter, Object::Qp(Box::new(qp)), |qp_handle| {
        call.put(CORE_OUT, OpenQpResponse { qp_handle, qpn, cap, reserved: 0 }.as_bytes())
    })
}
