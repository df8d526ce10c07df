//! Objects of verbs, and a look into them.

mod support;

use std::sync::atomic::{Ordering, fence};

use barewire_layouts::cqe::Cqe64;
use barewire_layouts::wqe::{
    ControlFlags, ControlSegment, InlineHeader, Opcode, RemoteAddressSegment, WQEBB,
};
use barewire_verbs::dv::{self, CompletionQueueFacts, QueuePairFacts, ScatterToEntry};
use barewire_verbs::{
    AddressHandle, Capacity, CompletionQueue, Context, GidKind, LinkLayer, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairKind, QueuePairOptions, QueuePairState, Route,
};
use support::{Pages, all_access, connect, device, port, reliable, to_itself, wait_for};
use zerocopy::{FromBytes, IntoBytes};

fn open() -> (Context, ProtectionDomain) {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    (context, domain)
}

#[test]
#[ignore = "needs a device"]
fn a_port_has_addresses() {
    let (context, domain) = open();
    let port = port(&context);
    let gids = context.gids().unwrap();
    assert!(gids.iter().any(|entry| entry.port == 1), "{gids:?}");
    let choice = context.choose_gid(&domain, &port).unwrap();
    println!("{}", choice.reason);
    assert!(gids.contains(&choice.entry));
    if port.link_layer == LinkLayer::Ethernet {
        assert_eq!(choice.entry.kind, GidKind::RoceV2);
        assert!(choice.entry.gid.ipv4().is_some(), "{choice:?}");
        assert!(choice.reason.contains("the first RoCEv2 with an IPv4 address"));
    } else {
        assert_ne!(port.lid, 0);
    }
}

#[test]
#[ignore = "needs a device"]
fn an_address_is_resolved() {
    let (context, domain) = open();
    let route = to_itself(&context, &domain);
    let vector = AddressHandle::new(&domain, &route).unwrap().address_vector().unwrap();
    match route.global {
        Some(global) => {
            assert_ne!(vector.mac, [0; 6], "the next hop");
            assert_eq!(vector.gid, global.gid.0);
            assert_eq!(vector.source_index(), global.source_index);
        }
        None => assert_eq!(vector.base.lid_or_port.get(), route.lid),
    }
    let error = AddressHandle::new(&domain, &Route { port: 77, ..route }).unwrap_err();
    assert!(error.to_string().contains("cannot make an address handle to"), "{error}");
}

#[test]
#[ignore = "needs a device"]
fn queue_pairs_go_through_their_states() {
    let (context, domain) = open();
    let queue = CompletionQueue::new(&context, 64).unwrap();
    assert!(queue.entries() >= 64);
    let qp = reliable(&domain, &queue);
    assert_eq!(qp.state().unwrap(), QueuePairState::Reset);
    assert!(qp.capacity().inline >= 64 && qp.capacity().sends >= 16, "{:?}", qp.capacity());
    connect(&qp, qp.number(), to_itself(&context, &domain));
    assert_eq!(qp.state().unwrap(), QueuePairState::ReadyToSend);
    qp.fail().unwrap();
    assert_eq!(qp.state().unwrap(), QueuePairState::Error);
    qp.reset().unwrap();
    assert_eq!(qp.state().unwrap(), QueuePairState::Reset);
    let error = qp.ready_to_receive(None).unwrap_err();
    assert!(error.to_string().contains("to state ReadyToReceive"), "{error}");
}

#[test]
#[ignore = "needs a device"]
fn what_cannot_be_made_is_said() {
    let (context, domain) = open();
    let error = CompletionQueue::new(&context, u32::MAX).unwrap_err();
    assert!(error.to_string().contains("create a completion queue of 4294967295"), "{error}");
    let queue = CompletionQueue::new(&context, 1).unwrap();
    let options = QueuePairOptions {
        kind: QueuePairKind::ReliableConnection,
        send_queue: queue.reference(),
        receive_queue: queue.reference(),
        shared_receive: None,
        capacity: Capacity { sends: u32::MAX, ..Capacity::default() },
        signal_all: false,
    };
    let error = QueuePair::new(&domain, &options).unwrap_err();
    assert!(error.to_string().contains("cannot create a queue pair"), "{error}");
}

#[test]
#[ignore = "needs a device"]
fn objects_are_dropped_in_any_order() {
    let (context, domain) = open();
    let queue = CompletionQueue::new(&context, 16).unwrap();
    let qp = reliable(&domain, &queue);
    let pages = Pages::new(4096);
    // SAFETY: nobody looks at the memory, and it is deregistered before it is freed.
    let mut region = unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) }.unwrap();
    drop(context);
    drop(queue);
    drop(domain);
    assert_eq!(qp.state().unwrap(), QueuePairState::Reset);
    drop(qp);
    assert_eq!((region.address(), region.length()), (pages.address(0), 4096));
    region.deregister().unwrap();
    region.deregister().expect("it is gone, and that is what is asked for");
}

