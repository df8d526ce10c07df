//! Bytes of completed posts that the kernel did not take, because the socket was full. A thread sends
//! them if the process makes no progress.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::socket::send;
use crate::target::LEFTOVER;
use crate::time::after;

/// How long the process has to send the bytes by its own progress, before the thread does: a process
/// that makes progress is not disturbed.
const PATIENCE: Duration = Duration::from_millis(2);

/// The handle by which connections have the thread send leftovers.
#[derive(Debug, Clone)]
pub struct Courier {
    given: Arc<Mutex<Given>>,
    /// Ends a sleep of the thread.
    wake: Arc<OwnedFd>,
}

/// Leftovers that the thread has not taken yet.
#[derive(Debug, Default)]
struct Given {
    bytes: Vec<Arc<Mutex<Bytes>>>,
    /// The thread sleeps for [`PATIENCE`] at most.
    is_timed: bool,
}

/// Bytes that the owner of a connection and the thread send, whoever comes first.
#[derive(Debug)]
struct Bytes {
    /// A duplicate of the connection's descriptor, until the bytes are sent, the socket fails, or the
    /// connection ends.
    socket: Option<OwnedFd>,
    data: Vec<u8>,
    sent: usize,
}

impl Bytes {
    /// Sends what the kernel takes.
    fn send(&mut self) {
        while let Some(socket) = &self.socket {
            match send(socket, &self.data[self.sent..]) {
                Ok(0) => return,
                Ok(count) => self.sent += count,
                // The owner of the connection receives the error as well.
                Err(_) => self.socket = None,
            }
            if self.sent == self.data.len() {
                self.socket = None;
            }
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Courier {
    pub(crate) fn new(wake: Arc<OwnedFd>) -> Self {
        Self { given: Arc::default(), wake }
    }

    /// Has the thread send `bytes`, of which there are some, and which come next on a connection.
    /// Returns `None` if there is no descriptor left: then only progress of the process sends them.
    pub(crate) fn give(&self, socket: impl AsFd, bytes: &[u8]) -> Option<Leftover> {
        let socket = Some(rustix::io::fcntl_dupfd_cloexec(socket, 0).ok()?);
        let bytes = Bytes { socket, data: bytes.to_vec(), sent: 0 };
        let bytes = Arc::new(Mutex::new(bytes));
        let mut given = lock(&self.given);
        given.bytes.push(Arc::clone(&bytes));
        if !given.is_timed {
            // It only fails if the thread is about to wake up.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
        Some(Leftover { bytes, seen: 0, process: std::process::id() })
    }
}

/// Bytes that a thread may send for a connection. Dropping it ends that; in a child by fork the drop
/// has no effect.
#[derive(Debug)]
pub struct Leftover {
    bytes: Arc<Mutex<Bytes>>,
    /// Bytes that were sent when [`Self::send`] returned last.
    seen: usize,
    /// The process that the thread belongs to.
    process: u32,
}

impl Leftover {
    /// Sends what the kernel takes. Returns how many bytes were sent since the last call, and whether
    /// all were.
    pub(crate) fn send(&mut self) -> (usize, bool) {
        let mut bytes = lock(&self.bytes);
        bytes.send();
        let count = bytes.sent - std::mem::replace(&mut self.seen, bytes.sent);
        (count, bytes.sent == bytes.data.len())
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            lock(&self.bytes).socket = None;
        }
    }
}

/// The leftovers that a thread has.
#[derive(Debug)]
pub(crate) struct Round {
    courier: Courier,
    /// With the time from which on the thread sends them.
    waiting: Vec<(Instant, Arc<Mutex<Bytes>>)>,
    /// Watched by the thread's epoll, each under the token of its place.
    watched: Vec<Option<Arc<Mutex<Bytes>>>>,
}

impl Round {
    /// An event is reported once: the owner of the connection may close the duplicate, which stays
    /// watched as long as the connection's own descriptor is open.
    const EVENTS: epoll::EventFlags = epoll::EventFlags::OUT.union(epoll::EventFlags::ONESHOT);

    pub(crate) fn new(courier: Courier) -> Self {
        Self { courier, waiting: Vec::new(), watched: Vec::new() }
    }

    /// When [`Self::work`] must be called although nothing is ready.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Takes new leftovers, and watches the sockets of those that have waited long enough.
    pub(crate) fn work(&mut self, epoll: &OwnedFd, now: Instant) {
        let due = self.waiting.iter().take_while(|(due, _)| *due <= now).count();
        let due: Vec<_> = self.waiting.drain(..due).collect();
        let mut given = lock(&self.courier.given);
        let new = given.bytes.drain(..).map(|bytes| (after(now, PATIENCE), bytes));
        self.waiting.extend(new);
        given.is_timed = !self.waiting.is_empty();
        drop(given);
        for (_, bytes) in due {
            self.watch(epoll, bytes);
        }
    }

    fn watch(&mut self, epoll: &OwnedFd, shared: Arc<Mutex<Bytes>>) {
        let bytes = lock(&shared);
        let Some(socket) = &bytes.socket else { return };
        let is_free = |place: &Option<Arc<Mutex<Bytes>>>| {
            place.as_ref().is_none_or(|bytes| lock(bytes).socket.is_none())
        };
        let free = self.watched.iter().position(is_free);
        let place = free.unwrap_or_else(|| {
            self.watched.push(None);
            self.watched.len() - 1
        });
        let token = epoll::EventData::new_u64(LEFTOVER | place as u64);
        let added = match epoll::add(epoll, socket, token, Self::EVENTS) {
            // An earlier duplicate of the same socket had this number.
            Err(Errno::EXIST) => epoll::modify(epoll, socket, token, Self::EVENTS),
            added => added,
        };
        if added.is_ok() {
            drop(bytes);
            self.watched[place] = Some(shared);
        }
    }

    /// The socket of a leftover has room, or has failed.
    pub(crate) fn send(&mut self, epoll: &OwnedFd, token: u64) {
        let Some(place) = self.watched.get_mut((token & !LEFTOVER) as usize) else { return };
        let Some(shared) = place.take() else { return };
        let mut bytes = lock(&shared);
        bytes.send();
        if let Some(socket) = &bytes.socket
            && epoll::modify(epoll, socket, epoll::EventData::new_u64(token), Self::EVENTS).is_ok()
        {
            drop(bytes);
            *place = Some(shared);
        }
    }
}
