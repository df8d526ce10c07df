//! Tests that measure the whole process: its device threads, its CPU time, its allocated memory.
//!
//! They are a binary of their own, and each holds [`alone`] while it runs, so that no other test of
//! the same process changes what they measure.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod life;
mod scale;
#[path = "../support/mod.rs"]
mod support;
mod wake;

/// Waits until no other test of this binary runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
