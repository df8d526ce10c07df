//! The driver of XRC for the core of reliable connections.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::time::Instant;

use barewire_mlx5::xrc::{Name, Receiver, Target};
use barewire_mlx5::{CompletionQueue, Family, Notifier, PortAddress, RcConfig, Uar};

use super::address::{ReceiverAddress, Receiving};
use super::queue::{Initiator, Line};
use super::{Domain, ID, XrcMlx5};
use crate::base::address::{InterfaceAddress, TransportId};
use crate::base::attributes::Flags;
use crate::base::config::InterfaceConfig;
use crate::base::error::{Cause, ConnectError, OpenError};
use crate::base::event::{Armed, EventError, after};
use crate::transport::common::operation::InFlightQueue;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::registered::Domain as _;
use crate::transport::common::watch::Alarm;
use crate::transport::handle::{InterfaceState as _, Keepalive};
use crate::transport::mlx5::domain::ATTENTION;
use crate::transport::mlx5::path::{self, mtu_code, path_to};
use crate::transport::mlx5::shared::{GRACE, Owner, SharedReceiver, most_buffers, ring_of};
use crate::transport::rc::{self, Created, Limits, Opened, Path, QueueAddress};

/// An endpoint of this transport, behind its handles.
pub(super) type State = rc::State<XrcMlx5>;
/// An interface of this transport, behind its handles.
pub(super) type Shared = rc::Shared<XrcMlx5>;

/// The user index of received messages, which is not used. Those of connections are slots.
const RECEIVER_INDEX: u32 = 0x00ff_fffe;

/// The driver's state of an interface.
pub(crate) struct Interface {
    /// Polled only by progress.
    pub(super) completions: UnsafeCell<CompletionQueue>,
    pub(super) receiver: Owner,
    /// The name of the receiver for the queue pairs of connections.
    name: Name,
    /// For each connected node, an endpoint to it.
    pub(super) nodes: RefCell<HashMap<u64, Weak<State>>>,
    uar: Uar,
    /// Code of the path MTU.
    mtu: u8,
    /// The completion events, if the device has them.
    notifier: Option<Notifier>,
    /// Calls for attention when the device fails.
    alarm: OnceCell<Alarm>,
}

impl Interface {
    fn notifier(&self) -> Result<&Notifier, EventError> {
        let reason = "this command channel has no completion events";
        self.notifier.as_ref().ok_or(EventError::Missing { transport: ID, reason })
    }
}

/// The driver's state of an endpoint.
#[derive(Default)]
pub(crate) struct Endpoint {
    /// The peer's node, once it is connected.
    pub(super) node: Cell<Option<u64>>,
    /// When the endpoint was stopped, if its target must first return what it took from a receive
    /// queue.
    stopped: Cell<Option<Instant>>,
}

/// Returns the parts of another endpoint on the connection of `line`, whose first endpoint has the
/// address `own`.
pub(super) fn created(line: Line, own: &QueueAddress<Receiving>) -> Created<XrcMlx5> {
    Created {
        queue: line,
        qpn: own.qpn,
        mtu: own.mtu,
        reads: own.reads,
        user_index: None,
        endpoint: Endpoint::default(),
        tail: own.tail,
    }
}

impl rc::Driver for XrcMlx5 {
    const ID: TransportId = ID;
    const MTU_CODES: RangeInclusive<u8> = path::MTU_CODES;
    const READS_CODES: RangeInclusive<u8> = path::READS_CODES;

    type Domain = Domain;
    type Port = PortAddress;
    type Queue = Line;
    type InFlight = Rc<InFlightQueue>;
    type Tail = Receiving;
    type Interface = Interface;
    type Endpoint = Endpoint;

    /// Requests of the peer arrive at the target.
    fn has_own_windows(_: &State) -> bool {
        false
    }

    fn limits(domain: &Domain) -> Limits {
        path::limits(domain)
    }

    fn port(domain: &Domain) -> PortAddress {
        domain.port().address
    }

