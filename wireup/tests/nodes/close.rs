//! Closing: what was sent arrives, and the peer is informed.

use barewire_wireup::link::{CloseMode, Side as End, State};

use crate::support::{SETS, linked, pair, send, until};

#[test]
fn what_was_sent_before_the_close_arrives_and_the_peer_is_informed() {
    for names in SETS {
        let (mut sides, link, back) = linked(names);
        for number in 0..50 {
            send(&mut sides, &link, number);
        }
        link.close(CloseMode::Flush);
        until(&mut sides, "closed", |_| back.state() == State::Closed(End::Peer));
        assert_eq!(sides[1].received.borrow().len(), 50, "{names:?}");
        until(&mut sides, "closed here", |_| link.state() == State::Closed(End::Here));
        assert!(sides.iter().all(|side| side.node.links().is_empty()), "{names:?}");
        assert!(link.am_short(3, 0, &[]).is_err() && back.am_short(3, 0, &[]).is_err());
    }
}

/// A rank that waits in a barrier of its launcher makes no progress.
#[test]
fn a_close_does_not_wait_for_a_peer_that_makes_no_progress() {
    for names in SETS {
        let (mut sides, link, back) = linked(names);
        for number in 0..50 {
            send(&mut sides, &link, number);
        }
        link.close(CloseMode::Flush);
        let (here, there) = sides.split_at_mut(1);
        until(here, "closed here", |_| link.state() == State::Closed(End::Here));
        assert_eq!(back.state(), State::Connected, "{names:?}");
        until(there, "closed", |_| back.state() == State::Closed(End::Peer));
        assert_eq!(there[0].received.borrow().len(), 50, "{names:?}");
    }
}

#[test]
fn a_link_can_be_closed_at_every_moment() {
    for names in SETS {
        for steps in 0..20 {
            for mode in [CloseMode::Flush, CloseMode::Cancel] {
                let mut sides = pair(names);
                let [here, there] = &mut sides;
                let link = here.connect(there);
                for _ in 0..steps {
                    for side in &mut sides {
                        side.node.progress();
                    }
                }
                link.close(mode);
                until(&mut sides, "closed", |_| {
                    matches!(link.state(), State::Closed(_) | State::Failed(_))
                });
                until(&mut sides, "gone at the peer", |sides| sides[1].node.links().is_empty());
            }
        }
    }
}
