//! Connecting queue pairs to those of the peer.

use barewire_mlx5::{Enhancements, Error as DeviceError, RcAddress, RcPath};

use super::Queues;
use crate::config::Config;
use crate::handshake::message::{End, QueuePairs};
use crate::rails::RailInfo;

impl Queues {
    /// The queue pairs, for the peer.
    pub(crate) fn ends(&self) -> QueuePairs {
        let end = |address: RcAddress| End { number: address.number, psn: address.psn };
        let ends = self.pairs().map(|pair| end(pair.queues.address())).collect();
        QueuePairs { ends, enhancements: self.enhancements }
    }

    /// The enhancements that the device supports, or has accepted if the queue pairs are connected.
    pub(crate) fn enhancements(&self) -> Enhancements {
        self.enhancements
    }

    /// Reports an end whose device uses other enhancements than the peer, whose device had accepted
    /// `theirs`. Called at the end that connects last.
    pub(crate) fn check_enhancements(&self, theirs: Enhancements) {
        if self.enhancements != theirs {
            let (rail, ours) = (self.place, self.enhancements);
            tracing::warn!(rail, %ours, %theirs, "the ends of a rail use different enhancements");
        }
    }

    /// Connects the queue pairs to those of the peer, in order.
    pub(crate) fn connect(
        &mut self,
        remote: &RailInfo,
        peer: &QueuePairs,
        config: &Config,
        timeout: u8,
    ) -> Result<(), DeviceError> {
        // Without them at one end, neither uses any. Otherwise the device selects those of the peer
        // that it supports.
        let enhancements =
            if self.enhancements.is_none() { Enhancements::NONE } else { peer.enhancements };
        let (port, mtu) = (remote.address, remote.mtu);
        for (pair, &End { number, psn }) in self.pairs_mut().zip(&peer.ends) {
            let path = RcPath::to(&RcAddress { port, number, psn, mtu })
                .ack_timeout(timeout)
                .retry_count(config.retry_count)
                .traffic_class(config.traffic_class)
                .service_level(config.service_level)
                .enhancements(enhancements);
            pair.queues.connect(&path)?;
            pair.remote = number;
        }
        self.enhancements = common(self.pairs().map(|pair| pair.queues.accepted_enhancements()));
        Ok(())
    }
}

/// What all of these have in common.
pub(super) fn common(all: impl Iterator<Item = Enhancements>) -> Enhancements {
    all.reduce(Enhancements::common).unwrap_or_default()
}
