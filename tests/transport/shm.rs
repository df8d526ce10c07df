//! Behaviours specific to `shm`: the number of descriptors of connections and regions, and secrets.

use std::process::{Command, Stdio};

use barewire::{
    Access, Domain, Endpoint, FlushMode, Interface, InterfaceConfig, PostError, Posted, Worker,
};

use crate::support::Pair;

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

/// A region needs one descriptor of its owner and none of a peer, and a peer maps regions that it
/// has keys to.
#[test]
fn regions_take_no_descriptor_of_a_peer() {
    if !is_alone("shm::regions_take_no_descriptor_of_a_peer") {
        return;
    }
    let mut pair = Pair::over_shm(&InterfaceConfig::default());
    let mappings =
        || std::fs::read_to_string("/proc/self/maps").unwrap().matches("barewire-region").count();
    let regions: Vec<_> = (0..300).map(|_| pair.target(64, Access::all())).collect();
    pair.flush(FlushMode::Local);
    let (before, maps) = (descriptors(), mappings());

    for (at, (memory, key)) in regions.iter().enumerate() {
        let posted =
            pair.post("put", |endpoint| endpoint.put_short(&[7; 8], memory.address(), key));
        assert_eq!(posted, Ok(()));
        assert_eq!(memory.load_u64(0).unwrap(), 0x0707_0707_0707_0707);
        assert_eq!(mappings(), maps + at + 1, "no more than the keys that were used");
    }
    assert_eq!(descriptors(), before);
    let (memory, key) = regions.into_iter().next().unwrap();
    let address = memory.address();
    drop(memory);
    assert_eq!(pair.client.endpoint.put_short(&[7; 8], address, &key), Err(PostError::KeyExpired));
}

/// A pending request waits for a region that a post requested, and a sleeping worker wakes up for
/// it.
#[test]
fn a_post_that_waits_for_a_region_can_be_queued() {
    let mut pair = Pair::over_shm(&InterfaceConfig::default());
    let (memory, key) = pair.target(64, Access::all());
    let address = memory.address();
    let endpoint = pair.client.endpoint.clone();
    assert_eq!(endpoint.put_short(&[1; 8], address, &key), Err(PostError::NoResource));
    let request = move |endpoint: &Endpoint| match endpoint.put_short(&[1; 8], address, &key) {
        Err(PostError::NoResource) => barewire::PendingResult::Again,
        posted => {
            assert_eq!(posted, Ok(()));
            barewire::PendingResult::Done
        }
    };
    assert!(endpoint.pending_add(request).is_ok(), "a post would not be taken now");
    pair.until("the request", || memory.load_u64(0).unwrap() == 0x0101_0101_0101_0101);
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
