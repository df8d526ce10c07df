//! Behaviours specific to `cma`: slices, missing operations, the end of keys and memory, and of
//! processes.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use barewire::error::Operation;
use barewire::{
    Access, AtomicOp, Cause, ConnectError, Domain, Endpoint, FlushMode, Interface, InterfaceConfig,
    Memory, MemoryError, PeerAddress, PostError, Posted, Unpack, Worker,
};

use crate::helper::{Helper, ROLE, hex, line, unhex};
use crate::support::{DEADLINE, Pair, Watch, contents, parts, pattern, watch_errors};

const LONG: usize = 3 << 20;

#[test]
fn long_transfers_are_done_slice_by_slice_and_in_order() {
    let mut pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(LONG, Access::all());
    let source = pair.client.domain.allocate(LONG, Access::LOCAL_WRITE).unwrap();
    let data = pattern(1, LONG);
    source.write(0, &data).unwrap();
    let (put, small, flushed) = (Watch::new(1), Watch::new(1), Watch::new(1));
    let endpoint = pair.client.endpoint.clone();
    let slices = parts(&source, LONG, 5);
    let post = endpoint.put_zcopy(&slices, memory.address(), &key, Some(&put.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    // A later short put does not overtake.
    let word = [source.slice(8, 8).unwrap()];
    let post = endpoint.put_zcopy(&word, memory.address(), &key, Some(&small.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    assert_eq!(
        endpoint.flush(FlushMode::Remote, Some(&flushed.completion)),
        Ok(Posted::InProgress)
    );
    let mut turns = 0;
    while !flushed.is_done() {
        assert!(pair.worker.progress() > 0);
        turns += 1;
    }
    assert!(turns >= LONG / (1 << 20), "{turns}");
    assert_eq!((put.calls(), small.calls()), (1, 1));
    let mut expected = data.clone();
    expected.copy_within(8..16, 0);
    assert!(contents(&memory) == expected);

    source.write(0, &vec![0; LONG]).unwrap();
    let got = Watch::new(1);
    let post = endpoint.get_zcopy(&slices, memory.address(), &key, Some(&got.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    pair.until("get", || got.is_done());
    assert!(contents(&source) == expected);
}

#[test]
fn a_cancelled_transfer_completes_once() {
    let mut pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(LONG, Access::all());
    let source = pair.client.domain.allocate(LONG, Access::LOCAL_WRITE).unwrap();
    let slice = [source.slice(0, LONG).unwrap()];
    let endpoint = pair.client.endpoint.clone();
    let (put, canceled) = (Watch::new(1), Watch::new(1));
    assert!(endpoint.put_zcopy(&slice, memory.address(), &key, Some(&put.completion)).is_ok());
    assert_eq!(
        endpoint.flush(FlushMode::Cancel, Some(&canceled.completion)),
        Ok(Posted::InProgress)
    );
    assert_eq!(
        endpoint.put_zcopy(&slice, memory.address(), &key, None),
        Err(PostError::EndpointFailed)
    );
    // Freed memory is no longer read, or it is kept until the copy has ended.
    drop(source);
    pair.until("cancel", || canceled.is_done());
    assert_eq!((put.calls(), canceled.calls()), (1, 1));
    assert_eq!(put.result().unwrap().unwrap_err().cause, Cause::Canceled);
}

#[test]
fn what_it_lacks_is_said() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(64, Access::all());
    let endpoint = &pair.client.endpoint;
    let at = memory.address();
    assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::Unsupported));
    assert_eq!(endpoint.put_short(&[1; 8], at, &key), Err(PostError::Unsupported));
    assert_eq!(endpoint.put_short(&[1], at, &key), Err(PostError::Unsupported));
    assert_eq!(endpoint.am_bcopy(0, |_| panic!("not packed")), Err(PostError::Unsupported));
    assert_eq!(
        endpoint.get_bcopy(&Unpack::new(|_| ()), 1, at, &key, None),
        Err(PostError::Unsupported)
    );
    assert_eq!(endpoint.atomic_post(AtomicOp::Add(1_u64), at, &key), Err(PostError::Unsupported));
}

#[test]
fn a_key_to_freed_memory_is_refused_and_the_endpoint_goes_on() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let (memory, key) = pair.target(4096, Access::all());
    let at = memory.address();
    drop(memory);
    let (next, next_key) = pair.target(4096, Access::all());
    let source = pair.client.domain.allocate(64, Access::LOCAL_WRITE).unwrap();
    let slice = [source.slice(0, 64).unwrap()];
    let endpoint = &pair.client.endpoint;
    assert_eq!(endpoint.put_zcopy(&slice, at, &key, None), Err(PostError::KeyExpired));
    assert_eq!(endpoint.get_zcopy(&slice, at, &key, None), Err(PostError::KeyExpired));
    assert_eq!(endpoint.put_zcopy(&slice, next.address(), &key, None), Err(PostError::KeyExpired));
    assert_eq!(endpoint.put_zcopy(&slice, next.address(), &next_key, None), Ok(Posted::Done));
}

#[test]
fn memory_that_is_freed_amid_a_transfer_is_an_error_and_the_endpoint_s_last() {
    for is_local in [false, true] {
        let mut pair = Pair::over_cma(&InterfaceConfig::default());
        let errors = watch_errors(&pair.client.interface);
        let (memory, key) = pair.target(LONG, Access::all());
        // Undefined bits do not give access to other regions.
        let access = Access::from_bits_retain(Access::all().bits() | 1 << 4);
        let local = pair.client.domain.allocate(LONG, access).unwrap();
        let _other = pair.client.domain.allocate(LONG, access).unwrap();
        let watch = Watch::new(1);
        let slice = [local.slice(0, LONG).unwrap()];
        let endpoint = pair.client.endpoint.clone();
        let post = endpoint.get_zcopy(&slice, memory.address(), &key, Some(&watch.completion));
        assert_eq!(post, Ok(Posted::InProgress));
        let (operation, cause) = if is_local {
            drop(local);
            (Operation::Get, Cause::LocalAccess)
        } else {
            drop(memory);
            (Operation::Get, Cause::RemoteAccess)
        };
        let own: Vec<Vec<u8>> = (0..4).map(|_| vec![7; LONG]).collect();
        pair.until("error", || watch.is_done() && errors.borrow().len() == 1);
        assert_eq!(watch.result().unwrap().unwrap_err().cause, cause);
        assert_eq!((errors.borrow()[0].operation, errors.borrow()[0].cause), (operation, cause));
        assert!(std::hint::black_box(&own).iter().flatten().all(|byte| *byte == 7));
    }
}

/// A key or an address with any one byte changed is refused, except for the last 8 bytes of a key:
/// they are an offset between addresses, which the region's bounds check like the address itself.
#[test]
fn forged_keys_and_addresses_are_refused() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let access = Access::REMOTE_READ;
    let regions: Vec<_> =
        (0..300).map(|_| pair.server.domain.allocate(64, access).unwrap()).collect();
    let endpoint = &pair.client.endpoint;
    let local = pair.client.domain.allocate(8, Access::LOCAL_WRITE).unwrap();
    let slice = [local.slice(0, 8).unwrap()];
    let at = regions[7].address();
    let good = regions[7].pack_key();
    for place in 0..good.len() - 8 {
        for change in 1..=255 {
            let mut bytes = good.clone();
            bytes[place] ^= change;
            let Ok(key) = pair.client.domain.unpack_key(&bytes) else { continue };
            for post in [
                endpoint.put_zcopy(&slice, at, &key, None),
                endpoint.get_zcopy(&slice, at, &key, None),
            ] {
                let refused = matches!(post, Err(PostError::ForeignKey | PostError::KeyExpired));
                assert!(refused, "byte {place} changed by {change}: {post:?}");
            }
        }
    }
    let mut moved = good.clone();
    moved[good.len() - 7] ^= 1;
    let key = pair.client.domain.unpack_key(&moved).unwrap();
    assert_eq!(endpoint.get_zcopy(&slice, at, &key, None), Err(PostError::OutOfRange));
    let key = pair.client.domain.unpack_key(&good).unwrap();
    assert_eq!(endpoint.put_zcopy(&slice, at, &key, None), Err(PostError::AccessDenied));
    assert_eq!(endpoint.get_zcopy(&slice, at + 60, &key, None), Err(PostError::OutOfRange));
    assert_eq!(endpoint.get_zcopy(&slice, at, &key, None), Ok(Posted::Done));

    let good = pair.server.endpoint.address().to_bytes();
    let fresh = Endpoint::new(&pair.client.interface).unwrap();
    // Between the bodies of the device and of the endpoint, 24 bytes name the interface, which is
    // not used.
    for place in (0..6 + 16).chain(6 + 16 + 24..good.len()) {
        for change in [1, 2, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[place] ^= change;
            let Ok(address) = PeerAddress::from_bytes(&bytes) else { continue };
            assert!(fresh.connect(&address).is_err(), "byte {place} changed by {change}");
        }
    }
    fresh.connect(&PeerAddress::from_bytes(&good).unwrap()).unwrap();
}

/// The owner frees memory at any time while another thread puts continuously: the next user of the
/// memory finds no late bytes.
#[test]
fn memory_is_given_back_only_after_the_last_copy() {
    const LENGTH: usize = 256 << 10;
    let mut worker = Worker::new();
    let owner = Domain::open(&"cma/memory".parse().unwrap()).unwrap();
    let interface = Interface::open(&mut worker, &owner, &InterfaceConfig::default()).unwrap();
    let introduction = interface.address();
    let (tell, keys) = mpsc::channel::<(Vec<u8>, u64)>();
    let (begin, begun) = mpsc::channel::<()>();
    let putter = thread::spawn(move || {
        let mut worker = Worker::new();
        let domain = Domain::open(&"cma/memory".parse().unwrap()).unwrap();
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
        let endpoint = interface.connect(&introduction).unwrap();
        let source = domain.allocate(LENGTH, Access::all()).unwrap();
        source.write(0, &vec![9; LENGTH]).unwrap();
        let slice = [source.slice(0, LENGTH).unwrap()];
        for (key, remote) in keys {
            let key = domain.unpack_key(&key).unwrap();
            let mut puts = 0;
            let refused = loop {
                match endpoint.put_zcopy(&slice, remote, &key, None) {
                    Ok(_) => puts += 1,
                    Err(error) => break error,
                }
                if puts == 1 {
                    begin.send(()).unwrap();
                }
            };
            assert_eq!(refused, PostError::KeyExpired);
        }
    });
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 300 && start.elapsed() < Duration::from_secs(2) {
        let mut backing = vec![0u8; LENGTH];
        let (own, registered);
        let memory = if rounds % 2 == 0 {
            own = owner.allocate(LENGTH, Access::all()).unwrap();
            (own.address(), own)
        } else {
            // SAFETY: `backing` is not used until the memory is deregistered.
            registered = unsafe {
                owner.register(NonNull::from(&mut backing[0]), LENGTH, Access::all()).unwrap()
            };
            (registered.address(), registered)
        };
        let (address, memory) = memory;
        tell.send((memory.pack_key(), address)).unwrap();
        begun.recv_timeout(DEADLINE).unwrap();
        thread::sleep(Duration::from_micros(rounds % 50 * 7));
        memory.deregister().unwrap();
        backing.fill(7);
        let next: Vec<_> = (0..4).map(|_| vec![7u8; LENGTH]).collect();
        thread::yield_now();
        for bytes in next.iter().chain([&backing]) {
            assert!(std::hint::black_box(bytes).iter().all(|byte| *byte == 7), "round {rounds}");
        }
        rounds += 1;
    }
    drop(tell);
    putter.join().unwrap();
    assert!(rounds > 3);
}

/// Connecting fails for the address of a process that has ended, or was not meant.
#[test]
fn other_processes_are_refused() {
    let pair = Pair::over_cma(&InterfaceConfig::default());
    let endpoint = Endpoint::new(&pair.client.interface).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let forged = |process: u32| {
        let address = endpoint.address();
        let mut bytes = address.endpoint().unwrap().to_bytes();
        bytes[6..10].copy_from_slice(&process.to_be_bytes());
        let forged = barewire::address::EndpointAddress::from_bytes(&bytes).unwrap();
        PeerAddress::new(*address.device(), *address.interface(), Some(forged)).unwrap()
    };
    let refused = |process| match endpoint.connect(&forged(process)) {
        Err(ConnectError::Unreachable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(child.id()).contains("did not create this address"), "{}", refused(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(refused(child.id()).contains("has ended"), "{}", refused(child.id()));
    endpoint.connect(&endpoint.address()).unwrap();
}

/// An end that other processes can reach.
struct End {
    worker: Worker,
    domain: Domain,
    interface: Interface,
    endpoint: Endpoint,
}

impl End {
    fn open() -> Self {
        let mut worker = Worker::new();
        let domain = Domain::open(&"cma/memory".parse().unwrap()).unwrap();
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
        let endpoint = Endpoint::new(&interface).unwrap();
        Self { worker, domain, interface, endpoint }
    }

    fn introduce(&self, memory: &Memory) -> String {
        let address = hex(&self.endpoint.address().to_bytes());
        format!("{address} {} {}", hex(&memory.pack_key()), memory.address())
    }

    /// Connects to the other end. Returns the key and the address of its memory.
    fn connect(&self, introduction: &str) -> (barewire::RemoteKey, u64) {
        let words: Vec<_> = introduction.split_whitespace().collect();
        self.endpoint.connect(&PeerAddress::from_bytes(&unhex(words[0])).unwrap()).unwrap();
        (self.domain.unpack_key(&unhex(words[1])).unwrap(), words[2].parse().unwrap())
    }
}

/// The test whose process has a role.
const TEST: &str = "cma::a_child_in_its_role";

/// Not a test by itself: the roles of the children of the tests below.
#[test]
fn a_child_in_its_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("owner") => be_an_owner(),
        Ok("initiator") => be_an_initiator(),
        _ => {}
    }
}

/// Frees its memory, uses it otherwise, and finally executes another program.
fn be_an_owner() {
    let end = End::open();
    let memory = end.domain.allocate(4096, Access::all()).unwrap();
    println!("> {}", end.introduce(&memory));
    line();
    drop(memory);
    let own: Vec<Vec<u8>> = (0..4000).map(|_| vec![7; 500]).collect();
    println!("> dropped");
    line();
    println!(
        "> {}",
        std::hint::black_box(&own).iter().flatten().filter(|byte| **byte != 7).count()
    );
    let kept = end.domain.allocate(4096, Access::all()).unwrap();
    println!("> {} {}", hex(&kept.pack_key()), kept.address());
    line();
    panic!("{}", Command::new("sleep").arg("60").exec());
}

/// Pins a region of a peer, and waits.
fn be_an_initiator() {
    let words: Vec<_> = line().split_whitespace().map(str::to_owned).collect();
    let (address, key) = (unhex(&words[0]), unhex(&words[1]));
    let number = |bytes: &[u8], at| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let secret = |bytes: &[u8], at| u128::from_be_bytes(bytes[at..at + 16].try_into().unwrap());
    let table = barewire_shm::TableAddress {
        process: number(&address, 46) as i32,
        descriptor: number(&address, 50),
        secret: secret(&address, 54),
    };
    let key = barewire_shm::RegionKey { index: number(&key, 14), token: secret(&key, 18) };
    let process = barewire_shm::Process::open(table).unwrap();
    let pinned = process.pin(key, words[2].parse().unwrap(), 8, 0).unwrap();
    println!("> pinned");
    line();
    drop(pinned);
    println!("> done");
    line();
}

#[test]
fn a_key_to_memory_that_another_process_freed_reaches_nothing() {
    let mut owner = Helper::start(TEST, "owner");
    let end = End::open();
    let (key, remote) = end.connect(&owner.hear());
    let source = end.domain.allocate(4096, Access::all()).unwrap();
    source.write(0, &[0x41; 4096]).unwrap();
    let slice = [source.slice(0, 4096).unwrap()];
    assert_eq!(end.endpoint.put_zcopy(&slice, remote, &key, None), Ok(Posted::Done));
    owner.say("drop it");
    assert_eq!(owner.hear(), "dropped");
    assert_eq!(end.endpoint.put_zcopy(&slice, remote, &key, None), Err(PostError::KeyExpired));
    assert_eq!(end.endpoint.get_zcopy(&slice, remote, &key, None), Err(PostError::KeyExpired));
    owner.say("count");
    assert_eq!(owner.hear(), "0");
}

#[test]
fn a_peer_that_executes_another_program_fails_the_endpoint() {
    let mut owner = Helper::start(TEST, "owner");
    let mut end = End::open();
    let errors = watch_errors(&end.interface);
    end.connect(&owner.hear());
    owner.say("drop it");
    owner.hear();
    owner.say("count");
    owner.hear();
    let words = owner.hear();
    let (key, remote) = words.split_once(' ').unwrap();
    let (key, remote) = (end.domain.unpack_key(&unhex(key)).unwrap(), remote.parse().unwrap());
    let source = end.domain.allocate(LONG, Access::all()).unwrap();
    let slice = [source.slice(0, 4096).unwrap()];
    assert_eq!(end.endpoint.put_zcopy(&slice, remote, &key, None), Ok(Posted::Done));
    assert_eq!(end.endpoint.check(), Ok(()));
    owner.say("exec");
    let start = Instant::now();
    loop {
        match end.endpoint.put_zcopy(&slice, remote, &key, None) {
            Ok(_) => assert!(start.elapsed() < DEADLINE),
            Err(error) => break assert_eq!(error, PostError::EndpointFailed),
        }
        thread::sleep(Duration::from_millis(1));
    }
    while errors.borrow().is_empty() {
        end.worker.progress();
        assert!(start.elapsed() < DEADLINE);
    }
    let error = errors.borrow()[0].clone();
    assert_eq!(error.operation, Operation::Put);
    // During exec the process has no memory, and the kernel reports it as ended.
    match error.cause {
        Cause::Disconnected => {
            assert!(error.to_string().contains("executed another program"), "{error}");
        }
        cause => assert_eq!(cause, Cause::PeerUnreachable),
    }
    assert_eq!(end.endpoint.check(), Err(PostError::EndpointFailed));
}

/// Memory that a stopped or killed peer may be using is neither freed nor returned.
#[test]
fn a_peer_that_stops_or_dies_amid_a_copy_keeps_the_memory() {
    for is_killed in [false, true] {
        let end = End::open();
        let mut backing = vec![0u64; 512];
        let start = NonNull::from(&mut backing[0]).cast();
        // SAFETY: `backing` is leaked below, because it is never released.
        let registered = unsafe { end.domain.register(start, 4096, Access::all()) }.unwrap();
        let owned = end.domain.allocate(64 << 10, Access::all()).unwrap();
        let place = owned.address()..owned.address() + (64 << 10);
        let mut initiators = [&registered, &owned].map(|memory| {
            let mut initiator = Helper::start(TEST, "initiator");
            initiator.say(&end.introduce(memory));
            assert_eq!(initiator.hear(), "pinned");
            initiator.signal(libc::SIGSTOP);
            if is_killed {
                initiator.process.kill().unwrap();
                initiator.process.wait().unwrap();
            }
            initiator
        });
        let error = registered.deregister().unwrap_err();
        assert!(matches!(error, MemoryError::Deregister { length: 4096, .. }), "{error}");
        std::mem::forget(backing);
        owned.deregister().unwrap();
        let others: Vec<_> =
            (0..50).map(|_| end.domain.allocate(64 << 10, Access::all()).unwrap()).collect();
        assert!(others.iter().all(|memory| !place.contains(&memory.address())), "it was freed");
        let key = end.domain.unpack_key(&others[0].pack_key()).unwrap();
        end.endpoint.connect(&end.endpoint.address()).unwrap();
        let slice = [others[1].slice(0, 8).unwrap()];
        let put = end.endpoint.put_zcopy(&slice, others[0].address(), &key, None);
        assert_eq!(put, Ok(Posted::Done), "the domain goes on");
        if is_killed {
            continue;
        }
        for initiator in &mut initiators {
            initiator.signal(libc::SIGCONT);
            initiator.say("go on");
            assert_eq!(initiator.hear(), "done");
        }
    }
}
