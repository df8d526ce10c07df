//! The interface: the initiators and the target that its endpoints share.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::cmp::min_by_key;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_mlx5::dc::{InitiatorConfig, Peer, Target, TargetConfig};
use barewire_mlx5::layouts::command::capability::PortType;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::{CompletionQueue, Family, MemoryRegion, Mtu, Notifier, PortAddress, Uar};

use super::address::{self, TargetAddress};
use super::control::Grant;
use super::destinations::Destinations;
use super::initiator::{Initiator, Queue};
use super::pool::Initiators;
use super::progress::Progress;
use super::state::State;
use super::{DcMlx5, Domain, Endpoint, ID, Interface, MAX_ENDPOINTS};
use crate::base::address::PeerAddress;
use crate::base::attributes::Flags;
use crate::base::config::{InterfaceConfig, check};
use crate::base::error::{Cause, ConnectError, OpenError};
use crate::base::event::{Armed, EventError, after};
use crate::base::memory::Access;
use crate::base::random;
use crate::transport::common::attention::Attention;
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::pool::Pool;
use crate::transport::common::registered::{Buffer, Domain as _, Registered};
use crate::transport::common::watch::Alarm;
use crate::transport::handle::{
    EndpointList as _, InterfaceCore, InterfaceState, Keepalive, Slots,
};
use crate::transport::mlx5::shared::{Owner, SharedReceiver};
use crate::transport::rc::BUFFER;

/// The user index of the target's completions. Those of initiators are their numbers.
pub(super) const TARGET_INDEX: u32 = 0x00ff_fffe;
/// The longest sleep before progress looks for an event of the device.
const ATTENTION: Duration = Duration::from_secs(1);

/// The state of an interface, behind its handles. What the device uses comes before its memory, so
/// that it is dropped first.
pub(crate) struct Shared {
    pub(super) core: InterfaceCore<DcMlx5>,
    /// Where peers send; `None` after the interface is closed.
    target: RefCell<Option<Target>>,
    pub(super) initiators: Initiators,
    pub(super) receiver: Owner,
    /// Polled only by progress.
    pub(super) completions: UnsafeCell<CompletionQueue>,
    /// The completion events, if the device has them.
    notifier: Option<Notifier>,
    pub(super) buffers: Pool<Registered<MemoryRegion>, BUFFER>,
    pub(super) buffers_key: u32,
    /// The word that peers read to flush.
    _flush_word: Buffer<MemoryRegion>,
    /// Pending requests, grants or endpoints to close wait for progress, or the device failed, which
    /// another thread reports.
    pub(super) attention: Attention,
    /// Calls for attention when the device fails.
    alarm: OnceCell<Alarm>,
    /// A callback panicked: operations that are complete may not be finished.
    pub(super) unwound: Cell<bool>,
    /// Endpoints without handles that have operations outstanding.
    pub(super) closing: Cell<u32>,
    /// Grants that wait for an initiator.
    pub(super) grants: RefCell<VecDeque<Grant>>,
    /// The address vectors of peers that were granted messages.
    pub(super) destinations: Destinations,
    pub(super) own: TargetAddress,
    pub(super) started: Instant,
    pub(crate) domain: Domain,
    /// The domain's tag: endpoints accept only slices with it.
    pub(super) tag: u32,
    pub(crate) config: InterfaceConfig,
}

impl Interface {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// device has no DC, or refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let receives = check_settings(domain, config)?;
        let domain = &domain.chosen(config)?;
        let shared = Rc::new(build(domain, config, receives)?);
        let keepalive = shared.core.keepalive.as_ref();
        if let Some(watch) = shared.domain.watch()? {
            // SAFETY: the alarm is a part of the value that contains the flag, which does not move
            // out of its `Rc`: it is dropped before the flag's memory is freed.
            let alarm =
                unsafe { watch.alarm(NonNull::from(&shared.attention), keepalive.is_some()) };
            let _ = shared.alarm.set(alarm);
        } else {
            Keepalive::refuse(keepalive, ID)?;
        }
        Ok((Self::open_with(&shared), Progress(shared)))
    }

    /// Opens an endpoint to an interface.
    ///
    /// # Errors
    /// As [`Endpoint::connect`], and [`ConnectError::Open`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        let endpoint = Endpoint::new(self)?;
        endpoint.connect(peer)?;
        Ok(endpoint)
    }
}

