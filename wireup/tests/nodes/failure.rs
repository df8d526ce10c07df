//! Peers that end or fall silent, at every step, and links that are not affected.

use std::time::{Duration, Instant};

use barewire::PostError;
use barewire_wireup::Rules;
use barewire_wireup::link::{LinkError, Options, State};

use crate::support::{DEADLINE, ID, Side, rules, send, until, until_connected};

#[test]
fn one_of_two_peers_ends_and_the_other_link_works_on() {
    for names in [&["shm"][..], &["tcp/lo"], &["soft0:1", "tcp/lo"]] {
        let mut sides: Vec<Side> =
            (0..3).map(|_| Side::new(&rules(names).liveness(Duration::from_secs(1)))).collect();
        let addresses = [1, 2].map(|at: usize| sides[at].node.address());
        let [lost, kept] =
            addresses.map(|address| sides[0].node.connect(&address, Options::default()).unwrap());
        until_connected(&mut sides, &[&lost, &kept]);
        drop(sides.remove(1));
        until(&mut sides, "failed", |_| {
            // The end of a peer shows in posts, too.
            let _ = lost.am_short(ID, 0, &[]);
            matches!(lost.state(), State::Failed(_))
        });
        assert!(lost.error().is_some());
        assert_eq!(lost.am_short(ID, 0, &[]), Err(PostError::EndpointFailed), "{names:?}");
        assert_eq!(kept.state(), State::Connected, "{names:?}");
        send(&mut sides, &kept, 9);
        until(&mut sides, "received", |sides| *sides[1].received.borrow() == [9]);
    }
}

#[test]
fn a_peer_that_ends_at_any_step_fails_the_link_before_the_deadline() {
    for names in [&["shm"][..], &["tcp/lo"], &["soft0:1", "tcp/lo"]] {
        for steps in [0, 1, 3, 8, 100] {
            let rules = rules(names)
                .deadline(Duration::from_millis(100))
                .liveness(Duration::from_millis(100));
            let mut sides = vec![Side::new(&rules), Side::new(&rules)];
            let address = sides[1].node.address();
            let link = sides[0].node.connect(&address, Options::default()).unwrap();
            for _ in 0..steps {
                for side in &mut sides {
                    side.node.progress();
                }
            }
            sides.pop();
            until(&mut sides, "failed", |_| {
                matches!(link.state(), State::Failed(_) | State::Closed(_))
            });
        }
    }
}

#[test]
fn a_peer_that_never_answers_is_left_at_the_deadline() {
    let mut sides = [Side::new(&rules(&["shm"]))];
    let silent = Side::new(&rules(&["shm"]));
    let options = Options::default().deadline(Duration::from_millis(300));
    let link = sides[0].node.connect(&silent.node.address(), options).unwrap();
    until(&mut sides, "failed", |_| matches!(link.state(), State::Failed(_)));
    assert!(link.error().unwrap().to_string().contains("deadline"), "{:?}", link.error());
}

/// Over every interface, so that one pair after the other refuses.
#[test]
fn a_dead_peer_whose_addresses_all_refuse_is_not_tried_until_the_deadline() {
    let mut sides = vec![Side::new(&rules(&["tcp"])), Side::new(&rules(&["tcp"]))];
    let gone = sides.remove(1).node.address();
    let link = sides[0].node.connect(&gone, Options::default()).unwrap();
    until(&mut sides, "failed", |_| matches!(link.state(), State::Failed(_)));
    let error = link.error().unwrap().to_string();
    assert!(error.contains("no process listens at any of its addresses"), "{error}");
}

#[test]
fn a_peer_that_falls_silent_is_found_while_this_side_sleeps() {
    let interval = Duration::from_millis(500);
    let mut sides = [Side::new(&rules(&["shm"]).liveness(interval)), Side::new(&rules(&["shm"]))];
    let address = sides[1].node.address();
    let link = sides[0].node.connect(&address, Options::default()).unwrap();
    until_connected(&mut sides, &[&link]);
    let (start, [mut here, _silent]) = (Instant::now(), sides);
    while link.state() == State::Connected {
        here.node.wait(Some(DEADLINE)).unwrap();
        assert!(start.elapsed() < DEADLINE);
    }
    // Not before the peer could have answered two pings.
    assert!(start.elapsed() >= interval);
    assert!(matches!(link.error(), Some(LinkError::Protocol { .. })), "{:?}", link.error());
}

#[test]
fn a_peer_that_is_restarted_is_another_peer() {
    let mut sides = vec![Side::new(&rules(&["shm"])), Side::new(&rules(&["shm"]))];
    let address = sides[1].node.address();
    let first = sides[0].node.connect(&address, Options::default()).unwrap();
    until_connected(&mut sides, &[&first]);
    sides[1] = Side::new(&rules(&["shm"]));
    let address = sides[1].node.address();
    let second = sides[0].node.connect(&address, Options::default()).unwrap();
    until_connected(&mut sides, &[&second]);
    assert_ne!(first.peer(), second.peer());
    send(&mut sides, &second, 4);
    until(&mut sides, "received", |sides| *sides[1].received.borrow() == [4]);
}

/// Without a control connection, by which the end of a process would show.
#[test]
fn a_dead_peer_over_rdma_is_found_while_this_side_sleeps_and_a_silent_one_is_not() {
    assert_eq!(Rules::default().keepalive, Some(Duration::from_secs(10)));
    let interval = Duration::from_millis(250);
    let mut rules = rules(&["soft0:1"]).keepalive(Some(interval));
    // 1.8 s on the software HCA.
    rules.config = rules.config.ack_timeout(14);
    let mut sides = [Side::new(&rules), Side::new(&rules)];
    let address = sides[1].node.address();
    let link = sides[0].node.connect(&address, Options::default()).unwrap();
    until_connected(&mut sides, &[&link]);
    let [mut here, silent] = sides;
    let sleep = |here: &mut Side, time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time && link.state() == State::Connected {
            here.node.wait(Some(time)).unwrap();
        }
    };
    sleep(&mut here, 4 * interval);
    assert_eq!(link.state(), State::Connected, "{:?}", link.error());
    drop(silent);
    sleep(&mut here, DEADLINE);
    assert!(matches!(link.error(), Some(LinkError::Lane { .. })), "{:?}", link.error());
}
