//! CREATE_SRQ, QUERY_SRQ, DESTROY_SRQ, ARM_RQ, and code shared with receive memory pools.

use barewire_layouts::command::srq::{
    ArmRqIn, ArmRqKind, CreateSrqIn, CreateSrqOut, DestroySrqIn, QuerySrqIn, QuerySrqOut, SrqState,
    Srqc,
};
use barewire_layouts::command::strides::Strides;
use barewire_layouts::eqe::{Eqe, EventType};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome, doorbell_window, ring_window};
use crate::engine::Objects;
use crate::limits;
use crate::object::{DoorbellRecord, Order, Ring, Srq, SrqKind};

/// log2 of the unit of `log_rq_stride`.
pub(super) const LOG_STRIDE_UNIT: u8 = 4;
/// log2 of the smallest WQE with a header.
const LOG_SMALLEST: u8 = 5;

/// Parameters of a create command.
pub(super) struct Wanted {
    pub(super) kind: SrqKind,
    pub(super) order: Order,
    pub(super) strides: Option<Strides>,
    pub(super) log_entries: u8,
    pub(super) log_stride: u8,
    pub(super) pd: u32,
    pub(super) limit: u16,
    pub(super) ring_umem: (u32, u64),
    pub(super) doorbell_umem: (u32, u64),
}

/// Creates a shared receive queue of either kind and returns its number.
pub(super) fn make(objects: &mut Objects, wanted: &Wanted) -> Result<u32, CommandSyndrome> {
    let Wanted {
        kind,
        order,
        strides,
        log_entries,
        log_stride,
        pd,
        limit,
        ring_umem,
        doorbell_umem,
    } = *wanted;
    if log_entries > limits::LOG_WQ_ENTRIES {
        return Err(CommandSyndrome::SrqSize);
    }
    let smallest =
        if order == (Order::Cyclic { header: false }) { LOG_STRIDE_UNIT } else { LOG_SMALLEST };
    if log_stride < smallest || 1 << log_stride > limits::RECEIVE_WQE_BYTES {
        return Err(CommandSyndrome::SrqStride);
    }
    let segments = strides.map_or(1, Strides::count);
    if order.header_bytes() as u32 + (segments << LOG_STRIDE_UNIT) > 1 << log_stride {
        return Err(CommandSyndrome::SrqStrides);
    }
    let ring = ring_window(
        &objects.memory,
        ring_umem.0,
        ring_umem.1,
        1 << (log_entries + log_stride),
        false,
    )?;
    let doorbell = DoorbellRecord::new(doorbell_window(&objects.memory, doorbell_umem)?);
    let owner = objects.pds.get_mut(pd).ok_or(CommandSyndrome::UnknownPd)?;
    let ring = Ring::new(ring, log_entries, log_stride);
    let (number, _) = objects
        .srqs
        .insert_with(|_| {
            Srq::new(kind, order, (ring, ring_umem), (doorbell, doorbell_umem), (pd, limit))
                .with_strides(strides)
        })
        .ok_or(CommandSyndrome::NoSrqs)?;
    owner.users += 1;
    objects.memory.hold(ring_umem.0);
    objects.memory.hold(doorbell_umem.0);
    Ok(number)
}

/// Returns the queue of that number and kind.
pub(super) fn find(objects: &Objects, number: u32, kind: SrqKind) -> Result<&Srq, CommandSyndrome> {
    objects.srqs.get(number).filter(|srq| srq.kind == kind).ok_or(CommandSyndrome::UnknownSrq)
}

/// Destroys the queue of that number and kind.
pub(super) fn unmake(objects: &mut Objects, number: u32, kind: SrqKind) -> Outcome {
    if find(objects, number, kind)?.users > 0 {
        return Err(CommandSyndrome::SrqInUse);
    }
    if let Some(srq) = objects.srqs.remove(number) {
        objects.memory.release(srq.ring_umem.0);
        objects.memory.release(srq.doorbell_umem.0);
        objects.release_pd(srq.pd);
    }
    Ok(())
}

