//! The interface: the state that its endpoints share.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::shares::{self, Shares};
use super::{
    BUFFER, Driver, Interface, MASK24, Opened, Progress, Queue, QueueAddress, State, WORD, address,
};
use crate::base::address::PeerAddress;
use crate::base::config::{InterfaceConfig, check};
use crate::base::error::{ConnectError, OpenError};
use crate::base::event::{Armed, EventError};
use crate::base::memory::Access;
use crate::transport::common::attention::Attention;
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::pool::Pool;
use crate::transport::common::registered::{Buffer, Domain, Registered};
use crate::transport::common::user_index::UserIndexTable;
use crate::transport::handle::{InterfaceCore, InterfaceState, Keepalive};

/// The state of an interface of the driver `D`, behind its handles.
pub(crate) struct Shared<D: Driver> {
    pub(crate) core: InterfaceCore<D>,
    pub(crate) driver: D::Interface,
    /// Pending requests or endpoints to close wait for progress, or the device failed, which another
    /// thread reports.
    pub(crate) attention: Attention,
    /// A callback panicked; see [`State::catch_up`].
    pub(crate) unwound: Cell<bool>,
    /// Endpoints by the user index of completions. The pointers are to entries of `core.endpoints`.
    pub(crate) user_indices: UserIndexTable<State<D>>,
    pub(crate) buffers: Pool<Registered<<D::Domain as Domain>::Region>, BUFFER>,
    pub(crate) buffers_key: u32,
    /// Words for results: one for each request that may be outstanding.
    pub(crate) words: Pool<Registered<<D::Domain as Domain>::Region>, WORD>,
    pub(crate) words_key: u32,
    /// Address of the word of discarded results.
    pub(crate) unwanted_word: u64,
    /// The endpoints' shares of the completion queue.
    pub(crate) shares: Shares,
    /// Endpoints without handles that are still in `core.endpoints`.
    pub(crate) closing: Cell<u32>,
    /// The word that peers read to flush.
    pub(crate) flush_word: Buffer<<D::Domain as Domain>::Region>,
    pub(crate) domain: D::Domain,
    /// The domain's tag: endpoints accept slices with this tag only.
    pub(crate) tag: u32,
    pub(crate) config: InterfaceConfig,
}

impl<D: Driver> Interface<D> {
    /// Opens an interface, for the public `open` of each transport.
    pub(crate) fn open_on(
        domain: &D::Domain,
        config: &InterfaceConfig,
    ) -> Result<(Self, Progress<D>), OpenError> {
        check_settings::<D>(domain, config)?;
        let keepalive = Keepalive::of(D::ID, config)?;
        let sends = shares::sends(config);
        let domain = &D::choose(domain, config)?;
        let buffers = domain
            .blocks(config.checked_bcopy_buffers(D::ID)? * BUFFER)
            .map_err(|e| domain.refused("register buffers", e))?;
        let flush_word = domain
            .buffer(size_of::<u64>(), Access::REMOTE_READ)
            .map_err(|e| domain.refused("register a flush word", e))?;
        let words = domain
            .blocks((sends as usize + 1) * WORD)
            .map_err(|e| domain.refused("register result words", e))?;
        let Opened { attributes, has_user_index, interface } = D::open(domain, config, sends)?;
        let endpoints = RefCell::default();
        let max_endpoints = attributes.max_endpoints;
        let words_key = words.key();
        let words = Pool::new(words);
        // Never returned to the pool.
        let unwanted_word = words.take().map_or(0, |word| {
            let address = word.address();
            let _ = word.into_lease();
            address
        });
        let shared = Rc::new(Shared {
            core: InterfaceCore::new(attributes, endpoints).with_keepalive(keepalive),
            driver: interface,
            attention: Attention::new(),
            unwound: Cell::new(false),
            user_indices: UserIndexTable::new(max_endpoints, has_user_index),
            buffers_key: buffers.key(),
            buffers: Pool::new(buffers),
            words,
            words_key,
            unwanted_word,
            shares: Shares::new(config),
            closing: Cell::new(0),
            flush_word,
            domain: domain.clone(),
            tag: domain.tag(),
            config: config.clone(),
        });
        D::opened(&shared)?;
        Ok((Self::open_with(&shared), Progress(shared)))
    }
}

