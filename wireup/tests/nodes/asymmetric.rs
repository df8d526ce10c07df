//! Two sides with different transports: equal lanes on both, or a refusal with the reason.

use std::collections::BTreeSet;

use barewire_wireup::link::{Link, Options};
use barewire_wireup::node::{ConnectError, Node};

use crate::support::{Side, rules, send, until, until_connected};

fn lanes(link: &Link, turned: bool) -> BTreeSet<(u8, u8, String)> {
    let pair = |pair: barewire_wireup::plan::Pair| {
        if turned { (pair.there, pair.here) } else { (pair.here, pair.there) }
    };
    let lanes =
        link.lanes().iter().map(|info| (pair(info.lane().pair), info.lane().kinds.to_string()));
    lanes.map(|((here, there), kinds)| (here, there, kinds)).collect()
}

#[test]
fn random_transports_give_equal_lanes_or_a_refusal() {
    const ALL: [&str; 5] = ["self", "shm", "cma", "tcp/lo", "soft0:1"];
    let (mut connected, mut refused) = (0, 0);
    // Every pair of subsets; those of `self` and `cma` alone have no lane for messages.
    for case in 0..64u32 {
        let mut rng = fastrand::Rng::with_seed(case.into());
        let mut names = || -> Vec<&str> { ALL.into_iter().filter(|_| rng.bool()).collect() };
        let (mine, theirs) = (names(), names());
        if mine.is_empty() || theirs.is_empty() {
            continue;
        }
        let mut sides = [Side::new(&rules(&mine)), Side::new(&rules(&theirs))];
        let address = sides[1].node.address();
        match sides[0].node.connect(&address, Options::default()) {
            Ok(link) => {
                until_connected(&mut sides, &[&link]);
                until(&mut sides, "announced", |sides| sides[1].incoming.borrow().len() == 1);
                let back = sides[1].incoming.borrow()[0].clone();
                assert_eq!(lanes(&link, false), lanes(&back, true), "{case}: {mine:?} {theirs:?}");
                send(&mut sides, &link, 1);
                send(&mut sides, &back, 2);
                until(&mut sides, "received", |sides| {
                    sides.iter().all(|side| side.received.borrow().len() == 1)
                });
                connected += 1;
            }
            Err(ConnectError::NoLane { plan, .. }) => {
                assert!(!plan.refusals.is_empty() && !plan.lacking().is_empty(), "{case}");
                // The other side comes to the same end.
                let address = sides[0].node.address();
                assert!(sides[1].node.connect(&address, Options::default()).is_err(), "{case}");
                refused += 1;
            }
            Err(error) => panic!("{case}: {error}"),
        }
    }
    assert!(connected >= 10 && refused >= 10, "{connected} connected, {refused} refused");
}

#[test]
fn a_node_without_interfaces_says_why() {
    let error = Node::open(&rules(&["nothing"])).unwrap_err().to_string();
    assert!(error.contains("the rules do not name it"), "{error}");
}

/// The path MTU of a DC target is fixed, so nodes of different path MTUs use `rc_mlx5`.
#[test]
fn nodes_of_different_path_mtus_connect_without_dc() {
    let mut many = rules(&["rc_mlx5/soft0:1", "dc_mlx5/soft0:1", "tcp/lo"]);
    many.endpoints = 10_000;
    let mut other = many.clone();
    other.config.path_mtu = 1024;
    for (theirs, is_dynamic) in [(&many, true), (&other, false)] {
        let mut sides = [Side::new(&many), Side::new(theirs)];
        let address = sides[1].node.address();
        let link = sides[0].node.connect(&address, Options::default()).unwrap();
        until_connected(&mut sides, &[&link]);
        let has_dc =
            |info: &barewire_wireup::link::LaneInfo| info.lane().transport.to_string() == "dc_mlx5";
        assert_eq!(link.lanes().iter().any(has_dc), is_dynamic, "{:?}", link.lanes());
        send(&mut sides, &link, 1);
        until(&mut sides, "received", |sides| sides[1].received.borrow().len() == 1);
    }
}
