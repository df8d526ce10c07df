//! Connection management (`uct_cm_...` and listeners): clients connect to servers by their socket
//! addresses, as `ucp_listener_create` and endpoints to socket addresses need it.
//!
//! A client connects to a listener by TCP. Both ends prove that they have the job's key
//! (`barewire_tcp`); then they exchange messages ([`frame`]), which carry private data of the two
//! programs. libucp passes the address of a worker, and opens endpoints of all transports with it.
//! The connection stays open: its end tells either side that the other one has disconnected.
//!
//! | client | server |
//! |---|---|
//! | `uct_ep_create` connects; the callback for the local device is called | |
//! | `uct_ep_connect` sends the request | the listener's callback is called |
//! | | `uct_ep_create` accepts, or `uct_listener_reject` refuses |
//! | the callback for the response is called | |
//! | `uct_cm_client_ep_conn_notify` acknowledges | the callback for that is called |
//! | `uct_ep_disconnect` | the callback for the end is called; `uct_ep_disconnect` |
//! | the callback for the end is called | |
//!
//! libucs watches one descriptor, and calls [`Cm::work`], in its own thread or wherever it polls.
//! The callbacks are called from there, as `UCT_CB_FLAG_ASYNC` says. A lock that its owner can take
//! again keeps the functions of the program's threads out meanwhile, so that an endpoint is not
//! destroyed while its callback runs.

mod connection;
mod device;
mod endpoint;
mod frame;
mod listener;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::time::after;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use connection::{Connection, Event, Phase};
pub(crate) use device::Devices;
pub(crate) use endpoint::create;
pub(crate) use listener::CmListener;
use listener::Listening;

use crate::abi::IfaceOps;
use crate::abi::client_server::CmAttr;
use crate::component::{Component, of_handle};
use crate::config::Config;
use crate::status::{INVALID_PARAM, IO_ERROR, Status, UNSUPPORTED, guard};
use crate::stub::Stub;
use crate::watched::{Watched, share_of_descriptors};
use crate::worker::Worker;

/// How long a client tries to reach a server, and how long a refused one may take to end the
/// connection. Time in which this process does not run does not count.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Tells clients of listeners from the other users of [`Purpose::Control`].
const CLAIM: Claim = Claim {
    purpose: Purpose::Control,
    service: u64::from_le_bytes(*b"uct cm\0\0"),
    endpoint: 0,
    from_service: 0,
    from_endpoint: 0,
};
/// One in so many descriptors of the process may be a connection that a client opened.
const DESCRIPTORS: u64 = 4;
/// The token of the timer. Listeners and connections have numbers, from one on.
const TIMER: u64 = 0;

/// `uct_cm_t`, which is the interface of its endpoints.
#[repr(C)]
pub(crate) struct Cm {
    start: Stub,
    worker: *mut Worker,
    /// From the first listener or endpoint on: each worker of libucp has a connection manager.
    core: ReentrantMutex<OnceCell<Core>>,
}

/// The listeners and connections.
struct Core {
    key: Key,
    events: Watched,
    timer: OwnedFd,
    listeners: RefCell<BTreeMap<u64, Listening>>,
    connections: RefCell<BTreeMap<u64, Connection>>,
    next: Cell<u64>,
    /// When the timer expires, until that is noticed.
    armed: Cell<Option<Instant>>,
    /// The process that opened this: a forked child shares the descriptors.
    process: u32,
    /// Connections that clients may open.
    most: usize,
}

const OPS: IfaceOps = IfaceOps {
    ep_connect: endpoint::connect,
    ep_disconnect: endpoint::disconnect,
    cm_ep_conn_notify: endpoint::acknowledge,
    ep_destroy: endpoint::destroy,
    ep_pending_purge: endpoint::pending_purge,
    ep_flush: endpoint::flush,
    iface_close: close_iface,
    ..IfaceOps::REFUSING
};

/// A connection manager is closed by `uct_cm_close`.
unsafe extern "C" fn close_iface(_: *mut crate::iface::Iface) {}