impl Endpoint {
    /// Creates an unconnected endpoint.
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        let shared = &interface.0;
        shared.core.check_opening()?;
        let make = |slot| State::new(Rc::clone(shared), slot);
        let state = shared.core.endpoints.add(MAX_ENDPOINTS, make);
        let limit = MAX_ENDPOINTS;
        state.map(Self::handle).ok_or(OpenError::TooManyEndpoints { transport: ID, limit })
    }

    /// Connects to the peer's interface. The peer needs no endpoint for it.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Address`] and
    /// [`ConnectError::Unreachable`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port(peer.device())?;
        self.0.connect(port, &TargetAddress::unpack(peer.interface())?)
    }
}

/// Checks the settings against each other and the device. Returns the number of receive WQEs.
fn check_settings(domain: &Domain, config: &InterfaceConfig) -> Result<u32, OpenError> {
    let capabilities = domain.context().capabilities();
    let most = capabilities.max_queue_entries.min(1 << 15);
    let power = |setting, value: u32, least| {
        check(ID, setting, value, least, most)?;
        if value.is_power_of_two() {
            return Ok(());
        }
        let (value, reason) = (value.into(), "it must be a power of two".to_owned());
        Err(OpenError::Setting { transport: ID, setting, value, reason })
    };
    power("send_ring", config.send_ring, 16)?;
    power("receive_ring", config.receive_ring, 4)?;
    check(ID, "spare_receive_buffers", config.spare_receive_buffers, 0, 65536)?;
    check(ID, "dci_count", config.dci_count, 1, 256)?;
    check(ID, "message_window", config.message_window, 2, 1 << 15)?;
    check(ID, "ack_timeout", config.ack_timeout.into(), 0, 31)?;
    check(ID, "retry_count", config.retry_count.into(), 0, 7)?;
    check(ID, "rnr_retry", config.rnr_retry.into(), 0, 7)?;
    check(ID, "min_rnr_timer", config.min_rnr_timer.into(), 0, 31)?;
    check(ID, "service_level", config.service_level.into(), 0, 15)?;
    check(ID, "max_rd_atomic", config.max_rd_atomic.into(), 1, 16)?;
    if !config.path_mtu.is_power_of_two() || !(256..=4096).contains(&config.path_mtu) {
        let (setting, value) = ("path_mtu", config.path_mtu.into());
        let reason = "it must be 256, 512, 1024, 2048 or 4096".to_owned();
        return Err(OpenError::Setting { transport: ID, setting, value, reason });
    }
    // A list keeps one WQE back.
    let wanted = config.receive_ring + config.spare_receive_buffers + 1;
    let receives = wanted.next_power_of_two().min(1 << 15);
    let sends = u64::from(config.dci_count) * u64::from(config.send_ring);
    if sends + u64::from(receives) > capabilities.max_cq_entries.into() {
        let reason = "the completion queue of all initiators is too large".to_owned();
        let value = config.dci_count.into();
        return Err(OpenError::Setting { transport: ID, setting: "dci_count", value, reason });
    }
    Ok(receives)
}

