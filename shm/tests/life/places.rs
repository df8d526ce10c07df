//! Where the two ends are: other users, machines with little or no /dev/shm, sockets in a directory.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use barewire_shm::{
    Peer, Place, Port, PortAddress, PortConfig, Process, Segment, Shelf, Table, TableAddress, Users,
};

use crate::{Count, PATIENCE, ROLE, address, alone, connect, open};

/// What a process that does one thing found out follows this.
pub(crate) const SAID: &str = "said: ";

/// What the process of a role here has to say.
pub(crate) fn answer(role: &str, address: PortAddress) -> Option<String> {
    Some(match role {
        "ask" => asked(address),
        "alone" => by_itself(address),
        // The number is the descriptor of the parent's table.
        "read" => {
            let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
            let descriptor = address.number as u32;
            let read = Process::open(TableAddress { process: parent, descriptor, secret: 42 });
            read.map_or_else(|error| error.to_string(), |_| "read".to_owned())
        }
        _ => return None,
    })
}

/// Connects and sends a message.
fn asked(address: PortAddress) -> String {
    // A private directory is closed to other users; what they reach is the abstract namespace.
    let config = PortConfig { place: Place::Abstract, ..PortConfig::default() };
    let mut peer = match Peer::connect(address, &config) {
        Ok(peer) => peer,
        Err(error) => return error.to_string(),
    };
    let started = Instant::now();
    while peer.send(3, 0, &[]).is_err() {
        assert!(started.elapsed() < PATIENCE);
        if peer.tend().is_err() {
            return peer.error().map_or_else(String::new, ToString::to_string);
        }
    }
    "sent".to_owned()
}

/// Opens a port and sends itself a message, and makes a segment that is larger than a small /dev/shm.
fn by_itself(address: PortAddress) -> String {
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
    format!("/dev/shm is {}", if std::path::Path::new("/dev/shm").exists() { "there" } else { "not there" })
}

/// This program where every user may run it.
struct Program(std::path::PathBuf);

impl Program {
    fn copied() -> Self {
        let path = std::env::temp_dir().join(format!("barewire-life-program-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// What it says in `role`, as user 65534, while `port` is served.
    fn says(&self, role: &str, number: u64, mut serve: impl FnMut()) -> String {
        let child = Command::new(&self.0)
            .args(["--exact", "other_process", "--nocapture"])
            .env(ROLE, format!("{role} {number}"))
            .uid(65534)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.unwrap();
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            serve();
            assert!(started.elapsed() < PATIENCE);
        }
        said(&child.wait_with_output().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once(SAID));
    line.unwrap_or_else(|| panic!("{output:?}")).1.to_owned()
}

#[test]
fn another_user_is_told_what_to_do() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(io::stderr(), "not run: only root can start a process of another user");
        return;
    }
    let program = Program::copied();
    let mut count = Count::default();
    for (users, answer) in [(Users::Same, "only the same user may attach"), (Users::Any, "sent")] {
        let here = address(9);
        let config = PortConfig { users, place: Place::Abstract, ..PortConfig::default() };
        let mut port = Port::open(here, &config, &Shelf::new(1)).unwrap();
        let said = program.says("ask", here.number, || {
            port.progress(&mut count);
        });
        assert!(said.contains(answer), "{said}");
    }
    let table = Table::new().unwrap();
    let said = program.says("read", table.address().descriptor.into(), std::thread::yield_now);
    assert!(said.contains("it runs as user 0, this one as user 65534: run both as one user"), "{said}");
}

/// Its segments take no space of /dev/shm, and need none.
#[test]
fn a_small_dev_shm_serves_and_none() {
    let _alone = alone();
    let here = address(10);
    for (mount, answer) in [
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
        let Some(output) =
            output.ok().filter(|output| output.status.code() != Some(77) && output.status.code() != Some(1))
        else {
            let _ = writeln!(io::stderr(), "not run: this user cannot mount");
            return;
        };
        assert_eq!(said(&output), answer);
    }
}

/// Sockets that have names, in a directory: both ends find each other there, and the name goes with the port.
#[test]
fn sockets_in_a_directory_serve_as_well() {
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("barewire-life-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let config = PortConfig { place: Place::Directory(directory.clone()), ..PortConfig::default() };
    let here = address(8);
    let mut port = Port::open(here, &config, &Shelf::new(1)).unwrap();
    let mut count = Count::default();
    assert!(Peer::connect(here, &PortConfig::default()).is_err(), "it has no abstract name");
    let mut peer = Peer::connect(here, &config).unwrap();
    let (started, mut sent) = (Instant::now(), 0);
    while count.short < 1000 {
        match peer.send(3, sent, &[]) {
            Ok(()) => sent += 1,
            Err(_) => peer.tend().unwrap(),
        }
        port.progress(&mut count);
        assert!(started.elapsed() < PATIENCE);
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    drop(port);
    std::fs::remove_dir(&directory).expect("nothing is left there");
    let nowhere =
        PortConfig { place: Place::Directory("/nonexistent/barewire".into()), ..PortConfig::default() };
    let refused = Port::open(here, &nowhere, &Shelf::new(1)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("bind"), "{refused}");
}
