//! The number of descriptors that this process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of descriptors (`RLIMIT_NOFILE`) to `needed`, if it is lower.
///
/// # Errors
/// Returns the hard limit if that is too low.
pub fn ensure(needed: u64) -> Result<(), u64> {
    let limits = getrlimit(Resource::Nofile);
    if limits.current.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), ..limits };
    match limits.maximum {
        Some(hard) if hard < needed => Err(hard),
        _ => setrlimit(Resource::Nofile, raised).map_err(|_| limits.current.unwrap_or(u64::MAX)),
    }
}
