//! CREATE_CQ, QUERY_CQ, DESTROY_CQ.

use barewire_layouts::command::cq::{
    CompressionLayout, CqState, CqStatus, Cqc, CreateCqIn, CreateCqOut, DestroyCqIn, QueryCqIn,
    QueryCqOut,
};
use barewire_layouts::cqe::compressed::MiniFormat;
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome, doorbell_window, ring_window};
use crate::engine::Objects;
use crate::limits;
use crate::memory::Window;
use crate::object::{Compression, Cq, Notify, UNARMED};

/// PRM: CREATE_CQ with ring and doorbell record in umems (the valid bits are for the kernel and
/// ignored).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateCqIn>,
    mut output: ViewMut<'_, CreateCqOut>,
) -> Outcome {
    let context = input.nested(CreateCqIn::CQ_CONTEXT);
    if context.get(Cqc::CC) {
        return Err(CommandSyndrome::CqFeature);
    }
    let compression = context.get(Cqc::CQE_COMP_EN).then(|| compression(context)).transpose()?;
    let facts = objects.requirements.adapter.facts();
    let is_enhanced = context.get(Cqc::CQE_COMPRESSION_LAYOUT) == Ok(CompressionLayout::Enhanced);
    if compression.is_some() && is_enhanced && !facts.enhanced_compression {
        return Err(CommandSyndrome::CqCompression);
    }
    let entry = context.get(Cqc::CQE_SZ).map_err(|_| CommandSyndrome::CqEntrySize)?;
    let log_size = context.get(Cqc::LOG_CQ_SIZE);
    if log_size > limits::LOG_CQ_ENTRIES {
        return Err(CommandSyndrome::CqSize);
    }
    let ring_umem = input.get(CreateCqIn::CQ_UMEM_ID);
    let ring_offset = input.get(CreateCqIn::CQ_UMEM_OFFSET);
    let ring = ring_window(
        &objects.memory,
        ring_umem,
        ring_offset,
        (entry.bytes() as u64) << log_size,
        true,
    )?;
    let doorbell_umem = (context.get(Cqc::DBR_UMEM_ID), context.get(Cqc::DBR_ADDR));
    let doorbell = doorbell_window(&objects.memory, doorbell_umem)?;
    let notify = notify(objects, context, doorbell, doorbell_umem)?;
    let eq = notify.as_ref().map(|notify| notify.eq);
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
            compression: compression.map(Box::new),
            status: CqStatus::Ok,
            notify,
            uar: uar_index,
            ring_umem,
            doorbell_umem,
            users: 0,
        })
        .ok_or(CommandSyndrome::NoCqs)?;
    uar.users += 1;
    if let Some(eq) = eq.and_then(|eq| objects.events.queues.get_mut(eq)) {
        eq.users += 1;
        uar.armable.push(number);
    }
    objects.memory.hold(ring_umem);
    objects.memory.hold(doorbell_umem.0);
    output.set(CreateCqOut::CQN, number);
    Ok(())
}

/// Decodes the compression fields of the context.
fn compression(context: View<'_, Cqc>) -> Result<Compression, CommandSyndrome> {
    let layout =
        context.get(Cqc::CQE_COMPRESSION_LAYOUT).map_err(|_| CommandSyndrome::CqCompression)?;
    let format = MiniFormat::from_bits(context.get(Cqc::MINI_CQE_RES_FORMAT));
    Ok(Compression::new(layout, format.ok_or(CommandSyndrome::CqCompression)?))
}

/// Decodes the event fields of the context. With an event queue, the device initialises the
/// record's arm word.
fn notify(
    objects: &Objects,
    context: View<'_, Cqc>,
    doorbell: Window,
    (umem, offset): (u32, u64),
) -> Result<Option<Notify>, CommandSyndrome> {
    let (period, max_count) = (context.get(Cqc::CQ_PERIOD), context.get(Cqc::CQ_MAX_COUNT));
    let eq = match context.get(Cqc::C_EQN) {
        0 => return Ok(None),
        eq => eq,
    };
    objects.events.queues.get(eq).ok_or(CommandSyndrome::CqUnknownEq)?;
    let writable = objects.memory.umem_window(umem, offset, doorbell.len() as u64, true).is_ok();
    let seen = match doorbell.slice(4, 4) {
        Some(word) if writable => {
            word.write(&UNARMED.to_be_bytes());
            UNARMED
        }
        _ => doorbell.load_be32(4),
    };
    Ok(Some(Notify::new(eq, period, max_count, seen)))
}

/// PRM: QUERY_CQ.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryCqIn>,
    mut output: ViewMut<'_, QueryCqOut>,
) -> Outcome {
    let cq = objects.cqs.get(input.get(QueryCqIn::CQN)).ok_or(CommandSyndrome::UnknownCq)?;
    let mut context = output.nested(QueryCqOut::CQ_CONTEXT);
    context
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
    if let Some(compression) = &cq.compression {
        context
            .set(Cqc::CQE_COMP_EN, true)
            .set(Cqc::MINI_CQE_RES_FORMAT, compression.format as u8)
            .set(Cqc::CQE_COMPRESSION_LAYOUT, compression.layout);
    }
    if let Some(notify) = &cq.notify {
        match notify.request() {
            Some(true) => context.set(Cqc::ST, CqState::SolicitedArmed),
            Some(false) => context.set(Cqc::ST, CqState::Armed),
            None if notify.fired() => context.set(Cqc::ST, CqState::Fired),
            None => context.set(Cqc::ST, CqState::Idle),
        };
        context
            .set(Cqc::C_EQN, notify.eq)
            .set(Cqc::CQ_PERIOD, notify.period)
            .set(Cqc::CQ_MAX_COUNT, notify.max_count)
            .set(Cqc::LAST_NOTIFIED_INDEX, notify.last_notified())
            .set(Cqc::LAST_SOLICIT_INDEX, notify.last_solicited());
    }
    Ok(())
}

/// PRM: DESTROY_CQ.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyCqIn>) -> Outcome {
    let number = input.get(DestroyCqIn::CQN);
    if objects.cqs.get(number).ok_or(CommandSyndrome::UnknownCq)?.users > 0 {
        return Err(CommandSyndrome::CqInUse);
    }
    objects.events.end(true, number);
    if let Some(cq) = objects.cqs.remove(number) {
        objects.memory.release(cq.ring_umem);
        objects.memory.release(cq.doorbell_umem.0);
        objects.release_uar(cq.uar);
        if let Some(notify) = &cq.notify {
            objects.release_eq(notify.eq);
            if let Some(uar) = objects.uars.get_mut(cq.uar) {
                uar.armable.retain(|&armable| armable != number);
            }
        }
    }
    Ok(())
}
