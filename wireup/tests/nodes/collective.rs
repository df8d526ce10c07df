//! Operations in which all ranks take part. The ranks are threads of this process.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barewire::Access;
use barewire_wireup::collective::{CollectiveError, Collectives};
use barewire_wireup::tag::{FULL_MASK, Limits, Mode, TagError, Tags};
use barewire_wireup::{Kind, Node, Peers, State};

use crate::support::{DEADLINE, jobs, jobs_that_end, jobs_with, rules};

/// Calls `run` on each of so many ranks, which are threads, and returns the results.
fn ranks<R: Send>(
    size: u32,
    names: &[&str],
    run: impl Fn(&mut Node, (&Tags, &Peers), Collectives<'_>) -> R + Sync,
) -> Vec<R> {
    jobs(size, names, |node, _, peers| {
        let tags = Tags::over(node, Limits::default()).unwrap();
        run(node, (&tags, peers), Collectives::new(peers, &tags, 7).timeout(DEADLINE))
    })
}

#[test]
fn no_rank_passes_a_barrier_before_all_have_reached_it() {
    for size in [1, 2, 3, 6] {
        let reached = AtomicU32::new(0);
        ranks(size, &["shm", "self"], |node, _, mut all| {
            for round in 1..=20 {
                reached.fetch_add(1, Ordering::SeqCst);
                all.barrier(node).unwrap();
                let reached = reached.load(Ordering::SeqCst);
                assert!((round * size..=(round + 1) * size).contains(&reached), "{reached}");
            }
        });
    }
}

#[test]
fn every_rank_gets_the_data_of_the_root() {
    for size in [1, 2, 3, 5, 8] {
        ranks(size, &["shm", "tcp", "self"], |node, _, mut all| {
            for root in 0..size {
                for length in [0, 1, 20_000] {
                    let expected: Vec<u64> = (0..length).map(|n| n * u64::from(root + 1)).collect();
                    let is_root = all.rank() == root;
                    let mut data =
                        if is_root { expected.clone() } else { vec![9; length as usize] };
                    all.broadcast(node, root, &mut data).unwrap();
                    assert!(data == expected, "{length} from {root} of {size}");
                }
            }
        });
    }
}

#[test]
fn every_rank_gets_the_same_sum() {
    for size in [1, 2, 3, 4, 7, 8] {
        let results = ranks(size, &["shm", "self"], |node, _, mut all| {
            let rank = all.rank();
            let mut counts: Vec<u64> = (0..3000).map(|n| n * u64::from(rank + 1)).collect();
            all.allreduce(node, &mut counts, |a, b| a + b).unwrap();
            let factor = u64::from(size * (size + 1) / 2);
            assert!((0..).zip(&counts).all(|(n, sum)| *sum == n * factor));
            let mut most = [i8::try_from(rank).unwrap()];
            all.allreduce(node, &mut most, i8::max).unwrap();
            assert_eq!(u32::try_from(most[0]).unwrap(), size - 1);
            // Additions whose order changes the last bits.
            let mut sums = [0.1 + f64::from(rank), 1e16 / f64::from(rank + 1), -1e16];
            all.allreduce(node, &mut sums, |a, b| a + b).unwrap();
            all.allreduce::<u8>(node, &mut [], |a, _| a).unwrap();
            sums.map(f64::to_bits)
        });
        assert!(results.iter().all(|sums| *sums == results[0]), "{size} ranks: {results:?}");
    }
}

#[test]
fn messages_of_the_program_and_of_other_ranks_are_not_confused_with_those_of_an_operation() {
    ranks(3, &["shm", "self"], |node, (tags, peers), mut all| {
        let rank = all.rank();
        let next = peers.tag_link(node, tags, (rank + 1) % 3).unwrap();
        peers.tag_link(node, tags, (rank + 2) % 3).unwrap();
        // As rank 1 would send it to rank 0 in the first operation, with the context 7; and one of
        // the program.
        if rank == 2 {
            let forged = tags.send(&next, 7 << 48 | 1 << 24 | 1, &[0xff; 8], Mode::Auto);
            assert!(node.until(DEADLINE, || forged.poll().is_some()));
        }
        let own = tags.send(&next, 5, b"own", Mode::Auto);
        let mut sum = [u64::from(rank)];
        all.allreduce(node, &mut sum, |a, b| a + b).unwrap();
        assert_eq!(sum, [3]);
        let buffer = tags.buffer(8).unwrap();
        let received = tags.receive(5, FULL_MASK, &buffer);
        assert!(node.until(DEADLINE, || received.poll().is_some() && own.poll().is_some()));
        assert_eq!(received.poll().unwrap().unwrap().length, 3);
    });
}

/// Each of which has the links of the others.
#[test]
fn any_number_of_collectives_work_over_the_links_of_the_ranks() {
    ranks(2, &["shm", "self"], |node, (tags, peers), _| {
        for number in 0..3000 {
            let mut all = Collectives::new(peers, tags, number % 5).timeout(DEADLINE);
            let mut sum = [u64::from(number)];
            all.allreduce(node, &mut sum, |a, b| a + b).unwrap();
            assert_eq!(sum, [2 * u64::from(number)]);
        }
    });
}

#[test]
fn what_ranks_do_differently_is_an_error() {
    let errors = ranks(2, &["shm", "self"], |node, _, mut all| {
        assert!(matches!(
            all.broadcast(node, 2, &mut [0_u8]),
            Err(CollectiveError::NoRank { rank: 2, size: 2 })
        ));
        let mut values = vec![1_u32; 1 + all.rank() as usize];
        let length = all.allreduce(node, &mut values, |a, b| a + b).unwrap_err();
        let mut all = all.timeout(Duration::from_millis(50));
        let late = (all.rank() == 0).then(|| all.barrier(node).unwrap_err().to_string());
        (length.to_string(), late)
    });
    let text = "pass the same length on all";
    assert_eq!(errors[0].0, format!("rank 1 has passed 8 bytes and this rank 4: {text}"));
    assert_eq!(errors[1].0, format!("rank 0 has passed 4 bytes and this rank 8: {text}"));
    assert_eq!(errors[0].1.as_deref(), Some("rank 1 has not taken part within 0.1 s"));
}

/// Each survivor ends at its first error, so that most ranks see a neighbour end that did so
/// because of the first.
#[test]
fn all_ranks_name_the_one_that_ended_first() {
    for (size, first) in [(2, 1), (4, 2), (7, 0), (8, 5)] {
        let passed = AtomicU32::new(0);
        let errors = jobs_that_end(size, &["shm"], |node, _, peers| {
            let tags = Tags::over(node, Limits::default()).unwrap();
            let mut all = Collectives::new(peers, &tags, 7).timeout(DEADLINE);
            all.barrier(node).unwrap();
            passed.fetch_add(1, Ordering::SeqCst);
            assert!(node.until(DEADLINE, || passed.load(Ordering::SeqCst) == size));
            if peers.rank() == first {
                return None;
            }
            loop {
                if let Err(error) = all.barrier(node) {
                    return Some(error);
                }
            }
        });
        for (rank, error) in (0..).zip(errors).filter(|(rank, _)| *rank != first) {
            assert_eq!(named(&error.unwrap()), first, "rank {rank} of {size}");
        }
    }
}

/// The rank that an error says has failed.
fn named(error: &CollectiveError) -> u32 {
    match error {
        CollectiveError::Message { rank, .. } | CollectiveError::Ended { rank, .. } => *rank,
        other => panic!("{other}"),
    }
}

/// Ranks 1 and 2 wait for windows of neighbours, and rank 0 waits in an operation.
#[test]
fn a_failure_that_is_noticed_outside_of_an_operation_is_reported_to_all() {
    let passed = AtomicU32::new(0);
    let errors = jobs_that_end(4, &["shm"], |node, _, peers| {
        let tags = Tags::over(node, Limits::default()).unwrap();
        let mut all = Collectives::new(peers, &tags, 7).timeout(DEADLINE);
        let rank = peers.rank();
        let next = peers.connect(node, (rank + 1) % 4, DEADLINE).unwrap();
        all.barrier(node).unwrap();
        passed.fetch_add(1, Ordering::SeqCst);
        assert!(node.until(DEADLINE, || passed.load(Ordering::SeqCst) == 4));
        match rank {
            0 => Some(all.allreduce(node, &mut [1_u32], |a, b| a + b).unwrap_err()),
            3 => None,
            _ => {
                let error = next.until(node, DEADLINE, || false).unwrap_err();
                Some(all.report(node, rank + 1, error))
            }
        }
    });
    for (rank, error) in errors.into_iter().take(3).enumerate() {
        assert_eq!(named(&error.unwrap()), 3, "rank {rank}");
    }
}

/// Rank 1 does not do what rank 0 waits for, and waits in an operation.
#[test]
fn a_rank_that_is_reported_as_late_is_not_called_dead() {
    let errors = jobs(3, &["shm", "self"], |node, _, peers| {
        let tags = Tags::over(node, Limits::default()).unwrap();
        let mut all = Collectives::new(peers, &tags, 7).timeout(DEADLINE);
        all.barrier(node).unwrap();
        if peers.rank() > 0 {
            return all.barrier(node).unwrap_err();
        }
        let next = peers.connect(node, 1, DEADLINE).unwrap();
        let error = next.until(node, Duration::from_millis(50), || false).unwrap_err();
        all.report(node, 1, error)
    });
    let CollectiveError::TimedOut { rank: 1, waited } = errors[0] else { panic!("{}", errors[0]) };
    assert_eq!(waited, Duration::from_millis(50));
    for error in &errors[1..] {
        assert!(matches!(error, CollectiveError::Ended { rank: 1, late: true, .. }), "{error}");
        assert!(error.to_string().starts_with("rank 1 has not taken part in time"), "{error}");
    }
}

/// Rank 1 does nothing while rank 0 connects to it.
#[test]
fn a_rank_that_does_not_connect_in_time_is_not_called_dead() {
    const SHORT: Duration = Duration::from_millis(300);
    let is_done = AtomicU32::new(0);
    let results = jobs_with(2, &rules(&["shm", "self"]).deadline(SHORT), |node, _, peers| {
        if peers.rank() == 1 {
            let start = Instant::now();
            while is_done.load(Ordering::SeqCst) == 0 && start.elapsed() < DEADLINE {
                std::thread::yield_now();
            }
            return None;
        }
        let tags = Tags::over(node, Limits::default()).unwrap();
        let mut all = Collectives::new(peers, &tags, 7).timeout(DEADLINE);
        let operation = all.barrier(node).unwrap_err();
        let error = peers.link(node, 1).unwrap().until(node, DEADLINE, || false).unwrap_err();
        let text = error.to_string();
        let reported = all.report(node, 1, error);
        is_done.store(1, Ordering::SeqCst);
        Some((operation, text, reported))
    });
    let Some((operation, text, reported)) = &results[0] else { panic!("rank 0 has a result") };
    assert!(
        matches!(operation, CollectiveError::Message { rank: 1, source: TagError::Late }),
        "{operation}"
    );
    assert!(text.contains("the deadline passed"), "{text}");
    let CollectiveError::TimedOut { rank: 1, waited } = reported else { panic!("{reported}") };
    assert_eq!(*waited, SHORT);
}

/// Rank 2 ends before rank 1 begins an operation, and rank 0 after it has sent its part.
#[test]
fn a_rank_that_ended_before_an_operation_that_still_succeeded_is_named() {
    let is_done = AtomicU32::new(0);
    let errors = jobs_that_end(3, &["shm", "self"], |node, _, peers| {
        let tags = Tags::over(node, Limits::default()).unwrap();
        let mut all = Collectives::new(peers, &tags, 7).timeout(DEADLINE);
        all.barrier(node).unwrap();
        match peers.rank() {
            0 => {
                // As rank 0 sends it in the second operation.
                let link = peers.tag_link(node, &tags, 1).unwrap();
                let part = tags.send(&link, 7 << 48 | 2 << 24, &[1; 4], Mode::Auto);
                let is_done = || is_done.load(Ordering::SeqCst) == 1;
                assert!(node.until(DEADLINE, || part.poll().is_some() && is_done()));
                None
            }
            1 => {
                let link = peers.link(node, 2).unwrap();
                assert!(node.until(DEADLINE, || matches!(link.state(), State::Failed(_))));
                all.allreduce(node, &mut [1_u32], |a, _| a).unwrap();
                is_done.store(1, Ordering::SeqCst);
                let error = all.barrier(node).unwrap_err();
                Some(error)
            }
            _ => None,
        }
    });
    assert_eq!(named(errors[1].as_ref().unwrap()), 2, "{:?}", errors[1]);
}

/// The link between ranks 0 and 3, which operations of 8 ranks do not use, fails; later rank 7
/// ends.
#[test]
fn a_link_that_failed_before_two_successful_operations_explains_no_later_failure() {
    let passed = AtomicU32::new(0);
    let errors = jobs_that_end(8, &["tcp/lo"], |node, _, peers| {
        let tags = Tags::over(node, Limits::default()).unwrap();
        let mut all = Collectives::new(peers, &tags, 7).timeout(DEADLINE);
        let rank = peers.rank();
        all.barrier(node).unwrap();
        if let 0 | 3 = rank {
            let link = peers.connect(node, 3 - rank, DEADLINE).unwrap();
            if rank == 0 {
                // The peer does not know the key.
                let memory = link.domain(Kind::Memory).unwrap().allocate(8, Access::all()).unwrap();
                let key =
                    link.domain(Kind::Memory).unwrap().unpack_key(&memory.pack_key()).unwrap();
                node.post(|| link.put_short(&[1; 8], memory.address(), &key)).unwrap();
            }
            assert!(node.until(DEADLINE, || matches!(link.state(), State::Failed(_))));
        }
        all.barrier(node).unwrap();
        all.barrier(node).unwrap();
        passed.fetch_add(1, Ordering::SeqCst);
        assert!(node.until(DEADLINE, || passed.load(Ordering::SeqCst) == 8));
        (rank != 7).then(|| all.barrier(node).unwrap_err())
    });
    for (rank, error) in errors.into_iter().take(7).enumerate() {
        assert_eq!(named(&error.unwrap()), 7, "rank {rank}");
    }
}

#[test]
fn errors_of_links_name_the_rank() {
    let errors = jobs_that_end(2, &["shm"], |node, _, peers| {
        let waited = Rc::new(Cell::new(false));
        let seen = Rc::clone(&waited);
        node.set_handler(1, move |_| seen.set(true)).unwrap();
        let link = peers.connect(node, 1 - peers.rank(), DEADLINE).unwrap();
        assert_eq!(peers.rank_of(link.peer()), Some(1 - peers.rank()));
        assert_eq!(peers.rank_of(node.uuid()), Some(peers.rank()));
        let late = link.until(node, Duration::from_millis(1), || false).unwrap_err().to_string();
        assert!(late.contains("no failure of the peer was noticed"), "{late}");
        // Both have waited for nothing before one ends.
        node.post(|| link.am_short(1, 0, &[])).unwrap();
        assert!(node.until(DEADLINE, || waited.get()));
        let failed = || link.until(node, DEADLINE, || false).unwrap_err().to_string();
        [late].into_iter().chain((peers.rank() == 0).then(failed)).collect::<Vec<_>>()
    });
    for error in errors[0].iter().chain(&errors[1]) {
        assert!(error.starts_with("link to rank "), "{error}");
    }
    assert!(errors[0][1].starts_with("link to rank 1 (node "), "{errors:?}");
    let cause = "(the peer's process has ended or closed its interface): the peer is unreachable";
    assert!(errors[0][1].ends_with(cause), "{errors:?}");
}
