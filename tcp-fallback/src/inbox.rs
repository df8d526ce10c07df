//! Connections to interfaces that the thread of a [`Target`](crate::target::Target) accepts, so that
//! peers need not wait for progress of the process.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::handshake::{Claim, Purpose, Verdict};
use crate::listener::{Authenticated, Counted};
use crate::socket::Socket;

/// Accepted connections to all interfaces of the process: one of so many descriptors at most.
static ACCEPTED: AtomicUsize = AtomicUsize::new(0);
const DESCRIPTORS: u64 = 4;

/// A connection that a peer opened.
#[derive(Debug)]
pub enum Arrival {
    /// To an endpoint, which decides about it.
    Endpoint(Authenticated),
    /// To the interface itself. The peer has the verdict and may have sent messages.
    Interface(Accepted),
}

/// A connection to an interface.
#[derive(Debug)]
pub struct Accepted {
    /// What the peer requested.
    pub claim: Claim,
    /// The connection.
    pub socket: Socket,
    /// Counts the connection while it exists.
    pub counted: AcceptedCount,
}

/// One accepted connection of the process, until it is dropped.
#[derive(Debug)]
pub struct AcceptedCount {
    _counted: Counted,
}

/// The interfaces to which a thread accepts connections, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    open: Mutex<HashMap<u64, Arc<Door>>>,
    /// Connections that did not prove the key.
    refused: AtomicU64,
}

#[derive(Debug)]
struct Door {
    arrivals: Mutex<Vec<Arrival>>,
    /// Readable while there are arrivals.
    wake: OwnedFd,
    /// Connections that all interfaces of the process may accept.
    most: usize,
}

// Each change of the lists is one operation, so poisoned ones are consistent.
fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Doors {
    /// Accepts a connection for the interface that it is to.
    pub(crate) fn admit(&self, newcomer: Authenticated) {
        let Some(door) = lock(&self.open).get(&newcomer.claim.service).cloned() else {
            return newcomer.refuse(Verdict::Unknown);
        };
        let count = ACCEPTED.load(Ordering::Relaxed).max(lock(&door.arrivals).len());
        if count >= door.most {
            return newcomer.refuse(Verdict::Full);
        }
        let arrival = if newcomer.claim.purpose == Purpose::Interface {
            let claim = newcomer.claim;
            let Ok(socket) = newcomer.welcome() else { return };
            let counted = AcceptedCount { _counted: Counted::among(&ACCEPTED) };
            Arrival::Interface(Accepted { claim, socket, counted })
        } else {
            Arrival::Endpoint(newcomer)
        };
        lock(&door.arrivals).push(arrival);
        // It only fails if it is readable already.
        let _ = rustix::io::write(&door.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn note_refused(&self, count: u64) {
        self.refused.store(count, Ordering::Relaxed);
    }
}

/// The connections to one interface. Dropping it refuses further ones; in a child by fork the drop
/// has no effect.
#[derive(Debug)]
pub struct Inbox {
    doors: Arc<Doors>,
    service: u64,
    door: Arc<Door>,
    /// The process that the thread belongs to.
    process: u32,
}

impl Inbox {
    pub(crate) fn open(doors: Arc<Doors>, service: u64) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = descriptors.map_or(usize::MAX, |limit| (limit / DESCRIPTORS) as usize);
        let door = Arc::new(Door { arrivals: Mutex::default(), wake, most });
        lock(&doors.open).insert(service, Arc::clone(&door));
        Ok(Self { doors, service, door, process: std::process::id() })
    }

    /// Adds the connections that arrived to `arrivals`.
    pub fn take(&self, arrivals: &mut Vec<Arrival>) {
        // Before the list is read: what arrives later makes it readable again.
        let _ = rustix::io::read(&self.door.wake, &mut [0; 8]);
        arrivals.append(&mut lock(&self.door.arrivals));
    }

    /// Connections so far that did not prove the key, to any interface of the domain.
    pub fn refused(&self) -> u64 {
        self.doors.refused.load(Ordering::Relaxed)
    }
}

impl AsFd for Inbox {
    /// Readable while there are arrivals.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.wake.as_fd()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // In a child by fork, a thread of the parent may hold the lock.
        if self.process == std::process::id() {
            lock(&self.doors.open).remove(&self.service);
        }
    }
}