impl<D: Driver> InterfaceState for Shared<D> {
    type Transport = D;

    fn core(&self) -> &InterfaceCore<D> {
        &self.core
    }

    fn call_attention(&self) {
        self.attention.call();
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(
            address::device::<D>(D::port(&self.domain)),
            D::interface_address(self),
        )
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        address::port::<D>(peer.device()).map(drop)
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        D::event_fd(self)
    }

    fn arm(&self) -> Result<Armed, EventError> {
        D::arm(self)
    }
}

/// Checks the settings against each other and the device.
fn check_settings<D: Driver>(
    domain: &D::Domain,
    config: &InterfaceConfig,
) -> Result<(), OpenError> {
    let limits = D::limits(domain);
    let refuse = |setting, value: u32, reason: &str| {
        let (value, reason) = (value.into(), reason.to_owned());
        Err(OpenError::Setting { transport: D::ID, setting, value, reason })
    };
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 4)]
    {
        check(D::ID, setting, value, least, limits.requests)?;
        if !value.is_power_of_two() {
            return refuse(setting, value, "it must be a power of two");
        }
    }
    check(D::ID, "spare_receive_buffers", config.spare_receive_buffers, 0, 65536)?;
    check(D::ID, "signal_every", config.signal_every, 1, 1 << 15)?;
    check(D::ID, "ack_timeout", config.ack_timeout.into(), 0, 31)?;
    check(D::ID, "retry_count", config.retry_count.into(), 0, 7)?;
    check(D::ID, "rnr_retry", config.rnr_retry.into(), 0, 7)?;
    check(D::ID, "min_rnr_timer", config.min_rnr_timer.into(), 0, 31)?;
    check(D::ID, "service_level", config.service_level.into(), 0, 15)?;
    check(D::ID, "max_rd_atomic", config.max_rd_atomic.into(), 1, 16)?;
    if !config.path_mtu.is_power_of_two() || !(256..=4096).contains(&config.path_mtu) {
        return refuse("path_mtu", config.path_mtu, "it must be 256, 512, 1024, 2048 or 4096");
    }
    check(D::ID, "max_endpoints", config.max_endpoints, 1, limits.completions / shares::LEAST)
}

impl<D: Driver> Shared<D> {
    /// Returns whether progress has more to do than taking completions.
    #[inline(always)]
    pub(crate) fn needs_attention(&self) -> bool {
        self.attention.is_called()
    }

    /// Returns whether an endpoint has not failed.
    pub(crate) fn has_living_endpoint(&self) -> bool {
        self.core.endpoints.borrow().iter().any(|state| state.posting.is_alive())
    }

    /// Makes progress finish the operations that were left behind by a callback that panicked.
    pub(super) fn catch_up_later(&self) {
        self.unwound.set(true);
        self.call_attention();
    }

    /// Creates an unconnected endpoint.
    pub(super) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State<D>>, OpenError> {
        self.core.check_opening()?;
        // The completion queue has shares for this many.
        let Some(slot) = self.user_indices.claim() else {
            return Err(OpenError::TooManyEndpoints {
                transport: D::ID,
                limit: self.core.attributes.max_endpoints,
            });
        };
        let state =
            self.build_endpoint(slot).inspect_err(|_| self.user_indices.release(slot, None))?;
        if let Some(user_index) = state.user_index.get() {
            self.user_indices.set(user_index, NonNull::from(&*state));
        }
        self.core.endpoints.borrow_mut().push(Rc::clone(&state));
        Ok(state)
    }

    fn build_endpoint(self: &Rc<Self>, slot: u32) -> Result<Rc<State<D>>, OpenError> {
        let mut created = D::create(self, slot)?;
        let share = self.shares.take(self.config.send_ring);
        let share = created.queue.limit_outstanding(share);
        let in_flight = InFlightQueue::new(share.next_power_of_two()).into();
        let own = QueueAddress {
            qpn: created.qpn,
            psn: crate::base::random::number() as u32 & MASK24,
            mtu: created.mtu,
            reads: created.reads,
            flush_address: self.flush_word.address(),
            flush_key: self.flush_word.remote_key(),
            tail: created.tail,
        };
        Ok(State::new(created, own, slot, in_flight, Rc::clone(self)))
    }
}
