//! A wire with injected faults, the same for the same seed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use super::Wire;
use crate::counters::Counters;

/// Maximum duration of a fault.
pub(super) const LONGEST_US: u64 = 60_000_000;
/// Default duration of a fault.
const DEFAULT_US: u64 = 1000;
/// Maximum number of packets held back; more are sent at once.
const HELD: usize = 4096;

barewire_layouts::with_setters! {
    /// Faults of outgoing packets: probabilities from 0 to 1, drawn in the order of the fields.
    ///
    /// Parsed from text such as `drop=0.01,corrupt=0.001,seed=7`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Faults {
        /// The packet is lost.
        pub drop: f64,
        /// The packet arrives twice.
        pub duplicate: f64,
        /// The packet is overtaken by up to [`Faults::REORDER_DEPTH`] later packets.
        pub reorder: f64,
        /// One bit of the packet is flipped.
        pub corrupt: f64,
        /// The packet is sent [`Faults::delay_us`] later.
        pub delay: f64,
        /// The link goes down for [`Faults::flap_us`]: packets in either direction are lost.
        pub flap: f64,
        /// Delay of a delayed packet in microseconds; 0 means 1000.
        pub delay_us: u64,
        /// Duration of a link failure in microseconds; 0 means 1000.
        pub flap_us: u64,
        /// Time that the device takes to move the bytes of a packet, in microseconds: slow memory.
        /// 0 means none.
        pub slow_dma_us: u64,
        /// After this many completions, the completion queue with the lowest number that has
        /// entries overruns. 0 means never.
        pub cq_overrun_after: u64,
        /// After this many completions the device breaks down. 0 means never.
        pub fatal_after: u64,
        /// Seed of the random numbers.
        pub seed: u64,
    }
}

impl Faults {
    /// Maximum number of packets that overtake a held one.
    pub const REORDER_DEPTH: u32 = 4;

    /// Returns whether no packet can be affected.
    pub fn is_none(&self) -> bool {
        let Self { drop, duplicate, reorder, corrupt, delay, flap, .. } = *self;
        [drop, duplicate, reorder, corrupt, delay, flap]
            .iter()
            .all(|&probability| probability <= 0.0)
    }
}

/// The SplitMix64 generator: sufficient to select packets.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// Returns true with `probability`.
    fn chance(&mut self, probability: f64) -> bool {
        // A double holds 53 bits.
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A packet that is overtaken or delayed.
#[derive(Debug)]
struct Held {
    until: Until,
    to: IpAddr,
    class: u8,
    frame: Vec<u8>,
}

/// How long a packet is held back.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// For this many packets or flushes.
    Overtaken(u32),
    /// Until this time.
    Time(u64),
}

/// Injects faults into sent packets, and takes the link down.
#[derive(Debug)]
pub(crate) struct Faulty<W> {
    inner: W,
    faults: Faults,
    /// Whether any packet can be affected.
    harmful: bool,
    /// The traffic class of frames to be sent.
    class: u8,
    random: SplitMix,
    held: Vec<Held>,
    now: u64,
    /// Whether the link was taken down by a call.
    cut: bool,
    /// When the link comes up again.
    down_until: Option<u64>,
    counted: Counters,
}

/// Returns a fault's duration in nanoseconds.
fn nanoseconds(microseconds: u64) -> u64 {
    1000 * if microseconds == 0 { DEFAULT_US } else { microseconds.min(LONGEST_US) }
}

impl<W: Wire> Faulty<W> {
    pub(crate) fn new(inner: W, faults: Faults) -> Self {
        let (random, harmful) = (SplitMix::new(faults.seed), !faults.is_none());
        let (held, counted) = (Vec::new(), Counters::default());
        Self {
            inner,
            faults,
            harmful,
            class: 0,
            random,
            held,
            now: 0,
            cut: false,
            down_until: None,
            counted,
        }
    }

    /// Lets a packet or a flush overtake the held ones, and sends those that are due.
    fn overtake(&mut self) {
        let Self { inner, held, now, class, .. } = self;
        held.retain_mut(|packet| {
            let stays = match &mut packet.until {
                Until::Overtaken(left) => {
                    *left -= 1;
                    *left > 0
                }
                Until::Time(time) => *time > *now,
            };
            if !stays {
                inner.set_class(packet.class);
                inner.send(packet.to, &packet.frame);
                inner.set_class(*class);
            }
            stays
        });
    }

    fn hold(&mut self, until: Until, to: IpAddr, frame: &[u8]) {
        self.held.push(Held { until, to, class: self.class, frame: frame.to_vec() });
    }

    fn harm(&mut self, to: IpAddr, frame: &[u8]) {
        if self.random.chance(self.faults.drop) {
            self.counted.fault_dropped += 1;
            return;
        }
        if self.random.chance(self.faults.duplicate) {
            self.counted.fault_duplicated += 1;
            self.inner.send(to, frame);
        }
        if self.random.chance(self.faults.reorder) && self.held.len() < HELD {
            self.counted.fault_reordered += 1;
            // One more than the packets that overtake it, since the next `send` counts too.
            let left = 2 + self.random.below(u64::from(Faults::REORDER_DEPTH)) as u32;
            self.hold(Until::Overtaken(left), to, frame);
        } else if self.random.chance(self.faults.corrupt) && !frame.is_empty() {
            self.counted.fault_corrupted += 1;
            let mut frame = frame.to_vec();
            let byte = self.random.below(frame.len() as u64) as usize;
            frame[byte] ^= 1 << self.random.below(8);
            self.inner.send(to, &frame);
        } else if self.random.chance(self.faults.delay) && self.held.len() < HELD {
            self.counted.fault_delayed += 1;
            self.hold(Until::Time(self.now + nanoseconds(self.faults.delay_us)), to, frame);
        } else {
            self.inner.send(to, frame);
        }
        if self.random.chance(self.faults.flap) {
            self.counted.fault_flaps += 1;
            self.down_until = Some(self.now + nanoseconds(self.faults.flap_us));
        }
        self.overtake();
    }
}

