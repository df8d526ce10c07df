//! The interface, and the progress of the operations that its endpoints have queued.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

use barewire_shm::{Admission, Process, ProcessError, TableAddress};

use super::address;
use super::domain::Domain;
use super::endpoint::{Endpoint, State};
use super::{ID, SLICE, SLICE_OF_MANY};
use crate::address::PeerAddress;
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{ConnectError, OpenError, PostError};
use crate::event::{Armed, EventError};
use crate::fork;
use crate::panics::{self, Panics};
use crate::status::{Post, Posted};
use crate::transport::common::pending::Arbiter;
use crate::transport::common::post_state::PostBlock;
use crate::transport::sealed::Handled;
use crate::transport::{self, common::handlers::Handlers};

/// Most processes in [`Shared::recent`].
const RECENT: usize = 16;

pub(super) struct Shared {
    pub(super) domain: Domain,
    /// The peer processes of all endpoints.
    processes: RefCell<HashMap<TableAddress, Weak<Process>>>,
    /// The last of them, so that another endpoint to one is connected without reading the list of
    /// its mappings, which takes most of the time.
    recent: RefCell<VecDeque<Rc<Process>>>,
    _admission: Admission,
    pub(super) arbiter: Arbiter<Endpoint>,
    endpoints: RefCell<Vec<Weak<State>>>,
    /// Progress may have something to do.
    pub(super) busy: Cell<bool>,
    pub(super) closed: Cell<bool>,
    handlers: Handlers,
    attributes: Attributes,
    /// Counts of endpoints that were dropped.
    pub(super) past: Past,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

/// The only owner of an interface's progress. Dropping it closes the interface: operations in
/// progress complete as cancelled, and posts return [`PostError::Closed`].
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress(Rc<Shared>);

impl Interface {
    /// Opens an interface. Where Yama restricts access to memory (`kernel.yama.ptrace_scope` is 1),
    /// every process of this user may access all memory of this process, as a debugger could, until
    /// the last interface is closed.
    ///
    /// # Errors
    /// None today.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let shared = Rc::new(Shared {
            domain: domain.clone(),
            processes: RefCell::default(),
            recent: RefCell::default(),
            _admission: barewire_shm::admit_peers(),
            arbiter: Arbiter::new(),
            endpoints: RefCell::default(),
            busy: Cell::new(false),
            closed: Cell::new(false),
            handlers: Handlers::new(),
            attributes: super::attributes(config),
            past: Past::default(),
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress(shared)))
    }

    /// Opens an endpoint to an interface.
    ///
    /// # Errors
    /// As [`Endpoint::connect`], and [`OpenError::Closed`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        let endpoint = Endpoint::new(self)?;
        endpoint.reach(peer.device(), &peer.interface().0)?;
        Ok(endpoint)
    }
}

impl Handled for Interface {
    fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    fn call_attention(&self) {
        self.0.call_attention();
    }
}

impl transport::Interface for Interface {
    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(
            address::device(),
            address::interface(&self.0.domain.table().address()),
        )
    }

    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let table = super::address::table(peer.device(), &peer.interface().0)?;
        self.0.reach(table).map(drop)
    }

    fn counters(&self) -> Counters {
        self.0.states().iter().fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    fn flush(&self, completion: Option<&Completion>) -> Post {
        self.fence()?;
        let busy: Vec<_> = self.0.states().into_iter().filter(|state| !state.is_idle()).collect();
        if busy.is_empty() {
            return Ok(Posted::Done);
        }
        for state in &busy {
            state.mark(completion);
        }
        Ok(Posted::InProgress)
    }

    fn fence(&self) -> Result<(), PostError> {
        if self.0.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(None)
    }

    fn arm(&self) -> Result<Armed, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: ID });
        }
        Ok(if self.0.busy.get() { Armed::Ready } else { Armed::Indefinitely })
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|state| state.posting.close_in_child());
        }
    }
}

impl Shared {
    /// Makes progress run.
    pub(super) fn call_attention(&self) {
        self.busy.set(true);
    }

    /// As [`Self::process`], with an error that names the peer.
    pub(super) fn reach(&self, address: TableAddress) -> Result<Rc<Process>, ConnectError> {
        self.process(address).map_err(|error| ConnectError::Unreachable {
            transport: ID,
            peer: format!("process {}", address.process),
            reason: error.to_string(),
        })
    }

    fn process(&self, address: TableAddress) -> Result<Rc<Process>, ProcessError> {
        let mut processes = self.processes.borrow_mut();
        let mut recent = self.recent.borrow_mut();
        if let Some(process) = processes.get(&address).and_then(Weak::upgrade) {
            let probed = process.probe();
            if probed.is_err() {
                recent.retain(|other| !Rc::ptr_eq(other, &process));
            }
            return probed.map(|()| process);
        }
        let process = Rc::new(Process::open(address)?);
        // The least recently opened one gives way.
        recent.truncate(RECENT - 1);
        recent.push_front(Rc::clone(&process));
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
    /// Copies a slice for each endpoint that has a transfer, and runs pending requests. Returns the
    /// number of events.
    pub fn progress(&mut self) -> usize {
        if self.is_idle() { 0 } else { self.turn() }
    }

    /// Returns whether there is nothing to do.
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
            // Closed by a fork: the parent completes the operations in progress.
            return;
        }
        shared.recent.borrow_mut().clear();
        let states = shared.states();
        for state in &states {
            state.posting.set(PostBlock::Closed, true);
        }
        let mut panics = Panics::default();
        for state in &states {
            panics.catch(|| state.abandon());
        }
        panics.catch(|| shared.arbiter.clear());
        panics.catch(|| shared.handlers.close());
        if let Some(mut running) = shared.handlers.enter() {
            panics.catch(|| running.install_pending());
        }
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("transport", &ID).finish_non_exhaustive()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("transport", &ID).finish_non_exhaustive()
    }
}
