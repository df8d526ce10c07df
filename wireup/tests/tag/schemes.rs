//! Every length by every protocol, over every kind of lane.

use std::rc::Rc;

use barewire_wireup::tag::{Buffer, FULL_MASK, Lanes, Limits, Mode, TagError};

use crate::support::{
    CMA, LANES, RC, SHM, TAGGED, TCP, buffer, bytes, ends, ends_with, result, settle,
};

const LENGTHS: [usize; 9] = [0, 1, 8, 100, 1000, 8100, 8192, 100_001, 3_000_000];

#[test]
fn every_length_arrives_over_every_kind_of_lane() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        for (tag, length) in LENGTHS.into_iter().enumerate() {
            for mode in [Mode::Auto, Mode::Eager, Mode::Synchronous] {
                for (from, to) in [(0, 1), (1, 0)] {
                    let what = format!("{messages:?} {bulk:?}: {length} bytes, {mode:?}");
                    let data = bytes(tag, length);
                    let target = Buffer::new(length).expect("memory");
                    let early = ends[to].tags.receive(tag as u64, FULL_MASK, &target);
                    let source = buffer(&data);
                    let send = ends[from].tags.send(&ends[from].link, tag as u64, &source, mode);
                    let envelope = result(&mut ends, &early).expect(&what);
                    assert_eq!((envelope.tag, envelope.length), (tag as u64, length), "{what}");
                    assert!(target.to_vec() == data, "{what}");
                    assert!(result(&mut ends, &send).is_ok(), "{what}");
                    // Unexpected, from bytes, into a longer buffer.
                    let send = ends[from].tags.send(&ends[from].link, 99, &data[..], mode);
                    settle_briefly(&mut ends);
                    let target = Buffer::new(length + 10).expect("memory");
                    let late = ends[to].tags.receive(99, FULL_MASK, &target);
                    assert_eq!(result(&mut ends, &late).expect(&what).length, length, "{what}");
                    assert!(target.to_vec()[..length] == data, "{what}");
                    assert!(result(&mut ends, &send).is_ok(), "{what}");
                }
            }
        }
        settle(&mut ends);
        for end in &ends {
            assert_eq!(end.tags.counters().unexpected_messages + end.tags.counters().announced, 0);
            assert_eq!(end.tags.counters().stray, 0);
            assert_eq!(end.tags.failure(&end.link), None);
        }
    }
}

/// Bytes that a lane of this end carried.
fn carried(end: &crate::support::End, lane: usize) -> u64 {
    end.link.lanes().expect("connected").bulk[lane].endpoint.counters().bytes
}

#[test]
fn a_payload_is_divided_among_rails_by_their_bandwidths() {
    const LENGTH: usize = 3 << 20;
    let mut ends = ends_with(SHM, &[TCP, TCP], Limits::default(), &|lanes| {
        Rc::make_mut(&mut lanes.bulk[0].attributes).bandwidth *= 2.0;
        lanes.threshold = Some(0);
    });
    let (source, target) = (buffer(&bytes(1, LENGTH)), Buffer::new(LENGTH).expect("memory"));
    let receive = ends[1].tags.receive(1, FULL_MASK, &target);
    let send = ends[0].tags.send(&ends[0].link, 1, &source, Mode::Auto);
    assert!(result(&mut ends, &receive).is_ok() && result(&mut ends, &send).is_ok());
    assert!(target.to_vec() == bytes(1, LENGTH));
    let both = [0, 1].map(|lane| ends.iter().map(|end| carried(end, lane)).max().unwrap_or(0));
    assert_eq!(both, [2 << 20, 1 << 20]);
}

#[test]
fn the_failure_of_one_rail_ends_the_transfer_once() {
    const LENGTH: usize = 3 << 20;
    let mut ends = ends_with(SHM, &[TCP, TCP], Limits::default(), &|lanes| {
        lanes.threshold = Some(0);
    });
    let (source, target) = (buffer(&bytes(1, LENGTH)), Buffer::new(LENGTH).expect("memory"));
    for end in &ends {
        let rail = end.link.lanes().expect("connected").bulk[1].endpoint.clone();
        let _ = rail.flush(barewire::FlushMode::Cancel, None);
    }
    let receive = ends[1].tags.receive(1, FULL_MASK, &target);
    let send = ends[0].tags.send(&ends[0].link, 1, &source, Mode::Auto);
    let results = (result(&mut ends, &receive), result(&mut ends, &send));
    assert!(results.0.is_err(), "{results:?}");
    settle(&mut ends);
    assert_eq!((receive.poll(), send.poll()), (Some(results.0), Some(results.1)));
}

fn settle_briefly(ends: &mut [crate::support::End; 2]) {
    for _ in 0..20 {
        for end in &mut *ends {
            end.worker.progress();
        }
    }
}

