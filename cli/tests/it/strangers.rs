//! Processes of other users, and clients that request too much.

use crate::support;

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{
    PATIENCE, PROMISE, TestFile, as_nobody, control, control_name, signal, start, start_with,
};

/// All bytes until the other end is closed; none if it is reset.
fn all_of(mut socket: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    bytes
}

/// Another user has the port, and the name of this user's control socket. A client that trusted it
/// would write to addresses of its choice.
#[test]
fn a_server_of_another_user_hears_nothing() {
    let (place, places) = channel();
    let (heard, hears) = channel();
    let stranger = as_nobody(move || {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = tcp.local_addr().unwrap().port();
        let name = format!("barewire-control-0-{port}");
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let unix = UnixListener::bind_addr(&name).unwrap();
        place.send(port).unwrap();
        let tcp_heard = heard.clone();
        std::thread::spawn(move || tcp_heard.send(all_of(tcp.accept().unwrap().0)));
        let _ = heard.send(all_of(unix.accept().unwrap().0));
    });
    let Some(stranger) = stranger else { return };
    let port = places.recv().unwrap().to_string();
    let measure =
        ["perf", "127.0.0.1", "-p", &port, "-x", "cma", "-t", "put_bw", "-D", "zcopy", "-n", "10"];
    let ended = start(&measure).end(PATIENCE);
    assert!(ended.failed().contains("belongs to user 65534"), "{ended:#?}");
    assert!(ended.failed().contains("--key-file"), "{ended:#?}");
    assert_eq!(hears.recv_timeout(PROMISE).unwrap(), b"", "another user received bytes");
    stranger.join().unwrap();
    assert!(hears.recv_timeout(Duration::from_millis(100)).is_err(), "it came over TCP, too");
}

#[test]
fn a_client_of_another_user_hears_nothing() {
    let mut server = start(&["perf", "--listen", "-p", "0"]);
    let port = server.port();
    let (number, name) = (port.parse::<u16>().unwrap(), control_name(&port));
    let stranger = as_nobody(move || {
        let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, number))
            .map(|_| ())
            .map_err(|error| error.kind());
        (tcp, all_of(UnixStream::connect_addr(&name).unwrap()))
    });
    let Some(stranger) = stranger else { return };
    let (tcp, heard) = stranger.join().unwrap();
    assert_eq!(tcp, Err(ErrorKind::ConnectionRefused), "the server is reachable by TCP");
    assert_eq!(heard, b"");
    start(&["perf", "127.0.0.1", "-p", &port, "-n", "10"]).end(PATIENCE).succeeded();
    server.end(PATIENCE).succeeded();
}

#[test]
fn memory_and_counts_have_limits() {
    let mut server = start(&["perf", "--listen", "-p", "0", "--max-messages", "1K"]);
    let port = server.port();
    let client = |more: &[&str]| {
        let measure = ["perf", "127.0.0.1", "-p", &port, "-x", "shm", "-t", "put_bw", "-w", "0"];
        start(&[&measure[..], more].concat()).end(PATIENCE)
    };
    let ended = client(&["-n", "1", "-D", "zcopy", "-s", "400M"]);
    assert!(ended.failed().contains("--max-memory"), "{ended:#?}");
    // Strides use memory as well.
    let ended = client(&["-n", "1", "-D", "zcopy", "-s", "8,8", "-i", "300M", "-x", "rc_mlx5"]);
    assert!(
        ended.failed().contains("--max-memory") || ended.failed().contains("cannot be used"),
        "{ended:#?}"
    );
    let ended = client(&["-n", "1001"]);
    assert!(ended.failed().contains("--max-messages"), "{ended:#?}");
    client(&["-n", "1000"]).succeeded();
    assert!(server.end(PATIENCE).status.success());
}

