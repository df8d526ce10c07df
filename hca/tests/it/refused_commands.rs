//! Invalid parameters: each is refused with its own status and syndrome, and the command has no
//! effect.

use crate::support::rig::{CQ_DOORBELL, CQ_RING, MEMORY, QP_DOORBELL, QP_RINGS, Refusal, Rig};
use barewire_hca::{CommandSyndrome as Why, UmemAccess};
use barewire_layouts::command::cq::{Cqc, CreateCqIn};
use barewire_layouts::command::eq::{CreateEqIn, CreateEqOut, DestroyEqIn, Eqc, QueryEqIn};
use barewire_layouts::command::mkey::{CreateMkeyIn, Mkc, QueryMkeyIn, QueryMkeyOut};
use barewire_layouts::command::qp::{
    AddressPath, AtomicMode, CreateQpIn, QpState, Qpc, ReceiveQueueType, ServiceType,
};
use barewire_layouts::command::rmp::{
    CreateRmpIn, CreateRmpOut, DestroyRmpIn, ModifyRmpIn, RmpState, Rmpc, Wq, WqType,
};
use barewire_layouts::command::srq::{ArmRqIn, ArmRqKind, QuerySrqIn};
use barewire_layouts::prm::{Field, Value, ViewMut};

fn refused(why: Why) -> Refusal {
    (why.status(), why)
}

/// A change to one field of a new CQ's context.
fn cqc<T: Value>(field: Field<Cqc, T>, value: T) -> impl FnOnce(&mut ViewMut<'_, CreateCqIn>) {
    move |request| _ = request.nested(CreateCqIn::CQ_CONTEXT).set(field, value)
}

/// A change to one field of a new QP's context.
fn qpc<T: Value>(field: Field<Qpc, T>, value: T) -> impl FnOnce(&mut ViewMut<'_, CreateQpIn>) {
    move |request| _ = request.nested(CreateQpIn::QPC).set(field, value)
}

/// A change to one field of a new memory key's context.
fn mkc<T: Value>(field: Field<Mkc, T>, value: T) -> impl FnOnce(&mut ViewMut<'_, CreateMkeyIn>) {
    move |request| _ = request.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY).set(field, value)
}

fn path<T: Value>(field: Field<AddressPath, T>, value: T) -> impl FnOnce(&mut ViewMut<'_, Qpc>) {
    move |context| _ = context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(field, value)
}

fn context<T: Value>(field: Field<Qpc, T>, value: T) -> impl FnOnce(&mut ViewMut<'_, Qpc>) {
    move |context| _ = context.set(field, value)
}

#[test]
fn bad_move_parameters_are_named() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    let peer = (rig.device.address(), qpn);
    assert_eq!(rig.rst2init(qpn, path(AddressPath::VHCA_PORT_NUM, 2)), Err(refused(Why::Port)));
    assert_eq!(rig.rst2init(qpn, path(AddressPath::PKEY_INDEX, 1)), Err(refused(Why::PkeyIndex)));
    assert_eq!(
        rig.rst2init(qpn, context(Qpc::ATOMIC_MODE, AtomicMode::None)),
        Err(refused(Why::AtomicMode))
    );
    rig.rst2init(qpn, |_| ()).unwrap();

    let to = |change: &dyn Fn(&mut ViewMut<'_, Qpc>)| rig.init2rtr(qpn, peer, change);
    let raw = |byte: usize, value: u8| {
        move |context: &mut ViewMut<'_, Qpc>| context.bytes()[byte] = value
    };
    // Byte 8 holds mtu in its upper three bits and log_msg_max in the others.
    assert_eq!(to(&raw(8, 0b000_11110)), Err(refused(Why::PathMtu)));
    assert_eq!(to(&raw(8, 0b110_11110)), Err(refused(Why::PathMtu)));
    assert_eq!(to(&raw(8, 0b011_11111)), Err(refused(Why::MessageMax)));
    assert_eq!(to(&|c| context(Qpc::LOG_RRA_MAX, 5)(c)), Err(refused(Why::ResponderDepth)));
    assert_eq!(to(&|c| path(AddressPath::SRC_ADDR_INDEX, 2)(c)), Err(refused(Why::SourceGid)));
    for gid in [[0; 16], [0xff; 16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 0, 0, 1]] {
        let set = |context: &mut ViewMut<'_, Qpc>| {
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set_array(AddressPath::RGID_RIP, gid);
        };
        assert_eq!(to(&set), Err(refused(Why::RemoteGid)));
    }
    assert_eq!(rig.state(qpn), QpState::Init);
    to(&|_| ()).unwrap();
    assert_eq!(rig.rtr2rts(qpn, context(Qpc::LOG_SRA_MAX, 5)), Err(refused(Why::InitiatorDepth)));
    rig.rtr2rts(qpn, |_| ()).unwrap();
}