#[test]
fn the_lanes_decide_whether_data_is_fetched_put_or_sent_in_fragments() {
    const LENGTH: usize = 2_500_000;
    let no_get: &dyn Fn(&mut Lanes) = &|lanes| {
        for lane in &mut lanes.bulk {
            Rc::make_mut(&mut lane.attributes).get.max_zcopy = 0;
        }
    };
    let any: &dyn Fn(&mut Lanes) = &|_| {};
    for (messages, bulk, change, schemes) in [
        (SHM, &[CMA][..], any, (1, 0, 0)),
        (SHM, &[CMA], no_get, (0, 1, 0)),
        (SHM, &[], any, (0, 0, 1)),
        (SHM, &[SHM], any, (0, 0, 1)),
        (TCP, &[TCP], any, (1, 0, 0)),
        (TCP, &[TCP], no_get, (0, 1, 0)),
        (TCP, &[], any, (0, 0, 1)),
        (RC, &[RC], any, (1, 0, 0)),
        (RC, &[RC], no_get, (0, 1, 0)),
        (RC, &[], any, (0, 0, 1)),
        (TAGGED, &[TAGGED], any, (1, 0, 0)),
        (TAGGED, &[TAGGED], no_get, (0, 1, 0)),
        (TAGGED, &[], any, (0, 0, 1)),
    ] {
        let what = format!("{messages:?} {bulk:?}: {schemes:?}");
        let mut ends = ends_with(messages, bulk, Limits::default(), change);
        let data = bytes(3, LENGTH);
        let target = Buffer::new(LENGTH).expect("memory");
        let receive = ends[1].tags.receive(1, FULL_MASK, &target);
        let send = ends[0].tags.send(&ends[0].link, 1, &data[..], Mode::Auto);
        assert_eq!(result(&mut ends, &receive).expect(&what).length, LENGTH);
        assert!(target.to_vec() == data, "{what}");
        assert!(result(&mut ends, &send).is_ok(), "{what}");
        let counters = ends[1].tags.counters();
        assert_eq!((counters.fetched, counters.put, counters.fragmented), schemes, "{what}");
    }
}

/// Memory of the domain of `shm` is read over `shm`, and other memory over `cma`.
#[test]
fn memory_that_peers_can_map_is_fetched_without_a_system_call() {
    const LENGTH: usize = 2_500_000;
    let mut ends = ends_with(SHM, &[SHM, CMA], Limits::default(), &|_| {});
    let lanes = ends[0].link.lanes().expect("connected").clone();
    let mapped = Buffer::allocate(LENGTH, &lanes.bulk[0].domain).expect("memory");
    mapped.write(0, &bytes(4, LENGTH)).expect("inside");
    for (source, by_cma) in [(mapped, 0), (buffer(&bytes(4, LENGTH)), LENGTH)] {
        let before = carried(&ends[1], 1);
        let target = Buffer::new(LENGTH).expect("memory");
        let receive = ends[1].tags.receive(1, FULL_MASK, &target);
        let send = ends[0].tags.send(&ends[0].link, 1, &source, Mode::Auto);
        assert!(result(&mut ends, &receive).is_ok() && result(&mut ends, &send).is_ok());
        assert!(target.to_vec() == bytes(4, LENGTH), "{by_cma} bytes by cma");
        assert_eq!(carried(&ends[1], 1) - before, by_cma as u64);
    }
}

#[test]
fn the_threshold_divides_eager_from_rendezvous() {
    let mut ends = ends_with(SHM, &[CMA], Limits::default(), &|lanes| lanes.threshold = Some(100));
    for (length, announced) in [(100, 0), (101, 1)] {
        let send = ends[0].tags.send(&ends[0].link, 1, &vec![1; length][..], Mode::Auto);
        settle(&mut ends);
        assert_eq!(ends[1].tags.counters().announced, announced);
        assert_eq!(send.poll().is_some(), announced == 0, "an announced send waits");
    }
    // Eager mode has the limit of the message only.
    let send = ends[0].tags.send(&ends[0].link, 1, &[1; 8000], Mode::Eager);
    assert!(send.poll().is_some_and(|result| result.is_ok()));
    assert!(
        ends[0]
            .link
            .lanes()
            .expect("connected")
            .costs()
            .to_string()
            .contains("rendezvous is faster from")
    );
}

#[test]
fn a_message_that_is_too_long_is_reported_with_its_length() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        for length in [10, 100_000] {
            for mode in [Mode::Auto, Mode::Synchronous] {
                let small = Buffer::new(9).expect("memory");
                let receive = ends[1].tags.receive(1, FULL_MASK, &small);
                let send = ends[0].tags.send(&ends[0].link, 1, &bytes(1, length)[..], mode);
                assert_eq!(result(&mut ends, &receive), Err(TagError::Truncated { length }));
                assert!(result(&mut ends, &send).is_ok(), "the sender is not concerned");
            }
        }
    }
}

#[test]
fn many_transfers_at_once_in_both_directions() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        let mut requests = Vec::new();
        let mut targets = Vec::new();
        for round in 0..40_usize {
            let length = [0, 64, 5000, 200_000][round % 4];
            for (from, to) in [(0, 1), (1, 0)] {
                let target = Buffer::new(length).expect("memory");
                // Half of them arrive unexpectedly.
                if round % 2 == 0 {
                    requests.push(ends[to].tags.receive(round as u64, FULL_MASK, &target));
                }
                let data = &bytes(round, length)[..];
                requests.push(ends[from].tags.send(
                    &ends[from].link,
                    round as u64,
                    data,
                    Mode::Auto,
                ));
                if round % 2 == 1 {
                    requests.push(ends[to].tags.receive(round as u64, FULL_MASK, &target));
                }
                targets.push((round, target));
            }
        }
        for request in &requests {
            assert!(result(&mut ends, request).is_ok(), "{messages:?} {bulk:?}");
        }
        for (round, target) in targets {
            assert!(target.to_vec() == bytes(round, target.len()), "{messages:?} {bulk:?} {round}");
        }
    }
}
