//! The thread that carries out what peers ask of this process's memory, so that the process itself need not.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::door::{Admitted, Counted, Door, Limits};
use crate::handshake::{Purpose, Verdict};
use crate::key::Key;
use crate::outbox::{Outbox, Spare};
use crate::region::{Region, Regions};
use crate::request::{ANSWER_BYTES, Action, Answer, Operation, Outcome, REQUEST_BYTES, Request};
use crate::seal::is_altered;
use crate::socket::Socket;

/// Bytes read at once.
const READ: usize = 256 << 10;
/// Bytes of a put that are taken straight into their place in one call.
const STRAIGHT: usize = 1 << 20;
/// Up to here a get's data are copied; above they are sent from where they are.
const COPIED: usize = 8 << 10;
/// No more requests are taken from a peer that leaves this much of its answers unread.
const UNREAD: u64 = 1 << 20;
/// Reads from one peer before the next has its turn.
const TURNS: usize = 8;
/// How long a peer may take to leave after it was refused.
const PARTING: Duration = Duration::from_secs(1);
/// Connections to all targets of the process: one of two descriptors at most.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
const DESCRIPTORS: u64 = 2;

const DOOR: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// A listening socket and the thread behind it. Dropping it ends both, and every connection; in a
/// child by fork it does nothing.
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
    /// Opens `regions` to peers who know the key and the number `service`.
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
        let door = Door::open(address, key, limits)?;
        let address = door.address();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &door, epoll::EventData::new_u64(DOOR), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let protected = Arc::new(AtomicBool::new(limits.protected));
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let server = Server {
            door,
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
        let thread =
            std::thread::Builder::new().name("barewire-target".into()).spawn(move || server.run())?;
        Ok(Self { address, wake, protected, thread: Some(thread), process: std::process::id() })
    }

    /// Whether connections that come in from now on are [protected](Limits::protected).
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
            // A panic of the thread's was its own end.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Server {
    door: Door,
    protected: Arc<AtomicBool>,
    /// Connections that the process may serve.
    most: usize,
    epoll: OwnedFd,
    service: u64,
    regions: Arc<Regions>,
    peers: HashMap<u64, Peer>,
    next: u64,
    scratch: Box<[u8]>,
    spare: Spare,
    /// Peers that were refused, and until when they have to leave.
    parting: Vec<(Instant, u64)>,
}

