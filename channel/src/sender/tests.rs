//! What a sender does when the completions of its rails come in a certain order.

use barewire_mlx5::{DataSegment, RemoteAddressSegment};

use crate::Usage;
use crate::queues::{NO_OWNER, Role};
use crate::request::Outcome;
use crate::stepped::{Ends, filled};

/// The check of the control connection stays due if a completion arrives in the call that was to
/// make it.
#[test]
fn a_completion_does_not_put_off_the_check() {
    let mut ends = Ends::new();
    let source = filled(&ends.from, Usage::Send, 1);
    let target = filled(&ends.to, Usage::Receive, 3);
    let _ = ends.receiver.receive(&target, 0, 8, 0).unwrap().unwrap();
    ends.step();
    let sending = ends.sender.send(&source, 0, 8, 0).unwrap().unwrap();
    assert!((0..10_000).any(|_| ends.sender.peer.idle()), "a check that is due");
    ends.step();
    let outcome = ends.sender.acknowledged(sending.slot());
    assert!(matches!(outcome, Outcome::Complete(_)), "{outcome:?}");
    assert!(ends.sender.peer.idle() && ends.sender.peer.is_due());
    ends.sender.check().unwrap();
    assert!(!ends.sender.peer.idle() && !ends.sender.peer.is_due());
}

/// A probe that finds no room is not counted.
#[test]
fn a_probe_without_room_is_not_counted() {
    let mut ends = Ends::new();
    let queues = &mut ends.sender.queues()[0];
    let (nothing, nowhere) = (DataSegment::new(0, 0, 0), RemoteAddressSegment::new(0, 0));
    assert!(queues.write_share(nothing, nowhere, 1, NO_OWNER) && queues.probe());
    while queues.write_plain(nothing, nowhere, NO_OWNER) {}
    assert_eq!(queues.immediates(Role::Sender), 1);
    assert!(!queues.probe());
    assert_eq!(queues.immediates(Role::Sender), 1);
}
