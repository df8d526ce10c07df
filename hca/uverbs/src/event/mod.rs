//! Delivery of completion and asynchronous events from the device's event queue to the descriptors
//! that programs read.

mod channel;
mod paging;
mod queue;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use barewire_layouts::command::CommandOpcode;
use barewire_layouts::eqe::{Eqe, EventType, PortChange};
use zerocopy::IntoBytes;

use crate::abi::AsyncEvent;

pub(crate) use channel::Channel;
pub(crate) use queue::Queue;

/// The kind of object that an asynchronous event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Cq,
    Qp,
    Srq,
}

/// The channel for an object's events, and the number of events reported.
#[derive(Debug)]
struct Listener {
    /// User handle of the object.
    user_handle: u64,
    channel: Weak<Channel>,
    told: u32,
}

/// A subscription to events of an object that was created by DEVX.
#[derive(Debug)]
struct Subscription {
    /// Event type and object (creating command and number); no object for events of the device.
    event_type: u16,
    object: Option<(CommandOpcode, u32)>,
    cookie: u64,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A DEVX event channel.
    Channel(Weak<Channel>),
    /// An eventfd of the program.
    Counter(i32),
}

/// Returns the table of event subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Events {
    completions: HashMap<u32, Listener>,
    asynchronous: HashMap<(Kind, u32), Listener>,
    /// Asynchronous channels of the open contexts, for port and device events.
    contexts: Vec<Weak<Channel>>,
    subscriptions: Vec<Subscription>,
    /// See [`Requirements::kernel_strict`](barewire_hca::Requirements::kernel_strict).
    strict: bool,
}

impl Events {
    /// Delivers events as the kernel does, or, if not `strict`, as that of OFED.
    pub(crate) fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Sends completion events of queue `cqn` to `channel`.
    pub(crate) fn on_completion(&mut self, cqn: u32, user_handle: u64, channel: &Arc<Channel>) {
        let listener = Listener { user_handle, channel: Arc::downgrade(channel), told: 0 };
        self.completions.insert(cqn, listener);
    }

    /// Sends asynchronous events of an object to `channel`.
    pub(crate) fn on_event(
        &mut self,
        kind: Kind,
        number: u32,
        user_handle: u64,
        channel: &Weak<Channel>,
    ) {
        let listener = Listener { user_handle, channel: channel.clone(), told: 0 };
        self.asynchronous.insert((kind, number), listener);
    }

    /// Adds a context's channel for port and device events.
    pub(crate) fn on_device(&mut self, channel: &Arc<Channel>) {
        self.contexts.retain(|context| context.strong_count() > 0);
        self.contexts.push(Arc::downgrade(channel));
    }

    /// Sends a DEVX object's events to a channel or an eventfd.
    pub(crate) fn subscribe(
        &mut self,
        (event_type, object): (u16, Option<(CommandOpcode, u32)>),
        cookie: u64,
        channel: Option<&Arc<Channel>>,
        counter: Option<i32>,
    ) {
        let target = match (counter, channel) {
            (Some(counter), _) => Target::Counter(counter),
            (None, Some(channel)) => Target::Channel(Arc::downgrade(channel)),
            (None, None) => return,
        };
        self.subscriptions.push(Subscription { event_type, object, cookie, target });
    }

    /// Removes the subscriptions of a destroyed object.
    pub(crate) fn unsubscribe(&mut self, object: (CommandOpcode, u32)) {
        self.subscriptions.retain(|subscription| subscription.object != Some(object));
    }

    /// Returns whether a queue pair or shared receive queue of verbs has this number.
    fn knows_queue(&self, number: u32) -> bool {
        [Kind::Qp, Kind::Srq].iter().any(|&kind| self.asynchronous.contains_key(&(kind, number)))
    }

    /// Ends completion events of a queue and discards the unread ones. Returns how many were read.
    pub(crate) fn end_completions(&mut self, cqn: u32) -> u32 {
        self.completions.remove(&cqn).map_or(0, Listener::end)
    }

    /// Ends asynchronous events of an object and discards the unread ones. Returns how many were
    /// read.
    pub(crate) fn end_events(&mut self, kind: Kind, number: u32) -> u32 {
        self.asynchronous.remove(&(kind, number)).map_or(0, Listener::end)
    }

    /// Delivers an event queue entry.
    fn deliver(&mut self, event: &Eqe) {
        self.notify_subscribers(event);
        let Some(event_type) = EventType::from_bits(event.event_type) else { return };
        match event_type {
            EventType::Completion => {
                if let Some(listener) = self.completions.get_mut(&event.number()) {
                    listener.tell(&listener.user_handle.to_ne_bytes());
                }
            }
            EventType::PortChange => {
                let up = event.sub_type == PortChange::Active as u8;
                let event_type = if up { IB_EVENT_PORT_ACTIVE } else { IB_EVENT_PORT_ERR };
                self.tell_contexts(event_type, event.port_number().into());
            }
            EventType::InternalError => self.tell_contexts(IB_EVENT_DEVICE_FATAL, 0),
            EventType::CqError => {
                self.tell_owner(Kind::Cq, event.failed_cqn(), IB_EVENT_CQ_ERR);
            }
            EventType::SrqLimit => {
                self.tell_owner(Kind::Srq, event.number(), IB_EVENT_SRQ_LIMIT_REACHED);
            }
            EventType::SrqCatastrophic => {
                self.tell_owner(Kind::Srq, event.number(), IB_EVENT_SRQ_ERR);
            }
            EventType::CommunicationEstablished => {
                self.tell_owner(Kind::Qp, event.number(), IB_EVENT_COMM_EST);
            }
            EventType::SendQueueDrained => {
                self.tell_owner(Kind::Qp, event.number(), IB_EVENT_SQ_DRAINED);
            }
            EventType::WqCatastrophic => {
                self.tell_owner(Kind::Qp, event.number(), IB_EVENT_QP_FATAL);
            }
            EventType::WqInvalidRequest => {
                self.tell_owner(Kind::Qp, event.number(), IB_EVENT_QP_REQ_ERR);
            }
            EventType::WqAccess => {
                self.tell_owner(Kind::Qp, event.number(), IB_EVENT_QP_ACCESS_ERR);
            }
            EventType::LastWqeReached => {
                self.tell_owner(Kind::Qp, event.number(), IB_EVENT_QP_LAST_WQE_REACHED);
            }
            // The queue serves page faults itself.
            EventType::PageFault | EventType::DctDrained | EventType::DctKeyViolation => {}
        }
    }