    fn choose(domain: &Domain, config: &InterfaceConfig) -> Result<Domain, OpenError> {
        domain.chosen(config)
    }

    fn interface_address(shared: &Shared) -> InterfaceAddress {
        ReceiverAddress {
            queue: shared.driver.name.number(),
            flush_key: shared.flush_word.remote_key(),
            flush_address: shared.flush_word.address(),
            node: shared.domain.node().map_or(0, |node| node.id),
        }
        .pack()
    }

    fn open(
        domain: &Domain,
        config: &InterfaceConfig,
        sends: u32,
    ) -> Result<Opened<Self>, OpenError> {
        domain.check_family(Family::Xrc)?;
        let context = domain.context();
        let node = domain.node().map_err(|e| domain.refused("allocate an XRC domain", e))?;
        let mut attributes = super::attributes_of(config, context.capabilities());
        let limit = context.capabilities().max_cq_entries;
        let most = most_buffers(config);
        let receives = ring_of(most);
        let entries = rc::entries(ID, config, limit, [sends, receives])?;
        let uar = Uar::allocate(context).map_err(|e| domain.refused("take a UAR page", e))?;
        let (completions, notifier) = CompletionQueue::create_with_notifier(context, &uar, entries)
            .map_err(|e| domain.refused("create a completion queue", e))?;
        let receiver = Receiver::create(
            domain.protection(),
            &node.domain,
            &completions,
            receives,
            1,
            RECEIVER_INDEX,
        )
        .map_err(|e| domain.refused("create an XRC receive queue", e))?;
        let Receiver { queue, name } = receiver;
        let receiver = SharedReceiver::over(domain, queue, config.receive_ring, most)?;
        attributes.flags.set(Flags::EVENT_FD, notifier.is_some());
        domain.note_software(&mut attributes.flags);
        Ok(Opened {
            attributes,
            has_user_index: true,
            interface: Interface {
                completions: UnsafeCell::new(completions),
                receiver,
                name,
                nodes: RefCell::default(),
                uar,
                mtu: mtu_code(config.path_mtu).min(domain.port().mtu as u8),
                notifier,
                alarm: OnceCell::new(),
            },
        })
    }

    fn opened(shared: &Rc<Shared>) -> Result<(), OpenError> {
        let keepalive = shared.core.keepalive.as_ref();
        let Some(watch) = shared.domain.watch()? else { return Keepalive::refuse(keepalive, ID) };
        let flag = NonNull::from(&shared.attention);
        // SAFETY: the alarm is a part of the value that contains the flag, which does not move out
        // of its `Rc`: it is dropped before the flag's memory is freed.
        let alarm = unsafe { watch.alarm(flag, keepalive.is_some()) };
        let _ = shared.driver.alarm.set(alarm);
        Ok(())
    }

    fn has_failed(shared: &Shared) -> bool {
        shared.domain.failure().is_some()
    }

    fn detail(shared: &Shared, cause: Cause) -> Option<String> {
        shared.domain.failure().filter(|_| cause == Cause::DeviceFailed)
    }

    fn create(shared: &Shared, slot: u32) -> Result<Created<Self>, OpenError> {
        let (config, domain, interface) = (&shared.config, &shared.domain, &shared.driver);
        let node = domain.node().map_err(|e| domain.refused("allocate an XRC domain", e))?;
        let pair_config = RcConfig::default()
            .send_blocks(config.send_ring)
            .signal_period(config.signal_every)
            .user_index(slot)
            .overcommit(true)
            .port(Some(*domain.port()));
        // SAFETY: the queue is borrowed mutably only while `Progress` polls it or `arm` uses it;
        // neither runs user code meanwhile, so this function is not called then.
        let completions = unsafe { &*interface.completions.get() };
        let protection = domain.protection();
        let initiator = Initiator::create_initiator(
            protection,
            &interface.uar,
            &interface.name,
            completions,
            &pair_config,
        )
        .map_err(|e| domain.refused("create an XRC initiator", e))?;
        let target = Target::create_target(protection, &interface.name, completions, &pair_config)
            .map_err(|e| domain.refused("create an XRC target", e))?;
        let tail =
            Receiving { target: target.number(), queue: interface.name.number(), node: node.id };
        Ok(Created {
            qpn: initiator.number(),
            mtu: interface.mtu,
            reads: config.max_rd_atomic.ilog2() as u8,
            user_index: initiator.user_index(),
            queue: Line::new(initiator, target),
            endpoint: Endpoint::default(),
            tail,
        })
    }

