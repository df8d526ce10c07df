//! Ordered, reliable delivery over datagrams that may be lost, duplicated, reordered or delayed.
//! The module is independent of devices, memory and clocks: the caller passes in the time and
//! packets of its own types (`S` sent, `R` received), and asks what to do next.
//!
//! Every packet begins with a [`Header`]. Each end numbers its messages from zero. The header has
//! the number up to which its sender has received all messages (cumulative acknowledgement); a
//! separate packet has those beyond it (selective acknowledgement). At most [`WINDOW`] messages are
//! in flight. A message is sent again when three later ones have arrived, or when it is not
//! acknowledged in time. The number of messages in flight follows the losses: one more for each
//! round trip, half after a loss (AIMD).
//!
//! There is no thread: timers are deadlines that the caller's progress checks.

mod congestion;
mod connect;
mod packet;
mod receiver;
mod round_trip;
mod sender;
mod sequence;
#[cfg(test)]
mod simulation;

pub(super) use connect::{Claim, Directory, Requesting};
pub(super) use packet::{ACK_NOW, Acknowledged, HEADER, Header, Kind, Request};
pub(super) use receiver::{Accepted, Receiver};
pub(super) use sender::{Overdue, Patience, Sender};
pub(super) use sequence::Sequence;

/// Most messages in flight; also the most that a receiver holds because they came too early.
pub(super) const WINDOW: u32 = 64;

/// Nanoseconds since an arbitrary moment.
pub(super) type Time = u64;

/// Time between two checks of the timers.
pub(super) const TICK: Time = 1_000_000;
