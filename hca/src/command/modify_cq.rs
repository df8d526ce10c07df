//! MODIFY_CQ: moderation, overrun ignore, and the move to another ring.

use barewire_layouts::command::cq::{
    CqParameters, CqResize, CqStatus, Cqc, ModifyCqIn, ModifyCqKind,
};
use barewire_layouts::cqe::{Cqe64, CqeOpcode};
use barewire_layouts::prm::View;

use super::{CommandSyndrome, Outcome, ring_window};
use crate::engine::Objects;
use crate::limits;

/// PRM: MODIFY_CQ.
pub(super) fn modify(objects: &mut Objects, now: u64, input: View<'_, ModifyCqIn>) -> Outcome {
    match input.get(ModifyCqIn::OP_MOD).map_err(|_| CommandSyndrome::UnknownModifier)? {
        ModifyCqKind::Modify => parameters(objects, now, input),
        ModifyCqKind::Resize => resize(objects, input),
    }
}

fn parameters(objects: &mut Objects, now: u64, input: View<'_, ModifyCqIn>) -> Outcome {
    let number = input.get(ModifyCqIn::CQN);
    let cq = objects.cqs.get_mut(number).ok_or(CommandSyndrome::UnknownCq)?;
    let selected = CqParameters::from_bits(input.get(ModifyCqIn::FIELD_SELECT))
        .ok_or(CommandSyndrome::CqSelect)?;
    let context = input.nested(ModifyCqIn::CQ_CONTEXT);
    match &mut cq.notify {
        Some(notify) => {
            if selected.contains(CqParameters::PERIOD) {
                notify.period = context.get(Cqc::CQ_PERIOD);
            }
            if selected.contains(CqParameters::MAX_COUNT) {
                notify.max_count = context.get(Cqc::CQ_MAX_COUNT);
            }
        }
        None if selected.intersects(CqParameters::PERIOD | CqParameters::MAX_COUNT) => {
            return Err(CommandSyndrome::CqNoEvents);
        }
        None => {}
    }
    if selected.contains(CqParameters::OVERRUN) {
        cq.ignore_overrun = context.get(Cqc::OI);
    }
    // An event that the old moderation delayed may be due under the new one.
    objects.events.check(number, cq, now);
    Ok(())
}

/// Ends the old ring with an entry that reports the resize, which counts as one, and continues in
/// the new ring: entry n is at index n modulo the new size. Software moves unread entries of the
/// old ring, one index further, before it updates its consumer counter.
fn resize(objects: &mut Objects, input: View<'_, ModifyCqIn>) -> Outcome {
    let number = input.get(ModifyCqIn::CQN);
    let cq = objects.cqs.get(number).ok_or(CommandSyndrome::UnknownCq)?;
    let selected = CqResize::from_bits(input.get(ModifyCqIn::FIELD_SELECT));
    if !selected.is_some_and(|selected| selected.contains(CqResize::LOG_SIZE)) {
        return Err(CommandSyndrome::CqResizeSelect);
    }
    let context = input.nested(ModifyCqIn::CQ_CONTEXT);
    if context.get(Cqc::CQE_SZ) != Ok(cq.entry) {
        return Err(CommandSyndrome::CqEntrySize);
    }
    if cq.status != CqStatus::Ok {
        return Err(CommandSyndrome::CqStopped);
    }
    let log_size = context.get(Cqc::LOG_CQ_SIZE);
    if log_size > limits::LOG_CQ_ENTRIES {
        return Err(CommandSyndrome::CqSize);
    }
    if cq.waiting() >= cq.entries().min(1 << log_size) {
        return Err(CommandSyndrome::CqResizeFull);
    }
    let (umem, offset) = (input.get(ModifyCqIn::CQ_UMEM_ID), input.get(ModifyCqIn::CQ_UMEM_OFFSET));
    let bytes = (cq.entry.bytes() as u64) << log_size;
    let ring = ring_window(&objects.memory, umem, offset, bytes, true)?;
    let Some(cq) = objects.cqs.get_mut(number) else { return Err(CommandSyndrome::UnknownCq) };
    let end = Cqe64 { op_own: (CqeOpcode::Resize as u8) << 4, ..Cqe64::INITIAL };
    // There is room: checked above, and a consumer counter only increases it.
    cq.push(end).map_err(|_| CommandSyndrome::CqResizeFull)?;
    let old = std::mem::replace(&mut cq.ring_umem, umem);
    (cq.ring, cq.log_size) = (ring, log_size);
    objects.memory.hold(umem);
    objects.memory.release(old);
    Ok(())
}
