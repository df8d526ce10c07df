//! Peers that proved the key, and then write anything: lines, immediates and data of random
//! contents. The other end reports a failure at most, and only announced memory changes.

use std::time::{Duration, Instant};

use barewire_mlx5::{Enhancements, RemoteAddressSegment, hca};

use crate::fail_over::Half;
use crate::handshake::message::{End, Epoch, Held, Message, QueuePairs};
use crate::mail::MOST_FRAMES;
use crate::queues::{NO_OWNER, Queues};
use crate::ring::{Announcement, Immediate, REFUSED};
use crate::stepped::{Ends, RAILS, SIZE, filled};
use crate::{Error, Region, Request, Target, Usage};

/// Channels of a test, and what the peer does in each.
const CHANNELS: u64 = 60;
const ACTIONS: usize = 80;

fn is_filled(region: &Region, byte: u8) -> bool {
    let mut bytes = [0; SIZE];
    region.read(0, &mut bytes).unwrap();
    bytes.iter().all(|found| *found == byte)
}

/// One of `choices`, or mostly the first.
fn mostly<T: Copy>(random: &mut fastrand::Rng, choices: &[T]) -> T {
    let at = if random.u8(..32) > 0 { 0 } else { random.usize(..choices.len()) };
    choices[at]
}

#[test]
fn any_line_of_a_receiver() {
    let mut failures = 0;
    let mut sent = 0;
    for seed in 0..CHANNELS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ends = Ends::new();
        let source = filled(&ends.from, Usage::Send, 1);
        let bystander = filled(&ends.from, Usage::Receive, 2);
        let target = filled(&ends.to, Usage::Receive, 3);
        // One announcement, from which the receiver knows the ring.
        let _ = ends.receiver.receive(&target, 0, SIZE, 0).unwrap();
        let mut requests: Vec<Request> = Vec::new();
        let mut fenced = [false; RAILS];
        let mut group = 1;
        'channel: for _ in 0..ACTIONS {
            let random = &mut random;
            let other = random.u64(..);
            let line = Announcement {
                address: mostly(random, &[target.address(0), other, u64::MAX, 0]),
                length: mostly(random, &[SIZE as u64, other, u64::MAX, 0, 63]),
                keys: mostly(random, &[[target.key(0), target.key(1), 0, 0, 0, 0, 0, 0], [7; 8]]),
                tag: mostly(random, &[0, 1, other as u32]),
                count: mostly(random, &[1, 2, 8, 0, 9, 255]),
                member: mostly(random, &[0, 1, 7, 8]),
            };
            let number = mostly(random, &[group, group + 1, other, group + 32]);
            let place = ends.receiver.ring_line(number, line.member);
            let rail = random.usize(..RAILS);
            // Rails fail when the sender writes where the line says.
            let queues = ends.receiver.queues();
            let rail = rail % queues.len().max(1);
            if let Some(queues) = queues.get_mut(rail) {
                let at = queues.place();
                queues.write_line(&line.to_line(number), place(at));
            }
            group += mostly(random, &[1, 0]);
            ends.step();
            for _ in 0..2 {
                let (length, tag) = (random.usize(..=SIZE), mostly(random, &[0, 1]));
                match ends.sender.send(&source, 0, length, tag) {
                    Ok(request) => requests.extend(request),
                    Err(Error::Overlong { .. }) => {}
                    Err(Error::Failed(failure)) => {
                        assert!(!failure.to_string().is_empty());
                        failures += 1;
                        break 'channel;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            ends.step();
            // The peer's FENCE of rails that the sender has lost, with any counts.
            let used: Vec<_> = ends.sender.queues().iter().map(Queues::place).collect();
            for place in (0..RAILS).filter(|place| !used.contains(place)) {
                if !std::mem::replace(&mut fenced[place], true) {
                    let at = Epoch { place: place as u8, epoch: mostly(random, &[0, 1]) };
                    let taken = vec![random.u32(..8); mostly(random, &[1, 0, 2])];
                    let held = Held { taken, next: 0, announced: 0 };
                    ends.receiver.tell(&Message::Fence { at, cause: None, held });
                }
            }
            let mut failed = false;
            requests.retain(|request| {
                let tested = ends.sender.test(*request);
                failed |= tested.is_err();
                let done = tested.unwrap_or(None).is_some();
                sent += u32::from(done);
                !done && !failed
            });
            if failed {
                failures += 1;
                break;
            }
        }
        assert!(is_filled(&source, 1) && is_filled(&bystander, 2), "seed {seed}");
    }
    assert!(failures > 10 && sent > 100, "{failures} failures, {sent} messages");
}

#[test]
fn any_immediate_of_a_sender() {
    let mut failures = 0;
    let mut received = [0, 0];
    for seed in 0..CHANNELS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ends = Ends::new();
        let source = filled(&ends.from, Usage::Send, 1);
        let target = filled(&ends.to, Usage::Receive, 3);
        // Without a right for peers, and of a region that was never announced.
        let local = filled(&ends.to, Usage::Send, 4);
        let mut requests = Vec::new();
        let mut group = 0;
        for _ in 0..ACTIONS {
            let random = &mut random;
            let room = random.usize(..=256);
            let is_group = random.bool();
            let buffer = |offset| Target { region: &target, offset, length: room, tag: 0 };
            let targets = &[buffer(0), buffer(256)][..=usize::from(is_group)];
            match ends.receiver.receive_group(targets) {
                Ok(request) => requests.extend(request.map(|request| (request, room))),
                Err(Error::Failed(_)) => break,
                Err(error) => panic!("{error}"),
            }
            let other = random.u32(..);
            let known = Immediate {
                group: mostly(random, &[group, group.wrapping_add(1), other as u16]),
                is_group: mostly(random, &[is_group, !is_group]),
                shares: mostly(random, &[1, 2, 0, 8]),
            };
            let immediate = mostly(random, &[known.to_bits(), known.to_bits(), other]);
            let rail = random.usize(..RAILS);
            let any = [room as u64, random.u64(..), room as u64 + 1, REFUSED, 0];
            let sizes: Vec<_> = (0..2).map(|_| mostly(random, &any)).collect();
            let (local_record, remote_record) =
                ends.sender.record(mostly(random, &[group, other as u16]).into(), &sizes, rail);
            group = group.wrapping_add(1);
            let address = mostly(random, &[target.address(0), local.address(0), u64::MAX]);
            let key = mostly(random, &[target.key(rail), local.key(rail), other]);
            let most = mostly(random, &[room, SIZE]) as u64;
            let length = random.u64(..=most);
            let message = source.segment(0, length, rail);
            let (from, to) = if is_group {
                (local_record, remote_record)
            } else {
                (message, RemoteAddressSegment::new(address, key))
            };
            ends.sender.queues()[rail].write_share(from, to, immediate, NO_OWNER);
            ends.step();
            let mut failed = false;
            requests.retain(|(request, room)| match ends.receiver.test(*request) {
                Ok(None) => true,
                Ok(Some(done)) => {
                    assert!(done.sizes().iter().all(|size| size <= room));
                    received[done.sizes().len() - 1] += 1;
                    false
                }
                Err(Error::Refused { .. }) => false,
                Err(Error::Failed(failure)) => {
                    assert!(!failure.to_string().is_empty());
                    failed = true;
                    false
                }
                Err(error) => panic!("{error}"),
            });
            if failed {
                failures += 1;
                break;
            }
        }
        assert!(is_filled(&local, 4), "seed {seed}");
    }
    let enough = failures > 10 && received.into_iter().all(|received| received > 10);
    assert!(enough, "{failures} failures, {received:?} messages and groups");
}

