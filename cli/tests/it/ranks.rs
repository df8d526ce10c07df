//! One of four ranks is killed at a random moment: the others notice, and end as the program says.
//!
//! `KILLS=200 cargo test -p barewire-cli --test ranks` kills more often, and
//! `KILL_SEED` begins elsewhere.

use crate::support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use barewire::PostError;
use barewire_wireup::link::Link;
use barewire_wireup::{CloseMode, Node, Peers, Rules, State};

const ROLE: &str = "BAREWIRE_TEST_RANKS";
const RANKS: u32 = 4;
/// How long the ranks send.
const BUSY: Duration = Duration::from_millis(200);
/// The latest moment of a kill after the start of the rank, in microseconds.
const LATEST: u64 = 400_000;
/// For each step of a rank, and longer than a loaded machine needs for it.
const TIMEOUT: Duration = Duration::from_secs(20);
const ID: u8 = 1;
const LAST: u64 = u64::MAX;

/// Exchanges messages with every other rank, whatever happens to one of them.
#[test]
fn rank() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let rules = Rules::default().deadline(TIMEOUT / 2).liveness(TIMEOUT / 2);
    let mut node = Node::open(&rules).unwrap();
    if role == "sweep" {
        return;
    }
    let received = Rc::new(RefCell::new(BTreeMap::<u64, u64>::new()));
    let last = Rc::clone(&received);
    node.set_handler(ID, move |message| {
        if let Some((from, payload)) = message.split_short()
            && let Some(number) = payload.first_chunk()
        {
            last.borrow_mut().insert(from, u64::from_le_bytes(*number));
        }
    })
    .unwrap();
    let exchanged =
        barewire_bootstrap::detect().map_err(|error| error.to_string()).and_then(|mut job| {
            println!("\njoined {}", job.rank());
            Peers::exchange(&mut node, &mut *job, TIMEOUT).map_err(|error| error.to_string())
        });
    let peers = match exchanged {
        Ok(peers) => peers,
        Err(error) => return println!("\nsurvivor without peers: {error}"),
    };
    let (me, start) = (u64::from(peers.rank()), Instant::now());
    let others = (0..peers.size()).filter(|rank| *rank != peers.rank());
    let links: Vec<(u64, Link)> =
        others.filter_map(|rank| Some((rank.into(), peers.link(&mut node, rank).ok()?))).collect();
    let mut sent = vec![0; links.len()];
    let over = |link: &Link| matches!(link.state(), State::Closed(_) | State::Failed(_));
    loop {
        node.progress();
        let mut busy = false;
        for ((rank, link), sent) in links.iter().zip(&mut sent) {
            let next = if start.elapsed() < BUSY { *sent + 1 } else { LAST };
            if *sent != LAST {
                match link.am_short(ID, me, &u64::to_le_bytes(next)) {
                    Ok(()) => *sent = next,
                    Err(PostError::NoResource) => {}
                    Err(_) if over(link) => {}
                    // The lane has failed; progress fails the link.
                    Err(_) => assert!(start.elapsed() < 4 * TIMEOUT),
                }
            }
            let done = *sent == LAST && received.borrow().get(rank) == Some(&LAST);
            busy |= !done && !over(link);
        }
        if !busy {
            break;
        }
    }
    for (_, link) in &links {
        link.close(CloseMode::Flush);
    }
    assert!(node.until(TIMEOUT, || links.iter().all(|(_, link)| over(link))));
    let lost = links.iter().map(|(rank, _)| *rank);
    let lost: Vec<_> = lost.filter(|rank| received.borrow().get(rank) != Some(&LAST)).collect();
    println!("\nsurvivor {me} lost {lost:?}");
}

/// Processes with this value of [`ROLE`], and the numbers of their ranks.
fn processes(role: &str) -> Vec<(u32, Option<u32>)> {
    let role = format!("{ROLE}={role}");
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let bytes = fs::read(entry.path().join("environ")).ok()?;
        let variables: Vec<_> =
            bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let value = |name: &str| variables.iter().find_map(|line| line.strip_prefix(name));
        variables.iter().any(|line| *line == role).then_some(())?;
        let rank = value("OMPI_COMM_WORLD_RANK=").or_else(|| value("RANK="));
        Some((pid, rank.and_then(|rank| rank.parse().ok())))
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

/// A launcher, ended at the latest when it is dropped.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn launch(launcher: &str, role: &str, folder: &Path) -> Job {
    let mut command = if launcher == "mpirun" {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--enable-recovery", "-n", "4"]);
        command
    } else {
        let mut command = Command::new(env!("CARGO_BIN_EXE_barewire"));
        command.args(["run", "--keep-going", "-n", "4", "--"]);
        command
    };
    let output = fs::File::create(folder.join("output")).unwrap();
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "ranks::rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env("BAREWIRE_SHM_DIR", folder.join("sockets"))
        .env("TMPDIR", folder)
        .env("BAREWIRE_BOOTSTRAP_TIMEOUT", "10")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output);
    Job(command.spawn().unwrap())
}

