//! Queue pairs: creation, connection, and access for posting.

mod attributes;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use rdma_sys::{
    ibv_ece, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type,
};

pub use attributes::{
    Capacity, Enhancements, Initialize, QueuePairKind, QueuePairOptions, QueuePairState,
    ReadyToReceive, ReadyToSend,
};

use crate::post::ReceiveQueue;
use crate::sys::{Extended, Plain, Qp, QpQueues, Td};
use crate::{Context, Error, ProtectionDomain};

/// Only verbs post to the queue pair ([`QueuePair::post`]).
#[derive(Debug)]
pub struct Poster {
    extended: Option<Extended>,
    capacity: Capacity,
    is_datagram: bool,
}

/// Like [`Poster`], on one thread ([`OneThread`]).
#[derive(Debug)]
pub struct LocalPoster {
    poster: Poster,
    _here: PhantomData<Rc<()>>,
}

/// The access types of queue pairs to which verbs post, as opposed to a driver.
pub trait Posts {
    #[doc(hidden)]
    fn poster(&self) -> &Poster;
}

impl Posts for Poster {
    #[inline]
    fn poster(&self) -> &Poster {
        self
    }
}

impl Posts for LocalPoster {
    #[inline]
    fn poster(&self) -> &Poster {
        &self.poster
    }
}

/// A thread domain whose queue pairs stay on the thread that created it. For them some providers
/// (libmlx5) take no locks, and they use a register that queue pairs of other threads do not use.
/// If the provider does not support thread domains, the queue pairs are ordinary ones. verbs.h:
/// `ibv_alloc_td`.
pub struct OneThread {
    domain: Option<Arc<Td>>,
    _here: PhantomData<Rc<()>>,
}

impl OneThread {
    /// Creates a domain for this thread and a device.
    pub fn new(context: &Context) -> Self {
        Self { domain: Td::allocate(context.open_context()).ok().map(Arc::new), _here: PhantomData }
    }

    /// Like [`QueuePair::new`].
    ///
    /// # Errors
    /// Those of [`QueuePair::new`].
    pub fn queue_pair(
        &self,
        domain: &ProtectionDomain,
        options: &QueuePairOptions,
    ) -> Result<QueuePair<LocalPoster>, Error> {
        let made = QueuePair::by_builder(domain, self.domain.as_ref(), options)?;
        let QueuePair { qp, kind, capacity, access: poster } = made;
        Ok(QueuePair { qp, kind, capacity, access: LocalPoster { poster, _here: PhantomData } })
    }
}

impl fmt::Debug for OneThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneThread")
            .field("has_domain", &self.domain.is_some())
            .finish_non_exhaustive()
    }
}

/// A queue pair. `A` is the kind of access to its rings: by verbs, or directly by a driver in this
/// program ([`dv::QueuePair`](crate::dv::QueuePair)).
#[must_use = "dropping it destroys the queue pair"]
pub struct QueuePair<A = Poster> {
    qp: Arc<Qp>,
    kind: QueuePairKind,
    capacity: Capacity,
    access: A,
}

impl Poster {
    /// Access to a connected queue pair without builder functions.
    #[cfg(test)]
    pub(crate) fn listing(capacity: Capacity) -> Self {
        Self { extended: None, capacity, is_datagram: false }
    }

    #[inline]
    pub(crate) fn extended(&self) -> Option<&Extended> {
        self.extended.as_ref()
    }

    #[inline]
    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    #[inline]
    pub(crate) fn is_datagram(&self) -> bool {
        self.is_datagram
    }
}

/// How requests are passed to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostBy {
    /// By functions that build the request in place (`ibv_wr_*`).
    Builder,
    /// By a list of requests (`ibv_post_send`), which every provider supports.
    List,
}

impl QueuePair {
    /// Creates a queue pair in state RESET. Requests are posted with [`PostBy::Builder`] if the
    /// provider supports it, and with [`PostBy::List`] otherwise. Soft-RoCE supports the former,
    /// but handles inline data and lists wrongly (rdma-core 44), so the latter is used for it as
    /// well.
    ///
    /// # Errors
    /// If the device cannot provide the capacity.
    pub fn new(domain: &ProtectionDomain, options: &QueuePairOptions) -> Result<Self, Error> {
        Self::by_builder(domain, None, options)
    }

    fn by_builder(
        domain: &ProtectionDomain,
        thread: Option<&Arc<Td>>,
        options: &QueuePairOptions,
    ) -> Result<Self, Error> {
        if domain.handle().context().is_soft_roce() {
            return Self::by_list(domain, options);
        }
        Self::made(domain, options, |attributes, queues| {
            let (domain, operations) = (domain.handle(), options.kind.operations());
            let mut extended = |thread| {
                Qp::create_extended(domain, thread, queues.clone(), attributes, operations)
            };
            // The device may have no free register. A queue pair without a thread domain reports
            // every other error as well.
            extended(thread)
                .or_else(|_| extended(None))
                .or_else(|_| Qp::create(domain, queues, attributes))
        })
    }

