//! Reliable connected queue pairs: creation, connection, error and reset.

use core::cmp::min_by_key;
use std::sync::Arc;
use std::time::{Duration, Instant};

use barewire_layouts::command::capability::PortType;
use barewire_layouts::command::qp::{Enhancements, QpState, ServiceType};
use barewire_layouts::roce::udp_source_port_within;
use barewire_layouts::wqe::ControlFlags;

use crate::address::RcAddress;
use crate::backend::{Backend, Initial, InitiatorSettings, Pair, Path, Receive};
use crate::context::{Context, ProtectionDomain, Uar};
use crate::doorbell::{BlueFlame, Doorbell};
use crate::error::Error;
use crate::pair::{Created, Resources, Wanted};
use crate::queue::completion::{Completion, CompletionKind, CompletionQueue, Polled};
use crate::queue::receive::ReceiveQueue;
use crate::queue::send::{SendQueue, WqeIndex};
use crate::queue::shared_receive::SharedReceiveQueue;
use crate::request::Nop;
use crate::sequence;
pub use crate::values::RcPath;
use crate::values::{Access, Port};

barewire_layouts::with_setters! {
    /// Sizes of a queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RcConfig {
        /// WQEBBs (64 bytes) in the send ring; rounded up to a power of two, at least 16 [default:
        /// 256].
        pub send_blocks: u32,
        /// Receive WQEs in the receive ring; rounded up to a power of two, at least 4 [default: 64].
        pub receive_entries: u32,
        /// At least one completion is requested in this many WQEBBs; rounded down to a power of two
        /// that is at most an eighth of the ring. 1 requests one with every WQE [default: 32].
        pub signal_period: u32,
        /// The peer's rights to memory of this protection domain over this queue pair; the rights
        /// of the memory's key count as well [default: all].
        pub access: Access,
        /// A number (24 bits) that completions of this queue pair carry [default: 0].
        pub user_index: u32,
        /// Messages of up to 32 bytes arrive in the completion, not in the buffers of their receive
        /// WQEs: see [`CompletionQueue::inline_data`]. Every received message must be checked for
        /// that [default: false].
        pub inline_receive: bool,
        /// The completion queues may have fewer entries than their queue pairs have WQEs: the caller
        /// posts fewer. More completions than entries are lost or garbled [default: false].
        pub overcommit: bool,
        /// The port, with its GID and partition: see [`Context::choose_port`]. The default is that
        /// of the context.
        pub port: Option<Port>,
    }
}

impl Default for RcConfig {
    fn default() -> Self {
        Self {
            send_blocks: 256,
            receive_entries: 64,
            signal_period: 32,
            access: Access::all(),
            user_index: 0,
            inline_receive: false,
            overcommit: false,
            port: None,
        }
    }
}

/// A reliable connected queue pair.
///
/// The queues are public so that both can be borrowed at the same time. Each keeps the device's
/// object, its ring and its record alive, and writes no others. Exchanging the queues of two pairs
/// is therefore memory safe, but completions and [`Self::reset`] then concern the other pair's
/// queue.
///
/// `R` is [`ReceiveQueue`], or an `Option` of it if the queue pair may receive from a shared receive
/// queue instead: [`Self::create_sharing`].
#[derive(Debug)]
#[must_use = "dropping it destroys the queue pair"]
pub struct RcQueuePair<D: Doorbell = BlueFlame, R = ReceiveQueue> {
    /// The send queue.
    pub send: SendQueue<D>,
    /// The receive queue.
    pub receive: R,
    number: u32,
    /// The packet sequence number at which it starts to send.
    psn: u32,
    user_index: Option<u32>,
    access: Access,
    port: Port,
    enhancements: Enhancements,
    accepted: Enhancements,
    resources: Arc<Resources>,
}

/// The receive queue of a queue pair that may have none.
pub trait OwnReceive: sealed::OwnReceive {}

mod sealed {
    use crate::queue::receive::ReceiveQueue;

