//! CREATE_QP, QUERY_QP, DESTROY_QP.

use barewire_layouts::command::qp::{
    AddressPath, CreateQpIn, CreateQpOut, DestroyQpIn, Enhancements, Mtu, PathMigration, QpState,
    Qpc, QueryQpIn, QueryQpOut, ReceiveQueueType, ServiceType, TimestampFormat,
};
use barewire_layouts::command::xrq::XrqOffload;
use barewire_layouts::prm::{View, ViewMut};
use barewire_layouts::wqe::WQEBB;

use super::modify_qp::accepted;
use super::{CommandSyndrome, Outcome, doorbell_window, mcg, ring_window};
use crate::engine::{Context, Engine, Objects, Qp, QpEngine};
use crate::limits;
use crate::memory::Window;
use crate::object::{Attributes, DoorbellRecord, Ring, Scatter, Srq, SrqKind, StreamLimits};

const LOG_WQEBB: u8 = WQEBB.trailing_zeros() as u8;
/// A receive WQE has `16 << log_rq_stride` bytes.
const LOG_STRIDE_UNIT: u8 = 4;

/// The rings of a new queue pair: the receive ring first, the send ring right after it.
struct Rings {
    /// log2 of the entries and of the bytes per entry.
    rq: Option<(u8, u8)>,
    sq: Option<(u8, u8)>,
}

impl Rings {
    fn of(context: View<'_, Qpc>) -> Result<Self, CommandSyndrome> {
        let rq = match context.get(Qpc::RQ_TYPE) {
            Ok(ReceiveQueueType::Regular) => {
                let log_stride = context.get(Qpc::LOG_RQ_STRIDE) + LOG_STRIDE_UNIT;
                if 1 << log_stride > limits::RECEIVE_WQE_BYTES {
                    return Err(CommandSyndrome::ReceiveStride);
                }
                Some((context.get(Qpc::LOG_RQ_SIZE), log_stride))
            }
            Ok(ReceiveQueueType::Zero | ReceiveQueueType::Shared) => None,
            _ => return Err(CommandSyndrome::ReceiveSource),
        };
        let sq = (!context.get(Qpc::NO_SQ)).then(|| (context.get(Qpc::LOG_SQ_SIZE), LOG_WQEBB));
        Ok(Self { rq, sq })
    }

    fn bytes(ring: Option<(u8, u8)>) -> usize {
        ring.map_or(0, |(log_entries, log_stride)| 1 << (log_entries + log_stride))
    }

    fn ring(memory: Window, offset: usize, ring: Option<(u8, u8)>) -> Ring {
        ring.zip(memory.slice(offset, Self::bytes(ring)))
            .map_or(Ring::NONE, |((log_entries, log_stride), memory)| {
                Ring::new(memory, log_entries, log_stride)
            })
    }
}

