//! The thread that executes peers' requests to this process's memory, without progress of the
//! process.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::handshake::{Purpose, Verdict};
use crate::key::Key;
use crate::listener::{Authenticated, Counted, Limits, Listener};
use crate::outbox::{Outbox, Spare};
use crate::region::{Region, Regions};
use crate::request::{
    Action, Operation, Outcome, REQUEST_BYTES, RESPONSE_BYTES, Request, Response,
};
use crate::seal::is_altered;
use crate::socket::Socket;

/// Bytes read at once.
const READ: usize = 256 << 10;
/// Bytes of a put that one system call receives into the region.
const DIRECT: usize = 1 << 20;
/// The data of a get of at most so many bytes are copied; others are sent from the region.
const COPIED: usize = 8 << 10;
/// No more requests are received from a peer that leaves so many bytes of responses unread.
const UNREAD: u64 = 1 << 20;
/// Reads from one peer before those from the next.
const TURNS: usize = 8;
/// How long a peer that was refused may take to close the connection.
const PARTING: Duration = Duration::from_secs(1);
/// Connections to all targets of the process: one of two descriptors at most.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
const DESCRIPTORS: u64 = 2;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// A listener and the thread that serves its connections. Dropping it ends them; in a child by fork
/// the drop has no effect.
#[derive(Debug)]
pub struct Target {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    protected: Arc<AtomicBool>,
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
        address: IpAddr,
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
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let server = Server {
            listener,
            protected: Arc::clone(&protected),
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
        Ok(Self { address, wake, protected, thread: Some(thread), process: std::process::id() })
    }

    /// Sets whether new connections are [protected](Limits::protected).
    pub fn protect(&self, on: bool) {
        self.protected.store(on, Ordering::Relaxed);
    }

    /// The address that peers connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child by fork: the thread is the parent's, and `wake` would end it.
            std::mem::forget(self.thread.take());
            return;
        }
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
    protected: Arc<AtomicBool>,
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
                    WAKE => return,
                    LISTENER => {}
                    number => self.serve(number),
                }
            }
            let now = Instant::now();
            self.listener.protect(self.protected.load(Ordering::Relaxed));
            self.listener.work(now, &mut authenticated);
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
        let next = [self.listener.deadline(), parting].into_iter().flatten().min()?;
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    fn admit(&mut self, newcomer: Authenticated) {
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
            self.parting.push((Instant::now() + PARTING, number));
        }
    }
}

#[derive(Debug)]
struct Peer {
    socket: Socket,
    _connection: Counted,
    outbox: Outbox,
    /// The beginning of a request, or requests that wait until the responses before them are sent.
    held: Vec<u8>,
    /// The held requests wait: there is no room for a response, or memory that the first of them
    /// may change has yet to be sent.
    is_waiting: bool,
    /// The rest of a put whose data arrived in part.
    putting: Option<Putting>,
    /// Requests finished.
    finished: u64,
    /// The last finished operation, if there is no response to it yet.
    unacknowledged: Option<Operation>,
    /// A request was refused; no other one is executed.
    refused: bool,
    /// The events that epoll reports.
    watched: epoll::EventFlags,
}

#[derive(Debug)]
struct Putting {
    region: Arc<Region>,
    offset: usize,
    left: usize,
}

/// The peer has no right to the access.
#[derive(Debug)]
struct Refused;

