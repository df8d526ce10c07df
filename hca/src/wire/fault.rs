//! A wire that misbehaves on demand, the same way for the same seed.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;
use std::str::FromStr;

use thiserror::Error;

use super::Wire;
use crate::engine::Counters;

/// How often outgoing packets come to harm: probabilities from 0 to 1, drawn in the order of the fields.
///
/// Parsed from text such as `drop=0.01,corrupt=0.001,seed=7`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// The packet is lost.
    pub drop: f64,
    /// The packet arrives twice.
    pub duplicate: f64,
    /// The packet is overtaken by up to [`Faults::REORDER_DEPTH`] later ones.
    pub reorder: f64,
    /// One bit of the packet is flipped.
    pub corrupt: f64,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Faults {
    /// Most packets that overtake a held one.
    pub const REORDER_DEPTH: u32 = 4;

    /// Whether packets pass unharmed.
    pub fn is_none(&self) -> bool {
        [self.drop, self.duplicate, self.reorder, self.corrupt].iter().all(|&probability| probability <= 0.0)
    }
}

/// A text that does not describe [`Faults`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultsError {
    /// An item without `=`.
    #[error("'{0}' is not of the form name=value")]
    Form(String),
    /// An unknown name.
    #[error("'{0}' is no fault: use drop, duplicate, reorder, corrupt or seed")]
    Name(String),
    /// A probability that is none.
    #[error("{name}={value}: a probability is a number from 0 to 1")]
    Probability {
        /// Which.
        name: String,
        /// The text given.
        value: String,
    },
    /// A seed that is no integer.
    #[error("seed={0}: a seed is an integer from 0 to 2^64-1")]
    Seed(String),
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| FaultsError::Form(item.to_owned()))?;
            let field = match name {
                "drop" => &mut faults.drop,
                "duplicate" => &mut faults.duplicate,
                "reorder" => &mut faults.reorder,
                "corrupt" => &mut faults.corrupt,
                "seed" => {
                    faults.seed = value.parse().map_err(|_| FaultsError::Seed(value.to_owned()))?;
                    continue;
                }
                _ => return Err(FaultsError::Name(name.to_owned())),
            };
            *field =
                value.parse().ok().filter(|probability| (0.0..=1.0).contains(probability)).ok_or_else(
                    || FaultsError::Probability { name: name.to_owned(), value: value.to_owned() },
                )?;
        }
        Ok(faults)
    }
}

/// The SplitMix64 generator: small, and good enough to pick packets.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// True with `probability`.
    fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what a double holds.
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A packet that others overtake.
#[derive(Debug)]
struct Held {
    /// Packets or flushes that still pass it.
    left: u32,
    to: Ipv4Addr,
    frame: Vec<u8>,
}

/// Harms what is sent through it.
#[derive(Debug)]
pub(crate) struct Faulty<W> {
    inner: W,
    faults: Faults,
    random: SplitMix,
    held: Vec<Held>,
    counted: Counters,
}

impl<W: Wire> Faulty<W> {
    pub(crate) fn new(inner: W, faults: Faults) -> Self {
        let random = SplitMix::new(faults.seed);
        Self { inner, faults, random, held: Vec::new(), counted: Counters::default() }
    }

    /// Lets one packet, or a flush, overtake what is held, and sends what has waited enough.
    fn overtake(&mut self) {
        let Self { inner, held, .. } = self;
        held.retain_mut(|packet| {
            packet.left -= 1;
            if packet.left == 0 {
                inner.send(packet.to, &packet.frame);
            }
            packet.left > 0
        });
    }
}

impl<W: Wire> Wire for Faulty<W> {
    fn send(&mut self, to: Ipv4Addr, frame: &[u8]) {
        if self.random.chance(self.faults.drop) {
            self.counted.fault_dropped += 1;
            return;
        }
        if self.random.chance(self.faults.duplicate) {
            self.counted.fault_duplicated += 1;
            self.inner.send(to, frame);
        }
        if self.random.chance(self.faults.reorder) {
            self.counted.fault_reordered += 1;
            // One more than the packets that overtake: the next `send` counts too.
            let left = 2 + self.random.below(u64::from(Faults::REORDER_DEPTH)) as u32;
            self.held.push(Held { left, to, frame: frame.to_vec() });
        } else if self.random.chance(self.faults.corrupt) && !frame.is_empty() {
            self.counted.fault_corrupted += 1;
            let mut frame = frame.to_vec();
            let byte = self.random.below(frame.len() as u64) as usize;
            frame[byte] ^= 1 << self.random.below(8);
            self.inner.send(to, &frame);
        } else {
            self.inner.send(to, frame);
        }
        self.overtake();
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddrV4> {
        self.inner.receive(frame)
    }

    fn flush(&mut self) {
        // Without this the last packet of a burst would wait for a retransmission.
        self.overtake();
        self.inner.flush();
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn count(&self, counters: &mut Counters) {
        counters.fault_dropped += self.counted.fault_dropped;
        counters.fault_duplicated += self.counted.fault_duplicated;
        counters.fault_reordered += self.counted.fault_reordered;
        counters.fault_corrupted += self.counted.fault_corrupted;
        self.inner.count(counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fabric::{Fabric, FabricPort};

    #[test]
    fn text_gives_faults() {
        let faults: Faults = "drop=0.01, reorder=1,seed=7".parse().unwrap();
        assert_eq!(faults, Faults { drop: 0.01, reorder: 1.0, seed: 7, ..Faults::default() });
        assert!("".parse::<Faults>().unwrap().is_none());
        assert_eq!("drop".parse::<Faults>(), Err(FaultsError::Form("drop".into())));
        assert_eq!("lose=1".parse::<Faults>(), Err(FaultsError::Name("lose".into())));
        assert_eq!("seed=-1".parse::<Faults>(), Err(FaultsError::Seed("-1".into())));
        for value in ["1.5", "-0.1", "NaN", "x"] {
            let error = format!("drop={value}").parse::<Faults>().unwrap_err();
            assert_eq!(error.to_string(), format!("drop={value}: a probability is a number from 0 to 1"));
        }
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
        let faults = Faults { drop: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, seed: 3 };
        let (first, counters) = run(faults.clone(), 1000);
        assert_eq!(run(faults.clone(), 1000), (first.clone(), counters));
        assert_ne!(run(Faults { seed: 4, ..faults }, 1000).0, first);
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
        let (mut got, _) = run(Faults { reorder: 0.3, ..Faults::default() }, 500);
        assert!(!got.is_sorted());
        got.sort_unstable();
        assert!(got.into_iter().eq(0..500));
    }
}
