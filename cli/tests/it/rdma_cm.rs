//! Runs Debian's programs of librdmacm over the software HCA: they connect by IP addresses, through
//! `/dev/infiniband/rdma_cm`.

use crate::hca::{self, installed};
use crate::port::free_port;
use crate::support::{self, Barewire, Ended, PATIENCE, TestFile, start};

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

pub(crate) fn run(program: &str) -> Barewire {
    run_with(&[], program)
}

/// Runs a program with options of `hca run`.
fn run_with(options: &[&str], program: &str) -> Barewire {
    let words: Vec<&str> = program.split_whitespace().collect();
    start(&[&["hca", "run"], options, &["--"], &words[..]].concat())
}

/// Starts a server, and waits until it is one of `count` that listen to a port.
pub(crate) fn listening(server: &str, port: u16, count: usize) -> Barewire {
    listening_with(&[], server, port, count)
}

fn listening_with(options: &[&str], server: &str, port: u16, count: usize) -> Barewire {
    let mut serving = run_with(options, server);
    let service = format!("{:x}", TCP << 16 | u32::from(port));
    let deadline = Instant::now() + PATIENCE;
    while listeners(&service) < count && !serving.has_ended() {
        assert!(Instant::now() < deadline, "{server} does not listen");
        thread::sleep(Duration::from_millis(5));
    }
    serving
}

/// Starts a server, in whose arguments `PORT` is a port, and its client. Returns how both ended.
fn pair(options: [&[&str]; 2], server: &str, client: &str) -> [Ended; 2] {
    let port = free_port();
    let with_port = |program: &str| program.replace("PORT", &port.to_string());
    let serving = listening_with(options[0], &with_port(server), port, 1);
    let client = run_with(options[1], &with_port(client)).end(PATIENCE);
    [serving.end(PATIENCE), client]
}

/// Runs a server and its client, and asserts that both succeed.
fn succeeds(server: &str, client: &str) -> [Ended; 2] {
    succeeds_with([&[], &[]], server, client)
}

/// The same with options of `hca run` for either.
fn succeeds_with(options: [&[&str]; 2], server: &str, client: &str) -> [Ended; 2] {
    let ended = pair(options, server, client);
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

/// Their ports have addresses as if through IPoIB, and paths between LIDs. With an address outside
/// of the subnet of the others, or if the ports require it, paths have a global route.
#[test]
fn infiniband_ports_are_connected_by_ip_addresses() {
    if !installed("rping", "rdmacm-utils") || !installed("ib_write_bw", "perftest") {
        return;
    }
    let ib: [&[&str]; 2] = [&["--ib"], &["--ib"]];
    for (server, client) in [
        ("rping -s -C 3 -V -p PORT", "rping -c -C 3 -V -a 127.0.0.1 -p PORT"),
        ("ucmatose -p PORT", "ucmatose -p PORT -s 127.0.0.1"),
        ("rdma_xserver -p PORT", "rdma_xclient -p PORT -s 127.0.0.1"),
        ("ib_write_bw -R -n 20 -p PORT", "ib_write_bw -R -n 20 -p PORT 127.0.0.1"),
        (
            "ib_send_bw -R -c UD -n 20 -s 64 -p PORT",
            "ib_send_bw -R -c UD -n 20 -s 64 -p PORT 127.0.0.1",
        ),
    ] {
        succeeds_with(ib, server, client);
    }
    let address = address_in(62);
    let far: &[&str] = &["--ib", "--address", &address];
    let required: &[&str] = &["--ib", "--grh-required"];
    for options in [[far, &["--ib"]], [required; 2]] {
        succeeds_with(options, "rping -s -C 3 -p PORT", "rping -c -C 3 -a 127.0.0.1 -p PORT");
    }
}

/// AF_IB: the address is the GID of the server's device.
#[test]
fn infiniband_ports_are_connected_by_gids() {
    if !installed("ucmatose", "rdmacm-utils") {
        return;
    }
    let address = address_in(66);
    let server: &[&str] = &["--ib", "--address", &address];
    let gid = format!("::ffff:{address}");
    for program in ["ucmatose -f gid", "ucmatose -f gid -P ib", "rstream -f gid -S 1000 -C 5"] {
        let program = format!("{program} -p {}", free_port());
        serves_in_time(
            [server, &["--ib"]],
            &format!("{program} -b {gid}"),
            &format!("{program} -s {gid}"),
        );
    }
    // Other ports refuse GIDs, as the kernel does.
    let command = format!("ucmatose -f gid -b {gid} -p {}", free_port());
    let refused = run_with(&["--explain", "--address", &address], &command).end(PATIENCE);
    let why = "rdma_bind_addr is refused: addr: no InfiniBand port (--ib) has this GID";
    assert!(!refused.status.success() && refused.stderr.contains(why), "{refused:#?}");
}

/// Returns an address of 127.`second`.0.0/16 that no other test uses, whose end is a LID.
fn address_in(second: u8) -> String {
    format!("127.{second}.{}.{}", fastrand::u8(..0xc0), fastrand::u8(1..255))
}

#[test]
fn datagrams_go_to_the_queue_pair_that_a_service_names() {
    datagrams_are_answered(&address_in(61), "", &[]);
}

/// The receiver makes an address handle from the completion, without and with AF_IB.
#[test]
fn datagrams_of_infiniband_ports_are_answered() {
    datagrams_are_answered(&address_in(66), "", &["--ib"]);
    datagrams_are_answered(&address_in(66), "-f gid", &["--ib"]);
}

/// udaddy has a fixed port, so the server's device gets an address that no other test uses.
fn datagrams_are_answered(address: &str, format: &str, options: &[&str]) {
    if !installed("udaddy", "rdmacm-utils") {
        return;
    }
    let name = if format.is_empty() { address.to_owned() } else { format!("::ffff:{address}") };
    let own = [options, &["--address", address]].concat();
    let server = format!("udaddy {format} -C 3 -b {name}");
    serves_in_time([&own, options], &server, &format!("udaddy {format} -C 3 -s {name}"));
}

/// Starts a server that listens to the address of its device only, and clients until it serves one.
fn serves_in_time(options: [&[&str]; 2], server: &str, client: &str) {
    let mut serving = run_with(options[0], server);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let client = run_with(options[1], client).end(PATIENCE);
        if client.status.success() {
            break;
        }
        // Until the server listens, the service does not exist.
        assert!(Instant::now() < deadline && !serving.has_ended(), "{client:#?}");
    }
    let ended = serving.end(PATIENCE);
    assert!(ended.status.success(), "{ended:#?}");
}