impl<W: Wire> Wire for Faulty<W> {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        if !self.is_link_up() {
            self.counted.link_dropped += 1;
        } else if self.harmful {
            self.harm(to, frame);
        } else {
            self.inner.send(to, frame);
        }
    }

    fn set_class(&mut self, class: u8) {
        self.class = class;
        self.inner.set_class(class);
    }

    fn class(&self) -> u8 {
        self.inner.class()
    }

    fn group(&self) -> Option<IpAddr> {
        self.inner.group()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        while !self.is_link_up() {
            self.inner.receive(frame)?;
            self.counted.link_dropped += 1;
        }
        self.inner.receive(frame)
    }

    fn tick(&mut self, now: u64) {
        self.now = now;
        self.down_until = self.down_until.filter(|&until| until > now);
        self.inner.tick(now);
    }

    fn deadline(&self) -> Option<u64> {
        let held = self.held.iter().filter_map(|packet| match packet.until {
            Until::Time(time) => Some(time),
            Until::Overtaken(_) => None,
        });
        held.chain(self.down_until).chain(self.inner.deadline()).min()
    }

    fn is_holding(&self) -> bool {
        self.held.iter().any(|packet| matches!(packet.until, Until::Overtaken(_)))
    }

    fn set_link(&mut self, up: bool) {
        self.cut = !up;
    }

    fn is_link_up(&self) -> bool {
        !self.cut && self.down_until.is_none()
    }

    fn flush(&mut self) {
        // Otherwise the last packet of a burst would wait for a retransmission.
        if !self.held.is_empty() {
            self.overtake();
        }
        self.inner.flush();
    }

    fn take_link_command(&mut self) -> Option<bool> {
        self.inner.take_link_command()
    }

    fn is_full(&self) -> bool {
        self.inner.is_full()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn rest(&mut self) -> bool {
        self.inner.rest()
    }

    fn count(&self, counters: &mut Counters) {
        counters.fault_dropped += self.counted.fault_dropped;
        counters.fault_duplicated += self.counted.fault_duplicated;
        counters.fault_reordered += self.counted.fault_reordered;
        counters.fault_corrupted += self.counted.fault_corrupted;
        counters.fault_delayed += self.counted.fault_delayed;
        counters.fault_flaps += self.counted.fault_flaps;
        counters.link_dropped += self.counted.link_dropped;
        self.inner.count(counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fabric::{Fabric, FabricPort};

    #[test]
    fn a_delayed_packet_waits_for_its_time_and_a_cut_link_for_nothing() {
        let fabric = Fabric::new();
        let mut receiver = fabric.attach(None).unwrap();
        let faults = Faults::default().delay(1.0).delay_us(5);
        let mut sender = Faulty::new(fabric.attach(None).unwrap(), faults);
        let mut frame = Vec::new();
        sender.tick(1000);
        sender.send(receiver.address(), b"late");
        assert_eq!(sender.deadline(), Some(6000));
        for (now, arrives) in [(5999, false), (6000, true)] {
            sender.tick(now);
            sender.flush();
            assert_eq!(receiver.receive(&mut frame).is_some(), arrives);
        }
        assert_eq!(sender.deadline(), None);
        sender.set_link(false);
        sender.send(receiver.address(), b"lost");
        sender.set_link(true);
        assert!(sender.deadline().is_none() && receiver.receive(&mut frame).is_none());
        let mut counters = Counters::default();
        sender.count(&mut counters);
        assert_eq!((counters.fault_delayed, counters.link_dropped), (1, 1));
    }

    fn run(faults: Faults, frames: u32) -> (Vec<u32>, Counters) {
        let fabric = Fabric::new();
        let mut receiver = fabric.attach(None).unwrap();
        let mut sender: Faulty<FabricPort> = Faulty::new(fabric.attach(None).unwrap(), faults);
        for number in 0..frames {
            sender.send(receiver.address(), &number.to_be_bytes());
        }
        (0..8).for_each(|_| sender.flush());
        let (mut got, mut frame) = (Vec::new(), Vec::new());
        while receiver.receive(&mut frame).is_some() {
            got.push(u32::from_be_bytes(frame[..].try_into().unwrap()));
        }
        let mut counters = Counters::default();
        sender.count(&mut counters);
        (got, counters)
    }

    #[test]
    fn the_same_seed_does_the_same_harm() {
        let faults = Faults::default().drop(0.1).duplicate(0.1).reorder(0.1).corrupt(0.1).seed(3);
        let (first, counters) = run(faults.clone(), 1000);
        assert_eq!(run(faults.clone(), 1000), (first.clone(), counters));
        assert_ne!(run(faults.seed(4), 1000).0, first);
        assert_eq!(first.len() as u64, 1000 - counters.fault_dropped + counters.fault_duplicated);
        for count in [
            counters.fault_dropped,
            counters.fault_duplicated,
            counters.fault_reordered,
            counters.fault_corrupted,
        ] {
            assert!((50..200).contains(&count), "{counters:?}");
        }
    }

    #[test]
    fn reordering_loses_nothing() {
        let (mut got, _) = run(Faults::default().reorder(0.3), 500);
        assert!(!got.is_sorted());
        got.sort_unstable();
        assert!(got.into_iter().eq(0..500));
    }
}