/// Sets the limit. If fewer WQEs are left already, the event is sent immediately.
pub(super) fn set_limit(objects: &mut Objects, number: u32, kind: SrqKind, limit: u16) -> Outcome {
    if u32::from(limit) > find(objects, number, kind)?.ring.entries() {
        return Err(CommandSyndrome::SrqLimit);
    }
    if let Some(srq) = objects.srqs.get_mut(number) {
        srq.limit = limit;
        if srq.passed_limit() {
            objects.events.tell(EventType::SrqLimit, Eqe::queue(EventType::SrqLimit, number));
        }
    }
    Ok(())
}

/// PRM: CREATE_SRQ with ring and doorbell record in umems (the valid bits are for the kernel and
/// ignored).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateSrqIn>,
    mut output: ViewMut<'_, CreateSrqOut>,
) -> Outcome {
    let context = input.nested(CreateSrqIn::SRQ_CONTEXT_ENTRY);
    if context.get(Srqc::WQ_SIGNATURE) {
        return Err(CommandSyndrome::SrqFeature);
    }
    let number = make(
        objects,
        &Wanted {
            kind: SrqKind::Srq,
            order: Order::Linked,
            strides: None,
            log_entries: context.get(Srqc::LOG_SRQ_SIZE),
            log_stride: context.get(Srqc::LOG_RQ_STRIDE) + LOG_STRIDE_UNIT,
            pd: context.get(Srqc::PD),
            limit: context.get(Srqc::LWM),
            ring_umem: (
                input.get(CreateSrqIn::SRQ_UMEM_ID),
                input.get(CreateSrqIn::SRQ_UMEM_OFFSET),
            ),
            doorbell_umem: (context.get(Srqc::DBR_UMEM_ID), context.get(Srqc::DBR_ADDR)),
        },
    )?;
    output.set(CreateSrqOut::SRQN, number);
    Ok(())
}

/// PRM: QUERY_SRQ.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QuerySrqIn>,
    mut output: ViewMut<'_, QuerySrqOut>,
) -> Outcome {
    let srq = find(objects, input.get(QuerySrqIn::SRQN), SrqKind::Srq)?;
    output
        .nested(QuerySrqOut::SRQ_CONTEXT_ENTRY)
        .set(Srqc::STATE, if srq.failed { SrqState::Failed } else { SrqState::Good })
        .set(Srqc::LOG_SRQ_SIZE, srq.ring.log_entries().unwrap_or(0))
        .set(Srqc::LOG_RQ_STRIDE, srq.ring.stride().trailing_zeros() as u8 - LOG_STRIDE_UNIT)
        .set(Srqc::DBR_UMEM_VALID, true)
        .set(Srqc::DBR_UMEM_ID, srq.doorbell_umem.0)
        .set(Srqc::PD, srq.pd)
        .set(Srqc::LWM, srq.limit)
        .set(Srqc::WQE_CNT, srq.available())
        .set(Srqc::DBR_ADDR, srq.doorbell_umem.1);
    Ok(())
}

/// PRM: DESTROY_SRQ.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroySrqIn>) -> Outcome {
    unmake(objects, input.get(DestroySrqIn::SRQN), SrqKind::Srq)
}

/// PRM: ARM_RQ for a shared receive queue, with or without tag matching.
pub(super) fn arm(objects: &mut Objects, input: View<'_, ArmRqIn>) -> Outcome {
    let kind = match input.get(ArmRqIn::OP_MOD) {
        Ok(ArmRqKind::Srq) => SrqKind::Srq,
        Ok(ArmRqKind::Xrq) => SrqKind::Xrq,
        Err(_) => return Err(CommandSyndrome::UnknownModifier),
    };
    set_limit(objects, input.get(ArmRqIn::SRQ_NUMBER), kind, input.get(ArmRqIn::LWM))
}
