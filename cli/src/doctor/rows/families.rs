//! The families of objects, each through the device to itself.

use std::time::Instant;

use barewire_mlx5::Family;

use super::super::outcome::{Checked, Halt};
use super::super::target::Target;

/// Tests a family that the device has.
pub(in super::super) fn family(target: &Target, family: Family) -> Checked {
    let context = target.context()?;
    if !family.is_offered(context.capabilities()) {
        let reason = "the device reports none, or was set up without DEVX";
        return Err(Halt::Skipped(format!("{reason}; {}", family.fallback())));
    }
    let start = Instant::now();
    context.test_now(family).map_err(|error| {
        let Halt::Failed(reason) = Halt::from(error) else { return Halt::failed("it was skipped") };
        Halt::failed(format!("{reason}; {}", family.fallback()))
    })?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    Ok(format!("created, connected and used through the device to itself in {time:.1} ms"))
}