fn build(domain: &Domain, config: &InterfaceConfig, receives: u32) -> Result<Shared, OpenError> {
    domain.check_family(Family::Dynamic)?;
    let context = domain.context();
    let refused = |step| move |e| domain.refused(step, e);
    let memory = |step| move |e| domain.refused(step, e);
    let buffers = domain
        .blocks(config.checked_bcopy_buffers(ID)? * BUFFER)
        .map_err(memory("register buffers"))?;
    let flush_word = domain
        .buffer(size_of::<u64>(), Access::REMOTE_READ)
        .map_err(memory("register a flush word"))?;
    let uar = Uar::allocate(context).map_err(refused("take a UAR page"))?;
    let entries = config.dci_count * config.send_ring + receives;
    let (completions, notifier) = CompletionQueue::create_with_notifier(context, &uar, entries)
        .map_err(refused("create a completion queue"))?;
    let receiver = SharedReceiver::create(domain, receives - 1, receives - 1)?;
    let mtu = min_by_key(mtu_of(config.path_mtu), domain.port().mtu, |mtu| mtu.bytes());
    let target_config = TargetConfig::default()
        .key(random::number())
        .mtu(mtu)
        .min_rnr_nak(config.min_rnr_timer)
        .traffic_class(config.traffic_class)
        .service_level(config.service_level)
        .user_index(TARGET_INDEX)
        .port(Some(*domain.port()));
    let target = receiver
        .with_queue(|queue| {
            Target::create(domain.protection(), &completions, queue, &target_config)
        })
        .map_err(refused("create a target"))?;
    let is_shared = config.dci_policy == crate::base::config::DciPolicy::Hash;
    let initiators = (0..config.dci_count)
        .map(|number| initiator(domain, config, &uar, &completions, mtu, is_shared, number))
        .collect::<Result<Vec<_>, _>>()?;
    let mut attributes = super::attributes_of(config, context.capabilities());
    attributes.flags.set(Flags::EVENT_FD, notifier.is_some());
    domain.note_software(&mut attributes.flags);
    let own = TargetAddress {
        target: target.number(),
        mtu: mtu as u8,
        key: target.key(),
        flush_address: flush_word.address(),
        flush_key: flush_word.remote_key(),
    };
    Ok(Shared {
        core: InterfaceCore::new(attributes, Slots::default())
            .with_keepalive(Keepalive::of(ID, config)?),
        target: RefCell::new(Some(target)),
        initiators: Initiators::new(initiators, config.dci_policy),
        receiver,
        completions: UnsafeCell::new(completions),
        notifier,
        buffers_key: buffers.key(),
        buffers: Pool::new(buffers),
        _flush_word: flush_word,
        attention: Attention::new(),
        alarm: OnceCell::new(),
        unwound: Cell::new(false),
        closing: Cell::new(0),
        grants: RefCell::default(),
        destinations: Destinations::default(),
        own,
        started: Instant::now(),
        domain: domain.clone(),
        tag: domain.tag(),
        config: config.clone(),
    })
}

fn initiator(
    domain: &Domain,
    config: &InterfaceConfig,
    uar: &Uar,
    completions: &CompletionQueue,
    mtu: Mtu,
    is_shared: bool,
    number: u32,
) -> Result<Initiator, OpenError> {
    let in_flight = InFlightQueue::new(config.send_ring);
    // One more word, for discarded results.
    let words = in_flight.slots() as usize + 1;
    let results = domain
        .buffer(words * size_of::<u64>(), Access::LOCAL_WRITE)
        .map_err(|e| domain.refused("register result words", e))?;
    let initiator_config = InitiatorConfig::default()
        .send_blocks(config.send_ring)
        .signal_period(config.send_ring)
        .user_index(number)
        .mtu(mtu)
        .ack_timeout(config.ack_timeout)
        .retry_count(config.retry_count)
        .rnr_retry(config.rnr_retry)
        .log_max_reads(config.max_rd_atomic.ilog2() as u8)
        .service_level(config.service_level)
        .port(Some(*domain.port()));
    let queue = Queue::create_with(domain.protection(), uar, completions, &initiator_config)
        .map_err(|e| domain.refused("create an initiator", e))?;
    Ok(Initiator::new(queue, in_flight, results, is_shared, number))
}

/// Returns the MTU of `bytes`, a power of two from 256 to 4096.
fn mtu_of(bytes: u32) -> Mtu {
    let found = Mtu::ALL.iter().find(|mtu| mtu.bytes() == bytes as usize);
    found.copied().unwrap_or(Mtu::Bytes4096)
}

