//! The second queue pair of an endpoint, which the device uses.

use std::cell::{Cell, RefCell};

use barewire_mlx5::tags::RendezvousPair;
use barewire_mlx5::{RcConfig, RcPath};

use super::super::driver::Shared;
use super::Matching;
use crate::base::error::OpenError;
use crate::transport::common::registered::Domain as _;
use crate::transport::rc::{MASK24, Tail};

/// The number of an endpoint's second queue pair, 0 if it has none: its part of the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagNumber(pub(crate) u32);

impl Tail for TagNumber {
    const BYTES: usize = size_of::<u32>();

    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_be_bytes());
    }

    fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let number = bytes.try_into().map(u32::from_be_bytes).map_err(|_| "tag QPN")?;
        if number <= MASK24 { Ok(Self(number)) } else { Err("tag QPN") }
    }
}

/// The second queue pair. It is connected to the first one of the peer, to which the peer posts.
pub(crate) struct TagEnd {
    pair: RefCell<RendezvousPair>,
    /// The peer matches tags, too.
    pub(in super::super) is_matched: Cell<bool>,
}

impl TagEnd {
    /// Creates the queue pair of the endpoint in `slot`.
    pub(in super::super) fn create(
        shared: &Shared,
        matching: &Matching,
        slot: u32,
    ) -> Result<Box<Self>, OpenError> {
        let (domain, interface) = (&shared.domain, &shared.driver);
        let config = RcConfig::default().user_index(slot).port(Some(*domain.port()));
        // SAFETY: the queue is borrowed mutably only while `Progress` polls it or `arm` uses it;
        // neither runs user code meanwhile, so this function is not called then.
        let completions = unsafe { &*interface.completions.get() };
        let pair = matching.receiver.with_queue(|queue| {
            RendezvousPair::create_for_rendezvous(
                domain.protection(),
                &interface.uar,
                completions,
                queue,
                &config,
            )
        });
        let pair = pair.map_err(|e| domain.refused("create a queue pair for tag matching", e))?;
        Ok(Box::new(Self { pair: RefCell::new(pair), is_matched: Cell::new(false) }))
    }

    pub(in super::super) fn number(&self) -> u32 {
        self.pair.borrow().number()
    }

    pub(in super::super) fn connect(&self, path: &RcPath) -> Result<(), barewire_mlx5::Error> {
        self.pair.borrow_mut().connect(path)?;
        self.is_matched.set(true);
        Ok(())
    }

    /// As [`RendezvousPair::is_drained`].
    pub(in super::super) fn is_drained(&self) -> Option<bool> {
        self.pair.borrow().is_drained()
    }

    /// Ends the connection: what the device has matched ends as cancelled.
    pub(in super::super) fn stop(&self) {
        // A device that refuses keeps the queue pair until it is destroyed.
        let _ = self.pair.borrow_mut().to_error();
    }
}
