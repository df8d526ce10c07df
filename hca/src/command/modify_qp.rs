//! State transitions of queue pairs: RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP, 2ERR_QP, 2RST_QP, and
//! changes within a state: INIT2INIT_QP, RTS2RTS_QP. No public command leads to a draining send
//! queue.

use std::net::IpAddr;

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, Enhancements, ExtendedParameters, Init2InitQpIn, Init2RtrQpIn,
    ModifyQp, ModifyQpOut, Mtu, OptionalParameters, QpState, Qpc, QpcExt, Rst2InitQpIn,
    Rtr2RtsQpIn, Rts2RtsQpIn, ServiceType, ToErrQpIn, ToRstQpIn,
};
use barewire_layouts::prm::{View, ViewMut};

use super::q_counter::counter_set;
use super::{CommandSyndrome, Outcome};
use crate::engine::{Context, Engine, lid_address};
use crate::limits;
use crate::object::{Attributes, PathService};
use crate::requirements::Requirements;

/// PRM: RST2INIT_QP. Sets access rights, port and partition key.
pub(super) fn rst2init(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, Rst2InitQpIn>,
    output: ViewMut<'_, ModifyQpOut>,
) -> Outcome {
    let counter_set =
        counter_set(device.objects, input.nested(Rst2InitQpIn::QPC).get(Qpc::COUNTER_SET_ID));
    let ports = (device.ports.len(), device.objects.requirements);
    step(
        engine,
        device,
        (input, output),
        (QpState::Rst, QpState::Init),
        |context, _, service, attributes| {
            take_port(ports, context, OptionalParameters::all(), service, attributes)?;
            attributes.counter_set = counter_set?;
            attributes.lag_port = context.get(Qpc::LAG_TX_PORT_AFFINITY);
            take_rights(context, OptionalParameters::all(), attributes)
        },
    )
}

/// PRM: INIT2INIT_QP. Sets the same as RST2INIT_QP, if the mask selects it.
pub(super) fn init2init(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, Init2InitQpIn>,
    output: ViewMut<'_, ModifyQpOut>,
) -> Outcome {
    let ports = (device.ports.len(), device.objects.requirements);
    step(
        engine,
        device,
        (input, output),
        (QpState::Init, QpState::Init),
        |context, optional, service, attributes| {
            take_port(ports, context, optional, service, attributes)?;
            take_rights(context, optional, attributes)
        },
    )
}

