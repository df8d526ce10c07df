//! The examples under `barewire run` and, where it is installed, under Open MPI's `mpirun`.

#[path = "../../tests/support/example.rs"]
mod example;
#[path = "../../tests/support/port.rs"]
mod port;

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;

use example::{example, finish};

/// Runs a command to its end, and returns what it printed.
fn run(command: &mut Command) -> String {
    finish(command).0
}

/// Starts four ranks that find each other over TCP, as `barewire run` does.
fn by_environment(name: &str) -> Vec<String> {
    ranks(name, 4)
}

fn ranks(name: &str, size: u32) -> Vec<String> {
    ranks_with(name, size, &[])
}

fn ranks_with(name: &str, size: u32, arguments: &[&PathBuf]) -> Vec<String> {
    ranks_at(port::free_port(), name, size, arguments, &[])
}

fn ranks_at(
    port: u16,
    name: &str,
    size: u32,
    arguments: &[&PathBuf],
    variables: &[(&str, &str)],
) -> Vec<String> {
    let port = port.to_string();
    let rank = |rank: u32| {
        let mut command = Command::new(example(name));
        command.args(arguments);
        let key = "5a".repeat(32);
        for (name, value) in [
            ("RANK", rank.to_string().as_str()),
            ("WORLD_SIZE", &size.to_string()),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("BAREWIRE_KEY", &key),
        ] {
            command.env(name, value);
        }
        command.envs(variables.iter().copied());
        thread::spawn(move || run(&mut command))
    };
    let ranks: Vec<_> = (0..size).map(rank).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn has_mpirun() -> bool {
    Command::new("mpirun")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

fn by_mpirun(name: &str) -> Option<String> {
    if !has_mpirun() {
        println!("not run: mpirun is not installed (Debian: openmpi-bin)");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]).arg(example(name));
    Some(run(&mut command))
}

fn check(name: &str, ending: &str) {
    for (rank, printed) in by_environment(name).into_iter().enumerate() {
        assert_eq!(printed, format!("rank {rank} of 4: {ending}\n"));
    }
    if let Some(printed) = by_mpirun(name) {
        assert_eq!(printed.lines().filter(|line| line.ends_with(ending)).count(), 4, "{printed}");
    }
}

#[test]
fn halo_exchange() {
    check("halo_exchange", "200 steps are equal to a serial run");
}

/// Two ranks have two windows to each other, and a rank alone has two to itself.
#[test]
fn halo_exchange_of_few_ranks() {
    for size in 1..3 {
        for (rank, printed) in ranks("halo_exchange", size).into_iter().enumerate() {
            let expected = format!("rank {rank} of {size}: 200 steps are equal to a serial run\n");
            assert_eq!(printed, expected);
        }
    }
}

#[test]
fn allreduce() {
    check("allreduce", "the sums of 10000 elements are right");
}

/// Of which `main` prints the text.
#[test]
fn settings_of_the_environment_count_and_mistakes_are_reported() {
    let allreduce = |variables: &[(&str, &str)]| {
        let mut command = Command::new(example("allreduce"));
        let Output { status, stderr, .. } =
            command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
        (status.success(), String::from_utf8(stderr).unwrap())
    };
    let (done, printed) = allreduce(&[("BAREWIRE_SENDRING", "64")]);
    assert!(done && printed.contains("did you mean BAREWIRE_SEND_RING?"), "{printed}");
    let (done, printed) = allreduce(&[("BAREWIRE_KEEPALIVE", "never")]);
    let expected = "Error: BAREWIRE_KEEPALIVE='never' is not valid";
    assert!(!done && printed.starts_with(expected), "{printed}");
    let (done, printed) = allreduce(&[("BAREWIRE_TRANSPORTS", "tcp/lp")]);
    let expected = "tcp/lp: no transport and no device of this machine has this name";
    assert!(!done && printed.contains(expected), "{printed}");
    let (done, printed) = allreduce(&[("BAREWIRE_TRANSPORTS", "self"), ("WORLD_SIZE", "2")]);
    let expected = "Error: the bootstrap runtime is tcp, because WORLD_SIZE is set, and RANK, ";
    assert!(!done && printed.starts_with(expected), "{printed}");
}

/// The store of torchrun listens at the port that it names to the ranks.
#[test]
fn ranks_start_beside_the_store_of_torchrun() {
    let (store, port) = loop {
        let port = port::free_port();
        let [store, next] =
            [port, port + 1].map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        if let (Ok(store), Ok(_)) = (store, next) {
            break (store, port);
        }
    };
    let torchrun = ("TORCHELASTIC_USE_AGENT_STORE", "True");
    assert_eq!(ranks_at(port, "allreduce", 2, &[], &[torchrun]).len(), 2);
    let other = port::free_port().to_string();
    let chosen = [torchrun, ("BAREWIRE_BOOTSTRAP_PORT", &other)];
    assert_eq!(ranks_at(port, "allreduce", 2, &[], &chosen).len(), 2);
    drop(store);
}

/// As a firewall between hosts may require.
#[test]
fn ranks_listen_on_the_ports_that_they_may_use() {
    let free = port::free_port();
    let ports = format!("{free}-{}", free.saturating_add(200));
    let variables = [("BAREWIRE_TCP_PORTS", ports.as_str()), ("BAREWIRE_TRANSPORTS", "tcp/lo")];
    assert_eq!(ranks_at(port::free_port(), "allreduce", 2, &[], &variables).len(), 2);
    // A node needs more ports than one.
    for (ports, expected) in [
        (free.to_string(), "are in use: give a longer range"),
        ("many".to_owned(), "BAREWIRE_TCP_PORTS='many' is not a range of ports"),
    ] {
        let mut command = Command::new(example("allreduce"));
        command.env("BAREWIRE_KEY", "5a".repeat(32)).env("BAREWIRE_TRANSPORTS", "tcp/lo");
        let output =
            command.env("BAREWIRE_TCP_PORTS", ports).stdin(Stdio::null()).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && printed.contains(expected), "{printed}");
    }
}

