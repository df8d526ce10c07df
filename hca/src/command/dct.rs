//! CREATE_DCT, QUERY_DCT, DRAIN_DCT, DESTROY_DCT, ARM_DCT_FOR_KEY_VIOLATION.

use std::collections::HashMap;

use barewire_layouts::command::dct::{
    ArmDctIn, CreateDctIn, CreateDctOut, DctState, Dctc, DestroyDctIn, DrainDctIn, QueryDctIn,
    QueryDctOut,
};
use barewire_layouts::command::qp::{AtomicMode, Enhancements, Mtu};
use barewire_layouts::prm::{View, ViewMut};

use super::modify_qp::accepted;
use super::q_counter::counter_set;
use super::{CommandSyndrome, Outcome};
use crate::engine::{Context, Engine, Objects};
use crate::limits;
use crate::object::{Attributes, Dct, Scatter};
use crate::requirements::Requirements;

/// `cs_res` for messages of up to 32 bytes, which targets do not support (mlx5_ifc.h:
/// `MLX5_DCTC_CS_RES_NA`).
const NO_SUCH_SCATTER: u8 = 1;

/// PRM: CREATE_DCT.
pub(super) fn create(
    device: &mut Context<'_>,
    input: View<'_, CreateDctIn>,
    mut output: ViewMut<'_, CreateDctOut>,
) -> Outcome {
    let context = input.nested(CreateDctIn::DCT_CONTEXT_ENTRY);
    let Requirements { lag_ports, no_lag_dct, dc_atomics_of_8, .. } = device.objects.requirements;
    if lag_ports > 0 && no_lag_dct {
        return Err(CommandSyndrome::DctLag);
    }
    // The ports of a bonded card are one port of the network.
    let port = context.get(Dctc::PORT);
    let port = if (1..=lag_ports).contains(&port) { 1 } else { port };
    let at = device.port_index(port).ok_or(CommandSyndrome::DctPort)?;
    let own = device.ports.get(at).map(|port| port.address);
    let objects = &mut *device.objects;
    let pkey_index = context.get(Dctc::PKEY_INDEX);
    let pkey = objects.requirements.partition_key(pkey_index);
    let pkey = pkey.ok_or(CommandSyndrome::DctPkeyIndex)?;
    let gids = objects.gids.get(at).ok_or(CommandSyndrome::DctPort)?;
    let source = gids.address(context.get(Dctc::MY_ADDR_INDEX).into());
    if source.is_none() || source != own {
        return Err(CommandSyndrome::DctGid);
    }
    let mtu = context.get(Dctc::MTU).map(Mtu::bytes).map_err(|_| CommandSyndrome::DctMtu)?;
    if mtu > objects.requirements.path_mtu().bytes() {
        return Err(CommandSyndrome::PortMtu);
    }
    let scatter = match context.get(Dctc::CS_RES) {
        NO_SUCH_SCATTER => None,
        mode => Scatter::new(0, mode),
    };
    let scatter = scatter
        .ok_or(CommandSyndrome::DctScatterToCqe)?
        .restricted(objects.requirements.ignores_cs_res);
    let remote_atomic = context.get(Dctc::RAE);
    let lacks_mode = match context.get(Dctc::ATOMIC_MODE) {
        Err(_) | Ok(AtomicMode::None) => true,
        Ok(AtomicMode::UpTo8) => dc_atomics_of_8,
        Ok(_) => false,
    };
    if remote_atomic && lacks_mode {
        return Err(CommandSyndrome::DctAtomicMode);
    }
    let (pd, cq, srq) =
        (context.get(Dctc::PD), context.get(Dctc::CQN), context.get(Dctc::SRQN_XRQN));
    objects.pds.get(pd).ok_or(CommandSyndrome::UnknownPd)?;
    objects.cqs.get(cq).ok_or(CommandSyndrome::DctUnknownCq)?;
    objects.srqs.get(srq).ok_or(CommandSyndrome::DctUnknownSrq)?;
    let counter_set = counter_set(objects, context.get(Dctc::COUNTER_SET_ID))?;
    let requested = Enhancements::from_bits(context.get(Dctc::ECE));
    let enhancements = accepted(objects.requirements, requested)?.unwrap_or_default();
    let attributes = Attributes {
        port: at,
        pkey_index,
        pkey,
        mtu,
        log_message_max: limits::LOG_MESSAGE_BYTES,
        min_rnr_nak: context.get(Dctc::MIN_RNR_NAK),
        max_responder_depth: 1 << limits::LOG_RESPONDER_RESOURCES,
        remote_read: context.get(Dctc::RRE),
        remote_write: context.get(Dctc::RWE),
        remote_atomic,
        counter_set,
        enhancements,
        ..Attributes::default()
    };
    let (number, _) = objects
        .dcts
        .insert_with(|_| Dct {
            state: DctState::Active,
            pd,
            user_index: context.get(Dctc::USER_INDEX),
            cq,
            srq,
            scatter,
            access_key: context.get(Dctc::DC_ACCESS_KEY),
            attributes,
            violations: 0,
            violation_armed: false,
            connections: HashMap::new(),
            address_index: context.get(Dctc::MY_ADDR_INDEX),
            traffic_class: context.get(Dctc::TCLASS),
            dscp: context.get(Dctc::DSCP),
            priority: context.get(Dctc::ETH_PRIO),
            port: context.get(Dctc::PORT).max(at as u8 + 1),
            hop_limit: context.get(Dctc::HOP_LIMIT),
        })
        .ok_or(CommandSyndrome::NoDcts)?;
    objects.share(Some(srq), true);
    objects.hold_cq(cq);
    objects.hold_pd(pd);
    output.set(CreateDctOut::DCTN, number).set(CreateDctOut::ECE, enhancements.bits());
    Ok(())
}

