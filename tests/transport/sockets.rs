//! Behaviours specific to sockets: keys, peers that never connect, close or end, and many of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use barewire::error::{ConnectError, Operation};
use barewire::transport::tcp;
use barewire::{
    Access, Armed, Cause, Domain, Endpoint, Flags, FlushMode, Interface, InterfaceConfig,
    PostError, Worker,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{Pair, Side, Watch, collect, connect, contents, pattern, until, watch_errors};

/// One end with a key of this repeated byte.
pub(crate) fn side(worker: &mut Worker, key: u8, config: &InterfaceConfig) -> Side {
    let key = tcp::Key::from_bytes([key; 32]);
    let domain = Domain::from_static::<tcp::Tcp>(tcp::Domain::open_with_key("lo", key).unwrap());
    Side::open(worker, &domain, config)
}

/// Sends a message over the pair, which must still work.
pub(crate) fn goes_on(pair: &mut Pair) {
    let inbox = collect(&pair.server.interface, 1);
    pair.post("message", |endpoint| endpoint.am_short(1, 7, b"on")).unwrap();
    pair.until("message", || inbox.borrow().len() == 1);
}

#[test]
fn a_peer_of_another_job_is_no_peer() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let mut workers = [Worker::new(), Worker::new()];
    let config = InterfaceConfig::default().connect_timeout(Duration::from_secs(2));
    let [one, other] = &mut workers;
    let sides = [side(one, 1, &config), side(other, 2, &config)];
    let errors = [watch_errors(&sides[0].interface), watch_errors(&sides[1].interface)];
    connect(&sides[0], &sides[1]);
    let watches = [Watch::new(1), Watch::new(1)];
    for (side, watch) in sides.iter().zip(&watches) {
        let memory = side.domain.allocate(8000, Access::empty()).unwrap();
        let slice = [memory.slice(0, 8000).unwrap()];
        watch.posted(side.endpoint.am_zcopy(1, &[], &slice, Some(&watch.completion)));
        std::mem::forget(memory);
    }
    // The connecting end fails immediately, the accepting end after its timeout.
    until(&mut [one, other], "errors", || watches.iter().all(Watch::is_done));
    let causes: Vec<Cause> = errors.iter().map(|errors| errors.borrow()[0].cause).collect();
    assert!(
        causes.contains(&Cause::Unauthenticated) && causes.contains(&Cause::PeerUnreachable),
        "{causes:?}"
    );
    for (side, errors) in sides.iter().zip(&errors) {
        let error = errors.borrow()[0].clone();
        assert_eq!((errors.borrow().len(), error.operation), (1, Operation::Connect));
        assert_eq!(side.endpoint.am_short(1, 0, &[]), Err(PostError::EndpointFailed));
        assert_eq!(side.endpoint.error(), Some(error));
    }
    goes_on(&mut pair);
}

#[test]
fn a_peer_that_is_gone_before_it_was_there() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let config = InterfaceConfig::default().connect_timeout(Duration::from_secs(2));
    let mut worker = Worker::new();
    let gone = Side::open(&mut worker, &Domain::open(&"tcp/lo".parse().unwrap()).unwrap(), &config);
    let mut own = Worker::new();
    let here = Side::open(&mut own, &pair.client.domain, &config);
    let seen = watch_errors(&here.interface);
    connect(&here, &gone);
    drop((gone, worker));
    assert_eq!(here.endpoint.am_short(1, 0, &[]), Ok(()));
    let flushed = Watch::new(1);
    flushed.posted(here.endpoint.flush(FlushMode::Local, Some(&flushed.completion)));
    until(&mut [&mut own], "error", || flushed.is_done());
    let error = seen.borrow()[0].clone();
    assert_eq!(
        (error.operation, error.cause),
        (Operation::Connect, Cause::PeerUnreachable),
        "{error}"
    );
    assert_eq!(flushed.result().unwrap().unwrap_err().cause, Cause::PeerUnreachable);
    goes_on(&mut pair);
    assert!(errors.borrow().is_empty());
}

