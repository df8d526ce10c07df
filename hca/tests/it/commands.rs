//! PRM commands through the public API: every object is created, moved through its states and
//! destroyed, and refused in the wrong order.

use crate::support::rig::{CQ_DOORBELL, QP_DOORBELL, Refusal, Rig};
use barewire_hca::{CommandSyndrome as Why, ObjectCounts, UmemError};
use barewire_layouts::command::capability::{
    AtomicCap, CapabilityMode, CapabilityPage, HcaCap, QueryHcaCapIn, QueryHcaCapOut, RoceCap,
    op_mod,
};
use barewire_layouts::command::cq::{CqStatus, Cqc, CqeSize, CreateCqIn, QueryCqIn, QueryCqOut};
use barewire_layouts::command::gid::{QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress};
use barewire_layouts::command::qp::{
    AddressPath, Init2InitQpIn, ModifyQp, Mtu, OptionalParameters, QpState, Qpc, ReceiveQueueType,
    Rts2RtsQpIn, ServiceType,
};
use barewire_layouts::command::umem::DestroyUmemIn;
use barewire_layouts::command::{CommandStatus, InHeader};
use barewire_layouts::prm::{Layout, View, ViewMut};

fn refused(why: Why) -> Refusal {
    (why.status(), why)
}

#[test]
fn everything_comes_and_goes_in_order() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    let mkey = rig.create_mkey(0, 0x1000, |_| ()).unwrap();
    let all = ObjectCounts {
        protection_domains: 1,
        uar_pages: 1,
        completion_queues: 1,
        queue_pairs: 1,
        memory_keys: 1,
        umems: 1,
        ..ObjectCounts::default()
    };
    assert_eq!(rig.device.objects(), all);

    // What something else stands on does not go.
    assert_eq!(rig.destroy_cq(cqn), Err(refused(Why::CqInUse)));
    assert_eq!(rig.dealloc_pd(rig.pd), Err(refused(Why::PdInUse)));
    assert_eq!(rig.dealloc_uar(rig.uar), Err(refused(Why::UarInUse)));
    // Two for the CQ, two for the QP, one for the key.
    assert_eq!(rig.deregister(rig.umem), Err(UmemError::Busy { id: rig.umem, users: 5 }));
    assert_eq!(rig.device.objects(), all);

    assert_eq!(rig.destroy_qp(qpn), Ok(()));
    assert_eq!(rig.dealloc_pd(rig.pd), Err(refused(Why::PdInUse)));
    assert_eq!(rig.dealloc_uar(rig.uar), Err(refused(Why::UarInUse)));
    assert_eq!(rig.destroy_mkey(mkey), Ok(()));
    assert_eq!(rig.dealloc_pd(rig.pd), Ok(()));
    assert_eq!(rig.deregister(rig.umem), Err(UmemError::Busy { id: rig.umem, users: 2 }));
    assert_eq!(rig.destroy_cq(cqn), Ok(()));
    assert_eq!(rig.dealloc_uar(rig.uar), Ok(()));
    assert_eq!(rig.deregister(rig.umem), Ok(()));
    assert_eq!(rig.device.objects(), ObjectCounts::default());

    // And nothing goes twice.
    assert_eq!(rig.destroy_qp(qpn), Err(refused(Why::UnknownQpToDestroy)));
    assert_eq!(rig.destroy_mkey(mkey), Err(refused(Why::UnknownMkey)));
    assert_eq!(rig.dealloc_pd(rig.pd), Err(refused(Why::UnknownPd)));
    assert_eq!(rig.destroy_cq(cqn), Err(refused(Why::UnknownCq)));
    assert_eq!(rig.dealloc_uar(rig.uar), Err(refused(Why::UnknownUar)));
    assert_eq!(rig.deregister(rig.umem), Err(UmemError::Unknown { id: rig.umem }));
}

