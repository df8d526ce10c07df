//! What every runtime does alike, and what each does with peers and launchers that break the rules.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use barewire_bootstrap::{
    Bootstrap, CLAIM, DetectError, Directory, Error, MAX_KEY, MAX_VALUE, Pmi1, Runtime, Single,
    Tcp, TcpConfig, all_gather, detect_in,
};
use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::listener::Limits;
use barewire_tcp::socket::{RECEIVE, Socket};

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_mins(1);
/// For what must not happen in time.
const SHORT: Duration = Duration::from_millis(300);
const RUNTIMES: [Runtime; 3] = [Runtime::Directory, Runtime::Tcp, Runtime::Pmi1];

fn key() -> Key {
    Key::from_bytes([7; 32])
}

fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, crate::port::free_port()).into()
}

fn new_directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("barewire-bootstrap-{}-{number}", std::process::id()))
}

/// What a test's ranks share to find each other.
enum Meeting {
    Directory(PathBuf),
    Tcp(SocketAddr),
    Pmi1(Arc<Server>),
}

impl Meeting {
    fn new(runtime: Runtime, size: u32) -> Self {
        match runtime {
            Runtime::Directory => Self::Directory(new_directory()),
            Runtime::Tcp => Self::Tcp(free_address()),
            _ => Self::Pmi1(Server::new(size)),
        }
    }