#[test]
fn bad_queue_pairs_are_named() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    // 8 receive WQEs of 64 bytes and 16 WQEBBs of 64.
    let rings = 24 * 64;
    let end = MEMORY as u64;
    let umem_offset = |offset| {
        move |r: &mut ViewMut<'_, CreateQpIn>| _ = r.set(CreateQpIn::WQ_UMEM_OFFSET, offset)
    };
    let umem_id = |id| move |r: &mut ViewMut<'_, CreateQpIn>| _ = r.set(CreateQpIn::WQ_UMEM_ID, id);
    let bad = [
        (rig.create_qp(cqn, qpc(Qpc::ST, ServiceType::Raw)), Why::Service),
        (rig.create_qp(cqn, qpc(Qpc::WQ_SIGNATURE, true)), Why::QpFeature),
        (rig.create_qp(cqn, qpc(Qpc::RQ_TYPE, ReceiveQueueType::Xrc)), Why::ReceiveSource),
        (rig.create_qp(cqn, qpc(Qpc::RQ_TYPE, ReceiveQueueType::Shared)), Why::UnknownSharedQueue),
        (rig.create_qp(cqn, qpc(Qpc::CS_RES, 3)), Why::ScatterToCqe),
        (rig.create_qp(cqn, qpc(Qpc::LOG_RQ_STRIDE, 6)), Why::ReceiveStride),
        (rig.create_qp(cqn, qpc(Qpc::PD, rig.pd + 1)), Why::UnknownPd),
        (rig.create_qp(cqn, qpc(Qpc::UAR_PAGE, rig.uar + 1)), Why::UnknownUar),
        (rig.create_qp(cqn, qpc(Qpc::CQN_SND, cqn + 1)), Why::UnknownSendCq),
        (rig.create_qp(cqn, qpc(Qpc::CQN_RCV, cqn + 1)), Why::UnknownReceiveCq),
        (rig.create_qp(cqn, umem_id(0)), Why::RingUnknownUmem),
        (rig.create_qp(cqn, umem_offset(end - rings + 64)), Why::RingBounds),
        (rig.create_qp(cqn, umem_offset(end)), Why::RingBounds),
        (rig.create_qp(cqn, umem_offset(u64::MAX)), Why::RingBounds),
        (rig.create_qp(cqn, umem_offset(QP_RINGS + 16)), Why::RingAlignment),
        (rig.create_qp(cqn, qpc(Qpc::DBR_UMEM_ID, rig.umem + 1)), Why::DoorbellUnknownUmem),
        (rig.create_qp(cqn, qpc(Qpc::DBR_ADDR, end - 4)), Why::DoorbellBounds),
        (rig.create_qp(cqn, qpc(Qpc::DBR_ADDR, u64::MAX)), Why::DoorbellBounds),
        (rig.create_qp(cqn, qpc(Qpc::DBR_ADDR, QP_DOORBELL + 4)), Why::DoorbellAlignment),
    ];
    for (got, why) in bad {
        assert_eq!(got, Err(refused(why)));
    }
    assert_eq!(rig.device.objects().queue_pairs, 0);
    assert!(rig.guards_intact());
    // Nothing was counted as a user on the way.
    rig.destroy_cq(cqn).unwrap();
    rig.dealloc_pd(rig.pd).unwrap();
    rig.dealloc_uar(rig.uar).unwrap();
    rig.deregister(rig.umem).unwrap();
}

