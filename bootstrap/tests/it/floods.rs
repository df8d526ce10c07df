//! What floods of a member of the job, and of processes without the key, take of the time and memory
//! of rank 0 of a bootstrap over TCP while it waits for ranks that join, and at a fence; and that the
//! honest ranks join meanwhile. `BAREWIRE_FLOODS` names floods if not all are measured.

#[path = "../../../tests/support/flood.rs"]
#[allow(dead_code, reason = "rank 0 waits, and makes no turns that could be counted")]
mod flood;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use barewire_bootstrap::{Bootstrap, CLAIM, Tcp, TcpConfig};
use barewire_tcp::Key;
use barewire_tcp::handshake::Claim;
use barewire_tcp::socket::RECEIVE;
use barewire_tcp::time::cpu_time;

use self::flood::{MOST_MEMORY, Other, connection, flood_by_connections, has_no_parent, resident};

const LONG: Duration = Duration::from_secs(100);
/// The test that is another process.
const OTHER: &str = "floods::the_other_process";
/// Connections that a flood keeps open.
const OPEN: usize = 200;
const JOIN: u32 = 1;
const FENCE: u32 = 3;
const SIZE: u32 = 4;

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn config(rank: u32, master: SocketAddr) -> TcpConfig {
    TcpConfig { rank, size: SIZE, master, key: key(9), timeout: LONG }
}

/// A message: a list of numbers.
fn message(numbers: &[u32]) -> Vec<u8> {
    let part = |number: &u32| [4_u32.to_le_bytes(), number.to_le_bytes()].concat();
    let list: Vec<u8> = numbers.iter().flat_map(part).collect();
    [&(list.len() as u32).to_le_bytes()[..], &list].concat()
}

/// The request of a rank to join.
fn join(rank: u32, size: u32) -> Vec<u8> {
    let mut request = message(&[JOIN, rank, size]);
    // An empty host.
    request.extend([0; 4]);
    let length = request.len() as u32 - 4;
    request[..4].copy_from_slice(&length.to_le_bytes());
    request
}

/// Sends one byte after the other of a request to join, on each of many connections.
fn flood_by_bytes(address: SocketAddr) {
    let bytes = join(1, SIZE);
    let (begun, mut sockets) = (Instant::now(), VecDeque::new());
    while begun.elapsed() < LONG && !has_no_parent() {
        if sockets.len() < OPEN {
            sockets.extend(connection(address, &key(9), CLAIM).map(|socket| (socket, 0)));
        }
        sockets.retain_mut(|(socket, at)| {
            *at += 1;
            *at < bytes.len() && rustix::io::write(&*socket, &bytes[*at - 1..*at]).is_ok()
        });
    }
}

/// Joins as rank 3, and sends one byte after the other of its part of the first fence.
fn flood_a_fence(address: SocketAddr) {
    let mut socket = loop {
        match connection(address, &key(9), CLAIM) {
            Some(socket) => break socket,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    rustix::io::write(&socket, &join(3, SIZE)).unwrap();
    let mut buffer = vec![0; RECEIVE];
    while socket.receive(&mut buffer).unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Entries of an empty value each, of which the kernel is handed one byte at a time.
    let mut fence = message(&[FENCE, 0]);
    fence[..4].copy_from_slice(&(1_u32 << 20).to_le_bytes());
    fence.resize(4 + (1 << 20), 0);
    for byte in fence.chunks(1) {
        if rustix::io::write(&socket, byte).is_err() || has_no_parent() {
            return;
        }
    }
}

/// The process that [`Other::start`] starts; nothing otherwise.
#[test]
fn the_other_process() {
    let Some((role, arguments)) = flood::role() else { return };
    let address = arguments[0].parse().unwrap();
    let flood = |bytes: &[u8]| flood_by_connections(address, &key(9), CLAIM, bytes, OPEN);
    match role.as_str() {
        "strangers" => flood_by_connections(address, &key(8), CLAIM, &[], 0),
        "connections" => flood_by_connections(address, &key(9), CLAIM, &[], 0),
        "silent connections" => flood(&[]),
        "other claims" => {
            let other = Claim { service: 1, ..CLAIM };
            flood_by_connections(address, &key(9), other, &[], 0);
        }
        "wrong sizes" => flood(&join(1, SIZE + 1)),
        "wrong ranks" => flood(&join(SIZE, SIZE)),
        "rank 0" => flood(&join(0, SIZE)),
        "long requests" => flood(&[255; 16 << 10]),
        "requests in bytes" => flood_by_bytes(address),
        "a fence in bytes" => flood_a_fence(address),
        kind => flood(&message(&[kind.parse().unwrap(), 0, 0])),
    }
}

/// Measures what a flood takes of the processor while rank 0 waits for other ranks, and at a fence.
fn measure(role: &str) {
    let master = SocketAddr::from((Ipv4Addr::LOCALHOST, crate::port::free_port()));
    let at_fence = role == "a fence in bytes";
    let before = resident();
    let spend = move || {
        let (begun, spent) = (Instant::now(), cpu_time());
        move || (cpu_time().saturating_sub(spent), begun.elapsed())
    };
    let server = std::thread::spawn(move || {
        let so_far = spend();
        let mut rank = Tcp::open(&config(0, master)).unwrap();
        let joining = so_far();
        let so_far = spend();
        let fenced = rank.fence(Duration::from_secs(3));
        (joining, so_far(), fenced)
    });
    let _hostile = Other::start(OTHER, role, &[&master.to_string()]);
    let mut most = 0;
    for _ in 0..30 * flood::rounds() {
        std::thread::sleep(Duration::from_millis(20));
        most = most.max(resident().saturating_sub(before));
    }
    let honest: Vec<_> = (1..if at_fence { SIZE - 1 } else { SIZE })
        .map(|rank| {
            std::thread::spawn(move || {
                let mut rank = Tcp::open(&config(rank, master)).unwrap();
                rank.fence(LONG)
            })
        })
        .collect();
    let (joining, fence, fenced) = server.join().unwrap();
    assert_eq!(fenced.is_ok(), !at_fence, "{role}: {fenced:?}");
    for rank in honest {
        assert_eq!(rank.join().unwrap().is_ok(), !at_fence, "{role}");
    }
    let (spent, elapsed) = if at_fence { fence } else { joining };
    println!(
        "{role}: {:.1} % of a processor in {elapsed:.1?}, {} KiB",
        100.0 * spent.as_secs_f64() / elapsed.as_secs_f64(),
        most >> 10
    );
    assert!(most < MOST_MEMORY, "{role}: {most} bytes");
}

#[test]
#[ignore = "takes a minute"]
fn every_flood_takes_bounded_memory_and_no_honest_rank() {
    let roles = [
        "strangers",
        "connections",
        "silent connections",
        "other claims",
        "wrong sizes",
        "wrong ranks",
        "rank 0",
        "long requests",
        "requests in bytes",
        "a fence in bytes",
        // The kinds of messages other than requests to join.
        "2",
        "3",
        "4",
        "5",
        "6",
    ];
    roles.into_iter().filter(|role| flood::is_wanted(role)).for_each(measure);
}
