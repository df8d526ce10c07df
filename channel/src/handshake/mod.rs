//! Connecting two ends: a handle, a listener, a connector, and the messages between them.
//!
//! No call waits, and every state has a deadline. The peer is authenticated by `barewire-tcp`
//! before its first message is read.

mod connect;
mod handle;
mod listen;
#[doc(hidden)]
pub mod message;
pub mod pairing;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use barewire_mlx5::{Access, Error as DeviceError};
use barewire_tcp::connector::ConnectFailure;
use barewire_tcp::frames::Stream;
use barewire_tcp::listener::Limits as TcpLimits;

use self::message::{Limits, Message, QueuePairs};
use self::pairing::{Pairing, PairingError};
use crate::config::{Config, MAX_PAIRS, MAX_RAILS};
use crate::control;
use crate::plan::{Partner, Plan};
use crate::queues::{Queues, Role};
use crate::rails::{RailInfo, Rails, RailsError};
use crate::region::{Region, Usage};
use crate::ring::{self, Lines, RemoteLines};

pub use connect::Connector;
pub use handle::{HANDLE_BYTES, Handle, HandleError};
pub use listen::Listener;

/// Why two ends are not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// No authenticated connection was made.
    #[error("cannot connect to {peer}: {source}")]
    Connect {
        /// The listener.
        peer: SocketAddr,
        /// The reason.
        source: ConnectFailure,
    },
    /// The peer did not respond in time.
    #[error("{peer} did not {awaited} within {:.1} s", .limit.as_secs_f64())]
    TimedOut {
        /// The peer.
        peer: SocketAddr,
        /// What the peer should have done.
        awaited: &'static str,
        /// The limit: [`Config::timeout`].
        limit: Duration,
    },
    /// The connection ended.
    #[error("the connection to {peer} ended: {source}")]
    Lost {
        /// The peer.
        peer: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The peer refused, for the reason that it gives.
    #[error("{peer} refused: {reason}")]
    Refused {
        /// The peer.
        peer: SocketAddr,
        /// Its reason.
        reason: String,
    },
    /// The peer sent what the protocol does not allow.
    #[error("{peer} violates the protocol: {what}")]
    Protocol {
        /// The peer.
        peer: SocketAddr,
        /// What it did.
        what: &'static str,
    },
    /// The rails of the ends do not go together.
    #[error("no channel with {peer}: {source}")]
    Pairing {
        /// The peer.
        peer: SocketAddr,
        /// The reason, with both lists.
        source: PairingError,
    },
    /// A device of this end failed.
    #[error("no channel with {peer}: {source}")]
    Rails {
        /// The peer.
        peer: SocketAddr,
        /// The error of the device.
        source: RailsError,
    },
    /// A setting is out of range.
    #[error("{0}")]
    Config(&'static str),
    /// The connector has returned its channel or an error already.
    #[error("the connector is finished: make another one")]
    Finished,
}

/// What the ends have agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    pub(crate) pairing: Pairing,
    pub(crate) pairs: usize,
    /// Longest share of a message in bytes.
    pub(crate) share: u64,
    /// Longest message in bytes.
    pub(crate) limit: u64,
    theirs: Vec<RailInfo>,
}

/// One end, at the start of a handshake.
#[derive(Clone, Debug)]
struct Local {
    rails: Rails,
    config: Config,
    role: Role,
}

impl Local {
    fn new(rails: &Rails, config: &Config, role: Role) -> Result<Self, HandshakeError> {
        if config.pairs == 0 || usize::from(config.pairs) > MAX_PAIRS {
            return Err(HandshakeError::Config("a rail has 1 to 8 queue pairs (Config::pairs)"));
        }
        Ok(Self { rails: rails.clone(), config: config.clone(), role })
    }

    fn tcp(&self) -> TcpLimits {
        let (timeout, peer_timeout) = (self.config.timeout, self.config.peer_timeout);
        TcpLimits { timeout, peer_timeout, ..TcpLimits::default() }
    }

    fn limits(&self) -> Limits {
        let Config { max_message, pairs, partial, .. } = self.config;
        Limits { max_message, pairs, partial }
    }

    /// Computes what follows from the limits and rails of both ends. Both ends get the same result.
    fn agree(
        &self,
        peer: SocketAddr,
        theirs: Vec<RailInfo>,
        limits: &Limits,
    ) -> Result<Agreed, HandshakeError> {
        let ours = self.rails.infos();
        let partial = self.config.partial && limits.partial;
        let pairing = match self.role {
            Role::Sender => Pairing::compute(&ours, &theirs, partial),
            Role::Receiver => Pairing::compute(&theirs, &ours, partial),
        };
        let pairing = pairing.map_err(|source| HandshakeError::Pairing { peer, source })?;
        let shares = ours.iter().chain(&theirs).map(|rail| u64::from(rail.max_share));
        let share = shares.min().unwrap_or(0);
        let most = share.saturating_mul(pairing.partners().len() as u64);
        let limit = most.min(self.config.max_message).min(limits.max_message);
        let pairs = usize::from(self.config.pairs.min(limits.pairs));
        Ok(Agreed { pairing, pairs, share, limit, theirs })
    }