#[test]
fn without_a_key_no_other_host_is_reached_or_served() {
    for arguments in [
        &["perf", "192.0.2.1"][..],
        &["perf", "host.example"],
        &["hello", "-n", "192.0.2.1"],
        &["perf", "--listen", "--bind", "0.0.0.0", "-p", "0"],
        &["perf", "--listen", "--bind", "127.0.0.1", "-p", "0"],
        &["perf", "--listen", "-6", "-p", "0"],
        &["hello", "-a", "0.0.0.0", "-p", "0"],
    ] {
        let ended = start(arguments).end(PROMISE);
        assert!(ended.failed().contains("barewire key"), "{arguments:?}: {ended:#?}");
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
    }
}

/// The kernel uses 127.0.0.1 as the source address for 127.0.0.2, like for another host.
#[test]
fn memory_is_not_shared_with_another_host() {
    let key = [("BAREWIRE_KEY", &*"5a".repeat(32))];
    let mut server = start_with(&["perf", "--listen", "--bind", "127.0.0.2", "-p", "0"], &key);
    let port = server.port();
    let client = |transport| {
        start_with(
            &["perf", "127.0.0.2", "-p", &port, "-x", transport, "-t", "put_bw", "-n", "10"],
            &key,
        )
        .end(PATIENCE)
    };
    for transport in ["shm", "cma"] {
        let ended = client(transport);
        assert!(ended.failed().contains("joins processes of one machine"), "{ended:#?}");
    }
    client("tcp").succeeded();
    assert!(server.end(PATIENCE).status.success());
}

#[test]
fn the_socket_is_private_and_taken_over_from_a_killed_server() {
    let folder = TestFile::new("runtime", 0);
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::create_dir(folder.path()).unwrap();
    let runtime = [("XDG_RUNTIME_DIR", folder.path())];
    let server = |port: &str| start_with(&["perf", "--listen", "-p", port], &runtime);
    let mut killed = server("0");
    let port = killed.port();
    let directory = std::path::Path::new(folder.path()).join("barewire");
    let socket = directory.join(format!("control-{port}.sock"));
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert!(socket.metadata().unwrap().file_type().is_socket());
    let second = server(&port).end(PROMISE);
    assert!(second.failed().contains("cannot listen on"), "{second:#?}");
    signal(killed.pid(), libc::SIGKILL);
    killed.end(PROMISE);
    let mut next = server(&port);
    assert_eq!(next.port(), port);
    start_with(&["perf", "localhost", "-p", &port, "-n", "10"], &runtime).end(PATIENCE).succeeded();
    next.end(PATIENCE).succeeded();
    let left: Vec<_> = directory.read_dir().unwrap().flatten().map(|entry| entry.path()).collect();
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert!(!left.contains(&socket), "{left:?}");
}

/// Every process of the same user, and root, can read the environment of a process.
#[test]
fn a_pair_keeps_its_key_out_of_the_environment() {
    let key = "5a".repeat(32);
    let mut first =
        start_with(&["perf", "-x", "tcp", "-n", "100000000"], &[("BAREWIRE_KEY", &*key)]);
    let second = first.second().expect("it runs");
    let read = |file: &str| std::fs::read(format!("/proc/{second}/{file}")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // Until exec, a child has the environment of its parent.
    while !read("cmdline").starts_with(b"barewire\0second\0") {
        assert!(Instant::now() < deadline, "no second process");
        std::thread::sleep(Duration::from_millis(1));
    }
    let environment = read("environ");
    assert!(
        !String::from_utf8_lossy(&environment).contains("BAREWIRE_KEY="),
        "the key is in sight"
    );
}

#[test]
fn a_stranger_that_comes_and_goes_is_no_client() {
    let mut server = start(&["perf", "--listen", "-p", "0"]);
    let port = server.port();
    drop(control(&port));
    server.warning("the client", PROMISE);
    start(&["perf", "127.0.0.1", "-p", &port, "-n", "10"]).end(PATIENCE).succeeded();
    assert!(server.end(PATIENCE).status.success());
}