/// PRM: RTS2RTS_QP. Sets what may change during traffic, if the mask selects it. `extension`: what
/// follows the command.
pub(super) fn rts2rts(
    engine: &mut Engine,
    device: &mut Context<'_>,
    (input, extension): (View<'_, Rts2RtsQpIn>, &[u8]),
    output: ViewMut<'_, ModifyQpOut>,
) -> Outcome {
    if input.get(Rts2RtsQpIn::QPC_EXT) {
        reset_stream(device, input, extension)?;
    }
    let counter_set =
        counter_set(device.objects, input.nested(Rts2RtsQpIn::QPC).get(Qpc::COUNTER_SET_ID));
    step(
        engine,
        device,
        (input, output),
        (QpState::Rts, QpState::Rts),
        |context, optional, service, attributes| {
            if optional.contains(OptionalParameters::COUNTER_SET_ID) {
                attributes.counter_set = counter_set?;
            }
            if optional.contains(OptionalParameters::RNR_TIMEOUT) {
                attributes.min_rnr_nak = context.get(Qpc::MIN_RNR_NAK);
            }
            take_qkey(context, optional, service, attributes);
            take_rights(context, optional, attributes)
        },
    )
}

/// Ends the error state of a stream of a DC initiator, if the mask selects it.
fn reset_stream(
    device: &mut Context<'_>,
    input: View<'_, Rts2RtsQpIn>,
    extension: &[u8],
) -> Outcome {
    let extension = View::<QpcExt>::new(extension).ok_or(CommandSyndrome::InputLength)?;
    let optional =
        ExtendedParameters::from_bits_retain(input.get(Rts2RtsQpIn::OPT_PARAM_MASK_95_32));
    if !optional.contains(ExtendedParameters::DCI_STREAM_CHANNEL_ID) {
        return Ok(());
    }
    let qp = device.objects.qps.get_mut(input.get(Rts2RtsQpIn::QPN));
    let qp = qp.ok_or(CommandSyndrome::UnknownQp)?;
    if qp.state != QpState::Rts {
        return Err(CommandSyndrome::QpTransition);
    }
    let stream = extension.get(QpcExt::DCI_STREAM_CHANNEL_ID);
    if qp.engine.reset_stream(stream) { Ok(()) } else { Err(CommandSyndrome::StreamNotInError) }
}

/// Sets port, partition key and queue key, if their bits are set in `optional`.
fn take_port(
    (ports, requirements): (usize, Requirements),
    context: View<'_, Qpc>,
    optional: OptionalParameters,
    service: ServiceType,
    attributes: &mut Attributes,
) -> Outcome {
    let path = context.nested(Qpc::PRIMARY_ADDRESS_PATH);
    if optional.contains(OptionalParameters::PRIMARY_PORT) {
        let index = usize::from(path.get(AddressPath::VHCA_PORT_NUM)).wrapping_sub(1);
        if index >= ports {
            return Err(CommandSyndrome::Port);
        }
        attributes.port = index;
    }
    if optional.contains(OptionalParameters::PKEY_INDEX) {
        let index = path.get(AddressPath::PKEY_INDEX);
        let key = requirements.partition_key(index).ok_or(CommandSyndrome::PkeyIndex)?;
        (attributes.pkey_index, attributes.pkey) = (index, key);
    }
    take_qkey(context, optional, service, attributes);
    Ok(())
}

/// Sets the queue key of datagrams, if its bit is set in `optional`.
fn take_qkey(
    context: View<'_, Qpc>,
    optional: OptionalParameters,
    service: ServiceType,
    attributes: &mut Attributes,
) {
    if optional.contains(OptionalParameters::Q_KEY) && service == ServiceType::Ud {
        attributes.qkey = context.get(Qpc::Q_KEY);
    }
}

/// PRM: INIT2RTR_QP. Sets the peer and the responder's attributes.
pub(super) fn init2rtr(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, Init2RtrQpIn>,
    output: ViewMut<'_, ModifyQpOut>,
) -> Outcome {
    let path = input.nested(Init2RtrQpIn::QPC).nested(Qpc::PRIMARY_ADDRESS_PATH);
    let at =
        device.objects.qps.get(input.get(Init2RtrQpIn::QPN)).map_or(0, |qp| qp.attributes.port);
    let gids = device.objects.gids.get(at).ok_or(CommandSyndrome::Port)?;
    let source = gids.address(path.get(AddressPath::SRC_ADDR_INDEX).into());
    let own = device.ports.get(at).ok_or(CommandSyndrome::Port)?.address;
    let requirements = device.objects.requirements;
    let roce = device.objects.port_type == PortType::Ethernet;
    step(
        engine,
        device,
        (input, output),
        (QpState::Init, QpState::Rtr),
        |context, optional, service, attributes| {
            match source {
                None => return Err(CommandSyndrome::SourceGid),
                Some(source) if source != own => return Err(CommandSyndrome::SourceAddress),
                Some(_) => {}
            }
            let log_message_max = context.get(Qpc::LOG_MSG_MAX);
            if log_message_max > limits::LOG_MESSAGE_BYTES {
                return Err(CommandSyndrome::MessageMax);
            }
            let log_depth = context.get(Qpc::LOG_RRA_MAX);
            if log_depth > limits::LOG_RESPONDER_RESOURCES {
                return Err(CommandSyndrome::ResponderDepth);
            }
            let (mtu, most) = (context.get(Qpc::MTU), requirements.path_mtu().bytes());
            let mtu = mtu.map(Mtu::bytes).map_err(|_| CommandSyndrome::PathMtu)?;
            // The kernel gives every datagram queue pair the largest MTU.
            if mtu > most && service != ServiceType::Ud {
                return Err(CommandSyndrome::PortMtu);
            }
            attributes.mtu = mtu.min(most);
            if optional.contains(OptionalParameters::LAG_TX_PORT_AFFINITY) {
                attributes.lag_port = context.get(Qpc::LAG_TX_PORT_AFFINITY);
            }
            let lag_ports = requirements.lag_ports;
            if lag_ports > 0 && !(1..=lag_ports).contains(&attributes.lag_port) {
                return Err(CommandSyndrome::LagPort);
            }
            // Datagrams have no peer, and each DC request names its own.
            if !matches!(service, ServiceType::Ud | ServiceType::Dci) {
                attributes.remote_address = peer(own, path).ok_or(CommandSyndrome::RemoteGid)?;
                attributes.remote_qpn = context.get(Qpc::REMOTE_QPN);
                if requirements.global_route && !roce && !path.get(AddressPath::GRH) {
                    return Err(CommandSyndrome::GlobalRoute);
                }
                let port = path.get(AddressPath::UDP_SPORT);
                let (first, last) = requirements.udp_source_ports;
                if roce && !(first..=last).contains(&port) {
                    return Err(CommandSyndrome::UdpSourcePort);
                }
                attributes.udp_source_port = port;
            }
            attributes.service = PathService {
                dscp: path.get(AddressPath::DSCP),
                priority: path.get(AddressPath::ETH_PRIO),
                traffic_class: path.get(AddressPath::TCLASS),
                level: path.get(AddressPath::SL),
                source_index: path.get(AddressPath::SRC_ADDR_INDEX),
                hop_limit: path.get(AddressPath::HOP_LIMIT),
            };
            attributes.log_message_max = log_message_max;
            attributes.max_responder_depth = 1 << log_depth;
            attributes.min_rnr_nak = context.get(Qpc::MIN_RNR_NAK);
            attributes.next_receive_psn = context.get(Qpc::NEXT_RCV_PSN);
            take_rights(context, optional, attributes)
        },
    )
}

/// Returns the address of a path: from its GID or, on InfiniBand without a global route, its LID.
fn peer(own: IpAddr, path: View<'_, AddressPath>) -> Option<IpAddr> {
    let (gid, lid) = (path.array(AddressPath::RGID_RIP), path.get(AddressPath::RLID));
    if gid == [0; 16] && lid != 0 && !path.get(AddressPath::GRH) {
        return Some(lid_address(own, lid));
    }
    crate::address::from_gid(gid)
}

/// PRM: RTR2RTS_QP. Sets the requester's attributes.
pub(super) fn rtr2rts(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, Rtr2RtsQpIn>,
    output: ViewMut<'_, ModifyQpOut>,
) -> Outcome {
    let log_dc_reads = device.objects.requirements.log_dc_reads;
    step(
        engine,
        device,
        (input, output),
        (QpState::Rtr, QpState::Rts),
        |context, optional, service, attributes| {
            let log_depth = context.get(Qpc::LOG_SRA_MAX);
            let most = match service {
                ServiceType::Dci => log_dc_reads,
                _ => limits::LOG_RESPONDER_RESOURCES,
            };
            if log_depth > most {
                return Err(CommandSyndrome::InitiatorDepth);
            }
            attributes.max_initiator_depth = 1 << log_depth;
            attributes.ack_timeout =
                context.nested(Qpc::PRIMARY_ADDRESS_PATH).get(AddressPath::ACK_TIMEOUT);
            attributes.log_ack_frequency = context.get(Qpc::LOG_ACK_REQ_FREQ);
            attributes.retry_count = context.get(Qpc::RETRY_COUNT);
            attributes.rnr_retry = context.get(Qpc::RNR_RETRY);
            attributes.next_send_psn = context.get(Qpc::NEXT_SEND_PSN);
            if optional.contains(OptionalParameters::RNR_TIMEOUT) {
                attributes.min_rnr_nak = context.get(Qpc::MIN_RNR_NAK);
            }
            take_qkey(context, optional, service, attributes);
            take_rights(context, optional, attributes)
        },
    )
}

/// PRM: 2ERR_QP, from any state. A message that was posted before, such as a last one before a
/// disconnection, is sent before it is flushed.
pub(super) fn to_err(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, ToErrQpIn>,
) -> Outcome {
    let qpn = input.get(ToErrQpIn::QPN);
    engine.send_rest(device, qpn);
    go(engine, device, qpn, QpState::Err)
}

/// PRM: 2RST_QP, from any state. Posted WQEs are dropped without a completion.
pub(super) fn to_rst(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, ToRstQpIn>,
) -> Outcome {
    let qpn = input.get(ToRstQpIn::QPN);
    go(engine, device, qpn, QpState::Rst)?;
    if let Some(qp) = device.objects.qps.get_mut(qpn) {
        qp.attributes = Attributes::default();
    }
    Ok(())
}

/// Moves a queue pair to the next state, with the attributes that `take` reads from the context;
/// changes nothing if `take` fails.
fn step<R: ModifyQp>(
    engine: &mut Engine,
    device: &mut Context<'_>,
    (input, mut output): (View<'_, R>, ViewMut<'_, ModifyQpOut>),
    (from, to): (QpState, QpState),
    take: impl FnOnce(View<'_, Qpc>, OptionalParameters, ServiceType, &mut Attributes) -> Outcome,
) -> Outcome {
    let number = input.get(R::QPN);
    let qp = device.objects.qps.get_mut(number).ok_or(CommandSyndrome::UnknownQp)?;
    if qp.state != from {
        return Err(CommandSyndrome::QpTransition);
    }
    let mut attributes = qp.attributes;
    let requested = Enhancements::from_bits(input.get(R::ECE));
    if let Some(accepted) = accepted(device.objects.requirements, requested)? {
        attributes.enhancements = accepted;
    }
    take(
        input.nested(R::QPC),
        OptionalParameters::from_bits_retain(input.get(R::OPT_PARAM_MASK)),
        qp.service,
        &mut attributes,
    )?;
    qp.attributes = attributes;
    output.set(ModifyQpOut::ECE, attributes.enhancements.bits());
    go(engine, device, number, to)
}

/// Returns the enhancements of a queue pair or target that requests them; `None` if it does not.
pub(super) fn accepted(
    requirements: Requirements,
    requested: Enhancements,
) -> Result<Option<Enhancements>, CommandSyndrome> {
    match (requested.bits(), requirements.enhancements) {
        (0, _) => Ok(None),
        (_, Enhancements::NONE) => Err(CommandSyndrome::Enhancements),
        (_, supported) => Ok(Some(requested.common(supported))),
    }
}

/// Sets the state and notifies the engine.
fn go(engine: &mut Engine, device: &mut Context<'_>, number: u32, to: QpState) -> Outcome {
    let qp = device.objects.qps.get_mut(number).ok_or(CommandSyndrome::UnknownQpToEnd)?;
    let from = std::mem::replace(&mut qp.state, to);
    engine.qp_modified(device, number, from);
    Ok(())
}

/// Sets the rights whose bits are set in `optional`.
fn take_rights(
    context: View<'_, Qpc>,
    optional: OptionalParameters,
    attributes: &mut Attributes,
) -> Outcome {
    if optional.contains(OptionalParameters::REMOTE_READ) {
        attributes.remote_read = context.get(Qpc::RRE);
    }
    if optional.contains(OptionalParameters::REMOTE_WRITE) {
        attributes.remote_write = context.get(Qpc::RWE);
    }
    if optional.contains(OptionalParameters::REMOTE_ATOMIC) {
        attributes.remote_atomic = context.get(Qpc::RAE);
        let mode = context.get(Qpc::ATOMIC_MODE).unwrap_or(AtomicMode::None);
        if attributes.remote_atomic && mode == AtomicMode::None {
            return Err(CommandSyndrome::AtomicMode);
        }
        attributes.atomic_mode = mode;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use barewire_layouts::prm::Layout;

    #[test]
    fn rights_that_are_not_meant_stay() {
        let mut bytes = [0; Qpc::BYTES];
        let mut context = ViewMut::<Qpc>::new(&mut bytes).unwrap();
        context.set(Qpc::RRE, true).set(Qpc::RWE, false).set(Qpc::RAE, true);
        let before = Attributes { remote_write: true, ..Attributes::default() };
        let mut attributes = before;
        assert_eq!(
            take_rights(context.view(), OptionalParameters::empty(), &mut attributes),
            Ok(())
        );
        assert_eq!(attributes, before);
        let meant = OptionalParameters::REMOTE_READ | OptionalParameters::REMOTE_WRITE;
        assert_eq!(take_rights(context.view(), meant, &mut attributes), Ok(()));
        assert_eq!(attributes, Attributes { remote_read: true, ..Attributes::default() });
        let refused = take_rights(context.view(), OptionalParameters::all(), &mut attributes);
        assert_eq!(refused, Err(CommandSyndrome::AtomicMode));
        context.set(Qpc::ATOMIC_MODE, AtomicMode::UpTo8);
        assert_eq!(take_rights(context.view(), OptionalParameters::all(), &mut attributes), Ok(()));
        assert!(attributes.remote_atomic);
    }
}
