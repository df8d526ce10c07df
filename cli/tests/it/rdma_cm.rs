//! Runs Debian's programs of librdmacm over the software HCA: they connect by IP addresses, through
//! `/dev/infiniband/rdma_cm`.

use crate::hca::installed;
use crate::port::free_port;
use crate::support::{self, Barewire, Ended, PATIENCE, start, start_with};

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// `RDMA_PS_TCP`.
const TCP: u32 = 0x0106;

/// Returns how many programs of this user listen to a service at any address.
fn listeners(service: &str) -> usize {
    // SAFETY: no arguments, and no error.
    let user = unsafe { libc::geteuid() };
    let name = format!("@barewire-hca/rdma_cm/{user}/{service}/");
    fs::read_to_string("/proc/net/unix")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains(&name))
        .count()
}

fn is_listening(service: &str) -> bool {
    listeners(service) > 0
}

fn run(program: &str) -> Barewire {
    let words: Vec<&str> = program.split_whitespace().collect();
    start(&[&["hca", "run", "--"], &words[..]].concat())
}

/// Starts a server, and waits until it is one of `count` that listen to a port.
fn listening(server: &str, port: u16, count: usize) -> Barewire {
    let mut serving = run(server);
    let service = format!("{:x}", TCP << 16 | u32::from(port));
    let deadline = Instant::now() + PATIENCE;
    while listeners(&service) < count && !serving.has_ended() {
        assert!(Instant::now() < deadline, "{server} does not listen");
        thread::sleep(Duration::from_millis(5));
    }
    serving
}

/// Starts a server, in whose arguments `PORT` is a port, and its client. Returns how both ended.
fn pair(server: &str, client: &str) -> [Ended; 2] {
    let port = free_port();
    let with_port = |program: &str| program.replace("PORT", &port.to_string());
    let serving = listening(&with_port(server), port, 1);
    let client = run(&with_port(client)).end(PATIENCE);
    [serving.end(PATIENCE), client]
}

/// Runs a server and its client, and asserts that both succeed.
fn succeeds(server: &str, client: &str) -> [Ended; 2] {
    let ended = pair(server, client);
    for side in &ended {
        assert!(side.status.success() && !side.stderr.contains("barewire"), "{server}: {ended:#?}");
    }
    ended
}

/// Both sides say it, as the program gets a number only.
#[test]
fn a_rejected_path_mtu_is_explained() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let port = free_port();
    let text = port.to_string();
    let explain = ["hca", "run", "--explain"];
    let serve = ["--mtu", "1500", "--", "rping", "-s", "-C", "1", "-p", &text];
    let mut server = start(&[&explain[..], &serve].concat());
    let deadline = Instant::now() + PATIENCE;
    while !is_listening(&format!("{:x}", TCP << 16 | u32::from(port))) {
        assert!(Instant::now() < deadline && !server.has_ended(), "{}", server.errors());
        thread::sleep(Duration::from_millis(5));
    }
    let connect = ["--", "rping", "-c", "-C", "1", "-a", "127.0.0.1", "-p", &text];
    let client = start(&[&explain[..], &connect].concat()).end(PATIENCE);
    let reason =
        "is refused: the requested path MTU is larger than the listener's port has (--mtu)";
    assert!(!client.status.success() && client.stderr.contains(reason), "{client:#?}");
    let said = format!("127.0.0.1:{port} {reason}");
    assert!(client.stderr.contains(&said), "{client:#?}");
    // Nothing else is refused.
    assert_eq!(client.stderr.matches("barewire-hca: ").count(), 1, "{client:#?}");
    while !server.errors().contains(reason) {
        assert!(Instant::now() < deadline, "{}", server.errors());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn rping_transfers_the_right_data() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let [server, client] =
        succeeds("rping -s -C 3 -V -v -p PORT", "rping -c -C 3 -V -v -a 127.0.0.1 -p PORT");
    for side in [server, client] {
        assert!(side.stdout.contains("ping data: rdma-ping-2: CDEFGH"), "{side:#?}");
    }
}

/// perftest listens anew for each connection.
#[test]
fn perftest_connects_by_rdma_cm() {
    if !installed("ib_write_bw", "perftest") {
        return;
    }
    for test in [
        "ib_write_bw -n 20 -s 4096",
        "ib_send_lat -n 20",
        "ib_send_bw -c UD -n 20 -s 64",
        // Its server ends without disconnecting, and the client waits for the end.
        "ib_atomic_lat -n 20",
    ] {
        let server = format!("{test} -R -p PORT");
        succeeds(&server, &format!("{server} 127.0.0.1"));
    }
}