    /// Like [`Self::new`], but always with [`PostBy::List`].
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn by_list(domain: &ProtectionDomain, options: &QueuePairOptions) -> Result<Self, Error> {
        Self::made(domain, options, |attributes, queues| {
            Qp::create(domain.handle(), queues, attributes)
        })
    }

    pub(crate) fn made(
        domain: &ProtectionDomain,
        options: &QueuePairOptions,
        create: impl FnOnce(&mut ibv_qp_init_attr, QpQueues) -> io::Result<Qp>,
    ) -> Result<Self, Error> {
        let mut attributes = options.attributes();
        let qp = create(&mut attributes, options.queues()).map_err(|source| {
            let action =
                format!("create a queue pair ({:?}, {:?})", options.kind, options.capacity);
            Error::new(domain.device(), action, source)
        })?;
        let capacity = Capacity {
            sends: attributes.cap.max_send_wr,
            receives: attributes.cap.max_recv_wr,
            send_elements: attributes.cap.max_send_sge,
            receive_elements: attributes.cap.max_recv_sge,
            inline: attributes.cap.max_inline_data,
        };
        let is_datagram = options.kind == QueuePairKind::UnreliableDatagram;
        let qp = Arc::new(qp);
        let access = Poster { extended: Extended::of(&qp), capacity, is_datagram };
        Ok(Self { qp, kind: options.kind, capacity, access })
    }
}

impl<A: Posts> QueuePair<A> {
    /// How requests are passed to the provider.
    pub fn post_by(&self) -> PostBy {
        if self.access.poster().extended.is_some() { PostBy::Builder } else { PostBy::List }
    }

    /// The receive queue. Posting to it fails if the queue pair was created with a shared receive
    /// queue.
    pub fn receive_queue(&self) -> ReceiveQueue {
        ReceiveQueue::new(&self.qp)
    }

    #[inline]
    pub(crate) fn poster(&self) -> (&Qp, &Poster) {
        (&self.qp, self.access.poster())
    }
}

impl QueuePairOptions {
    fn queues(&self) -> QpQueues {
        QpQueues {
            send: Arc::clone(self.send_queue.handle()),
            receive: Arc::clone(self.receive_queue.handle()),
            shared: self.shared_receive.as_ref().map(|queue| Arc::clone(queue.handle())),
        }
    }

    fn attributes(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            cap: ibv_qp_cap {
                max_send_wr: self.capacity.sends,
                max_recv_wr: self.capacity.receives,
                max_send_sge: self.capacity.send_elements,
                max_recv_sge: self.capacity.receive_elements,
                max_inline_data: self.capacity.inline,
            },
            qp_type: match self.kind {
                QueuePairKind::ReliableConnection => ibv_qp_type::IBV_QPT_RC,
                QueuePairKind::UnreliableConnection => ibv_qp_type::IBV_QPT_UC,
                QueuePairKind::UnreliableDatagram => ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: i32::from(self.signal_all),
            ..ibv_qp_init_attr::zeroed()
        }
    }
}

impl<A> QueuePair<A> {
    pub(crate) fn handle(&self) -> &Qp {
        &self.qp
    }

    pub(crate) fn access(&self) -> &A {
        &self.access
    }

    /// The same queue pair, with another kind of access to its queues.
    pub(crate) fn with_access<B>(self, access: B) -> QueuePair<B> {
        QueuePair { qp: self.qp, kind: self.kind, capacity: self.capacity, access }
    }

    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    /// The type of the queue pair.
    pub fn kind(&self) -> QueuePairKind {
        self.kind
    }

