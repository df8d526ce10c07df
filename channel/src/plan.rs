//! How the queues of each rail are made: for the handshake, and again after a failure.

use std::time::Duration;

use barewire_layouts::command::capability::PortType;
use barewire_mlx5::Error as DeviceError;

use crate::config::Config;
use crate::handshake::message::QueuePairs;
use crate::queues::{Queues, Role};
use crate::rails::{Rail, RailInfo, Rails};

/// The default of NCCL (`NCCL_IB_AR_THRESHOLD`).
const ADAPTIVE_FROM: u64 = 8192;

/// A rail of the channel, as one end sees it.
#[derive(Clone, Debug)]
pub(crate) struct Partner {
    /// Number of this end's rail in its set.
    pub(crate) ours: usize,
    /// Number of the peer's rail in the peer's set.
    pub(crate) theirs: usize,
    /// The peer's rail.
    pub(crate) remote: RailInfo,
    /// What the rail carries in proportion to the others.
    pub(crate) weight: u32,
    /// Whether it carries messages only while others do not work.
    pub(crate) is_standby: bool,
}

/// What both ends have agreed on about the rails of a channel.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    rails: Rails,
    config: Config,
    role: Role,
    pairs: usize,
    /// By place.
    partners: Vec<Partner>,
}

impl Plan {
    pub(crate) fn new(
        rails: &Rails,
        config: &Config,
        role: Role,
        pairs: usize,
        partners: Vec<Partner>,
    ) -> Self {
        Self { rails: rails.clone(), config: config.clone(), role, pairs, partners }
    }

    pub(crate) fn rails(&self) -> &Rails {
        &self.rails
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// How long the rails are tried while none of them works: as long as a channel of one rail,
    /// which is over then, retries an operation. A receiver waits twice as long, so that it is the
    /// sender that stops.
    pub(crate) fn survival(&self) -> Duration {
        let Config { ack_timeout, retry_count, timeout, .. } = self.config;
        let once = match ack_timeout {
            // Without end.
            0 => timeout,
            exponent => Duration::from_nanos(4096 << exponent.min(31)),
        };
        match (self.partners.len(), self.role) {
            (..=1, _) => Duration::ZERO,
            (_, Role::Sender) => timeout.min(once * (1 + u32::from(retry_count))),
            (_, Role::Receiver) => timeout.min(once * 2 * (1 + u32::from(retry_count))),
        }
    }

    /// Shortest message whose immediate comes with its length: see [`Config::adaptive_from`].
    pub(crate) fn adaptive_from(&self) -> u64 {
        let is_infiniband = |partner: &Partner| partner.remote.port_type == PortType::InfiniBand;
        match self.config.adaptive_from {
            Some(length) => length,
            None if self.partners.iter().any(is_infiniband) => ADAPTIVE_FROM,
            None => u64::MAX,
        }
    }

    /// Queue pairs of each rail.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs
    }

    /// Rails of the channel.
    pub(crate) fn places(&self) -> usize {
        self.partners.len()
    }

    /// The rail at `place`, if there is one.
    pub(crate) fn rail(&self, place: usize) -> Option<&Rail> {
        self.rails.rails().get(self.partners.get(place)?.ours)
    }

    /// The peer's rail at `place`, if there is one.
    pub(crate) fn remote(&self, place: usize) -> Option<&RailInfo> {
        self.partners.get(place).map(|partner| &partner.remote)
    }

    /// Creates the queues of a place; `None` if there is no such place.
    pub(crate) fn create(&self, place: usize) -> Option<Result<Queues, DeviceError>> {
        let partner = self.partners.get(place)?;
        Some(Queues::create((place, partner), self.rail(place)?, self, self.role))
    }

    /// Sorts the queues so that those in use come first, and returns their number. A standby rail
    /// is in use for each other rail that does not work. Both ends get the same result, as soon as
    /// both know which rails work.
    pub(crate) fn select(&self, queues: &mut [Queues]) -> usize {
        queues.sort_by_key(|queues| (queues.is_standby(), queues.place()));
        let wanted = self.partners.iter().filter(|partner| !partner.is_standby).count();
        wanted.min(queues.len())
    }

    /// Connects queues to `pairs` of the peer.
    pub(crate) fn connect(
        &self,
        queues: &mut Queues,
        pairs: &QueuePairs,
    ) -> Result<(), DeviceError> {
        let Some(Partner { remote, .. }) = self.partners.get(queues.place()) else { return Ok(()) };
        let timeout = match self.partners.len() {
            1 => self.config.ack_timeout,
            _ => self.config.fail_over_timeout,
        };
        queues.connect(remote, pairs, &self.config, timeout)
    }
}
