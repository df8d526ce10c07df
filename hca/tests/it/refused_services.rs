//! Invalid parameters of extended reliable and dynamic connections: each is refused with its own
//! status and syndrome.

use crate::support::rig::{Refusal, Rig};
use barewire_hca::{CommandSyndrome as Why, ObjectCounts};
use barewire_layouts::command::dct::Dctc;
use barewire_layouts::command::qp::{AtomicMode, CreateQpIn, Qpc, ReceiveQueueType, ServiceType};
use barewire_layouts::command::xrc::{ARM_XRC_SRQ, XrcSrqc};
use barewire_layouts::command::xrq::XrqOffload;
use barewire_layouts::prm::ViewMut;

fn refused<T>(why: Why) -> Result<T, Refusal> {
    Err((why.status(), why))
}

#[test]
fn bad_targets_are_named() {
    let rig = Rig::new();
    let (cqn, rmpn) = (rig.create_cq(|_| ()).unwrap(), rig.create_rmp().unwrap());
    let before = rig.device.objects();
    let create = |change: &dyn Fn(&mut ViewMut<'_, Dctc>)| rig.create_dct(cqn, rmpn, change);
    for (got, why) in [
        (create(&|context| _ = context.set(Dctc::PORT, 2)), Why::DctPort),
        (create(&|context| _ = context.set(Dctc::PKEY_INDEX, 1)), Why::DctPkeyIndex),
        (create(&|context| _ = context.set(Dctc::MY_ADDR_INDEX, 0xff)), Why::DctGid),
        (create(&|context| _ = context.set(Dctc::MY_ADDR_INDEX, 2)), Why::DctGid),
        (create(&|context| _ = context.set(Dctc::COUNTER_SET_ID, 9)), Why::UnknownCounterSet),
        // The low three bits of byte 40.
        (create(&|context| context.bytes()[40] = 0), Why::DctMtu),
        (create(&|context| context.bytes()[40] = 6), Why::DctMtu),
        (create(&|context| _ = context.set(Dctc::CS_RES, 1)), Why::DctScatterToCqe),
        (create(&|context| _ = context.set(Dctc::CS_RES, 3)), Why::DctScatterToCqe),
        (create(&|context| _ = context.set(Dctc::RAE, true)), Why::DctAtomicMode),
        (create(&|context| _ = context.set(Dctc::PD, rig.pd + 1)), Why::UnknownPd),
        (create(&|context| _ = context.set(Dctc::CQN, cqn + 1)), Why::DctUnknownCq),
        (create(&|context| _ = context.set(Dctc::SRQN_XRQN, 0)), Why::DctUnknownSrq),
    ] {
        assert_eq!(got, refused(why));
    }
    assert_eq!(rig.device.objects(), before);
    let dctn = create(&|context| {
        context
            .set(Dctc::RAE, true)
            .set(Dctc::ATOMIC_MODE, AtomicMode::IbSpec)
            .set(Dctc::CS_RES, 2);
    });
    let dctn = dctn.unwrap();
    // What a target uses stays.
    assert_eq!(rig.destroy_cq(cqn), refused(Why::CqInUse));
    assert_eq!(rig.dealloc_pd(rig.pd), refused(Why::PdInUse));
    assert_eq!((rig.query_dct(dctn), rig.arm_dct(dctn)), (Ok(()), Ok(())));
    assert_eq!((rig.drain_dct(dctn), rig.drain_dct(dctn)), (Ok(()), refused(Why::DctTransition)));
    assert_eq!((rig.destroy_dct(dctn), rig.destroy_dct(dctn)), (Ok(()), refused(Why::UnknownDct)));
    for got in [rig.query_dct(dctn), rig.arm_dct(dctn), rig.drain_dct(dctn)] {
        assert_eq!(got, refused(Why::UnknownDct));
    }
    assert_eq!((rig.device.objects(), rig.destroy_cq(cqn)), (before, Ok(())));
}

#[test]
fn there_are_so_many_targets_and_domains() {
    let rig = Rig::new();
    let (cqn, rmpn) = (rig.create_cq(|_| ()).unwrap(), rig.create_rmp().unwrap());
    for _ in 0..1024 {
        rig.create_dct(cqn, rmpn, |_| ()).unwrap();
        rig.alloc_xrcd().unwrap();
    }
    assert_eq!(rig.create_dct(cqn, rmpn, |_| ()), refused(Why::NoDcts));
    assert_eq!(rig.alloc_xrcd(), refused(Why::NoXrcds));
}

#[test]
fn bad_shared_queues_of_a_domain_are_named() {
    let rig = Rig::new();
    let (cqn, xrcd) = (rig.create_cq(|_| ()).unwrap(), rig.alloc_xrcd().unwrap());
    let before = rig.device.objects();
    let create = |change: &dyn Fn(&mut ViewMut<'_, XrcSrqc>)| rig.create_xrc_srq(xrcd, cqn, change);
    for (got, why) in [
        (create(&|context| _ = context.set(XrcSrqc::WQ_SIGNATURE, true)), Why::SrqFeature),
        (create(&|context| _ = context.set(XrcSrqc::XRCD, xrcd + 1)), Why::UnknownXrcd),
        (create(&|context| _ = context.set(XrcSrqc::CQN, cqn + 1)), Why::XrcSrqUnknownCq),
        (create(&|context| _ = context.set(XrcSrqc::PD, rig.pd + 1)), Why::UnknownPd),
        // A list needs room for its header.
        (create(&|context| _ = context.set(XrcSrqc::LOG_RQ_STRIDE, 0)), Why::SrqStride),
        (create(&|context| _ = context.set(XrcSrqc::DBR_ADDR, 4)), Why::DoorbellAlignment),
        (create(&|context| _ = context.set(XrcSrqc::DBR_UMEM_ID, 0)), Why::DoorbellUnknownUmem),
    ] {
        assert_eq!(got, refused(why));
    }
    assert_eq!(rig.device.objects(), before);
    let srqn = create(&|context| {
        context.set(XrcSrqc::LOG_RQ_STRIDE, 0).set(XrcSrqc::BASIC_CYCLIC_RCV_WQE, true);
    });
    let srqn = srqn.unwrap();
    assert_eq!(rig.dealloc_xrcd(xrcd), refused(Why::XrcdInUse));
    assert_eq!(rig.destroy_cq(cqn), refused(Why::CqInUse));
    assert_eq!(rig.arm_xrc_srq(srqn, 0, 1), refused(Why::UnknownModifier));
    assert_eq!(rig.arm_xrc_srq(srqn, ARM_XRC_SRQ, 17), refused(Why::SrqLimit));
    assert_eq!(rig.arm_xrc_srq(srqn, ARM_XRC_SRQ, 16), Ok(()));
    // The commands of one kind of queue do not know the others.
    let rmpn = rig.create_rmp().unwrap();
    assert_eq!(
        (rig.query_xrc_srq(srqn), rig.query_xrc_srq(rmpn)),
        (Ok(()), refused(Why::UnknownSrq))
    );
    assert_eq!(rig.destroy_xrc_srq(rmpn), refused(Why::UnknownSrq));
    assert_eq!(
        (rig.destroy_xrc_srq(srqn), rig.destroy_xrc_srq(srqn)),
        (Ok(()), refused(Why::UnknownSrq))
    );
    assert_eq!(
        (rig.dealloc_xrcd(xrcd), rig.dealloc_xrcd(xrcd)),
        (Ok(()), refused(Why::UnknownXrcd))
    );
    assert_eq!(rig.destroy_cq(cqn), Ok(()));
}

#[test]
fn queue_pairs_without_queues_need_a_domain_and_nothing_else() {
    let rig = Rig::new();
    let (cqn, xrcd) = (rig.create_cq(|_| ()).unwrap(), rig.alloc_xrcd().unwrap());
    let queue = rig.create_xrc_srq(xrcd, cqn, |_| ()).unwrap();
    // As the kernel creates the receiver of a connection: no ring, doorbell record or UAR page, and
    // any shared queue of an XRC domain.
    let receiver_with = |xrcd, queue, by_devx| {
        rig.create_qp(cqn, move |create: &mut ViewMut<'_, CreateQpIn>| {
            create.set(CreateQpIn::WQ_UMEM_VALID, by_devx).set(CreateQpIn::WQ_UMEM_ID, 0);
            create
                .nested(CreateQpIn::QPC)
                .set(Qpc::ST, ServiceType::Xrc)
                .set(Qpc::RQ_TYPE, ReceiveQueueType::Shared)
                .set(Qpc::SRQN_RMPN_XRQN, queue)
                .set(Qpc::NO_SQ, true)
                .set(Qpc::UAR_PAGE, 0)
                .set(Qpc::DBR_UMEM_VALID, by_devx)
                .set(Qpc::DBR_UMEM_ID, 0)
                .set(Qpc::XRCD, xrcd);
        })
    };
    let receiver = |xrcd| receiver_with(xrcd, queue, false);
    assert_eq!(receiver(0), refused(Why::UnknownXrcd));
    assert_eq!(receiver(xrcd + 1), refused(Why::UnknownXrcd));
    for other in [0, queue + 1000] {
        assert_eq!(receiver_with(xrcd, other, false), refused(Why::XrcQueue));
    }
    // The kernel declares both umems of a command by DEVX valid.
    assert_eq!(receiver_with(xrcd, queue, true), refused(Why::RingUnknownUmem));
    let qpn = receiver(xrcd).unwrap();
    assert_eq!(rig.dealloc_xrcd(xrcd), refused(Why::XrcdInUse));
    rig.connect(qpn, (rig.device.address(), qpn)).unwrap();
    rig.to_rst(qpn).unwrap();
    rig.destroy_qp(qpn).unwrap();
    rig.destroy_xrc_srq(queue).unwrap();
    rig.dealloc_xrcd(xrcd).unwrap();
    for (field, why) in [
        (Qpc::LOG_NUM_DCI_STREAM_CHANNELS, Why::StreamChannels),
        (Qpc::LOG_NUM_DCI_ERRORED_STREAMS, Why::ErroredStreams),
    ] {
        let streams = rig.create_qp(cqn, |create| {
            create.nested(CreateQpIn::QPC).set(Qpc::ST, ServiceType::Dci).set(field, 9);
        });
        assert_eq!(streams, refused(why));
    }
    // The device posts to the send queue of one with rendezvous.
    let offload = rig.create_qp(cqn, |create| {
        create.nested(CreateQpIn::QPC).set(Qpc::OFFLOAD_TYPE, XrqOffload::Rendezvous);
    });
    assert_eq!(offload, refused(Why::QpOffloadRing));
    // One of another service needs its rings.
    let bare = rig.create_qp(cqn, |create| {
        let mut context = create.nested(CreateQpIn::QPC);
        context
            .set(Qpc::ST, ServiceType::Dci)
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Zero)
            .set(Qpc::UAR_PAGE, 0);
    });
    assert_eq!(bare, refused(Why::UnknownUar));
    let left = ObjectCounts {
        protection_domains: 1,
        uar_pages: 1,
        completion_queues: 1,
        umems: 1,
        ..ObjectCounts::default()
    };
    assert_eq!(rig.device.objects(), left);
}
