//! Environments of the two ends: other users, small or missing /dev/shm, sockets in a directory.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use barewire_shm::{
    Peer, Place, Port, PortAddress, PortConfig, Process, RegionSet, Segment, Table, TableAddress,
    Users,
};

use crate::{Count, ROLE, TIMEOUT, address, alone, connect, open};

/// Precedes the result that a child process prints.
pub(crate) const RESULT: &str = "result: ";

/// Runs `role` in a child process and returns its result; `None` for an unknown role.
pub(crate) fn run(role: &str, address: PortAddress) -> Option<String> {
    Some(match role {
        "ask" => connect_and_send(address),
        "alone" => send_to_itself(address),
        "receive one" => receive(address),
        // The number of the address is the descriptor of the parent's table.
        "read" => {
            let parent =
                rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
            let descriptor = address.number as u32;
            let read = Process::open(TableAddress { process: parent, descriptor, secret: 42 });
            read.map_or_else(|error| error.to_string(), |_| "read".to_owned())
        }
        _ => return None,
    })
}

/// Connects to the port and sends a message.
fn connect_and_send(address: PortAddress) -> String {
    // Other users cannot enter a private directory; they use the abstract namespace.
    let config = PortConfig { place: Place::Abstract, ..PortConfig::default() };
    let mut peer = match Peer::connect(address, &config) {
        Ok(peer) => peer,
        Err(error) => return error.to_string(),
    };
    let started = Instant::now();
    while peer.send(3, 0, &[]).is_err() {
        assert!(started.elapsed() < TIMEOUT);
        if peer.tend().is_err() {
            return peer.error().map_or_else(String::new, ToString::to_string);
        }
    }
    "sent".to_owned()
}

/// Opens a port and waits for a message.
fn receive(address: PortAddress) -> String {
    let (mut port, mut count) = (open(address), Count::default());
    let started = Instant::now();
    while count.short == 0 && count.broken.is_empty() {
        assert!(started.elapsed() < TIMEOUT);
        port.progress(&mut count);
    }
    count.broken.pop().unwrap_or_else(|| "received".to_owned())
}

/// Opens a port, sends a message to it, and creates a segment larger than a small /dev/shm.
fn send_to_itself(address: PortAddress) -> String {
    if let Err(error) = Segment::create("large", 1 << 20) {
        return error.to_string();
    }
    let (mut port, mut count) = (open(address), Count::default());
    let mut peer = connect(address);
    while peer.send(3, 0, &[]).is_err() {
        port.progress(&mut count);
        peer.tend().unwrap();
    }
    while count.short == 0 {
        port.progress(&mut count);
    }
    format!(
        "/dev/shm is {}",
        if std::path::Path::new("/dev/shm").exists() { "there" } else { "not there" }
    )
}

/// A copy of this program that every user may execute.
struct Program(std::path::PathBuf);

impl Program {
    fn copied() -> Self {
        let path =
            std::env::temp_dir().join(format!("barewire-life-program-{}", std::process::id()));
        crate::support::copy_of_this_program(&path);
        Self(path)
    }

    /// Runs `role` as user 65534 and calls `serve` meanwhile. Returns the result.
    fn run(&self, role: &str, number: u64, serve: impl FnMut()) -> String {
        run_by(Command::new(&self.0).uid(65534), role, number, serve)
    }
}

/// Runs `role` in the copy of this program that `command` starts, and calls `serve` meanwhile.
/// Returns the result.
fn run_by(command: &mut Command, role: &str, number: u64, mut serve: impl FnMut()) -> String {
    let child = command
        .args(["--exact", "other_process", "--nocapture"])
        .env(ROLE, format!("{role} {number}"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        serve();
        assert!(started.elapsed() < TIMEOUT);
    }
    result_of(&child.wait_with_output().unwrap())
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn result_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once(RESULT));
    line.unwrap_or_else(|| panic!("{output:?}")).1.to_owned()
}

