//! The thread that works for a domain without progress of the process: it executes peers' requests
//! to the memory, accepts connections to interfaces ([`Inbox`]), and sends what the kernel did not
//! take of completed posts ([`Courier`]).

mod peer;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::address::HostAddress;
use crate::handshake::{Purpose, Verdict};
use crate::inbox::{Doors, Inbox};
use crate::key::Key;
use crate::leftover::{Courier, Round};
use crate::listener::{Authenticated, Limits, Listener};
use crate::outbox::Spare;
use crate::region::Regions;
use crate::time::after;
use peer::Peer;

/// Bytes read at once.
const READ: usize = 256 << 10;
/// How long a peer that was refused may take to close the connection.
const PARTING: Duration = Duration::from_secs(1);
/// Connections to all targets of the process: one of two descriptors at most.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
const DESCRIPTORS: u64 = 2;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// Tokens of leftovers have this bit, those of peers do not.
pub(crate) const LEFTOVER: u64 = 1 << 63;

/// A listener and the thread that serves its connections. Dropping it ends them; in a child by fork
/// the drop has no effect.
#[derive(Debug)]
pub struct Target {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    protected: Arc<AtomicBool>,
    doors: Arc<Doors>,
    courier: Courier,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread belongs to.
    process: u32,
}

impl Target {
    /// Opens `regions` to peers that have the key and the number `service`.
    ///
    /// # Errors
    /// There is no descriptor or no thread left, or `address` is not one of this host.
    pub fn start(
        address: impl Into<HostAddress>,
        key: Key,
        service: u64,
        regions: Arc<Regions>,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = Listener::open(address, key, limits)?;
        let address = listener.address();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let protected = Arc::new(AtomicBool::new(limits.protected));
        let (ends, doors) = (Arc::default(), Arc::default());
        let courier = Courier::new(Arc::clone(&wake));
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let server = Server {
            listener,
            wake: Arc::clone(&wake),
            ends: Arc::clone(&ends),
            protected: Arc::clone(&protected),
            doors: Arc::clone(&doors),
            round: Round::new(courier.clone()),
            most: descriptors.map_or(usize::MAX, |limit| (limit / DESCRIPTORS) as usize),
            epoll,
            service,
            regions,
            peers: HashMap::new(),
            next: 0,
            scratch: vec![0; READ].into(),
            spare: Spare::default(),
            parting: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("barewire-target".into())
            .spawn(move || server.run())?;
        let (thread, process) = (Some(thread), std::process::id());
        Ok(Self { address, wake, ends, protected, doors, courier, thread, process })
    }

    /// Sets whether new connections are [protected](Limits::protected).
    pub fn protect(&self, on: bool) {
        self.protected.store(on, Ordering::Relaxed);
    }

    /// The address that peers connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections to the interface `service` from now on.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn inbox(&self, service: u64) -> io::Result<Inbox> {
        Inbox::open(Arc::clone(&self.doors), service)
    }

    /// Returns the handle by which connections have the thread send for them.
    pub fn courier(&self) -> Courier {
        self.courier.clone()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child by fork: the thread is the parent's, and `wake` would end it.
            std::mem::forget(self.thread.take());
            return;
        }
        self.ends.store(true, Ordering::Release);
        let woken = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            // A panic has ended the thread, too.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Server {
    listener: Listener,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    protected: Arc<AtomicBool>,
    doors: Arc<Doors>,
    round: Round,
    /// Connections that all targets of the process may serve.
    most: usize,
    epoll: OwnedFd,
    service: u64,
    regions: Arc<Regions>,
    peers: HashMap<u64, Peer>,
    next: u64,
    scratch: Box<[u8]>,
    spare: Spare,
    /// Peers that were refused, and when their connections are closed at the latest.
    parting: Vec<(Instant, u64)>,
}

impl Server {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        let mut authenticated = Vec::new();
        loop {
            events.clear();
            let timeout = self.timeout();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => {}
                    WAKE => {
                        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                    }
                    token if token & LEFTOVER != 0 => self.round.send(&self.epoll, token),
                    number => self.serve(number),
                }
            }
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            let now = Instant::now();
            self.round.work(&self.epoll, now);
            self.listener.protect(self.protected.load(Ordering::Relaxed));
            self.listener.work(now, &mut authenticated);
            self.doors.note_refused(self.listener.refused());
            for newcomer in authenticated.drain(..) {
                self.admit(newcomer);
            }
            while let Some((until, number)) = self.parting.first().copied()
                && now >= until
            {
                self.parting.remove(0);
                self.peers.remove(&number);
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let parting = self.parting.first().map(|(until, _)| *until);
        let deadlines = [self.listener.deadline(), parting, self.round.deadline()];
        let next = deadlines.into_iter().flatten().min()?;
        let left =
            next.saturating_duration_since(Instant::now()).saturating_add(Duration::from_millis(1));
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    fn admit(&mut self, newcomer: Authenticated) {
        if matches!(newcomer.claim.purpose, Purpose::Messages | Purpose::Interface) {
            return self.doors.admit(newcomer);
        }
        if newcomer.claim.purpose != Purpose::Memory || newcomer.claim.service != self.service {
            return newcomer.refuse(Verdict::Unknown);
        }
        if CONNECTIONS.load(Ordering::Relaxed) >= self.most {
            return newcomer.refuse(Verdict::Full);
        }
        let Ok(socket) = newcomer.welcome() else { return };
        let number = self.next;
        self.next += 1;
        let peer = Peer::new(socket);
        let data = epoll::EventData::new_u64(number);
        if epoll::add(&self.epoll, &peer.socket, data, peer.watched).is_ok() {
            self.peers.insert(number, peer);
        }
    }

    fn serve(&mut self, number: u64) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let was_refused = peer.refused;
        let stays = peer.serve(&mut self.scratch, &self.regions, &self.spare).unwrap_or(false)
            && peer.watch(&self.epoll, number).is_ok();
        if !stays {
            peer.outbox.clear(&self.spare);
            self.peers.remove(&number);
        } else if peer.refused && !was_refused {
            self.parting.push((after(Instant::now(), PARTING), number));
        }
    }
}