#[test]
fn node_per_thread() {
    for (rank, printed) in (0..3).zip(ranks("node_per_thread", 3)) {
        for thread in 0..2 {
            let from = (rank + 2) % 3;
            let line = format!("rank {rank}: thread {thread} of rank {from} says hello\n");
            assert!(printed.contains(&line), "{printed}");
        }
    }
}

/// More ranks than CPUs.
#[test]
fn neighbours() {
    let printed = ranks("neighbours", 24);
    assert!(printed[0].starts_with("24 ranks: joined after "), "{printed:?}");
    assert!(printed[1..].iter().all(String::is_empty), "{printed:?}");
}

/// One of the ranks leaves in the middle of a task, which another one does.
#[test]
fn work_queue() {
    let squares: u64 = (0..300).map(|task| task * task).sum();
    let complete = |printed: &str| {
        assert!(printed.contains("rank 3 has left with task "), "{printed}");
        assert!(printed.ends_with(&format!("300 tasks, sum {squares}\n")), "{printed}");
    };
    complete(&by_environment("work_queue")[0]);
    if let Some(printed) = by_mpirun("work_queue") {
        complete(&printed);
    }
}

/// The recipes of `docs/guide/cookbook.md`.
#[test]
fn cookbook() {
    let printed = run(&mut Command::new(example("request_response")));
    for client in 0..4 {
        for line in ["client {}: hello -> HELLO\n", "client {}: goodbye -> GOODBYE\n"] {
            let line = line.replace("{}", &client.to_string());
            assert!(printed.contains(&line), "{printed}");
        }
    }
    let left = printed.lines().filter(|line| line.contains(" is left, "));
    assert_eq!(left.count(), 1, "only the stuck client is left: {printed}");
    let printed = run(&mut Command::new(example("long_requests")));
    for client in 0..3 {
        for length in [10, 5_000, 1_000_000] {
            assert!(printed.contains(&format!("client {client}: {length} bytes\n")), "{printed}");
        }
    }
    let left = printed.lines().filter(|line| line.starts_with("a client is left: "));
    assert_eq!(left.count(), 1, "only the one that receives nothing is left: {printed}");
    let printed = run(&mut Command::new(example("reconnect")));
    assert_eq!(printed.matches("request 50: ").count(), 1, "{printed}");
    assert!(printed.ends_with("100 responses\n"), "{printed}");
    for transport in ["tcp", "shm"] {
        let printed = ranks_with("shared_counter", 4, &[&PathBuf::from(transport)]);
        assert!(printed[0].ends_with("the counter is 4000\n"), "{printed:?}");
    }
    let folder = std::env::temp_dir().join(format!("barewire-cookbook-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.join(name));
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7 / 5) as u8).collect();
    std::fs::write(&from, &bytes).unwrap();
    let printed = ranks_with("file_transfer", 2, &[&from, &to]);
    assert_eq!(printed, ["sent 1000000 bytes\n", "received 1000000 bytes\n"]);
    assert!(std::fs::read(&to).unwrap() == bytes, "the files differ");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The steps of the tutorial in `docs/guide/tutorial.md`.
#[test]
fn tutorial() {
    for size in [2, 4] {
        let printed = ranks("log_1_hello", size);
        assert_eq!(printed[0], "");
        assert!(printed[1..].iter().all(|line| line == "rank 0 says hello\n"), "{printed:?}");
        for (rank, printed) in ranks("log_2_memory", size).iter().enumerate().skip(1) {
            assert_eq!(*printed, format!("rank {rank} has one entry\n"));
        }
    }
    let printed = ranks("log_3_replicated", 4);
    let expected = [
        "100 entries, 2 replicas are left\n",
        "rank 1 has 100 entries\n",
        "rank 2 has 100 entries\n",
        "",
    ];
    assert_eq!(printed, expected);
}
