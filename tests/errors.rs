//! What goes wrong is told once, in the device's own words, and stays with the endpoint that it happened to.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{
    Access, Cause, Domain, Endpoint, FetchResult, FlushMode, InterfaceConfig, KeyError, MemoryError,
    OpenError, Operation, OperationError, PostError, Posted, RemoteKey, Syndrome, Unpack, Worker,
};
use barewire_hca as hca;
use support::{Pair, Side, Watch, collect, connect, contents, device, pattern, watch_errors};

const REMOTE_ACCESS: u8 = 0x13;

/// A way to reach memory that is not ours to reach: address and key.
type Wrong = fn(&Pair) -> (u64, RemoteKey);

const WRONG: [(&str, Wrong); 5] = [
    ("a wrong key", |pair| {
        let (memory, _) = pair.target(64, Access::all());
        let mut packed = memory.pack_key();
        *packed.last_mut().unwrap() ^= 0x55;
        let key = pair.client.domain.unpack_key(&packed).unwrap();
        let address = memory.address();
        std::mem::forget(memory);
        (address, key)
    }),
    ("a freed region", |pair| {
        let (memory, key) = pair.target(64, Access::all());
        (memory.address(), key)
    }),
    ("one byte past the end", |pair| {
        let (memory, key) = pair.target(64, Access::all());
        let address = memory.address() + 57;
        std::mem::forget(memory);
        (address, key)
    }),
    ("one byte before the start", |pair| {
        let (memory, key) = pair.target(64, Access::all());
        let address = memory.address() - 1;
        std::mem::forget(memory);
        (address, key)
    }),
    ("a missing right", |pair| {
        let (memory, key) = pair.target(64, Access::LOCAL_WRITE);
        let address = memory.address();
        std::mem::forget(memory);
        (address, key)
    }),
];

/// A way to use it; answers whether there is a completion to wait for.
type Use = fn(&Endpoint, u64, &RemoteKey, &Watch) -> Result<Posted, PostError>;

const USES: [(Operation, Use); 4] = [
    (Operation::Put, |endpoint, remote, key, _| endpoint.put_short(&[1; 8], remote, key)),
    (Operation::Put, |endpoint, remote, key, _| endpoint.put_bcopy(|_| 8, remote, key).map(|_| Posted::Done)),
    (Operation::Get, |endpoint, remote, key, watch| {
        let unpack = Unpack::new(|_| panic!("nothing was read"));
        endpoint.get_bcopy(&unpack, 8, remote, key, Some(&watch.completion))
    }),
    (Operation::Atomic, |endpoint, remote, key, watch| {
        let result = FetchResult::new();
        endpoint.atomic_fetch_add64(1, remote & !7, key, &result, Some(&watch.completion))
    }),
];