#[test]
fn programs_of_librdmacm_run() {
    if !installed("ucmatose", "rdmacm-utils") {
        return;
    }
    for (server, client) in [
        ("ucmatose -p PORT", "ucmatose -p PORT -s 127.0.0.1"),
        // Several connections of one listener, with private data of their programs.
        ("ucmatose -c 10 -C 3 -p PORT", "ucmatose -c 10 -C 3 -p PORT -s 127.0.0.1"),
        ("rdma_server -p PORT", "rdma_client -p PORT -s 127.0.0.1"),
        // XRC queue pairs, each with a connection.
        ("rdma_xserver -p PORT", "rdma_xclient -p PORT -s 127.0.0.1"),
        // Sockets over RDMA.
        ("rstream -S 1000 -I 2 -C 10 -p PORT", "rstream -S 1000 -I 2 -C 10 -p PORT -s 127.0.0.1"),
        (
            "riostream -S 1000 -I 2 -C 10 -p PORT",
            "riostream -S 1000 -I 2 -C 10 -p PORT -s 127.0.0.1",
        ),
    ] {
        succeeds(server, client);
    }
}

/// udaddy has a fixed port, so the server's device gets an address that no other test uses.
#[test]
fn datagrams_go_to_the_queue_pair_that_a_service_names() {
    if !installed("udaddy", "rdmacm-utils") {
        return;
    }
    let address = format!("127.61.{}.{}", fastrand::u8(..), fastrand::u8(1..255));
    let environment = [("BAREWIRE_HCA_ADDRESS", address.as_str())];
    let mut server =
        start_with(&["hca", "run", "--", "udaddy", "-C", "3", "-b", &address], &environment);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let client = run(&format!("udaddy -C 3 -s {address}")).end(PATIENCE);
        if client.status.success() {
            break;
        }
        // Until the server listens, the service does not exist.
        assert!(Instant::now() < deadline && !server.has_ended(), "{client:#?}");
    }
    let server = server.end(PATIENCE);
    assert!(server.status.success(), "{server:#?}");
}

/// mckey's receiver waits for ten datagrams, and its sender ends once it has sent them: so it is
/// started until all have arrived.
#[test]
fn datagrams_to_a_group_reach_its_members_in_other_processes() {
    if !installed("mckey", "rdmacm-utils") {
        return;
    }
    let [a, b, c] = std::array::from_fn(|_| fastrand::u8(..));
    let mckey = format!("mckey -m 239.{a}.{b}.{c}");
    let mut receivers = [run(&mckey), run(&mckey)];
    let deadline = Instant::now() + PATIENCE;
    while !receivers.iter_mut().all(Barewire::has_ended) {
        let sender = run(&format!("{mckey} -s")).end(PATIENCE);
        assert!(sender.status.success(), "{sender:#?}");
        assert!(
            sender.stdout.contains(&format!("joined dgid: ::ffff:239.{a}.{b}.{c}")),
            "{sender:#?}"
        );
        assert!(Instant::now() < deadline, "the receivers got too few datagrams");
    }
    for receiver in receivers {
        let receiver = receiver.end(PATIENCE);
        assert!(receiver.status.success(), "{receiver:#?}");
        assert!(receiver.stdout.contains("receiving data transfers"), "{receiver:#?}");
    }
}

#[test]
fn a_client_without_a_server_is_rejected() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let client = run(&format!("rping -c -C 1 -a 127.0.0.1 -p {}", free_port())).end(PATIENCE);
    assert!(!client.status.success(), "{client:#?}");
    assert!(client.stderr.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{client:#?}");
}

/// Whether the first server ends by itself or is killed, the second is reached by 127.0.0.1.
#[test]
fn the_next_server_of_a_port_is_reached_when_the_first_has_ended() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let port = free_port();
    let server = format!("rping -s -C 1 -p {port}");
    let client = format!("rping -c -C 1 -a 127.0.0.1 -p {port}");
    let servers = [1, 2, 3].map(|count| listening(&server, port, count));
    let [first, second, third] = servers;
    for server in [first, second] {
        let client = run(&client).end(PATIENCE);
        assert!(client.status.success(), "{client:#?}");
        let server = server.end(PATIENCE);
        assert!(server.status.success(), "{server:#?}");
    }
    let fourth = listening(&server, port, 2);
    for program in support::children(third.pid()) {
        support::signal(program, libc::SIGKILL);
    }
    third.end(PATIENCE);
    let client = run(&client).end(PATIENCE);
    assert!(client.status.success(), "{client:#?}");
    assert!(fourth.end(PATIENCE).status.success());
}

/// The kernel disconnects for a process that it ends.
#[test]
fn the_peer_of_a_killed_process_is_disconnected() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let port = free_port();
    let server = listening(&format!("rping -s -v -p {port}"), port, 1);
    let client = run(&format!("rping -c -a 127.0.0.1 -p {port}"));
    let deadline = Instant::now() + PATIENCE;
    while !server.output().contains("ping data") {
        assert!(Instant::now() < deadline, "{}", server.errors());
        thread::sleep(Duration::from_millis(5));
    }
    for program in support::children(client.pid()) {
        support::signal(program, libc::SIGKILL);
    }
    client.end(PATIENCE);
    let server = server.end(PATIENCE);
    assert!(server.stderr.contains("server DISCONNECT EVENT"), "{server:#?}");
}
