//! The life cycle of an endpoint.

use std::net::SocketAddr;

use barewire_tcp::socket::Socket;

use super::address::End;
use super::failure::PendingFailure;
use crate::base::error::EndpointError;

/// What an endpoint is connected to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// `None` for an interface.
    pub(super) end: Option<End>,
}

/// A connection that arrived before this end knew its peer.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) from: End,
    pub(super) socket: Socket,
}

/// The phases of an endpoint, in this order.
#[derive(Debug)]
pub(super) enum Life {
    /// Not connected. The connection of a peer may already be here.
    Unconnected(Option<Early>),
    /// Connecting or connected.
    Connected(Peer),
    /// It takes no posts. Progress closes its connections and finishes what is outstanding.
    Ending(Ending),
    /// Nothing is outstanding. If it failed, the error says why.
    Ended(Option<EndpointError>),
}

/// The ways in which this end ends an endpoint.
#[derive(Debug)]
pub(super) enum Ending {
    /// A connection failed.
    Failed(Option<Peer>, PendingFailure),
    /// The caller canceled what is outstanding.
    Canceled,
    /// No handle is left, or the interface is closed.
    ShutDown,
}

impl Default for Life {
    fn default() -> Self {
        Self::Unconnected(None)
    }
}

impl Life {
    /// The peer, from connecting until the endpoint ends.
    pub(super) fn peer(&self) -> Option<Peer> {
        match self {
            Self::Connected(peer) => Some(*peer),
            _ => None,
        }
    }

    /// Why the endpoint failed, once that is reported.
    pub(super) fn error(&self) -> Option<EndpointError> {
        match self {
            Self::Ended(error) => error.clone(),
            _ => None,
        }
    }

    /// Begins the end. An endpoint that has ended keeps its error.
    pub(super) fn end(&mut self, ending: Ending) {
        if !matches!(self, Self::Ended(_)) {
            *self = Self::Ending(ending);
        }
    }
}
