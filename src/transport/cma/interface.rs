//! The interface, and the progress of the operations that its endpoints have queued.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

use barewire_shm::{Admission, Process, ProcessError, TableAddress};

use super::address;
use super::domain::Domain;
use super::{Cma, Endpoint, ID, Interface, SLICE, SLICE_OF_MANY};
use crate::base::address::PeerAddress;
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError};
use crate::base::event::{Armed, EventError};
use crate::base::panics::{self, Panics};
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{
    EndpointList as _, EndpointState as _, InterfaceCore, InterfaceState, Keepalive, WeakEndpoints,
};

/// Most processes in [`Shared::recent`].
const RECENT: usize = 16;

pub(crate) struct Shared {
    pub(super) core: InterfaceCore<Cma>,
    pub(super) domain: Domain,
    /// The peer processes of all endpoints.
    processes: RefCell<HashMap<TableAddress, Weak<Process>>>,
    /// The last of them, so that another endpoint to one is connected without reading the list of
    /// its mappings, which takes most of the time.
    recent: RefCell<VecDeque<Rc<Process>>>,
    _admission: Admission,
    /// Progress may have something to do, or must watch the time for keepalive.
    busy: Cell<bool>,
    /// Progress may have something to do.
    work: Cell<bool>,
}

/// The only owner of an interface's progress. Dropping it closes the interface: operations in
/// progress complete as cancelled, and posts return
/// [`PostError::Closed`](crate::PostError::Closed).
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress(Rc<Shared>);

impl Interface {
    /// Opens an interface. Where Yama restricts access to memory (`kernel.yama.ptrace_scope` is 1),
    /// every process of this user may access all memory of this process, as a debugger could, until
    /// the last interface is closed.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let keepalive = Keepalive::of(ID, config)?;
        let shared = Rc::new(Shared {
            busy: Cell::new(keepalive.is_some()),
            work: Cell::new(false),
            core: InterfaceCore::new(super::attributes(config), WeakEndpoints::default())
                .with_keepalive(keepalive),
            domain: domain.clone(),
            processes: RefCell::default(),
            recent: RefCell::default(),
            _admission: barewire_shm::admit_peers(),
        });
        Ok((Self::open_with(&shared), Progress(shared)))
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

impl InterfaceState for Shared {
    type Transport = Cma;

    fn core(&self) -> &InterfaceCore<Cma> {
        &self.core
    }

    fn call_attention(&self) {
        self.work.set(true);
        self.busy.set(true);
    }

    fn address(&self) -> PeerAddress {
        PeerAddress::of_interface(
            address::device(),
            address::interface(&self.domain.table().address()),
        )
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        let table = address::table(peer.device(), &peer.interface().0)?;
        self.reach(table).map(drop)
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(None)
    }

    fn arm(&self) -> Result<Armed, EventError> {
        Ok(if self.work.get() { Armed::Ready } else { Armed::Indefinitely })
    }
}

impl Shared {
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
        if shared.core.closed.get() {
            return 0;
        }
        if !shared.work.get() && !shared.core.is_keepalive_due() {
            return 0;
        }
        panics::or_else(|| self.serve(), || shared.call_attention())
    }

    fn serve(&self) -> usize {
        let shared = &*self.0;
        shared.work.set(false);
        shared.busy.set(shared.core.keepalive.is_some());
        shared.core.keep_alive();
        let states = shared.core.endpoints.all();
        let busy = states.iter().filter(|state| !state.is_idle()).count();
        let slice = if busy > 1 { SLICE_OF_MANY } else { SLICE };
        let mut events = 0;
        for state in &states {
            events += state.turn(slice);
            if let Some(error) = state.unreported() {
                shared.core.handlers.dispatch_error(&error);
            }
        }
        events += shared.core.arbiter.dispatch();
        if !shared.core.arbiter.is_empty() || states.iter().any(|state| !state.is_idle()) {
            shared.call_attention();
        }
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let shared = &*self.0;
        if shared.core.closed.replace(true) {
            // Closed by a fork: the parent completes the operations in progress.
            return;
        }
        shared.recent.borrow_mut().clear();
        let states = shared.core.endpoints.all();
        for state in &states {
            state.posting.set(PostBlock::Closed, true);
        }
        let mut panics = Panics::default();
        for state in &states {
            panics.catch(|| state.abandon());
        }
        shared.core.clear(&mut panics);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("transport", &ID).finish_non_exhaustive()
    }
}