#[test]
fn a_queue_pair_walks_its_states() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    let peer = (rig.device.address(), qpn);
    assert_eq!(rig.state(qpn), QpState::Rst);
    rig.rst2init(qpn, |_| ()).unwrap();
    assert_eq!(rig.state(qpn), QpState::Init);
    rig.init2rtr(qpn, peer, |_| ()).unwrap();
    assert_eq!(rig.state(qpn), QpState::Rtr);
    rig.rtr2rts(qpn, |_| ()).unwrap();
    assert_eq!(rig.state(qpn), QpState::Rts);
    rig.query_qp(qpn, |context| {
        assert_eq!(context.get(Qpc::ST), Ok(ServiceType::Rc));
        assert_eq!(context.get(Qpc::PD), rig.pd);
        assert_eq!(context.get(Qpc::MTU), Ok(Mtu::Bytes1024));
        assert_eq!(context.get(Qpc::LOG_MSG_MAX), 30);
        assert_eq!(context.get(Qpc::RQ_TYPE), Ok(ReceiveQueueType::Regular));
        assert_eq!((context.get(Qpc::LOG_RQ_SIZE), context.get(Qpc::LOG_RQ_STRIDE)), (3, 2));
        assert_eq!((context.get(Qpc::NO_SQ), context.get(Qpc::LOG_SQ_SIZE)), (false, 4));
        assert_eq!((context.get(Qpc::UAR_PAGE), context.get(Qpc::USER_INDEX)), (rig.uar, 0x1234));
        assert_eq!((context.get(Qpc::CQN_SND), context.get(Qpc::CQN_RCV)), (cqn, cqn));
        assert_eq!(context.get(Qpc::REMOTE_QPN), qpn);
        assert_eq!((context.get(Qpc::LOG_SRA_MAX), context.get(Qpc::LOG_RRA_MAX)), (4, 4));
        assert_eq!((context.get(Qpc::RETRY_COUNT), context.get(Qpc::RNR_RETRY)), (7, 6));
        assert_eq!(
            (context.get(Qpc::RRE), context.get(Qpc::RWE), context.get(Qpc::RAE)),
            (true, true, true)
        );
        assert_eq!(context.get(Qpc::MIN_RNR_NAK), 12);
        assert_eq!(
            (context.get(Qpc::DBR_UMEM_ID), context.get(Qpc::DBR_ADDR)),
            (rig.umem, QP_DOORBELL)
        );
        let path = context.nested(Qpc::PRIMARY_ADDRESS_PATH);
        assert_eq!(path.array(AddressPath::RGID_RIP), rig.device.gid());
        assert_eq!(path.get(AddressPath::ACK_TIMEOUT), 14);
    })
    .unwrap();

    rig.to_err(qpn).unwrap();
    assert_eq!(rig.state(qpn), QpState::Err);
    rig.to_rst(qpn).unwrap();
    assert_eq!(rig.state(qpn), QpState::Rst);
    assert_eq!(rig.query_qp(qpn, |context| context.get(Qpc::REMOTE_QPN)), Ok(0));
    // A second life.
    rig.connect(qpn, peer).unwrap();
    assert_eq!(rig.state(qpn), QpState::Rts);
}

#[test]
fn a_queue_pair_changes_where_it_is() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    let rights = OptionalParameters::REMOTE_WRITE | OptionalParameters::REMOTE_ATOMIC;
    // Reads stay allowed: their bit is not set.
    let init2init = |mask: OptionalParameters, port| {
        rig.run::<Init2InitQpIn, _>(
            |request| {
                request
                    .set(Init2InitQpIn::QPN, qpn)
                    .set(Init2InitQpIn::OPT_PARAM_MASK, mask.bits());
                let mut context = request.nested(Init2InitQpIn::QPC);
                context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, port);
            },
            |_| (),
        )
    };
    let rts2rts = |mask: OptionalParameters| {
        rig.run::<Rts2RtsQpIn, _>(
            |request| {
                request.set(Rts2RtsQpIn::QPN, qpn).set(Rts2RtsQpIn::OPT_PARAM_MASK, mask.bits());
                request.nested(Rts2RtsQpIn::QPC).set(Qpc::RWE, true).set(Qpc::MIN_RNR_NAK, 7);
            },
            |_| (),
        )
    };
    let standing = || {
        let read = |context: View<'_, Qpc>| {
            let rights = [Qpc::RRE, Qpc::RWE, Qpc::RAE].map(|field| context.get(field));
            (context.get(Qpc::STATE).unwrap(), rights, context.get(Qpc::MIN_RNR_NAK))
        };
        rig.query_qp(qpn, read).unwrap()
    };
    let wrong = Err(refused(Why::QpTransition));
    assert_eq!(init2init(rights, 1), wrong);
    rig.rst2init(qpn, |_| ()).unwrap();
    let port = OptionalParameters::PRIMARY_PORT;
    assert_eq!(init2init(port, 2), Err(refused(Why::Port)));
    assert_eq!(init2init(rights, 2), Ok(()));
    assert_eq!(standing(), (QpState::Init, [true, false, false], 0));
    assert_eq!(rts2rts(rights), wrong);
    rig.init2rtr(qpn, (rig.device.address(), qpn), |_| ()).unwrap();
    rig.rtr2rts(qpn, |_| ()).unwrap();
    assert_eq!(rts2rts(OptionalParameters::REMOTE_WRITE), Ok(()));
    assert_eq!(standing(), (QpState::Rts, [true, true, false], 12));
    assert_eq!(rts2rts(OptionalParameters::RNR_TIMEOUT), Ok(()));
    assert_eq!(standing(), (QpState::Rts, [true, true, false], 7));
}

