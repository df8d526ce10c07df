//! Memory that does not exist or may not be accessed: reported once, with the syndrome of the
//! device, on its endpoint alone.

use barewire::error::Operation;
use barewire::{
    Access, AtomicOp, Cause, Endpoint, FetchResult, FlushMode, InterfaceConfig, KeyError, Memory,
    OperationError, PostError, Posted, RemoteKey, Unpack,
};

use crate::support::{Pair, Watch, collect, connect, contents, watch_errors};

/// The codes of mlx5 devices and of verbs.
const REMOTE_ACCESS: u8 = 0x13;
const REMOTE_ACCESS_BY_VERBS: u8 = 10;

/// An invalid access: address, key, and the memory if it must stay allocated.
type Wrong = fn(&Pair) -> (u64, RemoteKey, Option<Memory>);

const WRONG: [(&str, Wrong); 5] = [
    ("a wrong key", |pair| {
        let (memory, _) = pair.target(64, Access::all());
        let mut packed = memory.pack_key();
        *packed.last_mut().unwrap() ^= 0x55;
        let key = pair.client.domain.unpack_key(&packed).unwrap();
        (memory.address(), key, Some(memory))
    }),
    ("a freed region", |pair| {
        let (memory, key) = pair.target(64, Access::all());
        (memory.address(), key, None)
    }),
    ("one byte past the end", |pair| {
        let (memory, key) = pair.target(64, Access::all());
        (memory.address() + 57, key, Some(memory))
    }),
    ("one byte before the start", |pair| {
        let (memory, key) = pair.target(64, Access::all());
        (memory.address() - 1, key, Some(memory))
    }),
    ("a missing right", |pair| {
        let (memory, key) = pair.target(64, Access::LOCAL_WRITE);
        (memory.address(), key, Some(memory))
    }),
];

/// An operation with it. Returns whether there is a completion to wait for.
type Use = fn(&Endpoint, u64, &RemoteKey, &Watch) -> Result<Posted, PostError>;

const USES: [(Operation, Use); 4] = [
    (Operation::Put, |endpoint, remote, key, _| {
        endpoint.put_short(&[1; 8], remote, key).map(|()| Posted::Done)
    }),
    (Operation::Put, |endpoint, remote, key, _| {
        endpoint.put_bcopy(|_| 8, remote, key).map(|_| Posted::Done)
    }),
    (Operation::Get, |endpoint, remote, key, watch| {
        let unpack = Unpack::new(|_| panic!("nothing was read"));
        endpoint.get_bcopy(&unpack, 8, remote, key, Some(&watch.completion))
    }),
    (Operation::Atomic, |endpoint, remote, key, watch| {
        let result = FetchResult::new();
        endpoint.atomic_fetch(
            AtomicOp::Add(1_u64),
            remote & !7,
            key,
            &result,
            Some(&watch.completion),
        )
    }),
];

#[test]
fn remote_memory_errors_are_the_devices_own() {
    for (what, wrong) in WRONG {
        for (operation, run) in USES {
            if operation == Operation::Atomic && what.starts_with("one byte") {
                // An aligned word is either inside or outside.
                continue;
            }
            for mut pair in Pair::joined(&InterfaceConfig::default()) {
                let case = format!("{}: {operation} with {what}", pair.name);
                let by_verbs = pair.client.interface.transport() == barewire::TransportId::RcVerbs;
                let remote_access = if by_verbs { REMOTE_ACCESS_BY_VERBS } else { REMOTE_ACCESS };
                let errors = watch_errors(&pair.client.interface);
                let server_errors = watch_errors(&pair.server.interface);
                let (remote, key, _memory) = wrong(&pair);
                let (other, other_peer) = (pair.client.another(), pair.server.another());
                connect(&other, &other_peer);

                // Both ends are connected.
                pair.post(&case, |endpoint| endpoint.am_short(9, 0, &[])).unwrap();
                let interface = pair.server.interface.clone();
                pair.until(&case, || interface.unhandled() == 1);

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
                    // The device may have reported the failure already.
                    if put == Err(PostError::EndpointFailed) {
                        watch.completion.hold().finish(Err(OperationError::CANCELED));
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
                assert_eq!(
                    (error.operation, error.cause),
                    (operation, Cause::RemoteAccess),
                    "{case}"
                );
                // Sockets have no syndromes.
                let is_device = pair.name != "tcp";
                let code = error.syndrome.map(|syndrome| syndrome.code);
                assert_eq!(code, is_device.then_some(remote_access), "{case}");
                let text = error.to_string();
                let peer = match pair.devices.get(1) {
                    Some(peer) => format!("{} QP", peer.address()),
                    None if is_device => " QP 0x".to_owned(),
                    None => " 127.0.0.1:".to_owned(),
                };
                assert!(text.contains(&peer) && text.contains("check the remote key"), "{text}");
                if posted == Posted::InProgress {
                    let Some(Err(OperationError { cause, syndrome, .. })) = watch.result() else {
                        panic!("{case}: {watch:?}", watch = watch.result())
                    };
                    assert_eq!(cause, Cause::RemoteAccess, "{case}");
                    let told = syndrome.is_some_and(|syndrome| syndrome.code == remote_access);
                    assert_eq!(told, is_device, "{case}");
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
                assert_eq!(
                    contents(&good),
                    [0; 64],
                    "{case}: what was behind the error was not carried out"
                );

                // The peer's queue pair is in error as well, and reports it once.
                pair.until(&case, || !server_errors.borrow().is_empty());
                assert_eq!(server_errors.borrow()[0].operation, Operation::Receive, "{case}");

                // The other endpoint of the same interface continues.
                let inbox = collect(&pair.server.interface, 1);
                assert_eq!(other.endpoint.am_short(1, 7, b"on"), Ok(()), "{case}");
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
    assert_eq!(endpoint.atomic_post(AtomicOp::Add(1_u64), at, &key), Err(PostError::AccessDenied));
    let read_only = pair.client.domain.allocate(8, Access::empty()).unwrap();
    let (source, source_key) = pair.target(8, Access::REMOTE_READ);
    let slice = [read_only.slice(0, 8).unwrap()];
    assert_eq!(
        endpoint.get_zcopy(&slice, source.address(), &source_key, None),
        Err(PostError::AccessDenied)
    );
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
                assert_eq!(
                    endpoint.put_short(&[1], memory.address(), &key),
                    Err(PostError::ForeignKey)
                );
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
