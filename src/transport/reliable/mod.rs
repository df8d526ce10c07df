//! Ordered, reliable delivery over datagrams that may be lost, doubled, reordered and late. It knows no device, no memory and no clock: who
//! uses it gives it packets of their own kinds (`S` sent, `R` received) to hold, the time, and asks what is to be done.
//!
//! Every packet begins with a [`Header`]. A message has a number, counted from zero at each end; the header says up to which number its
//! sender has everything of the other side (cumulative acknowledgement), and a packet of its own tells what it has beyond (selective). At most
//! [`WINDOW`] messages are on their way. One that is overtaken by three later ones, or not acknowledged in time, is sent again. How many
//! may be on their way at once follows the losses: one more for each round trip, half after a loss (AIMD).
//!
//! There is no thread: timers are deadlines, and whoever has progress looks at them.

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

/// Messages on their way at once, at most; also what a receiver holds that came too early.
pub(super) const WINDOW: u32 = 64;

/// Nanoseconds since some moment.
pub(super) type Time = u64;

/// Between looks at the timers.
pub(super) const TICK: Time = 1_000_000;
