//! What a driver asks: port, card, partition keys, counter sets, and where a queue pair stands.

use crate::support::{Connection, Node, Pair, Qp, Wqe, command};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::port::{
    ALL_ENTRIES, DEFAULT_PKEY, HcaVportContext, NicVportContext, PhysicalState, PortState,
    QueryAdapterIn, QueryAdapterOut, QueryAdapterParamBlock, QueryHcaVportContextIn,
    QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut, QueryHcaVportPkeyIn,
    QueryHcaVportPkeyOut, QueryLagIn, QueryNicVportContextIn, QueryNicVportContextOut,
    QueryVportStateIn, QueryVportStateOut, VportState,
};
use barewire_layouts::command::q_counter::{
    AllocQCounterIn, AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut,
};
use barewire_layouts::command::qp::{
    AddressPath, Init2InitQpIn, ModifyQp, OptionalParameters, Qpc, QueryQpIn, QueryQpOut,
    Rst2InitQpIn, Rts2RtsQpIn,
};
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::wqe::Opcode;

#[test]
fn the_port_is_up_and_has_names() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let output = command::<QueryVportStateIn>(&node.device, |_| ()).unwrap();
    let state = answer::<QueryVportStateIn>(&output).unwrap().get(QueryVportStateOut::STATE);
    assert_eq!(state, Ok(VportState::Up));

    let output = command::<QueryNicVportContextIn>(&node.device, |_| ()).unwrap();
    let nic = answer::<QueryNicVportContextIn>(&output).unwrap();
    let nic = nic.nested(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
    assert!(nic.get(NicVportContext::ROCE_EN));
    assert_eq!(nic.array(NicVportContext::PERMANENT_ADDRESS)[0] & 3, 2, "local, of one host");

    let output = command::<QueryHcaVportContextIn>(&node.device, |_| ()).unwrap();
    let hca = answer::<QueryHcaVportContextIn>(&output).unwrap();
    let hca = hca.nested(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
    assert_eq!(hca.get(HcaVportContext::PORT_STATE), Ok(PortState::Active));
    assert_eq!(hca.get(HcaVportContext::PORT_PHYSICAL_STATE), Ok(PhysicalState::LinkUp));
    assert_eq!(hca.get(HcaVportContext::NODE_GUID), nic.get(NicVportContext::NODE_GUID));
    assert_ne!(hca.get(HcaVportContext::NODE_GUID), 0);

    let output = command::<QueryAdapterIn>(&node.device, |_| ()).unwrap();
    let block =
        answer::<QueryAdapterIn>(&output).unwrap().nested(QueryAdapterOut::QUERY_ADAPTER_STRUCT);
    assert_eq!(block.get(QueryAdapterParamBlock::VSD_VENDOR_ID), 0x15b3);

    let output = command::<QueryLagIn>(&node.device, |_| ()).unwrap();
    assert!(output.iter().all(|&byte| byte == 0));
    let foreign = command::<QueryVportStateIn>(&node.device, |query| {
        query.set(QueryVportStateIn::OTHER_VPORT, true);
    });
    assert_eq!(foreign.unwrap_err().status, Ok(CommandStatus::BadParameter));
}

#[test]
fn the_tables_of_the_port_answer_by_index_and_whole() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    for index in [0, 16, ALL_ENTRIES] {
        let gid = command::<QueryHcaVportGidIn>(&node.device, |query| {
            query.set(QueryHcaVportGidIn::GID_INDEX, index);
        });
        let pkey = command::<QueryHcaVportPkeyIn>(&node.device, |query| {
            query.set(QueryHcaVportPkeyIn::PKEY_INDEX, index);
        });
        if index == 16 {
            assert_eq!(gid.unwrap_err().status, Ok(CommandStatus::BadIndex));
            assert_eq!(pkey.unwrap_err().status, Ok(CommandStatus::BadIndex));
        } else {
            let gid = gid.unwrap();
            let gid = answer::<QueryHcaVportGidIn>(&gid).unwrap();
            assert_eq!(gid.get(QueryHcaVportGidOut::GIDS_NUM), 1);
            assert_eq!(gid.array(QueryHcaVportGidOut::GID), node.device.gid());
            let pkey = pkey.unwrap();
            let pkey = answer::<QueryHcaVportPkeyIn>(&pkey).unwrap();
            assert_eq!(pkey.get(QueryHcaVportPkeyOut::PKEY), DEFAULT_PKEY);
        }
    }
}