#[test]
fn datagrams_to_a_group_reach_its_members_in_other_processes() {
    let [a, b, c] = std::array::from_fn(|_| fastrand::u8(..));
    let arguments = format!("-m 239.{a}.{b}.{c}");
    datagrams_to_a_group_arrive(&[], &arguments, &format!("::ffff:239.{a}.{b}.{c}"));
}

/// Groups of InfiniBand have any GID of multicast, or one of IPoIB.
#[test]
fn datagrams_to_a_group_of_infiniband_reach_its_members() {
    let [a, b] = std::array::from_fn(|_| fastrand::u16(0x1000..));
    let gid = format!("ff12:1::{a:x}:{b:x}");
    datagrams_to_a_group_arrive(&["--ib"], &format!("-b 127.0.0.1 -M {gid}"), &gid);
    let arguments = format!("-m 239.128.{}.{}", a >> 8, b >> 8);
    let group = format!("ff12:4001:ffff::f80:{:x}", (a >> 8) << 8 | b >> 8);
    datagrams_to_a_group_arrive(&["--ib"], &arguments, &group);
}

/// mckey's receiver waits for ten datagrams, and its sender ends once it has sent them: so it is
/// started until all have arrived.
fn datagrams_to_a_group_arrive(options: &[&str], arguments: &str, group: &str) {
    if !installed("mckey", "rdmacm-utils") {
        return;
    }
    let mckey = format!("mckey {arguments}");
    let mut receivers = [run_with(options, &mckey), run_with(options, &mckey)];
    let deadline = Instant::now() + PATIENCE;
    while !receivers.iter_mut().all(Barewire::has_ended) {
        let sender = run_with(options, &format!("{mckey} -s")).end(PATIENCE);
        assert!(sender.status.success(), "{sender:#?}");
        assert!(sender.stdout.contains(&format!("joined dgid: {group} ")), "{sender:#?}");
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

/// Compiles `hca/rdma_cm.c`; `None` if something is missing.
fn compiled() -> Option<TestFile> {
    let header = ("rdma/rdma_cma.h", "librdmacm-dev");
    hca::compiled("rdma_cm", header, &["-Wno-unused-result", "-lrdmacm", "-libverbs"])
}

/// The child inherits the sockets by which peers find the listener and notice the end.
#[test]
fn a_forked_child_does_not_stand_for_its_killed_parent() {
    let Some(program) = compiled() else { return };
    let ended = start(&["hca", "run", "--", program.path(), "forked"]).end(PATIENCE);
    assert!(ended.status.success() && ended.stdout == "disconnected\n", "{ended:#?}");
}

#[test]
fn explanations_that_nobody_reads_do_not_stop_connections() {
    let Some(program) = compiled() else { return };
    let port = free_port().to_string();
    let words = ["hca", "run", "--explain", "--", program.path(), "unread", &port];
    let ended = start(&words).end(PATIENCE);
    assert!(ended.status.success() && ended.stdout == "rejected\n", "{ended:#?}");
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