/// PRM: CREATE_QP with rings and doorbell record in umems. A queue pair without rings names a umem
/// for them only if the command declares it valid, as the kernel's DEVX does in every command (linux
/// devx.c: `devx_set_umem_valid`).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateQpIn>,
    mut output: ViewMut<'_, CreateQpOut>,
) -> Outcome {
    use ServiceType::{Dci, Rc, Uc, Ud, Xrc};
    let context = input.nested(CreateQpIn::QPC);
    let service = context.get(Qpc::ST).map_err(|_| CommandSyndrome::Service)?;
    if !matches!(service, Rc | Uc | Ud | Xrc | Dci) {
        return Err(CommandSyndrome::Service);
    }
    let most = objects.requirements.adapter.facts().log_streams;
    let streams = streams(service, context, most)?;
    if context.get(Qpc::WQ_SIGNATURE) {
        return Err(CommandSyndrome::QpFeature);
    }
    let timestamps = context.get(Qpc::TS_FORMAT);
    if objects.requirements.real_time_clock && timestamps == Ok(TimestampFormat::FreeRunning) {
        return Err(CommandSyndrome::TimestampFormat);
    }
    if objects.qps.len() >= objects.requirements.max_queue_pairs {
        return Err(CommandSyndrome::QpLimit);
    }
    let requested = Enhancements::from_bits(input.get(CreateQpIn::ECE));
    let supported = accepted(objects.requirements, requested)?
        .map_or(Enhancements::NONE, |_| objects.requirements.enhancements);
    let rings = Rings::of(context)?;
    let (rq_bytes, sq_bytes) = (Rings::bytes(rings.rq), Rings::bytes(rings.sq));
    let ring_umem = (input.get(CreateQpIn::WQ_UMEM_ID), input.get(CreateQpIn::WQ_UMEM_OFFSET));
    let doorbell_umem = (context.get(Qpc::DBR_UMEM_ID), context.get(Qpc::DBR_ADDR));
    let ringless = rq_bytes + sq_bytes == 0;
    // An XRC receiver of the kernel has no record either.
    let bare = service == Xrc && ringless && !context.get(Qpc::DBR_UMEM_VALID);
    // Others may have no ring either: they serve one-sided operations of the peer.
    let (memory, ring_umem) = if ringless {
        if input.get(CreateQpIn::WQ_UMEM_VALID) {
            ring_window(&objects.memory, ring_umem.0, ring_umem.1, 0, false)?;
        }
        (Window::EMPTY, (0, 0))
    } else {
        let bytes = (rq_bytes + sq_bytes) as u64;
        (ring_window(&objects.memory, ring_umem.0, ring_umem.1, bytes, false)?, ring_umem)
    };
    let (doorbell, doorbell_umem) = if bare {
        (Window::EMPTY, (0, 0))
    } else {
        (doorbell_window(&objects.memory, doorbell_umem)?, doorbell_umem)
    };
    let doorbell = DoorbellRecord::new(doorbell);
    let (pd, uar) = (context.get(Qpc::PD), context.get(Qpc::UAR_PAGE));
    let (send_cq, receive_cq) = (context.get(Qpc::CQN_SND), context.get(Qpc::CQN_RCV));
    objects.pds.get(pd).ok_or(CommandSyndrome::UnknownPd)?;
    if rings.sq.is_some() {
        objects.uars.get(uar).ok_or(CommandSyndrome::UnknownUar)?;
    }
    objects.cqs.get(send_cq).ok_or(CommandSyndrome::UnknownSendCq)?;
    objects.cqs.get(receive_cq).ok_or(CommandSyndrome::UnknownReceiveCq)?;
    // Packets name the XRC SRQ, and DC initiators receive nothing: the field names an arbitrary
    // queue, which of XRC must be one of an XRC domain.
    let names_queue = context.get(Qpc::RQ_TYPE) == Ok(ReceiveQueueType::Shared);
    let named = context.get(Qpc::SRQN_RMPN_XRQN);
    let is_xrc = |srq: &Srq| srq.kind == SrqKind::Xrc;
    if names_queue && service == Xrc && !objects.srqs.get(named).is_some_and(is_xrc) {
        return Err(CommandSyndrome::XrcQueue);
    }
    let srq = (names_queue && !matches!(service, Xrc | Dci)).then_some(named);
    // A queue pair that only sends needs no XRC domain.
    let xrcd = context.get(Qpc::XRCD);
    let xrcd = (service == Xrc && (xrcd != 0 || context.get(Qpc::NO_SQ))).then_some(xrcd);
    if xrcd.is_some_and(|xrcd| objects.xrcds.get(xrcd).is_none()) {
        return Err(CommandSyndrome::UnknownXrcd);
    }
    if srq.is_some_and(|srq| objects.srqs.get(srq).is_none()) {
        return Err(CommandSyndrome::UnknownSharedQueue);
    }
    if srq.and_then(|srq| objects.srqs.get(srq)).is_some_and(|srq| srq.tags.is_some())
        && service != Rc
    {
        return Err(CommandSyndrome::TagService);
    }
    let offload = context.get(Qpc::OFFLOAD_TYPE).map_err(|_| CommandSyndrome::QpOffload)?;
    let rendezvous = offload == XrqOffload::Rendezvous;
    if rendezvous && rings.sq.is_some() {
        return Err(CommandSyndrome::QpOffloadRing);
    }
    let scatter = Scatter::new(context.get(Qpc::CS_REQ), context.get(Qpc::CS_RES))
        .ok_or(CommandSyndrome::ScatterToCqe)?
        .restricted(objects.requirements.ignores_cs_res);
    let (number, _) = objects
        .qps
        .insert_with(|number| Qp {
            number,
            state: QpState::Rst,
            service,
            pd,
            user_index: context.get(Qpc::USER_INDEX),
            send_cq,
            receive_cq,
            xrcd,
            dct: None,
            srq,
            rendezvous,
            blocks_own: context.get(Qpc::BLOCK_LB_MC),
            scatter,
            streams,
            timestamps: timestamps.unwrap_or(TimestampFormat::FreeRunning),
            uar,
            rq: Rings::ring(memory, 0, rings.rq),
            sq: Rings::ring(memory, rq_bytes, rings.sq),
            doorbell,
            attributes: Attributes::default(),
            ring_umem,
            doorbell_umem,
            engine: QpEngine::default(),
        })
        .ok_or(CommandSyndrome::QpLimit)?;
    objects.share(srq, true);
    objects.use_xrcd(xrcd, true);
    objects.hold_for_qp(pd, uar, [send_cq, receive_cq], [ring_umem.0, doorbell_umem.0]);
    output.set(CreateQpOut::QPN, number).set(CreateQpOut::ECE, supported.bits());
    Ok(())
}

