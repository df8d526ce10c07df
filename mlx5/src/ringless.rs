//! Queue pairs without rings: the target of an XRC connection, and the queue pair with which the
//! device executes rendezvous.

use core::any::Any;
use std::sync::Arc;

use barewire_layouts::command::qp::{QpState, ServiceType};

use crate::address::RcAddress;
use crate::backend::{InitiatorSettings, Pair, PairSizes, Receive, commands};
use crate::context::{ProtectionDomain, Registers, Uar};
use crate::cq;
use crate::error::Error;
use crate::queue::completion::CompletionQueue;
use crate::rc::{self, RcConfig};
use crate::sequence;
use crate::values::{Access, Port, RcPath, check_user_index};

/// A connected queue pair to which the program posts nothing. See [`crate::xrc::Target`] and
/// [`crate::tags::RendezvousPair`].
#[derive(Debug)]
#[must_use = "dropping it destroys the queue pair"]
pub struct RinglessPair {
    object: Box<dyn Pair>,
    number: u32,
    /// As that of a queue pair with rings, although only its acknowledgments are sent, if any.
    psn: u32,
    access: Access,
    port: Port,
    domain: ProtectionDomain,
    // Objects that it uses, dropped after it.
    _completions: Arc<cq::Resources>,
    _receive: Arc<dyn Any + Send + Sync>,
    _registers: Option<Registers>,
}

impl RinglessPair {
    /// Creates a queue pair in the init state, with `access`, `port` and `user_index` of `config`.
    /// `keep` holds what `receive` names.
    pub(crate) fn create(
        domain: &ProtectionDomain,
        uar: Option<&Uar>,
        completions: &CompletionQueue,
        service: ServiceType,
        (receive, keep): (Receive<'_>, Arc<dyn Any + Send + Sync>),
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let queue = completions.resources()?;
        context.owns(&queue.context)?;
        check_user_index(config.user_index)?;
        let sizes = PairSizes {
            send_blocks: 0,
            receive,
            user_index: config.user_index,
            timestamps: context.capabilities().timestamps(),
            service,
            inline_receive: false,
            enhancements: context.capabilities().enhancements,
            initiator: InitiatorSettings::default(),
        };
        if let Some(uar) = uar {
            context.owns(uar.context())?;
        }
        let registers = uar.map(|uar| uar.own().clone());
        let page = match &registers {
            Some(Registers::Page(page)) => Some(&**page),
            _ => None,
        };
        let made = commands::create_pair(
            context.backend().commands()?,
            (context.queue_memory(), context.object_events()),
            domain.object().number(),
            page,
            [queue.number; 2],
            &sizes,
        )?;
        let mut pair = Self {
            object: made.object,
            number: made.number,
            psn: 0,
            access: config.access,
            port: config.port.unwrap_or(*context.port()),
            domain: domain.clone(),
            _completions: queue,
            _receive: keep,
            _registers: registers,
        };
        pair.initialise()?;
        Ok(pair)
    }

    /// Returns whether the queue pair, which is in error, has returned all WQEs that it took from
    /// its shared receive queue: they have completed (event `LAST_WQE_REACHED`). It is what the
    /// last [`Context::read_queue_events`](crate::Context::read_queue_events) read. `None` if it
    /// shares none, if it was reset (an event of before may still arrive), or if the event is not
    /// delivered: then they complete within a short time.
    pub fn is_drained(&self) -> Option<bool> {
        self.object.is_drained()
    }

    /// Queue pair number (24 bits).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The address for the peer's [`RcPath::to`], as [`RcQueuePair::address`].
    ///
    /// [`RcQueuePair::address`]: crate::RcQueuePair::address
    pub fn address(&self) -> RcAddress {
        let Port { address: port, mtu, .. } = self.port;
        RcAddress { port, number: self.number, psn: self.psn, mtu }
    }

    /// Connects to the peer of `path`.
    ///
    /// # Errors
    /// If a value of `path` does not fit its field, or the device refused, as it does if the queue
    /// pair is connected and was not reset.
    pub fn connect(&mut self, path: &RcPath) -> Result<(), Error> {
        path.check()?;
        let context = self.domain.context();
        rc::connect(context, &*self.object, &self.port, &self.address(), self.access, path)
            .map(drop)
    }

    /// Moves the queue pair to error: the peer's operations fail.
    ///
    /// # Errors
    /// If the device refused.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.object.fail()
    }

    /// Moves the queue pair back to the init state, from any state. [`Self::address`] is another
    /// one then.
    ///
    /// # Errors
    /// If the device refused.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.object.reset()?;
        self.initialise()
    }

    /// Queries the state of the queue pair.
    ///
    /// # Errors
    /// If the device refused, or returned a state that this driver does not know.
    pub fn state(&self) -> Result<QpState, Error> {
        self.object.state()
    }

    fn initialise(&mut self) -> Result<(), Error> {
        self.psn = sequence::start();
        rc::initialise(self.domain.context(), &*self.object, &self.port, self.access)
    }
}
