//! What an endpoint is behind its handles: its connections, and what waits on them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire_tcp::inbox::AcceptedCount;

use super::Endpoint;
use super::SEGMENT;
use super::address::End;
use super::agenda::Task;
use super::connection::Connection;
use super::interface::Shared;
use super::life::Life;
use super::reader::MessageReader;
use super::remote_memory::RemoteMemoryClient;
use super::waiters::{Position, Waiters};
use crate::base::error::PostError;
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};

pub(crate) struct State {
    pub(super) posting: PostState,
    pub(super) life: RefCell<Life>,
    /// The connection for messages. Borrowed while a function packs a message, which may make
    /// progress.
    pub(super) messages: RefCell<Connection>,
    pub(super) reader: RefCell<MessageReader>,
    /// The connection to the peer's memory. Borrowed while a function packs a put.
    pub(super) memory: RefCell<Option<Box<RemoteMemoryClient>>>,
    pub(super) waiters: RefCell<Waiters>,
    /// Present if a peer connected to the interface: no handle refers to the endpoint, which ends
    /// with the connection.
    pub(super) accepted: RefCell<Option<AcceptedCount>>,
    pub(super) pending: PendingQueue<Endpoint>,
    pub(super) shared: Rc<Shared>,
    own: End,
    /// `Endpoint`s that refer to this state. The last one that is dropped shuts it down.
    pub(super) handles: Cell<u32>,
    /// Messages wait until so many requests are finished.
    pub(super) fence: Cell<u64>,
    /// Requests wait until so many bytes of messages are sent.
    pub(super) message_fence: Cell<u64>,
    /// Progress will call [`Self::send_all`] and [`Self::settle`].
    is_scheduled: Cell<bool>,
    /// A post was refused, and no resources came back since.
    pub(super) is_short: Cell<bool>,
    /// The peer was checked, and had ended the connection by then. What it sent before may not be
    /// received yet.
    pub(super) has_left: Cell<bool>,
}

impl State {
    /// An endpoint that is not connected.
    pub(super) fn new(shared: &Rc<Shared>, own: End) -> Rc<Self> {
        let config = &shared.config;
        let state = Rc::new(Self {
            posting: PostState::new(&shared.core.past),
            life: RefCell::default(),
            messages: RefCell::new(Connection::of_messages(own.slot(), shared.courier.clone())),
            reader: RefCell::new(MessageReader::new(
                config.receive_ring + config.spare_receive_buffers,
            )),
            memory: RefCell::default(),
            waiters: RefCell::default(),
            accepted: RefCell::default(),
            pending: PendingQueue::new(),
            shared: Rc::clone(shared),
            own,
            handles: Cell::new(0),
            fence: Cell::new(0),
            message_fence: Cell::new(0),
            is_scheduled: Cell::new(false),
            is_short: Cell::new(false),
            has_left: Cell::new(false),
        });
        state.posting.set(PostBlock::Unconnected, true);
        state
    }

    pub(super) fn own(&self) -> End {
        self.own
    }

    pub(super) fn slot(&self) -> u32 {
        self.own.slot()
    }

    // Handles.

    pub(super) fn has_handles(&self) -> bool {
        self.handles.get() > 0
    }

    /// A peer connected to the interface.
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted.borrow().is_some()
    }

    // What is outstanding.

    /// Bytes that were posted on the connection for messages, and requests; `None` while one is
    /// packed.
    pub(super) fn posted(&self) -> Option<Position> {
        let bytes = self.messages.try_borrow().ok()?.outbox().posted();
        let memory = self.memory.try_borrow().ok()?;
        Some(Position { bytes, requests: memory.as_ref().map_or(0, |memory| memory.posted()) })
    }

    /// What of [`Self::posted`] is done.
    pub(super) fn done(&self) -> Option<Position> {
        let bytes = self.messages.try_borrow().ok()?.outbox().sent();
        let memory = self.memory.try_borrow().ok()?;
        Some(Position { bytes, requests: memory.as_ref().map_or(0, |memory| memory.finished()) })
    }

    /// A fence holds messages back.
    #[inline]
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.get() > 0 && !self.is_past_fence()
    }

    #[cold]
    fn is_past_fence(&self) -> bool {
        let is_past = self.memory.try_borrow().is_ok_and(|memory| {
            memory.as_ref().is_none_or(|memory| memory.finished() >= self.fence.get())
        });
        if is_past {
            self.fence.set(0);
        }
        is_past
    }

    /// A fence holds requests to the peer's memory back.
    #[inline]
    pub(super) fn is_fenced_by_messages(&self) -> bool {
        self.message_fence.get() > 0 && !self.is_past_message_fence()
    }

    #[cold]
    fn is_past_message_fence(&self) -> bool {
        let sent = self.messages.try_borrow().map_or(0, |messages| messages.outbox().sent());
        let is_past = sent >= self.message_fence.get();
        if is_past {
            self.message_fence.set(0);
        }
        is_past
    }

    // Resources.

    /// A function that packs for a post is running and has called into this crate. It holds the
    /// outbox that its buffer lies in, so progress leaves the connections of the endpoint alone.
    pub(super) fn is_packing(&self) -> bool {
        self.messages.try_borrow_mut().is_err() || self.memory.try_borrow_mut().is_err()
    }

    /// Checks the result of a `pack` function.
    ///
    /// # Errors
    /// The length is over the limit, or the function canceled the endpoint or closed the interface.
    pub(super) fn packed(&self, length: usize) -> Result<usize, PostError> {
        if !self.posting.is_alive() {
            self.posting.check()?;
        }
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        Ok(length)
    }

    /// Refuses a post until resources come back.
    #[cold]
    pub(super) fn refuse(&self) -> PostError {
        self.is_short.set(true);
        self.posting.refuse()
    }

    /// Resources came back.
    pub(super) fn replenish(&self) {
        self.is_short.set(false);
    }

    // Progress.

    /// Has progress send what waits and complete what is done.
    #[inline]
    pub(super) fn schedule(&self) {
        if !self.is_scheduled.replace(true) {
            self.shared.visit_later(Task::Send, self.slot());
        }
    }

    /// Progress visits the endpoint now.
    pub(super) fn unschedule(&self) {
        self.is_scheduled.set(false);
    }
}
