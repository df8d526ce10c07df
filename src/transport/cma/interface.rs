//! The interface, and the progress of what its endpoints have in their queues.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Instant;

use super::address::{self, ProcessAddress};
use super::domain::Domain;
use super::endpoint::{Endpoint, State};
use super::{NAME, SLICE, SLICE_OF_MANY};
use crate::active_message::{Handlers, Message};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{EndpointError, HandlerError, OpenError, PostError};
use crate::event::EventError;
use crate::gate::Block;
use crate::pending::Arbiter;
use crate::status::{Post, Posted};

pub(super) struct Shared {
    pub(super) domain: Domain,
    /// What peers read to make sure that this is the process which they were told of.
    secret: Box<[u8; 16]>,
    pub(super) arbiter: Arbiter<Endpoint>,
    endpoints: RefCell<Vec<Weak<State>>>,
    /// There may be something for progress.
    pub(super) busy: Cell<bool>,
    pub(super) closed: Cell<bool>,
    handlers: Handlers,
    attributes: Attributes,
    /// What the endpoints did that are gone.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

/// The one owner of an interface's progress. Dropping it closes the interface: what is in progress completes as cancelled, and posts
/// answer [`PostError::Closed`].
pub struct Progress(Rc<Shared>);

impl Interface {
    /// Opens an interface. Where Yama restricts it, other processes of this user are admitted to this one's memory.
    ///
    /// # Errors
    /// None today.
    pub fn open(domain: &Domain, _config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        barewire_shm::admit_peers();
        let shared = Rc::new(Shared {
            domain: domain.clone(),
            secret: Box::new(domain.secret().to_ne_bytes()),
            arbiter: Arbiter::new(),
            endpoints: RefCell::default(),
            busy: Cell::new(false),
            closed: Cell::new(false),
            handlers: Handlers::new(),
            attributes: super::attributes(),
            past: Past::default(),
        });
        Ok((Self(Rc::clone(&shared)), Progress(shared)))
    }

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The machine and the namespace of its processes.
    pub fn device_address(&self) -> DeviceAddress {
        address::device()
    }

    /// This process.
    pub fn address(&self) -> InterfaceAddress {
        self.0.address().interface()
    }

    /// There are no messages: the handler is kept, and never called.
    ///
    /// # Errors
    /// [`HandlerError::UnknownHandlerId`] if `id` is 32 or more, [`HandlerError::Closed`].
    pub fn set_handler(
        &self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        self.0.handlers.set(id, Box::new(handler))
    }

    /// Sets the handler that is called once for each endpoint that fails.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        self.0.handlers.set_error(Box::new(handler));
    }

    /// Always 0.
    pub fn unhandled(&self) -> u64 {
        self.0.handlers.unhandled()
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0.states().iter().fold(self.0.past.get(), |sum, state| sum + state.gate.tally.read())
    }

    /// Waits for what every endpoint has in progress. The completion is counted down once, when all is finished.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        self.fence()?;
        let busy: Vec<_> = self.0.states().into_iter().filter(|state| !state.is_idle()).collect();
        if busy.is_empty() {
            return Ok(Posted::Done);
        }
        let count = busy.len() as u32;
        let all = match completion.cloned() {
            Some(completion) => Completion::new(count, move |result| completion.count_down(result)),
            None => Completion::counter(count),
        };
        for state in &busy {
            state.mark(Some(&all));
        }
        Ok(Posted::InProgress)
    }

    /// On every endpoint, operations are carried out in order.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        if self.0.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Nothing happens here without a call on this thread: there is nothing to wait for, and no descriptor.
    ///
    /// # Errors
    /// [`EventError::Busy`] while something is to be copied.
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.busy.get() { Err(EventError::Busy) } else { Ok(None) }
    }
}

impl Shared {
    pub(super) fn address(&self) -> ProcessAddress {
        ProcessAddress {
            number: std::process::id() as i32,
            at: self.secret.as_ptr().addr() as u64,
            secret: self.domain.secret(),
        }
    }

    pub(super) fn adopt(&self, state: &Rc<State>) {
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.retain(|state| state.strong_count() > 0);
        endpoints.push(Rc::downgrade(state));
    }

    fn states(&self) -> Vec<Rc<State>> {
        self.endpoints.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Progress {
    /// Copies a slice for each endpoint that has something to copy, and gives pending requests their turn. Answers how many events there
    /// were.
    pub fn progress(&mut self) -> usize {
        if self.is_idle() { 0 } else { self.turn() }
    }

    /// Nothing is there to be done.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        !self.0.busy.get()
    }

    #[inline(never)]
    fn turn(&mut self) -> usize {
        let shared = &*self.0;
        shared.busy.set(false);
        let states = shared.states();
        let busy = states.iter().filter(|state| !state.is_idle()).count();
        let slice = if busy > 1 { SLICE_OF_MANY } else { SLICE };
        let mut events = 0;
        for state in &states {
            events += state.turn(slice);
            if let Some(error) = state.unreported() {
                shared.handlers.dispatch_error(&error);
            }
        }
        events += shared.arbiter.dispatch();
        if !shared.arbiter.is_empty() || states.iter().any(|state| !state.is_idle()) {
            shared.busy.set(true);
        }
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let shared = &*self.0;
        shared.closed.set(true);
        let states = shared.states();
        for state in &states {
            state.gate.set(Block::Closed, true);
        }
        for state in &states {
            state.abandon();
        }
        shared.arbiter.clear();
        shared.handlers.close();
        if let Some(mut running) = shared.handlers.run() {
            running.renew();
        }
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("transport", &NAME).finish_non_exhaustive()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("transport", &NAME).finish_non_exhaustive()
    }
}
