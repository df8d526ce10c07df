//! CREATE_EQ, QUERY_EQ, DESTROY_EQ.

use std::sync::Arc;

use barewire_layouts::command::eq::{
    CreateEqIn, CreateEqOut, DestroyEqIn, EQE_BYTES, EqState, EqStatus, Eqc, QueryEqIn, QueryEqOut,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome, ring_window};
use crate::engine::Objects;
use crate::limits;
use crate::object::{Eq, EventChannel};

/// PRM: CREATE_EQ with the ring in a umem (the valid bit is ignored).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateEqIn>,
    mut output: ViewMut<'_, CreateEqOut>,
) -> Outcome {
    let context = input.nested(CreateEqIn::EQ_CONTEXT_ENTRY);
    if context.get(Eqc::EC) {
        return Err(CommandSyndrome::EqFeature);
    }
    let log_size = context.get(Eqc::LOG_EQ_SIZE);
    if log_size > limits::LOG_EQ_ENTRIES {
        return Err(CommandSyndrome::EqSize);
    }
    let ring_umem = input.get(CreateEqIn::EQ_UMEM_ID);
    let ring_offset = input.get(CreateEqIn::EQ_UMEM_OFFSET);
    let ring =
        ring_window(&objects.memory, ring_umem, ring_offset, (EQE_BYTES as u64) << log_size, true)?;
    let uar = context.get(Eqc::UAR_PAGE);
    let page = objects.uars.get_mut(uar).ok_or(CommandSyndrome::UnknownUar)?;
    let channel = EventChannel::new().map_err(|_| CommandSyndrome::NoDescriptor)?;
    let (number, _) = objects
        .events
        .queues
        .insert_with(|_| Eq {
            ring,
            log_size,
            ignore_overrun: context.get(Eqc::OI),
            mask: input.get(CreateEqIn::EVENT_BITMASK_0),
            vector: context.get(Eqc::INTR),
            producer: 0,
            consumer: 0,
            status: EqStatus::Ok,
            state: EqState::Idle,
            channel: Arc::new(channel),
            uar,
            ring_umem,
            users: 0,
        })
        .ok_or(CommandSyndrome::NoEqs)?;
    page.users += 1;
    objects.memory.hold(ring_umem);
    objects.follow_page_faults();
    // Eight bits: `Events` allocates no more.
    output.set(CreateEqOut::EQ_NUMBER, number);
    Ok(())
}

/// PRM: QUERY_EQ.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryEqIn>,
    mut output: ViewMut<'_, QueryEqOut>,
) -> Outcome {
    let number = input.get(QueryEqIn::EQ_NUMBER);
    let eq = objects.events.queues.get(number).ok_or(CommandSyndrome::UnknownEq)?;
    output
        .set(QueryEqOut::EVENT_BITMASK, eq.mask)
        .nested(QueryEqOut::EQ_CONTEXT_ENTRY)
        .set(Eqc::STATUS, eq.status)
        .set(Eqc::OI, eq.ignore_overrun)
        .set(Eqc::ST, eq.state)
        .set(Eqc::LOG_EQ_SIZE, eq.log_size)
        .set(Eqc::UAR_PAGE, eq.uar)
        .set(Eqc::INTR, eq.vector)
        .set(Eqc::CONSUMER_COUNTER, eq.consumer)
        .set(Eqc::PRODUCER_COUNTER, eq.producer & Eq::COUNTER);
    Ok(())
}

/// PRM: DESTROY_EQ. Handles of its channel stay valid, but are not signalled again.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyEqIn>) -> Outcome {
    let number = input.get(DestroyEqIn::EQ_NUMBER);
    if objects.events.queues.get(number).ok_or(CommandSyndrome::UnknownEq)?.users > 0 {
        return Err(CommandSyndrome::EqInUse);
    }
    if let Some(eq) = objects.events.queues.remove(number) {
        objects.memory.release(eq.ring_umem);
        objects.release_uar(eq.uar);
        objects.follow_page_faults();
    }
    Ok(())
}