    fn tell_owner(&mut self, kind: Kind, number: u32, event_type: u32) {
        if let Some(listener) = self.asynchronous.get_mut(&(kind, number)) {
            let event = AsyncEvent { element: listener.user_handle, event_type, reserved: 0 };
            listener.tell(event.as_bytes());
        }
    }

    fn tell_contexts(&mut self, event_type: u32, element: u64) {
        let event = AsyncEvent { element, event_type, reserved: 0 };
        for channel in self.contexts.iter().filter_map(Weak::upgrade) {
            channel.send(event.as_bytes());
        }
    }

    fn notify_subscribers(&mut self, event: &Eqe) {
        let number = match EventType::from_bits(event.event_type) {
            Some(EventType::CqError) => event.failed_cqn(),
            _ => event.number(),
        };
        let meant = |subscription: &&Subscription| {
            subscription.event_type == u16::from(event.event_type)
                && subscription.object.is_none_or(|(made_by, object)| {
                    object == number && reaches(made_by, event.event_type, self.strict)
                })
        };
        for subscription in self.subscriptions.iter().filter(meant) {
            match &subscription.target {
                Target::Channel(channel) => {
                    if let Some(channel) = channel.upgrade() {
                        channel.send_event(subscription.cookie, event.as_bytes());
                    }
                }
                Target::Counter(counter) => {
                    let one = 1_u64;
                    // SAFETY: writes 8 bytes of a live number to a descriptor that the program
                    // supplied for this.
                    unsafe { libc::write(*counter, (&raw const one).cast(), size_of_val(&one)) };
                }
            }
        }
    }

    /// Sends queued events. Returns `true` if some remain queued.
    fn send_rest(&mut self) -> bool {
        let listeners = self.completions.values().chain(self.asynchronous.values());
        let subscribers =
            self.subscriptions.iter().filter_map(|subscription| match &subscription.target {
                Target::Channel(channel) => Some(channel),
                Target::Counter(_) => None,
            });
        let channels =
            listeners.map(|listener| &listener.channel).chain(&self.contexts).chain(subscribers);
        let mut waits = false;
        for channel in channels.filter_map(Weak::upgrade) {
            waits |= channel.send_rest();
        }
        waits
    }
}

impl Listener {
    fn tell(&mut self, event: &[u8]) {
        if let Some(channel) = self.channel.upgrade()
            && channel.send(event)
        {
            self.told = self.told.wrapping_add(1);
        }
    }

    /// Discards unread events. Returns how many were read.
    fn end(self) -> u32 {
        let unread =
            self.channel.upgrade().map_or(0, |channel| channel.take_back(self.user_handle));
        self.told.wrapping_sub(unread)
    }
}

/// Returns whether the kernel accepts subscriptions to events of a type, of an object or of the
/// device, where it only knows port changes (linux devx.c: `is_legacy_obj_event_num`,
/// `is_legacy_unaffiliated_event_num`).
pub(crate) fn is_valid(number: u16, of_object: bool) -> bool {
    let Some(event_type) = u8::try_from(number).ok().and_then(EventType::from_bits) else {
        return false;
    };
    match event_type {
        EventType::PortChange => !of_object,
        EventType::InternalError | EventType::PageFault => false,
        _ => of_object,
    }
}

/// Returns whether an event of a type concerns an object that the command created. The kernel
/// compares the types of the queues, and knows none of shared receive queues
/// (`get_legacy_obj_type`); OFED's knows those of RMPs.
fn reaches(made_by: CommandOpcode, event_type: u8, strict: bool) -> bool {
    use CommandOpcode::{
        CreateCq, CreateDct, CreateQp, CreateRmp, CreateSrq, CreateXrcSrq, CreateXrq,
    };
    match EventType::from_bits(event_type) {
        Some(EventType::Completion | EventType::CqError) => made_by == CreateCq,
        Some(EventType::SrqLimit | EventType::SrqCatastrophic) => {
            !strict && matches!(made_by, CreateRmp | CreateSrq | CreateXrcSrq | CreateXrq)
        }
        Some(EventType::DctDrained | EventType::DctKeyViolation) => made_by == CreateDct,
        _ => made_by == CreateQp,
    }
}

// `enum ib_event_type`.
const IB_EVENT_CQ_ERR: u32 = 0;
const IB_EVENT_QP_FATAL: u32 = 1;
const IB_EVENT_QP_REQ_ERR: u32 = 2;
const IB_EVENT_QP_ACCESS_ERR: u32 = 3;
const IB_EVENT_COMM_EST: u32 = 4;
const IB_EVENT_SQ_DRAINED: u32 = 5;
const IB_EVENT_DEVICE_FATAL: u32 = 8;
const IB_EVENT_PORT_ACTIVE: u32 = 9;
const IB_EVENT_PORT_ERR: u32 = 10;
const IB_EVENT_SRQ_ERR: u32 = 14;
const IB_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
const IB_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