    fn join(&self, rank: u32, size: u32, timeout: Duration) -> Result<Box<dyn Bootstrap>, Error> {
        Ok(match self {
            Self::Directory(path) => Box::new(Directory::open(path, rank, size)?),
            Self::Tcp(master) => Box::new(Tcp::open(&TcpConfig {
                rank,
                size,
                master: *master,
                key: key(),
                timeout,
            })?),
            Self::Pmi1(server) => Box::new(Pmi1::over(server.connect(), rank, size, timeout)?),
        })
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        if let Self::Directory(path) = self {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Runs `rank` in a thread per rank.
fn with_job(runtime: Runtime, size: u32, rank: impl Fn(&mut dyn Bootstrap) + Sync) {
    let meeting = Meeting::new(runtime, size);
    thread::scope(|scope| {
        for number in 0..size {
            let (meeting, rank) = (&meeting, &rank);
            scope.spawn(move || rank(&mut *meeting.join(number, size, LONG).unwrap()));
        }
    });
}

/// A PMI-1 server for ranks in this process, with the limits of Hydra.
struct Server {
    values: Mutex<BTreeMap<String, String>>,
    barrier: Barrier,
    size: u32,
}

impl Server {
    fn new(size: u32) -> Arc<Self> {
        Arc::new(Self { values: Mutex::default(), barrier: Barrier::new(size as usize), size })
    }

    fn connect(self: &Arc<Self>) -> OwnedFd {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Arc::clone(self);
        thread::spawn(move || server.serve(&ours));
        theirs.into()
    }

    fn serve(&self, socket: &UnixStream) {
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            assert!(line.len() < 1024, "a request of {} characters", line.len());
            let words: BTreeMap<&str, &str> =
                line.split(' ').filter_map(|word| word.split_once('=')).collect();
            let response = match words["cmd"] {
                "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".to_owned(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0".to_owned(),
                "put" => {
                    assert!(words["key"].len() < 64 && words["value"].len() < 1024);
                    let old = self
                        .values
                        .lock()
                        .unwrap()
                        .insert(words["key"].to_owned(), words["value"].to_owned());
                    assert!(old.is_none(), "a key is put once");
                    "cmd=put_result rc=0 msg=success".to_owned()
                }
                "barrier_in" => {
                    self.barrier.wait();
                    "cmd=barrier_out".to_owned()
                }
                "get" if words["key"] == "PMI_process_mapping" => {
                    format!("rc=0 cmd=get_result msg=success value=(vector,(0,1,{}))", self.size)
                }
                "get" => match self.values.lock().unwrap().get(words["key"]) {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                    None => "cmd=get_result rc=-1 msg=not_found value=unknown".to_owned(),
                },
                "finalize" => "cmd=finalize_ack".to_owned(),
                other => panic!("{other}"),
            };
            if writeln!(&*socket, "{response}").is_err() {
                return;
            }
        }
    }
}

fn pattern(rank: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(7).wrapping_add(rank) as u8).collect()
}

#[test]
fn values_of_every_length_come_back() {
    for runtime in RUNTIMES {
        with_job(runtime, 3, |job| {
            for (number, length) in
                [0, 1, 2, 3, 569, 570, 571, 765, 766, 767, 4096, 65_537, MAX_VALUE]
                    .into_iter()
                    .enumerate()
            {
                let own = pattern(job.rank(), length);
                let all = all_gather(job, &format!("k{number}"), &own, LONG).unwrap();
                for (rank, found) in (0..3).zip(all) {
                    assert!(
                        found == pattern(rank, length),
                        "{runtime}, {length} bytes of rank {rank}"
                    );
                }
            }
            // Earlier values stay readable.
            assert_eq!(job.get(1, "k4").unwrap(), pattern(1, 569));
        });
    }
}

#[test]
fn wrong_arguments_are_refused_and_harm_nothing() {
    for runtime in RUNTIMES {
        with_job(runtime, 2, |job| {
            let long = "k".repeat(MAX_KEY + 1);
            for wrong in ["", "a b", "a/b", "ü", "a\n", "a=b", ".", &long] {
                assert!(matches!(job.put(wrong, b""), Err(Error::InvalidKey { .. })), "{wrong}");
                assert!(matches!(job.get(0, wrong), Err(Error::InvalidKey { .. })), "{wrong}");
            }
            assert!(matches!(
                job.put("k", &vec![0; MAX_VALUE + 1]),
                Err(Error::ValueTooLong { .. })
            ));
            let longest = "k".repeat(MAX_KEY);
            job.put(&longest, b"1").unwrap();
            assert!(matches!(job.put(&longest, b"2"), Err(Error::KeyTaken { .. })));
            job.fence(LONG).unwrap();
            assert!(matches!(job.put(&longest, b"3"), Err(Error::KeyTaken { .. })));
            assert_eq!(job.get(1, &longest).unwrap(), b"1");
            assert!(matches!(job.get(2, "k"), Err(Error::NoSuchRank { rank: 2, size: 2 })));
            assert!(matches!(job.get(1, "k"), Err(Error::NotFound { rank: 1, .. })));
            assert!(job.node_peers().is_none_or(|peers| peers == [0, 1]));
            job.fence(LONG).unwrap();
        });
    }
}

#[test]
fn timeouts_may_have_any_length() {
    for runtime in RUNTIMES {
        let meeting = Meeting::new(runtime, 2);
        thread::scope(|scope| {
            for rank in 0..2 {
                let meeting = &meeting;
                scope.spawn(move || {
                    let mut job = meeting.join(rank, 2, Duration::MAX).unwrap();
                    job.put("k", b"v").unwrap();
                    job.fence(Duration::MAX).unwrap();
                    assert_eq!(job.get(1 - rank, "k").unwrap(), b"v", "{runtime}");
                });
            }
        });
    }
}

/// Tables have a place for each rank: the size of a job is checked before they are made.
#[test]
fn a_job_of_too_many_ranks_is_refused() {
    for runtime in [Runtime::Directory, Runtime::Tcp] {
        let meeting = Meeting::new(runtime, 1);
        for size in [(1 << 20) + 1, u32::MAX] {
            let error = meeting.join(0, size, SHORT).unwrap_err();
            assert!(matches!(error, Error::TooManyRanks { .. }), "{runtime}: {error}");
        }
    }
}

#[test]
fn many_fences() {
    for runtime in RUNTIMES {
        with_job(runtime, 4, |job| {
            for fence in 0..100 {
                // Some put nothing.
                if fence % 4 == job.rank() {
                    job.put(&format!("f{fence}"), &fence.to_le_bytes()).unwrap();
                }
                job.fence(LONG).unwrap();
                assert_eq!(job.get(fence % 4, &format!("f{fence}")).unwrap(), fence.to_le_bytes());
            }
        });
    }
}

#[test]
fn a_single_process_is_a_job() {
    let mut job = Single::default();
    assert_eq!((job.rank(), job.size(), job.node_peers()), (0, 1, Some(&[0][..])));
    job.put("k", b"v").unwrap();
    assert!(matches!(job.get(0, "k"), Err(Error::NotFound { .. })), "before the fence");
    job.fence(SHORT).unwrap();
    assert_eq!(job.get(0, "k").unwrap(), b"v");
    assert!(matches!(job.put("k", b"w"), Err(Error::KeyTaken { .. })));
}

#[test]
fn a_rank_that_stays_away_is_named_in_time() {
    for runtime in RUNTIMES {
        let meeting = Meeting::new(runtime, 3);
        let done = Barrier::new(3);
        thread::scope(|scope| {
            for rank in 0..3 {
                let (meeting, done) = (&meeting, &done);
                scope.spawn(move || {
                    let mut job = meeting.join(rank, 3, LONG).unwrap();
                    if rank != 2 {
                        let start = Instant::now();
                        let error = job.fence(SHORT).unwrap_err();
                        assert!(start.elapsed() < LONG / 2);
                        let text = error.to_string();
                        assert!(
                            matches!(error, Error::TimedOut { .. })
                                || text.contains("rank 2 is missing"),
                            "{text}"
                        );
                        assert!(
                            rank != 0 || runtime == Runtime::Pmi1 || text.contains("rank 2"),
                            "{text}"
                        );
                        assert!(matches!(job.fence(SHORT), Err(Error::Unusable { .. })));
                    }
                    done.wait();
                });
            }
        });
    }
}

#[test]
fn a_rank_that_ends_over_tcp_is_named_to_all() {
    with_job(Runtime::Tcp, 4, |job| {
        if job.rank() == 2 {
            return;
        }
        let start = Instant::now();
        let text = job.fence(LONG).unwrap_err().to_string();
        assert_eq!(text, "tcp: a fence failed: rank 2 closed its connection or ended");
        assert!(start.elapsed() < LONG / 2);
    });
    with_job(Runtime::Tcp, 3, |job| {
        if job.rank() == 0 {
            return;
        }
        let text = job.fence(LONG).unwrap_err().to_string();
        assert!(text.contains("rank 0 closed its connection or ended"), "{text}");
    });
}

#[test]
fn an_abort_over_tcp_tells_the_reason_to_all() {
    with_job(Runtime::Tcp, 3, |job| {
        if job.rank() == 1 {
            return job.abort(7, "no memory");
        }
        let text = job.fence(LONG).unwrap_err().to_string();
        let reason = "rank 1 ended the job: no memory (exit code 7)";
        assert_eq!(text, format!("tcp: a fence failed: {reason}"), "rank {}", job.rank());
    });
    with_job(Runtime::Tcp, 2, |job| {
        if job.rank() == 0 {
            return job.abort(8, "no disk");
        }
        let text = job.fence(LONG).unwrap_err().to_string();
        assert_eq!(text, "tcp: a fence failed: rank 0 ended the job: no disk (exit code 8)");
    });
}

/// Rank 0 of a job of two, and the error of the other rank with this configuration.
fn refused_by_rank_0(change: impl Fn(&mut TcpConfig)) -> (Result<Tcp, Error>, Error) {
    let master = free_address();
    let config = |rank, timeout| TcpConfig { rank, size: 2, master, key: key(), timeout };
    thread::scope(|scope| {
        let server = scope.spawn(move || Tcp::open(&config(0, Duration::from_secs(3))));
        let mut wrong = config(1, LONG);
        change(&mut wrong);
        let error = Tcp::open(&wrong).unwrap_err();
        (server.join().unwrap(), error)
    })
}

#[test]
fn rank_0_refuses_ranks_that_do_not_belong_to_the_job() {
    let (server, error) = refused_by_rank_0(|config| config.size = 3);
    assert!(
        error.to_string().contains("2 ranks according to rank 0, and 3 according to rank 1"),
        "{error}"
    );
    assert!(server.unwrap_err().to_string().contains("rank 1 did not connect"));
    let (server, error) = refused_by_rank_0(|config| config.key = Key::from_bytes([8; 32]));
    assert!(error.to_string().contains("key"), "{error}");
    assert!(matches!(server, Err(Error::TimedOut { .. })));
}

#[test]
fn two_processes_with_one_rank() {
    let master = free_address();
    let config =
        |rank| TcpConfig { rank, size: 3, master, key: key(), timeout: Duration::from_secs(3) };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let ranks = [0, 1, 1].map(|rank| scope.spawn(move || Tcp::open(&config(rank)).map(drop)));
        ranks.map(|rank| rank.join().unwrap()).into()
    });
    let texts: Vec<String> =
        outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
    // Also the rank that has joined names the one that is missing.
    let missing = texts.iter().filter(|text| text.contains("rank 2 did not connect"));
    assert!(texts[0].contains("rank 2 did not connect") && missing.count() == 2, "{texts:?}");
    assert!(texts[1..].iter().any(|text| text.contains("two processes with RANK=1")), "{texts:?}");
}

