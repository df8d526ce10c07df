//! Memory of ranks that every rank reads, writes and adds to.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use barewire_bootstrap::Directory;
use barewire_wireup::shared::{AccessError, Shared, SharedError};
use barewire_wireup::windows::WindowError;
use barewire_wireup::{Node, Peers};

use crate::support::{DEADLINE, jobs, rules};

const SETS: [&[&str]; 4] = [&["shm", "self"], &["tcp/lo"], &["soft0:1"], &["shm"]];

#[test]
fn every_rank_writes_reads_and_adds_to_the_memory_of_every_rank() {
    const LENGTH: usize = 100_000;
    for names in SETS {
        jobs(3, names, |node, job, peers| {
            let rank = peers.rank();
            let shared = peers.share(node, job, "all", LENGTH, DEADLINE).unwrap();
            let fill = |rank: u32| vec![rank as u8 + 1; LENGTH / 3 - 8];
            for owner in 0..3 {
                assert_eq!(shared.len(owner), LENGTH);
                let offset = 8 + rank as usize * (LENGTH / 3 - 8);
                shared.put(node, owner, offset, &fill(rank)).unwrap();
                shared.put(node, owner, LENGTH, &[]).unwrap();
                for _ in 0..50 {
                    shared.fetch_add(node, owner, 0, u64::from(rank) + 1).unwrap();
                }
            }
            peers.fence(node, job, DEADLINE).unwrap();
            for owner in 0..3 {
                let mut read = vec![0; 3 * (LENGTH / 3 - 8)];
                shared.get(node, owner, 8, &mut read).unwrap();
                let expected = [0, 1, 2].map(fill).concat();
                assert!(read == expected, "{names:?}: rank {rank} reads from {owner}");
                assert_eq!(shared.fetch_add(node, owner, 0, 0).unwrap(), 50 * 6, "{names:?}");
            }
            let own = shared.own().unwrap();
            assert_eq!(own.load_u64(0).unwrap(), 300);
            peers.fence(node, job, DEADLINE).unwrap();
        });
    }
}

#[test]
fn ranks_draw_different_numbers_from_a_counter_of_one_of_them() {
    for names in SETS {
        let numbers = jobs(4, names, |node, job, peers| {
            let length = if peers.rank() == 1 { 8 } else { 0 };
            let shared = peers.share(node, job, "counter", length, DEADLINE).unwrap();
            assert_eq!([0, 1, 2].map(|rank| shared.len(rank)), [0, 8, 0]);
            let draw = |_| shared.fetch_add(node, 1, 0, 1).unwrap();
            let numbers = (0..100).map(draw).collect::<Vec<_>>();
            peers.fence(node, job, DEADLINE).unwrap();
            numbers
        });
        let mut numbers = numbers.concat();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..400).collect::<Vec<_>>(), "{names:?}");
    }
}

#[test]
fn what_is_not_there_is_refused() {
    for size in [1, 2] {
        jobs(size, &["shm", "self"], |node, job, peers| {
            let length = if peers.rank() == 0 { 16 } else { 0 };
            let shared = peers.share(node, job, "some", length, DEADLINE).unwrap();
            for (rank, offset, length) in [(0, 16, 1), (0, 9, 8), (0, usize::MAX, 2)] {
                let error = shared.put(node, rank, offset, &vec![0; length]).unwrap_err();
                assert!(matches!(error.source, AccessError::Range(_)), "{error}");
                let error = shared.get(node, rank, offset, &mut vec![0; length]).unwrap_err();
                assert!(matches!(error.source, AccessError::Range(_)), "{error}");
            }
            assert!(shared.fetch_add(node, 0, 9, 1).is_err());
            assert!(shared.fetch_add(node, 0, 4, 1).is_err(), "no aligned word");
            for rank in [1, 2] {
                let error = shared.fetch_add(node, rank, 0, 1).unwrap_err();
                assert_eq!(error.to_string(), format!("memory of rank {rank}: there is none"));
            }
            assert_eq!(shared.fetch_add(node, 0, 8, 1).unwrap_or_default() / u64::from(size), 0);
            peers.fence(node, job, DEADLINE).unwrap();
        });
    }
}

