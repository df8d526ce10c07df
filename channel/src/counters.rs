//! What went over each rail.

use barewire_mlx5::Enhancements;

/// What one end of a channel has sent or received over a rail, since the channel was connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailCounters {
    /// Name of this end's rail.
    pub rail: String,
    /// Shares of messages: those that a sender has posted, or that have arrived at a receiver. What
    /// a rail carries of a group of several buffers counts as one share. A share that is written
    /// again after a failure counts again at the sender. A receiver counts modulo 2^32 for each
    /// queue pair.
    pub shares: u64,
    /// How often the rail was lost while it worked, in use or on standby.
    pub losses: u64,
    /// The enhancements (ECE) that both ends of the rail use; none while it does not work.
    pub enhancements: Enhancements,
    /// Whether it is in use: a rail that has failed is not, nor a standby rail that replaces none.
    pub in_use: bool,
}
