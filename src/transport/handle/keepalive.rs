//! Probing the peers of endpoints that post nothing, so that the death of a peer is noticed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{EndpointList as _, EndpointState as _, InterfaceCore, States};
use crate::base::address::TransportId;
use crate::base::config::InterfaceConfig;
use crate::base::error::{OpenError, PostError};
use crate::base::event::after;
use crate::transport::common::post_state::{PostBlock, Probed};

/// Between two tries of a round that found no resources.
const AGAIN: Duration = Duration::from_millis(1);

/// The rounds of probes of an interface.
#[derive(Debug)]
pub(crate) struct Keepalive {
    interval: Duration,
    /// When to probe next.
    next: Cell<Instant>,
    /// The number of the endpoint at which an unfinished round continues, from 1; zero between
    /// rounds.
    at: Cell<usize>,
}

impl Keepalive {
    /// Returns the rounds that the settings ask for.
    pub(crate) fn of(
        transport: TransportId,
        config: &InterfaceConfig,
    ) -> Result<Option<Self>, OpenError> {
        let interval = config.checked_keepalive(transport)?;
        Ok(interval.map(|interval| Self {
            interval,
            next: Cell::new(after(Instant::now(), interval)),
            at: Cell::new(0),
        }))
    }

    /// Refuses the rounds of an interface whose progress no thread calls for attention.
    #[cfg(feature = "mlx5")]
    pub(crate) fn refuse(this: Option<&Self>, transport: TransportId) -> Result<(), OpenError> {
        let Some(Self { interval, .. }) = this else { return Ok(()) };
        let reason = "the device has no events: leave it off, and call Endpoint::check";
        Err(OpenError::keepalive(transport, *interval, reason))
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.next.get()
    }
}

impl<T: States> InterfaceCore<T> {
    /// Returns whether endpoints must be probed now.
    #[cold]
    pub(crate) fn is_keepalive_due(&self) -> bool {
        self.keepalive.as_ref().is_some_and(Keepalive::is_due)
    }

    /// Returns when endpoints must be probed next.
    pub(crate) fn next_keepalive(&self) -> Option<Instant> {
        self.keepalive.as_ref().map(|keepalive| keepalive.next.get())
    }

    /// Returns whether a round waits for resources.
    pub(crate) fn is_keepalive_waiting(&self) -> bool {
        self.keepalive.as_ref().is_some_and(|keepalive| keepalive.at.get() > 0)
    }

    /// Probes endpoints, if it is time.
    #[cold]
    pub(crate) fn keep_alive(&self) {
        let Some(keepalive) = self.keepalive.as_ref().filter(|keepalive| keepalive.is_due()) else {
            return;
        };
        let endpoints = self.endpoints.all();
        for (number, state) in
            endpoints.iter().enumerate().skip(keepalive.at.get().saturating_sub(1))
        {
            let posting = state.posting();
            let waits = posting.has(PostBlock::Unconnected) || posting.has(PostBlock::Connecting);
            if waits || !posting.is_alive() {
                continue;
            }
            if posting.probed.get() == Probed::Never {
                posting.probed.set(Probed::Next);
                continue;
            }
            // Another error is that of an endpoint which failed in its probe.
            if state.probe() == Err(PostError::NoResource) {
                keepalive.at.set(number + 1);
                keepalive.next.set(after(Instant::now(), AGAIN));
                return;
            }
            posting.probed.set(Probed::Yes);
        }
        keepalive.at.set(0);
        keepalive.next.set(after(Instant::now(), keepalive.interval));
    }
}
