//! The addresses of verbs objects on mlx5 devices, and posting through them.

use crate::support;

use std::sync::atomic::{Ordering, fence};

use barewire_layouts::cqe::Cqe64;
use barewire_layouts::wqe::{
    ControlFlags, ControlSegment, InlineHeader, Opcode, RemoteAddressSegment, WQEBB,
};
use barewire_verbs::dv::{self, CompletionQueueInfo, QueuePairInfo, ScatterToEntry};
use barewire_verbs::{
    AddressHandle, Capacity, CompletionQueue, Context, EventKind, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairKind, QueuePairOptions, SharedReceiveQueue,
};
use support::{Pages, all_access, connect, device, options, reliable, to_itself, wait_for};
use zerocopy::{FromBytes, IntoBytes};

fn open() -> (Context, ProtectionDomain) {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    (context, domain)
}

#[test]
#[ignore = "needs a device"]
fn an_address_is_resolved() {
    let (context, domain) = open();
    let route = to_itself(&context, &domain);
    let vector = AddressHandle::new(&domain, &route).unwrap().address_vector().unwrap();
    match route.global {
        Some(global) => {
            assert_ne!(vector.mac, [0; 6], "MAC address of the next hop");
            assert_eq!(vector.gid, global.gid.0);
            assert_eq!(vector.source_index(), global.source_index);
        }
        None => assert_eq!(vector.base.lid_or_port.get(), route.lid),
    }
}

/// Writes a WQE to the ring, rings the doorbell, and waits for the completion, without verbs.
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
    // SAFETY: the memory is read and written by volatile accesses only, and is deregistered before
    // it is freed.
    let region =
        unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) }.unwrap();
    let (send, completions) = (qp.info(), queue.info());
    check(send, completions);

    let control =
        ControlSegment::new(Opcode::RdmaWrite, 0, send.number, 3, ControlFlags::COMPLETION, 0);
    let remote = RemoteAddressSegment::new(pages.address(64), region.remote_key());
    let header = InlineHeader::new(8);
    let bytes = [control.as_bytes(), remote.as_bytes(), header.as_bytes(), b"straight"].concat();
    let mut wqe = [0; WQEBB];
    wqe[..bytes.len()].copy_from_slice(&bytes);
    let cqe = completions.ring.start;
    // SAFETY: the addresses belong to queues that are alive, and no other code writes to them. The
    // first WQE is at the start of the ring.
    unsafe {
        send.send.unwrap().start.cast::<[u8; WQEBB]>().write_volatile(wqe);
        fence(Ordering::Release);
        send.doorbell_record.cast::<u32>().add(1).write_volatile(1_u32.to_be());
        fence(Ordering::SeqCst);
        send.register
            .cast::<u64>()
            .write_volatile(u64::from_ne_bytes(wqe[..8].try_into().unwrap()));
    }
    wait_for("the completion", || {
        // SAFETY: the byte is the last one of the first entry, in the ring of a live completion
        // queue. It holds opcode and owner bit, which become 0 when the device writes the entry in
        // the first lap; the read is volatile.
        unsafe { cqe.add(completions.ring.stride as usize - 1).read_volatile() & 0xf1 == 0 }
    });
    fence(Ordering::Acquire);
    // SAFETY: the entry is in the ring of a live completion queue, and its last byte shows that
    // the device has written it.
    let entry = unsafe {
        cqe.add(completions.ring.stride as usize - 64).cast::<[u8; 64]>().read_volatile()
    };
    assert_eq!(Cqe64::read_from_bytes(&entry).unwrap().wqe_counter.get(), 0);
    assert_eq!(&pages.read::<8>(64), b"straight");
    drop((qp, queue, region));
}

#[test]
#[ignore = "needs a device"]
fn queues_are_made_for_direct_access() {
    let (context, domain) = open();
    let queue = dv::CompletionQueue::create(&context, 100, 128).unwrap();
    assert_eq!((queue.info().ring.entries, queue.info().ring.stride), (128, 128));
    let options = QueuePairOptions {
        kind: QueuePairKind::ReliableConnection,
        send_queue: queue.reference(),
        receive_queue: queue.reference(),
        shared_receive: None,
        capacity: Capacity {
            sends: 16,
            receives: 16,
            send_elements: 1,
            receive_elements: 1,
            inline: 64,
        },
        signal_all: false,
    };
    for scatter in [ScatterToEntry::Never, ScatterToEntry::Received, ScatterToEntry::Always] {
        let qp = dv::QueuePair::create(&domain, None, &options, scatter).unwrap();
        check(qp.info(), queue.info());
        assert!(qp.capacity().inline >= 64, "{:?}", qp.capacity());
    }
    let error = dv::CompletionQueue::create(&context, 100, 96).unwrap_err();
    assert!(error.to_string().contains("100 entries of 96 bytes"), "{error}");
}

fn check(send: &QueuePairInfo, completions: &CompletionQueueInfo) {
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

#[test]
#[ignore = "needs a device"]
fn a_shared_queue_is_opened() {
    let (_context, domain) = open();
    let shared = SharedReceiveQueue::new(&domain, 100, 2).unwrap().open_direct().unwrap();
    let info = *shared.info();
    assert_ne!(info.number, 0);
    assert_eq!(info.head, 0);
    assert!(info.tail >= 99 && (info.tail + 1).is_power_of_two(), "{info:?}");
    assert!(info.stride >= 16 + 2 * 16, "{info:?}");
}

#[test]
#[ignore = "needs a device"]
fn a_queue_pair_in_error_tells_that_it_has_let_go_of_its_shared_queue() {
    let (context, domain) = open();
    let queue = CompletionQueue::new(&context, 16).unwrap();
    let shared = SharedReceiveQueue::new(&domain, 16, 1).unwrap();
    let options = QueuePairOptions {
        shared_receive: Some(shared.reference()),
        ..options(QueuePairKind::ReliableConnection, &queue)
    };
    let qp = QueuePair::new(&domain, &options).unwrap();
    connect(&qp, qp.number(), to_itself(&context, &domain));
    assert!(context.next_event().unwrap().is_none());
    qp.fail().unwrap();
    let mut event = None;
    wait_for("the event", || {
        event = context.next_event().unwrap();
        event.is_some()
    });
    assert_eq!(event.unwrap().kind(), EventKind::LastRequestReached(qp.number()));
}
