//! Choosing a doorbell when a program starts.

use std::sync::Once;

use super::{BlueFlame, Doorbell, PlainDoorbell, Wide16};
use crate::values::Capabilities;

/// What is to be done with the doorbell that [`choose`] found: a function that is compiled for each of them, so that nothing is decided
/// per post.
pub trait Choose {
    /// What it gives.
    type Output;

    /// Runs with the doorbell `D`.
    fn with<D: Doorbell>(self) -> Self::Output;
}

/// Runs `program` with the best doorbell that device and CPU have: BlueFlame with the widest stores, or the plain doorbell where BlueFlame
/// does not work. The reason for the latter is logged once.
pub fn choose<C: Choose>(capabilities: &Capabilities, program: C) -> C::Output {
    if let Some(reason) = no_blueflame(capabilities) {
        static LOGGED: Once = Once::new();
        LOGGED.call_once(|| tracing::warn!("plain doorbells are rung, not BlueFlame: {reason}"));
        return program.with::<PlainDoorbell>();
    }
    #[cfg(target_arch = "x86_64")]
    {
        use super::{Direct, Wide32, Wide64, Width};
        if Direct::is_available() {
            return program.with::<BlueFlame<Direct>>();
        }
        if Wide64::is_available() {
            return program.with::<BlueFlame<Wide64>>();
        }
        if Wide32::is_available() {
            return program.with::<BlueFlame<Wide32>>();
        }
    }
    program.with::<BlueFlame<Wide16>>()
}

/// Why a WQE cannot be pushed through the register, if it cannot.
fn no_blueflame(capabilities: &Capabilities) -> Option<&'static str> {
    if !capabilities.blueflame {
        return Some("the device has no BlueFlame registers (QUERY_HCA_CAP: bf)");
    }
    if !capabilities.write_combining {
        return Some("the UAR pages are not mapped write-combining");
    }
    None
}
