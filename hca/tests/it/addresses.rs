//! The table of the port's addresses: what it takes, and which of its entries queue pairs may use.

use crate::support::{self, Connection, Node, Pair, Qp, Wqe, command};
use barewire_hca::{CommandSyndrome, Fabric, Faults};
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, QueryHcaCapIn, QueryHcaCapOut, RoceCap, op_mod,
};
use barewire_layouts::command::gid::{
    QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress, RoceL3Type, RoceVersion, SetRoceAddressIn,
};
use barewire_layouts::command::port::{ALL_ENTRIES, QueryHcaVportGidIn, QueryHcaVportGidOut};
use barewire_layouts::command::qp::{
    AddressPath, Init2RtrQpIn, ModifyQp, Mtu, Qpc, Rst2InitQpIn, ServiceType,
};
use barewire_layouts::command::{CommandError, answer, request};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::{Layout, View};
use barewire_layouts::wqe::{AddressVector, Opcode};

/// `::ffff:127.9.9.9`
const FOREIGN: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 9, 9, 9];

fn set(
    node: &Node,
    index: u16,
    gid: [u8; 16],
    l3: RoceL3Type,
    version: RoceVersion,
) -> Result<(), CommandError> {
    let done = command::<SetRoceAddressIn>(&node.device, |set| {
        set.set(SetRoceAddressIn::ROCE_ADDRESS_INDEX, index)
            .set(SetRoceAddressIn::VHCA_PORT_NUM, 1);
        set.nested(SetRoceAddressIn::ROCE_ADDRESS)
            .set_array(RoceAddress::SOURCE_L3_ADDRESS, gid)
            .set_array(RoceAddress::SOURCE_MAC, [2, 0, 0, 1, 2, 3])
            .set(RoceAddress::ROCE_L3_TYPE, l3)
            .set(RoceAddress::ROCE_VERSION, version);
    });
    done.map(|_| ())
}

fn query(node: &Node, index: u16) -> Result<[u8; 16], CommandError> {
    let output = command::<QueryRoceAddressIn>(&node.device, |query| {
        query.set(QueryRoceAddressIn::ROCE_ADDRESS_INDEX, index);
    })?;
    let entry = answer::<QueryRoceAddressIn>(&output)?.nested(QueryRoceAddressOut::ROCE_ADDRESS);
    Ok(entry.array(RoceAddress::SOURCE_L3_ADDRESS))
}

fn why<T: std::fmt::Debug>(done: Result<T, CommandError>) -> CommandSyndrome {
    CommandSyndrome::from_bits(done.unwrap_err().syndrome).expect("a reason")
}

#[test]
fn entries_are_kept_cleared_and_bounded_by_the_capability() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let output = command::<QueryHcaCapIn>(&node.device, |query| {
        query.set(QueryHcaCapIn::OP_MOD, op_mod(CapabilityPage::Roce, CapabilityMode::Maximum));
    })
    .unwrap();
    let roce = answer::<QueryHcaCapIn>(&output).unwrap().nested(QueryHcaCapOut::ROCE);
    let size = roce.get(RoceCap::ROCE_ADDRESS_TABLE_SIZE);
    assert_eq!(query(&node, 0), Ok(node.device.gid()));
    let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    set(&node, 1, six, RoceL3Type::Ipv6, RoceVersion::V2).unwrap();
    set(&node, size - 1, FOREIGN, RoceL3Type::Ipv4, RoceVersion::V2).unwrap();
    assert_eq!((query(&node, 1), query(&node, size - 1)), (Ok(six), Ok(FOREIGN)));
    assert_eq!(query(&node, 2), Ok([0; 16]));
    assert_eq!(why(query(&node, size)), CommandSyndrome::GidIndex);
    assert_eq!(
        why(set(&node, size, six, RoceL3Type::Ipv6, RoceVersion::V2)),
        CommandSyndrome::GidIndex
    );
    // All entries, in the port's InfiniBand queries.
    let mut input = [0; QueryHcaVportGidIn::BYTES];
    request::<QueryHcaVportGidIn>(&mut input)
        .unwrap()
        .set(QueryHcaVportGidIn::GID_INDEX, ALL_ENTRIES);
    let mut output = vec![0; 16 + 16 * usize::from(size)];
    support::execute(&node.device, &input, &mut output);
    let told =
        View::<QueryHcaVportGidOut>::new(&output).unwrap().get(QueryHcaVportGidOut::GIDS_NUM);
    assert_eq!(
        (told, &output[32..48], &output[16 * usize::from(size)..]),
        (size, &six[..], &FOREIGN[..])
    );
    // Cleared. Firmware without RoCE v1 does not take that version even then, nor a group's MAC.
    let clear = |version, mac| {
        command::<SetRoceAddressIn>(&node.device, |set| {
            set.set(SetRoceAddressIn::ROCE_ADDRESS_INDEX, 1)
                .nested(SetRoceAddressIn::ROCE_ADDRESS)
                .set(RoceAddress::ROCE_VERSION, version)
                .set_array(RoceAddress::SOURCE_MAC, mac);
        })
    };
    assert_eq!(why(clear(RoceVersion::V1, [0; 6])), CommandSyndrome::GidVersion);
    assert_eq!(why(clear(RoceVersion::V2, [1, 0, 0, 0, 0, 0])), CommandSyndrome::GidMac);
    assert_eq!(query(&node, 1), Ok(six));
    clear(RoceVersion::V2, [0; 6]).unwrap();
    assert_eq!(query(&node, 1), Ok([0; 16]));
}

