//! How peers connect to an interface.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use barewire_tcp::inbox::{Arrival, Inbox};
use barewire_tcp::leftover::Courier;
use barewire_tcp::listener::{Authenticated, Limits, Listener};

use super::domain::Domain;
use crate::report::warn;

/// The acceptor of connections to an interface.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an interface has one")]
pub(super) enum Accepting {
    /// Progress accepts.
    Listener(Listener, Vec<Authenticated>),
    /// The thread of the domain accepts.
    Thread(Inbox),
}

impl Accepting {
    /// Listens on a free port of the domain's address.
    pub(super) fn by_progress(domain: &Domain, limits: Limits) -> io::Result<(Self, SocketAddr)> {
        let listener = Listener::open(domain.address(), domain.key().clone(), limits)?;
        let address = listener.address();
        Ok((Self::Listener(listener, Vec::new()), address))
    }

    /// Has the thread of the domain accept connections to the interface of this number. Returns also
    /// the handle by which connections have the thread send for them.
    pub(super) fn by_thread(
        domain: &Domain,
        number: u64,
    ) -> io::Result<(Self, SocketAddr, Courier)> {
        let (address, inbox, courier) = domain.accept_for(number)?;
        Ok((Self::Thread(inbox), address, courier))
    }

    /// Adds the connections that peers made to `arrivals`.
    pub(super) fn work(&mut self, now: Instant, arrivals: &mut Vec<Arrival>) {
        match self {
            Self::Listener(listener, authenticated) => {
                listener.work(now, authenticated);
                if let Some(shortage) = listener.take_shortage() {
                    warn(&shortage);
                }
                arrivals.extend(authenticated.drain(..).map(Arrival::Endpoint));
            }
            Self::Thread(inbox) => inbox.take(arrivals),
        }
    }

    /// Returns whether [`Self::work`] need not be called before the descriptor is readable.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Listener(listener, _) => listener.is_idle(),
            Self::Thread(_) => true,
        }
    }

    /// Returns true if [`Self::work`] does nothing before [`Self::deadline`], although the descriptor
    /// may be readable.
    pub(super) fn is_paused(&self) -> bool {
        match self {
            Self::Listener(listener, _) => listener.is_paused(),
            Self::Thread(_) => false,
        }
    }

    /// When [`Self::work`] must be called although the descriptor is not readable.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Listener(listener, _) => listener.deadline(),
            Self::Thread(_) => None,
        }
    }

    /// Connections so far that did not prove the job's key.
    pub(super) fn refused(&self) -> u64 {
        match self {
            Self::Listener(listener, _) => listener.refused(),
            Self::Thread(inbox) => inbox.refused(),
        }
    }
}

impl AsFd for Accepting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(listener, _) => listener.as_fd(),
            Self::Thread(inbox) => inbox.as_fd(),
        }
    }
}
