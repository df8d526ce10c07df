//! MODIFY_QP: conversion of verbs attributes to PRM commands.

use barewire_layouts::command::Request;
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, Init2InitQpIn, Init2RtrQpIn, ModifyQp as Modify, ModifyQpOut, Mtu,
    OptionalParameters, Qpc, Rst2InitQpIn, Rtr2RtsQpIn, Rts2RtsQpIn, ToErrQpIn, ToRstQpIn,
};
use barewire_layouts::prm::{Field, Nested, ViewMut};
use barewire_layouts::roce::udp_source_port_within;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{ModifyQp, ModifyQpDriver, ModifyQpDriverResponse, access, driver};
use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::config::Link;
use crate::context::Context;
use crate::elsewhere;
use crate::errno::Errno;
use crate::object::{Qp, Standing};
use crate::qp_type::{QpType, bit, check_move, state};

use super::device::{check_port, check_route};
use super::legacy::CORE_IN;
use super::query_qp::current;
use super::target;

const PSN: u32 = 0x00ff_ffff;
const QPN: u32 = 0x00ff_ffff;
/// log2 of the longest message, as mlx5_ib sets it.
const LOG_LONGEST_MESSAGE: u8 = 30;
/// Largest number of outstanding reads and atomics of a queue pair.
const DEPTH: u8 = 16;
/// Datagrams may be as long as the port's largest MTU.
const DATAGRAM_MTU: Mtu = Mtu::Bytes4096;
const RETRIES: u8 = 7;
const TIMER: u8 = 31;

/// MODIFY_QP.
pub(super) fn modify(context: &Context, call: &Attributes) -> Result<(), Errno> {
    let mut request = ModifyQp::new_zeroed();
    // The extended form has a rate limit in addition, which is not supported.
    let given = call.bytes(CORE_IN)?;
    request
        .as_mut_bytes()
        .copy_from_slice(given.get(..size_of::<ModifyQp>()).ok_or(Errno::INVALID)?);
    // Only the extended form has it.
    let own = if call.has(driver::IN) {
        call.structure(driver::IN)?
    } else {
        ModifyQpDriver::new_zeroed()
    };
    if own.comp_mask != 0 || own.burst != [0; 2] {
        return Err(Errno::UNSUPPORTED);
    }
    let adapter = &context.adapter;
    let mut guard = context.state();
    let qp = &mut **guard.objects.get_mut::<Box<Qp>>(request.qp_handle)?;
    request.attr_mask = qp.kind.meant(request.attr_mask);
    let mask = request.attr_mask;
    let from = current(adapter, qp)?;
    let to = if mask & bit::STATE != 0 { request.qp_state } else { from };
    let claimed = if mask & bit::CURRENT_STATE != 0 { request.cur_qp_state } else { from };
    if claimed != from {
        let (is, claimed) = (state::name(from), state::name(claimed));
        let reason = format_args!("cur_qp_state: the queue pair is in {is}, not {claimed}");
        return Err(Errno::INVALID.because(reason));
    }
    check_move(qp.kind, from, to, mask)?;
    check(adapter, qp, &request)?;
    let attributes = merge(&qp.standing().attributes, &request);
    let number = qp.number;
    let step = Step { adapter, number, enhancements: own.ece_options };
    let mut target = None;
    // The enhancements that the connection uses, in transitions that may set them.
    let enhancements = match (from, to) {
        // The device has no DC target until it is ready to receive.
        (_, state::INIT) if qp.kind == QpType::Dct => None,
        (_, state::RTR) if qp.kind == QpType::Dct => {
            target = Some(target::make(adapter, call, qp, &attributes, own.ece_options)?);
            None
        }
        (state::RESET, state::RESET) => None,
        (_, state::RESET) => {
            adapter.command::<ToRstQpIn>(|input| {
                input.set(ToRstQpIn::QPN, number);
            })?;
            None
        }
        (_, state::ERROR) => {
            adapter.command::<ToErrQpIn>(|input| {
                input.set(ToErrQpIn::QPN, number);
            })?;
            None
        }
        (state::INIT, state::INIT) => Some(init::<Init2InitQpIn>(step, &attributes, mask)?),
        (_, state::INIT) => Some(init::<Rst2InitQpIn>(step, &attributes, mask)?),
        (_, state::RTR) => Some(receive(step, qp, &attributes, mask)?),
        (state::RTR, state::RTS) => Some(send::<Rtr2RtsQpIn>(step, &attributes, mask)?),
        (state::RTS, state::RTS) => Some(send::<Rts2RtsQpIn>(step, &attributes, mask)?),
        _ => return Err(Errno::UNSUPPORTED),
    };
    if let Some(ece_options) = enhancements {
        let response_length = size_of::<ModifyQpDriverResponse>() as u32;
        let response =
            ModifyQpDriverResponse { response_length, dctn: 0, ece_options, reserved: 0 };
        call.put(driver::OUT, response.as_bytes())?;
    }
    *qp.standing() =
        if to == state::RESET { Standing::reset() } else { Standing { state: to, attributes } };
    let number = qp.number;
    if let Some(target) = target {
        target::listen(adapter, &guard, number, &target);
    }
    drop(guard);
    if mask & bit::PATH != 0 && request.dest.is_global != 0 {
        elsewhere::tell(request.dest.dgid);
    }
    Ok(())
}

