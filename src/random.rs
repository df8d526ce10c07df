//! Numbers that two processes are not likely to pick both. Not for secrets.

use std::hash::{BuildHasher, RandomState};

pub(crate) fn number() -> u64 {
    // The hasher's keys come from the system.
    RandomState::new().hash_one(std::process::id())
}
