//! CREATE_CQ, QUERY_CQ, DESTROY_CQ.

use barewire_layouts::command::cq::{
    CqStatus, Cqc, CreateCqIn, CreateCqOut, DestroyCqIn, QueryCqIn, QueryCqOut,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome, doorbell_window, ring_window};
use crate::limits;
use crate::object::{Cq, Objects};

/// PRM: CREATE_CQ with ring and doorbell record in umems (the valid bits are the kernel's business and not looked at).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateCqIn>,
    mut output: ViewMut<'_, CreateCqOut>,
) -> Outcome {
    let context = input.nested(CreateCqIn::CQ_CONTEXT);
    if context.get(Cqc::CC) || context.get(Cqc::CQE_COMP_EN) {
        return Err(CommandSyndrome::CqFeature);
    }
    let entry = context.get(Cqc::CQE_SZ).map_err(|_| CommandSyndrome::CqEntrySize)?;
    let log_size = context.get(Cqc::LOG_CQ_SIZE);
    if log_size > limits::LOG_CQ_ENTRIES {
        return Err(CommandSyndrome::CqSize);
    }
    let ring_umem = input.get(CreateCqIn::CQ_UMEM_ID);
    let ring_offset = input.get(CreateCqIn::CQ_UMEM_OFFSET);
    let ring =
        ring_window(&objects.memory, ring_umem, ring_offset, (entry.bytes() as u64) << log_size, true)?;
    let doorbell_umem = (context.get(Cqc::DBR_UMEM_ID), context.get(Cqc::DBR_ADDR));
    let doorbell = doorbell_window(&objects.memory, doorbell_umem)?;
    let uar_index = context.get(Cqc::UAR_PAGE);
    let uar = objects.uars.get_mut(uar_index).ok_or(CommandSyndrome::UnknownUar)?;
    let (number, _) = objects
        .cqs
        .insert_with(|_| Cq {
            ring,
            doorbell,
            log_size,
            entry,
            ignore_overrun: context.get(Cqc::OI),
            producer: 0,
            status: CqStatus::Ok,
            uar: uar_index,
            ring_umem,
            doorbell_umem,
            users: 0,
        })
        .ok_or(CommandSyndrome::NoCqs)?;
    uar.users += 1;
    objects.memory.hold(ring_umem);
    objects.memory.hold(doorbell_umem.0);
    output.set(CreateCqOut::CQN, number);
    Ok(())
}

/// PRM: QUERY_CQ.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryCqIn>,
    mut output: ViewMut<'_, QueryCqOut>,
) -> Outcome {
    let cq = objects.cqs.get(input.get(QueryCqIn::CQN)).ok_or(CommandSyndrome::UnknownCq)?;
    output
        .nested(QueryCqOut::CQ_CONTEXT)
        .set(Cqc::STATUS, cq.status)
        .set(Cqc::DBR_UMEM_VALID, true)
        .set(Cqc::CQE_SZ, cq.entry)
        .set(Cqc::OI, cq.ignore_overrun)
        .set(Cqc::DBR_UMEM_ID, cq.doorbell_umem.0)
        .set(Cqc::LOG_CQ_SIZE, cq.log_size)
        .set(Cqc::UAR_PAGE, cq.uar)
        .set(Cqc::CONSUMER_COUNTER, cq.consumer())
        .set(Cqc::PRODUCER_COUNTER, cq.producer & Cq::COUNTER)
        .set(Cqc::DBR_ADDR, cq.doorbell_umem.1);
    Ok(())
}

/// PRM: DESTROY_CQ.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyCqIn>) -> Outcome {
    let number = input.get(DestroyCqIn::CQN);
    if objects.cqs.get(number).ok_or(CommandSyndrome::UnknownCq)?.users > 0 {
        return Err(CommandSyndrome::CqInUse);
    }
    if let Some(cq) = objects.cqs.remove(number) {
        objects.memory.release(cq.ring_umem);
        objects.memory.release(cq.doorbell_umem.0);
        objects.release_uar(cq.uar);
    }
    Ok(())
}