/// After an orderly close by the peer, an idle endpoint fails at its next use.
#[test]
fn a_peer_that_closed_is_told_on_use() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let (client, server) = (pair.client.another(), pair.server.another());
    connect(&client, &server);
    let inbox = collect(&pair.server.interface, 1);
    assert_eq!(client.endpoint.am_short(1, 1, &[]), Ok(()));
    pair.until("message", || inbox.borrow().len() == 1);
    let last = collect(&pair.client.interface, 2);
    assert_eq!(server.endpoint.am_short(2, 2, &[5; 8000]), Ok(()));
    drop(server);
    // Data sent before the close arrives.
    pair.until("the last message", || last.borrow().len() == 1);
    for _ in 0..100 {
        pair.worker.progress();
    }
    assert_eq!(client.endpoint.error(), None);
    pair.until("the close", || {
        client.endpoint.am_short(1, 2, &[]) == Err(PostError::EndpointFailed)
    });
    pair.until("the error", || errors.borrow().len() == 1);
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::ActiveMessage, Cause::Disconnected));
    assert_eq!(client.endpoint.error(), Some(error));
    goes_on(&mut pair);
}

/// A peer ends abruptly, with much data in flight.
#[test]
fn a_peer_that_dies_is_told_at_once() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let mut worker = Worker::new();
    let peer = Side::open(
        &mut worker,
        &Domain::open(&"tcp/lo".parse().unwrap()).unwrap(),
        &InterfaceConfig::default(),
    );
    let client = pair.client.another();
    connect(&client, &peer);
    let source = client.domain.allocate(1 << 20, Access::empty()).unwrap();
    let slice = [source.slice(0, 1 << 20).unwrap()];
    let mut watches = Vec::new();
    // More than the kernel buffers.
    for _ in 0..30 {
        let watch = Watch::new(1);
        watch.posted(client.endpoint.am_zcopy(9, &[], &slice, Some(&watch.completion)));
        watches.push(watch);
        pair.worker.progress();
        worker.progress();
    }
    assert!(watches.iter().any(|watch| !watch.is_done()), "everything was taken");
    drop((peer, worker));
    pair.until("errors", || watches.iter().all(Watch::is_done) && errors.borrow().len() == 1);
    assert_eq!(errors.borrow()[0].cause, Cause::Disconnected);
    assert!(watches.iter().all(|watch| watch.calls() == 1));
    let failed: Vec<Cause> = watches
        .iter()
        .filter_map(|watch| watch.result().unwrap().err())
        .map(|error| error.cause)
        .collect();
    assert_eq!(failed[0], Cause::Disconnected);
    assert!(failed[1..].iter().all(|cause| *cause == Cause::Flushed));
    goes_on(&mut pair);
}

/// A put and a message use different connections; a fence keeps them in order.
#[test]
fn a_message_behind_a_fence_finds_the_put() {
    let size = 1 << 20;
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let (memory, key) = pair.target(size, Access::REMOTE_WRITE);
    let memory = Rc::new(memory);
    let source = pair.client.domain.allocate(size, Access::empty()).unwrap();
    for round in 0..5 {
        let data = pattern(round, size);
        source.write(0, &data).unwrap();
        let (there, expected, right) =
            (Rc::clone(&memory), data.clone(), Rc::new(Cell::new(false)));
        let found = Rc::clone(&right);
        let handler = move |_: barewire::Message<'_>| found.set(contents(&there) == expected);
        pair.server.interface.set_handler(1, handler).unwrap();
        let slice = [source.slice(0, size).unwrap()];
        let _ = pair
            .post("put", |endpoint| endpoint.put_zcopy(&slice, memory.address(), &key, None))
            .unwrap();
        pair.client.endpoint.fence().unwrap();
        assert_eq!(pair.client.endpoint.am_short(1, 0, &[]), Err(PostError::NoResource));
        pair.post("message", |endpoint| endpoint.am_short(1, 0, &[])).unwrap();
        pair.until("handler", || right.get());
        pair.flush(FlushMode::Local);
    }
}

