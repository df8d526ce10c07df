//! Behaviours specific to `shm`: the number of descriptors of connections and regions, and secrets.

use std::cell::Cell;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use barewire::{
    Access, Domain, Endpoint, FlushMode, Interface, InterfaceConfig, PeerAddress, PendingResult,
    PostError, Posted, Worker,
};

use crate::helper::{Helper, ROLE, hex, line, unhex};
use crate::support::{Pair, until};

/// Returns `true` in a child process that runs only this test; the parent starts it and waits for
/// it. Counts of process resources then exclude other tests.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BAREWIRE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    false
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn region_mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("barewire-region").count()
}

/// The resident memory of this process in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

/// Ten thousand endpoints to one peer share a socket; the default limit of descriptors is 1024.
#[test]
fn ten_thousand_endpoints_to_a_peer_share_a_connection() {
    const ENDPOINTS: u64 = 10_000;
    if !is_alone("shm::ten_thousand_endpoints_to_a_peer_share_a_connection") {
        return;
    }
    let mut pair = Pair::over_shm(&InterfaceConfig::default());
    let inbox = crate::support::collect(&pair.server.interface, 1);
    let (before, memory) = (descriptors(), resident());
    let (from, to) = (pair.client.interface.clone(), pair.server.interface.clone());
    let endpoints: Vec<Endpoint> =
        (0..ENDPOINTS).map(|_| from.connect(&to.address()).unwrap()).collect();
    for (number, endpoint) in (0..).zip(&endpoints) {
        pair.until("a message of each", || {
            endpoint.am_short(1, number, &[]) != Err(PostError::NoResource)
        });
    }
    pair.until("all messages", || inbox.borrow().len() as u64 == ENDPOINTS);
    let order = inbox
        .borrow()
        .iter()
        .zip(0u64..)
        .all(|(message, number)| message[..8] == number.to_le_bytes());
    assert!(order, "messages of one thread stay in order");
    let (after, grown) = (descriptors(), resident().saturating_sub(memory));
    eprintln!("{ENDPOINTS} endpoints: {} descriptors more, {grown} KiB more", after - before);
    assert!(after - before <= 4, "{before} descriptors became {after}");
    // Each is an object of some hundred bytes.
    assert!(grown < 64 << 10, "{grown} KiB");
    // A cancelled endpoint does not affect others; a failure of the peer affects all.
    assert_eq!(endpoints[0].flush(FlushMode::Cancel, None), Ok(Posted::Done));
    assert_eq!(endpoints[0].am_short(1, 0, &[]), Err(PostError::EndpointFailed));
    pair.until("the others", || endpoints[1].am_short(1, 0, &[]) == Ok(()));
}

/// Endpoints to an interface of this process use its regions where they are mapped already.
#[test]
fn regions_of_this_process_are_mapped_once() {
    if !is_alone("shm::regions_of_this_process_are_mapped_once") {
        return;
    }
    let mut pair = Pair::over_shm(&InterfaceConfig::default());
    let regions: Vec<_> = (0..300).map(|_| pair.target(64, Access::all())).collect();
    let (before, maps) = (descriptors(), region_mappings());
    for (memory, key) in &regions {
        // Neither side has made progress.
        let posted = pair.client.endpoint.put_short(&[7; 8], memory.address(), key);
        assert_eq!(posted, Ok(()));
        assert_eq!(memory.load_u64(0).unwrap(), 0x0707_0707_0707_0707);
    }
    assert_eq!((descriptors(), region_mappings()), (before, maps));
    let (memory, key) = regions.into_iter().next().unwrap();
    let address = memory.address();
    drop(memory);
    assert_eq!(pair.client.endpoint.put_short(&[7; 8], address, &key), Err(PostError::KeyExpired));
    pair.flush(FlushMode::Local);
}

/// The test whose process is the owner of memory.
const OWNER: &str = "shm::an_owner_of_memory";

/// Not a test by itself: allocates memory, and makes progress while it is told to.
#[test]
fn an_owner_of_memory() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut worker = Worker::new();
    let domain = Domain::open(&"shm/memory".parse().unwrap()).unwrap();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let memory: Vec<_> =
        (0..REGIONS).map(|_| domain.allocate(64, Access::all()).unwrap()).collect();
    println!("> {}", hex(&interface.address().to_bytes()));
    for memory in &memory {
        println!("> {} {}", hex(&memory.pack_key()), memory.address());
    }
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || while sender.send(line()).is_ok() {});
    let mut runs = false;
    loop {
        match if runs { orders.try_recv().ok() } else { orders.recv().ok() }.as_deref() {
            Some("run\n") => runs = true,
            Some("stop\n") => {
                runs = false;
                println!("> stopped");
            }
            Some("show\n") => println!("> {:x}", memory[0].load_u64(0).unwrap()),
            Some(_) => return,
            None => drop(worker.progress()),
        }
    }
}

