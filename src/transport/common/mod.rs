//! What transports share: whether an endpoint accepts posts, requests that wait for room, buffers,
//! operations in flight, handlers.

pub(crate) mod allocation;
pub(crate) mod copy;
pub(crate) mod gate;
pub(crate) mod handle;
pub(crate) mod handlers;
pub(crate) mod operation;
pub(crate) mod peers;
pub(crate) mod pending;
pub(crate) mod pieces;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod registered;