#[test]
fn another_user_gets_an_error_with_a_remedy() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(io::stderr(), "not run: only root can start a process of another user");
        return;
    }
    let program = Program::copied();
    let mut count = Count::default();
    for (users, expected) in [(Users::Same, "only the same user may attach"), (Users::Any, "sent")]
    {
        let here = address(9);
        let config = PortConfig { users, place: Place::Abstract, ..PortConfig::default() };
        let mut port = Port::open(here, &config, &RegionSet::new(1)).unwrap();
        let result = program.run("ask", here.number, || {
            port.progress(&mut count);
        });
        assert!(result.contains(expected), "{result}");
    }
    let table = Table::new().unwrap();
    let result = program.run("read", table.address().descriptor.into(), std::thread::yield_now);
    assert!(
        result.contains("it runs as user 0, this one as user 65534: run both as one user"),
        "{result}"
    );
}

/// The kernel reports process id 0 for a process of another PID namespace, as between containers
/// that share a directory. The connection depends on the user only.
#[test]
fn processes_of_different_pid_namespaces_connect() {
    const ISOLATED: [&str; 3] = ["--pid", "--fork", "--kill-child"];
    let _alone = alone();
    let tried = Command::new("unshare").args(ISOLATED).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        let _ = writeln!(io::stderr(), "not run: this user cannot create a PID namespace");
        return;
    }
    let isolated = || {
        let mut command = Command::new("unshare");
        command.args(ISOLATED).arg(std::env::current_exe().unwrap());
        command
    };
    // The peer does not see the port's process.
    let here = address(11);
    let config = PortConfig { place: Place::Abstract, ..PortConfig::default() };
    let mut port = Port::open(here, &config, &RegionSet::new(1)).unwrap();
    let mut count = Count::default();
    let result = run_by(&mut isolated(), "ask", here.number, || {
        port.progress(&mut count);
    });
    assert_eq!(result, "sent");
    while count.short == 0 {
        port.progress(&mut count);
    }
    assert_eq!(count.broken, [""; 0]);
    // The port does not see the peer's process.
    let there = address(12);
    let mut peer = None;
    let mut sent = false;
    let result = run_by(&mut isolated(), "receive one", there.number, || match &mut peer {
        None => peer = Peer::connect(there, &PortConfig::default()).ok(),
        Some(peer) if !sent => {
            sent = peer.send(3, 0, &[]).is_ok();
            peer.tend().unwrap();
        }
        Some(_) => std::thread::yield_now(),
    });
    assert_eq!(result, "received");
    assert_ne!(peer.unwrap().process(), 0, "an outer namespace sees those inside");
}

/// Segments do not use /dev/shm.
#[test]
fn a_small_or_missing_dev_shm_suffices() {
    let _alone = alone();
    let here = address(10);
    for (mount, expected) in [
        ("mount -t tmpfs -o size=64k none /dev/shm", "/dev/shm is there"),
        ("mount -t tmpfs none /dev", "/dev/shm is not there"),
    ] {
        let output = Command::new("unshare")
            .args([
                "-m",
                "sh",
                "-c",
                &format!("mount --make-rprivate / && {mount} || exit 77; exec \"$0\" \"$@\""),
            ])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--nocapture"])
            .env(ROLE, format!("alone {}", here.number))
            .output();
        let Some(output) = output
            .ok()
            .filter(|output| output.status.code() != Some(77) && output.status.code() != Some(1))
        else {
            let _ = writeln!(io::stderr(), "not run: this user cannot mount");
            return;
        };
        assert_eq!(result_of(&output), expected);
    }
}

/// With sockets in a directory both ends find each other, and dropping the port removes its socket.
#[test]
fn sockets_in_a_directory_work() {
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("barewire-life-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let config = PortConfig { place: Place::Directory(directory.clone()), ..PortConfig::default() };
    let here = address(8);
    let mut port = Port::open(here, &config, &RegionSet::new(1)).unwrap();
    let mut count = Count::default();
    assert!(Peer::connect(here, &PortConfig::default()).is_err(), "the port has no abstract name");
    let mut peer = Peer::connect(here, &config).unwrap();
    let (started, mut sent) = (Instant::now(), 0);
    while count.short < 1000 {
        match peer.send(3, sent, &[]) {
            Ok(()) => sent += 1,
            Err(_) => peer.tend().unwrap(),
        }
        port.progress(&mut count);
        assert!(started.elapsed() < TIMEOUT);
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    drop(port);
    std::fs::remove_dir(&directory).expect("the directory must be empty");
    let nowhere = PortConfig {
        place: Place::Directory("/nonexistent/barewire".into()),
        ..PortConfig::default()
    };
    let refused = Port::open(here, &nowhere, &RegionSet::new(1)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("bind"), "{refused}");
}