/// Waits for a result. Sleeps between attempts, to leave the processors to the ranks.
fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(start.elapsed() < support::PATIENCE, "not within the deadline: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Names of the shared memory of this machine.
fn shared_memory() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains("barewire")).collect()
}

fn kill_one(launcher: &str, seed: u64) -> Duration {
    let mut random = fastrand::Rng::with_seed(seed);
    let role = format!("{launcher}-{}-{seed}", std::process::id());
    let folder = std::env::temp_dir().join(format!("barewire-ranks-{role}"));
    fs::create_dir_all(folder.join("sockets")).unwrap();
    let victim = random.u32(0..RANKS);
    let mut job = launch(launcher, &role, &folder);
    let pid = wait("the rank starts", || {
        assert!(job.0.try_wait().unwrap().is_none(), "{launcher} ended before rank {victim} began");
        let ranks = processes(&role);
        ranks.iter().find(|(_, rank)| *rank == Some(victim)).map(|(pid, _)| *pid)
    });
    // If a rank dies while it connects to mpirun, mpirun sometimes reports "PMIX ERROR:
    // UNREACHABLE" (Open MPI 4.1.4), and the job does not end.
    let joined = format!("joined {victim}");
    wait("the rank joins the job", || {
        let printed = fs::read_to_string(folder.join("output")).unwrap();
        (launcher != "mpirun" || printed.lines().any(|line| line == joined)).then_some(())
    });
    // The moment is random, nothing depends on it.
    thread::sleep(Duration::from_micros(random.u64(..LATEST)));
    let killed = Instant::now();
    // SAFETY: the arguments contain no pointers. A process id is not used again so soon.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    wait("the survivors end", || job.0.try_wait().unwrap());
    let took = killed.elapsed();
    let printed = fs::read_to_string(folder.join("output")).unwrap();
    let context = format!("{launcher}, seed {seed}, rank {victim}: {printed}");
    // mpirun mixes the lines of ranks.
    let survivors: Vec<_> =
        printed.split("survivor ").skip(1).filter_map(|rest| rest.lines().next()).collect();
    // A rank that was killed after its last line is among them.
    assert!([3, 4].contains(&survivors.len()), "{context}");
    let without = survivors.iter().filter(|line| line.contains("without peers")).count();
    let allowed = ["lost []".to_owned(), format!("lost [{victim}]")];
    let right = |line: &&&str| allowed.iter().any(|end| line.ends_with(end));
    assert_eq!(survivors.iter().filter(right).count() + without, survivors.len(), "{context}");
    wait("no process is left", || processes(&role).is_empty().then_some(()));
    // The next process removes the socket of a killed one, once it is old.
    let sockets = || fs::read_dir(folder.join("sockets")).unwrap().flatten();
    for socket in sockets() {
        let aged = Command::new("touch").args(["-d", "1 hour ago"]).arg(socket.path()).status();
        assert!(aged.unwrap().success());
    }
    let swept = launch("barewire", "sweep", &folder).0.wait().unwrap();
    assert!(swept.success() && sockets().next().is_none(), "{context}");
    fs::remove_dir_all(folder).unwrap();
    took
}

fn kill_many(launcher: &str) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, first) = (number("KILLS").unwrap_or(6) / 2, number("KILL_SEED").unwrap_or(1));
    let before = shared_memory();
    let mut times: Vec<_> = (first..first + count).map(|seed| kill_one(launcher, seed)).collect();
    assert_eq!(shared_memory(), before);
    times.sort();
    println!("{launcher}: {count} kills, the survivors ended after {:?} at most", times.last());
}

#[test]
fn a_rank_of_barewire_run_is_killed_and_the_others_end() {
    kill_many("barewire");
}

#[test]
fn a_rank_of_mpirun_is_killed_and_the_others_end() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return println!("not run: Open MPI's mpirun is not installed (Debian: openmpi-bin)");
    }
    kill_many("mpirun");
}