    fn connect(state: &State, path: &Path<Self>) -> Result<(), ConnectError> {
        let config = &state.shared.config;
        let from = path_to(config, path, path.qpn);
        let to = path_to(config, path, path.tail.target);
        state
            .with_queue(|line| line.connect([&from, &to], path.tail.queue))
            .map_err(|error| State::refused(path, error))?;
        state.driver.node.set(Some(path.tail.node));
        let mut nodes = state.shared.driver.nodes.borrow_mut();
        if nodes.len() == nodes.capacity() {
            nodes.retain(|_, endpoint| endpoint.strong_count() > 0);
        }
        nodes.insert(path.tail.node, state.me.clone());
        Ok(())
    }

    fn stop(state: &State) {
        let posting = &state.posting;
        // One endpoint of a connection resets it when the interface is closed.
        if posting.has(PostBlock::Closed) && state.user_index.get().is_none() && state.is_sharing()
        {
            return;
        }
        // A device that refuses keeps the queue pairs until they are destroyed, and their memory
        // with them.
        if posting.has(PostBlock::Closed) || posting.has(PostBlock::Unconnected) {
            let _ = state.with_queue(Line::reset);
        } else {
            state.driver.stopped.set(Some(Instant::now()));
            let _ = state.with_queue(Line::fail);
        }
    }

    fn is_released(state: &State) -> bool {
        if state.is_sharing() {
            let is_idle = state.with_queue(|line| rc::Queue::is_idle(line));
            if !is_idle {
                // The other endpoints may post nothing more. On a full queue, the next call tries
                // again.
                let _ = state.signal_last();
            }
            return is_idle;
        }
        match state.driver.stopped.get() {
            Some(since) => since.elapsed() > GRACE,
            None if state.posting.has(PostBlock::Unconnected) => true,
            // The other endpoints on its connection were closed later, and are released.
            None => {
                state.stop(PostBlock::Failed);
                false
            }
        }
    }

    #[inline(always)]
    fn take(progress: &mut super::Progress) -> usize {
        progress.take()
    }

    fn is_drained(shared: &Shared) -> bool {
        // SAFETY: the queue is borrowed mutably only while `Progress` polls it or `arm` uses it;
        // neither runs user code meanwhile, so this function is not called then.
        unsafe { &*shared.driver.completions.get() }.is_empty()
    }

    fn event_fd(shared: &Shared) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(Some(shared.driver.notifier()?.as_fd()))
    }

    fn arm(shared: &Shared) -> Result<Armed, EventError> {
        let notifier = shared.driver.notifier()?;
        if Self::has_failed(shared) && shared.has_living_endpoint() {
            shared.call_attention();
            return Ok(Armed::Ready);
        }
        // Requests that wait for completions do not prevent a sleep.
        let arbiter = &shared.core.arbiter;
        let unsettled = shared.needs_attention() && (arbiter.is_empty() || arbiter.has_new());
        // SAFETY: only `Progress` polls the queue, and it does not call this function while it
        // does. The borrow ends with this function, which runs no user code.
        let completions = unsafe { &mut *shared.driver.completions.get() };
        if unsettled || shared.closing.get() > 0 || shared.unwound.get() || !completions.is_empty()
        {
            return Ok(Armed::Ready);
        }
        if !notifier.arm(completions) {
            return Ok(Armed::Ready);
        }
        // The failure of the device does not make the descriptor readable.
        Ok(Armed::Until(after(Instant::now(), ATTENTION)))
    }
}
