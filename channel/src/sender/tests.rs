//! What a sender does when the completions of its rails come in a certain order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use barewire_mlx5::hca::Fault;
use barewire_mlx5::{DataSegment, RemoteAddressSegment};

use crate::fail_over::SETTLE;
use crate::queues::{NO_OWNER, Queues, Role, Share};
use crate::request::{Outcome, Request};
use crate::stepped::{Ends, RAILS, SIZE, WHOLE, devices, filled};
use crate::{Config, Error, MAX_INLINE, Receiver, Region, Sender, Target, Usage};

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

/// From a certain length on, data is written without an immediate, which comes with the length.
#[test]
fn long_messages_are_written_without_immediates_for_adaptive_routing() {
    let config = Config::default().whole(WHOLE as u64).adaptive_from(Some(WHOLE as u64 / 2));
    let mut ends = Ends::over(devices(), &config);
    let source = filled(&ends.from, Usage::Send, 1);
    let target = filled(&ends.to, Usage::Receive, 3);
    for (length, writes) in [
        (WHOLE / 2 - 1, [vec![(31, true)], vec![]]),
        (WHOLE / 2, [vec![], vec![(32, false), (8, true)]]),
    ] {
        let receiving = ends.receiver.receive(&target, 0, SIZE, 0).unwrap().unwrap();
        ends.step();
        let sending = ends.sender.send(&source, 0, length, 0).unwrap().unwrap();
        let posted: Vec<Vec<_>> = ends.sender.queues().iter().map(written).collect();
        assert_eq!(posted, writes);
        ends.step();
        assert_eq!(ends.receiver.test(receiving).unwrap().unwrap().sizes(), [length]);
        assert_eq!(ends.sender.test(sending).unwrap(), Some(length));
    }
    // Each rail writes the length.
    let receiving = ends.receiver.receive(&target, 0, SIZE, 0).unwrap().unwrap();
    ends.step();
    let sending = ends.sender.send(&source, 0, SIZE, 0).unwrap().unwrap();
    for queues in ends.sender.queues() {
        assert_eq!(written(queues), [(SIZE as u32 / 2, false), (8, true)]);
    }
    ends.step();
    assert_eq!(ends.receiver.test(receiving).unwrap().unwrap().sizes(), [SIZE]);
    assert_eq!(ends.sender.test(sending).unwrap(), Some(SIZE));
    // One that is too long is refused without a record.
    let refused = ends.receiver.receive(&target, 0, WHOLE, 0).unwrap().unwrap();
    ends.step();
    let error = ends.sender.send(&source, 0, SIZE, 0).unwrap_err();
    assert!(matches!(error, Error::Overlong { .. }), "{error}");
    ends.step();
    let error = ends.receiver.test(refused).unwrap_err();
    assert!(matches!(error, Error::Refused { member: 0, .. }), "{error}");
}

/// Bytes of any memory, alone and in groups, also when their rail fails.
#[test]
fn short_messages_need_no_region() {
    for fails in [false, true] {
        for length in [0, 1, 7, 8, 27, MAX_INLINE] {
            let mut ends = Ends::new();
            let target = filled(&ends.to, Usage::Receive, 3);
            let single = ends.receiver.receive(&target, 0, WHOLE, 0).unwrap().unwrap();
            let buffer =
                |tag| Target { region: &target, offset: tag as usize * 64, length: 64, tag };
            let group = ends.receiver.receive_group(&[buffer(1), buffer(2)]).unwrap().unwrap();
            ends.step();
            let sending: Vec<_> = (0..3)
                .map(|tag| {
                    let bytes = vec![tag as u8 + 10; length];
                    ends.sender.send_inline(&bytes, tag).unwrap().unwrap()
                })
                .collect();
            if fails {
                assert!(ends.devices[0].inject(Fault::LinkDown));
            }
            let (mut sent, mut received) = ([None; 3], [None; 2]);
            let begun = Instant::now();
            while sent.contains(&None) || received.contains(&None) {
                assert!(begun.elapsed() < Duration::from_mins(1), "{length} bytes");
                ends.step();
                for (sent, request) in sent.iter_mut().zip(&sending) {
                    *sent = sent.or_else(|| ends.sender.test(*request).unwrap());
                }
                for (received, request) in received.iter_mut().zip([single, group]) {
                    *received = received.or_else(|| ends.receiver.test(request).unwrap());
                }
                ends.sender.check().unwrap();
                ends.receiver.check().unwrap();
            }
            assert_eq!(sent, [Some(length); 3]);
            assert_eq!(
                received.map(|all| all.unwrap().sizes().to_vec()),
                [vec![length], vec![length; 2]]
            );
            for tag in 0..3_u8 {
                let mut bytes = [0; 64];
                target.read(usize::from(tag) * 64, &mut bytes).unwrap();
                let (data, rest) = bytes.split_at(length);
                assert!(
                    data.iter().all(|byte| *byte == tag + 10) && rest.iter().all(|one| *one == 3)
                );
            }
        }
    }
    let mut ends = Ends::new();
    let target = filled(&ends.to, Usage::Receive, 3);
    let _ = ends.receiver.receive(&target, 0, 8, 0).unwrap().unwrap();
    ends.step();
    let error = ends.sender.send_inline(&[0; MAX_INLINE + 1], 0).unwrap_err();
    assert!(matches!(error, Error::TooLong { length: 29, limit: 28 }), "{error}");
    let error = ends.sender.send_inline(&[0; 9], 0).unwrap_err();
    assert!(matches!(error, Error::Overlong { length: 9, room: 8 }), "{error}");
}