#[test]
fn remote_memory_errors_are_the_devices_own() {
    for (what, wrong) in WRONG {
        for (operation, run) in USES {
            if operation == Operation::Atomic && what.starts_with("one byte") {
                // A word that is aligned is inside or outside, never half.
                continue;
            }
            for mut pair in Pair::rc(&InterfaceConfig::default()) {
                let case = format!("{}: {operation} with {what}", pair.name);
                let errors = watch_errors(&pair.client.interface);
                let server_errors = watch_errors(&pair.server.interface);
                let (remote, key) = wrong(&pair);
                let (other, other_peer) = (pair.client.another(), pair.server.another());
                connect(&other, &other_peer);

                let watch = Watch::new(1);
                let posted = run(&pair.client.endpoint, remote, &key, &watch).unwrap();
                let behind: Vec<_> = (0..5).map(|_| Watch::new(1)).collect();
                let (good, good_key) = pair.target(64, Access::all());
                let source = pair.client.domain.allocate(8, Access::LOCAL_WRITE).unwrap();
                for watch in &behind {
                    let slice = [source.slice(0, 8).unwrap()];
                    let put = pair.client.endpoint.put_zcopy(
                        &slice,
                        good.address(),
                        &good_key,
                        Some(&watch.completion),
                    );
                    // The device may have been quick.
                    if put == Err(PostError::EndpointFailed) {
                        watch.completion.count_down(Err(OperationError::CANCELED));
                    } else {
                        assert_eq!(put, Ok(Posted::InProgress), "{case}");
                    }
                }
                pair.until(&case, || {
                    !errors.borrow().is_empty()
                        && (posted == Posted::Done || watch.is_done())
                        && behind.iter().all(Watch::is_done)
                });

                let error = errors.borrow()[0].clone();
                assert_eq!((error.operation, error.cause), (operation, Cause::RemoteAccess), "{case}");
                let code = error.syndrome.map(|syndrome| syndrome.code);
                assert_eq!(code, Some(REMOTE_ACCESS), "{case}");
                let text = error.to_string();
                let peer = format!("{} QP", pair.devices[1].address());
                assert!(text.contains(&peer) && text.contains("check the remote key"), "{text}");
                if posted == Posted::InProgress {
                    let Some(Err(OperationError { cause, syndrome })) = watch.result() else {
                        panic!("{case}: {watch:?}", watch = watch.result())
                    };
                    assert_eq!(cause, Cause::RemoteAccess, "{case}");
                    assert!(matches!(syndrome, Some(Syndrome { code: REMOTE_ACCESS, .. })), "{case}");
                }
                for watch in &behind {
                    assert_eq!(watch.calls(), 1, "{case}");
                    assert!(matches!(watch.result(), Some(Err(_))), "{case}");
                }
                assert_eq!(pair.client.endpoint.error(), Some(error), "{case}");
                assert_eq!(
                    pair.client.endpoint.put_short(&[], good.address(), &good_key),
                    Err(PostError::EndpointFailed),
                    "{case}"
                );
                assert_eq!(contents(&good), [0; 64], "{case}: what was behind the error was not carried out");

                // The peer's queue pair is in error, too, and says so once.
                pair.until(&case, || !server_errors.borrow().is_empty());
                assert_eq!(server_errors.borrow()[0].operation, Operation::Receive, "{case}");

                // The other endpoint of the same interface goes on.
                let inbox = collect(&pair.server.interface, 1);
                assert_eq!(other.endpoint.am_short(1, 7, b"on"), Ok(Posted::Done), "{case}");
                pair.until(&case, || inbox.borrow().len() == 1);
                let watch = Watch::new(1);
                watch.posted(other.endpoint.flush(FlushMode::Remote, Some(&watch.completion)));
                pair.until(&case, || watch.is_done());
                assert_eq!(watch.result(), Some(Ok(())), "{case}");
                assert_eq!((errors.borrow().len(), server_errors.borrow().len()), (1, 1), "{case}");
            }
        }
    }
}

#[test]
fn self_checks_what_a_device_would() {
    let pair = Pair::over_self(&InterfaceConfig::default());
    let endpoint = &pair.client.endpoint;
    let (memory, key) = pair.target(64, Access::REMOTE_WRITE);
    let at = memory.address();
    assert_eq!(endpoint.put_short(&[0; 8], at + 57, &key), Err(PostError::OutOfRange));
    assert_eq!(endpoint.put_short(&[0; 8], at - 1, &key), Err(PostError::OutOfRange));
    assert_eq!(endpoint.put_bcopy(|_| 8, u64::MAX - 3, &key), Err(PostError::OutOfRange));
    let unpack = Unpack::new(|_| panic!("nothing was read"));
    assert_eq!(endpoint.get_bcopy(&unpack, 8, at, &key, None), Err(PostError::AccessDenied));
    assert_eq!(endpoint.atomic_add64(1, at, &key), Err(PostError::AccessDenied));
    let read_only = pair.client.domain.allocate(8, Access::empty()).unwrap();
    let (source, source_key) = pair.target(8, Access::REMOTE_READ);
    let slice = [read_only.slice(0, 8).unwrap()];
    assert_eq!(endpoint.get_zcopy(&slice, source.address(), &source_key, None), Err(PostError::AccessDenied));
    let packed = memory.pack_key();
    drop(memory);
    assert_eq!(endpoint.put_short(&[0; 8], at, &key), Err(PostError::KeyExpired));
    assert!(matches!(pair.client.domain.unpack_key(&packed), Err(KeyError::Expired)));
}

#[test]
fn keys_and_slices_of_another_domain_are_refused() {
    let config = InterfaceConfig::default();
    let pairs = Pair::all_with(&config);
    for pair in &pairs {
        for other in &pairs {
            if std::ptr::eq(pair, other) {
                continue;
            }
            let (memory, key) = other.target(64, Access::all());
            if pair.is_self() != other.is_self() {
                let endpoint = &pair.client.endpoint;
                assert_eq!(endpoint.put_short(&[1], memory.address(), &key), Err(PostError::ForeignKey));
                assert!(matches!(
                    pair.client.domain.unpack_key(&memory.pack_key()),
                    Err(KeyError::ForeignTransport { .. })
                ));
            }
            let (own, own_key) = pair.target(64, Access::all());
            let foreign = [memory.slice(0, 8).unwrap()];
            let endpoint = &pair.client.endpoint;
            for answer in [
                endpoint.put_zcopy(&foreign, own.address(), &own_key, None),
                endpoint.get_zcopy(&foreign, own.address(), &own_key, None),
                endpoint.am_zcopy(0, &[], &foreign, None),
            ] {
                assert_eq!(answer, Err(PostError::ForeignMemory), "{} {}", pair.name, other.name);
            }
        }
    }
}

