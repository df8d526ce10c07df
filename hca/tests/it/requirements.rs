//! What a device requires of a driver, as some ports and hosts do.

use crate::support::rig::{Refusal, Rig};
use crate::support::{Connection, Node, Pair, Qp, Wqe, command};
use barewire_hca::{
    Adapter, CommandSyndrome, Config, Fabric, Fault, Finding, Mode, Requirements, WireKind,
};
use barewire_layouts::command::CommandStatus;
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, PortType, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::dct::Dctc;
use barewire_layouts::command::memic::AllocMemicIn;
use barewire_layouts::command::mkey::{CreateMkeyIn, Mkc};
use barewire_layouts::command::qp::{
    AddressPath, CreateQpIn, CreateQpOut, Enhancements, Init2InitQpIn, ModifyQp, ModifyQpOut, Mtu,
    Qpc, QueryQpIn, QueryQpOut, ReceiveQueueType, TimestampFormat,
};
use barewire_layouts::command::xrq::{CreateXrqIn, TagMatchingContext, XrqTopology, Xrqc};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::{View, ViewMut};
use barewire_layouts::wqe::Opcode;

/// A stepped device with these requirements.
fn rig(requirements: &str) -> Rig {
    rig_with(PortType::Ethernet, requirements)
}

fn rig_with(port_type: PortType, requirements: &str) -> Rig {
    let wire = WireKind::Fabric(Fabric::new());
    let requirements = requirements.parse().unwrap();
    let mode = Mode::Stepped;
    Rig::open(
        Config::default().mode(mode).wire(wire).port_type(port_type).requirements(requirements),
    )
}

fn created(rig: &Rig) -> Result<u32, Refusal> {
    let cqn = rig.create_cq(|_| ())?;
    rig.create_qp(cqn, |_| ())
}

/// A queue pair in the init state.
fn initialised(rig: &Rig) -> u32 {
    let qpn = created(rig).unwrap();
    rig.rst2init(qpn, |_| ()).unwrap();
    qpn
}

#[test]
fn a_path_mtu_beyond_the_ports_is_refused() {
    let rig = rig("mtu=1500");
    let qpn = initialised(&rig);
    let connect = |mtu| {
        let peer = (rig.device.address(), qpn);
        rig.init2rtr(qpn, peer, |context| _ = context.set(Qpc::MTU, mtu))
    };
    assert_eq!(connect(Mtu::Bytes2048).unwrap_err().1, CommandSyndrome::PortMtu);
    connect(Mtu::Bytes1024).unwrap();
}

#[test]
fn a_udp_source_port_out_of_range_is_refused() {
    let rig = rig("udp-ports=50000-60000");
    let qpn = initialised(&rig);
    let connect = |port| {
        rig.init2rtr(qpn, (rig.device.address(), qpn), |context| {
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::UDP_SPORT, port);
        })
    };
    for port in [4791, 49_999, 60_001] {
        assert_eq!(connect(port).unwrap_err().1, CommandSyndrome::UdpSourcePort);
    }
    connect(50_000).unwrap();
}

#[test]
fn free_running_time_stamps_are_refused_by_a_real_time_clock() {
    let rig = rig("real-time-clock");
    let cqn = rig.create_cq(|_| ()).unwrap();
    let create = |format| {
        rig.create_qp(cqn, |request| {
            request.nested(CreateQpIn::QPC).set(Qpc::TS_FORMAT, format);
        })
    };
    let refused = create(TimestampFormat::FreeRunning).unwrap_err();
    assert_eq!(refused.1, CommandSyndrome::TimestampFormat);
    create(TimestampFormat::Default).unwrap();
}

#[test]
fn a_path_without_a_global_route_is_refused_where_the_port_requires_one() {
    let rig = rig_with(PortType::InfiniBand, "grh-required");
    let qpn = initialised(&rig);
    let connect = |global| {
        rig.init2rtr(qpn, (rig.device.address(), qpn), |context| {
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::GRH, global);
        })
    };
    assert_eq!(connect(false).unwrap_err().1, CommandSyndrome::GlobalRoute);
    connect(true).unwrap();
}

