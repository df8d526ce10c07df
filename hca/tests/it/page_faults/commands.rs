//! PAGE_FAULT_RESUME, and what the kernel does besides.

use barewire_hca::{
    AbsentPages, CommandSyndrome, Config, Fabric, Faults, Mode, PagingError, WireKind,
};
use barewire_layouts::command::CommandError;
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, OdpCap, OdpServices, PortType, QueryHcaCapIn, QueryHcaCapOut,
    op_mod,
};
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::eqe::EventType;
use barewire_layouts::page_fault::{FaultKind, PageFault};
use barewire_layouts::wqe::Opcode;

use super::{PAGE, PASSES, finish, pages, syndromes, wait};
use crate::support::events::Eq;
use crate::support::paging::{Kernel, node, pair, part, region};
use crate::support::{Connection, Node, Pair, Region, Wqe, command};

fn refusal(resumed: Result<(), CommandError>) -> (CommandStatus, CommandSyndrome) {
    let error = resumed.unwrap_err();
    (error.status.unwrap(), CommandSyndrome::from_bits(error.syndrome).unwrap())
}

/// A write of 64 bytes between two regions.
fn write(pair: &mut Pair, local: &Region, remote: &Region) {
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    pair.qa.post(&wqe.data(local.address(), 64, local.key));
}

#[test]
fn an_answer_names_the_fault_exactly() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (region(&pair.a, PAGE), pair.b.region(PAGE));
    let unknown = (CommandStatus::BadResource, CommandSyndrome::UnknownPageFault);
    let kind = FaultKind::REQUESTER;
    let qpn = pair.qa.number;
    assert_eq!(refusal(kernels[0].answer((kind, qpn, qpn), false)), unknown);
    write(&mut pair, &local, &remote);
    wait(&mut pair);
    let fault = kernels[0].fault();
    assert_eq!(fault.resumed_by(), (kind, qpn, qpn));
    let answers = [
        ((kind, qpn, qpn + 1), unknown),
        ((kind, qpn, 0), unknown),
        ((FaultKind::WRITE, qpn, qpn), unknown),
        (
            (kind | FaultKind::WRITE, qpn, qpn),
            (CommandStatus::BadParameter, CommandSyndrome::PageFaultType),
        ),
        ((kind, qpn + 1, qpn), (CommandStatus::BadParameter, CommandSyndrome::PageFaultQueue)),
    ];
    for (wrong, want) in answers {
        for failed in [false, true] {
            assert_eq!(refusal(kernels[0].answer(wrong, failed)), want, "{wrong:?}");
        }
    }
    wait(&mut pair);
    kernels[0].serve(&fault);
    assert_eq!(refusal(kernels[0].resume(&fault, false)), unknown);
    assert_eq!(pair.a.device.absent_pages(&fault), []);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
}

#[test]
fn a_queue_pair_that_is_reset_waits_no_more() {
    for end in [|pair: &mut Pair| pair.qa.reset(), |pair: &mut Pair| pair.qa.destroy()] {
        let (mut pair, mut kernels) = pair(&Connection::default());
        let (local, remote) = (region(&pair.a, PAGE), pair.b.region(PAGE));
        write(&mut pair, &local, &remote);
        wait(&mut pair);
        let fault = kernels[0].fault();
        end(&mut pair);
        assert_eq!(pair.a.device.absent_pages(&fault), []);
        let unknown = (CommandStatus::BadResource, CommandSyndrome::UnknownPageFault);
        assert_eq!(refusal(kernels[0].resume(&fault, true)), unknown);
        assert_eq!(finish(&mut pair, &mut kernels), []);
    }
    // In error, the work request is flushed once.
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (region(&pair.a, PAGE), pair.b.region(PAGE));
    write(&mut pair, &local, &remote);
    wait(&mut pair);
    let fault = kernels[0].fault();
    pair.qa.to_error();
    pair.step(PASSES);
    assert!(kernels[0].resume(&fault, true).is_err());
    finish(&mut pair, &mut kernels);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [Some(Syndrome::WorkRequestFlushed)]);
}

#[test]
fn without_a_kernel_the_device_pages_in_itself() {
    let fabric = Fabric::new();
    let [a, b] = [(); 2].map(|()| node(&fabric, Faults::default()));
    let events = Eq::new(&b, 4, !EventType::PageFault.mask());
    let mut pair = Pair::over(a, b, &Connection::default());
    let (local, remote) = (region(&pair.a, PAGE), region(&pair.b, PAGE));
    write(&mut pair, &local, &remote);
    pair.settle();
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    // From when a kernel listens, it is asked; what was there before is not.
    let mut kernels = [Kernel::new(&pair.a), Kernel::new(&pair.b)];
    write(&mut pair, &local, &remote);
    let faults = finish(&mut pair, &mut kernels);
    assert!(matches!(faults[..], [PageFault::Wqe { .. }, PageFault::Rdma { .. }]), "{faults:?}");
    drop(kernels);
    let again = region(&pair.b, PAGE);
    write(&mut pair, &local, &again);
    pair.settle();
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None; 2]);
    drop(events);
}