#[test]
fn moves_from_the_wrong_state_change_nothing() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |_| ()).unwrap();
    let peer = (rig.device.address(), qpn);
    // A move, by the state that it starts from.
    let go = |from| match from {
        QpState::Rst => rig.rst2init(qpn, |_| ()),
        QpState::Init => rig.init2rtr(qpn, peer, |_| ()),
        _ => rig.rtr2rts(qpn, |_| ()),
    };
    let starts = [QpState::Rst, QpState::Init, QpState::Rtr];
    // Reaching each state in turn, only the move that starts there is legal.
    for state in [QpState::Rst, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
        if state == QpState::Err {
            rig.to_err(qpn).unwrap();
        }
        assert_eq!(rig.state(qpn), state);
        for from in starts.into_iter().filter(|&from| from != state) {
            assert_eq!(go(from), Err(refused(Why::QpTransition)), "from {state}");
            assert_eq!(rig.state(qpn), state);
        }
        if starts.contains(&state) {
            go(state).unwrap();
        }
    }
    // Error and reset may be entered from anywhere.
    for _ in 0..2 {
        rig.to_err(qpn).unwrap();
    }
    for _ in 0..2 {
        rig.to_rst(qpn).unwrap();
    }
    rig.to_err(qpn).unwrap();
    for (refusal, why) in [
        (rig.to_err(1), Why::UnknownQpToEnd),
        (rig.to_rst(1), Why::UnknownQpToEnd),
        (rig.rst2init(qpn + 1, |_| ()), Why::UnknownQp),
    ] {
        assert_eq!(refusal, Err(refused(why)));
    }
}

#[test]
fn a_completion_queue_tells_what_it_is() {
    let rig = Rig::new();
    let cqn = rig
        .create_cq(|r| {
            _ = r
                .nested(CreateCqIn::CQ_CONTEXT)
                .set(Cqc::CQE_SZ, CqeSize::Bytes128)
                .set(Cqc::OI, true);
        })
        .unwrap();
    let read = |answer: View<'_, QueryCqOut>| {
        let context = answer.nested(QueryCqOut::CQ_CONTEXT);
        assert_eq!(context.get(Cqc::STATUS), Ok(CqStatus::Ok));
        assert_eq!(context.get(Cqc::CQE_SZ), Ok(CqeSize::Bytes128));
        assert_eq!((context.get(Cqc::LOG_CQ_SIZE), context.get(Cqc::OI)), (4, true));
        assert_eq!(
            (context.get(Cqc::UAR_PAGE), context.get(Cqc::DBR_ADDR)),
            (rig.uar, CQ_DOORBELL)
        );
        assert_eq!(
            (context.get(Cqc::PRODUCER_COUNTER), context.get(Cqc::CONSUMER_COUNTER)),
            (0, 0)
        );
    };
    rig.run::<QueryCqIn, _>(|request| _ = request.set(QueryCqIn::CQN, cqn), read).unwrap();
    let unknown =
        rig.run::<QueryCqIn, _>(|request| _ = request.set(QueryCqIn::CQN, cqn + 1), |_| ());
    assert_eq!(unknown, Err(refused(Why::UnknownCq)));
}

#[test]
fn user_memory_goes_by_command_too() {
    let rig = Rig::new();
    let destroy = |id| {
        rig.run::<DestroyUmemIn, _>(|request| _ = request.set(DestroyUmemIn::UMEM_ID, id), |_| ())
    };
    let mkey = rig.create_mkey(0, 1, |_| ()).unwrap();
    assert_eq!(destroy(rig.umem), Err(refused(Why::UmemInUse)));
    rig.destroy_mkey(mkey).unwrap();
    assert_eq!(destroy(rig.umem), Ok(()));
    assert_eq!(destroy(rig.umem), Err(refused(Why::UnknownUmem)));
}

/// Runs QUERY_HCA_CAP for an `op_mod` and returns its output.
fn capabilities(rig: &Rig, op_mod: u16) -> Vec<u8> {
    let mut input = [0; QueryHcaCapIn::BYTES];
    let mut output = vec![0xff; QueryHcaCapOut::BYTES];
    barewire_layouts::command::request::<QueryHcaCapIn>(&mut input)
        .expect("sized by the layout")
        .set(QueryHcaCapIn::OP_MOD, op_mod);
    rig.execute(&input, &mut output);
    output
}