#[test]
fn a_key_without_relaxed_order_is_refused() {
    let rig = rig("relaxed-only");
    let create = |relaxed| {
        rig.create_mkey(0, 4096, |request| {
            let mut context = request.nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
            context.set(Mkc::RELAXED_ORDERING_WRITE, relaxed);
        })
    };
    assert_eq!(create(false).unwrap_err().1, CommandSyndrome::MkeyOrder);
    create(true).unwrap();
}

#[test]
fn queue_pairs_beyond_the_limit_are_refused() {
    let rig = rig("max-qps=2");
    let first = created(&rig).unwrap();
    created(&rig).unwrap();
    let refused = (CommandStatus::BadResource, CommandSyndrome::QpLimit);
    assert_eq!(created(&rig).unwrap_err(), refused);
    rig.destroy_qp(first).unwrap();
    created(&rig).unwrap();
}

#[test]
fn a_queue_pair_may_have_no_rings() {
    let rig = rig("");
    let cqn = rig.create_cq(|_| ()).unwrap();
    let qpn = rig.create_qp(cqn, |request| {
        request.set(CreateQpIn::WQ_UMEM_VALID, false).set(CreateQpIn::WQ_UMEM_ID, 0);
        request
            .nested(CreateQpIn::QPC)
            .set(Qpc::NO_SQ, true)
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Zero);
    });
    let qpn = qpn.unwrap();
    rig.connect(qpn, (rig.device.address(), qpn)).unwrap();
    rig.destroy_qp(qpn).unwrap();
}

#[test]
fn a_partition_key_index_beyond_the_table_is_refused() {
    let rig = rig("pkeys=7fff:8001");
    let qpn = created(&rig).unwrap();
    let initialise = |index| {
        rig.rst2init(qpn, |context| {
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::PKEY_INDEX, index);
        })
    };
    assert_eq!(initialise(2).unwrap_err().1, CommandSyndrome::PkeyIndex);
    initialise(1).unwrap();
    let index = rig.query_qp(qpn, |context| {
        context.nested(Qpc::PRIMARY_ADDRESS_PATH).get(AddressPath::PKEY_INDEX)
    });
    assert_eq!(index.unwrap(), 1);
}

#[test]
fn connections_use_the_enhancements_that_the_device_supports() {
    let rig = rig("ece=20000005");
    let cqn = rig.create_cq(|_| ()).unwrap();
    let create = |requested| {
        let read = |answer: View<'_, CreateQpOut>| {
            (answer.get(CreateQpOut::QPN), answer.get(CreateQpOut::ECE))
        };
        rig.create_qp_and(cqn, |request| _ = request.set(CreateQpIn::ECE, requested), read)
    };
    assert_eq!(create(0).unwrap().1, 0);
    let (qpn, supported) = create(Enhancements::QUERY.bits()).unwrap();
    assert_eq!(supported, 0x2000_0005);
    let used = || {
        rig.run::<QueryQpIn, _>(
            |request| _ = request.set(QueryQpIn::QPN, qpn),
            |answer| answer.get(QueryQpOut::ECE),
        )
        .unwrap()
    };
    rig.rst2init(qpn, |_| ()).unwrap();
    // A query of what there is selects nothing.
    assert_eq!(used(), 0);
    let accepted = rig.run::<Init2InitQpIn, _>(
        |request| _ = request.set(Init2InitQpIn::QPN, qpn).set(Init2InitQpIn::ECE, 0x3000_0006),
        |answer| answer.get(ModifyQpOut::ECE),
    );
    assert_eq!((accepted, used()), (Ok(0x2000_0004), 0x2000_0004));
    // Without a request they stay, until the queue pair is reset.
    rig.init2rtr(qpn, (rig.device.address(), qpn), |_| ()).unwrap();
    rig.rtr2rts(qpn, |_| ()).unwrap();
    assert_eq!(used(), 0x2000_0004);
    rig.to_rst(qpn).unwrap();
    assert_eq!(used(), 0);
}