/// Returns whether the queue pair is to be connected to itself. libmlx5 does so with the queue pair
/// through which it changes lists of tags, and names no global route, even on Ethernet.
fn is_loopback(qp: &Qp, request: &ModifyQp) -> bool {
    qp.number != 0 && request.dest_qp_num == qp.number && request.dest.is_global == 0
}

/// Returns an error for values that the kernel refuses.
fn check(adapter: &Adapter, qp: &Qp, request: &ModifyQp) -> Result<(), Errno> {
    let mask = request.attr_mask;
    let is = |wanted| mask & wanted != 0;
    if is(bit::PORT) {
        check_port(adapter, request.port_num)
            .map_err(|error| error.because("port_num: the device has no such port"))?;
    }
    if is(bit::PATH) {
        let path = &request.dest;
        check_port(adapter, path.port_num)
            .map_err(|error| error.because("ah_attr.port_num: the device has no such port"))?;
        if path.is_global != 0 {
            let (index, peer) = (path.sgid_index, path.dgid);
            let peer = qp.kind.is_connected().then_some(peer);
            check_route(adapter, (path.port_num, index), peer)?;
        } else if adapter.link == Link::Roce && !is_loopback(qp, request) {
            let reason = "ah_attr.is_global: it is 0, and RoCE needs a GID (ping-pongs: -g 0)";
            return Err(Errno::INVALID.because(reason));
        }
    }
    let partitions = adapter.device.requirements().partitions();
    let mtus = Mtu::Bytes256 as u8..=Mtu::Bytes4096 as u8;
    for (attribute, argument, refused) in [
        (bit::MTU, "path_mtu", !mtus.contains(&request.path_mtu)),
        (bit::INITIATOR_DEPTH, "max_rd_atomic", request.max_rd_atomic > DEPTH),
        (bit::RESPONDER_DEPTH, "max_dest_rd_atomic", request.max_dest_rd_atomic > DEPTH),
        (bit::RETRIES, "retry_cnt", request.retry_cnt > RETRIES),
        (bit::RNR_RETRIES, "rnr_retry", request.rnr_retry > RETRIES),
        (bit::TIMEOUT, "timeout", request.timeout > TIMER),
        (bit::RNR_TIMER, "min_rnr_timer", request.min_rnr_timer > TIMER),
        // There is one path.
        (bit::ALTERNATE_PATH, "alt_ah_attr", true),
        (bit::MIGRATION, "path_mig_state", true),
        (bit::PKEY, "pkey_index", request.pkey_index >= partitions),
        (bit::QKEY, "qkey", qp.kind != QpType::Ud),
    ] {
        if is(attribute) && refused {
            let reason = format_args!("{argument}: the device or the queue pair does not take it");
            return Err(Errno::INVALID.because(reason));
        }
    }
    Ok(())
}

