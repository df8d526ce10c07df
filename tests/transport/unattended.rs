//! Interfaces of `tcp` that need no progress of their process to accept connections and to send what
//! was posted.

use std::time::Instant;

use barewire::config::Choice;
use barewire::{
    Access, ConnectError, Endpoint, FlushMode, Interface, InterfaceConfig, PendingResult,
    PostError, Posted, Worker,
};

use crate::support::{DEADLINE, Inbox, collect, contents, headers, pattern, until};

/// Around the limits of short and copied messages, and of bytes that are sent together.
const SIZES: [usize; 8] = [0, 1, 2048, 2049, 8191, 8192, 8193, 8248];

fn config() -> InterfaceConfig {
    InterfaceConfig::default().unattended(true)
}

/// Two interfaces, and an endpoint from the first to the second.
struct Pair {
    sender: Worker,
    receiver: Worker,
    _from: Interface,
    to: Interface,
    endpoint: Endpoint,
}

impl Pair {
    fn with(config: &InterfaceConfig) -> Self {
        let domain = barewire::Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
        let (mut sender, mut receiver) = (Worker::new(), Worker::new());
        let from = Interface::open(&mut sender, &domain, config).unwrap();
        let to = Interface::open(&mut receiver, &domain, config).unwrap();
        let endpoint = from.connect(&to.address()).unwrap();
        Self { sender, receiver, _from: from, to, endpoint }
    }

    /// Makes progress at the sender only.
    fn send_until(&mut self, what: &str, done: impl FnMut() -> bool) {
        until(&mut [&mut self.sender], what, done);
    }

    /// Makes progress at the receiver only.
    fn receive_until(&mut self, what: &str, done: impl FnMut() -> bool) {
        until(&mut [&mut self.receiver], what, done);
    }

    /// Posts once the endpoint has connected, with progress at the sender only.
    fn connect(&mut self) {
        let endpoint = self.endpoint.clone();
        self.send_until("the connection", || !endpoint.is_connecting());
        assert_eq!(endpoint.error(), None);
    }

    /// Posts messages until the kernel takes no more. Returns their number.
    fn fill(&mut self) -> u64 {
        let mut next = 0_u64;
        loop {
            match self.endpoint.am_short(1, next, &pattern(next as u32, 8000)) {
                Ok(()) => next += 1,
                Err(error) => {
                    assert_eq!(error, PostError::NoResource);
                    return next;
                }
            }
        }
    }
}

/// Checks that the messages are those of [`Pair::fill`], in order.
fn check(inbox: &Inbox, count: u64) {
    assert_eq!(headers(inbox), (0..count).collect::<Vec<_>>());
    for (number, message) in inbox.borrow().iter().enumerate() {
        assert!(message[8..] == pattern(number as u32, 8000), "message {number}");
    }
}

#[test]
fn an_endpoint_connects_and_sends_without_progress_of_the_peer() {
    for integrity in [Choice::No, Choice::Yes] {
        let mut pair = Pair::with(&config().integrity(integrity));
        let inbox = collect(&pair.to, 1);
        assert_eq!(pair.endpoint.am_short(1, 7, &[]), Err(PostError::NoResource));
        pair.connect();
        for (number, size) in SIZES.into_iter().enumerate() {
            let data = pattern(number as u32, size);
            assert_eq!(pair.endpoint.am_short(1, number as u64, &data), Ok(()));
        }
        assert_eq!(pair.endpoint.flush(FlushMode::Remote, None), Ok(Posted::Done));
        // The sender makes no progress any more.
        pair.receive_until("the messages", || inbox.borrow().len() == SIZES.len());
        for (number, size) in SIZES.into_iter().enumerate() {
            let message = &inbox.borrow()[number];
            assert_eq!(message[..8], (number as u64).to_le_bytes());
            assert!(message[8..] == pattern(number as u32, size), "{size} bytes");
        }
    }
}

#[test]
fn every_kind_of_message_leaves_with_its_post() {
    let mut pair = Pair::with(&config());
    let inbox = collect(&pair.to, 1);
    pair.connect();
    let mut sent = Vec::new();
    for size in SIZES.into_iter().filter(|size| *size > 0) {
        let data = pattern(size as u32, size);
        let pack = |room: &mut [u8]| {
            room[..size].copy_from_slice(&data);
            size
        };
        assert_eq!(pair.endpoint.am_bcopy(1, pack), Ok(size));
        sent.push(data);
    }
    pair.receive_until("the messages", || inbox.borrow().len() == sent.len());
    assert!(*inbox.borrow() == sent);
}

/// What the socket did not take, a thread sends once the peer reads.
#[test]
fn messages_behind_a_full_socket_arrive_without_progress_of_the_sender() {
    for integrity in [Choice::No, Choice::Yes] {
        let mut pair = Pair::with(&config().integrity(integrity));
        let inbox = collect(&pair.to, 1);
        pair.connect();
        let count = pair.fill();
        pair.receive_until("the messages", || inbox.borrow().len() as u64 >= count);
        check(&inbox, count);
    }
}

