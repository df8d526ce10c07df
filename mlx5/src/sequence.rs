//! Packet sequence numbers (PSN): where connections start.

use std::hash::{BuildHasher, RandomState};

/// Returns a random number of 24 bits at which a queue pair starts to send. See
/// [`RcQueuePair::address`](crate::RcQueuePair::address).
pub(crate) fn start() -> u32 {
    // The hasher's keys come from the kernel's random source.
    RandomState::new().hash_one(std::process::id()) as u32 & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_fill_24_bits_and_differ() {
        let all: Vec<u32> = (0..256).map(|_| start()).collect();
        let (ones, zeros) = all.iter().fold((0, 0), |(ones, zeros), n| (ones | n, zeros | !n));
        assert_eq!((ones, zeros & 0xff_ffff), (0xff_ffff, 0xff_ffff));
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        // Two of 256 are equal with a probability of 0.2 %, three pairs with less than 2e-9.
        assert!(different.len() > 253, "{}", different.len());
    }
}