/// Writes a WQE into the ring, rings, and waits for the completion, all by hand.
#[test]
#[ignore = "needs a device"]
fn rings_and_registers_are_where_they_are_said_to_be() {
    let (context, domain) = open();
    let queue = CompletionQueue::new(&context, 16).unwrap();
    let qp = reliable(&domain, &queue);
    let qp = qp.open_direct().unwrap();
    let queue = queue.open_direct().unwrap();
    connect(&qp, qp.number(), to_itself(&context, &domain));
    let pages = Pages::new(4096);
    // SAFETY: read and written by volatile accesses only, and deregistered before it is freed.
    let region = unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) }.unwrap();
    let (send, completions) = (qp.facts(), queue.facts());
    check(send, completions);

    let control = ControlSegment::new(Opcode::RdmaWrite, 0, send.number, 3, ControlFlags::COMPLETION, 0);
    let remote = RemoteAddressSegment::new(pages.address(64), region.remote_key());
    let header = InlineHeader::new(8);
    let bytes = [control.as_bytes(), remote.as_bytes(), header.as_bytes(), b"straight"].concat();
    let mut wqe = [0; WQEBB];
    wqe[..bytes.len()].copy_from_slice(&bytes);
    let cqe = completions.ring.start;
    // SAFETY: the facts are of queues that are alive, and nobody else writes to them. The first WQE lies at the start of the ring.
    unsafe {
        send.send.unwrap().start.cast::<[u8; WQEBB]>().write_volatile(wqe);
        fence(Ordering::Release);
        send.doorbell_record.cast::<u32>().add(1).write_volatile(1_u32.to_be());
        fence(Ordering::SeqCst);
        send.register.cast::<u64>().write_volatile(u64::from_ne_bytes(wqe[..8].try_into().unwrap()));
    }
    wait_for("the completion", || {
        // SAFETY: as above; the last byte is the owner, and this is the first round of the ring.
        unsafe { cqe.add(completions.ring.stride as usize - 1).read_volatile() & 0xf1 == 0 }
    });
    fence(Ordering::Acquire);
    // SAFETY: as above; the device has written the entry.
    let entry = unsafe { cqe.add(completions.ring.stride as usize - 64).cast::<[u8; 64]>().read_volatile() };
    assert_eq!(Cqe64::read_from_bytes(&entry).unwrap().wqe_counter.get(), 0);
    assert_eq!(&pages.read::<8>(64), b"straight");
    drop((qp, queue, region));
}

#[test]
#[ignore = "needs a device"]
fn queues_are_made_for_direct_access() {
    let (context, domain) = open();
    let queue = dv::CompletionQueue::create(&context, 100, 128).unwrap();
    assert_eq!((queue.facts().ring.entries, queue.facts().ring.stride), (128, 128));
    let options = QueuePairOptions {
        kind: QueuePairKind::ReliableConnection,
        send_queue: queue.reference(),
        receive_queue: queue.reference(),
        shared_receive: None,
        capacity: Capacity { sends: 16, receives: 16, send_elements: 1, receive_elements: 1, inline: 64 },
        signal_all: false,
    };
    for scatter in [ScatterToEntry::Never, ScatterToEntry::Received, ScatterToEntry::Always] {
        let qp = dv::QueuePair::create(&domain, None, &options, scatter).unwrap();
        check(qp.facts(), queue.facts());
        assert!(qp.capacity().inline >= 64, "{:?}", qp.capacity());
    }
    let error = dv::CompletionQueue::create(&context, 100, 96).unwrap_err();
    assert!(error.to_string().contains("100 entries of 96 bytes"), "{error}");
}

fn check(send: &QueuePairFacts, completions: &CompletionQueueFacts) {
    let ring = send.send.unwrap();
    assert!(ring.entries.is_power_of_two() && ring.entries >= 16, "{ring:?}");
    assert_eq!(ring.stride as usize, WQEBB);
    let receive = send.receive.unwrap();
    assert!(receive.entries >= 16 && receive.stride >= 16, "{receive:?}");
    assert!(send.register_size == 0 || send.register_size >= 64, "{send:?}");
    assert!([64, 128].contains(&completions.ring.stride), "{completions:?}");
    assert!(completions.ring.entries >= 16);
    assert_eq!(completions.uar.as_ptr().align_offset(4096), 0);
}
