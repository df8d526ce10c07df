//! Selects a doorbell when a program starts.

use std::sync::Once;

use super::{BlueFlame, Doorbell, PlainDoorbell, Wide16};
use crate::values::Capabilities;

/// What to do with the doorbell that [`choose`] selected: a function that is compiled for each
/// doorbell type, so that no post has to test the type.
pub trait Choose {
    /// The result of the function.
    type Output;

    /// Runs the function with the doorbell `D`.
    fn with<D: Doorbell>(self) -> Self::Output;
}

/// Runs `program` with the best doorbell that the device and the CPU support: BlueFlame with the
/// widest stores, or the plain doorbell if BlueFlame does not work. The reason for the latter is
/// logged once.
pub fn choose<C: Choose>(capabilities: &Capabilities, program: C) -> C::Output {
    if let Some(reason) = no_blueflame(capabilities) {
        static LOGGED: Once = Once::new();
        LOGGED.call_once(|| {
            tracing::warn!("plain doorbells are used instead of BlueFlame: {reason}");
        });
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

/// The reason why a WQE cannot be written to the register, if it cannot.
fn no_blueflame(capabilities: &Capabilities) -> Option<&'static str> {
    if !capabilities.blueflame {
        return Some("the device has no BlueFlame registers (QUERY_HCA_CAP: bf)");
    }
    if !capabilities.write_combining {
        return Some("the UAR pages are not mapped write-combining");
    }
    None
}