/// Where a rail has failed, the others write several shares of a message that is too long for one
/// share each.
#[test]
fn long_messages_are_cut_over_fewer_rails() {
    let mut ends = Ends::new();
    let source = ends.from.allocate(SIZE, Usage::Send).unwrap();
    let bytes: Vec<_> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    source.write(0, &bytes).unwrap();
    let target = filled(&ends.to, Usage::Receive, 3);
    ends.sender.limit_shares(SIZE as u64 / 2);
    assert!(ends.devices[0].inject(hca::Fault::LinkDown));
    for (length, tag) in [(SIZE, 0), (SIZE, 1), (SIZE / 2 + 1, 2)] {
        target.write(0, &[3; SIZE]).unwrap();
        let receiving = ends.receiver.receive(&target, 0, SIZE, tag).unwrap().unwrap();
        let (mut sending, mut sent, mut received) = (None, None, None);
        let mut rounds = 0;
        while sent.is_none() || received.is_none() {
            ends.step();
            ends.sender.check().unwrap();
            ends.receiver.check().unwrap();
            match sending {
                None => sending = ends.sender.send(&source, 0, length, tag).unwrap(),
                Some(request) if sent.is_none() => sent = ends.sender.test(request).unwrap(),
                Some(_) => {}
            }
            if received.is_none() {
                received = ends.receiver.test(receiving).unwrap();
            }
            rounds += 1;
            assert!(rounds < 1000, "message {tag}");
        }
        assert_eq!((sent, received.unwrap().sizes()), (Some(length), &[length][..]));
        let mut got = vec![0; length];
        target.read(0, &mut got).unwrap();
        assert!(got == bytes[..length], "message {tag}");
    }
    assert_eq!(ends.sender.rails(), 1);
}

