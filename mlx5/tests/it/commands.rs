//! How many commands and registrations queues cost, and how large the registrations are.

use crate::recording;

use barewire_mlx5::doorbell::BlueFlame;
use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
use barewire_mlx5::{
    CompletionQueue, Context, ProtectionDomain, RcConfig, RcPath, RcQueuePair, Uar,
};

/// A queue pair needs CREATE_QP and three transitions. Rings and doorbell records of many are parts of
/// a few registrations.
#[test]
fn a_queue_pair_is_connected_with_four_commands() {
    const PAIRS: u32 = 128;
    let (channel, commands) = recording::Recording::new();
    let context = Context::open(channel).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let queue = CompletionQueue::create(&context, &uar, 128 * 1024).unwrap();
    let config = RcConfig::default().send_blocks(256).receive_entries(16);
    let before = (commands.count(), commands.registrations().len());
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let mut pair =
            RcQueuePair::<BlueFlame>::create(&domain, &uar, &queue, &queue, &config).unwrap();
        pair.connect(&RcPath::to(&pair.address())).unwrap();
        pairs.push(pair);
    }
    assert_eq!(commands.count() - before.0, 4 * PAIRS as usize);
    let registrations = commands.registrations().len() - before.1;
    assert!(registrations <= 20, "{registrations} registrations for {PAIRS} queue pairs");
}

/// The kernel divides a registration into the largest pages that divide its length. A doorbell
/// record behind the ring would leave the smallest.
#[test]
fn the_ring_of_a_queue_is_a_registration_of_its_own() {
    let (channel, commands) = recording::Recording::new();
    let context = Context::open(channel).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let _queue = CompletionQueue::create(&context, &uar, 64 * 1024).unwrap();
    let _shared = SharedReceiveQueue::<List>::create(&domain, 4096, 1).unwrap();
    let registrations = commands.registrations();
    for length in [64 * 64 * 1024, 32 * 4096] {
        assert!(registrations.contains(&length), "{length}: {registrations:?}");
    }
}