/// The offset of a ring has 6 bits, in units of a 64th of the page.
#[test]
fn a_ring_lies_where_a_64th_of_the_page_starts() {
    let rig = Rig::new();
    rig.device.set_umem_page(rig.umem, 1 << 18);
    let at = |offset| {
        move |r: &mut ViewMut<'_, CreateCqIn>| _ = r.set(CreateCqIn::CQ_UMEM_OFFSET, offset)
    };
    assert_eq!(rig.create_cq(at(CQ_RING + 64)), Err(refused(Why::RingPageOffset)));
    assert_eq!(rig.create_cq(at(2048)), Err(refused(Why::RingPageOffset)));
    let cqn = rig.create_cq(at(4096)).unwrap();
    rig.destroy_cq(cqn).unwrap();
    rig.device.set_umem_page(rig.umem, 4096);
    let cqn = rig.create_cq(at(CQ_RING + 64)).unwrap();
    rig.destroy_cq(cqn).unwrap();
}

#[test]
fn rings_may_touch_the_end_of_their_memory() {
    let rig = Rig::new();
    let cqn = rig
        .create_cq(|request| _ = request.set(CreateCqIn::CQ_UMEM_OFFSET, MEMORY as u64 - 16 * 64));
    let cqn = cqn.unwrap();
    let offset = MEMORY as u64 - 24 * 64;
    rig.create_qp(cqn, |request| _ = request.set(CreateQpIn::WQ_UMEM_OFFSET, offset)).unwrap();
    // A send queue alone, a receive queue alone, neither.
    let none = |request: &mut ViewMut<'_, CreateQpIn>| {
        _ = request.nested(CreateQpIn::QPC).set(Qpc::RQ_TYPE, ReceiveQueueType::Zero);
    };
    let qpn = rig.create_qp(cqn, none).unwrap();
    assert_eq!(
        rig.query_qp(qpn, |context| context.get(Qpc::RQ_TYPE)),
        Ok(Ok(ReceiveQueueType::Zero))
    );
    let qpn = rig.create_qp(cqn, qpc(Qpc::NO_SQ, true)).unwrap();
    assert_eq!(rig.query_qp(qpn, |context| context.get(Qpc::NO_SQ)), Ok(true));
}

#[test]
fn bad_completion_queues_are_named() {
    let rig = Rig::new();
    let end = MEMORY as u64;
    let at = |offset| {
        move |r: &mut ViewMut<'_, CreateCqIn>| _ = r.set(CreateCqIn::CQ_UMEM_OFFSET, offset)
    };
    let raw_size =
        |r: &mut ViewMut<'_, CreateCqIn>| r.nested(CreateCqIn::CQ_CONTEXT).bytes()[1] = 2 << 5;
    let bad = [
        (rig.create_cq(cqc(Cqc::CC, true)), Why::CqFeature),
        (
            rig.create_cq(|create| {
                let mut context = create.nested(CreateCqIn::CQ_CONTEXT);
                context.set(Cqc::CQE_COMP_EN, true).set(Cqc::MINI_CQE_RES_FORMAT, 2);
            }),
            Why::CqCompression,
        ),
        (rig.create_cq(raw_size), Why::CqEntrySize),
        (rig.create_cq(cqc(Cqc::LOG_CQ_SIZE, 23)), Why::CqSize),
        (rig.create_cq(cqc(Cqc::LOG_CQ_SIZE, 22)), Why::RingBounds),
        (rig.create_cq(at(end - 16 * 64 + 64)), Why::RingBounds),
        (rig.create_cq(at(CQ_RING + 8)), Why::RingAlignment),
        (rig.create_cq(|r| _ = r.set(CreateCqIn::CQ_UMEM_ID, 99)), Why::RingUnknownUmem),
        (rig.create_cq(cqc(Cqc::DBR_UMEM_ID, 0)), Why::DoorbellUnknownUmem),
        (rig.create_cq(cqc(Cqc::DBR_ADDR, end)), Why::DoorbellBounds),
        (rig.create_cq(cqc(Cqc::DBR_ADDR, CQ_DOORBELL + 1)), Why::DoorbellAlignment),
        (rig.create_cq(cqc(Cqc::UAR_PAGE, 0)), Why::UnknownUar),
    ];
    for (got, why) in bad {
        assert_eq!(got, Err(refused(why)));
    }
    // The device writes completions: memory that it may only read will not do.
    // SAFETY: the rig's memory outlives the device and is touched through raw pointers only.
    let umem =
        unsafe { rig.device.register_umem(rig.memory, MEMORY, UmemAccess::REMOTE_READ) }.unwrap();
    let got = rig.create_cq(|r| _ = r.set(CreateCqIn::CQ_UMEM_ID, umem));
    assert_eq!(got, Err(refused(Why::RingReadOnly)));
    assert_eq!(rig.device.objects().completion_queues, 0);
    rig.deregister(umem).unwrap();
    rig.deregister(rig.umem).unwrap();
}