#[test]
fn a_device_without_enhancements_refuses_them() {
    for (text, supports) in [("ece=0", false), ("", true)] {
        let rig = rig(text);
        let reports = rig.run::<QueryHcaCapIn, _>(
            |_| (),
            |answer| answer.nested(QueryHcaCapOut::GENERAL).get(HcaCap::ECE),
        );
        assert_eq!(reports, Ok(supports));
        let cqn = rig.create_cq(|_| ()).unwrap();
        let query = |request: &mut ViewMut<'_, CreateQpIn>| {
            request.set(CreateQpIn::ECE, Enhancements::QUERY.bits());
        };
        let created = rig.create_qp(cqn, query);
        let qpn = initialised(&rig);
        let set = rig.run::<Init2InitQpIn, _>(
            |request| _ = request.set(Init2InitQpIn::QPN, qpn).set(Init2InitQpIn::ECE, 1 << 28),
            |_| (),
        );
        let srqn = rig.create_rmp().unwrap();
        let target = rig.create_dct(cqn, srqn, |context| _ = context.set(Dctc::ECE, 1 << 28));
        let refused = [created.err(), set.err(), target.err()];
        let syndromes = refused.map(|refusal| refusal.map(|(_, syndrome)| syndrome));
        let expected = (!supports).then_some(CommandSyndrome::Enhancements);
        assert_eq!(syndromes, [expected; 3], "{text}");
    }
}

/// Two stepped devices on one fabric.
fn pair(requirements: &str) -> Pair {
    let (fabric, requirements) = (Fabric::new(), requirements.parse().unwrap());
    let open = || {
        let (mode, wire) = (Mode::Stepped, WireKind::Fabric(fabric.clone()));
        Node::open(Config::default().mode(mode).wire(wire).requirements(requirements))
    };
    Pair::over(open(), open(), &Connection { retry_count: 1, ..Connection::default() })
}

#[test]
fn limited_members_of_a_partition_cannot_talk_to_each_other() {
    for (keys, syndrome) in
        [("pkeys=8001", None), ("pkeys=1", Some(Syndrome::TransportRetryExceeded))]
    {
        let mut pair = pair(keys);
        pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, syndrome, "{keys}");
        assert_eq!(pair.b.device.counters().wrong_partition > 0, syndrome.is_some());
    }
}

#[test]
fn a_removed_device_only_destroys() {
    let rig = rig("");
    let qpn = initialised(&rig);
    assert!(rig.device.inject(Fault::Unplug) && rig.device.is_unplugged());
    assert_eq!(created(&rig).unwrap_err().1, CommandSyndrome::Unplugged);
    assert_eq!(rig.to_rst(qpn).unwrap_err().1, CommandSyndrome::Unplugged);
    rig.destroy_qp(qpn).unwrap();
}

#[test]
fn a_device_is_removed_after_the_wanted_number_of_completions() {
    let mut pair = pair("unplug-after=3");
    for _ in 0..8 {
        pair.qa.post(&Wqe::new(Opcode::Nop));
        pair.settle();
    }
    assert!(pair.a.device.is_unplugged() && !pair.b.device.is_unplugged());
    assert_eq!(pair.qa.send_cq.drain().len(), 3);
}

#[test]
fn only_the_queue_pair_of_a_doorbell_starts() {
    let mut pair = pair("exact-doorbells");
    let mut second = Qp::new(&pair.a);
    let connection = Connection::default();
    second.connect(&pair.b, pair.qb.number, &connection, (0, 0));
    pair.qa.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    second.place(&Wqe::new(Opcode::Nop));
    pair.qa.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    assert_eq!((pair.qa.send_cq.drain().len(), second.send_cq.drain().len()), (2, 0));
}