/// Merges the attributes that are set now into those set before.
fn merge(before: &ModifyQp, now: &ModifyQp) -> ModifyQp {
    let mut all = *before;
    let mask = now.attr_mask;
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => {
            $(if mask & bit::$bit != 0 { $(all.$field = now.$field;)+ })+
        };
    }
    take! {
        ACCESS: qp_access_flags;
        PKEY: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        PATH: dest;
        MTU: path_mtu;
        TIMEOUT: timeout;
        RETRIES: retry_cnt;
        RNR_RETRIES: rnr_retry;
        RECEIVE_PSN: rq_psn;
        INITIATOR_DEPTH: max_rd_atomic;
        RNR_TIMER: min_rnr_timer;
        SEND_PSN: sq_psn;
        RESPONDER_DEPTH: max_dest_rd_atomic;
        DESTINATION: dest_qp_num;
    }
    all
}

/// Sets the peer's access rights.
fn rights(qpc: &mut ViewMut<'_, Qpc>, attributes: &ModifyQp) {
    let has = |right| attributes.qp_access_flags & right != 0;
    let atomic = has(access::REMOTE_ATOMIC);
    qpc.set(Qpc::RRE, has(access::REMOTE_READ))
        .set(Qpc::RWE, has(access::REMOTE_WRITE))
        .set(Qpc::RAE, atomic)
        .set(Qpc::ATOMIC_MODE, if atomic { AtomicMode::IbSpec } else { AtomicMode::None });
}

const RIGHTS: OptionalParameters = OptionalParameters::REMOTE_READ
    .union(OptionalParameters::REMOTE_WRITE)
    .union(OptionalParameters::REMOTE_ATOMIC);

/// A state transition of queue pair `number`.
#[derive(Clone, Copy)]
struct Step<'a> {
    adapter: &'a Adapter,
    number: u32,
    /// Enhancements to set; 0 for none.
    enhancements: u32,
}

impl Step<'_> {
    /// Executes the transition with the context that `fill` sets. Returns the enhancements that the
    /// connection uses.
    fn run<R: Request<Answer = ModifyQpOut> + Modify>(
        self,
        optional: OptionalParameters,
        fill: impl FnOnce(&mut ViewMut<'_, Qpc>),
    ) -> Result<u32, Errno> {
        let qpn: Field<R> = R::QPN;
        let qpc: Nested<R, Qpc> = R::QPC;
        let answer = self.adapter.command::<R>(|input| {
            input.set(qpn, self.number).set(R::OPT_PARAM_MASK, optional.bits());
            if self.adapter.has_enhancements() {
                input.set(R::ECE, self.enhancements);
            }
            fill(&mut input.nested(qpc));
        })?;
        Ok(answer.view::<R>()?.get(ModifyQpOut::ECE))
    }
}

fn init<R: Request<Answer = ModifyQpOut> + Modify>(
    step: Step<'_>,
    attributes: &ModifyQp,
    mask: u32,
) -> Result<u32, Errno> {
    let Step { adapter, number, .. } = step;
    let mut optional = if mask & bit::ACCESS != 0 { RIGHTS } else { OptionalParameters::empty() };
    optional.set(OptionalParameters::Q_KEY, mask & bit::QKEY != 0);
    optional.set(OptionalParameters::PKEY_INDEX, mask & bit::PKEY != 0);
    step.run::<R>(optional, |qpc| {
        rights(qpc, attributes);
        qpc.set(Qpc::Q_KEY, attributes.qkey);
        qpc.set(Qpc::COUNTER_SET_ID, adapter.spare.counter_set);
        // The kernel spreads queue pairs over the ports (`get_tx_affinity`).
        if let ports @ 1.. = adapter.device.requirements().lag_ports {
            qpc.set(Qpc::LAG_TX_PORT_AFFINITY, 1 + (number % u32::from(ports)) as u8);
        }
        qpc.nested(Qpc::PRIMARY_ADDRESS_PATH)
            .set(AddressPath::PKEY_INDEX, attributes.pkey_index)
            .set(AddressPath::VHCA_PORT_NUM, attributes.port_num);
    })
}

