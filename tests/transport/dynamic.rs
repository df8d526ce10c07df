//! `dc_mlx5`: endpoints that take initiators in turn, windows and grants, and failures of one
//! endpoint among others.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::capability::{AmShort, Check, Flush, GetZcopy, Pending, PutShort};
use barewire::config::DciPolicy;
use barewire::transport::dc_mlx5::{Domain, Endpoint, Interface, Progress};
use barewire::transport::{Domain as _, Endpoint as _, Interface as _};
use barewire::{
    Access, Cause, Completion, ConnectError, FlushMode, InterfaceConfig, OpenError, PendingResult,
    PostError, Posted,
};
use barewire_hca as hca;
use barewire_mlx5 as mlx5;
use barewire_mlx5::request::{Inline, Send};

use crate::support::device;

const DEADLINE: Duration = Duration::from_mins(1);
const POLICIES: [DciPolicy; 4] =
    [DciPolicy::Lifo, DciPolicy::Lru, DciPolicy::Quota, DciPolicy::Hash];

/// An interface on a software HCA of its own.
struct Node {
    domain: Domain,
    interface: Interface,
    progress: Progress,
    /// Header and length of every message, by id.
    inbox: Rc<RefCell<Vec<(u64, usize)>>>,
}

impl Node {
    fn new(config: &InterfaceConfig) -> Self {
        Self::on(device(hca::Faults::default()), config)
    }

    fn on(device: hca::Device, config: &InterfaceConfig) -> Self {
        let domain = Domain::open_soft(device).unwrap();
        let (interface, progress) = Interface::open(&domain, config).unwrap();
        let inbox = Rc::<RefCell<Vec<_>>>::default();
        let seen = Rc::clone(&inbox);
        let handler = move |message: barewire::Message<'_>| {
            let (header, payload) = message.split_short().unwrap();
            seen.borrow_mut().push((header, payload.len()));
        };
        interface.set_handler(1, handler).unwrap();
        Self { domain, interface, progress, inbox }
    }

    fn received(&self) -> usize {
        self.inbox.borrow().len()
    }
}

fn small() -> InterfaceConfig {
    InterfaceConfig::default().send_ring(16).receive_ring(16).spare_receive_buffers(0).dci_count(1)
}

fn until(nodes: &mut [&mut Node], mut done: impl FnMut(&mut [&mut Node]) -> bool) {
    let start = Instant::now();
    while !done(nodes) {
        for node in &mut *nodes {
            node.progress.progress();
        }
        assert!(start.elapsed() < DEADLINE, "not done in time");
    }
}

fn flush(endpoint: &Endpoint, nodes: &mut [&mut Node]) {
    until(nodes, |_| match endpoint.flush(FlushMode::Remote, None) {
        Ok(Posted::Done) => true,
        Ok(Posted::InProgress) | Err(PostError::NoResource) => false,
        other => panic!("{other:?}"),
    });
}

