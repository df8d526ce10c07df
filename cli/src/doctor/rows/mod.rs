//! What the rows check.

pub(super) mod atomics;
pub(super) mod data;
pub(super) mod device;
pub(super) mod errors;
pub(super) mod events;
pub(super) mod families;
pub(super) mod host;
pub(super) mod limits;
pub(super) mod memory;
pub(super) mod peer;
pub(super) mod queues;

use super::outcome::Checked;
use super::target::Target;
use crate::session::Session;

/// Connects an endpoint of the target's transport to itself, or to another one of its interface.
fn session(target: &Target) -> Checked<Session<'static>> {
    Ok(Session::loopback(target.transport()?, &target.device)?)
}

/// Bytes that differ from their neighbours and from run to run of `seed`.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at + seed) % 251) as u8).collect()
}
