//! A sender that writes into everything that was handed to it.

use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::address::{PortAddress, PortConfig};
use crate::bulk::BulkReceiver;
use crate::error::LinkError;
use crate::lane::MESSAGE_WORDS;
use crate::peer::Peer;
use crate::port::{Deliver, Port};
use crate::region::Shelf;

const PATIENCE: Duration = Duration::from_mins(1);

/// Takes whatever comes.
#[derive(Default)]
struct Anything {
    scratch: [u64; MESSAGE_WORDS],
    good: u64,
    broken: u64,
    /// Messages that must come one after the other, without a gap.
    in_order: u64,
}

impl Deliver for Anything {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn short(&mut self, id: u8, _: usize) {
        self.good += u64::from(id == 9);
        if id == 10 {
            assert_eq!(self.scratch[0], self.in_order, "by lane");
            self.in_order += 1;
        }
    }

    fn buffered(&mut self, _: u8, buffers: &Rc<BulkReceiver>, number: u8, _: NonNull<u8>, _: usize) {
        buffers.give(number);
    }

    fn broken(&mut self, _: i32, _: LinkError) {
        self.broken += 1;
    }

    fn peer(&mut self, _: u32) {}
}

fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

#[test]
fn a_sender_that_scribbles_is_given_up_and_the_others_go_on() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x4d, secret: 42 };
    let mut port = Port::open(here, &PortConfig::default(), &Shelf::new(1)).unwrap();
    let mut all = Anything::default();
    let connect = || Peer::connect(here, &PortConfig::default()).unwrap();
    let mut good = connect();
    let started = Instant::now();
    let mut ready = |peer: &mut Peer, port: &mut Port| {
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < PATIENCE, "connecting");
        }
    };
    ready(&mut good, &mut port);
    let mut noticed = 0;
    for seed in 1..20 {
        let mut bad = connect();
        ready(&mut bad, &mut port);
        // Past the FIFO, so that its lane and its buffers are what it ruins.
        for _ in 0..64 {
            let _ = bad.send(3, 0, &[]);
            let mut ignored = Anything::default();
            port.progress(&mut ignored);
        }
        let mut broken = 0;
        for (number, step) in numbers(seed).zip(0..2000) {
            bad.scribble(number, step);
            let mut ignored = Anything::default();
            port.progress(&mut ignored);
            broken += ignored.broken;
            if bad.tend().is_err() {
                break;
            }
        }
        // By chance what it writes looks like messages to the end.
        assert!(broken <= 1, "it is given up once");
        noticed += broken;
    }
    assert!(noticed > 10, "{noticed} of 19");
    let (mut sent, started) = (0, Instant::now());
    let mut rest = Anything::default();
    while rest.good < 1000 {
        if sent < 1000 && good.send(9, sent, &[]).is_ok() {
            sent += 1;
        }
        port.progress(&mut rest);
        assert!(started.elapsed() < PATIENCE, "{} came", rest.good);
    }
    assert!(good.error().is_none());
}

/// What is in the FIFO can be lost, and that is said; who has a lane notices nothing, and who has none goes on afterwards.
#[test]
fn a_sender_that_scribbles_over_the_fifo_stops_nobody_for_long() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x4e, secret: 42 };
    let mut port = Port::open(here, &PortConfig::default(), &Shelf::new(1)).unwrap();
    let mut all = Anything::default();
    let without_lane = PortConfig { lane_after: u32::MAX, ..PortConfig::default() };
    let [mut by_lane, mut bad] = [(); 2].map(|()| Peer::connect(here, &PortConfig::default()).unwrap());
    let mut by_fifo = Peer::connect(here, &without_lane).unwrap();
    let started = Instant::now();
    for peer in [&mut by_lane, &mut bad, &mut by_fifo] {
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < PATIENCE, "connecting");
        }
    }
    let mut header = 0;
    while header < 100 {
        header += u64::from(by_lane.send(10, header, &[]).is_ok());
        port.progress(&mut all);
    }
    let mut sent = 0;
    for (number, step) in numbers(7).zip(0..20_000) {
        bad.scribble_fifo(number, step);
        header += u64::from(by_lane.send(10, header, &[]).is_ok());
        sent += u64::from(by_fifo.send(9, step, &[]).is_ok());
        port.progress(&mut all);
    }
    assert!(all.broken > 0, "it is said");
    assert!(header > 5_000, "{header} by lane");
    // Everything that was written is looked at once, and is right again.
    let (before, started) = (all.good, Instant::now());
    assert!(before <= sent);
    let mut after = 0;
    while after < 1000 || all.in_order < header {
        if after < 1000 {
            after += u64::from(by_fifo.send(9, after, &[]).is_ok());
        }
        port.progress(&mut all);
        assert!(started.elapsed() < PATIENCE, "{after} sent, {} of {header} by lane came", all.in_order);
    }
    let started = Instant::now();
    while all.good < before + 1000 {
        port.progress(&mut all);
        assert!(started.elapsed() < PATIENCE, "{} came", all.good - before);
    }
    assert!(by_fifo.error().is_none() && by_lane.error().is_none());
}

/// A sender that takes the bell and does not ring: what another one sent meanwhile is found by who looks all the same, and the next time it
/// rings again.
#[test]
fn a_sender_that_silences_the_bell_holds_up_one_sleep() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x4f, secret: 42 };
    let mut port = Port::open(here, &PortConfig::default(), &Shelf::new(1)).unwrap();
    let watcher = port.watcher();
    let mut all = Anything::default();
    let [mut good, mut bad] = [(); 2].map(|()| Peer::connect(here, &PortConfig::default()).unwrap());
    let started = Instant::now();
    for peer in [&mut good, &mut bad] {
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < PATIENCE, "connecting");
        }
    }
    for silenced in [true, false] {
        while !watcher.arm().unwrap() {
            port.progress(&mut all);
            assert!(started.elapsed() < PATIENCE, "it is never quiet");
        }
        if silenced {
            bad.silence();
        }
        let before = all.good;
        good.send(9, 0, &[]).unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let rung = poll(&mut [PollFd::new(&watcher, PollFlags::IN)], Some(&now)).unwrap();
        assert_eq!(rung, usize::from(!silenced));
        while all.good == before {
            port.progress(&mut all);
            assert!(started.elapsed() < PATIENCE, "it was lost");
        }
    }
}