fn receive(step: Step<'_>, qp: &Qp, attributes: &ModifyQp, mask: u32) -> Result<u32, Errno> {
    let adapter = step.adapter;
    let optional = if mask & bit::ACCESS != 0 { RIGHTS } else { OptionalParameters::empty() };
    let datagram = qp.kind == QpType::Ud;
    let mtu = if datagram { Ok(DATAGRAM_MTU) } else { Mtu::try_from(attributes.path_mtu) };
    let mtu = mtu.map_err(|_| Errno::INVALID)?;
    let peer = &attributes.dest;
    // Without a GRH the LID names the peer; the device takes the corresponding GID.
    let gid = if peer.is_global != 0 {
        peer.dgid
    } else if is_loopback(qp, attributes) {
        adapter.own_gid(attributes.port_num)?
    } else {
        adapter.gid_of(attributes.port_num, peer.dlid)?
    };
    let peer_number = attributes.dest_qp_num & QPN;
    let ports = adapter.device.requirements().spread_ports();
    let source_port = udp_source_port_within(qp.number, peer_number, ports);
    step.run::<Init2RtrQpIn>(optional, |qpc| {
        rights(qpc, attributes);
        qpc.set(Qpc::MTU, mtu)
            .set(
                Qpc::LOG_MSG_MAX,
                if datagram { DATAGRAM_MTU.bytes().ilog2() as u8 } else { LOG_LONGEST_MESSAGE },
            )
            .set(Qpc::REMOTE_QPN, peer_number)
            .set(Qpc::LOG_RRA_MAX, log2_up(attributes.max_dest_rd_atomic))
            .set(Qpc::MIN_RNR_NAK, attributes.min_rnr_timer)
            .set(Qpc::NEXT_RCV_PSN, attributes.rq_psn & PSN);
        if !qp.kind.is_connected() {
            return;
        }
        let mut path = qpc.nested(Qpc::PRIMARY_ADDRESS_PATH);
        path.set(AddressPath::GRH, peer.is_global != 0)
            .set(AddressPath::RLID, peer.dlid)
            .set(AddressPath::SRC_ADDR_INDEX, peer.sgid_index)
            .set(AddressPath::HOP_LIMIT, peer.hop_limit)
            .set(AddressPath::TCLASS, peer.traffic_class)
            .set(AddressPath::FLOW_LABEL, peer.flow_label & 0x000f_ffff)
            .set(AddressPath::SL, peer.sl & 0xf)
            .set(AddressPath::UDP_SPORT, source_port)
            .set(AddressPath::VHCA_PORT_NUM, attributes.port_num)
            .set_array(AddressPath::RGID_RIP, gid);
    })
}

/// The kernel's choice (`MLX5_IB_ACK_REQ_FREQ`).
const LOG_ACK_FREQUENCY: u8 = 8;

fn send<R: Request<Answer = ModifyQpOut> + Modify>(
    step: Step<'_>,
    attributes: &ModifyQp,
    mask: u32,
) -> Result<u32, Errno> {
    let mut optional = if mask & bit::ACCESS != 0 { RIGHTS } else { OptionalParameters::empty() };
    optional.set(OptionalParameters::RNR_TIMEOUT, mask & bit::RNR_TIMER != 0);
    optional.set(OptionalParameters::Q_KEY, mask & bit::QKEY != 0);
    step.run::<R>(optional, |qpc| {
        rights(qpc, attributes);
        qpc.set(Qpc::LOG_SRA_MAX, log2_up(attributes.max_rd_atomic))
            .set(Qpc::RETRY_COUNT, attributes.retry_cnt)
            .set(Qpc::LOG_ACK_REQ_FREQ, LOG_ACK_FREQUENCY)
            .set(Qpc::RNR_RETRY, attributes.rnr_retry)
            .set(Qpc::MIN_RNR_NAK, attributes.min_rnr_timer)
            .set(Qpc::NEXT_SEND_PSN, attributes.sq_psn & PSN)
            .set(Qpc::Q_KEY, attributes.qkey)
            .nested(Qpc::PRIMARY_ADDRESS_PATH)
            .set(AddressPath::ACK_TIMEOUT, attributes.timeout);
    })
}

/// Returns log2, rounded up; 0 for 0.
fn log2_up(number: u8) -> u8 {
    u32::from(number).next_power_of_two().ilog2() as u8
}
