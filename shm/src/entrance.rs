//! The ports of this process, which peers in the same process enter without their progress.
//!
//! Over the socket a peer cannot send before the port's process has made progress. A thread that
//! drives both ends and waits for the peer would wait forever. Such a peer therefore creates both
//! ends of the connection itself: it leaves the port's end in the list of this module, adds it to
//! the port's epoll, and can send at once. The port takes it with its next check of the sockets.
//!
//! The list is locked to open and to close a port, to connect to one, and to take connections, but
//! never to send or receive. A forked child has a copy of its parent's list, whose ports it cannot
//! reach; the list therefore belongs to one process, and a child that opens a port empties it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::epoll;

use crate::address::PortAddress;
use crate::link::Link;
use crate::region::RegionSet;
use crate::wake::WakeFlag;

/// The `data` of the epoll events of connections that the port has not taken yet.
pub(crate) const ARRIVAL: u64 = 1 << 34;

/// How often to try to lock the list that may be another process's.
const MAX_ATTEMPTS: usize = 1000;

/// The maximum number of connections that a port has not taken. Further ones wait in the queue of
/// its socket.
const MAX_ARRIVALS: usize = 256;

/// The ports of this process by number.
static PORTS: Mutex<BTreeMap<u64, Port>> = Mutex::new(BTreeMap::new());
/// The process to which the list belongs; 0 before there is one.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// What a peer needs of a port.
struct Port {
    secret: u128,
    wake_flag: WakeFlag,
    regions: RegionSet,
    epoll: Arc<OwnedFd>,
    /// The port's ends of connections that it has not taken yet.
    arrivals: Vec<Arc<Link>>,
}

/// Locks the list of this process; `None` if it is another process's.
fn ports() -> Option<MutexGuard<'static, BTreeMap<u64, Port>>> {
    // Every change is one operation of a collection, so the list is consistent after a panic. A
    // copy of the parent's list is not locked: a thread that does not exist here may have it.
    let is_own = PROCESS.load(Ordering::Acquire) == std::process::id();
    is_own.then(|| PORTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Makes the list this process's.
fn take_over() {
    let process = std::process::id();
    for _ in 0..MAX_ATTEMPTS {
        if PROCESS.load(Ordering::Acquire) == process {
            return;
        }
        let mut ports = match PORTS.try_lock() {
            Ok(ports) => ports,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // Another thread is doing the same, or a thread of the parent had locked the list when
            // this process was forked. In the latter case peers connect over the socket.
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                continue;
            }
        };
        // Not dropped: fork copies the descriptors before the memory. A connection that another
        // thread made in between has a descriptor here that is closed, or that belongs to another
        // file by now.
        std::mem::forget(std::mem::take(&mut *ports));
        PROCESS.store(process, Ordering::Release);
        return;
    }
}

/// A port's entry in the list. Dropping it removes the entry and closes the connections that the
/// port has not taken.
#[derive(Debug)]
pub(crate) struct Entrance {
    number: u64,
    process: u32,
}

impl Entrance {
    /// Adds a port to the list. Returns `None` if the list has another port with this number.
    pub(crate) fn open(
        address: PortAddress,
        wake_flag: &WakeFlag,
        regions: &RegionSet,
        epoll: &Arc<OwnedFd>,
    ) -> Option<Self> {
        take_over();
        let mut ports = ports()?;
        if ports.contains_key(&address.number) {
            return None;
        }
        let port = Port {
            secret: address.secret,
            wake_flag: wake_flag.clone(),
            regions: regions.clone(),
            epoll: Arc::clone(epoll),
            arrivals: Vec::new(),
        };
        ports.insert(address.number, port);
        Some(Self { number: address.number, process: std::process::id() })
    }

    /// Takes the port's ends of new connections.
    pub(crate) fn take(&self) -> Vec<Arc<Link>> {
        let mut ports = ports();
        let port = ports.as_mut().and_then(|ports| ports.get_mut(&self.number));
        port.map(|port| std::mem::take(&mut port.arrivals)).unwrap_or_default()
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a forked child, whose list has no entry of the parent.
            return;
        }
        // Dropped after the lock is released.
        let removed = ports().and_then(|mut ports| ports.remove(&self.number));
        drop(removed);
    }
}

/// A peer's end of a connection to a port of this process.
pub(crate) struct Entered {
    pub(crate) link: Link,
    pub(crate) wake_flag: WakeFlag,
    pub(crate) regions: RegionSet,
    /// The port's end, for notices of dropped regions.
    pub(crate) port_end: std::sync::Weak<Link>,
}

/// Returns true if the address is that of a port of this process.
pub(crate) fn is_own(address: PortAddress) -> bool {
    let ports = ports();
    let port = ports.as_ref().and_then(|ports| ports.get(&address.number));
    port.is_some_and(|port| port.secret == address.secret)
}

/// Connects to a port of this process. Returns `None` if the address is not that of one, or the
/// port has too many connections to take.
///
/// # Errors
/// The error of socketpair(2) or epoll_ctl(2).
pub(crate) fn enter(address: PortAddress) -> io::Result<Option<Entered>> {
    let Some(mut ports) = ports() else { return Ok(None) };
    let port = ports.get_mut(&address.number).filter(|port| port.secret == address.secret);
    let Some(port) = port.filter(|port| port.arrivals.len() < MAX_ARRIVALS) else {
        return Ok(None);
    };
    let (link, port_end) = Link::pair()?;
    let port_end = Arc::new(port_end);
    let data = epoll::EventData::new_u64(ARRIVAL);
    epoll::add(&*port.epoll, &*port_end, data, epoll::EventFlags::IN)?;
    let entered = Entered {
        link,
        wake_flag: port.wake_flag.clone(),
        regions: port.regions.clone(),
        port_end: Arc::downgrade(&port_end),
    };
    port.arrivals.push(port_end);
    Ok(Some(entered))
}