/// Over a device, atomics of this rank's CPU would not be atomic with those of the others.
#[test]
fn memory_that_this_rank_reaches_by_its_cpu_only_has_no_atomics_of_devices() {
    jobs(2, &["soft0:1", "self"], |node, job, peers| {
        let shared = peers.share(node, job, "device", 8, DEADLINE).unwrap();
        let (own, other) = (peers.rank(), 1 - peers.rank());
        assert_eq!(shared.fetch_add(node, other, 0, 5).unwrap(), 0);
        let error = shared.fetch_add(node, own, 0, 5).unwrap_err();
        assert!(matches!(error.source, AccessError::OwnAtomics { .. }), "{error}");
        assert!(error.to_string().contains("Rules::only([\"rc_mlx5\"])"), "{error}");
        peers.fence(node, job, DEADLINE).unwrap();
    });
}

#[test]
fn a_transport_without_atomics_is_named() {
    jobs(2, &["cma", "tcp/lo"], |node, job, peers| {
        // `cma` has no lane for atomics; tcp has.
        peers.share(node, job, "both", 8, DEADLINE).unwrap();
    });
    jobs(2, &["cma"], |node, job, peers| {
        let error = peers.share(node, job, "none", 8, DEADLINE);
        assert!(
            matches!(
                error,
                Err(WindowError::Link { .. }
                    | WindowError::NoLane { .. }
                    | WindowError::Connect { .. })
            ),
            "{error:?}"
        );
    });
}

const NAMES: &str = "BAREWIRE_TEST_OWNER_NAMES";
const FOLDER: &str = "BAREWIRE_TEST_OWNER_FOLDER";

/// Opens memory of rank 0 of two.
fn open(names: &[&str], folder: &Path, rank: u32) -> (Node, Directory, Shared) {
    let mut job = Directory::open(folder, rank, 2).unwrap();
    let mut node = Node::open(&rules(names)).unwrap();
    let peers = Peers::exchange(&mut node, &mut job, DEADLINE).unwrap();
    let length = if rank == 0 { 64 } else { 0 };
    let shared = peers.share(&mut node, &mut job, "memory", length, DEADLINE).unwrap();
    (node, job, shared)
}

/// The process that owns the memory, until it is killed; nothing otherwise.
#[test]
fn the_owner() {
    let (Ok(names), Some(folder)) = (std::env::var(NAMES), std::env::var_os(FOLDER)) else {
        return;
    };
    // The parent's death closes the pipe.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let names: Vec<&str> = names.split(' ').collect();
    let (mut node, _job, _shared) = open(&names, folder.as_ref(), 0);
    loop {
        node.progress();
    }
}

/// Also if each operation is done after a pause, and the program makes no progress itself.
#[test]
fn an_operation_on_memory_of_a_dead_process_fails_soon() {
    type Operate = fn(&Shared, &mut Node) -> Result<(), SharedError>;
    let operations: [Operate; 3] = [
        |shared, node| shared.fetch_add(node, 0, 0, 1).map(drop),
        |shared, node| shared.put(node, 0, 8, &[7; 8]),
        |shared, node| shared.get(node, 0, 8, &mut [0; 8]),
    ];
    let sets: [&[&str]; 3] = [&["shm", "cma", "tcp/lo"], &["tcp/lo"], &["soft0:1"]];
    for (set, names) in sets.into_iter().enumerate() {
        for (number, operate) in operations.into_iter().enumerate() {
            let name = format!("barewire-owner-{}-{set}-{number}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let mut owner = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "shared::the_owner", "--nocapture"])
                .env(NAMES, names.join(" "))
                .env(FOLDER, &folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let (mut node, _job, shared) = open(names, &folder, 1);
            for _ in 0..100 {
                operate(&shared, &mut node).unwrap();
            }
            owner.kill().unwrap();
            owner.wait().unwrap();
            let pause = || sleep(Duration::from_millis(2)); // longer than between two examinations
            let calls = (0..100).find(|_| {
                pause();
                operate(&shared, &mut node).is_err()
            });
            assert!(calls.is_some_and(|calls| calls <= 3), "{names:?}, {number}: {calls:?} calls");
            operate(&shared, &mut node).unwrap_err();
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
}