impl Server {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        let mut admitted = Vec::new();
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
                    DOOR => {}
                    number => self.serve(number),
                }
            }
            let now = Instant::now();
            self.door.protect(self.protected.load(Ordering::Relaxed));
            self.door.work(now, &mut admitted);
            for newcomer in admitted.drain(..) {
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
        let next = [self.door.deadline(), parting].into_iter().flatten().min()?;
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    fn admit(&mut self, newcomer: Admitted) {
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
    /// The beginning of a request, or requests that wait for room for their answers.
    rest: Vec<u8>,
    /// The rest waits for room.
    stuck: bool,
    /// Where the data of a put go that came in part.
    putting: Option<Putting>,
    /// Requests finished.
    finished: u64,
    /// The last operation that nobody was told of yet.
    owed: Option<Operation>,
    /// It asked for what it may not have; nothing more is done for it.
    refused: bool,
    /// What it is watched for.
    watched: epoll::EventFlags,
}

#[derive(Debug)]
struct Putting {
    region: Arc<Region>,
    offset: usize,
    left: usize,
}

/// Nothing more is done for a peer that asks for what it may not have.
#[derive(Debug)]
struct Refused;

impl Peer {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            _connection: Counted::among(&CONNECTIONS),
            outbox: Outbox::default(),
            rest: Vec::new(),
            stuck: false,
            putting: None,
            finished: 0,
            owed: None,
            refused: false,
            watched: epoll::EventFlags::IN,
        }
    }

    fn watch(&mut self, epoll: &OwnedFd, number: u64) -> io::Result<()> {
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, !self.stuck && self.outbox.waiting() <= UNREAD);
        wanted.set(epoll::EventFlags::OUT, self.stuck || !self.outbox.is_empty());
        if wanted != self.watched {
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(number), wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }

    /// Does what can be done now; false if the peer is gone or done with.
    fn serve(&mut self, scratch: &mut [u8], regions: &Regions, spare: &Spare) -> io::Result<bool> {
        for _ in 0..TURNS {
            self.send(spare)?;
            if self.refused {
                if self.outbox.is_empty() {
                    self.socket.finish();
                }
                return Ok(!self.socket.drain());
            }
            if self.outbox.waiting() > UNREAD {
                return Ok(true);
            }
            let held = self.rest.len();
            scratch[..held].copy_from_slice(&self.rest);
            self.rest.clear();
            let filled = if self.stuck {
                held
            } else if let (Some(putting), 0, false) = (&mut self.putting, held, self.socket.is_protected())
                && putting.left > 0
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
                        self.rest.extend_from_slice(&scratch[..held]);
                        break;
                    }
                    Err(error) if is_altered(&error) => {
                        self.refuse(spare, Operation::Put, Outcome::Altered);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            };
            self.stuck = false;
            self.take(&scratch[..filled], regions, spare);
            self.acknowledge(spare);
        }
        self.send(spare)?;
        Ok(true)
    }

    fn send(&mut self, spare: &Spare) -> io::Result<()> {
        // Memory that is freed while it is being sent leaves the answer in pieces: the connection ends.
        match self.outbox.flush(&mut self.socket, spare) {
            Ok(_) => Ok(()),
            Err(_) => Err(ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Carries out the requests in `bytes`; what cannot be carried out yet becomes the rest.
    fn take(&mut self, mut bytes: &[u8], regions: &Regions, spare: &Spare) {
        while !self.refused {
            if let Some(putting) = &mut self.putting {
                match putting.take(bytes) {
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
            // The longest answer, and one for the puts before it.
            if self.outbox.room(spare, 2 * ANSWER_BYTES + COPIED).is_none() {
                self.stuck = true;
                break;
            }
            let done = match Request::parse(request) {
                Ok(request) => {
                    self.carry_out(&request, regions, spare).map_err(|Refused| request.operation())
                }
                // Whatever it is, it cannot be read further.
                Err(_) => Err(Operation::Put),
            };
            if let Err(operation) = done {
                return self.refuse(spare, operation, Outcome::Refused);
            }
            bytes = behind;
        }
        self.rest.extend_from_slice(bytes);
    }

    fn finish(&mut self, operation: Operation) {
        self.finished += 1;
        self.owed = Some(operation);
    }

    fn answer(&mut self, spare: &Spare, operation: Operation, outcome: Outcome, value: u64) {
        self.owed = None;
        let answer = Answer { finished: self.finished, outcome, operation, value };
        // Room was seen to before the request was taken.
        self.outbox.push(spare, &answer.to_bytes());
    }

    /// Tells the peer what is finished.
    fn acknowledge(&mut self, spare: &Spare) {
        if let Some(operation) = self.owed {
            self.answer(spare, operation, Outcome::Done, 0);
        }
    }

    fn refuse(&mut self, spare: &Spare, operation: Operation, outcome: Outcome) {
        self.acknowledge(spare);
        self.finished += 1;
        self.answer(spare, operation, outcome, 0);
        self.refused = true;
        self.putting = None;
    }

    fn carry_out(&mut self, request: &Request, regions: &Regions, spare: &Spare) -> Result<(), Refused> {
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
                let entered = region.enter().ok_or(Refused)?;
                let old = entered
                    .update(offset, width.into(), |old| change.apply(old, operand, compare))
                    .ok_or(Refused)?;
                self.finish(Operation::Atomic);
                if fetch {
                    self.answer(spare, Operation::Atomic, Outcome::Done, old);
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
        let entered = region.enter().ok_or(Refused)?;
        self.finish(Operation::Get);
        self.answer(spare, Operation::Get, Outcome::Done, length as u64);
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
}

impl Putting {
    /// Takes the data that came with the request. Answers how many bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let count = self.left.min(bytes.len());
        self.region.write(self.offset, &bytes[..count]).map_err(|_| Refused)?;
        self.offset += count;
        self.left -= count;
        Ok(count)
    }

    /// Takes the data that follow straight from the socket. An error without a cause: the memory is gone.
    fn receive(&mut self, socket: &mut Socket) -> Result<Option<usize>, Option<io::Error>> {
        let count = self.region.receive(self.offset, self.left.min(STRAIGHT), socket)?;
        self.offset += count.unwrap_or(0);
        self.left -= count.unwrap_or(0);
        Ok(count)
    }
}