#[test]
fn bad_memory_keys_are_named() {
    let rig = Rig::new();
    let end = MEMORY as u64;
    let id =
        |id| move |r: &mut ViewMut<'_, CreateMkeyIn>| _ = r.set(CreateMkeyIn::MKEY_UMEM_ID, id);
    let bad = [
        (rig.create_mkey(0, 1, mkc(Mkc::ACCESS_MODE_1_0, 0)), Why::MkeyMode),
        (rig.create_mkey(0, 1, mkc(Mkc::ACCESS_MODE_1_0, 3)), Why::MkeyNoList),
        (rig.create_mkey(0, 1, mkc(Mkc::ACCESS_MODE_4_2, 1)), Why::MkeyDeviceMemory),
        (rig.create_mkey(0, 1, mkc(Mkc::ACCESS_MODE_4_2, 2)), Why::MkeyMode),
        (rig.create_mkey(0, 1, mkc(Mkc::LENGTH64, true)), Why::MkeyWhole),
        (rig.create_mkey(0, 1, mkc(Mkc::PD, rig.pd + 1)), Why::UnknownPd),
        (rig.create_mkey(0, 2, mkc(Mkc::START_ADDR, u64::MAX)), Why::MkeyAddress),
        (rig.create_mkey(0, end + 1, |_| ()), Why::MkeyBounds),
        (rig.create_mkey(end, 1, |_| ()), Why::MkeyBounds),
        (rig.create_mkey(u64::MAX, 1, mkc(Mkc::START_ADDR, 0)), Why::MkeyBounds),
        (rig.create_mkey(0, 1, id(0)), Why::MkeyUnknownUmem),
    ];
    for (got, why) in bad {
        assert_eq!(got, Err(refused(why)));
    }
    // SAFETY: the rig's memory outlives the device and is touched through raw pointers only.
    let umem =
        unsafe { rig.device.register_umem(rig.memory, MEMORY, UmemAccess::REMOTE_READ) }.unwrap();
    assert_eq!(rig.create_mkey(0, 1, id(umem)), Err(refused(Why::MkeyRights)));
    let read_only = |r: &mut ViewMut<'_, CreateMkeyIn>| {
        id(umem)(r);
        let mut context = r.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        context.set(Mkc::LW, false).set(Mkc::RW, false).set(Mkc::A, false);
    };
    let index = rig.create_mkey(0, end, read_only).unwrap();
    let rights = rig.run::<QueryMkeyIn, _>(
        |request| _ = request.set(QueryMkeyIn::MKEY_INDEX, index),
        |answer| {
            let context = answer.nested(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
            assert_eq!((context.get(Mkc::PD), context.get(Mkc::MKEY_7_0)), (rig.pd, 0x42));
            assert_eq!(context.get(Mkc::LEN), end);
            [Mkc::LR, Mkc::LW, Mkc::RR, Mkc::RW, Mkc::A].map(|right| context.get(right))
        },
    );
    assert_eq!(rights, Ok([true, false, true, false, false]));
    // The whole of the last byte of the address space can be covered.
    rig.create_mkey(0, 1, mkc(Mkc::START_ADDR, u64::MAX)).unwrap();
    assert_eq!(rig.destroy_mkey(index), Ok(()));
    let gone = rig
        .run::<QueryMkeyIn, _>(|request| _ = request.set(QueryMkeyIn::MKEY_INDEX, index), |_| ());
    assert_eq!(gone, Err(refused(Why::UnknownMkey)));
}