#[test]
fn a_counter_set_counts_what_happens_on_its_queue_pairs() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let device = b.device.clone();
    let [set, other] = [(); 2].map(|()| {
        let output = command::<AllocQCounterIn>(&device, |_| ()).unwrap();
        answer::<AllocQCounterIn>(&output).unwrap().get(AllocQCounterOut::COUNTER_SET_ID)
    });
    assert!(set != 0 && set != other);
    let (qa, mut qb) = (Qp::new(&a), Qp::new(&b));
    qb.counter_set = set;
    let mut pair = Pair::of(a, b, (qa, qb), &Connection { rnr_retry: 2, ..Connection::default() });
    let count = |set, clear, field| {
        let output = command::<QueryQCounterIn>(&device, |query| {
            query.set(QueryQCounterIn::COUNTER_SET_ID, set).set(QueryQCounterIn::CLEAR, clear);
        });
        output.map(|output| answer::<QueryQCounterIn>(&output).unwrap().get(field))
    };
    let query = |clear| count(set, clear, QueryQCounterOut::OUT_OF_BUFFER);
    assert_eq!(query(false), Ok(0));
    let target = pair.b.region(64);
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[1; 8]));
    pair.qa.post(&Wqe::new(Opcode::Send));
    pair.settle();
    assert_eq!(count(set, false, QueryQCounterOut::RX_WRITE_REQUESTS), Ok(1));
    assert_eq!((query(true), query(false)), (Ok(3), Ok(0)));
    // A set that no queue pair names counts nothing.
    assert_eq!(count(other, false, QueryQCounterOut::OUT_OF_BUFFER), Ok(0));
    // Errors are counted by kind.
    pair.qb.post_receive(&[]);
    pair.qb.to_error();
    assert_eq!(count(set, false, QueryQCounterOut::RESP_CQE_FLUSH_ERROR), Ok(1));
    assert_eq!(count(set, false, QueryQCounterOut::RESP_CQE_ERROR), Ok(1));
    let dealloc = |set| {
        command::<DeallocQCounterIn>(&device, |dealloc| {
            dealloc.set(DeallocQCounterIn::COUNTER_SET_ID, set);
        })
    };
    assert!(dealloc(set).is_ok());
    assert_eq!(dealloc(set).unwrap_err().status, Ok(CommandStatus::BadResource));
    assert_eq!(query(false).unwrap_err().status, Ok(CommandStatus::BadResource));
}

#[test]
fn every_page_of_capabilities_answers() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    for &page in CapabilityPage::ALL {
        let output = command::<QueryHcaCapIn>(&node.device, |query| {
            query.set(QueryHcaCapIn::OP_MOD, op_mod(page, CapabilityMode::Current));
        });
        let output = output.unwrap();
        if page == CapabilityPage::General {
            let general = answer::<QueryHcaCapIn>(&output).unwrap().nested(QueryHcaCapOut::GENERAL);
            assert!(general.get(HcaCap::LOG_MAX_RMP) > 0 && general.get(HcaCap::LOG_MAX_EQ) > 0);
            assert_eq!(general.get(HcaCap::LOG_MAX_MSG), 30);
            assert!(general.get(HcaCap::XRC) && general.get(HcaCap::LOG_MAX_XRCD) > 0);
            assert!(general.get(HcaCap::DCT) && general.get(HcaCap::LOG_MAX_RA_REQ_DC) > 0);
        }
    }
}

