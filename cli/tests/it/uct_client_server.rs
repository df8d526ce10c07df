//! Runs UCX's own example of a client and a server that connect by socket addresses, which Debian's
//! libucx-dev has: `barewire uct run -- ucp_client_server`.

use std::path::Path;
use std::process::Command;

use crate::hca::{installed, library};
use crate::support::{Barewire, PATIENCE, TestFile, start_with};
use crate::uct::KEY;

const SOURCE: &str = "/usr/share/doc/libucx-dev/examples/ucp_client_server.c";

/// Compiles the example. Returns `None`, and says why, if something is not installed.
fn compiled(name: &str) -> Option<TestFile> {
    if !installed("cc", "gcc") || !Path::new(SOURCE).exists() {
        println!("skipped: no {SOURCE} (Debian: libucx-dev)");
        return None;
    }
    library();
    let program = TestFile::new(&format!("client-server-{name}"), 0);
    let mut command = Command::new("cc");
    command.args(["-O1", "-o", program.path(), SOURCE, "-lucp", "-lucs"]);
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    Some(program)
}

fn start(program: &TestFile, transports: &str, words: &[&str]) -> Barewire {
    let words = [&["uct", "run", "--", program.path()], words].concat();
    // The server prints its port at once.
    start_with(&words, &[("UCX_TLS", transports), ("BAREWIRE_KEY", KEY)])
}

/// The client sends messages of 3000 bytes to the server, and receives as many. The server of this
/// example serves one client: the next one hangs with UCX's own library, too.
fn serves(name: &str, transports: &str, types: &[&str]) {
    let Some(program) = compiled(name) else { return };
    for communication in types {
        let options = ["-c", communication, "-i", "20", "-s", "3000"];
        let mut server = start(&program, transports, &[&options[..], &["-p", "0"]].concat());
        let line = server.error_line("server is listening").expect("the server listens");
        let port = line.rsplit(' ').next().unwrap();
        let words = [&options[..], &["-a", "127.0.0.1", "-p", port]].concat();
        let client = start(&program, transports, &words).end(PATIENCE);
        client.succeeded();
        assert!(client.stdout.contains("ABCDEFGH"), "{communication}: {}", client.stdout);
    }
}

#[test]
fn clients_of_libucp_connect_to_servers_over_the_default_transports() {
    serves("default", "self,shm,cma,tcp", &["am", "stream"]);
}

#[test]
fn clients_of_libucp_connect_to_servers_over_one_transport() {
    for transport in ["tcp", "rc_mlx5"] {
        serves(transport, transport, &["am"]);
    }
}
