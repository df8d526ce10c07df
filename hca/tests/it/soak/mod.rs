//! Random operations over RC, XRC, DC, UC and UD under random faults, with private and shared
//! receive queues, compared with a copy of the memory to which they are applied in order. Of an
//! initiator with streams, some requests fail, and only their streams with them.
//!
//! Stepped devices and seeds: whatever fails, fails again. `BAREWIRE_HCA_SOAK_SEEDS` sets how many
//! seeds run, and `BAREWIRE_HCA_SOAK_FIRST` the first, to run one again.

mod paging;
mod reliable;
mod unreliable;

use barewire_hca::{Config, Fabric, Faults, Mode, ObjectCounts, Strict, WireKind};
use barewire_layouts::command::qp::ServiceType;
use fastrand::Rng;

pub(crate) use self::reliable::receiver;
use self::reliable::{Kind, Reliable};
use self::unreliable::Unreliable;
use crate::support::Node;
use crate::support::srq::Shape;

/// Seeds of an ordinary run.
const SEEDS: u64 = 1000;
/// Operations on each queue pair.
const OPERATIONS: usize = 60;
/// Bytes of each memory.
const SIZE: usize = 8192;
/// Longest transfer: several packets of 256 bytes.
const LONGEST: usize = 1500;
const SHAPES: [Shape; 4] = [Shape::Srq, Shape::List, Shape::Cyclic, Shape::Basic];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Faults of up to a tenth each.
fn faults(random: &mut Rng, seed: u64) -> Faults {
    let mut chance = || [0.0, 0.0, 0.02, 0.05][random.usize(..4)];
    Faults::default()
        .drop(chance())
        .duplicate(chance())
        .reorder(chance())
        .corrupt(chance())
        .delay(chance())
        .delay_us(40)
        .flap(chance() / 20.0)
        .flap_us(200)
        .seed(seed)
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Messages without acknowledgment.
    sent: usize,
    arrived: usize,
    /// Requests of streams in error.
    refused: usize,
}

/// One seed.
fn run(seed: u64) -> Counts {
    let context = format!("BAREWIRE_HCA_SOAK_FIRST={seed} BAREWIRE_HCA_SOAK_SEEDS=1");
    let mut random = Rng::with_seed(seed);
    let fabric = Fabric::new();
    // Sometimes there is room for one dynamic connection only.
    let dynamic_connections = [1, 4096][random.usize(..2)];
    let [a, b] = [seed, !seed].map(|seed| {
        Node::open(
            Config::default()
                .mode(Mode::Stepped)
                .wire(WireKind::Fabric(fabric.clone()))
                .faults(faults(&mut random, seed))
                .strict(Strict::Panic)
                .dynamic_connections(dynamic_connections),
        )
    });
    let kinds = [Kind::Rc, Kind::RcShared, Kind::Xrc, Kind::Dc, Kind::DcStreams, Kind::DcStreams];
    let mut reliable: Vec<_> = (0..)
        .zip(kinds)
        .map(|(number, kind)| Reliable::new(a.clone(), b.clone(), kind, seed << 3 | number))
        .collect();
    let shape = Some(seed as usize & 3);
    let mut unreliable =
        [(ServiceType::Uc, None), (ServiceType::Ud, None), (ServiceType::Ud, shape)]
            .map(|(service, shape)| Unreliable::new(a.clone(), b.clone(), service, shape));
    for _ in 0..OPERATIONS {
        for one in &mut reliable {
            one.post(&mut random);
        }
        let one = &mut unreliable[random.usize(..3)];
        one.post(&mut random);
        // Sometimes much is on its way, sometimes nothing.
        let passes = [0, 1, 5, 40][random.usize(..4)];
        one.pair.step(passes);
        // A ring holds 64 WQEBBs and 32 receive WQEs.
        if random.usize(..8) == 0 {
            one.pair.settle();
        }
        for one in &mut reliable {
            one.check(&context);
            one.reset_a_stream(&context);
        }
        if reliable
            .iter()
            .any(|one| one.posted.len() > 20 || one.inboxes.len() - one.arrived() > 20)
        {
            reliable[0].pair.settle();
        }
        for one in &mut unreliable {
            one.check(&context);
        }
    }
    reliable[0].pair.settle();
    for one in &mut reliable {
        one.finish(&context);
    }
    for one in &mut unreliable {
        one.check(&context);
    }
    let counts = Counts {
        sent: unreliable.iter().map(|one| one.sent.len()).sum(),
        arrived: unreliable.iter().map(|one| one.arrived).sum(),
        refused: reliable.iter().map(|one| one.refused).sum(),
    };
    for one in &reliable {
        a.destroy_key(one.local.key);
        b.destroy_key(one.remote.key);
    }
    for one in &unreliable {
        a.destroy_key(one.local.key);
        b.destroy_key(one.inbox.key);
    }
    drop((reliable, unreliable));
    for node in [a, b] {
        let left = ObjectCounts { protection_domains: 1, uar_pages: 1, ..ObjectCounts::default() };
        assert_eq!(node.device.objects(), left, "{context}: objects are left");
    }
    counts
}

#[test]
fn no_byte_differs_and_every_operation_completes_once() {
    let first = variable("BAREWIRE_HCA_SOAK_FIRST").unwrap_or(0);
    let seeds = variable("BAREWIRE_HCA_SOAK_SEEDS").unwrap_or(SEEDS);
    let mut sum = Counts::default();
    for seed in first..first.saturating_add(seeds) {
        let Counts { sent, arrived, refused } = run(seed);
        sum.sent += sent;
        sum.arrived += arrived;
        sum.refused += refused;
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(seeds < 20 || sum.arrived * 2 > sum.sent && sum.refused > 0, "{sum:?}");
}

#[test]
fn a_seed_gives_the_same_run() {
    assert_eq!(run(5), run(5));
}
