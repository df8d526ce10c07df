//! The example `rdma_cm` of `barewire-mlx5`, which connects the driver's own queue pair by rdma_cm,
//! with Debian's programs of librdmacm and a program in C as the other side.

use crate::hca::{self, installed};
use crate::port::free_port;
use crate::rdma_cm::{listening, run};
use crate::support::{self, Ended, PATIENCE, TestFile};

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The built example; `None` if something is missing.
fn example() -> Option<&'static str> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let found =
            Command::new("pkg-config").args(["--exists", "libibverbs", "librdmacm"]).status();
        if !installed("rdma_client", "rdmacm-utils") || !found.is_ok_and(|found| found.success()) {
            hca::skipped("librdmacm for development", "libibverbs-dev librdmacm-dev");
            return None;
        }
        let mut cargo = hca::cargo("build");
        cargo.args(["--example", "rdma_cm", "--message-format", "json-render-diagnostics"]);
        if !cfg!(feature = "verbs") {
            cargo.args(["--features", "barewire-mlx5/rdma-cm"]);
        }
        let built = cargo.output().expect("cargo starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let messages = String::from_utf8_lossy(&built.stdout);
        let program = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|message| message["target"]["name"] == "rdma_cm")
            .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
        Some(program.expect("cargo names the program"))
    });
    Some(built.as_deref()?.to_str().unwrap())
}

/// Compiles `hca/rdma_cm_peer.c`; `None` if something is missing.
fn compiled() -> Option<TestFile> {
    let header = ("rdma/rdma_cma.h", "librdmacm-dev");
    hca::compiled("rdma_cm_peer", header, &["-lrdmacm", "-libverbs"])
}

/// Asserts that a side of the example succeeded and printed these words.
fn printed(ended: &Ended, words: &[&str]) {
    assert!(ended.status.success(), "{ended:#?}");
    for words in words {
        assert!(ended.stdout.contains(words), "{words}: {ended:#?}");
    }
}

#[test]
fn an_unmodified_client_connects_to_our_server() {
    let Some(example) = example() else { return };
    let port = free_port();
    let server = listening(&format!("{example} serve 0.0.0.0:{port}"), port, 1);
    let client = run(&format!("rdma_client -s 127.0.0.1 -p {port}")).end(PATIENCE);
    assert!(client.status.success(), "{client:#?}");
    printed(&server.end(PATIENCE), &["connected to 127.", "received: ", "disconnected"]);
}

#[test]
fn our_client_connects_to_an_unmodified_server() {
    let Some(example) = example() else { return };
    let port = free_port();
    let server = listening(&format!("rdma_server -p {port}"), port, 1);
    let client = run(&format!("{example} connect 127.0.0.1:{port}")).end(PATIENCE);
    printed(&client, &["connected to 127.0.0.1:", "received: ", "disconnected"]);
    assert!(server.end(PATIENCE).status.success());
}

#[test]
fn private_data_of_a_program_in_c_arrive_and_ours_arrive_there() {
    let (Some(example), Some(program)) = (example(), compiled()) else { return };
    let port = free_port();
    let server = listening(&format!("{example} serve 0.0.0.0:{port}"), port, 1);
    let client = run(&format!("{} greet {port}", program.path())).end(PATIENCE);
    assert!(client.status.success(), "{client:#?}");
    assert_eq!(client.stdout, "accepted: from the server\n");
    let words = ["of 127.", ": from C\n", "received: message from C", "disconnected"];
    printed(&server.end(PATIENCE), &words);

    let port = free_port();
    let server = listening(&format!("{} answer {port}", program.path()), port, 1);
    let client = run(&format!("{example} connect 127.0.0.1:{port}")).end(PATIENCE);
    printed(&client, &[": from C\n", "received: message from C", "disconnected"]);
    let server = server.end(PATIENCE);
    assert!(server.status.success(), "{server:#?}");
    assert_eq!(server.stdout, "requested: from the client\n");
}

#[test]
fn a_rejection_by_a_program_in_c_names_the_peer() {
    let (Some(example), Some(program)) = (example(), compiled()) else { return };
    let port = free_port();
    let server = listening(&format!("{} refuse {port}", program.path()), port, 1);
    let client = run(&format!("{example} connect 127.0.0.1:{port}")).end(PATIENCE);
    let reason =
        format!("127.0.0.1:{port} rejected the connection: the program that listens refused it");
    assert!(!client.status.success() && client.stderr.contains(&reason), "{client:#?}");
    assert!(server.end(PATIENCE).status.success());
}

#[test]
fn a_port_without_a_program_names_the_peer() {
    let Some(example) = example() else { return };
    let peer = format!("127.0.0.1:{}", free_port());
    let client = run(&format!("{example} connect {peer}")).end(PATIENCE);
    let reason = format!("{peer} rejected the connection: no program listens to the port");
    assert!(!client.status.success() && client.stderr.contains(&reason), "{client:#?}");
}

/// The program in C connects and waits for the signal that ends it.
#[test]
fn our_server_is_told_that_its_client_was_killed() {
    let (Some(example), Some(program)) = (example(), compiled()) else { return };
    let port = free_port();
    let mut server = listening(&format!("{example} serve 0.0.0.0:{port}"), port, 1);
    let client = run(&format!("{} stay {port}", program.path()));
    assert!(server.line("connected to").is_some(), "{}", server.errors());
    for program in support::children(client.pid()) {
        support::signal(program, libc::SIGKILL);
    }
    client.end(PATIENCE);
    let server = server.end(PATIENCE);
    assert!(!server.status.success() && server.stderr.contains("no message: 127."), "{server:#?}");
    assert!(server.stderr.contains(" has disconnected"), "{server:#?}");
}
