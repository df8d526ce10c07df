//! `tcp` between processes that did not start each other, with and without a key file.

use crate::support;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use support::{Barewire, PATIENCE, start};

/// A key file, removed when dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, key: [u8; 32], mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("barewire-{}-{name}.key", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        options.open(&path).unwrap().write_all(&key).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(Path::new(&self.0));
    }
}

fn server(arguments: &[&str]) -> (Barewire, String) {
    let mut server = start(&[arguments, &["-p", "0"]].concat());
    let port = server.port();
    (server, port)
}

#[test]
fn hello_with_a_key_over_either_family() {
    let key = KeyFile::new("hello", [7; 32], 0o600);
    for (host, way, size) in [("127.0.0.1", "-b", "8000"), ("::1", "-z", "1M")] {
        let options = ["hello", "-t", "tcp", way, "-s", size, "--key-file", key.path()];
        let (server, port) = server(&[&options[..], &["-a", host]].concat());
        let client = start(&[&options[..], &["-n", host, "-p", &port]].concat()).end(PATIENCE);
        client.succeeded();
        assert!(client.stdout.contains("from the server"), "{client:#?}");
        server.end(PATIENCE).succeeded();
    }
}

#[test]
fn perf_with_a_key() {
    let key = KeyFile::new("perf", [7; 32], 0o600);
    for test in
        [["-t", "am_bw", "-s", "8K"], ["-t", "get", "-s", "100K"], ["-t", "fadd", "-s", "8"]]
    {
        let (server, port) = server(&["perf", "--listen", "--key-file", key.path()]);
        let measure = ["perf", "127.0.0.1", "-x", "tcp", "-n", "500", "-w", "10", "-p", &port];
        let client =
            start(&[&measure[..], &test, &["--key-file", key.path()]].concat()).end(PATIENCE);
        client.succeeded();
        server.end(PATIENCE).succeeded();
    }
}

#[test]
fn without_a_key_it_refuses_and_says_how_to_give_one() {
    for arguments in [
        &["hello", "-t", "tcp", "-p", "0"][..],
        &["hello", "-t", "tcp", "-n", "127.0.0.1"],
        &["perf", "-x", "tcp", "--listen", "-p", "0"],
        &["perf", "-x", "tcp", "127.0.0.1"],
    ] {
        let ended = start(arguments).end(PATIENCE);
        let line = ended.failed();
        assert!(
            line.contains("barewire key") && line.contains("--key-file"),
            "{arguments:?}: {line}"
        );
    }
}

#[test]
fn a_key_that_is_none_is_named() {
    let exposed = KeyFile::new("exposed", [7; 32], 0o644);
    let hello = |file: &str| {
        let ended =
            start(&["hello", "-t", "tcp", "-n", "127.0.0.1", "--key-file", file]).end(PATIENCE);
        ended.failed().to_owned()
    };
    assert!(hello(exposed.path()).contains("chmod 600"));
    assert!(hello("/nonexistent/key").contains("cannot read the key file"));
    assert!(hello("/dev/null").contains("/dev/null"));
}

#[test]
fn the_route_to_a_peer_is_told() {
    let ended = start(&["info", "--to", "127.0.0.1"]).end(PATIENCE);
    ended.succeeded();
    assert!(ended.stdout.contains("device lo, since the route to 127.0.0.1"), "{ended:#?}");
}

/// Also for the control connection of other transports: the server refuses clients without the key
/// and waits for the next.
#[test]
fn a_stranger_is_refused_and_the_server_waits_on() {
    let (one, other) = (KeyFile::new("one", [1; 32], 0o600), KeyFile::new("other", [2; 32], 0o600));
    for transport in ["tcp", "rc_mlx5"] {
        let (server, port) = server(&["hello", "-t", transport, "--key-file", one.path()]);
        let client = |key: &[&str]| {
            let client = ["hello", "-t", transport, "-n", "127.0.0.1", "-p", &port];
            start(&[&client[..], key].concat()).end(PATIENCE)
        };
        let ended = client(&["--key-file", other.path()]);
        assert!(ended.failed().contains("the same key"), "{ended:#?}");
        // Clients that send garbage, or have no key at all.
        let mut stranger = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        stranger.write_all(&[0x5a; 100]).unwrap();
        client(&[]).failed();
        client(&["--key-file", one.path()]).succeeded();
        let ended = server.end(PATIENCE);
        assert!(ended.stderr.contains("did not prove this job's key"), "{ended:#?}");
        assert!(ended.status.success(), "{ended:#?}");
    }
}
