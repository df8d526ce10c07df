//! Connecting: one side, both, at once; in order; with messages before the link is connected.

use barewire::{PendingResult, PostError};
use barewire_wireup::link::{Options, State};
use barewire_wireup::node::{ConnectError, Node};
use barewire_wireup::plan::{Kind, Needs};

use crate::support::{ID, SETS, Side, linked, pair, rules, send, until, until_connected};

#[test]
fn one_side_connects_and_both_send() {
    for names in SETS {
        let (mut sides, link, back) = linked(names);
        for number in 0..100 {
            send(&mut sides, &link, number);
            send(&mut sides, &back, 1000 + number);
        }
        until(&mut sides, "received", |sides| {
            sides.iter().all(|side| side.received.borrow().len() >= 100)
        });
        assert_eq!(*sides[1].received.borrow(), (0..100).collect::<Vec<_>>(), "{names:?}");
        assert_eq!(*sides[0].received.borrow(), (1000..1100).collect::<Vec<_>>(), "{names:?}");
    }
}

#[test]
fn both_sides_connect_at_once_and_get_one_link() {
    for names in SETS {
        let mut sides = pair(names);
        let [here, there] = &mut sides;
        let links = [here.connect(there), there.connect(here)];
        until_connected(&mut sides, &[&links[0], &links[1]]);
        send(&mut sides, &links[0], 1);
        send(&mut sides, &links[1], 2);
        until(&mut sides, "received", |sides| {
            sides.iter().all(|side| side.received.borrow().len() == 1)
        });
        assert!(sides.iter().all(|side| side.incoming.borrow().is_empty()), "{names:?}");
        assert!(sides.iter().all(|side| side.node.links().len() == 1), "{names:?}");
    }
}

/// Also between this side's answer and the end of connecting, when the lanes exist already.
#[test]
fn the_other_side_connects_at_every_moment_and_gets_a_link() {
    for names in SETS {
        for steps in 0..20 {
            let mut sides = pair(names);
            let [here, there] = &mut sides;
            let link = here.connect(there);
            for step in 0..steps {
                // Not every call looks at links. The other side has not read what this one sends.
                for _ in 0..17 {
                    sides[step % 2].node.progress();
                }
            }
            let [here, there] = &mut sides;
            let back = match there.incoming.borrow().first() {
                Some(link) => link.clone(),
                None => there.node.connect(&here.node.address(), Options::default()).unwrap(),
            };
            until_connected(&mut sides, &[&link, &back]);
            assert!(sides.iter().all(|side| side.node.links().len() == 1), "{names:?} {steps}");
            send(&mut sides, &link, 1);
            send(&mut sides, &back, 2);
            until(&mut sides, "received", |sides| {
                *sides[0].received.borrow() == [2] && *sides[1].received.borrow() == [1]
            });
        }
    }
}

#[test]
fn the_nth_link_of_one_side_is_the_nth_of_the_other() {
    let mut sides = pair(&["shm"]);
    let [here, there] = &mut sides;
    let first: Vec<_> = (0..4).map(|_| here.connect(there)).collect();
    let second: Vec<_> = (0..4).map(|_| there.connect(here)).collect();
    until_connected(&mut sides, &first.iter().chain(&second).collect::<Vec<_>>());
    assert!(sides.iter().all(|side| side.node.links().len() == 4));
    // The third of one side ends the third of the other.
    first[2].close(barewire_wireup::link::CloseMode::Flush);
    until(&mut sides, "closed", |_| matches!(second[2].state(), State::Closed(_)));
    assert!([0, 1, 3].iter().all(|at| second[*at].state() == State::Connected));
}

#[test]
fn a_node_connects_to_itself() {
    for names in [&["self"][..], &["shm"]] {
        let mut sides = [Side::new(&rules(names))];
        let address = sides[0].node.address();
        let even = sides[0].node.connect(&address, Options::default()).unwrap();
        let odd = sides[0].node.connect(&address, Options::default()).unwrap();
        until_connected(&mut sides, &[&even, &odd]);
        send(&mut sides, &even, 5);
        send(&mut sides, &odd, 6);
        until(&mut sides, "received", |sides| *sides[0].received.borrow() == [5, 6]);
    }
}

#[test]
fn requests_before_the_link_is_connected_run_in_order_and_once() {
    for names in SETS {
        let mut sides = pair(names);
        let [here, there] = &mut sides;
        let link = here.connect(there);
        assert_eq!(link.am_short(ID, 0, &[]), Err(PostError::NoResource));
        for number in 0..500 {
            let request = move |link: &barewire_wireup::link::Link| match link
                .am_short(ID, number, &[1; 8])
            {
                Err(PostError::NoResource) => PendingResult::Again,
                sent => {
                    sent.unwrap();
                    PendingResult::Done
                }
            };
            link.pending_add(Kind::Messages, request).unwrap();
        }
        until_connected(&mut sides, &[&link]);
        send(&mut sides, &link, 500);
        until(&mut sides, "received", |sides| sides[1].received.borrow().len() == 501);
        assert_eq!(*sides[1].received.borrow(), (0..=500).collect::<Vec<_>>(), "{names:?}");
    }
}

#[test]
fn a_link_without_a_lane_is_refused_with_each_reason() {
    let mut here = Node::open(&rules(&["shm"])).unwrap();
    let there = Node::open(&rules(&["tcp/lo"])).unwrap();
    let error = here.connect(&there.address(), Options::default()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ConnectError::NoLane { .. }));
    // The software device is there, and the text says why it is not used.
    assert!(text.contains("rc_mlx5 on soft0:1: a software device"), "{text}");
    assert!(here.plan(&there.address(), Needs::default()).lanes.is_empty());
}

#[test]
fn a_software_device_carries_messages_if_both_sides_name_it() {
    let mut sides = pair(&["soft0:1", "tcp/lo"]);
    let [here, there] = &mut sides;
    let link = here.connect(there);
    until_connected(&mut sides, &[&link]);
    let of = |kind| link.lane(kind).map(|endpoint| endpoint.transport().name());
    assert_eq!((of(Kind::Messages), of(Kind::Bulk)), (Some("rc_mlx5"), Some("rc_mlx5")));
}
