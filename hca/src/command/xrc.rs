//! ALLOC_XRCD, DEALLOC_XRCD, CREATE_XRC_SRQ, QUERY_XRC_SRQ, DESTROY_XRC_SRQ, ARM_XRC_SRQ.

use barewire_layouts::command::srq::SrqState;
use barewire_layouts::command::xrc::{
    ARM_XRC_SRQ, AllocXrcdOut, ArmXrcSrqIn, CreateXrcSrqIn, CreateXrcSrqOut, DeallocXrcdIn,
    DestroyXrcSrqIn, QueryXrcSrqIn, QueryXrcSrqOut, XrcSrqc,
};
use barewire_layouts::prm::{View, ViewMut};

use super::srq::{LOG_STRIDE_UNIT, Wanted, find, make, set_limit, unmake};
use super::{CommandSyndrome, Outcome};
use crate::engine::{NO_USER_INDEX, Objects};
use crate::object::{Order, SrqKind, Xrc, Xrcd};

/// PRM: ALLOC_XRCD.
pub(super) fn alloc(objects: &mut Objects, mut output: ViewMut<'_, AllocXrcdOut>) -> Outcome {
    let (number, _) =
        objects.xrcds.insert_with(|_| Xrcd::default()).ok_or(CommandSyndrome::NoXrcds)?;
    output.set(AllocXrcdOut::XRCD, number);
    Ok(())
}

/// PRM: DEALLOC_XRCD.
pub(super) fn dealloc(objects: &mut Objects, input: View<'_, DeallocXrcdIn>) -> Outcome {
    let number = input.get(DeallocXrcdIn::XRCD);
    if objects.xrcds.get(number).ok_or(CommandSyndrome::UnknownXrcd)?.users > 0 {
        return Err(CommandSyndrome::XrcdInUse);
    }
    objects.xrcds.remove(number);
    Ok(())
}

/// PRM: CREATE_XRC_SRQ with ring and doorbell record in umems (the valid bits are for the kernel
/// and ignored).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateXrcSrqIn>,
    mut output: ViewMut<'_, CreateXrcSrqOut>,
) -> Outcome {
    let context = input.nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
    if context.get(XrcSrqc::WQ_SIGNATURE) {
        return Err(CommandSyndrome::SrqFeature);
    }
    let (domain, cqn) = (context.get(XrcSrqc::XRCD), context.get(XrcSrqc::CQN));
    objects.xrcds.get(domain).ok_or(CommandSyndrome::UnknownXrcd)?;
    objects.cqs.get(cqn).ok_or(CommandSyndrome::XrcSrqUnknownCq)?;
    let cyclic = context.get(XrcSrqc::BASIC_CYCLIC_RCV_WQE);
    let number = make(
        objects,
        &Wanted {
            kind: SrqKind::Xrc,
            order: if cyclic { Order::Cyclic { header: false } } else { Order::Linked },
            strides: None,
            log_entries: context.get(XrcSrqc::LOG_XRC_SRQ_SIZE),
            log_stride: context.get(XrcSrqc::LOG_RQ_STRIDE) + LOG_STRIDE_UNIT,
            pd: context.get(XrcSrqc::PD),
            limit: context.get(XrcSrqc::LWM),
            ring_umem: (
                input.get(CreateXrcSrqIn::XRC_SRQ_UMEM_ID),
                input.get(CreateXrcSrqIn::XRC_SRQ_UMEM_OFFSET),
            ),
            doorbell_umem: (context.get(XrcSrqc::DBR_UMEM_ID), context.get(XrcSrqc::DBR_ADDR)),
        },
    )?;
    let asked = context.get(XrcSrqc::USER_INDEX);
    let by_number = context.get(XrcSrqc::USER_INDEX_EQUAL_XRC_SRQN) || asked == NO_USER_INDEX;
    let user_index = if by_number { number } else { asked };
    if let Some(srq) = objects.srqs.get_mut(number) {
        srq.xrc = Some(Xrc { domain, cqn, user_index });
    }
    objects.use_xrcd(Some(domain), true);
    objects.hold_cq(cqn);
    output.set(CreateXrcSrqOut::XRC_SRQN, number);
    Ok(())
}

/// PRM: QUERY_XRC_SRQ.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryXrcSrqIn>,
    mut output: ViewMut<'_, QueryXrcSrqOut>,
) -> Outcome {
    let number = input.get(QueryXrcSrqIn::XRC_SRQN);
    let srq = find(objects, number, SrqKind::Xrc)?;
    let mut context = output.nested(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY);
    context
        .set(XrcSrqc::STATE, if srq.failed { SrqState::Failed } else { SrqState::Good })
        .set(XrcSrqc::LOG_XRC_SRQ_SIZE, srq.ring.log_entries().unwrap_or(0))
        .set(XrcSrqc::BASIC_CYCLIC_RCV_WQE, srq.order != Order::Linked)
        .set(XrcSrqc::LOG_RQ_STRIDE, srq.ring.stride().trailing_zeros() as u8 - LOG_STRIDE_UNIT)
        .set(XrcSrqc::DBR_UMEM_VALID, true)
        .set(XrcSrqc::DBR_UMEM_ID, srq.doorbell_umem.0)
        .set(XrcSrqc::PD, srq.pd)
        .set(XrcSrqc::LWM, srq.limit)
        .set(XrcSrqc::WQE_CNT, srq.available())
        .set(XrcSrqc::DBR_ADDR, srq.doorbell_umem.1);
    if let Some(xrc) = srq.xrc {
        context
            .set(XrcSrqc::XRCD, xrc.domain)
            .set(XrcSrqc::CQN, xrc.cqn)
            .set(XrcSrqc::USER_INDEX_EQUAL_XRC_SRQN, xrc.user_index == number)
            .set(XrcSrqc::USER_INDEX, xrc.user_index);
    }
    Ok(())
}

/// PRM: DESTROY_XRC_SRQ. A message being received is dropped.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyXrcSrqIn>) -> Outcome {
    let number = input.get(DestroyXrcSrqIn::XRC_SRQN);
    let xrc = find(objects, number, SrqKind::Xrc)?.xrc;
    unmake(objects, number, SrqKind::Xrc)?;
    if let Some(xrc) = xrc {
        objects.use_xrcd(Some(xrc.domain), false);
        objects.release_cq(xrc.cqn);
    }
    Ok(())
}

/// PRM: ARM_XRC_SRQ.
pub(super) fn arm(objects: &mut Objects, input: View<'_, ArmXrcSrqIn>) -> Outcome {
    if input.get(ArmXrcSrqIn::OP_MOD) != ARM_XRC_SRQ {
        return Err(CommandSyndrome::UnknownModifier);
    }
    set_limit(objects, input.get(ArmXrcSrqIn::XRC_SRQN), SrqKind::Xrc, input.get(ArmXrcSrqIn::LWM))
}