/// A sender says that a rail has failed and tries it, more often than any rail can fail.
#[test]
fn a_check_handles_a_part_of_what_the_peer_has_sent() {
    const TIMES: u32 = 1000;
    let mut ends = Ends::new();
    for epoch in 0..TIMES {
        let at = |epoch| Epoch { place: 0, epoch };
        let pairs =
            QueuePairs { ends: vec![End { number: 7, psn: 0 }], enhancements: Enhancements::NONE };
        let (_, _, peer) = ends.sender.parts();
        peer.send(&Message::Fence { at: at(epoch), cause: None, held: Held::default() });
        peer.send(&Message::Try { at: at(epoch + 1), pairs });
    }
    ends.receiver.check().unwrap();
    let handled = ends.receiver.parts().1.at(0).epoch;
    assert!((1..TIMES / 2).contains(&handled), "{handled} of {TIMES} times in one call");
    // The rest is handled later.
    let begun = Instant::now();
    while ends.receiver.parts().1.at(0).epoch <= handled {
        ends.receiver.check().unwrap();
        assert!(begun.elapsed() < Duration::from_mins(1), "no more than {handled} times");
    }
}

/// A receiver takes none of the messages that a sender has for it.
#[test]
fn a_peer_that_takes_no_messages_is_lost() {
    let mut ends = Ends::new();
    let at = Epoch { place: 0, epoch: 0 };
    for _ in 0..=MOST_FRAMES {
        assert!(!ends.sender.parts().2.has_left());
        ends.sender.parts().2.send(&Message::Use { at });
    }
    assert!(ends.sender.parts().2.has_left());
}

/// A sender does not say that it has noticed the failure of a rail.
#[test]
fn an_end_that_awaits_its_peer_reads_the_connection_rarely() {
    const CALLS: usize = 100_000;
    let mut ends = Ends::new();
    let target = filled(&ends.to, Usage::Receive, 3);
    let request = ends.receiver.receive(&target, 0, SIZE, 0).unwrap().unwrap();
    ends.receiver.fence(0, None, Instant::now()).unwrap();
    let mut reads = 0;
    for _ in 0..CALLS {
        reads += usize::from(ends.receiver.parts().2.is_due());
        assert_eq!(ends.receiver.test(request).unwrap(), None);
    }
    assert!((1..1000).contains(&reads), "{reads} reads in {CALLS} calls");
}