/// PRM: QUERY_DCT.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryDctIn>,
    mut output: ViewMut<'_, QueryDctOut>,
) -> Outcome {
    let dct = objects.dcts.get(input.get(QueryDctIn::DCTN)).ok_or(CommandSyndrome::UnknownDct)?;
    let attributes = &dct.attributes;
    let mut context = output.nested(QueryDctOut::DCT_CONTEXT_ENTRY);
    context
        .set(Dctc::STATE, dct.state)
        .set(Dctc::USER_INDEX, dct.user_index)
        .set(Dctc::CQN, dct.cq)
        .set(Dctc::COUNTER_SET_ID, attributes.counter_set)
        .set(
            Dctc::ATOMIC_MODE,
            if attributes.remote_atomic { AtomicMode::IbSpec } else { AtomicMode::None },
        )
        .set(Dctc::RRE, attributes.remote_read)
        .set(Dctc::RWE, attributes.remote_write)
        .set(Dctc::RAE, attributes.remote_atomic)
        .set(Dctc::CS_RES, dct.scatter.modes().1)
        .set(Dctc::MIN_RNR_NAK, attributes.min_rnr_nak)
        .set(Dctc::SRQN_XRQN, dct.srq)
        .set(Dctc::PD, dct.pd)
        .set(Dctc::TCLASS, dct.traffic_class)
        .set(Dctc::DSCP, dct.dscp)
        .set(Dctc::ETH_PRIO, dct.priority)
        .set(Dctc::DC_ACCESS_KEY, dct.access_key)
        .set(Dctc::PORT, dct.port)
        .set(Dctc::MY_ADDR_INDEX, dct.address_index)
        .set(Dctc::HOP_LIMIT, dct.hop_limit)
        .set(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT, dct.violations)
        .set(Dctc::ECE, attributes.enhancements.bits());
    if let Some(&mtu) = Mtu::ALL.iter().find(|mtu| mtu.bytes() == attributes.mtu) {
        context.set(Dctc::MTU, mtu);
    }
    Ok(())
}

/// PRM: DRAIN_DCT. An event reports when no connection is left, immediately if there is none.
pub(super) fn drain(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, DrainDctIn>,
) -> Outcome {
    let number = input.get(DrainDctIn::DCTN);
    let dct = device.objects.dcts.get_mut(number).ok_or(CommandSyndrome::UnknownDct)?;
    if dct.state != DctState::Active {
        return Err(CommandSyndrome::DctTransition);
    }
    dct.state = DctState::Draining;
    engine.dct_drained(device, number);
    Ok(())
}

/// PRM: DESTROY_DCT, in any state. Closes the connections and notifies their initiators.
pub(super) fn destroy(
    engine: &mut Engine,
    device: &mut Context<'_>,
    input: View<'_, DestroyDctIn>,
) -> Outcome {
    let number = input.get(DestroyDctIn::DCTN);
    device.objects.dcts.get(number).ok_or(CommandSyndrome::UnknownDct)?;
    engine.dct_closed(device, number);
    device.objects.deaf.remove(&number);
    if let Some(dct) = device.objects.dcts.remove(number) {
        device.objects.share(Some(dct.srq), false);
        device.objects.release_cq(dct.cq);
        device.objects.release_pd(dct.pd);
    }
    Ok(())
}

/// PRM: ARM_DCT_FOR_KEY_VIOLATION.
pub(super) fn arm(objects: &mut Objects, input: View<'_, ArmDctIn>) -> Outcome {
    let dct =
        objects.dcts.get_mut(input.get(ArmDctIn::DCT_NUMBER)).ok_or(CommandSyndrome::UnknownDct)?;
    dct.violation_armed = true;
    Ok(())
}
