//! Reliable connections: the common core of [`rc_mlx5`](super::rc_mlx5) and `rc_verbs`.
//!
//! A domain is one device and one protection domain; an interface has one completion queue for both
//! directions and one pool of registered buffers; an endpoint is one queue pair. The queue pairs have
//! at most as many requests outstanding together as the completion queue has entries
//! (`shares`), so it cannot overrun, which a device does not check.
//!
//! On the wire an active message is a SEND that starts with 4 bytes: a zero, by which a device that
//! matches tags knows a message without a tag, the handler id, and 2 reserved zeros.
//!
//! A transport provides its driver: its queue pair, its completion queue, its receive buffers and
//! its posts. Connecting, flushing, failing, closing and the processing of completions are here.

#![expect(private_bounds, reason = "sealed: the drivers are this crate's own")]

mod address;
mod driver;
mod endpoint;
mod finish;
mod flush;
mod interface;
mod limits;
mod post;
mod progress;
mod shares;
mod sharing;
mod state;

pub(crate) use address::{MASK24, QueueAddress};
#[cfg(feature = "mlx5")]
pub(crate) use address::{Tail, body, port};
pub(crate) use driver::{Created, Driver, Limits, Opened, PORT, Path, Port, Queue, QueueFull};
#[cfg(feature = "mlx5")]
pub(crate) use finish::finish;
pub(crate) use interface::Shared;
pub(crate) use limits::{
    AM_HEADER, AM_ID, BUFFER, DATA, MAX_AM, MAX_AM_HEADER, MAX_ZCOPY, MESSAGE, SEGMENT,
};
#[cfg(feature = "mlx5")]
pub(crate) use post::PooledBuffer;
pub(crate) use post::{am_header, am_prefix};
pub use progress::Progress;
pub(crate) use shares::entries;
pub(crate) use state::{State, WORD};

use std::cell::RefCell;
use std::rc::Rc;

use super::handle;
use crate::base::address::TransportId;

/// One end of a connection: a queue pair. A clone is another handle to the same one.
///
/// Dropping the last handle stops the queue pair: outstanding operations complete as cancelled in
/// the next progress. Flush before the drop if they must arrive.
pub type Endpoint<D> = handle::Endpoint<D>;
/// A handle to an open interface. A clone is another handle to the same one.
pub type Interface<D> = handle::Interface<D>;

impl<D: Driver> handle::States for D {
    const ID: TransportId = D::ID;
    type Shared = Shared<D>;
    type State = State<D>;
    type Endpoints = RefCell<Vec<Rc<State<D>>>>;
}

/// Returns the length of the message in a receive of `bytes` bytes, without the transport's header.
/// If there is no whole header, the result exceeds [`MAX_AM`], so that one test finds messages that
/// are too short or too long.
#[inline(always)]
pub(crate) fn am_length(bytes: u32) -> usize {
    bytes.wrapping_sub(AM_HEADER as u32) as usize
}