/// Timeouts ignore time without progress: a program that made none for longer finds what has
/// arrived, on both connections of an endpoint.
#[test]
fn who_does_not_look_does_not_wait() {
    let config = InterfaceConfig::default().connect_timeout(Duration::from_millis(200));
    let asleep = || std::thread::sleep(3 * config.connect_timeout);
    let mut pair = Pair::over_tcp(&config);
    asleep();
    let inbox = collect(&pair.server.interface, 1);
    pair.post("message", |endpoint| endpoint.am_short(1, 1, &[])).unwrap();
    pair.until("message", || inbox.borrow().len() == 1);
    let (memory, key) = pair.target(8, Access::REMOTE_WRITE);
    pair.post("put", |endpoint| endpoint.put_short(&[7; 8], memory.address(), &key)).unwrap();
    asleep();
    pair.flush(FlushMode::Remote);
    assert_eq!(contents(&memory), [7; 8]);
    // An end that waits for the other with data to send, and makes progress once before it sleeps.
    let (one, other) = (pair.client.another(), pair.server.another());
    connect(&one, &other);
    let back = collect(&pair.client.interface, 1);
    one.endpoint.am_short(1, 2, &[]).unwrap();
    other.endpoint.am_short(1, 2, &[]).unwrap();
    for side in 0..2 {
        for _ in 0..10 {
            [&mut pair.worker, &mut pair.server_worker][side].progress();
        }
        asleep();
    }
    pair.until("messages", || inbox.borrow().len() == 2 && back.borrow().len() == 1);
}

/// Several hundred connections of one interface, all in use.
#[test]
fn many_connections() {
    const COUNT: u32 = 200;
    let config = InterfaceConfig::default().max_endpoints(COUNT);
    let (mut here, mut there) = (Worker::new(), Worker::new());
    let domain = Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
    let (from, to) =
        (Side::open(&mut here, &domain, &config), Side::open(&mut there, &domain, &config));
    let mut pairs = vec![(from, to)];
    while pairs.len() < COUNT as usize {
        let another = (pairs[0].0.another(), pairs[0].1.another());
        pairs.push(another);
    }
    assert!(Endpoint::new(&pairs[0].0.interface).is_err(), "more than there may be");
    for (from, to) in &pairs {
        connect(from, to);
    }
    let inbox = collect(&pairs[0].1.interface, 1);
    for (number, (from, _)) in pairs.iter().enumerate() {
        assert_eq!(from.endpoint.am_short(1, number as u64, &[1; 100]), Ok(()));
    }
    until(&mut [&mut here, &mut there], "messages", || inbox.borrow().len() == COUNT as usize);
    let mut numbers: Vec<u8> = inbox.borrow().iter().map(|message| message[0]).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..COUNT as u8).collect::<Vec<_>>());
}

#[test]
fn ipv6_and_a_device_that_does_not_lead_there() {
    let config = InterfaceConfig::default();
    let (mut here, mut there) = (Worker::new(), Worker::new());
    let v6 = Domain::open(&"tcp/::1".parse().unwrap()).unwrap();
    let (from, to) = (Side::open(&mut here, &v6, &config), Side::open(&mut there, &v6, &config));
    assert!(from.interface.address().device().to_string().starts_with("[::1]:"));
    assert!(from.interface.attributes().flags.contains(Flags::INTER_NODE));
    let inbox = collect(&to.interface, 1);
    connect(&from, &to);
    assert_eq!(from.endpoint.am_short(1, 7, &[]), Ok(()));
    until(&mut [&mut here, &mut there], "message", || inbox.borrow().len() == 1);

    let v4 = Interface::open(
        &mut here,
        &Domain::open(&"tcp/127.0.0.1".parse().unwrap()).unwrap(),
        &config,
    )
    .unwrap();
    let (one, other) = (Endpoint::new(&v4).unwrap(), to.another());
    // Neither connects, nor waits for the other.
    let answers = [one.connect(&other.endpoint.address()), other.endpoint.connect(&one.address())];
    let errors: Vec<String> =
        answers.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    let are_named = errors.iter().all(|error| error.contains("is not reachable"));
    assert!(errors.len() == 2 && are_named, "{errors:?}");
}

/// An idle endpoint detects by `check` that its peer has ended.
#[test]
fn a_check_finds_a_peer_that_is_gone() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let inbox = collect(&pair.server.interface, 1);
    let errors = watch_errors(&pair.client.interface);
    let (client, server) = (pair.client.another(), pair.server.another());
    connect(&client, &server);
    // Checks before the connection exists, and many of them: the peer's handlers do not run.
    for round in 0..100 {
        assert_eq!(client.endpoint.check(), Ok(()));
        if round % 10 == 0 {
            client.endpoint.am_short(1, round, &[]).unwrap();
        }
        pair.worker.progress();
        pair.server_worker.progress();
    }
    pair.until("messages", || inbox.borrow().len() == 10);
    drop(server);
    pair.until("the close", || client.endpoint.check() == Err(PostError::EndpointFailed));
    pair.until("the error", || errors.borrow().len() == 1);
    assert_eq!(errors.borrow()[0].cause, Cause::Disconnected);
    goes_on(&mut pair);
}