#[test]
fn bad_event_queues_are_named() {
    let rig = Rig::new();
    let create = |change: &dyn Fn(&mut ViewMut<'_, CreateEqIn>)| {
        rig.run::<CreateEqIn, _>(
            |request| {
                request
                    .set(CreateEqIn::EQ_UMEM_ID, rig.umem)
                    .set(CreateEqIn::EQ_UMEM_OFFSET, CQ_RING);
                let mut context = request.nested(CreateEqIn::EQ_CONTEXT_ENTRY);
                context.set(Eqc::LOG_EQ_SIZE, 4).set(Eqc::UAR_PAGE, rig.uar);
                change(request);
            },
            |answer| answer.get(CreateEqOut::EQ_NUMBER),
        )
    };
    let context = CreateEqIn::EQ_CONTEXT_ENTRY;
    let bad = [
        (create(&|r| _ = r.nested(context).set(Eqc::EC, true)), Why::EqFeature),
        (create(&|r| _ = r.nested(context).set(Eqc::LOG_EQ_SIZE, 31)), Why::EqSize),
        (create(&|r| _ = r.nested(context).set(Eqc::UAR_PAGE, rig.uar + 1)), Why::UnknownUar),
        (create(&|r| _ = r.set(CreateEqIn::EQ_UMEM_ID, 0)), Why::RingUnknownUmem),
        (create(&|r| _ = r.set(CreateEqIn::EQ_UMEM_OFFSET, MEMORY as u64)), Why::RingBounds),
        (create(&|r| _ = r.set(CreateEqIn::EQ_UMEM_OFFSET, 8)), Why::RingAlignment),
    ];
    for (got, why) in bad {
        assert_eq!(got, Err(refused(why)));
    }
    let eqn = create(&|_| ()).unwrap();
    let destroy =
        |eqn| rig.run::<DestroyEqIn, _>(|r| _ = r.set(DestroyEqIn::EQ_NUMBER, eqn), |_| ());
    let cqn = rig.create_cq(cqc(Cqc::C_EQN, eqn)).unwrap();
    assert_eq!(rig.create_cq(cqc(Cqc::C_EQN, eqn + 1)), Err(refused(Why::CqUnknownEq)));
    assert_eq!(destroy(eqn), Err(refused(Why::EqInUse)));
    rig.destroy_cq(cqn).unwrap();
    assert_eq!((destroy(eqn), destroy(eqn)), (Ok(()), Err(refused(Why::UnknownEq))));
    let query = rig.run::<QueryEqIn, _>(|r| _ = r.set(QueryEqIn::EQ_NUMBER, eqn), |_| ());
    assert_eq!(
        (query, rig.device.event_channel(eqn).is_none()),
        (Err(refused(Why::UnknownEq)), true)
    );
    rig.dealloc_uar(rig.uar).unwrap();
    rig.deregister(rig.umem).unwrap();
}

/// Strides that would fit, but for their number, in the format of the context, or the shift.
fn striding(wq: &mut ViewMut<'_, Wq>, count: u8, shift: bool) {
    wq.set(Wq::WQ_TYPE, WqType::LinkedListStriding)
        .set(Wq::LOG_WQ_STRIDE, 8)
        .set(Wq::LOG_WQE_NUM_OF_STRIDES, count)
        .set(Wq::TWO_BYTE_SHIFT_EN, shift);
}