    /// Checks what the peer has computed.
    fn check(
        &self,
        peer: SocketAddr,
        agreed: &Agreed,
        pairing: &Pairing,
        pairs: &[QueuePairs],
    ) -> Result<(), HandshakeError> {
        if *pairing != agreed.pairing {
            let ours = self.rails.infos();
            let (connector, listener) = match self.role {
                Role::Sender => (&ours, &agreed.theirs),
                Role::Receiver => (&agreed.theirs, &ours),
            };
            let what = "the two ends pair their rails differently";
            let source = PairingError::new(what, connector, listener);
            return Err(HandshakeError::Pairing { peer, source });
        }
        let rails = agreed.pairing.partners().len();
        if pairs.len() != rails || pairs.iter().any(|pairs| pairs.ends.len() != agreed.pairs) {
            let what = "queue pairs that do not match the rails";
            return Err(HandshakeError::Protocol { peer, what });
        }
        Ok(())
    }

    /// How the queues of this end are made.
    fn plan(&self, agreed: &Agreed) -> Plan {
        let partner = |(ours, theirs): (usize, usize)| {
            let (local, remote) =
                (&self.rails.rails().get(ours)?.info, agreed.theirs.get(theirs)?.clone());
            let weight = local.weight.min(remote.weight);
            let is_standby = local.is_standby || remote.is_standby;
            Some(Partner { ours, theirs, remote, weight, is_standby })
        };
        let partners = self.partners(agreed).filter_map(partner).collect();
        Plan::new(&self.rails, &self.config, self.role, agreed.pairs, partners)
    }

    /// Creates the queues of this end, one for each pair of rails.
    fn create(peer: SocketAddr, plan: &Plan) -> Result<Vec<Queues>, HandshakeError> {
        let one = |place| {
            let made = plan.create(place)?;
            Some(made.map_err(|source| Self::failed(peer, plan, place, source)))
        };
        (0..plan.places()).filter_map(one).collect()
    }

    /// Allocates the memory for lines and records, and returns it and how the peer addresses it.
    fn lines(
        &self,
        peer: SocketAddr,
        queues: &[Queues],
    ) -> Result<(Lines, RemoteLines), HandshakeError> {
        let failed = |source| HandshakeError::Rails { peer, source };
        // The peer reads what was received.
        let access = Usage::Receive.access() | Access::REMOTE_READ;
        let region = Region::allocate(&self.rails, ring::MEMORY, access).map_err(failed)?;
        let mut keys = [0; MAX_RAILS];
        for (key, queues) in keys.iter_mut().zip(queues) {
            *key = region.key(queues.rail());
        }
        let remote = RemoteLines { address: region.address(0), keys };
        let what = "a ring of the wrong size";
        let lines = Lines::new(region).ok_or(HandshakeError::Protocol { peer, what })?;
        Ok((lines, remote))
    }

    /// Connects the queues to those of the peer.
    fn connect(
        peer: SocketAddr,
        plan: &Plan,
        queues: &mut [Queues],
        pairs: &[QueuePairs],
    ) -> Result<(), HandshakeError> {
        for (queues, pairs) in queues.iter_mut().zip(pairs) {
            let connected = plan.connect(queues, pairs);
            connected.map_err(|source| Self::failed(peer, plan, queues.place(), source))?;
        }
        Ok(())
    }

    /// The number of this end's rail and of the peer's, for each pair.
    fn partners(&self, agreed: &Agreed) -> impl Iterator<Item = (usize, usize)> {
        let role = self.role;
        agreed.pairing.partners().iter().map(move |pair| {
            let (connector, listener) = (usize::from(pair.connector), usize::from(pair.listener));
            match role {
                Role::Sender => (connector, listener),
                Role::Receiver => (listener, connector),
            }
        })
    }

    fn failed(peer: SocketAddr, plan: &Plan, place: usize, source: DeviceError) -> HandshakeError {
        let name = plan.rail(place).map(|rail| rail.info.name.clone());
        let source = RailsError::Device { rail: name.unwrap_or_default(), source };
        HandshakeError::Rails { peer, source }
    }

    fn timed_out(&self, peer: SocketAddr, awaited: &'static str) -> HandshakeError {
        HandshakeError::TimedOut { peer, awaited, limit: self.config.timeout }
    }
}

/// The queue pairs of each rail, for the peer.
fn pairs(queues: &[Queues]) -> Vec<QueuePairs> {
    queues.iter().map(Queues::ends).collect()
}

/// Receives the next message, other than a refusal.
fn receive(stream: &mut Stream) -> Result<Option<Message>, HandshakeError> {
    let peer = stream.peer();
    let lost = |source| HandshakeError::Lost { peer, source };
    stream.flush().map_err(|error| lost(error.into()))?;
    match control::receive(stream).map_err(lost)? {
        Some(Message::Refuse { reason }) => Err(HandshakeError::Refused { peer, reason }),
        Some(Message::Close { .. }) => Err(lost(io::ErrorKind::ConnectionAborted.into())),
        other => Ok(other),
    }
}

fn send(stream: &mut Stream, message: &Message) -> Result<(), HandshakeError> {
    let peer = stream.peer();
    control::send(stream, message).map_err(|source| HandshakeError::Lost { peer, source })
}

/// Tells the peer why the handshake failed, unless the peer knows.
fn refuse(stream: &mut Stream, error: &HandshakeError) {
    if !matches!(error, HandshakeError::Refused { .. } | HandshakeError::Lost { .. }) {
        let _ = control::send(stream, &Message::refuse(error));
        stream.finish();
    }
}