#[test]
fn capabilities_are_told_by_page() {
    let rig = Rig::new();
    for mode in [CapabilityMode::Current, CapabilityMode::Maximum] {
        let page = |page| capabilities(&rig, op_mod(page, mode));
        let bytes = page(CapabilityPage::General);
        let general = View::<QueryHcaCapOut>::new(&bytes).unwrap().nested(QueryHcaCapOut::GENERAL);
        assert_eq!(general.get(HcaCap::LOG_MAX_MSG), 30);
        assert_eq!((general.get(HcaCap::CQE_VERSION), general.get(HcaCap::NUM_PORTS)), (1, 1));
        assert_eq!(
            (general.get(HcaCap::LOG_BF_REG_SIZE), general.get(HcaCap::MAX_WQE_SZ_SQ)),
            (9, 1024)
        );
        assert!(
            general.get(HcaCap::RC) && general.get(HcaCap::ROCE) && general.get(HcaCap::ATOMIC)
        );
        let bytes = page(CapabilityPage::Atomic);
        let atomic = View::<QueryHcaCapOut>::new(&bytes).unwrap().nested(QueryHcaCapOut::ATOMIC);
        assert_eq!(
            (atomic.get(AtomicCap::ATOMIC_OPERATIONS), atomic.get(AtomicCap::ATOMIC_SIZE_QP)),
            (15, 12)
        );
        let bytes = page(CapabilityPage::Roce);
        let roce = View::<QueryHcaCapOut>::new(&bytes).unwrap().nested(QueryHcaCapOut::ROCE);
        assert_eq!(roce.get(RoceCap::R_ROCE_DEST_UDP_PORT), 4791);
        assert_eq!(page(CapabilityPage::General2), [0; QueryHcaCapOut::BYTES]);
    }
    let unknown = capabilities(&rig, 0x1ff);
    assert_eq!(unknown[0], CommandStatus::BadOperation as u8);
    assert!(unknown[8..].iter().all(|&byte| byte == 0));
}

#[test]
fn the_gid_table_has_the_address() {
    let rig = Rig::new();
    let query = |index, port| {
        rig.run::<QueryRoceAddressIn, _>(
            |request| {
                request
                    .set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, index)
                    .set(QueryRoceAddressIn::VHCA_PORT_NUM, port);
            },
            |answer| {
                answer
                    .nested(QueryRoceAddressOut::ROCE_ADDRESS)
                    .array(RoceAddress::SOURCE_L3_ADDRESS)
            },
        )
    };
    assert_eq!(query(0, 1), Ok(rig.device.gid()));
    assert_eq!(query(0, 0), Ok(rig.device.gid()));
    assert_eq!(query(16, 1), Err(refused(Why::GidIndex)));
    assert_eq!(query(0, 2), Err(refused(Why::GidPort)));
}

#[test]
fn lengths_opcodes_and_modifiers_are_checked() {
    let rig = Rig::new();
    let run = |input: &[u8], length: usize| {
        let mut output = vec![0xff; length];
        rig.execute(input, &mut output);
        let syndrome =
            output.get(4..8).map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four")));
        (output.first().copied(), syndrome.and_then(Why::from_bits))
    };
    // ALLOC_PD, as short and as long as it may come.
    let alloc_pd = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xbb];
    for length in 0..16 {
        let (status, why) = run(&alloc_pd[..length], 16);
        assert_eq!((status, why), (Some(0x50), Some(Why::InputLength)), "{length}");
    }
    for length in 8..16 {
        assert_eq!(run(&alloc_pd, length), (Some(0x51), Some(Why::OutputLength)), "{length}");
    }
    for length in 1..8 {
        assert_eq!(run(&alloc_pd, length).0, Some(0x51));
    }
    assert_eq!(run(&alloc_pd, 0), (None, None));
    assert_eq!(rig.device.objects().protection_domains, 1);
    assert_eq!(run(&alloc_pd, 64), (Some(0), None));
    assert_eq!(rig.device.objects().protection_domains, 2);

    assert_eq!(run(&[0xde, 0xad, 0, 0, 0, 0, 0, 0], 16), (Some(2), Some(Why::UnknownOpcode)));
    let mut modified = alloc_pd;
    ViewMut::<InHeader>::new(&mut modified).unwrap().set(InHeader::OP_MOD, 1);
    assert_eq!(run(&modified, 16), (Some(2), Some(Why::UnknownModifier)));
}

#[test]
fn a_table_ends_somewhere() {
    let rig = Rig::new();
    // QUERY_HCA_CAP: log_max_pd. One is there already.
    let bytes = capabilities(&rig, op_mod(CapabilityPage::General, CapabilityMode::Current));
    let general = View::<QueryHcaCapOut>::new(&bytes).unwrap().nested(QueryHcaCapOut::GENERAL);
    let limit = 1_u32 << general.get(HcaCap::LOG_MAX_PD);
    let pds: Vec<u32> = (1..limit).map(|_| rig.alloc_pd().unwrap()).collect();
    assert_eq!(rig.alloc_pd(), Err(refused(Why::NoPds)));
    rig.dealloc_pd(pds[7]).unwrap();
    let again = rig.alloc_pd().unwrap();
    assert!(!pds.contains(&again), "numbers come back late");
}