/// A post to an armed worker signals its descriptor, although progress sends the data.
#[test]
fn a_post_wakes_who_sleeps() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let inbox = collect(&pair.server.interface, 1);
    pair.connected();
    pair.post("first", |endpoint| endpoint.am_short(1, 0, &[])).unwrap();
    pair.until("first", || inbox.borrow().len() == 1);
    while pair.worker.arm().unwrap() == Armed::Ready {
        pair.worker.progress();
    }
    // The first is sent immediately, the second by the next progress.
    for header in 1..3 {
        pair.client.endpoint.am_short(1, header, &[]).unwrap();
    }
    let descriptor = pair.worker.event_fd().unwrap();
    let mut rung = [PollFd::new(&descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut rung, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1));
    pair.worker.progress();
    until(&mut [&mut pair.server_worker], "both", || inbox.borrow().len() == 3);
}

/// Without descriptors new connections fail, and existing ones continue.
#[test]
fn no_descriptors_left() {
    // In a separate process, which may exhaust its descriptors.
    const CHILD: &str = "BAREWIRE_TEST_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" --exact sockets::no_descriptors_left"])
            .arg(std::env::current_exe().unwrap())
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    goes_on(&mut pair);
    let sides: Vec<(Side, Side)> =
        (0..2).map(|_| (pair.client.another(), pair.server.another())).collect();
    let (memory, key) = pair.target(8, Access::all());
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    // One of two ends requests the connection, and has no descriptor for it.
    let (one, other) = &sides[0];
    let refused = [(one, other), (other, one)].into_iter().find_map(|(from, to)| {
        let answer = from.endpoint.connect(&to.endpoint.address());
        answer.err()
    });
    assert!(refused.unwrap().to_string().contains("files"), "EMFILE");
    goes_on(&mut pair);
    assert!(errors.borrow().is_empty());
    // The connection to the peer's memory is established at its first use.
    let put = pair.client.endpoint.put_short(&[1; 8], memory.address(), &key);
    assert_eq!(put, Err(PostError::EndpointFailed));
    pair.until("the error", || errors.borrow().len() == 1);
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::Put, Cause::LocalOperation), "{error}");
    drop(held);
    let (one, other) = &sides[1];
    connect(one, other);
    let inbox = collect(&pair.server.interface, 3);
    one.endpoint.am_short(3, 0, &[]).unwrap();
    pair.until("message", || inbox.borrow().len() == 1);
}

/// Forwards a connection to `target`, and flips a bit of the byte at `at`, counted from the end of
/// the handshake, of the data that the connecting end sends or receives.
fn changed_on_the_way(target: std::net::SocketAddr, sent: bool, at: usize) -> u16 {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    // Length of the handshake in both directions.
    const HANDSHAKE: usize = 112;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(target).unwrap();
        let copy = |mut from: TcpStream, mut to: TcpStream, changed: Option<usize>| {
            let (mut bytes, mut count) = ([0; 4096], 0);
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                if let Some(place) = changed.and_then(|at| (HANDSHAKE + at).checked_sub(count))
                    && place < read
                {
                    bytes[place] ^= 1;
                }
                count += read;
                if to.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
        };
        let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || copy(from, to, sent.then_some(at)));
        copy(far, near, (!sent).then_some(at));
    });
    port
}

/// `bytes` with another port at offset `at`.
fn with_port(bytes: &[u8], at: usize, port: u16) -> (std::net::SocketAddr, Vec<u8>) {
    let mut changed = bytes.to_vec();
    let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    changed[at..at + 2].copy_from_slice(&port.to_be_bytes());
    (([127, 0, 0, 1], old).into(), changed)
}

