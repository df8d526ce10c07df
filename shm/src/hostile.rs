//! Tests with a sender that writes to all the memory it shares with the port.

use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::address::{PortAddress, PortConfig};
use crate::bulk::BulkReceiver;
use crate::control::Message;
use crate::error::LinkError;
use crate::peer::Peer;
use crate::port::{Deliver, Port};
use crate::region::RegionSet;
use crate::spsc::MESSAGE_WORDS;

const TIMEOUT: Duration = Duration::from_mins(1);

/// Accepts every message.
#[derive(Default)]
struct Anything {
    scratch: [u64; MESSAGE_WORDS],
    good: u64,
    broken: u64,
    /// Messages with id 10 so far; their headers must count up without a gap.
    in_order: u64,
}

impl Deliver for Anything {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn wants_more(&self) -> bool {
        true
    }

    fn short(&mut self, id: u8, _: usize) {
        self.good += u64::from(id == 9);
        if id == 10 {
            assert_eq!(self.scratch[0], self.in_order, "header of a message in the ring");
            self.in_order += 1;
        }
    }

    fn buffered(
        &mut self,
        _: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        _: NonNull<u8>,
        _: usize,
    ) {
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
fn a_sender_that_corrupts_its_memory_is_disconnected_and_the_others_continue() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x4d, secret: 42 };
    let mut port = Port::open(here, &PortConfig::default(), &RegionSet::new(1)).unwrap();
    let mut all = Anything::default();
    let connect = || Peer::connect(here, &PortConfig::default()).unwrap();
    let mut good = connect();
    let started = Instant::now();
    let mut ready = |peer: &mut Peer, port: &mut Port| {
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < TIMEOUT, "connecting");
        }
    };
    ready(&mut good, &mut port);
    let mut noticed = 0;
    for seed in 1..20 {
        let mut bad = connect();
        ready(&mut bad, &mut port);
        // Enough messages for the sender to create its SPSC ring, which it then corrupts.
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
        // In some runs all the words happen to look like valid messages.
        assert!(broken <= 1, "the connection is ended once");
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
        assert!(started.elapsed() < TIMEOUT, "{} received", rest.good);
    }
    assert!(good.error().is_none());
}

/// Messages in the FIFO can be lost, and the port reports it. Senders with an SPSC ring are not
/// affected, and the others can send again afterwards.
#[test]
fn a_sender_that_corrupts_the_fifo_does_not_stop_the_others() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x4e, secret: 42 };
    let mut port = Port::open(here, &PortConfig::default(), &RegionSet::new(1)).unwrap();
    let mut all = Anything::default();
    let without_ring = PortConfig { ring_after: u32::MAX, ..PortConfig::default() };
    let [mut by_ring, mut bad] =
        [(); 2].map(|()| Peer::connect(here, &PortConfig::default()).unwrap());
    let mut by_fifo = Peer::connect(here, &without_ring).unwrap();
    let started = Instant::now();
    for peer in [&mut by_ring, &mut bad, &mut by_fifo] {
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < TIMEOUT, "connecting");
        }
    }
    let mut header = 0;
    while header < 100 {
        header += u64::from(by_ring.send(10, header, &[]).is_ok());
        port.progress(&mut all);
    }
    let mut sent = 0;
    for (number, step) in numbers(7).zip(0..20_000) {
        bad.scribble_fifo(number, step);
        header += u64::from(by_ring.send(10, header, &[]).is_ok());
        sent += u64::from(by_fifo.send(9, step, &[]).is_ok());
        port.progress(&mut all);
    }
    assert!(all.broken > 0, "the port must report errors");
    assert!(header > 5_000, "{header} sent through the ring");
    // The port repairs the FIFO as it reads it.
    let (before, started) = (all.good, Instant::now());
    assert!(before <= sent);
    let mut after = 0;
    while after < 1000 || all.in_order < header {
        if after < 1000 {
            after += u64::from(by_fifo.send(9, after, &[]).is_ok());
        }
        port.progress(&mut all);
        assert!(
            started.elapsed() < TIMEOUT,
            "{after} sent; {} of {header} messages of the ring were received",
            all.in_order
        );
    }
    let started = Instant::now();
    while all.good < before + 1000 {
        port.progress(&mut all);
        assert!(started.elapsed() < TIMEOUT, "{} received", all.good - before);
    }
    assert!(by_fifo.error().is_none() && by_ring.error().is_none());
}