#[test]
fn more_endpoints_than_initiators_take_turns() {
    const EACH: u64 = 40;
    for policy in POLICIES {
        for count in [1, 3] {
            let config = small().dci_count(count).dci_policy(policy).message_window(8);
            let (mut from, mut to) = (Node::new(&config), Node::new(&config));
            let endpoints: Vec<_> =
                (0..12).map(|_| from.interface.connect(&to.interface.address()).unwrap()).collect();
            let done = Rc::new(Cell::new(0));
            for (at, endpoint) in endpoints.iter().enumerate() {
                let (done, mut next) = (Rc::clone(&done), 0);
                let request = move |endpoint: &Endpoint| {
                    while next < EACH {
                        match endpoint.am_short(1, (at as u64) << 32 | next, &[7; 100]) {
                            Ok(()) => next += 1,
                            Err(PostError::NoResource) => return PendingResult::Again,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    done.set(done.get() + 1);
                    PendingResult::Done
                };
                // Endpoints that find everything free post at once.
                let mut request = request;
                if request(endpoint) == PendingResult::Again {
                    endpoint.pending_add(request).unwrap();
                }
            }
            let all = 12 * EACH as usize;
            until(&mut [&mut from, &mut to], |nodes| nodes[1].received() == all);
            assert_eq!(done.get(), 12);
            let inbox = to.inbox.borrow();
            for at in 0..12 {
                let own = inbox.iter().map(|(header, _)| *header).filter(|h| h >> 32 == at);
                let own: Vec<_> = own.map(|header| header & 0xffff_ffff).collect();
                assert_eq!(own, (0..EACH).collect::<Vec<_>>(), "{policy:?}, endpoint {at}");
            }
        }
    }
}

#[test]
fn exhausted_initiators_refuse_and_come_back() {
    let config = small().dci_policy(DciPolicy::Lifo);
    let (mut from, mut to) = (Node::new(&config), Node::new(&config));
    let address = to.interface.address();
    let connect = |from: &Node| from.interface.connect(&address).unwrap();
    let (one, other) = (connect(&from), connect(&from));
    one.am_short(1, 1, b"takes the initiator").unwrap();
    assert_eq!(other.am_short(1, 2, b"finds none"), Err(PostError::NoResource));
    assert_eq!(other.counters().no_resource, 1);
    let sent = Rc::new(Cell::new(false));
    let flag = Rc::clone(&sent);
    let request = move |endpoint: &Endpoint| {
        flag.set(endpoint.am_short(1, 3, &[]).is_ok());
        if flag.get() { PendingResult::Done } else { PendingResult::Again }
    };
    other.pending_add(request).unwrap();
    until(&mut [&mut from, &mut to], |nodes| nodes[1].received() == 2);
    assert!(sent.get());
    assert_eq!(*to.inbox.borrow(), [(1, 19), (3, 0)]);
}

/// Each side has one initiator, sends more than its window, and answers nothing but grants.
#[test]
fn two_peers_with_one_initiator_each_and_full_windows() {
    const MESSAGES: u64 = 300;
    for policy in POLICIES {
        for window in [2, 5] {
            let config = small().dci_policy(policy).message_window(window);
            let mut nodes = [Node::new(&config), Node::new(&config)];
            let addresses = nodes.each_ref().map(|node| node.interface.address());
            let endpoints = [
                nodes[0].interface.connect(&addresses[1]).unwrap(),
                nodes[1].interface.connect(&addresses[0]).unwrap(),
            ];
            let mut sent = [0; 2];
            let [one, other] = &mut nodes;
            until(&mut [one, other], |nodes| {
                for (endpoint, sent) in endpoints.iter().zip(&mut sent) {
                    while *sent < MESSAGES && endpoint.am_short(1, *sent, &[1; 8]).is_ok() {
                        *sent += 1;
                    }
                }
                nodes.iter().all(|node| node.received() == MESSAGES as usize)
            });
            for node in &nodes {
                let headers = node.inbox.borrow();
                assert!(headers.iter().enumerate().all(|(at, (header, _))| *header == at as u64));
            }
        }
    }
}

/// A peer without progress gets no more than a window, and other peers are served.
#[test]
fn a_window_ends_at_a_peer_without_progress() {
    const WINDOW: usize = 8;
    let config = small().dci_count(2).message_window(WINDOW as u32);
    let (mut from, mut silent, mut other) =
        (Node::new(&config), Node::new(&config), Node::new(&config));
    let to_silent = from.interface.connect(&silent.interface.address()).unwrap();
    let to_other = from.interface.connect(&other.interface.address()).unwrap();
    let mut sent = 0;
    // Until the window is full and everything has arrived, so that more room does not help.
    until(&mut [&mut from], |_| {
        while to_silent.am_short(1, sent, &[]).is_ok() {
            sent += 1;
        }
        let flushed = to_silent.flush(FlushMode::Local, None);
        sent as usize == WINDOW && flushed == Ok(Posted::Done)
    });
    to_silent.pending_add(|_| PendingResult::Done).unwrap();
    for at in 0..100 {
        until(&mut [&mut from, &mut other], |_| to_other.am_short(1, at, &[]).is_ok());
    }
    until(&mut [&mut from, &mut other], |nodes| nodes[1].received() == 100);
    assert_eq!(silent.received(), 0);
    until(&mut [&mut from, &mut silent], |nodes| {
        if to_silent.am_short(1, sent, &[]).is_ok() {
            sent += 1;
        }
        nodes[1].received() >= 10 * WINDOW
    });
}

#[test]
fn a_failure_fails_its_endpoint_alone() {
    for policy in POLICIES {
        let config = small().dci_count(2).dci_policy(policy);
        let (mut from, mut to) = (Node::new(&config), Node::new(&config));
        let address = to.interface.address();
        let connect = |from: &Node| from.interface.connect(&address).unwrap();
        let errors = Rc::<RefCell<Vec<_>>>::default();
        let seen = Rc::clone(&errors);
        from.interface.set_error_handler(move |error| seen.borrow_mut().push(error.clone()));
        let memory = to.domain.allocate(64, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        let key = from.domain.unpack_key(&memory.pack_key()).unwrap();
        let survivor = connect(&from);
        for round in 1..=5_u8 {
            let failing = connect(&from);
            let local = from.domain.allocate(64, Access::LOCAL_WRITE).unwrap();
            let completion = Completion::counter();
            failing.put_short(&[round; 8], memory.address(), &key).unwrap();
            failing.put_short(&[round; 8], memory.address() + 60, &key).unwrap();
            let slice = local.slice(0, 8).unwrap();
            let get = failing.get_zcopy(&[slice], memory.address(), &key, Some(&completion));
            assert_eq!(get, Ok(Posted::InProgress));
            until(&mut [&mut from, &mut to], |_| completion.pending() == 0);
            assert_eq!(completion.status().unwrap_err().cause, Cause::Flushed, "{policy:?}");
            let error = failing.error().unwrap();
            assert_eq!(error.cause, Cause::RemoteAccess);
            assert!(error.to_string().contains("DCT"), "{error}");
            let refused = failing.put_short(&[0; 8], memory.address(), &key);
            assert_eq!(refused, Err(PostError::EndpointFailed));
            drop(failing);
            until(&mut [&mut from, &mut to], |_| {
                survivor.put_short(&[round + 100; 8], memory.address() + 8, &key).is_ok()
            });
            flush(&survivor, &mut [&mut from, &mut to]);
            let mut bytes = [0; 16];
            memory.read(0, &mut bytes).unwrap();
            assert_eq!((bytes[0], bytes[8]), (round, round + 100), "what came before arrived");
            assert_eq!(errors.borrow().len(), usize::from(round));
        }
        assert!(survivor.error().is_none());
    }
}

#[test]
fn a_cancelled_endpoint_leaves_a_usable_initiator() {
    let config = small();
    let (mut from, mut to) = (Node::new(&config), Node::new(&config));
    let address = to.interface.address();
    let connect = |from: &Node| from.interface.connect(&address).unwrap();
    for round in 0..50 {
        let (canceled, other) = (connect(&from), connect(&from));
        for number in 0..round % 5 {
            until(&mut [&mut from], |_| canceled.am_short(1, number, &[]).is_ok());
        }
        // Some are complete, and their completions are not taken.
        let until_now = Instant::now() + Duration::from_micros(round * 20);
        while Instant::now() < until_now {}
        let completion = Completion::counter();
        let posted = canceled.flush(FlushMode::Cancel, Some(&completion)).unwrap();
        if posted == Posted::InProgress {
            until(&mut [&mut from, &mut to], |_| completion.pending() == 0);
        }
        assert_eq!(canceled.am_short(1, 0, &[]), Err(PostError::EndpointFailed));
        until(&mut [&mut from, &mut to], |_| other.am_short(1, 1000 + round, &[]).is_ok());
        let wanted = (1000 + round, 0);
        until(&mut [&mut from, &mut to], |nodes| nodes[1].inbox.borrow().contains(&wanted));
    }
}

/// The peer's interface is closed: its endpoint fails, and others do not.
#[test]
fn a_closed_peer_fails_its_endpoint_alone() {
    let config = small().ack_timeout(8).retry_count(2);
    let (mut from, gone, mut other) = (Node::new(&config), Node::new(&config), Node::new(&config));
    let to_gone = from.interface.connect(&gone.interface.address()).unwrap();
    let to_other = from.interface.connect(&other.interface.address()).unwrap();
    to_gone.check().unwrap();
    until(&mut [&mut from], |_| to_gone.flush(FlushMode::Local, None) == Ok(Posted::Done));
    drop(gone);
    to_gone.check().unwrap();
    until(&mut [&mut from], |_| to_gone.error().is_some());
    until(&mut [&mut from, &mut other], |_| to_other.am_short(1, 5, b"x").is_ok());
    until(&mut [&mut from, &mut other], |nodes| nodes[1].received() == 1);
    assert!(to_other.error().is_none());
}

/// The peer's device holds one connection, which waits for a receive buffer. Endpoints that need
/// another one fail after their retries, and nothing else does.
#[test]
fn an_exhausted_target_fails_new_connections_only() {
    let narrow = hca::Config::default().dynamic_connections(1);
    let mut target = Node::on(hca::Device::open(narrow).unwrap(), &small());
    let mut holder = Node::new(&small().rnr_retry(7));
    let (mut late, mut other) = (Node::new(&small().rnr_retry(1)), Node::new(&small()));
    let held = holder.interface.connect(&target.interface.address()).unwrap();
    // Until the target has no buffer for the next ones.
    let (mut sent, mut last) = (0, Instant::now());
    until(&mut [&mut holder], |_| match held.am_short(1, sent, &[]) {
        Ok(()) => {
            (sent, last) = (sent + 1, Instant::now());
            false
        }
        Err(error) => {
            assert_eq!(error, PostError::NoResource);
            last.elapsed() > Duration::from_millis(300)
        }
    });
    let refused = late.interface.connect(&target.interface.address()).unwrap();
    let accepted = late.interface.connect(&other.interface.address()).unwrap();
    until(&mut [&mut late], |_| refused.am_short(1, 0, &[]).is_ok());
    until(&mut [&mut late], |_| refused.error().is_some());
    assert_eq!(refused.error().unwrap().cause, Cause::ReceiverNotReady);
    until(&mut [&mut late, &mut other], |_| accepted.am_short(1, 1, &[]).is_ok());
    until(&mut [&mut late, &mut other], |nodes| nodes[1].received() == 1);
    assert_eq!(accepted.error(), None);
    assert_eq!(held.error(), None);
    until(&mut [&mut holder, &mut target], |nodes| nodes[1].received() == sent as usize);
    // The connection ends when it is idle, and makes room.
    flush(&held, &mut [&mut holder, &mut target]);
    let again = late.interface.connect(&target.interface.address()).unwrap();
    until(&mut [&mut late, &mut target, &mut holder], |nodes| {
        let _ = again.am_short(1, 2, &[]);
        nodes[1].received() > sent as usize
    });
}

#[test]
fn short_messages_and_puts_of_every_length() {
    let config = small();
    let (mut from, mut to) = (Node::new(&config), Node::new(&config));
    let endpoint = from.interface.connect(&to.interface.address()).unwrap();
    let memory = to.domain.allocate(256, Access::REMOTE_WRITE).unwrap();
    let key = from.domain.unpack_key(&memory.pack_key()).unwrap();
    let attributes = from.interface.attributes().clone();
    let (am, put) = (attributes.am.max_short, attributes.put.max_short);
    assert_eq!((am, put), (176, 172));
    for length in 0..=am {
        until(&mut [&mut from, &mut to], |_| {
            endpoint.am_short(1, length as u64, &vec![3; length]).is_ok()
        });
    }
    until(&mut [&mut from, &mut to], |nodes| nodes[1].received() == am + 1);
    assert!(to.inbox.borrow().iter().all(|(header, length)| *header == *length as u64));
    for length in 0..=put {
        let bytes: Vec<_> = (0..length).map(|at| (at + length) as u8).collect();
        until(&mut [&mut from, &mut to], |_| {
            endpoint.put_short(&bytes, memory.address(), &key).is_ok()
        });
        flush(&endpoint, &mut [&mut from, &mut to]);
        let mut read = vec![0; length];
        memory.read(0, &mut read).unwrap();
        assert_eq!(read, bytes);
    }
    assert_eq!(
        endpoint.am_short(1, 0, &[0; 177]),
        Err(PostError::TooLong { length: 177, limit: 176 })
    );
    let long = endpoint.put_short(&[0; 173], memory.address(), &key);
    assert_eq!(long, Err(PostError::TooLong { length: 173, limit: 172 }));
}

#[test]
fn settings_and_addresses_that_do_not_fit_are_refused() {
    let domain = Domain::open_soft(device(hca::Faults::default())).unwrap();
    for config in [
        InterfaceConfig::default().dci_count(0),
        InterfaceConfig::default().dci_count(257),
        InterfaceConfig::default().message_window(1),
        InterfaceConfig::default().message_window((1 << 15) + 1),
        InterfaceConfig::default().send_ring(17),
        InterfaceConfig::default().path_mtu(1000),
    ] {
        assert!(matches!(Interface::open(&domain, &config), Err(OpenError::Setting { .. })));
    }
    let (one, other) = (Node::new(&small()), Node::new(&small().path_mtu(1024)));
    let refused = one.interface.connect(&other.interface.address()).unwrap_err();
    assert!(matches!(refused, ConnectError::Device { .. }));
    assert!(refused.to_string().contains("path_mtu"), "{refused}");
    let endpoint = Endpoint::new(&one.interface).unwrap();
    assert_eq!(endpoint.am_short(1, 0, &[]), Err(PostError::NotConnected));
    endpoint.connect(&one.interface.address()).unwrap();
    let again = endpoint.connect(&one.interface.address());
    assert!(matches!(again, Err(ConnectError::Connected { .. })));
}

/// Anyone with the interface's address can send it any bytes: control messages with wrong lengths,
/// tickets and addresses among them.
#[test]
fn messages_of_strangers_do_no_harm() {
    let mut node = Node::new(&small());
    let unhandled_before = node.interface.unhandled();
    let address = node.interface.address();
    let body = address.interface().to_bytes();
    let word = |at: usize| u64::from_be_bytes(body[6 + at..14 + at].try_into().unwrap());
    let (target, key) = ((word(0) >> 32) as u32, word(8));
    let port = address.device().to_bytes();
    let mut peer = mlx5::PortAddress { gid: [0; 16], mac: [0; 6], lid: 0 };
    peer.gid.copy_from_slice(&port[6..22]);
    peer.mac.copy_from_slice(&port[22..28]);
    let stranger = device(hca::Faults::default());
    let context = mlx5::Context::open(mlx5::channel::soft::Soft::new(stranger)).unwrap();
    let domain = mlx5::ProtectionDomain::allocate(&context).unwrap();
    let uar = mlx5::Uar::allocate(&context).unwrap();
    let mut completions = mlx5::CompletionQueue::create(&context, &uar, 256).unwrap();
    let config = mlx5::InitiatorConfig::default();
    let mut initiator: mlx5::Initiator =
        mlx5::Initiator::create(&domain, &uar, &completions, &config).unwrap();
    let to = initiator.destination(&mlx5::dc::Peer::new(peer, target, key)).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    for round in 0..800_usize {
        let mut message: Vec<u8> = (0..round % 90).map(|_| byte()).collect();
        if let Some(id) = message.get_mut(1) {
            // Handlers check what they get; the others are of the transport.
            *id = [0xfe, 0xff, *id | 2][round % 3];
        }
        if round % 7 == 0 && message.len() >= 68 {
            // A request with a valid address, to a target that does not exist.
            message[12..36].copy_from_slice(&port[6..30]);
            message[36..68].copy_from_slice(&body[6..38]);
            message[37..40].fill(0xff);
        }
        message.truncate(if round % 11 == 0 { 68 } else { 90 });
        let flags = mlx5::ControlFlags::COMPLETION;
        initiator.send.towards(&to).post(Send(Inline(&message)), flags).unwrap();
        let start = Instant::now();
        loop {
            node.progress.progress();
            if let Some(polled) = completions.poll() {
                let done = polled.completion();
                assert_eq!(done.kind, mlx5::CompletionKind::Send);
                initiator.send.reap(done.wqe_counter);
                break;
            }
            assert!(start.elapsed() < DEADLINE);
        }
    }
    assert!(node.interface.unhandled() > unhandled_before);
    let endpoint = node.interface.connect(&address).unwrap();
    until(&mut [&mut node], |_| endpoint.am_short(1, 9, b"still here").is_ok());
    until(&mut [&mut node], |nodes| nodes[0].inbox.borrow().contains(&(9, 10)));
}