/// Returns the connection manager behind a handle.
///
/// # Safety
/// `cm` is null or an open handle, which stays open for `'a`.
unsafe fn of_cm<'a>(cm: *const Cm) -> Result<&'a Cm, Status> {
    // SAFETY: contract of this function.
    unsafe { cm.as_ref() }.ok_or(INVALID_PARAM)
}

fn refused(error: &io::Error) -> Status {
    crate::log::error(error);
    IO_ERROR
}

/// Returns the key of the environment.
fn key() -> io::Result<Key> {
    Key::from_env().map_err(io::Error::other)?.ok_or_else(|| {
        io::Error::other(
            "clients and servers need the same key: make one by `barewire key FILE`, and set \
             BAREWIRE_KEY_FILE for both",
        )
    })
}

impl Core {
    fn open(key: Key) -> io::Result<Self> {
        let events = Watched::new()?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        events.add(TIMER, &timer)?;
        Ok(Self {
            key,
            events,
            timer,
            listeners: RefCell::default(),
            connections: RefCell::default(),
            next: Cell::new(TIMER + 1),
            armed: Cell::new(None),
            process: std::process::id(),
            most: share_of_descriptors(DESCRIPTORS),
        })
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Returns whether this is the process whose events the descriptors report.
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Sets the timer for what must be done although no descriptor is readable. It is never moved
    /// to a later time, so that other work does not delay it for ever.
    fn set_timer(&self, now: Instant) {
        if !self.is_own() {
            return;
        }
        let connections = self.connections.borrow();
        let ticks = connections.values().filter_map(|connection| connection.tick(now));
        let listeners = self.listeners.borrow();
        let deadlines = listeners.values().filter_map(|one| one.listener.deadline());
        let deadlines = deadlines.map(|at| at.saturating_duration_since(now));
        let Some(next) = ticks.chain(deadlines).min() else { return };
        // Zero would stop the timer.
        let next = next.max(Duration::from_micros(10));
        let at = after(now, next);
        if self.armed.get().is_some_and(|armed| armed <= at) {
            return;
        }
        let value = Timespec {
            tv_sec: next.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: next.subsec_nanos().into(),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval, it_value: value };
        // It fails for times that are not valid only.
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting);
        self.armed.set(Some(at));
    }

    /// Returns the numbers of what may have something to do.
    fn ready(&self, now: Instant) -> Vec<u64> {
        let mut ready = self.events.ready();
        if ready.contains(&TIMER) {
            let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
            self.armed.set(None);
            let connections = self.connections.borrow();
            let due = connections.iter().filter(|(_, one)| one.tick(now).is_some());
            ready.extend(due.map(|(id, _)| *id));
        }
        ready.sort_unstable();
        ready.dedup();
        ready
    }

    /// Does what can be done without waiting.
    fn work(&self, cm: &Cm, now: Instant) {
        let ready = self.ready(now);
        self.accept(now);
        self.step(cm, ready, now);
        self.set_timer(Instant::now());
    }

    /// Advances connections, and tells the program what happened to them.
    fn step(&self, cm: &Cm, ready: Vec<u64>, now: Instant) {
        for id in ready {
            let event = {
                let mut connections = self.connections.borrow_mut();
                let Some(connection) = connections.get_mut(&id) else { continue };
                let event = connection.step(now);
                self.attend(id, connection, event)
            };
            // The program may call any function from its callback.
            if let Some(event) = event {
                self.deliver(cm, id, event);
            }
        }
    }

    /// Watches a connection that has just been opened, and no longer one that is over. Returns the
    /// event, which may be another one then.
    fn attend(&self, id: u64, connection: &mut Connection, event: Option<Event>) -> Option<Event> {
        if event == Some(Event::Resolved)
            && let Some(stream) = &connection.stream
            && let Err(error) = self.events.add(id, stream)
        {
            connection.fail();
            let status = refused(&error);
            self.forget(connection);
            return Some(Event::Failed(status));
        }
        match connection.phase {
            // Its end would be readable for ever.
            Phase::Left => {
                if let Some(stream) = &connection.stream {
                    self.unwatch(stream);
                }
            }
            Phase::Failed => self.forget(connection),
            _ => {}
        }
        event
    }

