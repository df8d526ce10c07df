//! Runs UCX's own example of a client and a server that connect by socket addresses, which Debian's
//! libucx-dev has: `barewire uct run -- ucp_client_server`.

use std::path::Path;

use crate::hca::library;
use crate::support::{Barewire, PATIENCE, TestFile, start_with};
use crate::uct::{KEY, compiled};

const SOURCE: &str = "/usr/share/doc/libucx-dev/examples/ucp_client_server.c";

fn start(program: &TestFile, transports: &str, words: &[&str]) -> Barewire {
    let words = [&["uct", "run", "--", program.path()], words].concat();
    // The server prints its port at once.
    start_with(&words, &[("UCX_TLS", transports), ("BAREWIRE_KEY", KEY)])
}

/// The client sends messages of 3000 bytes to the server, and receives as many. The server of this
/// example serves one client: the next one hangs with UCX's own library, too.
fn serves(transports: &str, types: &[&str]) {
    let source = Path::new(SOURCE);
    if !source.exists() {
        return println!("skipped: no {SOURCE} (Debian: libucx-dev)");
    }
    library();
    let Some(program) = compiled("cc", "gcc", source, &["-lucp", "-lucs"]) else { return };
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
    serves("self,shm,cma,tcp", &["am", "stream"]);
}

#[test]
fn clients_of_libucp_connect_to_servers_over_one_transport() {
    for transport in ["tcp", "rc_mlx5"] {
        serves(transport, &["am"]);
    }
}