const REGIONS: usize = 20;
/// The offset of the last byte of the owner's process id in a key.
const PROCESS_IN_KEY: usize = 41;

/// Memory of another process: its key leads to it with and without an endpoint, and without progress
/// of its owner. Where the kernel does not let this process map it, a pending request waits for the
/// region that a post requested. A region takes no descriptor of the peer.
#[test]
fn a_post_waits_for_a_region_of_another_process() {
    if !is_alone("shm::a_post_waits_for_a_region_of_another_process") {
        return;
    }
    let mut owner = Helper::start(OWNER, "owner");
    let mut worker = Worker::new();
    let domain = Domain::open(&"shm/memory".parse().unwrap()).unwrap();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let endpoint =
        interface.connect(&PeerAddress::from_bytes(&unhex(&owner.hear())).unwrap()).unwrap();
    let regions: [_; REGIONS] = std::array::from_fn(|i| {
        let said = owner.hear();
        let (key, address) = said.split_once(' ').unwrap();
        let mut key = unhex(key);
        if i == 1 {
            // Another process id, as if the owner were in another PID namespace.
            key[PROCESS_IN_KEY] ^= 1;
        }
        (domain.unpack_key(&key).unwrap(), address.parse::<u64>().unwrap())
    });
    let (key, address) = &regions[0];
    assert_eq!(endpoint.put_short(&[1; 8], *address, key), Err(PostError::NoResource));
    let pointer = key.pointer().unwrap();
    let word = pointer.locate(*address, 8).unwrap().cast::<AtomicU64>();
    // SAFETY: an aligned word of a mapping that `pointer` keeps, which all access as a whole.
    unsafe { word.as_ref() }.store(0x0123, Ordering::Relaxed);
    owner.say("show");
    assert_eq!(owner.hear(), "123", "without an endpoint and without progress of the peer");
    let later = Instant::now() + Duration::from_millis(50);
    while Instant::now() < later {
        worker.progress();
        assert!(endpoint.is_connecting(), "without progress of the peer");
    }
    owner.say("run");
    until(&mut [&mut worker], "connection", || !endpoint.is_connecting());
    owner.say("stop");
    assert_eq!(owner.hear(), "stopped");

    assert_eq!(endpoint.put_short(&[1; 8], *address, key), Ok(()), "the owner makes no progress");
    let (key, address) = &regions[1];
    assert_eq!(endpoint.put_short(&[1; 8], *address, key), Err(PostError::NoResource));
    let (done, runs) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (is_done, count) = (Rc::clone(&done), Rc::clone(&runs));
    let (own_key, own_address) = (key.clone(), *address);
    let request = move |endpoint: &Endpoint| {
        count.set(count.get() + 1);
        match endpoint.put_short(&[1; 8], own_address, &own_key) {
            Err(PostError::NoResource) => PendingResult::Again,
            posted => {
                assert_eq!(posted, Ok(()));
                is_done.set(true);
                PendingResult::Done
            }
        }
    };
    assert!(endpoint.pending_add(request).is_ok(), "a post would not be taken now");
    for _ in 0..10_000 {
        worker.progress();
    }
    assert!(!done.get() && runs.get() > 0, "{} runs", runs.get());
    owner.say("run");
    until(&mut [&mut worker], "the request", || done.get());

    let (before, maps) = (descriptors(), region_mappings());
    for (at, (key, address)) in regions.iter().enumerate() {
        until(&mut [&mut worker], "put", || endpoint.put_short(&[1; 8], *address, key) == Ok(()));
        // The first two are mapped already.
        let used = maps + at.saturating_sub(1);
        assert_eq!(region_mappings(), used, "no more than the keys that were used");
    }
    assert_eq!(descriptors(), before);
    owner.say("stop");
    assert_eq!(owner.hear(), "stopped");
    owner.say("show");
    assert_eq!(owner.hear(), "101010101010101");
}

#[test]
fn debug_prints_no_secret() {
    let mut worker = Worker::new();
    let domain = Domain::open(&"shm/memory".parse().unwrap()).unwrap();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let memory = domain.allocate(64, Access::all()).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    let text = format!("{worker:?} {domain:?} {interface:?} {memory:?} {key:?}");
    let address = interface.address().interface().to_bytes();
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    let secret = address[14..30].try_into().map(u128::from_be_bytes).unwrap();
    // The secret of the address, and its halves; the number of the region in the key.
    let region = u128::from(number(&memory.pack_key()[14..]));
    for secret in [secret, secret >> 64, u128::from(secret as u64), region] {
        assert!(!text.contains(&secret.to_string()), "{text}");
        assert!(!text.contains(&format!("{secret:x}")), "{text}");
    }
}