/// A process with the key of the job that does not follow the protocol.
struct Hostile(Socket);

impl Hostile {
    /// Connects to rank 0, which may not listen yet.
    fn connect(master: SocketAddr) -> Self {
        let limits = Limits { protected: false, ..Limits::default() };
        let start = Instant::now();
        loop {
            let connector = Connector::start(master, None, &key(), CLAIM, LONG, limits).unwrap();
            match connector.wait(|| thread::sleep(Duration::from_millis(1))) {
                Ok(socket) => return Self(socket),
                Err(error) => assert!(start.elapsed() < LONG, "{error}"),
            }
        }
    }

    /// Sends as many of the bytes as rank 0 takes before it closes the connection.
    fn send(&self, mut bytes: &[u8]) -> usize {
        let (start, length) = (Instant::now(), bytes.len());
        while !bytes.is_empty() {
            assert!(start.elapsed() < LONG, "{} bytes were sent", length - bytes.len());
            match rustix::io::write(&self.0, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(rustix::io::Errno::AGAIN) => thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        length - bytes.len()
    }

    fn wait_for_end(&mut self) {
        let start = Instant::now();
        while !matches!(self.0.receive(&mut vec![0; RECEIVE]), Ok(Some(0)) | Err(_)) {
            assert!(start.elapsed() < LONG, "the connection is open");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Joins the job, and waits for rank 0's reply: bytes behind a request to join end its
    /// connection.
    fn join(&mut self, rank: u32, size: u32) {
        self.message(&[&1_u32.to_le_bytes(), &rank.to_le_bytes(), &size.to_le_bytes(), b"host"]);
        let (start, mut reply) = (Instant::now(), vec![0; RECEIVE]);
        while self.0.receive(&mut reply).unwrap().is_none() {
            assert!(start.elapsed() < LONG, "rank 0 does not reply");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a message of these parts.
    fn message(&mut self, parts: &[&[u8]]) {
        let mut message = Vec::new();
        for part in parts {
            message.extend((part.len() as u32).to_le_bytes());
            message.extend(*part);
        }
        self.send(&(message.len() as u32).to_le_bytes());
        self.send(&message);
    }
}

/// Rank 0 reads no more of a connection than a request to join has, and closes the oldest ones that
/// do not join.
#[test]
fn connections_that_do_not_join_are_closed_and_delay_nobody() {
    const FLOOD: usize = 256 << 20;
    let master = free_address();
    let config = |rank| TcpConfig { rank, size: 2, master, key: key(), timeout: LONG };
    thread::scope(|scope| {
        let server = scope.spawn(move || Tcp::open(&config(0)).map(drop));
        // A message of the longest table.
        let long = Hostile::connect(master);
        long.send(&(1_u32 << 30).to_le_bytes());
        let sent = long.send(&vec![0; FLOOD]);
        assert!(sent < FLOOD, "rank 0 reads a message that is too long");
        // Bytes that are no request.
        let mut garbage = Hostile::connect(master);
        garbage.message(&[b"garbage"]);
        garbage.wait_for_end();
        // More than may wait.
        let mut silent: Vec<_> = (0..257).map(|_| Hostile::connect(master)).collect();
        silent[0].wait_for_end();
        Tcp::open(&config(1)).unwrap();
        server.join().unwrap().unwrap();
    });
}

/// The error of rank 0 in a job of two whose rank 1 sends these parts at the first fence, with the
/// numbers of a fence in front.
fn fence_error(parts: &[&[u8]]) -> Error {
    let master = free_address();
    let config = TcpConfig { rank: 0, size: 2, master, key: key(), timeout: LONG };
    thread::scope(|scope| {
        let server = scope.spawn(move || Tcp::open(&config).unwrap().fence(LONG).unwrap_err());
        let mut hostile = Hostile::connect(master);
        hostile.join(1, 2);
        hostile.message(&[&[&[3, 0, 0, 0][..], &[0; 4]], parts].concat());
        server.join().unwrap()
    })
}

#[test]
fn a_rank_that_publishes_too_much_is_refused() {
    let value = vec![0; MAX_VALUE];
    let long: Vec<&[u8]> =
        ["a", "b", "c", "d", "e"].iter().flat_map(|key| [key.as_bytes(), &value[..]]).collect();
    let text = fence_error(&long).to_string();
    assert!(text.contains("is over the limit of"), "{text}");
    // Short entries need more memory than they have bytes.
    let keys: Vec<String> = (0..40_000).map(|number| format!("k{number}")).collect();
    let many: Vec<&[u8]> = keys.iter().flat_map(|key| [key.as_bytes(), &[][..]]).collect();
    let text = fence_error(&many).to_string();
    assert!(text.contains("does not belong to this exchange"), "{text}");
    // The ranks themselves keep the limit.
    with_job(Runtime::Tcp, 2, |job| {
        for key in ["a", "b", "c", "d"] {
            job.put(key, &value).unwrap();
        }
        let text = job.put("e", &value).unwrap_err().to_string();
        assert!(text.contains("at most"), "{text}");
        job.fence(LONG).unwrap();
        job.put("e", &value).unwrap();
        job.fence(LONG).unwrap();
        assert!(job.get(1, "e").unwrap() == value);
    });
}

#[test]
fn rank_0_serves_at_a_socket_that_it_was_given() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let master = listener.local_addr().unwrap();
    let config = |rank| TcpConfig { rank, size: 2, master, key: key(), timeout: LONG };
    let given = || OwnedFd::from(listener.try_clone().unwrap());
    assert!(matches!(Tcp::over(given(), &config(1)), Err(Error::Refused { .. })), "not rank 0");
    thread::scope(|scope| {
        let other = scope.spawn(move || Tcp::open(&config(1)).map(drop));
        Tcp::over(given(), &config(0)).unwrap();
        other.join().unwrap().unwrap();
    });
    assert!(std::net::TcpStream::connect(master).is_err(), "nothing listens after the start");
}

const FEW_DESCRIPTORS: &str = "BAREWIRE_TEST_FEW_DESCRIPTORS";

/// Rank 0 of a job whose other ranks do not come, in the process that the next test starts.
#[test]
fn rank_0_with_few_descriptors() {
    if std::env::var_os(FEW_DESCRIPTORS).is_none() {
        return;
    }
    let config =
        TcpConfig { rank: 0, size: 300, master: free_address(), key: key(), timeout: SHORT };
    println!("\nerror: {}", Tcp::open(&config).unwrap_err());
    println!("limit: {:?}", rustix::process::getrlimit(rustix::process::Resource::Nofile).current);
}

#[test]
fn rank_0_raises_its_limit_of_descriptors_or_says_how_many_it_needs() {
    let run = |hard: u32| {
        let script = format!("ulimit -Sn 100; ulimit -Hn {hard}; exec \"$0\" \"$@\"");
        let test = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).arg(test).env(FEW_DESCRIPTORS, "1");
        command.args(["--exact", "runtimes::rank_0_with_few_descriptors", "--nocapture"]);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(1000);
    assert!(text.contains("did not connect") && text.contains("limit: Some(427)"), "{text}");
    let text = run(400);
    assert!(text.contains("needs 427 descriptors") && text.contains("may open 400"), "{text}");
}

#[test]
fn a_port_that_is_in_use_is_named_with_the_variable() {
    let taken = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let master = taken.local_addr().unwrap();
    let text = Tcp::open(&TcpConfig { rank: 0, size: 2, master, key: key(), timeout: LONG })
        .unwrap_err()
        .to_string();
    assert!(text.contains(&master.to_string()) && text.contains("set MASTER_PORT"), "{text}");
}

#[test]
fn nobody_listens_where_rank_0_should() {
    let config = TcpConfig { rank: 1, size: 2, master: free_address(), key: key(), timeout: SHORT };
    let text = Tcp::open(&config).unwrap_err().to_string();
    assert!(text.contains("rank 0 does not answer"), "{text}");
}

#[test]
fn a_directory_of_an_earlier_run_is_refused() {
    let meeting = Meeting::new(Runtime::Directory, 1);
    drop(meeting.join(0, 1, LONG).unwrap());
    let text = meeting.join(0, 1, LONG).unwrap_err().to_string();
    assert!(text.contains("use an empty one for each run"), "{text}");
}

fn joined_alone(path: &Path) -> Result<Directory, Error> {
    Directory::open(path, 0, 1)
}

/// Other users must not be able to write values, or to predict where this user writes.
#[test]
fn a_directory_that_others_can_change_is_refused() {
    let path = new_directory();
    for (mode, is_refused) in [(0o777, true), (0o1777, true), (0o770, true), (0o755, false)] {
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let joined = joined_alone(&path).map(drop);
        assert_eq!(joined.is_err(), is_refused, "{mode:o}: {joined:?}");
        if let Err(error) = joined {
            let text = error.to_string();
            assert!(text.contains("so that others may write to it: chmod go-w"), "{text}");
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "nothing is written to it");
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
    // Only root can change the owner of a directory; other users test with a directory of root.
    let foreign = if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        &path
    } else {
        Path::new("/usr")
    };
    let text = joined_alone(foreign).unwrap_err().to_string();
    assert!(text.contains("belongs to user"), "{text}");
    let _ = std::fs::remove_dir(&path);
    // The owner of a link can lead it elsewhere at any time.
    let target = new_directory();
    std::fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let text = joined_alone(&path).unwrap_err().to_string();
    assert!(text.contains("is a symbolic link"), "{text}");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing is written to it");
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_dir(&target).unwrap();
}

#[test]
fn a_directory_and_its_values_are_readable_by_their_owner_only() {
    let path = new_directory();
    let mut job = joined_alone(&path).unwrap();
    job.put("address", b"with a secret").unwrap();
    job.fence(LONG).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<PathBuf> =
        std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "rank, value and fence: {files:?}");
    assert!(files.iter().all(|file| mode(file) == 0o600), "{files:?}");
    // The directory is the one that was opened, whatever its name refers to by now.
    let elsewhere = new_directory();
    std::fs::rename(&path, &elsewhere).unwrap();
    std::fs::create_dir(&path).unwrap();
    job.put("second", b"value").unwrap();
    job.fence(LONG).unwrap();
    assert_eq!(job.get(0, "second").unwrap(), b"value");
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    std::fs::remove_dir(&path).unwrap();
    std::fs::remove_dir_all(&elsewhere).unwrap();
}

/// Whatever is in the place of a file: nothing outside the directory is written or read, and
/// nothing blocks.
#[test]
fn links_pipes_and_directories_in_place_of_files_are_refused() {
    let path = new_directory();
    let outside = new_directory();
    std::fs::write(&outside, b"precious").unwrap();
    let mut job = joined_alone(&path).unwrap();
    let link = |name: &str| std::os::unix::fs::symlink(&outside, path.join(name)).unwrap();
    link("unfinished.0.0.address");
    assert!(matches!(job.put("address", b"value"), Err(Error::Io { .. })));
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
    link("0.link");
    std::fs::create_dir(path.join("0.directory")).unwrap();
    let (mode, fifo) = (rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, path.join("0.fifo"));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for name in ["link", "directory", "fifo"] {
            let _ = sender.send((name, job.get(0, name)));
        }
    });
    for _ in 0..3 {
        let (name, found) = receiver.recv_timeout(LONG).expect("an open of a FIFO waits");
        assert!(matches!(found, Err(Error::Io { .. })), "{name}: {found:?}");
    }
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::remove_file(&outside).unwrap();
}

/// The error with a launcher that says `lines` and then closes the socket, or stays silent.
fn bad_launcher(lines: &[u8], closes: bool) -> Error {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (&ours).write_all(lines).unwrap();
    let kept = if closes { None } else { Some(ours) };
    let error = Pmi1::over(theirs.into(), 0, 2, SHORT).unwrap_err();
    drop(kept);
    error
}

#[test]
fn launchers_that_break_the_protocol() {
    let text = bad_launcher(b"cmd=go_away rc=0\n", false).to_string();
    assert!(text.contains("responds 'go_away' instead of 'response_to_init'"), "{text}");
    let text = bad_launcher(b"cmd=response_to_init rc=-1\n", false).to_string();
    assert!(text.contains("does not support PMI version 1"), "{text}");
    let text =
        bad_launcher(b"cmd=response_to_init rc=0\ncmd=maxes keylen_max=8 vallen_max=1024\n", false)
            .to_string();
    assert!(text.contains("too short"), "{text}");
    let text = bad_launcher(b"cmd=response_to_init rc=0\ncmd=maxes\n", false).to_string();
    assert!(text.contains("does not tell the longest key"), "{text}");
    assert!(matches!(bad_launcher(b"cmd=response_to", false), Error::TimedOut { .. }));
    let text = bad_launcher(b"\xff\xfe\n", true).to_string();
    assert!(
        text.contains("closed its socket")
            || text.contains("Broken pipe")
            || text.contains("nothing"),
        "{text}"
    );
}

#[test]
fn detection_follows_the_environment() {
    let detect = |pairs: &[(&str, &str)]| {
        let pairs: BTreeMap<String, String> =
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        detect_in(&move |name: &str| pairs.get(name).cloned())
    };
    let (job, why) = detect(&[]).unwrap();
    assert_eq!(job.runtime(), Runtime::Single);
    assert!(why.contains("none of PMIX_NAMESPACE"), "{why}");
    let directory = new_directory();
    let path = directory.to_str().unwrap();
    let (job, why) =
        detect(&[("BAREWIRE_BOOTSTRAP_DIR", path), ("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap();
    assert_eq!((job.runtime(), job.size()), (Runtime::Directory, 1));
    assert!(why.contains("BAREWIRE_BOOTSTRAP_DIR is set"), "{why}");
    std::fs::remove_dir_all(&directory).unwrap();
    let error = |pairs: &[(&str, &str)]| detect(pairs).unwrap_err();
    for (pairs, expected) in [
        (&[("BAREWIRE_BOOTSTRAP", "mpi")][..], "must be pmix, pmi1, tcp, directory or single"),
        (
            &[("BAREWIRE_BOOTSTRAP", "tcp")],
            "tcp, because BAREWIRE_BOOTSTRAP names it, and RANK, WORLD_SIZE, MASTER_ADDR, \
             MASTER_PORT and BAREWIRE_KEY are not set: RANK is the number of this process, from 0; ",
        ),
        (
            &[("BAREWIRE_BOOTSTRAP_DIR", path), ("RANK", "2"), ("WORLD_SIZE", "2")],
            "must be a number from 0 to 1",
        ),
        (
            &[("RANK", "0")],
            "because RANK is set, and WORLD_SIZE, MASTER_ADDR, MASTER_PORT and BAREWIRE_KEY are not \
             set: ",
        ),
        (
            &[("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "7801")],
            "because WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and RANK and BAREWIRE_KEY are \
             not set: ",
        ),
        (&[("WORLD_SIZE", "2")], "To run alone as one rank, set BAREWIRE_BOOTSTRAP=single"),
        (&[("BAREWIRE_BOOTSTRAP_DIR", path), ("RANK", "0")], "is set, and WORLD_SIZE is not set"),
        (
            &[("PMI_FD", "x"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")],
            "PMI_FD is 'x', must be a number",
        ),
        (
            &[("PMI_FD", "987654"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")],
            "opening PMI_FD failed: Bad file descriptor",
        ),
        (&[("PMI_FD", "3")], "and PMI_RANK and PMI_SIZE are not set"),
        (&[("BAREWIRE_BOOTSTRAP_TIMEOUT", "0")], "must be a number from 1"),
    ] {
        let text = error(pairs).to_string();
        assert!(text.contains(expected), "{text}");
    }
    let missing = error(&[("BAREWIRE_BOOTSTRAP", "pmi1")]);
    let DetectError::Missing { missing, .. } = missing else { panic!("{missing}") };
    assert!(missing.iter().map(|one| one.name).eq(["PMI_FD", "PMI_RANK", "PMI_SIZE"]));
    let alone = [("RANK", "3"), ("BAREWIRE_BOOTSTRAP", "single")];
    assert_eq!(detect(&alone).unwrap().0.runtime(), Runtime::Single);
}