#[test]
fn a_queue_pair_tells_where_it_stands() {
    let psn = 0x00ff_fffe;
    let mut pair = Pair::new(&Connection { psn, ..Connection::default() });
    for _ in 0..3 {
        pair.qb.post_receive(&[]);
        pair.qa.post(&Wqe::new(Opcode::Send));
    }
    // One more that finds no receive stays unacknowledged.
    pair.qa.post(&Wqe::new(Opcode::Send));
    pair.step(20);
    let query = |node: &Node, qpn| {
        let output =
            command::<QueryQpIn>(&node.device, |query| _ = query.set(QueryQpIn::QPN, qpn)).unwrap();
        let context = answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC);
        (
            [
                context.get(Qpc::NEXT_SEND_PSN),
                context.get(Qpc::LAST_ACKED_PSN),
                context.get(Qpc::NEXT_RCV_PSN),
            ],
            (context.get(Qpc::HW_SQ_WQEBB_COUNTER), context.get(Qpc::HW_RQ_COUNTER)),
            context.get(Qpc::RMSN),
        )
    };
    // Three of four are done: PSNs fffffe, ffffff, 0; the fourth is 1.
    assert_eq!(query(&pair.a, pair.qa.number), ([2, 0, psn ^ 0x55], (3, 0), 0));
    let (psns, counters, messages) = query(&pair.b, pair.qb.number);
    assert_eq!((psns[0], psns[2], counters, messages), (psn ^ 0x55, 1, (0, 3), 3));
}

#[test]
fn a_queue_pair_changes_where_it_stands() {
    let mut pair = Pair::new(&Connection { remote_write: false, ..Connection::default() });
    let device = pair.b.device.clone();
    let (target, qpn) = (pair.b.region(8), pair.qb.number);
    let output = command::<AllocQCounterIn>(&device, |_| ()).unwrap();
    let set = answer::<AllocQCounterIn>(&output).unwrap().get(AllocQCounterOut::COUNTER_SET_ID);
    let change = |set| {
        let selected = OptionalParameters::REMOTE_WRITE | OptionalParameters::COUNTER_SET_ID;
        command::<Rts2RtsQpIn>(&device, |modify| {
            modify.set(Rts2RtsQpIn::QPN, qpn).set(Rts2RtsQpIn::OPT_PARAM_MASK, selected.bits());
            modify.nested(Rts2RtsQpIn::QPC).set(Qpc::RWE, true).set(Qpc::COUNTER_SET_ID, set);
        })
    };
    assert_eq!(change(set + 1).unwrap_err().status, Ok(CommandStatus::BadResource));
    assert!(change(set).is_ok());
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[1; 8]));
    pair.settle();
    assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    let output = command::<QueryQCounterIn>(&device, |query| {
        query.set(QueryQCounterIn::COUNTER_SET_ID, set);
    })
    .unwrap();
    let counts = answer::<QueryQCounterIn>(&output).unwrap();
    assert_eq!(counts.get(QueryQCounterOut::RX_WRITE_REQUESTS), 1);
    // Not from a state that it is not in.
    let early = command::<Init2InitQpIn>(&device, |modify| {
        modify.set(Init2InitQpIn::QPN, qpn);
    });
    assert_eq!(early.unwrap_err().status, Ok(CommandStatus::BadResourceState));
    let fresh = Qp::new(&pair.b);
    let init = |mask: OptionalParameters, port| {
        command::<Init2InitQpIn>(&device, |modify| {
            modify
                .set(Init2InitQpIn::QPN, fresh.number)
                .set(Init2InitQpIn::OPT_PARAM_MASK, mask.bits());
            let mut context = modify.nested(Init2InitQpIn::QPC);
            context.set(Qpc::RRE, true);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, port);
        })
    };
    command::<Rst2InitQpIn>(&device, |modify| {
        modify.set(Rst2InitQpIn::QPN, fresh.number);
        let mut context = modify.nested(Rst2InitQpIn::QPC);
        context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, 1);
    })
    .unwrap();
    assert!(init(OptionalParameters::REMOTE_READ, 9).is_ok(), "the port is not meant");
    assert!(init(OptionalParameters::PRIMARY_PORT, 9).is_err());
    let output =
        command::<QueryQpIn>(&device, |query| _ = query.set(QueryQpIn::QPN, fresh.number)).unwrap();
    assert!(answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC).get(Qpc::RRE));
}
