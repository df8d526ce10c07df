//! Ranks that find each other: whatever is in a shared directory, and a process with the key of the
//! job that sends anything to rank 0.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use barewire_bootstrap::{Bootstrap, CLAIM, Directory, Tcp, TcpConfig};
use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::listener::Limits;
use barewire_tcp::socket::{RECEIVE, Socket};
use bolero::check;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::script::{Script, bytes_to};

const DEADLINE: Duration = Duration::from_secs(30);
const NAMES: [&str; 10] = [
    "rank.0",
    "rank.1",
    "0.address",
    "1.address",
    "2.address",
    "unfinished.0.0.address",
    "unfinished.0.fence.0.0",
    "fence.0.0",
    "fence.0.1",
    "fence.1.1",
];

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("barewire-{name}-{:x}", fastrand::u64(..)));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Puts something under this name, unless something has it.
fn place(script: &mut Script<'_>, path: &Path, precious: &Path) {
    if path.symlink_metadata().is_ok() {
        return;
    }
    match script.byte() % 6 {
        0 => fs::create_dir(path).unwrap(),
        1 => symlink(precious, path).unwrap(),
        2 => symlink("/dev/zero", path).unwrap(),
        3 => mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
        _ => {
            let length = usize::from(script.number() % 300);
            fs::write(path, script.bytes(length)).unwrap();
        }
    }
}

#[test]
fn any_contents_of_a_directory() {
    const PRECIOUS: &[u8] = b"a file of the user elsewhere";
    let outside = Folder::new("fuzz-precious");
    let precious = outside.0.join("file");
    fs::write(&precious, PRECIOUS).unwrap();
    check!().with_generator(bytes_to(200)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let folder = Folder::new("fuzz-directory");
        let others_write = script.byte().is_multiple_of(16);
        while !script.is_over() {
            let name = NAMES[usize::from(script.byte()) % NAMES.len()];
            place(&mut script, &folder.0.join(name), &precious);
        }
        let mode = if others_write { 0o777 } else { 0o700 };
        fs::set_permissions(&folder.0, Permissions::from_mode(mode)).unwrap();
        let has = |name: &str| folder.0.join(name).symlink_metadata().is_ok();
        let is_taken = has("rank.0");
        let begun = Instant::now();
        match Directory::open(&folder.0, 0, 2) {
            Err(error) => assert!(is_taken || others_write, "{error}"),
            Ok(mut job) => {
                assert!(!is_taken && !others_write);
                if job.put("address", b"own").is_ok() {
                    assert_eq!(job.get(0, "address").unwrap(), b"own");
                }
                let complete = has("fence.0.1");
                assert!(complete || job.fence(Duration::ZERO).is_err(), "rank 1 is missing");
                let path = folder.0.join("1.address");
                let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
                match job.get(1, "address") {
                    Ok(value) => assert!(is_file && fs::read(&path).unwrap() == value),
                    Err(error) => assert!(!is_file, "{error}"),
                }
            }
        }
        assert!(begun.elapsed() < DEADLINE, "a name was waited for");
        assert_eq!(fs::read(&precious).unwrap(), PRECIOUS);
    });
}

/// A list of byte strings, as messages are.
fn list(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&(part.len() as u32).to_le_bytes(), *part].concat()).collect()
}

/// What a process with the key sends: messages that are right but for some bytes, and any bytes.
fn messages(script: &mut Script<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    while !script.is_over() {
        let number = |number: u32| number.to_le_bytes();
        let (rank, fence) = (u32::from(script.byte() % 4), u32::from(script.byte() % 3));
        let length = usize::from(script.byte());
        let value = script.bytes(length);
        let mut message = match script.byte() % 4 {
            0 => list(&[&number(1), &number(rank), &number(2), b"host"]),
            1 => list(&[&number(3), &number(fence), b"key", value]),
            2 => list(&[&number(5), value]),
            _ => value.to_vec(),
        };
        script.mutate(&mut message);
        let mut length = (message.len() as u32).to_le_bytes();
        if script.byte().is_multiple_of(8) {
            length = script.array();
        }
        all.extend(length);
        all.extend(message);
    }
    all
}

/// Waits for a moment for what rank 0 responds. Returns whether the process has joined.
fn is_welcome(socket: &mut Socket) -> bool {
    let mut buffer = vec![0; RECEIVE];
    for _ in 0..50 {
        match socket.receive(&mut buffer) {
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            // The kind follows the lengths of the message and of the kind.
            Ok(Some(count)) => return count > 8 && buffer[8] == 2,
            Err(_) => return false,
        }
    }
    false
}

/// The honest rank joins, unless the other process took its place.
#[test]
fn any_messages_to_rank_0() {
    let key = Key::from_bytes([7; 32]);
    let limits = Limits { protected: false, ..Limits::default() };
    check!().with_generator(bytes_to(300)).for_each(|bytes| {
        let sent = messages(&mut Script::new(bytes));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let master = listener.local_addr().unwrap();
        let config =
            |rank| TcpConfig { rank, size: 2, master, key: key.clone(), timeout: DEADLINE / 3 };
        let begun = Instant::now();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let mut job = Tcp::over(listener.into(), &config(0))?;
                job.put("key", b"of rank 0")?;
                job.fence(DEADLINE)?;
                job.get(1, "key")
            });
            let connector = Connector::start(master, None, &key, CLAIM, DEADLINE, limits);
            let mut socket = connector.unwrap().wait(thread::yield_now).unwrap();
            // Rank 0 may have closed the connection.
            let _ = rustix::io::write(&socket, &sent);
            let has_joined = is_welcome(&mut socket);
            if !has_joined {
                let joined = Tcp::open(&config(1)).and_then(|mut job| {
                    job.put("key", b"of rank 1")?;
                    job.fence(DEADLINE)?;
                    job.get(0, "key")
                });
                match joined {
                    Ok(value) => assert_eq!(value, b"of rank 0"),
                    // The other process joined after all: rank 0 was slow.
                    Err(error) => assert!(is_welcome(&mut socket), "{error}"),
                }
            }
            drop(socket);
            let served = server.join().expect("rank 0 does not panic");
            assert!(has_joined || served.is_ok_and(|value| value == b"of rank 1"));
        });
        assert!(begun.elapsed() < DEADLINE, "rank 0 was held up");
    });
}