    /// The capacity that the device provides, which is at least the requested one.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Changes the state from RESET to INIT. Receive requests may be posted afterwards.
    ///
    /// # Errors
    /// If the state is not RESET, or a value is invalid.
    pub fn initialize(&self, values: &Initialize) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr {
            port_num: values.port,
            pkey_index: values.partition_index,
            qp_access_flags: values.access.to_verbs(),
            qkey: values.queue_key,
            ..ibv_qp_attr::zeroed()
        };
        let kind = match self.kind {
            QueuePairKind::UnreliableDatagram => mask::IBV_QP_QKEY,
            _ => mask::IBV_QP_ACCESS_FLAGS,
        };
        let named = mask::IBV_QP_PORT | mask::IBV_QP_PKEY_INDEX | kind;
        self.go(ibv_qp_state::IBV_QPS_INIT, &mut attributes, named)
    }

    /// Changes the state from INIT to RTR. The queue pair receives afterwards. Datagrams need no
    /// parameters.
    ///
    /// # Errors
    /// If the state is not INIT, the parameters are missing or invalid, or the peer is not
    /// reachable.
    pub fn ready_to_receive(&self, values: Option<&ReadyToReceive>) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr::zeroed();
        let mut named = mask(0);
        if let Some(values) = values {
            if !values.mtu.is_power_of_two() || !(256..=4096).contains(&values.mtu) {
                let what = format!(
                    "{} bytes is not a path MTU: use 256, 512, 1024, 2048 or 4096",
                    values.mtu
                );
                let source = io::Error::new(io::ErrorKind::InvalidInput, what);
                return Err(self.error("connect a queue pair", source));
            }
            attributes.path_mtu = values.mtu.ilog2() - 7;
            attributes.dest_qp_num = values.peer;
            attributes.rq_psn = values.packet_sequence_number;
            attributes.max_dest_rd_atomic = values.responder_resources;
            attributes.min_rnr_timer = values.rnr_timer;
            attributes.ah_attr = values.route.attributes();
            named = mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN;
            if self.kind == QueuePairKind::ReliableConnection {
                named = named | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
            }
        }
        self.go(ibv_qp_state::IBV_QPS_RTR, &mut attributes, named)
    }

    /// Changes the state from RTR to RTS. The queue pair sends afterwards.
    ///
    /// # Errors
    /// If the state is not RTR, or a value is invalid.
    pub fn ready_to_send(&self, values: &ReadyToSend) -> Result<(), Error> {
        let mut attributes = ibv_qp_attr {
            sq_psn: values.packet_sequence_number,
            timeout: values.timeout,
            retry_cnt: values.retries,
            rnr_retry: values.rnr_retries,
            max_rd_atomic: values.initiator_depth,
            ..ibv_qp_attr::zeroed()
        };
        let mut named = mask::IBV_QP_SQ_PSN;
        if self.kind == QueuePairKind::ReliableConnection {
            named = named
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.go(ibv_qp_state::IBV_QPS_RTS, &mut attributes, named)
    }

    /// Changes the state to ERR. All outstanding requests complete as flushed.
    ///
    /// # Errors
    /// The error of the device.
    pub fn fail(&self) -> Result<(), Error> {
        self.go(ibv_qp_state::IBV_QPS_ERR, &mut ibv_qp_attr::zeroed(), mask(0))
    }

    /// Changes the state to RESET. All outstanding requests are discarded without completions.
    ///
    /// # Errors
    /// The error of the device.
    pub fn reset(&self) -> Result<(), Error> {
        self.go(ibv_qp_state::IBV_QPS_RESET, &mut ibv_qp_attr::zeroed(), mask(0))
    }

    /// Queries the state of the queue pair.
    ///
    /// # Errors
    /// The error of the device.
    pub fn state(&self) -> Result<QueuePairState, Error> {
        let attributes = self.qp.query(mask::IBV_QP_STATE.0);
        let attributes = attributes.map_err(|source| self.error("query a queue pair", source))?;
        Ok(QueuePairState::from_verbs(attributes.qp_state))
    }

    /// Returns the enhancements (ECE) that the device supports, or, once they were set and the
    /// queue pair is ready to receive, those that the device accepted. Send the former to the peer,
    /// which sets them with [`Self::set_enhancements`] before RTR and sends back the latter. This
    /// side sets these before RTR.
    ///
    /// # Errors
    /// If the device does not support enhancements. The connection then works without them.
    pub fn enhancements(&self) -> Result<Enhancements, Error> {
        let found =
            self.qp.query_ece().map_err(|source| self.error("query the enhancements", source))?;
        Ok(Enhancements { vendor: found.vendor_id, options: found.options, mask: found.comp_mask })
    }

    /// Sets the enhancements on which both sides agreed.
    ///
    /// # Errors
    /// If the device does not support them.
    pub fn set_enhancements(&self, agreed: &Enhancements) -> Result<(), Error> {
        let agreed =
            ibv_ece { vendor_id: agreed.vendor, options: agreed.options, comp_mask: agreed.mask };
        self.qp.set_ece(agreed).map_err(|source| self.error("set the enhancements", source))
    }

    fn go(&self, state: u32, attributes: &mut ibv_qp_attr, named: mask) -> Result<(), Error> {
        attributes.qp_state = state;
        self.qp.modify(attributes, (named | mask::IBV_QP_STATE).0).map_err(|source| {
            let state = QueuePairState::from_verbs(state);
            self.error(&format!("bring queue pair {:#x} to state {state:?}", self.number()), source)
        })
    }

    pub(crate) fn error(&self, action: &str, source: io::Error) -> Error {
        Error::new(self.qp.context().name(), action, source)
    }
}

impl<A: fmt::Debug> fmt::Debug for QueuePair<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &format_args!("{:#x}", self.number()))
            .field("kind", &self.kind)
            .field("capacity", &self.capacity)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
