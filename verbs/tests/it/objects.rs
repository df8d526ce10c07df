//! Creation, queries and destruction of verbs objects.

use crate::support;

use barewire_verbs::{
    AddressHandle, Capacity, CompletionQueue, Context, Enhancements, GidKind, LinkLayer,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairKind, QueuePairOptions, QueuePairState,
    Route,
};
use support::{Pages, all_access, connect, device, options, port, reliable, to_itself};

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
fn an_address_that_is_nobodys_is_refused() {
    let (context, domain) = open();
    let route = to_itself(&context, &domain);
    drop(AddressHandle::new(&domain, &route).unwrap());
    let error = AddressHandle::new(&domain, &Route { port: 77, ..route }).unwrap_err();
    assert!(error.to_string().contains("cannot create an address handle for"), "{error}");
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
fn enhancements_are_those_that_the_device_supports() {
    let (context, domain) = open();
    let queue = CompletionQueue::new(&context, 64).unwrap();
    let (qp, peer) = (reliable(&domain, &queue), reliable(&domain, &queue));
    let supported = match qp.enhancements() {
        Ok(supported) => supported,
        // The kernel's software device has none, and its connections work without them.
        Err(error) => {
            assert!(error.to_string().contains("cannot query the enhancements"), "{error}");
            assert_eq!(error.source_error().kind(), std::io::ErrorKind::Unsupported, "{error}");
            assert!(context.is_soft_roce(), "{error}");
            connect(&qp, peer.number(), to_itself(&context, &domain));
            assert_eq!(qp.state().unwrap(), QueuePairState::ReadyToSend);
            return;
        }
    };
    assert_eq!((supported.vendor, supported.mask), (0x15b3, 0));
    assert_ne!(supported.options, 0);
    qp.set_enhancements(&supported).unwrap();
    // Of all that there may be, the device selects those that it supports.
    qp.set_enhancements(&Enhancements { options: u32::MAX, ..supported }).unwrap();
    connect(&qp, peer.number(), to_itself(&context, &domain));
    assert_eq!(qp.enhancements().unwrap(), supported);
    let version = supported.options & 0xf000_0000;
    peer.set_enhancements(&Enhancements { options: version, ..supported }).unwrap();
    connect(&peer, qp.number(), to_itself(&context, &domain));
    assert_eq!(peer.enhancements().unwrap().options, version);
    peer.set_enhancements(&Enhancements { vendor: 1, ..supported }).unwrap_err();
}

#[test]
#[ignore = "needs a device"]
fn what_cannot_be_made_is_said() {
    let (context, domain) = open();
    let error = CompletionQueue::new(&context, u32::MAX).unwrap_err();
    assert!(error.to_string().contains("create a completion queue of 4294967295"), "{error}");
    let queue = CompletionQueue::new(&context, 1).unwrap();
    let options = QueuePairOptions {
        capacity: Capacity { sends: u32::MAX, ..Capacity::default() },
        ..options(QueuePairKind::ReliableConnection, &queue)
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
    // SAFETY: this process does not access the memory, which is deregistered before it is freed.
    let mut region =
        unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) }.unwrap();
    drop(context);
    drop(queue);
    drop(domain);
    assert_eq!(qp.state().unwrap(), QueuePairState::Reset);
    drop(qp);
    assert_eq!((region.address(), region.length()), (pages.address(0), 4096));
    region.deregister().unwrap();
    region.deregister().expect("deregistering again must succeed");
}