#[test]
fn a_fault_that_cannot_be_reported_is_an_error() {
    let fabric = Fabric::new();
    let [a, b] = [(); 2].map(|()| node(&fabric, Faults::default()));
    let _full = Eq::new(&a, 0, EventType::PageFault.mask());
    let mut pair = Pair::over(a, b, &Connection::default());
    let (local, remote) = (region(&pair.a, PAGE), pair.b.region(PAGE));
    let other = crate::support::Qp::new(&pair.a);
    let mut second = Pair::of(
        pair.a.clone(),
        pair.b.clone(),
        (other, crate::support::Qp::new(&pair.b)),
        &Connection::default(),
    );
    write(&mut pair, &local, &remote);
    wait(&mut pair);
    write(&mut second, &local, &remote);
    second.settle();
    assert_eq!(syndromes(&mut second.qa.send_cq), [Some(Syndrome::LocalProtection)]);
    assert_eq!(pair.qa.send_cq.poll(), None);
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no MADV_POPULATE_READ and MADV_POPULATE_WRITE")]
fn only_memory_that_is_mapped_is_brought_in() {
    let node = node(&Fabric::new(), Faults::default());
    let (demand, pinned) = (region(&node, 2 * PAGE), node.region(PAGE));
    let umem = demand.memory.umem();
    let device = &node.device;
    let outside = |offset, length| PagingError::Bounds { umem, offset, length };
    let page_in = |offset, length| {
        let both = [true, false].map(|write| AbsentPages { umem, offset, length, write });
        let [first, second] = both.map(|pages| device.page_in(pages));
        assert_eq!((first, first), (second, device.page_out(both[0])));
        first
    };
    assert_eq!(page_in(0, 2 * PAGE as u64), Ok(()));
    assert_eq!(page_in(2 * PAGE as u64 - 1, 1), Ok(()));
    assert_eq!(page_in(1, 2 * PAGE as u64), Err(outside(1, 2 * PAGE as u64)));
    assert_eq!(page_in(u64::MAX, 2), Err(outside(u64::MAX, 2)));
    let fixed = PagingError::NotOnDemand { umem: pinned.memory.umem() };
    assert_eq!(device.page_in(part(&pinned, 0, PAGE, false)), Err(fixed));
    assert_eq!(device.page_out(part(&pinned, 0, PAGE, false)), Err(fixed));
    let unknown = PagingError::Unknown { umem: 0xff_ffff };
    assert_eq!(device.page_in(pages(0xff_ffff, 0, 1, false)), Err(unknown));

    let (hole, _) = crate::on_demand::with_hole(&node);
    let unmapped = device.page_in(pages(hole, PAGE, 2 * PAGE, false));
    assert!(matches!(unmapped, Err(PagingError::Unmapped { length, .. }) if length == 2 * PAGE));
    assert_eq!(device.page_in(pages(hole, PAGE, PAGE, true)), Ok(()));
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no MADV_POPULATE_READ and MADV_POPULATE_WRITE")]
fn pages_that_the_program_unmaps_are_absent() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (umem, (address, key)) = crate::on_demand::with_hole(&pair.b);
    let local = pair.a.region(64);
    let hole = pages(umem, 2 * PAGE, PAGE, true);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(address + 2 * PAGE as u64, key);
    pair.qa.post(&wqe.data(local.address(), 64, local.key));
    wait(&mut pair);
    let fault = kernels[1].fault();
    assert_eq!(pair.b.device.absent_pages(&fault), [hole]);
    assert!(pair.b.device.page_in(hole).is_err());
    kernels[1].resume(&fault, true).unwrap();
    finish(&mut pair, &mut kernels);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [Some(Syndrome::RemoteAccess)]);
}

#[test]
fn services_on_demand_are_those_of_adapters() {
    let services = |node: &Node| {
        let output = command::<QueryHcaCapIn>(&node.device, |query| {
            let page = op_mod(CapabilityPage::Odp, CapabilityMode::Current);
            query.set(QueryHcaCapIn::OP_MOD, page);
        })
        .unwrap();
        let page = answer::<QueryHcaCapIn>(&output).unwrap().nested(QueryHcaCapOut::ODP);
        [OdpCap::RC_ODP_CAPS, OdpCap::XRC_ODP_CAPS, OdpCap::DC_ODP_CAPS, OdpCap::UD_ODP_CAPS]
            .map(|field| OdpServices::from_bits(page.get(field)).unwrap())
    };
    let fabric = Fabric::new();
    // A ConnectX-6 on InfiniBand and a ConnectX-5 on Ethernet.
    let all = OdpServices::all();
    let (xrc, dc) = (all - OdpServices::RECEIVE, all - OdpServices::RECEIVE - OdpServices::ATOMIC);
    let config = Config::default().wire(WireKind::Fabric(fabric.clone())).mode(Mode::Stepped);
    let infiniband = Node::open(config.port_type(PortType::InfiniBand));
    assert_eq!(services(&infiniband), [all, xrc, dc, OdpServices::SEND]);
    let ethernet = Node::stepped(&fabric, Faults::default());
    let rc = all - OdpServices::ATOMIC;
    assert_eq!(services(&ethernet), [rc, dc, dc, OdpServices::SEND]);
}
