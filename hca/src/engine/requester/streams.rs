//! Streams of a DC initiator: requests of one fail together, and the other streams go on.
//!
//! A WQE names its stream by any number of 16 bits, which selects one of the initiator's channels.
//! An initiator without streams has one channel, whose first error moves it to the error state.
//! Requests of all streams execute in the order of the ring. A channel has a connection for itself,
//! so that no request of another is in flight when one fails.

use std::collections::BTreeSet;

use crate::object::StreamLimits;

/// The channels of an initiator, and which of them are in error.
#[derive(Debug, Default)]
pub(in crate::engine) struct Streams {
    limits: StreamLimits,
    failed: BTreeSet<u16>,
}

impl Streams {
    pub(super) fn new(limits: StreamLimits) -> Self {
        Self { limits, failed: BTreeSet::new() }
    }

    /// Records the failure of a channel. Returns whether the initiator survives it.
    pub(super) fn fail(&mut self, channel: u16) -> bool {
        self.failed.insert(channel);
        self.failed.len() < self.limits.most_failed()
    }

    /// Returns whether requests of a channel are flushed.
    pub(super) fn has_failed(&self, channel: u16) -> bool {
        self.failed.contains(&channel)
    }

    /// Ends the error state of the channel of `stream`. Returns `false` if it is not in error.
    pub(in crate::engine) fn reset(&mut self, stream: u16) -> bool {
        self.failed.remove(&self.limits.channel(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_channel_of_the_limit_is_fatal() {
        let mut streams = Streams::new(StreamLimits { log_channels: 2, log_failed: 1 });
        assert!(streams.fail(3) && streams.fail(3) && streams.has_failed(3));
        assert!(!streams.reset(2) && streams.reset(7) && !streams.has_failed(3));
        assert!(streams.fail(0) && !streams.fail(1));
    }

    #[test]
    fn without_streams_the_first_error_is_fatal() {
        let mut streams = Streams::new(StreamLimits::default());
        assert_eq!(StreamLimits::default().channel(0xffff), 0);
        assert!(!streams.fail(0));
    }

    #[test]
    fn an_initiator_may_survive_all_its_channels() {
        let mut streams = Streams::new(StreamLimits { log_channels: 1, log_failed: 2 });
        assert!(streams.fail(0) && streams.fail(1));
    }
}
