//! CREATE_RMP, MODIFY_RMP, QUERY_RMP, DESTROY_RMP.

use barewire_layouts::command::rmp::{
    CreateRmpIn, CreateRmpOut, DestroyRmpIn, ModifyRmpIn, QueryRmpIn, QueryRmpOut, RmpState, Rmpc,
    Wq, WqType,
};
use barewire_layouts::command::strides::Strides;
use barewire_layouts::prm::{View, ViewMut};

use super::srq::{Wanted, find, make, set_limit, unmake};
use super::{CommandSyndrome, Outcome};
use crate::engine::Objects;
use crate::object::{Order, Srq, SrqKind};

/// PRM: CREATE_RMP with ring and doorbell record in umems (the valid bits are for the kernel and
/// ignored).
pub(super) fn create(
    objects: &mut Objects,
    input: View<'_, CreateRmpIn>,
    mut output: ViewMut<'_, CreateRmpOut>,
) -> Outcome {
    let context = input.nested(CreateRmpIn::CTX);
    let wq = context.nested(Rmpc::WQ);
    if context.get(Rmpc::STATE) != Ok(RmpState::Ready) {
        return Err(CommandSyndrome::RmpState);
    }
    let header = !context.get(Rmpc::BASIC_CYCLIC_RCV_WQE);
    let number = make(objects, &wanted(SrqKind::Rmp, &wq, header)?)?;
    output.set(CreateRmpOut::RMPN, number);
    Ok(())
}

/// Returns the parameters of a queue of `kind`. `header`: the WQEs of a cyclic one have a header.
pub(super) fn wanted(
    kind: SrqKind,
    wq: &View<'_, Wq>,
    header: bool,
) -> Result<Wanted, CommandSyndrome> {
    if wq.get(Wq::WQ_SIGNATURE) {
        return Err(CommandSyndrome::SrqFeature);
    }
    let kind_of_queue = wq.get(Wq::WQ_TYPE).map_err(|_| CommandSyndrome::RmpType)?;
    let order = match kind_of_queue {
        WqType::LinkedList | WqType::LinkedListStriding => Order::Linked,
        WqType::Cyclic | WqType::CyclicStriding => Order::Cyclic { header },
    };
    let strides = match kind_of_queue {
        WqType::LinkedList | WqType::Cyclic => None,
        WqType::LinkedListStriding | WqType::CyclicStriding => {
            let strides = Strides::read(wq).filter(|_| !wq.get(Wq::TWO_BYTE_SHIFT_EN));
            Some(strides.ok_or(CommandSyndrome::SrqStrides)?)
        }
    };
    Ok(Wanted {
        kind,
        order,
        strides,
        log_entries: wq.get(Wq::LOG_WQ_SZ),
        log_stride: wq.get(Wq::LOG_WQ_STRIDE),
        pd: wq.get(Wq::PD),
        limit: wq.get(Wq::LWM),
        ring_umem: (wq.get(Wq::WQ_UMEM_ID), wq.get(Wq::WQ_UMEM_OFFSET)),
        doorbell_umem: (wq.get(Wq::DBR_UMEM_ID), wq.get(Wq::DBR_ADDR)),
    })
}

fn state(failed: bool) -> RmpState {
    if failed { RmpState::Failed } else { RmpState::Ready }
}

/// PRM: MODIFY_RMP. Sets the limit if the mask selects it.
pub(super) fn modify(objects: &mut Objects, input: View<'_, ModifyRmpIn>) -> Outcome {
    let number = input.get(ModifyRmpIn::RMPN);
    let context = input.nested(ModifyRmpIn::CTX);
    let now = state(find(objects, number, SrqKind::Rmp)?.failed);
    if input.get(ModifyRmpIn::RMP_STATE) != Ok(now) {
        return Err(CommandSyndrome::RmpTransition);
    }
    let next = context.get(Rmpc::STATE).map_err(|_| CommandSyndrome::RmpState)?;
    if input.get(ModifyRmpIn::BITMASK_LWM) {
        set_limit(objects, number, SrqKind::Rmp, context.nested(Rmpc::WQ).get(Wq::LWM))?;
    }
    if let Some(srq) = objects.srqs.get_mut(number) {
        srq.failed = next == RmpState::Failed;
    }
    Ok(())
}

/// PRM: QUERY_RMP.
pub(super) fn query(
    objects: &Objects,
    input: View<'_, QueryRmpIn>,
    mut output: ViewMut<'_, QueryRmpOut>,
) -> Outcome {
    let rmp = find(objects, input.get(QueryRmpIn::RMPN), SrqKind::Rmp)?;
    let mut context = output.nested(QueryRmpOut::RMP_CONTEXT);
    context
        .set(Rmpc::STATE, state(rmp.failed))
        .set(Rmpc::BASIC_CYCLIC_RCV_WQE, rmp.order == Order::Cyclic { header: false });
    describe(rmp, &mut context.nested(Rmpc::WQ));
    Ok(())
}

/// Writes the work queue of a shared receive queue to a context.
pub(super) fn describe(srq: &Srq, wq: &mut ViewMut<'_, Wq>) {
    let strides = srq.striding.map(|striding| striding.strides);
    let kind = match (srq.order, strides) {
        (Order::Linked, None) => WqType::LinkedList,
        (Order::Linked, Some(_)) => WqType::LinkedListStriding,
        (Order::Cyclic { .. }, None) => WqType::Cyclic,
        (Order::Cyclic { .. }, Some(_)) => WqType::CyclicStriding,
    };
    if let Some(strides) = strides {
        strides.write(wq);
    }
    wq.set(Wq::WQ_TYPE, kind)
        .set(Wq::LWM, srq.limit)
        .set(Wq::PD, srq.pd)
        .set(Wq::DBR_ADDR, srq.doorbell_umem.1)
        .set(Wq::HW_COUNTER, srq.taken.into())
        .set(Wq::SW_COUNTER, srq.doorbell.receive().into())
        .set(Wq::LOG_WQ_STRIDE, srq.ring.stride().trailing_zeros() as u8)
        .set(Wq::LOG_WQ_SZ, srq.ring.log_entries().unwrap_or(0))
        .set(Wq::DBR_UMEM_VALID, true)
        .set(Wq::WQ_UMEM_VALID, true)
        .set(Wq::DBR_UMEM_ID, srq.doorbell_umem.0)
        .set(Wq::WQ_UMEM_ID, srq.ring_umem.0)
        .set(Wq::WQ_UMEM_OFFSET, srq.ring_umem.1);
}

/// PRM: DESTROY_RMP.
pub(super) fn destroy(objects: &mut Objects, input: View<'_, DestroyRmpIn>) -> Outcome {
    unmake(objects, input.get(DestroyRmpIn::RMPN), SrqKind::Rmp)
}