/// A sender clears the wake flag without waking the receiver. The receiver finds the message of
/// another sender when it polls anyway, and the next wake-up works again.
#[test]
fn a_suppressed_wake_up_delays_one_sleep() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x4f, secret: 42 };
    let mut port = Port::open(here, &PortConfig::default(), &RegionSet::new(1)).unwrap();
    let watcher = port.watcher();
    let mut all = Anything::default();
    let [mut good, mut bad] =
        [(); 2].map(|()| Peer::connect(here, &PortConfig::default()).unwrap());
    let started = Instant::now();
    for peer in [&mut good, &mut bad] {
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < TIMEOUT, "connecting");
        }
    }
    for silenced in [true, false] {
        while !watcher.arm().unwrap() {
            port.progress(&mut all);
            assert!(started.elapsed() < TIMEOUT, "messages never cease");
        }
        if silenced {
            bad.silence();
        }
        let before = all.good;
        good.send(9, 0, &[]).unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&watcher, PollFlags::IN)], Some(&now)).unwrap();
        assert_eq!(woken, usize::from(!silenced));
        while all.good == before {
            port.progress(&mut all);
            assert!(started.elapsed() < TIMEOUT, "the message was lost");
        }
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Polls of the port in a second of the thread's time.
fn rate(port: &mut Port) -> f64 {
    let (mut all, mut polls, begun) = (Anything::default(), 0, cpu_time());
    loop {
        for _ in 0..1000 {
            port.progress(&mut all);
        }
        polls += 1000;
        let spent = cpu_time().saturating_sub(begun);
        if spent > Duration::from_millis(30) {
            return f64::from(polls) / spent.as_secs_f64();
        }
    }
}

/// Each is read, but they take a small part of the time.
#[test]
fn a_sender_that_asks_to_wake_up_without_end_delays_nothing_else() {
    let here = PortAddress { number: u64::from(std::process::id()) << 32 | 0x5d, secret: 42 };
    let config = PortConfig::default();
    let mut port = Port::open(here, &config, &RegionSet::new(1)).unwrap();
    let mut all = Anything::default();
    let started = Instant::now();
    let mut connect = |port: &mut Port| {
        let mut peer = Peer::connect(here, &PortConfig::default()).unwrap();
        while !peer.is_ready() {
            port.progress(&mut all);
            peer.tend().unwrap();
            assert!(started.elapsed() < TIMEOUT, "connecting");
        }
        peer
    };
    let hostile = connect(&mut port);
    let link = hostile.link();
    let (over, quiet) = (std::sync::atomic::AtomicBool::new(true), rate(&mut port));
    let ordering = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        over.store(false, ordering);
        let flood = scope.spawn(|| {
            let mut asked = 0_u64;
            while !over.load(ordering) {
                asked += u64::from(link.send(&Message::Wake {}.encode(), &[]).unwrap());
            }
            asked
        });
        // What may accumulate is spent first.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(600) {
            rate(&mut port);
        }
        let mut flooded: Vec<f64> = (0..9).map(|_| rate(&mut port)).collect();
        flooded.sort_by(f64::total_cmp);
        // Connections are still accepted.
        let mut honest = connect(&mut port);
        over.store(true, ordering);
        honest.send(9, 0, &[]).unwrap();
        let (asked, share) = (flood.join().unwrap(), flooded[4] / quiet);
        println!("{asked} messages; {share:.2} of the polls without them");
        assert!(asked > 0);
        assert!(share > 0.5, "{share}");
    });
}