/// An attacker on the path changes a message, a request or a response: none of it takes effect, and
/// the endpoint fails with the cause.
#[test]
fn bytes_that_are_changed_on_the_way() {
    let config = InterfaceConfig::default().integrity(barewire::config::Choice::Yes);
    for (memory, sent) in [(false, true), (true, true), (true, false)] {
        let mut worker = Worker::new();
        let sides = [side(&mut worker, 5, &config), side(&mut worker, 5, &config)];
        let numbers =
            |side: &Side| side.endpoint.address().endpoint().unwrap().to_bytes()[6..].to_vec();
        // The end with the smaller numbers connects, through the attacker.
        let (here, there) = if numbers(&sides[0]) < numbers(&sides[1]) { (0, 1) } else { (1, 0) };
        let (here, there) = (&sides[here], &sides[there]);
        let errors = [watch_errors(&here.interface), watch_errors(&there.interface)];
        let inbox = collect(&there.interface, 1);
        let theirs = there.endpoint.address();
        let device = theirs.device().to_bytes();
        let (target, _) = with_port(&device, 8, 0);
        // The first record has 60 bytes: 20 of its own, and a message of 8 + 8 + 20, padded to 40.
        let port = changed_on_the_way(target, sent, if memory { usize::MAX / 2 } else { 60 + 9 });
        let (_, device) = with_port(&device, 8, port);
        let device = barewire::address::DeviceAddress::from_bytes(&device).unwrap();
        let theirs =
            barewire::PeerAddress::new(device, *theirs.interface(), theirs.endpoint().copied());
        here.endpoint.connect(&theirs.unwrap()).unwrap();
        there.endpoint.connect(&here.endpoint.address()).unwrap();
        let region = there.domain.allocate(64, Access::all()).unwrap();
        let key = region.pack_key();
        let (target, _) = with_port(&key, 6, 0);
        let (_, key) = with_port(
            &key,
            6,
            changed_on_the_way(target, sent, if sent { 68 + 9 } else { 44 + 9 }),
        );
        let key = here.domain.unpack_key(&key).unwrap();
        for number in 0..8 {
            if memory {
                let _ = here.endpoint.put_short(&[7; 8], region.address() + 8 * number, &key);
            } else {
                let _ = here.endpoint.am_short(1, number, &[number as u8; 20]);
            }
            if number == 0 {
                // In a separate record.
                let through = Watch::new(1);
                through.posted(here.endpoint.flush(FlushMode::Remote, Some(&through.completion)));
                until(&mut [&mut worker], "the first", || {
                    through.is_done() && (memory || inbox.borrow().len() == 1)
                });
            }
            for _ in 0..20 {
                worker.progress();
            }
        }
        until(&mut [&mut worker], "an error", || {
            errors
                .iter()
                .any(|errors| errors.borrow().iter().any(|error| error.cause == Cause::Altered))
        });
        if memory {
            let mut bytes = [0; 64];
            region.read(0, &mut bytes).unwrap();
            let whole = bytes.iter().take_while(|byte| **byte == 7).count();
            assert!(
                whole.is_multiple_of(8) && bytes[whole..].iter().all(|byte| *byte == 0),
                "{bytes:?}"
            );
            assert!(!sent || whole == 8, "{whole}");
            assert_eq!(here.endpoint.error().unwrap().cause, Cause::Altered);
        } else {
            assert_eq!(there.endpoint.error().unwrap().cause, Cause::Altered);
            let inbox = inbox.borrow();
            assert_eq!(inbox.len(), 1);
        }
    }
}

/// A process without a key cannot reach others, and learns so when it connects.
#[test]
fn a_peer_with_a_key_is_out_of_reach_without() {
    if std::env::var_os("BAREWIRE_KEY").is_some() || std::env::var_os("BAREWIRE_KEY_FILE").is_some()
    {
        return;
    }
    let (mut worker, mut other) = (Worker::new(), Worker::new());
    let config = InterfaceConfig::default();
    let keyless = Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
    let ours = Side::open(&mut worker, &keyless, &config);
    let theirs = side(&mut other, 1, &config);
    let error = ours.endpoint.connect(&theirs.endpoint.address()).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("BAREWIRE_KEY_FILE=job.key"), "{error}");
    assert!(ours.interface.reaches(&theirs.interface.address()).is_err());
    // The endpoint is as before.
    let same = Side::open(&mut other, &keyless, &config);
    ours.endpoint.connect(&same.endpoint.address()).unwrap();
}