impl Shared {
    /// Returns the address vector of a target.
    pub(super) fn destination(
        &self,
        port: PortAddress,
        target: &TargetAddress,
    ) -> Result<AddressVector, ConnectError> {
        let peer = || format!("{port} DCT {:#08x}", target.target);
        if target.mtu != self.own.mtu {
            // A packet of another size would break the connection (IBTA 9.4.1).
            let bytes =
                |code| Mtu::ALL.iter().find(|mtu| **mtu as u8 == code).map(|mtu| mtu.bytes());
            let (own, other) = (bytes(self.own.mtu), bytes(target.mtu));
            let reason = format!(
                "its path MTU is {} bytes, this one's {}; set path_mtu to the lower on both sides",
                other.unwrap_or(0),
                own.unwrap_or(0)
            );
            return Err(ConnectError::Device {
                transport: ID,
                peer: peer(),
                source: reason.into(),
            });
        }
        let wanted = Peer {
            traffic_class: self.config.traffic_class,
            service_level: self.config.service_level,
            ..Peer::new(port, target.target, target.key)
        };
        let first = self.initiators.get(0);
        let found = first.map(|first| first.with_queue(|queue| queue.destination(&wanted)));
        match found {
            Some(Ok(address)) => Ok(address),
            Some(Err(error)) => {
                Err(ConnectError::Device { transport: ID, peer: peer(), source: error.into() })
            }
            None => Err(ConnectError::Open(OpenError::Closed { transport: ID })),
        }
    }

    /// As [`Self::destination`], for grants. The result is kept, and the time of searches is
    /// limited: see [`Destinations`].
    pub(super) fn known_destination(
        &self,
        port: PortAddress,
        target: &TargetAddress,
    ) -> Option<AddressVector> {
        let search = || self.destination(port, target).ok();
        // Otherwise a failure would not mean that the host is unreachable.
        let is_search = target.mtu == self.own.mtu
            && self.domain.context().capabilities().port_type == PortType::Ethernet;
        if is_search {
            self.destinations.find(port, target, Instant::now, search)
        } else {
            search()
        }
    }

    /// Returns whether progress has more to do than taking completions.
    #[inline(always)]
    pub(super) fn needs_attention(&self) -> bool {
        self.attention.is_called()
    }

    /// Returns the event that reported the device's failure.
    pub(super) fn failure(&self) -> Option<&str> {
        self.domain.watch().ok()??.failure()
    }

    /// Returns what an error's report adds to its cause.
    pub(super) fn detail(&self, cause: Cause) -> Option<String> {
        let event = self.failure().filter(|_| cause == Cause::DeviceFailed)?;
        Some(format!("{} reported {event}", self.domain.device()))
    }

    /// Destroys the target: peers' requests fail from now on.
    pub(super) fn close_target(&self) {
        drop(self.target.take());
    }

    fn notifier(&self) -> Result<&Notifier, EventError> {
        let reason = "this command channel has no completion events";
        self.notifier.as_ref().ok_or(EventError::Missing { transport: ID, reason })
    }
}

impl InterfaceState for Shared {
    type Transport = DcMlx5;

    fn core(&self) -> &InterfaceCore<DcMlx5> {
        &self.core
    }

    fn call_attention(&self) {
        self.attention.call();
    }

    fn address(&self) -> PeerAddress {
        let device = address::device(self.domain.port().address);
        PeerAddress::of_interface(device, self.own.pack())
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port(peer.device())?;
        self.destination(port, &TargetAddress::unpack(peer.interface())?).map(drop)
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(self.notifier()?.as_fd()))
    }

    fn arm(&self) -> Result<Armed, EventError> {
        let notifier = self.notifier()?;
        let lives = || self.core.endpoints.all().iter().any(|state| state.posting.is_alive());
        if self.failure().is_some() && lives() {
            self.call_attention();
            return Ok(Armed::Ready);
        }
        // Requests that wait for completions do not prevent a sleep.
        let unsettled = self.needs_attention()
            && self.core.arbiter.is_empty()
            && self.grants.borrow().is_empty()
            && !self.core.is_keepalive_waiting()
            || self.core.arbiter.has_new();
        // SAFETY: only `Progress` polls the queue, and it does not call this function while it
        // does. The borrow ends with this function, which runs no user code.
        let completions = unsafe { &mut *self.completions.get() };
        if unsettled || self.unwound.get() || !completions.is_empty() {
            return Ok(Armed::Ready);
        }
        if !notifier.arm(completions) {
            return Ok(Armed::Ready);
        }
        // The failure of the device does not make the descriptor readable.
        Ok(Armed::Until(after(Instant::now(), ATTENTION)))
    }
}