#[test]
fn two_bursts_in_a_row_through_one_half_are_a_finding() {
    let mut pair = pair("exact-doorbells");
    let mut second = Qp::new(&pair.a);
    let connection = Connection::default();
    second.connect(&pair.b, pair.qb.number, &connection, (0, 0));
    let write = Wqe::new(Opcode::RdmaWrite).remote(0x1234, 0x5600);
    // Each queue pair counts halves by itself, and starts with the first.
    for qp in [&mut pair.qa, &mut second] {
        qp.post(&write);
        while pair.a.device.step() {}
    }
    let findings: Vec<_> =
        pair.a.device.take_reports().into_iter().map(|report| report.finding).collect();
    assert_eq!(findings, [Finding::DoorbellHalf { half: 0 }]);
}

#[test]
fn a_tag_matching_list_has_as_many_entries_as_the_device_says() {
    let told = |rig: &Rig| {
        rig.run::<QueryHcaCapIn, _>(
            |query| {
                let page = op_mod(CapabilityPage::General, CapabilityMode::Current);
                query.set(QueryHcaCapIn::OP_MOD, page);
            },
            |output| {
                let general = output.nested(QueryHcaCapOut::GENERAL);
                let log_tags = general.get(HcaCap::LOG_TAG_MATCHING_LIST_SZ);
                (general.get(HcaCap::TAG_MATCHING), log_tags)
            },
        )
    };
    let create = |rig: &Rig, log_list| {
        let made = rig.run::<CreateXrqIn, _>(
            |create| {
                let mut context = create.nested(CreateXrqIn::XRQ_CONTEXT);
                context
                    .set(Xrqc::TOPOLOGY, XrqTopology::TagMatching)
                    .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
                    .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, log_list);
            },
            |_| (),
        );
        made.unwrap_err().1
    };
    let few = rig("log-tags=7");
    assert_eq!(told(&few), Ok((true, 7)));
    assert_eq!(create(&few, 8), CommandSyndrome::XrqListSize);
    // What is wrong with it is something else.
    assert_ne!(create(&few, 7), CommandSyndrome::XrqListSize);
    let none = rig("log-tags=0");
    assert_eq!(told(&none), Ok((false, 0)));
    assert_eq!(create(&none, 0), CommandSyndrome::XrqListSize);
}

/// The device refuses what the adapter does not report.
#[test]
fn a_published_adapter_has_what_its_listing_shows() {
    for adapter in Adapter::PUBLISHED {
        let requirements: Requirements = format!("device={adapter}").parse().unwrap();
        assert_eq!(requirements.to_string().parse(), Ok(requirements), "{adapter}");
        let config = Config::default().mode(Mode::Stepped).requirements(requirements);
        let node = Node::open(config);
        let answer = command::<QueryHcaCapIn>(&node.device, |query| {
            query.set(QueryHcaCapIn::OP_MOD, 1);
        })
        .unwrap();
        let general = View::<QueryHcaCapOut>::new(&answer).unwrap().nested(QueryHcaCapOut::GENERAL);
        let memory = command::<AllocMemicIn>(&node.device, |alloc| {
            alloc
                .set(AllocMemicIn::RANGE_START_ADDR, 1 << 25)
                .set(AllocMemicIn::RANGE_SIZE, 128 << 10)
                .set(AllocMemicIn::MEMIC_SIZE, 64);
        });
        assert_eq!(memory.is_ok(), general.get(HcaCap::DEVICE_MEMORY), "{adapter}");
        assert_eq!(general.get(HcaCap::DEVICE_MEMORY), adapter != Adapter::Vf);
        let tags = general.get(HcaCap::LOG_TAG_MATCHING_LIST_SZ);
        assert_eq!(tags, if adapter == Adapter::Cx6 { 7 } else { 0 });
    }
}