#[test]
fn what_is_no_address_is_refused() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let before = query(&node, 1);
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 0, 0, 1];
    for (gid, l3, version, want) in [
        (group, RoceL3Type::Ipv4, RoceVersion::V2, CommandSyndrome::GidAddress),
        (FOREIGN, RoceL3Type::Ipv6, RoceVersion::V2, CommandSyndrome::GidAddress),
        (FOREIGN, RoceL3Type::Ipv4, RoceVersion::V1, CommandSyndrome::GidVersion),
    ] {
        assert_eq!(why(set(&node, 1, gid, l3, version)), want);
    }
    assert_eq!(query(&node, 1), before);
}

#[test]
fn a_queue_pair_uses_an_entry_that_is_its_devices_own() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    set(&a, 3, a.device.gid(), RoceL3Type::Ipv4, RoceVersion::V2).unwrap();
    let (mut qa, qb) = (Qp::new(&a), Qp::new(&b));
    qa.source_index = 3;
    let mut pair = Pair::of(a, b, (qa, qb), &Connection::default());
    pair.qb.post_receive(&[]);
    pair.qa.post(&Wqe::new(Opcode::Send));
    pair.settle();
    assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    // An empty entry, and one that nothing carries.
    set(&pair.a, 5, FOREIGN, RoceL3Type::Ipv4, RoceVersion::V2).unwrap();
    for (index, want) in [(4, CommandSyndrome::SourceGid), (5, CommandSyndrome::SourceAddress)] {
        let qp = Qp::with_service(&pair.a, ServiceType::Ud);
        command::<Rst2InitQpIn>(&pair.a.device, |modify| {
            modify.set(Rst2InitQpIn::QPN, qp.number);
            let mut context = modify.nested(Rst2InitQpIn::QPC);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::VHCA_PORT_NUM, 1);
        })
        .unwrap();
        let moved = command::<Init2RtrQpIn>(&pair.a.device, |modify| {
            modify.set(Init2RtrQpIn::QPN, qp.number);
            let mut context = modify.nested(Init2RtrQpIn::QPC);
            context.set(Qpc::MTU, Mtu::Bytes1024);
            context.nested(Qpc::PRIMARY_ADDRESS_PATH).set(AddressPath::SRC_ADDR_INDEX, index);
        });
        assert_eq!(why(moved), want);
    }
}

#[test]
fn a_datagram_names_its_source_too() {
    for (index, want) in [
        (0, None),
        (3, None),
        (4, Some(Syndrome::LocalQpOperation)),
        (5, Some(Syndrome::LocalQpOperation)),
    ] {
        let fabric = Fabric::new();
        let (a, b) =
            (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
        set(&a, 3, a.device.gid(), RoceL3Type::Ipv4, RoceVersion::V2).unwrap();
        set(&a, 5, FOREIGN, RoceL3Type::Ipv4, RoceVersion::V2).unwrap();
        let mut pair = Pair::with_service(ServiceType::Ud, a, b, &Connection::default());
        let inbox = pair.b.region(256);
        pair.qb.post_receive(&[(inbox.address(), 256, inbox.key)]);
        let to = AddressVector::roce(
            pair.qb.number,
            0x1111_1111,
            [2; 6],
            pair.b.device.gid(),
            0xc000,
            index,
            64,
        );
        pair.qa.post(&Wqe::new(Opcode::Send).addressed(&to).inline(&[7; 8]));
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, want, "source {index}");
        assert_eq!(pair.qb.receive_cq.poll().is_some(), want.is_none());
    }
}