/// The sender and its thread may both send the rest of a message.
#[test]
fn a_sender_continues_after_a_full_socket() {
    const ROUNDS: usize = 20;
    for integrity in [Choice::No, Choice::Yes] {
        let mut pair = Pair::with(&config().integrity(integrity));
        let inbox = collect(&pair.to, 1);
        pair.connect();
        for round in 0..ROUNDS {
            let count = pair.fill();
            let Pair { sender, receiver, .. } = &mut pair;
            // In some rounds the sender makes progress as well.
            let mut both = [sender, receiver];
            let workers = if round % 2 == 0 { &mut both[..] } else { &mut both[1..] };
            until(workers, "the messages", || inbox.borrow().len() as u64 >= count);
            check(&inbox, count);
            inbox.borrow_mut().clear();
            let endpoint = pair.endpoint.clone();
            pair.send_until("the flush", || {
                endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done)
            });
        }
    }
}

#[test]
fn requests_wait_for_the_connection_and_for_room() {
    let mut pair = Pair::with(&config());
    let inbox = collect(&pair.to, 1);
    let send = |header: u64| {
        move |endpoint: &Endpoint| match endpoint.am_short(1, header, &pattern(header as u32, 8000))
        {
            Ok(()) => PendingResult::Done,
            Err(PostError::NoResource) => PendingResult::Again,
            Err(error) => panic!("{error}"),
        }
    };
    // While it connects.
    assert_eq!(pair.endpoint.am_short(1, 0, &[]), Err(PostError::NoResource));
    pair.endpoint.pending_add(send(0)).unwrap();
    let endpoint = pair.endpoint.clone();
    pair.send_until("the request", || endpoint.counters().posted == 1);
    let mut next = 1;
    while pair.endpoint.am_short(1, next, &pattern(next as u32, 8000)).is_ok() {
        next += 1;
    }
    // While the socket is full.
    pair.endpoint.pending_add(send(next)).unwrap();
    next += 1;
    until(&mut [&mut pair.sender, &mut pair.receiver], "the messages", || {
        inbox.borrow().len() as u64 == next
    });
    check(&inbox, next);
}

/// Large messages are sent from their memory; their completions wait for the kernel.
#[test]
fn large_messages_complete_once_the_kernel_has_them() {
    const LENGTH: usize = 1 << 20;
    let domain = barewire::Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
    let (mut sender, mut receiver) = (Worker::new(), Worker::new());
    let from = Interface::open(&mut sender, &domain, &config()).unwrap();
    let to = Interface::open(&mut receiver, &domain, &config()).unwrap();
    let endpoint = from.connect(&to.address()).unwrap();
    until(&mut [&mut sender], "the connection", || !endpoint.is_connecting());
    let inbox = collect(&to, 1);
    let memory = domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    memory.write(0, &pattern(1, LENGTH)).unwrap();
    let slice = [memory.slice(0, LENGTH).unwrap()];
    let mut posted = 0;
    // Until one is in progress, and no other is accepted.
    loop {
        match endpoint.am_zcopy(1, &[], &slice, None) {
            Ok(_) => posted += 1,
            Err(error) => {
                assert_eq!(error, PostError::NoResource);
                break;
            }
        }
    }
    until(&mut [&mut sender, &mut receiver], "the messages", || inbox.borrow().len() == posted);
    assert!(inbox.borrow().iter().all(|message| *message == contents(&memory)));
    until(&mut [&mut sender], "the flush", || {
        endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done)
    });
}

/// Endpoints of accepted connections end with their peers: else they would use up the interface's.
#[test]
fn connections_to_an_interface_end_with_their_peers() {
    const LIMIT: u32 = 4;
    let domain = barewire::Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
    let (mut sender, mut receiver) = (Worker::new(), Worker::new());
    let from = Interface::open(&mut sender, &domain, &config()).unwrap();
    let to = Interface::open(&mut receiver, &domain, &config().max_endpoints(LIMIT)).unwrap();
    let inbox = collect(&to, 1);
    let errors = crate::support::watch_errors(&to);
    for round in 0..u64::from(3 * LIMIT) {
        let endpoint = from.connect(&to.address()).unwrap();
        let mut workers = [&mut sender, &mut receiver];
        until(&mut workers, "the connection", || !endpoint.is_connecting());
        assert_eq!(endpoint.am_short(1, round, &[]), Ok(()));
        until(&mut workers, "the message", || inbox.borrow().len() as u64 > round);
        drop(endpoint);
        // The end of the connection is an event of the receiver.
        let limit = Instant::now() + DEADLINE;
        while receiver.progress() == 0 {
            sender.progress();
            assert!(Instant::now() < limit, "the connection does not end");
        }
    }
    assert!(errors.borrow().is_empty(), "{errors:?}");
}

#[test]
fn an_interface_that_is_not_unattended_is_not_connected_to() {
    let domain = barewire::Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
    let (mut sender, mut receiver) = (Worker::new(), Worker::new());
    let plain = InterfaceConfig::default();
    let from = Interface::open(&mut sender, &domain, &plain).unwrap();
    let to = Interface::open(&mut receiver, &domain, &plain).unwrap();
    assert!(matches!(from.connect(&to.address()), Err(ConnectError::Unsupported { .. })));
    let from = Interface::open(&mut sender, &domain, &config()).unwrap();
    let endpoint = from.connect(&to.address()).unwrap();
    until(&mut [&mut sender, &mut receiver], "the refusal", || endpoint.error().is_some());
}