    /// Stops watching a descriptor: a forked child may hold it open. In the child itself, it is the
    /// parent that watches.
    fn unwatch(&self, what: impl AsFd) {
        if self.is_own() {
            self.events.remove(what);
        }
    }

    /// Closes what a connection has.
    fn forget(&self, connection: &mut Connection) {
        if let Some(stream) = connection.stream.take() {
            self.unwatch(&stream);
            if self.is_own() {
                stream.finish();
            }
        }
    }

    fn remove(&self, id: u64) {
        let removed = self.connections.borrow_mut().remove(&id);
        if let Some(mut connection) = removed {
            self.forget(&mut connection);
        }
    }
}

impl Cm {
    fn open(worker: *mut Worker) -> Self {
        Self { start: Stub::of_cm(&OPS), worker, core: ReentrantMutex::default() }
    }

    fn lock(&self) -> ReentrantMutexGuard<'_, OnceCell<Core>> {
        self.core.lock()
    }

    /// Runs `run` with the listeners and connections; opens them at the first call.
    fn with_core<R>(&self, run: impl FnOnce(&Core) -> Result<R, Status>) -> Result<R, Status> {
        let core = self.lock();
        let core = match core.get() {
            Some(core) => core,
            None => self.start(&core, key().map_err(|error| refused(&error))?)?,
        };
        let result = run(core);
        core.set_timer(Instant::now());
        result
    }

    fn start<'a>(&self, core: &'a OnceCell<Core>, key: Key) -> Result<&'a Core, Status> {
        let opened = Core::open(key).map_err(|error| refused(&error))?;
        let argument = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: `uct_cm_open` has checked that the worker has a context; it outlives the
        // connection manager. `uct_cm_close` ends the calls of the handler before the argument is
        // freed.
        unsafe { (*self.worker).watch(opened.events.as_raw_fd(), readable, argument) }?;
        Ok(core.get_or_init(|| opened))
    }

    fn devices(&self) -> &Devices {
        // SAFETY: the worker outlives the connection manager.
        unsafe { &(*self.worker).devices }
    }
}

/// The descriptor is readable: called by libucs.
unsafe extern "C" fn readable(_: c_int, _: c_uint, cm: *mut c_void) {
    guard(|| {
        // SAFETY: the argument of `Cm::watch`, which is freed after the last call.
        let cm = unsafe { &*cm.cast::<Cm>() };
        let core = cm.lock();
        if let Some(core) = core.get() {
            core.work(cm, Instant::now());
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_cm_open(
    component: *const Component,
    worker: *mut Worker,
    _config: *const Config,
    cm: *mut *mut Cm,
) -> Status {
    guard(|| {
        // SAFETY: contract of the handle.
        let component = unsafe { of_handle(component) }?;
        if cm.is_null() || worker.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: an open handle.
        let has_context = !unsafe { (*worker).context }.is_null();
        if !component.manages_connections() || !has_context {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *cm = Box::into_raw(Box::new(Cm::open(worker))) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_cm_close(cm: *mut Cm) {
    guard(|| {
        // SAFETY: an open handle.
        let open = unsafe { of_cm(cm) }?;
        let descriptor = open.lock().get().map(|core| core.events.as_raw_fd());
        if let Some(descriptor) = descriptor {
            // The lock is free, so that a handler that runs ends.
            // SAFETY: the worker outlives the connection manager.
            unsafe { &*open.worker }.unwatch(descriptor);
        }
        // SAFETY: it is closed once, and nothing refers to it any more.
        drop(unsafe { Box::from_raw(cm) });
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_cm_query(cm: *const Cm, attr: *mut CmAttr) -> Status {
    guard(|| {
        // SAFETY: an open handle; the other is null or valid for this call.
        let (_, attr) = unsafe { (of_cm(cm)?, attr.as_mut()) };
        let attr = attr.ok_or(INVALID_PARAM)?;
        if attr.field_mask & CmAttr::MAX_CONN_PRIV != 0 {
            attr.max_conn_priv = frame::MOST_DATA;
        }
        Ok(())
    })
}