impl Peer {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            _connection: Counted::among(&CONNECTIONS),
            outbox: Outbox::default(),
            held: Vec::new(),
            is_waiting: false,
            putting: None,
            finished: 0,
            unacknowledged: None,
            refused: false,
            watched: epoll::EventFlags::IN,
        }
    }

    fn watch(&mut self, epoll: &OwnedFd, number: u64) -> io::Result<()> {
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, !self.is_waiting && self.outbox.waiting() <= UNREAD);
        wanted.set(epoll::EventFlags::OUT, self.is_waiting || !self.outbox.is_empty());
        if wanted != self.watched {
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(number), wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }

    /// Does what can be done without waiting. Returns false if the connection has ended.
    fn serve(&mut self, scratch: &mut [u8], regions: &Regions, spare: &Spare) -> io::Result<bool> {
        for _ in 0..TURNS {
            self.send(spare)?;
            if self.refused {
                if self.outbox.is_empty() {
                    self.socket.finish();
                }
                return Ok(!self.socket.drain());
            }
            if self.outbox.waiting() > UNREAD || self.is_waiting && !self.outbox.is_empty() {
                return Ok(true);
            }
            let held = self.held.len();
            scratch[..held].copy_from_slice(&self.held);
            self.held.clear();
            let filled = if self.is_waiting {
                held
            } else if let (Some(putting), 0, false) =
                (&mut self.putting, held, self.socket.is_protected())
                && putting.left > 0
                && putting.region.is_contiguous()
            {
                match putting.receive(&mut self.socket) {
                    Ok(Some(0)) => return Ok(false),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(None) => self.refuse(spare, Operation::Put, Outcome::Refused),
                    Err(Some(error)) => return Err(error),
                }
                0
            } else {
                match self.socket.receive(&mut scratch[held..]) {
                    Ok(Some(0)) => return Ok(false),
                    Ok(Some(count)) => held + count,
                    Ok(None) => {
                        self.held.extend_from_slice(&scratch[..held]);
                        break;
                    }
                    Err(error) if is_altered(&error) => {
                        self.refuse(spare, Operation::Put, Outcome::Altered);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            };
            self.is_waiting = false;
            self.execute_all(&scratch[..filled], regions, spare);
            self.acknowledge(spare);
        }
        self.send(spare)?;
        Ok(true)
    }

    fn send(&mut self, spare: &Spare) -> io::Result<()> {
        // If memory is freed while it is sent, the response is incomplete: the connection ends.
        match self.outbox.flush(&mut self.socket, spare) {
            Ok(_) => Ok(()),
            Err(_) => Err(ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Executes the requests in `bytes`, and holds those that cannot be executed yet.
    fn execute_all(&mut self, mut bytes: &[u8], regions: &Regions, spare: &Spare) {
        while !self.refused {
            if let Some(putting) = &mut self.putting {
                match putting.store(bytes) {
                    Ok(count) => bytes = &bytes[count..],
                    Err(Refused) => return self.refuse(spare, Operation::Put, Outcome::Refused),
                }
                if putting.left > 0 {
                    return;
                }
                self.putting = None;
                self.finish(Operation::Put);
            }
            let Some((request, behind)) = bytes.split_first_chunk::<REQUEST_BYTES>() else { break };
            // If its length is unknown, what follows cannot be parsed.
            let Ok(request) = Request::parse(request) else {
                return self.refuse(spare, Operation::Put, Outcome::Refused);
            };
            // The data of an earlier get are those from before this request.
            let must_wait = request.operation() != Operation::Get && self.outbox.has_ranges();
            // The longest response, and one for the puts before it.
            if must_wait || self.outbox.room(spare, 2 * RESPONSE_BYTES + COPIED).is_none() {
                self.is_waiting = true;
                break;
            }
            if let Err(Refused) = self.execute(&request, regions, spare) {
                return self.refuse(spare, request.operation(), Outcome::Refused);
            }
            bytes = behind;
        }
        self.held.extend_from_slice(bytes);
    }

    fn finish(&mut self, operation: Operation) {
        self.finished += 1;
        self.unacknowledged = Some(operation);
    }

    fn respond(&mut self, spare: &Spare, operation: Operation, outcome: Outcome, value: u64) {
        self.unacknowledged = None;
        let response = Response { finished: self.finished, outcome, operation, value };
        // There is room: it was checked before the request was executed.
        self.outbox.push(spare, &response.to_bytes());
    }

    /// Responds to the last finished operation, and with it to those before.
    fn acknowledge(&mut self, spare: &Spare) {
        if let Some(operation) = self.unacknowledged {
            self.respond(spare, operation, Outcome::Done, 0);
        }
    }

    fn refuse(&mut self, spare: &Spare, operation: Operation, outcome: Outcome) {
        self.acknowledge(spare);
        self.finished += 1;
        self.respond(spare, operation, outcome, 0);
        self.refused = true;
        self.putting = None;
    }

    fn execute(
        &mut self,
        request: &Request,
        regions: &Regions,
        spare: &Spare,
    ) -> Result<(), Refused> {
        let region = regions.get(request.token).ok_or(Refused)?;
        let rights = region.rights();
        match request.action {
            Action::Put { length } => {
                let offset = region.offset_of(request.address, length).ok_or(Refused)?;
                if !rights.write {
                    return Err(Refused);
                }
                self.putting = Some(Putting { region, offset, left: length as usize });
            }
            Action::Get { length } => {
                let offset = region.offset_of(request.address, length).ok_or(Refused)?;
                if !rights.read {
                    return Err(Refused);
                }
                self.get(spare, region, offset, length as usize)?;
            }
            Action::Atomic { change, width, fetch, operand, compare } => {
                let offset = region.offset_of(request.address, width.into()).ok_or(Refused)?;
                if !rights.atomic {
                    return Err(Refused);
                }
                let old = region
                    .update(offset, width.into(), |old| change.apply(old, operand, compare))
                    .ok_or(Refused)?;
                self.finish(Operation::Atomic);
                if fetch {
                    self.respond(spare, Operation::Atomic, Outcome::Done, old);
                }
            }
        }
        Ok(())
    }

    fn get(
        &mut self,
        spare: &Spare,
        region: Arc<Region>,
        offset: usize,
        length: usize,
    ) -> Result<(), Refused> {
        if length <= COPIED && !region.is_contiguous() {
            return self.get_listed(spare, &region, offset, length);
        }
        let entered = region.enter().ok_or(Refused)?;
        self.finish(Operation::Get);
        self.respond(spare, Operation::Get, Outcome::Done, length as u64);
        if length > COPIED {
            drop(entered);
            self.outbox.push_range(region, offset, length);
            return Ok(());
        }
        let room = self.outbox.room(spare, length).ok_or(Refused)?;
        entered.read(offset, room).map_err(|_| Refused)?;
        self.outbox.commit(length);
        Ok(())
    }

    /// As [`Self::get`] of a few bytes that are not contiguous. Ranges of the list may be revoked
    /// one by one, so the data are read before the response is written.
    fn get_listed(
        &mut self,
        spare: &Spare,
        region: &Region,
        offset: usize,
        length: usize,
    ) -> Result<(), Refused> {
        let mut data = vec![0; length];
        region.read(offset, &mut data).map_err(|_| Refused)?;
        self.finish(Operation::Get);
        self.respond(spare, Operation::Get, Outcome::Done, length as u64);
        // There is room, as for the response.
        self.outbox.push(spare, &data);
        Ok(())
    }
}

impl Putting {
    /// Stores data from the front of `bytes`. Returns how many bytes.
    fn store(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let count = self.left.min(bytes.len());
        self.region.write(self.offset, &bytes[..count]).map_err(|_| Refused)?;
        self.offset += count;
        self.left -= count;
        Ok(count)
    }

    /// Receives data into the region. An error of `None` means that the region is revoked.
    fn receive(&mut self, socket: &mut Socket) -> Result<Option<usize>, Option<io::Error>> {
        let count = self.region.receive(self.offset, self.left.min(DIRECT), socket)?;
        self.offset += count.unwrap_or(0);
        self.left -= count.unwrap_or(0);
        Ok(count)
    }
}