/// Lengths of the writes that are not acknowledged, and whether they have immediates.
fn written(queues: &Queues) -> Vec<(u32, bool)> {
    let of = |share: &mut Share| (share.length, share.immediate.is_some());
    queues.doubtful().shares().map(of).collect()
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

/// Announces two buffers of `SIZE / 2` bytes with tags 0 and 1.
fn two(receiver: &mut Receiver, region: &Region) -> Request {
    let target = |tag| {
        let length = SIZE / 2;
        Target { region, offset: tag as usize * length, length, tag }
    };
    receiver.receive_group(&[target(0), target(1)]).unwrap().unwrap()
}

/// A program that drops the sender when all requests are complete leaves no group incomplete: its
/// record is written over all rails by then, also over those that carry only earlier messages.
#[test]
fn the_last_request_of_a_group_completes_with_the_record() {
    let mut ends = Ends::new();
    let source = filled(&ends.from, Usage::Send, 1);
    let target = filled(&ends.to, Usage::Receive, 3);
    let receiving = two(&mut ends.receiver, &target);
    ends.step();
    let (cut, short) = (4 * WHOLE, 8);
    let first = ends.sender.send(&source, 0, cut, 0).unwrap().unwrap();
    let mut complete = None;
    for _ in 0..1000 {
        complete = complete.or(ends.sender.test(first).unwrap());
        if complete.is_some() {
            break;
        }
        ends.step();
    }
    assert_eq!(complete, Some(cut));
    let last = ends.sender.send(&source, 0, short, 1).unwrap().unwrap();
    let mut complete = None;
    for round in 0..20 {
        complete = ends.sender.test(last).unwrap();
        if complete.is_some() {
            break;
        }
        if round < 10 {
            // The rail that carries the last message is faster.
            for _ in 0..200 {
                ends.devices[0].step();
                ends.devices[RAILS].step();
            }
        } else {
            ends.step();
        }
    }
    assert_eq!(complete, Some(short));
    let Ends { sender, mut receiver, devices, .. } = ends;
    drop(sender);
    for device in devices.iter().cycle().take(200 * devices.len()) {
        device.step();
    }
    let received = receiver.test(receiving).unwrap();
    assert_eq!(received.expect("the group is complete").sizes(), [cut, short]);
}

/// A refusal belongs to no request, so that a sender that is dropped waits for it: the last one of
/// a group, and that of a single buffer.
#[test]
fn a_sender_is_dropped_after_its_refusals() {
    for is_group in [true, false] {
        let mut ends = Ends::new();
        let source = filled(&ends.from, Usage::Send, 1);
        let target = filled(&ends.to, Usage::Receive, 3);
        let receiving = if is_group {
            two(&mut ends.receiver, &target)
        } else {
            ends.receiver.receive(&target, 0, 8, 0).unwrap().unwrap()
        };
        ends.step();
        for tag in 0..=u32::from(is_group) {
            let error = ends.sender.send(&source, 0, SIZE, tag).unwrap_err();
            assert!(matches!(error, Error::Overlong { .. }), "{error}");
        }
        let Ends { sender, mut receiver, devices, .. } = ends;
        let is_dropped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(sender);
                is_dropped.store(true, Ordering::Release);
            });
            // The refusals are posted, and no device has run.
            std::thread::sleep(Duration::from_millis(20));
            while !is_dropped.load(Ordering::Acquire) {
                for device in &devices {
                    device.step();
                }
            }
        });
        for device in devices.iter().cycle().take(200 * devices.len()) {
            device.step();
        }
        let error = receiver.test(receiving).unwrap_err();
        assert!(matches!(error, Error::Refused { member: 0, .. }), "{error}");
    }
}

/// Steps and checks the sender until `is_over`; the receiver is not called.
fn until(ends: &mut Ends, is_over: impl Fn(&Sender) -> bool) {
    let begun = Instant::now();
    while !is_over(&ends.sender) {
        assert!(begun.elapsed() < Duration::from_secs(30));
        ends.step();
        ends.sender.check().unwrap();
    }
}

