//! CREATE_XRQ, QUERY_XRQ, DESTROY_XRQ, ARM_XRQ.

use barewire_layouts::command::srq::SrqState;
use barewire_layouts::command::xrq::{
    ArmXrqIn, CreateXrqIn, CreateXrqOut, DestroyXrqIn, QueryXrqIn, QueryXrqOut, TagMatchingContext,
    XrqOffload, XrqTopology, Xrqc,
};
use barewire_layouts::prm::{View, ViewMut};

use super::rmp::wanted;
use super::srq::{find, make, set_limit, unmake};
use super::{CommandSyndrome, Outcome};
use crate::engine::{NO_USER_INDEX, Objects};
use crate::object::{SrqKind, Tags};

/// PRM: CREATE_XRQ with ring and doorbell record in umems (the valid bits are for the kernel and
/// ignored).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateXrqIn>,
    mut output: ViewMut<'_, CreateXrqOut>,
) -> Outcome {
    let context = input.nested(CreateXrqIn::XRQ_CONTEXT);
    let (wq, list) =
        (context.nested(Xrqc::WQ), context.nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT));
    if context.get(Xrqc::TOPOLOGY) != Ok(XrqTopology::TagMatching) {
        return Err(CommandSyndrome::XrqTopology);
    }
    let offload = context.get(Xrqc::OFFLOAD).map_err(|_| CommandSyndrome::XrqOffload)?;
    let log_list = list.get(TagMatchingContext::LOG_MATCHING_LIST_SZ);
    if log_list > objects.requirements.log_tags || objects.requirements.log_tags == 0 {
        return Err(CommandSyndrome::XrqListSize);
    }
    if list.get(TagMatchingContext::APPEND_NEXT_INDEX) != 0 {
        return Err(CommandSyndrome::XrqNextIndex);
    }
    let wanted = wanted(SrqKind::Xrq, &wq, true)?;
    let cqn = context.get(Xrqc::CQN);
    objects.cqs.get(cqn).ok_or(CommandSyndrome::XrqUnknownCq)?;
    let number = make(objects, &wanted)?;
    let asked = context.get(Xrqc::USER_INDEX);
    let user_index = if asked == NO_USER_INDEX { number } else { asked };
    let counters =
        (list.get(TagMatchingContext::SW_PHASE_CNT), list.get(TagMatchingContext::HW_PHASE_CNT));
    if let Some(srq) = objects.srqs.get_mut(number) {
        let rendezvous = offload == XrqOffload::Rendezvous;
        srq.tags = Some(Box::new(Tags::new((cqn, user_index), rendezvous, log_list, counters)));
    }
    objects.hold_cq(cqn);
    output.set(CreateXrqOut::XRQN, number);
    Ok(())
}

/// PRM: QUERY_XRQ.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryXrqIn>,
    mut output: ViewMut<'_, QueryXrqOut>,
) -> Outcome {
    let srq = find(objects, input.get(QueryXrqIn::XRQN), SrqKind::Xrq)?;
    let tags = srq.tags.as_ref().ok_or(CommandSyndrome::UnknownSrq)?;
    let offload = if tags.rendezvous { XrqOffload::Rendezvous } else { XrqOffload::None };
    let mut context = output.nested(QueryXrqOut::XRQ_CONTEXT);
    context
        .set(Xrqc::STATE, if srq.failed { SrqState::Failed } else { SrqState::Good })
        .set(Xrqc::TOPOLOGY, XrqTopology::TagMatching)
        .set(Xrqc::OFFLOAD, offload)
        .set(Xrqc::USER_INDEX, tags.user_index)
        .set(Xrqc::CQN, tags.cqn);
    let (software, hardware) = tags.counters();
    context
        .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
        .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, tags.log_entries())
        .set(TagMatchingContext::APPEND_NEXT_INDEX, tags.next())
        .set(TagMatchingContext::SW_PHASE_CNT, software)
        .set(TagMatchingContext::HW_PHASE_CNT, hardware);
    super::rmp::describe(srq, &mut context.nested(Xrqc::WQ));
    Ok(())
}

/// PRM: DESTROY_XRQ. The entries of the list end without a completion.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyXrqIn>) -> Outcome {
    let number = input.get(DestroyXrqIn::XRQN);
    let cqn = find(objects, number, SrqKind::Xrq)?.tags.as_ref().map(|tags| tags.cqn);
    unmake(objects, number, SrqKind::Xrq)?;
    if let Some(cqn) = cqn {
        objects.release_cq(cqn);
    }
    Ok(())
}

/// PRM: ARM_XRQ.
pub(super) fn arm(objects: &mut Objects, input: View<'_, ArmXrqIn>) -> Outcome {
    set_limit(objects, input.get(ArmXrqIn::XRQN), SrqKind::Xrq, input.get(ArmXrqIn::LWM))
}