#[test]
fn memory_checks_its_bounds() {
    for pair in Pair::all() {
        let domain = &pair.client.domain;
        assert!(matches!(domain.allocate(0, Access::all()), Err(MemoryError::Empty)));
        assert!(matches!(
            domain.allocate(usize::MAX, Access::all()),
            Err(MemoryError::NoMemory { length: usize::MAX })
        ));
        let memory = domain.allocate(20, Access::empty()).unwrap();
        assert_eq!((memory.len(), memory.address() % 4096), (20, 0));
        let out = |offset, length| {
            assert!(matches!(memory.slice(offset, length), Err(MemoryError::OutOfRange { region: 20, .. })));
            assert!(memory.write(offset, &vec![0; length]).is_err());
            assert!(memory.read(offset, &mut vec![0; length]).is_err());
        };
        out(20, 1);
        out(0, 21);
        assert!(memory.slice(usize::MAX, 2).is_err() && memory.load_u8(20).is_err());
        assert!(memory.slice(20, 0).is_ok() && memory.load_u8(19).is_ok());
        assert!(matches!(memory.load_u64(4), Err(MemoryError::Unaligned { offset: 4 })));
        assert!(matches!(memory.store_u64(16, 0), Err(MemoryError::OutOfRange { .. })));
        memory.store_u64(8, 0x0807_0605_0403_0201).unwrap();
        assert_eq!((memory.load_u8(9).unwrap(), memory.load_u64(8).unwrap()), (2, 0x0807_0605_0403_0201));
    }
}

/// Memory that is freed while the device still reads it: the device is refused, nobody else's memory is read.
#[test]
fn memory_dropped_in_flight_is_a_protection_error() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let (target, key) = pair.target(4096, Access::all());
    let source = pair.client.domain.allocate(4096, Access::LOCAL_WRITE).unwrap();
    let watch = Watch::new(1);
    let slice = [source.slice(0, 4096).unwrap()];
    let post = pair.client.endpoint.put_zcopy(&slice, target.address(), &key, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    drop(source);
    pair.settle();
    let Some(Err(error)) = watch.result() else { panic!("{:?}", watch.result()) };
    assert_eq!((error.cause, watch.calls()), (Cause::LocalAccess, 1));
    assert_eq!(errors.borrow().len(), 1);
    assert_eq!(contents(&target), [0; 4096]);
}

/// The target of a get that is freed in flight.
#[test]
fn target_dropped_in_flight_is_a_protection_error() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let (source, key) = pair.target(4096, Access::all());
    let target = pair.client.domain.allocate(4096, Access::LOCAL_WRITE).unwrap();
    let watch = Watch::new(1);
    let slice = [target.slice(0, 4096).unwrap()];
    let post = pair.client.endpoint.get_zcopy(&slice, source.address(), &key, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    drop(target);
    pair.settle();
    assert!(matches!(watch.result(), Some(Err(OperationError { cause: Cause::LocalAccess, .. }))));
}

#[test]
fn a_peer_that_is_gone_is_reported() {
    // 4.096 us * 2^10 is 4 ms, three times.
    let config = InterfaceConfig { ack_timeout: 10, retry_count: 2, ..Default::default() };
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let errors = watch_errors(&pair.client.interface);
    let gone = device(hca::Faults::default());
    let address = gone.address();
    let mut worker = Worker::new();
    let peer = Side::open(&mut worker, &Domain::open_soft(gone).unwrap(), &config);
    let client = pair.client.another();
    connect(&client, &peer);
    drop((peer, worker));
    let watches: Vec<_> = (0..10).map(|_| Watch::new(1)).collect();
    let source = client.domain.allocate(8, Access::empty()).unwrap();
    for watch in &watches {
        let slice = [source.slice(0, 8).unwrap()];
        watch.posted(client.endpoint.am_zcopy(0, &[], &slice, Some(&watch.completion)));
    }
    pair.until("error", || watches.iter().all(Watch::is_done) && errors.borrow().len() == 1);
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::ActiveMessage, Cause::PeerUnreachable));
    assert_eq!(error.syndrome.map(|syndrome| syndrome.code), Some(0x15));
    assert!(error.peer.contains(&address.to_string()), "{error}");
    let causes: Vec<_> = watches.iter().map(|w| w.result().unwrap().unwrap_err().cause).collect();
    assert_eq!(causes[0], Cause::PeerUnreachable);
    assert!(causes[1..].iter().all(|cause| *cause == Cause::Flushed), "{causes:?}");
    // The pair's own endpoint goes on.
    pair.flush(FlushMode::Remote);
}