/// Returns the streams of a DC initiator, at most 2^`most`; others have none, whatever the context
/// says.
fn streams(
    service: ServiceType,
    context: View<'_, Qpc>,
    most: u8,
) -> Result<StreamLimits, CommandSyndrome> {
    if service != ServiceType::Dci {
        return Ok(StreamLimits::default());
    }
    let log_channels = context.get(Qpc::LOG_NUM_DCI_STREAM_CHANNELS);
    let log_failed = context.get(Qpc::LOG_NUM_DCI_ERRORED_STREAMS);
    if log_channels > most {
        return Err(CommandSyndrome::StreamChannels);
    }
    if log_failed > most {
        return Err(CommandSyndrome::ErroredStreams);
    }
    Ok(StreamLimits { log_channels, log_failed })
}

/// PRM: QUERY_QP. Packet sequence numbers and counters are the engine's.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryQpIn>,
    mut output: ViewMut<'_, QueryQpOut>,
) -> Outcome {
    let qp = objects.qps.get(input.get(QueryQpIn::QPN)).ok_or(CommandSyndrome::UnknownQp)?;
    let attributes = &qp.attributes;
    let standing = qp.engine.standing();
    output.set(QueryQpOut::ECE, attributes.enhancements.bits());
    let mut context = output.nested(QueryQpOut::QPC);
    context
        .set(Qpc::STATE, qp.state)
        .set(Qpc::ST, qp.service)
        .set(Qpc::PM_STATE, PathMigration::Migrated)
        .set(Qpc::BLOCK_LB_MC, qp.blocks_own)
        .set(Qpc::PD, qp.pd)
        .set(
            Qpc::OFFLOAD_TYPE,
            if qp.rendezvous { XrqOffload::Rendezvous } else { XrqOffload::None },
        )
        .set(Qpc::LOG_MSG_MAX, attributes.log_message_max)
        .set(Qpc::NO_SQ, qp.sq.log_entries().is_none())
        .set(Qpc::LOG_SQ_SIZE, qp.sq.log_entries().unwrap_or(0))
        .set(Qpc::RQ_TYPE, ReceiveQueueType::Zero)
        .set(Qpc::UAR_PAGE, qp.uar)
        .set(Qpc::USER_INDEX, qp.user_index)
        .set(Qpc::REMOTE_QPN, attributes.remote_qpn)
        .set(Qpc::LOG_SRA_MAX, log2(attributes.max_initiator_depth))
        .set(Qpc::LOG_ACK_REQ_FREQ, attributes.log_ack_frequency)
        .set(Qpc::RETRY_COUNT, attributes.retry_count)
        .set(Qpc::RNR_RETRY, attributes.rnr_retry)
        .set(Qpc::NEXT_SEND_PSN, standing.next_send_psn)
        .set(Qpc::LAST_ACKED_PSN, standing.acknowledged_psn)
        .set(Qpc::CQN_SND, qp.send_cq)
        .set(Qpc::LOG_RRA_MAX, log2(attributes.max_responder_depth))
        .set(Qpc::RRE, attributes.remote_read)
        .set(Qpc::RWE, attributes.remote_write)
        .set(Qpc::RAE, attributes.remote_atomic)
        .set(Qpc::ATOMIC_MODE, attributes.atomic_mode)
        .set(Qpc::TS_FORMAT, qp.timestamps)
        .set(Qpc::MIN_RNR_NAK, attributes.min_rnr_nak)
        .set(Qpc::NEXT_RCV_PSN, standing.next_receive_psn)
        .set(Qpc::RMSN, standing.messages_received)
        .set(Qpc::HW_SQ_WQEBB_COUNTER, standing.send_wqebbs)
        .set(Qpc::HW_RQ_COUNTER, standing.receive_wqes.into())
        .set(Qpc::XRCD, qp.xrcd.unwrap_or(0))
        .set(Qpc::CQN_RCV, qp.receive_cq)
        .set(Qpc::Q_KEY, attributes.qkey)
        .set(Qpc::COUNTER_SET_ID, attributes.counter_set)
        .set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, qp.streams.log_channels)
        .set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, qp.streams.log_failed)
        .set(Qpc::LAG_TX_PORT_AFFINITY, attributes.lag_port)
        .set(Qpc::SW_SQ_WQEBB_COUNTER, qp.doorbell.send())
        .set(Qpc::SW_RQ_COUNTER, u32::from(qp.doorbell.receive()))
        .set(Qpc::DBR_UMEM_VALID, true)
        .set(Qpc::DBR_UMEM_ID, qp.doorbell_umem.0)
        .set(Qpc::DBR_ADDR, qp.doorbell_umem.1);
    if let Some(log_entries) = qp.rq.log_entries() {
        context
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Regular)
            .set(Qpc::LOG_RQ_SIZE, log_entries)
            .set(Qpc::LOG_RQ_STRIDE, log2(qp.rq.stride() as u32) - LOG_STRIDE_UNIT);
    }
    if let Some(srq) = qp.srq {
        context.set(Qpc::RQ_TYPE, ReceiveQueueType::Shared).set(Qpc::SRQN_RMPN_XRQN, srq);
    }
    let (requester, responder) = qp.scatter.modes();
    context.set(Qpc::CS_REQ, requester).set(Qpc::CS_RES, responder);
    if let Some(&mtu) = Mtu::ALL.iter().find(|mtu| mtu.bytes() == attributes.mtu) {
        context.set(Qpc::MTU, mtu);
    }
    let mut path = context.nested(Qpc::PRIMARY_ADDRESS_PATH);
    path.set(AddressPath::ACK_TIMEOUT, attributes.ack_timeout)
        .set(AddressPath::UDP_SPORT, attributes.udp_source_port)
        .set(AddressPath::PKEY_INDEX, attributes.pkey_index)
        .set(AddressPath::DSCP, attributes.service.dscp)
        .set(AddressPath::ETH_PRIO, attributes.service.priority)
        .set(AddressPath::TCLASS, attributes.service.traffic_class)
        .set(AddressPath::SL, attributes.service.level)
        .set(AddressPath::SRC_ADDR_INDEX, attributes.service.source_index)
        .set(AddressPath::HOP_LIMIT, attributes.service.hop_limit)
        .set(AddressPath::VHCA_PORT_NUM, attributes.port as u8 + 1);
    if !attributes.remote_address.is_unspecified() {
        path.set(AddressPath::GRH, true)
            .set_array(AddressPath::RGID_RIP, crate::address::gid(attributes.remote_address));
    }
    Ok(())
}

/// Returns log2 of a power of two; 0 for 0, which a context cannot distinguish from 1.
fn log2(number: u32) -> u8 {
    number.checked_ilog2().unwrap_or(0) as u8
}

/// PRM: DESTROY_QP, in any state. Posted WQEs are dropped without a completion, except those of
/// datagrams, which are sent.
pub(super) fn destroy(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, DestroyQpIn>,
) -> Outcome {
    let number = input.get(DestroyQpIn::QPN);
    device.objects.qps.get(number).ok_or(CommandSyndrome::UnknownQpToDestroy)?;
    engine.qp_destroyed(device, number);
    mcg::detach_all(device, number);
    device.objects.deaf.remove(&number);
    device.objects.events.end(false, number);
    if let Some(qp) = device.objects.qps.remove(number) {
        device.objects.share(qp.srq, false);
        device.objects.use_xrcd(qp.xrcd, false);
        let umems = [qp.ring_umem.0, qp.doorbell_umem.0];
        device.objects.release_for_qp(qp.pd, qp.uar, [qp.send_cq, qp.receive_cq], umems);
    }
    Ok(())
}