/// A sender whose rail is lost waits for a peer that is not called only if it has refused a send.
#[test]
fn a_sender_without_refusals_is_dropped_at_once() {
    for down in [&[0][..], &[0, 1]] {
        let mut ends = Ends::new();
        let source = filled(&ends.from, Usage::Send, 1);
        let target = filled(&ends.to, Usage::Receive, 3);
        let _ = ends.receiver.receive(&target, 0, SIZE, 0).unwrap().unwrap();
        ends.step();
        assert!(down.iter().all(|device| ends.devices[*device].inject(Fault::LinkDown)));
        let _ = ends.sender.send(&source, 0, SIZE, 0).unwrap().unwrap();
        until(&mut ends, |sender| usize::from(sender.doubts) == down.len());
        if down.len() == RAILS {
            // The peer has reported what arrived, and no rail works that could carry the rest.
            let begun = Instant::now();
            while ends.sender.doubts > 0 {
                assert!(begun.elapsed() < Duration::from_secs(30));
                ends.receiver.check().unwrap();
                ends.sender.check().unwrap();
            }
            assert_eq!(ends.sender.writer.missing.len(), 2);
        }
        assert!(!ends.sender.has_refusals());
        let begun = Instant::now();
        drop(ends.sender);
        assert!(begun.elapsed() < SETTLE / 2, "{:?}", begun.elapsed());
    }
}

/// A refusal that is lost with its rail arrives before the sender is dropped.
#[test]
fn a_refusal_outlives_its_rail() {
    let mut ends = Ends::new();
    let source = filled(&ends.from, Usage::Send, 1);
    let target = filled(&ends.to, Usage::Receive, 3);
    let receiving = ends.receiver.receive(&target, 0, 8, 0).unwrap().unwrap();
    ends.step();
    assert!(ends.devices[0].inject(Fault::LinkDown));
    let error = ends.sender.send(&source, 0, SIZE, 0).unwrap_err();
    assert!(matches!(error, Error::Overlong { .. }), "{error}");
    until(&mut ends, |sender| sender.doubts == 1);
    assert!(ends.sender.has_refusals());
    let Ends { sender, mut receiver, devices, .. } = ends;
    let is_dropped = AtomicBool::new(false);
    let mut refused = None;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(sender);
            is_dropped.store(true, Ordering::Release);
        });
        while !is_dropped.load(Ordering::Acquire) {
            for device in &devices {
                device.step();
            }
            if refused.is_none() {
                receiver.check().unwrap();
                refused = receiver.test(receiving).err();
            }
        }
    });
    let error = refused.expect("the refusal");
    assert!(matches!(error, Error::Refused { member: 0, .. }), "{error}");
}

/// An end that has failed uses no rail.
#[test]
fn no_rail_is_in_use_after_a_failure() {
    let mut ends = Ends::new();
    assert_eq!((ends.sender.rails(), ends.receiver.rails()), (RAILS, RAILS));
    drop(ends.receiver);
    let begun = Instant::now();
    while ends.sender.check().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(ends.sender.rails(), 0);
    assert!(ends.sender.counters().iter().all(|rail| !rail.in_use));
    ends = Ends::new();
    drop(ends.sender);
    let begun = Instant::now();
    while ends.receiver.check().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(ends.receiver.rails(), 0);
    assert!(ends.receiver.counters().iter().all(|rail| !rail.in_use));
}

/// A message for which one of the rails has no room is sent; that rail's share follows.
#[test]
fn a_share_follows_when_there_is_room() {
    let mut ends = Ends::new();
    let source = filled(&ends.from, Usage::Send, 1);
    let target = filled(&ends.to, Usage::Receive, 3);
    let (nothing, nowhere) = (DataSegment::new(0, 0, 0), RemoteAddressSegment::new(0, 0));
    for count in [1, 2] {
        let target_of = |tag| Target { region: &target, offset: 0, length: SIZE, tag };
        let targets = [target_of(0), target_of(1)];
        let receiving = ends.receiver.receive_group(&targets[..count]).unwrap().unwrap();
        ends.step();
        while ends.sender.queues()[1].write_plain(nothing, nowhere, NO_OWNER) {}
        let first = ends.sender.send(&source, 0, SIZE, 0).unwrap().unwrap();
        assert_eq!(ends.sender.writer.missing.len(), 1);
        let (mut second, mut sent, mut received) = (None, None, None);
        for _ in 0..4000 {
            ends.step();
            if count == 2 && second.is_none() {
                second = ends.sender.send(&source, 0, 8, 1).unwrap();
            }
            sent = sent.or(ends.sender.test(first).unwrap());
            received = received.or(ends.receiver.test(receiving).unwrap());
            if sent.is_some() && received.is_some() {
                break;
            }
        }
        assert_eq!((sent, received.unwrap().sizes()[0]), (Some(SIZE), SIZE), "{count}");
        let mut bytes = vec![0; SIZE];
        target.read(8, &mut bytes[8..]).unwrap();
        assert!(bytes[8..].iter().all(|byte| *byte == 1));
        target.write(0, &[3; SIZE]).unwrap();
        while second.is_some_and(|second| ends.sender.test(second).unwrap().is_none()) {
            ends.step();
        }
    }
}