#[test]
fn a_receiver_that_is_never_ready_is_reported() {
    let config = InterfaceConfig {
        receive_ring: 2,
        spare_receive_buffers: 0,
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..Default::default()
    };
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let errors = watch_errors(&pair.client.interface);
    for i in 0..3 {
        assert_eq!(pair.client.endpoint.am_short(1, i, &[]), Ok(Posted::Done));
    }
    // The server makes no progress.
    support::until(&mut [&mut pair.worker], "error", || !errors.borrow().is_empty());
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::ActiveMessage, Cause::ReceiverNotReady));
    assert_eq!(error.syndrome.map(|syndrome| syndrome.code), Some(0x16));
}

#[test]
fn a_receiver_that_becomes_ready_loses_nothing() {
    let config =
        InterfaceConfig { receive_ring: 4, spare_receive_buffers: 0, min_rnr_timer: 1, ..Default::default() };
    for mut pair in Pair::rc(&config) {
        let inbox = collect(&pair.server.interface, 1);
        for i in 0..50 {
            assert_eq!(pair.client.endpoint.am_short(1, i, &pattern(i as u32, 50)), Ok(Posted::Done));
        }
        // Time in which the server is not ready.
        let start = std::time::Instant::now();
        support::until(&mut [&mut pair.worker], "a while", || start.elapsed().as_millis() > 20);
        pair.until("messages", || inbox.borrow().len() == 50);
        for (i, message) in inbox.borrow().iter().enumerate() {
            assert_eq!(message[8..], pattern(i as u32, 50));
        }
    }
}

/// A handler that keeps every buffer slows the sender down; nothing is lost, and it goes on when they are released.
#[test]
fn a_receiver_out_of_buffers_recovers() {
    let config =
        InterfaceConfig { receive_ring: 4, spare_receive_buffers: 2, min_rnr_timer: 1, ..Default::default() };
    for mut pair in Pair::rc(&config) {
        let kept: Rc<RefCell<Vec<barewire::KeptMessage>>> = Rc::default();
        let inner = Rc::clone(&kept);
        pair.server.interface.set_handler(1, move |message| inner.borrow_mut().push(message.keep())).unwrap();
        for i in 0..30 {
            assert_eq!(pair.client.endpoint.am_short(1, i, &[]), Ok(Posted::Done));
        }
        let mut next = 0u64;
        while next < 30 {
            let wanted = (30 - next).min(6) as usize;
            pair.until("all buffers kept", || kept.borrow().len() == wanted);
            for message in kept.take() {
                assert_eq!(message[..8], next.to_le_bytes(), "{}", pair.name);
                next += 1;
            }
        }
    }
}

#[test]
fn opening_says_what_there_is() {
    let error = Domain::open("rc_mlx6", "soft0:1").unwrap_err();
    assert_eq!(error.to_string(), "unknown transport 'rc_mlx6': there are self, rc_mlx5");
    let error = Domain::open("rc_mlx5", "mlx5_0:1").unwrap_err();
    assert_eq!(error.to_string(), "unknown device 'mlx5_0:1' for transport rc_mlx5: there are soft0:1");
    assert!(matches!(Domain::open("self", "soft0:1"), Err(OpenError::UnknownDevice { .. })));
}

#[test]
fn settings_are_checked() {
    let domain = Domain::open_soft(device(hca::Faults::default())).unwrap();
    let wrong: [(&str, fn(&mut InterfaceConfig)); 12] = [
        ("send_ring", |c| c.send_ring = 8),
        ("send_ring", |c| c.send_ring = 100),
        ("send_ring", |c| c.send_ring = 1 << 20),
        ("receive_ring", |c| c.receive_ring = 0),
        ("receive_ring", |c| c.receive_ring = 3),
        ("max_endpoints", |c| c.max_endpoints = 0),
        ("max_endpoints", |c| c.max_endpoints = u32::MAX),
        ("bcopy_buffers", |c| c.bcopy_buffers = 0),
        ("signal_every", |c| c.signal_every = 0),
        ("path_mtu", |c| c.path_mtu = 1500),
        ("rnr_retry", |c| c.rnr_retry = 8),
        ("max_rd_atomic", |c| c.max_rd_atomic = 0),
    ];
    for (setting, change) in wrong {
        let mut config = InterfaceConfig::default();
        change(&mut config);
        let error = barewire::Interface::open(&mut Worker::new(), &domain, &config).unwrap_err();
        assert!(error.to_string().starts_with(&format!("rc_mlx5: {setting} = ")), "{error}");
    }
}
