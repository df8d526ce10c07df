//! Targets of the dynamically connected transport (CREATE_DCT).

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::dct::{CreateDctIn, CreateDctOut, Dctc};
use barewire_layouts::command::qp::{AtomicMode, Mtu};

use crate::channel::{Command, CommandChannel, Object};
use crate::error::Error;
use crate::values::{Access, Port};

/// A target that is asked for.
pub(crate) struct TargetWanted<'a> {
    pub(crate) domain: u32,
    pub(crate) completions: u32,
    pub(crate) shared_receive: u32,
    pub(crate) port: &'a Port,
    pub(crate) access: Access,
    pub(crate) masked_atomics: bool,
    pub(crate) key: u64,
    pub(crate) mtu: Mtu,
    pub(crate) min_rnr_nak: u8,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) port_type: PortType,
    /// A number that differs from target to target, for the choice of a bonded port.
    pub(crate) turn: u8,
    pub(crate) full_handshake: bool,
    pub(crate) user_index: u32,
}

/// Creates a target. Returns the object and its number.
pub(crate) fn create_target(
    channel: &dyn CommandChannel,
    wanted: &TargetWanted<'_>,
) -> Result<(Box<dyn Object>, u32), Error> {
    let atomic = wanted.access.contains(Access::REMOTE_ATOMIC);
    let mode = match (atomic, wanted.masked_atomics) {
        (false, _) => AtomicMode::None,
        (true, false) => AtomicMode::IbSpec,
        (true, true) => AtomicMode::UpTo8,
    };
    let Port { number, lag_ports, counter_set, uses_udp, .. } = *wanted.port;
    // Through one port of a bonded card, half of it would be idle.
    let port = wanted.turn.checked_rem(lag_ports).map_or(number, |at| at + 1);
    let (dscp, priority) = match wanted.port_type {
        PortType::Ethernet if uses_udp => (wanted.traffic_class >> 2, wanted.service_level & 7),
        PortType::Ethernet => (0, wanted.service_level & 7),
        PortType::InfiniBand => (0, 0),
    };
    let mut create = Command::<CreateDctIn>::new();
    create
        .fields()
        .nested(CreateDctIn::DCT_CONTEXT_ENTRY)
        .set(Dctc::COUNTER_SET_ID, counter_set)
        .set(Dctc::DSCP, dscp)
        .set(Dctc::ETH_PRIO, priority)
        .set(Dctc::USER_INDEX, wanted.user_index)
        .set(Dctc::CQN, wanted.completions)
        .set(Dctc::ATOMIC_MODE, mode)
        .set(Dctc::RRE, wanted.access.contains(Access::REMOTE_READ))
        .set(Dctc::RWE, wanted.access.contains(Access::REMOTE_WRITE))
        .set(Dctc::RAE, atomic)
        .set(Dctc::FORCE_FULL_HANDSHAKE, wanted.full_handshake)
        .set(Dctc::MIN_RNR_NAK, wanted.min_rnr_nak)
        .set(Dctc::SRQN_XRQN, wanted.shared_receive)
        .set(Dctc::PD, wanted.domain)
        .set(Dctc::TCLASS, wanted.traffic_class)
        .set(Dctc::DC_ACCESS_KEY, wanted.key)
        .set(Dctc::MTU, wanted.mtu)
        .set(Dctc::PORT, port)
        .set(Dctc::PKEY_INDEX, wanted.port.partition_index)
        .set(Dctc::MY_ADDR_INDEX, wanted.port.gid_index)
        .set(Dctc::HOP_LIMIT, 64);
    let (object, answer) = create.create(channel)?;
    let number = answer.fields().get(CreateDctOut::DCTN);
    Ok((object, number))
}
