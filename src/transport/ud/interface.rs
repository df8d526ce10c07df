//! The interface: one queue pair, and the endpoints that share it.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::address::{self, QueueAddress};
use super::progress::Progress;
use super::socket::Socket;
use super::state::State;
use super::{BUFFER, Driver, Interface, MAX_MTU, Opened, Queue};
use crate::base::address::PeerAddress;
use crate::base::attributes::Flags;
use crate::base::config::{InterfaceConfig, check};
use crate::base::error::{Cause, ConnectError, OpenError, Operation};
use crate::base::event::{Armed, EventError};
use crate::base::panics::Panics;
use crate::base::random;
use crate::transport::common::attention::Attention;
use crate::transport::common::registered::Domain as _;
use crate::transport::handle::{
    EndpointList as _, InterfaceCore, InterfaceState, Keepalive, Slots,
};
use crate::transport::reliable::{Directory, HEADER, Patience, TICK, Time};

/// An endpoint that progress must fail, and why.
type Failing<D> = (Rc<State<D>>, Operation, Cause);

/// The state of an interface of the driver `D`, behind its handles.
pub(crate) struct Shared<D: Driver> {
    pub(super) core: InterfaceCore<D>,
    pub(super) socket: Rc<Socket<D>>,
    pub(crate) events: D::Events,
    /// Progress has something to do besides packets. Set by another thread if the device failed.
    pub(crate) attention: Attention,
    /// A callback panicked; see `State::catch_up`.
    pub(super) unwound: Cell<bool>,
    /// The names of the endpoints that may have a timer.
    pub(super) timed: RefCell<Vec<u32>>,
    /// Some endpoints wait to be dropped.
    pub(super) closing: Cell<bool>,
    /// Slots of endpoints that must send an acknowledgement.
    pub(super) owing: RefCell<Vec<u32>>,
    failing: RefCell<Vec<Failing<D>>>,
    /// Most receive buffers, however many endpoints there are; those there are once no more could be
    /// registered.
    most_buffers: Cell<u32>,
    pub(super) directory: RefCell<Directory>,
    started: Instant,
    /// [`since_boot`] then.
    opened: Time,
    pub(super) patience: Patience,
    pub(super) own: QueueAddress,
    /// Most bytes of data in a packet.
    pub(super) most: u32,
    pub(crate) domain: D::Domain,
    /// The domain's tag: endpoints accept only slices with it.
    pub(super) tag: u32,
    pub(crate) config: InterfaceConfig,
}

/// Opens an interface.
pub(crate) fn open<D: Driver>(
    domain: &D::Domain,
    config: &InterfaceConfig,
) -> Result<(Interface<D>, Progress<D>), OpenError> {
    let receives = check_settings::<D>(domain, config)?;
    let keepalive = Keepalive::of(D::ID, config)?;
    let domain = &D::choose(domain, config)?;
    let mtu = config.path_mtu.min(D::mtu(domain)).clamp(256, MAX_MTU as u32);
    let sends = domain
        .blocks(config.checked_bcopy_buffers(D::ID)? * BUFFER)
        .map_err(|e| domain.refused("register buffers", e))?;
    let Opened { queue, events, inline, is_software } = D::open(domain, config, receives)?;
    let own = QueueAddress {
        qpn: queue.number(),
        log_mtu: mtu.ilog2() as u8,
        interface: random::number(),
    };
    let socket = Socket::new(queue, sends, receives, inline, mtu);
    let mut attributes = super::attributes_of(config, mtu as usize);
    attributes.flags.set(Flags::SOFTWARE_DEVICE, is_software);
    let shared = Rc::new(Shared {
        timed: RefCell::default(),
        core: InterfaceCore::new(attributes, Slots::default()).with_keepalive(keepalive),
        socket,
        events,
        attention: Attention::new(),
        unwound: Cell::new(false),
        closing: Cell::new(false),
        owing: RefCell::default(),
        failing: RefCell::default(),
        most_buffers: Cell::new(config.max_receive_buffers.max(buffers_per_endpoint(config))),
        directory: RefCell::default(),
        started: Instant::now(),
        opened: since_boot(),
        patience: patience(config),
        own,
        most: (1 << own.log_mtu) - HEADER as u32,
        domain: domain.clone(),
        tag: domain.tag(),
        config: config.clone(),
    });
    shared.add_buffers(buffers_per_endpoint(config))?;
    D::opened(&shared)?;
    Ok((Interface::open_with(&shared), Progress::new(shared)))
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
        let device = address::device::<D>(D::port(&self.domain));
        PeerAddress::of_interface(device, self.own.pack::<D>())
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        let _ = address::port::<D>(peer.device())?;
        QueueAddress::unpack::<D>(peer.interface()).map(drop)
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        D::descriptor(&self.events).map(Some)
    }

    fn arm(&self) -> Result<Armed, EventError> {
        if self.needs_attention() || !self.owing.borrow().is_empty() {
            return Ok(Armed::Ready);
        }
        let armed = self.socket.arm(&self.events)?;
        let now = self.now();
        let timed = self.timed.borrow();
        let due = timed.iter().filter_map(|&name| self.named(name)?.due(now)).min();
        let due = due.and_then(|due| self.started.checked_add(Duration::from_nanos(due)));
        Ok(armed.and(Armed::until(due)))
    }
}