    pub trait OwnReceive {
        /// Discards everything posted, after the queue pair was moved to the reset state.
        fn discard(&mut self);
    }

    impl OwnReceive for ReceiveQueue {
        fn discard(&mut self) {
            self.reset();
        }
    }

    /// A queue pair that receives nothing.
    impl OwnReceive for () {
        fn discard(&mut self) {}
    }

    impl OwnReceive for Option<ReceiveQueue> {
        fn discard(&mut self) {
            if let Some(queue) = self {
                queue.reset();
            }
        }
    }
}

impl OwnReceive for ReceiveQueue {}
impl OwnReceive for Option<ReceiveQueue> {}
impl OwnReceive for () {}

impl RcQueuePair {
    /// Creates a queue pair in the init state: receive WQEs may be posted, and the send queue has no
    /// room before [`Self::connect`].
    ///
    /// `send_completions` must have room for a CQE per send WQEBB, and `receive_completions` for
    /// one per receive WQE, in addition to those of their other queue pairs, unless
    /// [`RcConfig::overcommit`] is set: see [`CompletionQueue`].
    ///
    /// # Errors
    /// If a size exceeds the limit of the device, a completion queue belongs to another device, or
    /// the device refused.
    pub fn create(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        Self::create_with(domain, uar, send_completions, receive_completions, config)
    }
}

impl<D: Doorbell> RcQueuePair<D> {
    /// As `create`, for the doorbell `D`.
    ///
    /// # Errors
    /// As there, and if the registers of `uar` cannot be written as `D` requires.
    pub fn create_with(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let wanted = wanted(config, Receive::Own(config.receive_entries));
        let mut created =
            Created::new(domain, uar, send_completions, receive_completions, &wanted)?;
        let receive = created.receive()?;
        Self::initialised(domain, created, receive, config)
    }
}

impl<D: Doorbell> RcQueuePair<D, Option<ReceiveQueue>> {
    /// Like [`RcQueuePair::create`], but messages take WQEs of `shared`, if there is one:
    /// [`RcConfig::receive_entries`] is then ignored, and `receive_completions` needs room for a CQE
    /// per WQE of `shared`, once for all queue pairs.
    ///
    /// # Errors
    /// As [`RcQueuePair::create`], and if `shared` belongs to another device.
    pub fn create_sharing(
        domain: &ProtectionDomain,
        uar: &Uar,
        send_completions: &CompletionQueue,
        receive_completions: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let queue = shared.map(SharedReceiveQueue::resources).transpose()?;
        let receive = match &queue {
            Some(queue) => Receive::Shared(queue),
            None => Receive::Own(config.receive_entries),
        };
        let wanted = wanted(config, receive);
        let mut created =
            Created::new(domain, uar, send_completions, receive_completions, &wanted)?;
        let receive = created.receive.take();
        Self::initialised(domain, created, receive, config)
    }

    /// As [`Self::create_sharing`], with one completion queue, and without completions of sends
    /// except those that posts request ([`UNMODERATED`](crate::queue::send::UNMODERATED)).
    pub(crate) fn create_unmoderated(
        domain: &ProtectionDomain,
        uar: &Uar,
        completions: &CompletionQueue,
        shared: &SharedReceiveQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let queue = shared.resources()?;
        let wanted = Wanted { unmoderated: true, ..wanted(config, Receive::Shared(&queue)) };
        let created = Created::new(domain, uar, completions, completions, &wanted)?;
        Self::initialised(domain, created, None, config)
    }
}

/// A queue pair with the sizes of `config` that receives from `receive`.
fn wanted<'a>(config: &RcConfig, receive: Receive<'a>) -> Wanted<'a> {
    Wanted {
        service: ServiceType::Rc,
        send_blocks: config.send_blocks,
        receive,
        signal_period: config.signal_period,
        unmoderated: false,
        user_index: config.user_index,
        inline_receive: config.inline_receive,
        overcommit: config.overcommit,
        initiator: InitiatorSettings::default(),
    }
}