#[test]
fn bad_shared_receive_queues_are_named() {
    let rig = Rig::new();
    let create = |change: &dyn Fn(&mut ViewMut<'_, Wq>), state| {
        rig.run::<CreateRmpIn, _>(
            |request| {
                let mut context = request.nested(CreateRmpIn::CTX);
                context.set(Rmpc::STATE, state);
                let mut wq = context.nested(Rmpc::WQ);
                wq.set(Wq::WQ_TYPE, WqType::Cyclic)
                    .set(Wq::PD, rig.pd)
                    .set(Wq::LOG_WQ_STRIDE, 5)
                    .set(Wq::LOG_WQ_SZ, 4)
                    .set(Wq::DBR_UMEM_ID, rig.umem)
                    .set(Wq::DBR_ADDR, QP_DOORBELL)
                    .set(Wq::WQ_UMEM_ID, rig.umem)
                    .set(Wq::WQ_UMEM_OFFSET, QP_RINGS);
                change(&mut wq);
            },
            |answer| answer.get(CreateRmpOut::RMPN),
        )
    };
    let ready = RmpState::Ready;
    let bad = [
        (create(&|_| (), RmpState::Failed), Why::RmpState),
        (create(&|wq| _ = wq.set(Wq::WQ_TYPE, WqType::CyclicStriding), ready), Why::SrqStrides),
        (create(&|wq| striding(wq, 9, false), ready), Why::SrqStrides),
        (create(&|wq| striding(wq, 10, true), ready), Why::SrqStrides),
        (create(&|wq| _ = wq.set(Wq::WQ_SIGNATURE, true), ready), Why::SrqFeature),
        (create(&|wq| _ = wq.set(Wq::LOG_WQ_SZ, 16), ready), Why::SrqSize),
        (create(&|wq| _ = wq.set(Wq::LOG_WQ_STRIDE, 4), ready), Why::SrqStride),
        (create(&|wq| _ = wq.set(Wq::LOG_WQ_STRIDE, 15), ready), Why::SrqStride),
        (create(&|wq| _ = wq.set(Wq::PD, rig.pd + 1), ready), Why::UnknownPd),
        (create(&|wq| _ = wq.set(Wq::WQ_UMEM_ID, 0), ready), Why::RingUnknownUmem),
        (create(&|wq| _ = wq.set(Wq::DBR_ADDR, QP_DOORBELL + 4), ready), Why::DoorbellAlignment),
    ];
    for (got, why) in bad {
        assert_eq!(got, Err(refused(why)));
    }
    let strided = create(&|wq| striding(wq, 10, false), ready).unwrap();
    rig.run::<DestroyRmpIn, _>(|r| _ = r.set(DestroyRmpIn::RMPN, strided), |_| ()).unwrap();
    let rmpn = create(&|_| (), ready).unwrap();
    let modify = |from, to, limit| {
        rig.run::<ModifyRmpIn, _>(
            |request| {
                request
                    .set(ModifyRmpIn::RMP_STATE, from)
                    .set(ModifyRmpIn::RMPN, rmpn)
                    .set(ModifyRmpIn::BITMASK_LWM, true);
                let mut context = request.nested(ModifyRmpIn::CTX);
                context.set(Rmpc::STATE, to).nested(Rmpc::WQ).set(Wq::LWM, limit);
            },
            |_| (),
        )
    };
    assert_eq!(modify(RmpState::Failed, ready, 0), Err(refused(Why::RmpTransition)));
    assert_eq!(modify(ready, ready, 17), Err(refused(Why::SrqLimit)));
    assert_eq!(modify(ready, RmpState::Failed, 0), Ok(()));
    assert_eq!(modify(RmpState::Failed, ready, 16), Ok(()));
    let arm = |kind| {
        let fill = |r: &mut ViewMut<'_, ArmRqIn>| {
            r.set(ArmRqIn::OP_MOD, kind).set(ArmRqIn::SRQ_NUMBER, rmpn);
        };
        rig.run::<ArmRqIn, _>(fill, |_| ())
    };
    assert_eq!(arm(ArmRqKind::Srq), Err(refused(Why::UnknownSrq)));
    assert_eq!(arm(ArmRqKind::Xrq), Err(refused(Why::UnknownSrq)));
    let query = rig.run::<QuerySrqIn, _>(|r| _ = r.set(QuerySrqIn::SRQN, rmpn), |_| ());
    assert_eq!(query, Err(refused(Why::UnknownSrq)));
    let destroy = || rig.run::<DestroyRmpIn, _>(|r| _ = r.set(DestroyRmpIn::RMPN, rmpn), |_| ());
    assert_eq!((destroy(), destroy()), (Ok(()), Err(refused(Why::UnknownSrq))));
    rig.dealloc_pd(rig.pd).unwrap();
    rig.deregister(rig.umem).unwrap();
}