/// Checks the settings against each other and the device. Returns the capacity of the receive
/// queue, a power of two.
fn check_settings<D: Driver>(
    domain: &D::Domain,
    config: &InterfaceConfig,
) -> Result<u32, OpenError> {
    let limits = D::limits(domain);
    for (setting, value, least) in
        [("send_ring", config.send_ring, 16), ("receive_ring", config.receive_ring, 4)]
    {
        check(D::ID, setting, value, least, limits.requests.min(1 << 15))?;
        if !value.is_power_of_two() {
            let reason = "it must be a power of two".to_owned();
            return Err(OpenError::Setting {
                transport: D::ID,
                setting,
                value: value.into(),
                reason,
            });
        }
    }
    check(D::ID, "spare_receive_buffers", config.spare_receive_buffers, 0, 32768)?;
    check(D::ID, "signal_every", config.signal_every, 1, 1 << 15)?;
    check(D::ID, "ack_timeout", config.ack_timeout.into(), 0, 31)?;
    check(D::ID, "service_level", config.service_level.into(), 0, 15)?;
    if !config.path_mtu.is_power_of_two() || !(256..=4096).contains(&config.path_mtu) {
        let reason = "it must be 256, 512, 1024, 2048 or 4096".to_owned();
        let value = config.path_mtu.into();
        return Err(OpenError::Setting { transport: D::ID, setting: "path_mtu", value, reason });
    }
    check(D::ID, "max_endpoints", config.max_endpoints, 1, 1 << 15)?;
    let most = limits.requests.min(limits.completions.saturating_sub(config.send_ring)).max(4);
    let all = config.receive_ring.saturating_mul(config.max_endpoints);
    let wanted = all.min(config.max_receive_buffers).max(config.receive_ring);
    Ok(wanted.next_power_of_two().min(1 << most.ilog2()))
}

/// Returns the receive buffers that an endpoint may have.
fn buffers_per_endpoint(config: &InterfaceConfig) -> u32 {
    config.receive_ring.saturating_add(config.spare_receive_buffers)
}

/// Returns the timeouts. Retries are at most as far apart as those of a connected queue pair.
fn patience(config: &InterfaceConfig) -> Patience {
    let between = match config.ack_timeout {
        // A device reads 0 as no limit.
        0 => 1000 * TICK,
        exponent => 4096_u64 << exponent,
    };
    Patience { between, whole: config.peer_timeout.as_nanos() as Time }
}

/// Nanoseconds of the clock of [`Instant`], whose arithmetic takes more instructions than reading it.
fn since_boot() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as Time * 1_000_000_000 + now.tv_nsec as Time
}

/// Returns the slot of the endpoint with this name.
#[inline(always)]
pub(super) fn slot_of(name: u32) -> u32 {
    name & u32::from(u16::MAX)
}

impl<D: Driver> Shared<D> {
    /// Returns whether progress has something to do besides packets.
    #[inline(always)]
    pub(super) fn needs_attention(&self) -> bool {
        self.attention.is_called()
    }

    /// Fails every endpoint if the device failed.
    pub(super) fn fail_with_device(&self) {
        let Some(event) = D::failure(&self.domain) else { return };
        let mut panics = Panics::default();
        for state in self.core.endpoints.all() {
            let (operation, cause) = (Operation::Unnamed, Cause::DeviceFailed);
            panics.catch(|| state.fail(operation, cause, Some(event.clone())));
        }
    }