impl<D: Doorbell, R: OwnReceive> RcQueuePair<D, R> {
    pub(crate) fn initialised(
        domain: &ProtectionDomain,
        created: Created<D>,
        receive: R,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let Created { send, number, user_index, enhancements, resources, .. } = created;
        let (access, port) = (config.access, config.port.unwrap_or(*domain.context().port()));
        let accepted = Enhancements::NONE;
        let mut pair = Self {
            send,
            receive,
            number,
            psn: 0,
            user_index,
            access,
            port,
            enhancements,
            accepted,
            resources,
        };
        pair.send.close();
        pair.initialise()?;
        Ok(pair)
    }

    /// Queue pair number (24 bits).
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The user index that completions of this queue pair carry: [`RcConfig::user_index`], or
    /// `None` if libmlx5 assigned an index, which it does not report. Every completion carries the
    /// queue pair number.
    #[inline]
    pub fn user_index(&self) -> Option<u32> {
        self.user_index
    }

    #[cfg(feature = "rdma-cm")]
    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    /// Sets the GID, in the init state: the port and the partition must stay.
    #[cfg(feature = "rdma-cm")]
    pub(crate) fn set_port(&mut self, port: Port) {
        self.port = port;
    }

    /// Connects to the peer of `path`. Both directions work after both sides have connected; the
    /// sender retries messages that arrive earlier.
    ///
    /// # Errors
    /// If a value of `path` does not fit its field, the queue pair is connected and was not reset,
    /// or the device refused.
    pub fn connect(&mut self, path: &RcPath) -> Result<(), Error> {
        path.check()?;
        if self.send.is_open() {
            return Err(Error::Connected);
        }
        let (context, object) = (self.context(), &*self.resources.object);
        self.accepted = connect(context, object, &self.port, &self.address(), self.access, path)?;
        self.send.open();
        Ok(())
    }

    /// The enhancements (ECE) that the device supports: see [`RcPath::enhancements`].
    pub fn enhancements(&self) -> Enhancements {
        self.enhancements
    }

    /// The enhancements that the device has accepted of those of the path: the connection uses
    /// them. None before [`Self::connect`].
    pub fn accepted_enhancements(&self) -> Enhancements {
        self.accepted
    }

    /// The address for the peer's [`RcPath::to`], for one connection: a [reset](Self::reset)
    /// changes it.
    ///
    /// What changes is the packet sequence number at which this side starts to send: a random one.
    /// Packets of the connection before may still be in the network, and name the same queue pair.
    /// A device takes them for packets of the new connection only if they have the numbers that it
    /// expects. If `n` of them arrive while the new connection sends `m` packets, the probability
    /// is at most `(n + m) / 2^24` in each direction: 1 in 8000 for 1000 of each. To exclude it,
    /// wait before the next [`connect`](Self::connect) for as long as the network can hold a
    /// packet, as connection managers of InfiniBand do (the state TimeWait).
    pub fn address(&self) -> RcAddress {
        let Port { address: port, mtu, .. } = self.port;
        RcAddress { port, number: self.number, psn: self.psn, mtu }
    }

    /// Returns whether the queue pair, which is in error, has returned all WQEs that it took from
    /// its shared receive queue: they have completed (event `LAST_WQE_REACHED`). It is what the
    /// last [`Context::read_queue_events`](crate::Context::read_queue_events) read. `None` if it
    /// shares none, if it was reset (an event of before may still arrive), or if the event is not
    /// delivered: then they complete within a short time.
    pub fn is_drained(&self) -> Option<bool> {
        self.resources.object.is_drained()
    }

