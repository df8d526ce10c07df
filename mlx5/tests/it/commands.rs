//! How many commands and registrations queue pairs cost.

use crate::recording;

use barewire_mlx5::doorbell::BlueFlame;
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
    let before = (commands.count(), commands.registrations());
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let mut pair =
            RcQueuePair::<BlueFlame>::create(&domain, &uar, &queue, &queue, &config).unwrap();
        pair.connect(&RcPath::to(&pair.address())).unwrap();
        pairs.push(pair);
    }
    assert_eq!(commands.count() - before.0, 4 * PAIRS as usize);
    let registrations = commands.registrations() - before.1;
    assert!(registrations <= 20, "{registrations} registrations for {PAIRS} queue pairs");
}