    /// Makes progress finish the operations that were left behind by a callback that panicked.
    pub(super) fn catch_up_later(&self) {
        self.unwound.set(true);
        self.call_attention();
    }

    /// Makes progress, where callbacks run, fail the endpoint.
    #[cold]
    pub(super) fn fail_later(&self, state: &Rc<State<D>>, operation: Operation, cause: Cause) {
        self.failing.borrow_mut().push((Rc::clone(state), operation, cause));
        self.call_attention();
    }

    pub(super) fn fail_now(&self) {
        let mut panics = Panics::default();
        for (state, operation, cause) in self.failing.take() {
            panics.catch(|| state.fail(operation, cause, None));
        }
    }

    /// Calls `run` with the queue pair.
    #[cfg(feature = "mlx5")]
    pub(crate) fn with_queue<R>(&self, run: impl FnOnce(&mut D::Queue) -> R) -> R {
        self.socket.with_queue(run)
    }

    /// Nanoseconds since the interface was opened.
    pub(super) fn now(&self) -> Time {
        since_boot().wrapping_sub(self.opened)
    }

    /// Registers `count` more receive buffers.
    fn add_buffers(&self, count: u32) -> Result<(), OpenError> {
        self.socket
            .add(&self.domain, count)
            .map_err(|e| self.domain.refused("register receive buffers", e))
    }

    /// Doubles the number of receive buffers, up to those that the open endpoints may have, and to
    /// the limit of all: most endpoints are idle at any time, and share what the others do not use.
    /// Peers can cause it, so the limit holds whatever they send.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&self) {
        let have = self.socket.buffers();
        let endpoints = self.core.endpoints.count() as u32;
        let most = buffers_per_endpoint(&self.config).saturating_mul(endpoints);
        let count = most.min(self.most_buffers.get()).saturating_sub(have).min(have);
        if count > 0
            && let Err(error) = self.add_buffers(count)
        {
            tracing::debug!(%error, have, "could not register more receive buffers");
            self.most_buffers.set(have);
        }
    }

    /// Creates an unconnected endpoint.
    pub(crate) fn open_endpoint(self: &Rc<Self>) -> Result<Rc<State<D>>, OpenError> {
        self.core.check_opening()?;
        let (endpoints, limit) = (&self.core.endpoints, self.config.max_endpoints);
        let high = (random::number() as u32) << 16;
        let full = || OpenError::TooManyEndpoints { transport: D::ID, limit };
        endpoints.add(limit, |slot| State::new(Rc::clone(self), high | slot)).ok_or_else(full)
    }

    /// Returns the endpoint in the slot `place`.
    pub(super) fn at(&self, place: u32) -> Option<Rc<State<D>>> {
        self.core.endpoints.get(place)
    }

    /// Returns the endpoint with this name.
    pub(super) fn named(&self, name: u32) -> Option<Rc<State<D>>> {
        self.at(slot_of(name)).filter(|state| state.name == name)
    }

    /// Returns whether an endpoint may have a timer, or the interface has one for keepalive.
    pub(super) fn is_timed(&self) -> bool {
        !self.timed.borrow().is_empty() || self.core.keepalive.is_some()
    }

    /// Makes progress drop the endpoint.
    pub(super) fn close_later(&self, state: &State<D>) {
        state.closing.set(true);
        self.closing.set(true);
        self.call_attention();
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use barewire_hca as hca;

    use crate::InterfaceConfig;
    use crate::transport::ud_mlx5::{Domain, Interface};

    #[test]
    #[cfg_attr(miri, ignore = "it opens a device")]
    fn buffers_grow_up_to_their_limit() {
        let domain = Domain::open_soft(hca::Device::open(hca::Config::default()).unwrap()).unwrap();
        for (most, reached) in [(1, 6), (4, 6), (40, 40), (100, 100), (4095, 192)] {
            let config = InterfaceConfig::default()
                .receive_ring(4)
                .spare_receive_buffers(2)
                .max_receive_buffers(most)
                .max_endpoints(32);
            let (interface, _progress) = Interface::open(&domain, &config).unwrap();
            let shared = &interface.0;
            assert_eq!(shared.socket.buffers(), 6, "those of an endpoint");
            let endpoints: Vec<_> = (0..32).map(|_| shared.open_endpoint().unwrap()).collect();
            // As for messages that were sent again.
            (0..20).for_each(|_| shared.grow());
            assert_eq!(shared.socket.buffers(), reached, "{most}");
            drop(endpoints);
        }
    }
}