    /// Moves the queue pair to error: all outstanding WQEs complete as flushed, and the peer's
    /// operations fail.
    ///
    /// # Errors
    /// If the device refused.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.resources.object.fail()
    }

    /// Moves the queue pair to error, and polls `completions`, the queue of its sends, until all
    /// send WQEs are complete. Passes those of this queue pair to [`SendQueue::reap`] and
    /// [`SendQueue::fail`], and every completion to `each`, also those of other queues.
    ///
    /// Next, [`SendQueue::is_executed`] tells which WQEs were executed, and then comes a
    /// [`reset`](Self::reset) or the drop.
    ///
    /// ```
    /// # use barewire_mlx5::channel::soft::Soft;
    /// # use barewire_mlx5::request::{Word, Write};
    /// # use barewire_mlx5::*;
    /// # use std::time::Duration;
    /// # let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
    /// # let domain = ProtectionDomain::allocate(&context)?;
    /// # let uar = Uar::allocate(&context)?;
    /// # let mut completions = CompletionQueue::create(&context, &uar, 1024)?;
    /// # let config = RcConfig::default();
    /// # let mut ours = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
    /// # let mut theirs = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
    /// # ours.connect(&RcPath::to(&theirs.address()))?;
    /// # theirs.connect(&RcPath::to(&ours.address()))?;
    /// # let memory = Buffer::allocate(&domain, 4096, Access::all())?;
    /// // A write, one to memory that the peer has not registered, and another one.
    /// let nowhere = RemoteAddressSegment::new(0x1000, 0x1234);
    /// let targets = [memory.region().remote(0), nowhere, memory.region().remote(8)];
    /// let mut posted = Vec::new();
    /// for target in targets {
    ///     let write = Write { local: Word(*b"barewire"), remote: target };
    ///     posted.push(ours.send.post(write, ControlFlags::empty())?);
    /// }
    ///
    /// let mut cause = None;
    /// ours.drain(&mut completions, Duration::from_secs(10), |completion| {
    ///     if let CompletionKind::SendError(failure) = completion.kind {
    ///         cause.get_or_insert(failure);
    ///     }
    /// })?;
    /// assert!(ours.send.is_idle());
    /// // The first has arrived, unless the drain was faster. The others have not.
    /// let arrived: Vec<bool> = posted.iter().map(|write| ours.send.is_executed(*write)).collect();
    /// assert_eq!(arrived[1..], [false, false]);
    /// println!("{}", cause.ok_or("no WQE has failed")?);
    ///
    /// // The same on the other side; then both connect again.
    /// theirs.drain(&mut completions, Duration::from_secs(10), |_| {})?;
    /// ours.reset()?;
    /// theirs.reset()?;
    /// ours.connect(&RcPath::to(&theirs.address()))?;
    /// theirs.connect(&RcPath::to(&ours.address()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the device refused, or [`Error::TimedOut`]. The latter also if the send queue is full and
    /// the caller has polled the completion of its last WQE without a call of `reap` or `fail`.
    pub fn drain(
        &mut self,
        completions: &mut CompletionQueue,
        timeout: Duration,
        each: impl FnMut(&Completion),
    ) -> Result<(), Error> {
        self.drain_with(timeout, || completions.poll().map(Polled::completion), each)
    }

    /// As [`drain`](Self::drain), with completions that `next` returns: for a queue pair whose
    /// completion queue another thread polls. That thread sends the queue pair's completions to the
    /// thread of this call ([`Completion::qpn`]), for example through a channel. `next` returns
    /// `None` if there is none yet, and may wait for one for a short time.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    pub fn drain_with(
        &mut self,
        timeout: Duration,
        mut next: impl FnMut() -> Option<Completion>,
        mut each: impl FnMut(&Completion),
    ) -> Result<(), Error> {
        if !self.send.is_open() {
            return Ok(());
        }
        self.to_error()?;
        // Those whose doorbell the caller has deferred.
        self.send.announce();
        let start = Instant::now();
        // WQEs that were executed without a request for a completion have none of their own.
        let mut last = self.send.post(Nop, ControlFlags::COMPLETION);
        while last.is_err() || !self.send.is_idle() {
            if start.elapsed() >= timeout {
                let what = "completions of all send WQEs, in the completion queue of the call \
                            (those that were polled before need a call of SendQueue::reap or fail)";
                return Err(Error::TimedOut { what, waited: timeout });
            }
            if let Some(completion) = next() {
                let counter = completion.wqe_counter;
                let is_ours = completion.qpn == self.number;
                let is_send = match completion.kind {
                    CompletionKind::Send if is_ours => {
                        self.send.reap(counter);
                        true
                    }
                    CompletionKind::SendError(_) if is_ours => {
                        self.send.fail(counter);
                        true
                    }
                    _ => false,
                };
                // The caller knows nothing of the NOP.
                if !(is_send && last == Ok(WqeIndex(counter))) {
                    each(&completion);
                }
            } else {
                std::thread::yield_now();
            }
            if last.is_err() {
                last = self.send.post(Nop, ControlFlags::COMPLETION);
            }
        }
        Ok(())
    }

    /// Moves the queue pair back to the init state, from any state. Poll the completion queues
    /// until they are empty first, as by [`drain`](Self::drain): they may contain completions of
    /// WQEs posted before the reset. The queues forget these WQEs, indices start again at 0, and
    /// [`address`](Self::address) is another one.
    ///
    /// # Errors
    /// If the device refused.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.resources.object.reset()?;
        self.accepted = Enhancements::NONE;
        self.send.reset();
        self.send.close();
        self.receive.discard();
        self.initialise()
    }

    /// Queries the state of the queue pair.
    ///
    /// # Errors
    /// If the device refused, or returned a state that this driver does not know.
    pub fn state(&self) -> Result<QpState, Error> {
        self.resources.object.state()
    }

    /// Queries the fields of the queue pair's context that decide how the connection works: names
    /// as in mlx5_ifc.h (`qpc`, `ads`), and values. For diagnostics; empty if the queue pair was
    /// created by verbs.
    ///
    /// # Errors
    /// If the device refused.
    pub fn read_back(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        self.resources.object.read_back()
    }

    fn initialise(&mut self) -> Result<(), Error> {
        self.psn = sequence::start();
        initialise(self.context(), &*self.resources.object, &self.port, self.access)
    }

    pub(crate) fn context(&self) -> &Context {
        self.resources.context()
    }
}

