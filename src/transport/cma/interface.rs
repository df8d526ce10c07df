//! The interface, and the progress of what its endpoints have in their queues.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::time::Instant;

use barewire_shm::{Admission, Process, ProcessError, TableAddress};

use super::address;
use super::domain::Domain;
use super::endpoint::{Endpoint, State};
use super::{NAME, SLICE, SLICE_OF_MANY};
use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{OpenError, PostError};
use crate::event::EventError;
use crate::fork;
use crate::panics::{self, Panics};
use crate::status::{Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Handlers;
use crate::transport::common::pending::Arbiter;

pub(super) struct Shared {
    pub(super) domain: Domain,
    /// Processes that endpoints lead to.
    processes: RefCell<HashMap<TableAddress, Weak<Process>>>,
    _admission: Admission,
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

crate::transport::common::handle::interface_handlers!();

impl Interface {
    /// Opens an interface. Where Yama restricts access to memory (`kernel.yama.ptrace_scope` is 1), every process of
    /// this user is admitted to all memory of this one, as a debugger, until the last interface is closed.
    ///
    /// # Errors
    /// None today.
    pub fn open(domain: &Domain, _config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let shared = Rc::new(Shared {
            domain: domain.clone(),
            processes: RefCell::default(),
            _admission: barewire_shm::admit_peers(),
            arbiter: Arbiter::new(),
            endpoints: RefCell::default(),
            busy: Cell::new(false),
            closed: Cell::new(false),
            handlers: Handlers::new(),
            attributes: super::attributes(),
            past: Past::default(),
        });
        fork::watch(&shared);
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
        address::interface(&self.0.domain.table().address())
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        self.0.states().iter().fold(self.0.past.get(), |sum, state| sum + state.counters())
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

    /// `None`: nothing happens here without a call on this thread.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(None)
    }

    /// Nothing happens here without a call on this thread: there is nothing to wait for, and no descriptor.
    ///
    /// # Errors
    /// [`EventError::Busy`] while something is to be copied.
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        if self.0.busy.get() { Err(EventError::Busy) } else { Ok(None) }
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().filter_map(Weak::upgrade).for_each(|state| state.gate.close_in_child());
        }
    }
}

impl Shared {
    /// Has progress do something.
    pub(super) fn call_attention(&self) {
        self.busy.set(true);
    }

    /// The process at an address, opened once for all endpoints that lead to it.
    pub(super) fn process(&self, address: TableAddress) -> Result<Rc<Process>, ProcessError> {
        let mut processes = self.processes.borrow_mut();
        if let Some(process) = processes.get(&address).and_then(Weak::upgrade) {
            return process.probe().map(|()| process);
        }
        let process = Rc::new(Process::open(address)?);
        processes.retain(|_, process| process.strong_count() > 0);
        processes.insert(address, Rc::downgrade(&process));
        Ok(process)
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
        if shared.closed.get() {
            return 0;
        }
        panics::or_else(|| self.serve(), || shared.busy.set(true))
    }

    fn serve(&self) -> usize {
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
        if shared.closed.replace(true) {
            // Closed by a fork: the parent completes what is in progress.
            return;
        }
        let states = shared.states();
        for state in &states {
            state.gate.set(Block::Closed, true);
        }
        let mut panics = Panics::default();
        for state in &states {
            panics.catch(|| state.abandon());
        }
        panics.catch(|| shared.arbiter.clear());
        panics.catch(|| shared.handlers.close());
        if let Some(mut running) = shared.handlers.run() {
            panics.catch(|| running.renew());
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