/// Moves a queue pair from reset to init, with the peer's rights.
pub(crate) fn initialise(
    context: &Context,
    object: &dyn Pair,
    port: &Port,
    access: Access,
) -> Result<(), Error> {
    let masked_atomics = context.capabilities().masked_atomics;
    object.initialise(port, &Initial::Connected { access, masked_atomics })
}

/// Connects the queue pair with the address `own` from the init state. The caller has checked the
/// values of `path`.
/// Returns the enhancements that the device has accepted.
pub(crate) fn connect(
    context: &Context,
    object: &dyn Pair,
    port: &Port,
    own: &RcAddress,
    access: Access,
    path: &RcPath,
) -> Result<Enhancements, Error> {
    let capabilities = context.capabilities();
    let mac = match (context.backend(), capabilities.port_type) {
        (Backend::Commands(channel), PortType::Ethernet) => channel.next_hop(port, &path.remote)?,
        // The kernel resolves the address.
        _ => path.remote.mac,
    };
    let path = Path {
        wanted: path,
        send_psn: path.send_psn.unwrap_or(own.psn),
        mtu: min_by_key(path.mtu, port.mtu, |mtu| mtu.bytes()),
        port_type: capabilities.port_type,
        mac,
        udp_source_port: udp_source_port_within(
            own.number,
            path.remote_qpn,
            capabilities.udp_source_ports,
        ),
        log_max_message: capabilities.max_message.ilog2() as u8,
        access,
        masked_atomics: capabilities.masked_atomics,
        log_requester_reads: path.log_max_reads.min(capabilities.log_max_reads_requester),
        log_responder_reads: path
            .log_peer_reads
            .unwrap_or(path.log_max_reads)
            .min(capabilities.log_max_reads_responder),
    };
    object.connect(port, &path)
}
