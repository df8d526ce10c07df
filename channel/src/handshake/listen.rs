//! The end that listens, and receives.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::frames::Stream;
use barewire_tcp::handshake::{Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Listener as TcpListener};
use barewire_tcp::share::{Share, Slice, Terms};
use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::time::after;
use rustix::event::{Timespec, epoll};

use super::handle::TOKEN;
use super::message::{LONGEST, Message};
use super::{Agreed, Handle, HandshakeError, Local, pairs, receive, refuse, send};
use crate::config::Config;
use crate::plan::Plan;
use crate::queues::{Queues, Role};
use crate::rails::Rails;
use crate::receiver::Receiver;
use crate::ring::{Lines, RemoteLines};

/// Connections at once that are authenticated and not accepted yet, if they are free. A peer that
/// is refused tries again.
const MOST: usize = 64;
/// At most so many for each that can have queues at once: so few that each has its turn before its
/// peer gives up, even if all others let their time pass.
const TURNS: usize = 4;
/// Those that are not free.
const MOST_OTHERS: usize = 8;
/// Queue pairs of these connections. Each has about 350 KiB of memory, with its software device.
/// Connections beyond wait for their answer.
const PAIRS: usize = 16;
/// How long the peer of a connection may say nothing before the connection makes room for another
/// one, if that needs it. If none is silent, the new one is refused, and its peer tries again.
const YOUNG: Duration = Duration::from_millis(250);
/// The same once it was answered, since the peer makes queues; at least this part of the timeout.
const ANSWERED: Duration = Duration::from_millis(500);
const PART_OF_TIMEOUT: u32 = 16;
/// Between searches for silent connections while others wait.
const SEARCHES: Duration = Duration::from_millis(10);
/// Events that one call takes from the kernel.
const EVENTS: usize = 64;
/// How often in a timeout it is checked which connections are over theirs.
const CHECKS: u32 = 64;

/// Accepts channels, whose receivers are at this end.
#[derive(Debug)]
pub struct Listener {
    local: Local,
    tcp: TcpListener,
    token: [u8; TOKEN],
    authenticated: Vec<Authenticated>,
    /// By age.
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Those that may have something to receive, in turn: first those that are free.
    ready: [VecDeque<u64>; 2],
    /// As above, of those that wait until there is room for their queues.
    waiting: [VecDeque<u64>; 2],
    /// Which of these are next.
    turn: usize,
    /// Connections with queues.
    answered: usize,
    /// When to search next for a silent one among them.
    next_search: Instant,
    share: Share,
    /// When it is checked next which are over their timeout.
    next_check: Instant,
    /// Reports each of them once, until it is watched again.
    epoll: OwnedFd,
}

/// A channel that is being accepted.
#[derive(Debug)]
struct Pending {
    stream: Stream,
    timer: StallTimer,
    /// When it was accepted or answered.
    since: Instant,
    is_free: bool,
    /// It has something to receive, as far as is known.
    is_ready: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The OFFER is awaited.
    Welcomed,
    /// The ANSWER was sent.
    Answered(Box<(Agreed, Plan)>, Vec<Queues>),
}

/// What [`Pending::advance`] did.
enum Step {
    /// Nothing is there to receive.
    Idle,
    /// It took a message.
    Advanced,
    /// Both ends are connected.
    Connected(Box<Connected>),
}

impl Listener {
    /// Listens on `address`; port 0 chooses a free one. Peers have to prove `key`.
    pub fn bind(
        rails: &Rails,
        address: SocketAddr,
        key: &Key,
        config: &Config,
    ) -> Result<Self, HandshakeError> {
        let local = Local::new(rails, config, Role::Receiver)?;
        let failed = |source| HandshakeError::Listen { address, source };
        let tcp = TcpListener::open_at(address, key.clone(), local.tcp()).map_err(failed)?;
        let mut token = [0; TOKEN];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| failed(error.into()))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let now = Instant::now();
        Ok(Self {
            local,
            tcp,
            token,
            authenticated: Vec::new(),
            pending: BTreeMap::new(),
            next: 0,
            ready: Default::default(),
            waiting: Default::default(),
            turn: 0,
            answered: 0,
            next_search: now,
            share: Share::new(Terms::CONNECTIONS, now),
            next_check: now,
            epoll,
        })
    }

    /// What a peer needs to connect. The address is the one that was bound: bind one that the peer
    /// can reach.
    pub fn handle(&self) -> Handle {
        Handle::new(self.tcp.address(), self.token)
    }

    /// Connections so far that did not prove the key.
    pub fn refused(&self) -> u64 {
        self.tcp.refused()
    }

    /// Does what can be done without waiting, for all connections. Returns a channel once it is
    /// connected. The listener can accept any number of them.
    ///
    /// What peers can take of the elapsed time by connections is bounded. A listener that starts, or
    /// has more channels than ever before, is not delayed by that.
    ///
    /// # Errors
    /// [`HandshakeError`] if one connection fails. The others, and the listener, work on.
    pub fn accept(&mut self) -> Result<Option<Receiver>, HandshakeError> {
        let now = Instant::now();
        self.tcp.work(now, &mut self.authenticated);
        for authenticated in std::mem::take(&mut self.authenticated) {
            self.welcome(authenticated, now);
        }
        if self.pending.is_empty() {
            self.ready.iter_mut().chain(&mut self.waiting).for_each(VecDeque::clear);
            return Ok(None);
        }
        self.poll();
        let is_wanted = !self.ready[1].is_empty() || !self.waiting[1].is_empty();
        let mut slice = if is_wanted { self.share.begin(now) } else { None };
        if slice.is_some() || !self.waiting[0].is_empty() {
            self.admit(now);
        }
        let accepted = self.serve(&mut slice, now);
        if let Some(slice) = slice {
            self.share.end(slice);
        }
        match accepted {
            Ok(None) => self.expire(now),
            other => other,
        }
    }

    /// Asks the kernel which connections have something to receive.
    fn poll(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After an interruption there are no events.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none));
        for event in events {
            let number = event.data.u64();
            if let Some(pending) = self.pending.get_mut(&number) {
                pending.is_ready = true;
                self.ready[usize::from(!pending.is_free)].push_back(number);
            }
        }
    }

    /// Returns how many connections can have queues at once.
    fn places(&self) -> usize {
        let pairs = self.local.rails.rails().len().saturating_mul(self.local.config.pairs.into());
        PAIRS.checked_div(pairs).unwrap_or(PAIRS).max(1)
    }

    /// Returns whether there is room for the queues of another connection.
    fn has_room(&self) -> bool {
        self.answered < self.places()
    }

    /// Lets a connection that waits for room be served, if there is room.
    fn admit(&mut self, now: Instant) {
        if self.waiting.iter().all(VecDeque::is_empty) {
            return;
        }
        if !self.has_room() && now >= self.next_search {
            self.next_search = after(now, SEARCHES);
            self.drop_silent(now, Pending::is_answered);
        }
        if self.has_room() {
            let place = if self.waiting[self.turn].is_empty() { 1 - self.turn } else { self.turn };
            self.turn = 1 - place;
            let number = self.waiting[place].pop_front();
            self.ready[place].extend(number);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        self.answered = self.answered.saturating_sub(usize::from(pending.is_answered()));
        Some(pending)
    }

    /// Advances the connections that are ready: those that are free, and others while the slice
    /// lasts.
    fn serve(
        &mut self,
        slice: &mut Option<Slice>,
        now: Instant,
    ) -> Result<Option<Receiver>, HandshakeError> {
        loop {
            let number = match slice {
                _ if !self.ready[0].is_empty() => self.ready[0].pop_front(),
                Some(slice) if !slice.is_over(Duration::ZERO) => self.ready[1].pop_front(),
                _ => None,
            };
            let Some(number) = number else { return Ok(None) };
            let has_room = self.has_room();
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            let (is_free, was_answered) = (pending.is_free, pending.is_answered());
            if !was_answered && !has_room {
                self.waiting[usize::from(!is_free)].push_back(number);
                continue;
            }
            match Slice::during(slice.as_mut(), is_free, || pending.advance(&self.local, now)) {
                Ok(Step::Advanced) => {
                    self.answered += usize::from(!was_answered);
                    self.ready[usize::from(!is_free)].push_back(number);
                }
                Ok(Step::Idle) => {
                    pending.is_ready = false;
                    let data = epoll::EventData::new_u64(number);
                    let stream = &pending.stream;
                    if let Err(errno) = epoll::modify(&self.epoll, stream, data, flags(stream)) {
                        let (peer, source) = (stream.peer(), errno.into());
                        let error = HandshakeError::Lost { peer, source };
                        self.end(number, &error);
                        return Err(error);
                    }
                }
                Ok(Step::Connected(connected)) => {
                    let Some(Pending { stream, state, .. }) = self.remove(number) else {
                        continue;
                    };
                    let State::Answered(parts, queues) = state else { continue };
                    let _ = epoll::delete(&self.epoll, &stream);
                    let (rings, limit) = *connected;
                    return Ok(Some(Receiver::new(parts.1, queues, rings, stream, limit)));
                }
                Err(error) => {
                    self.end(number, &error);
                    return Err(error);
                }
            }
        }
    }

    fn welcome(&mut self, authenticated: Authenticated, now: Instant) {
        let (service, endpoint) = self.handle().numbers();
        let claim = authenticated.claim;
        if claim.purpose != Purpose::Control
            || (claim.service, claim.endpoint) != (service, endpoint)
        {
            return authenticated.refuse(Verdict::Unknown);
        }
        let is_free = authenticated.is_free;
        let alike = self.pending.values().filter(|pending| pending.is_free == is_free).count();
        let most = if is_free { MOST } else { MOST_OTHERS };
        let most = most.min(self.places().saturating_mul(TURNS));
        if alike >= most && !self.drop_silent(now, |pending| pending.is_free == is_free) {
            return self.tcp.turn_away(authenticated, now);
        }
        // A connection that has failed already has nobody to report it to.
        let Ok(socket) = authenticated.welcome() else { return };
        let (stream, number) = (Stream::new(socket, LONGEST), self.next);
        let data = epoll::EventData::new_u64(number);
        if epoll::add(&self.epoll, &stream, data, flags(&stream)).is_ok() {
            self.next += 1;
            let timer = StallTimer::new(self.local.config.timeout, now);
            let state = State::Welcomed;
            let pending = Pending { stream, timer, since: now, is_free, is_ready: false, state };
            self.pending.insert(number, pending);
        }
    }

    /// Drops the oldest of such connections whose peer could have said something.
    fn drop_silent(&mut self, now: Instant, is_meant: impl Fn(&Pending) -> bool) -> bool {
        let part = self.local.config.timeout.checked_div(PART_OF_TIMEOUT).unwrap_or_default();
        let answered = part.max(ANSWERED);
        let is_silent = |pending: &Pending| {
            let limit = if pending.is_answered() { answered } else { YOUNG };
            let silence = now.saturating_duration_since(pending.since);
            !pending.is_ready && is_meant(pending) && silence >= limit
        };
        let oldest = self.pending.iter().find(|(_, pending)| is_silent(pending));
        let oldest = oldest.map(|(number, _)| *number);
        oldest.and_then(|number| self.remove(number)).is_some()
    }

    /// Checks which connections are over their timeout.
    fn expire(&mut self, now: Instant) -> Result<Option<Receiver>, HandshakeError> {
        if now < self.next_check {
            return Ok(None);
        }
        for (number, pending) in &mut self.pending {
            if let Some(error) = pending.overdue(&self.local, now) {
                let number = *number;
                self.end(number, &error);
                return Err(error);
            }
        }
        let interval = self.local.config.timeout.checked_div(CHECKS).unwrap_or_default();
        self.next_check = after(now, interval);
        Ok(None)
    }

    /// Ends a connection, with the reason for the peer.
    fn end(&mut self, number: u64, error: &HandshakeError) {
        if let Some(mut pending) = self.remove(number) {
            refuse(&mut pending.stream, error);
        }
    }
}

/// What a connection is watched for.
fn flags(stream: &Stream) -> epoll::EventFlags {
    let out = if stream.is_flushed() { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT | out
}

/// Readable when a connection arrives. While one is being accepted, `accept` has to be called
/// anyway.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// The peer's lines, the memory for their copies and for records, and the longest message.
type Connected = ((RemoteLines, Lines), u64);

impl Pending {
    fn is_answered(&self) -> bool {
        matches!(self.state, State::Answered(..))
    }

    /// Takes a message. Returns the parts of a receiver once both ends are connected.
    fn advance(&mut self, local: &Local, now: Instant) -> Result<Step, HandshakeError> {
        let peer = self.stream.peer();
        match (receive(&mut self.stream)?, &mut self.state) {
            (None, _) => return Ok(Step::Idle),
            (Some(Message::Offer { limits, rails }), State::Welcomed) => {
                let agreed = local.agree(peer, rails, &limits)?;
                let plan = local.plan(&agreed);
                let queues = Local::create(peer, &plan)?;
                let answer = Message::Answer {
                    limits: local.limits(),
                    rails: local.rails.infos(),
                    pairing: agreed.pairing.clone(),
                    pairs: pairs(&queues),
                };
                send(&mut self.stream, &answer)?;
                self.timer = StallTimer::new(local.config.timeout, now);
                self.since = now;
                self.state = State::Answered(Box::new((agreed, plan)), queues);
            }
            (
                Some(Message::Ready { pairing, pairs, address, keys }),
                State::Answered(parts, queues),
            ) => {
                let (agreed, plan) = &**parts;
                local.check(peer, agreed, &pairing, &pairs)?;
                Local::connect(peer, plan, queues, &pairs)?;
                for (queues, pairs) in queues.iter().zip(&pairs) {
                    queues.check_enhancements(pairs.enhancements);
                }
                let (copies, records) = local.lines(peer, queues)?;
                let RemoteLines { address: at, keys: rights } = records;
                send(&mut self.stream, &Message::Go { address: at, keys: rights })?;
                let rings = (RemoteLines { address, keys }, copies);
                return Ok(Step::Connected(Box::new((rings, agreed.limit))));
            }
            (Some(_), _) => {
                let what = "a message out of order";
                return Err(HandshakeError::Protocol { peer, what });
            }
        }
        Ok(Step::Advanced)
    }

    /// Why the connection has to end, if it took too long.
    fn overdue(&mut self, local: &Local, now: Instant) -> Option<HandshakeError> {
        // What the peer has sent may wait for this end.
        if !self.timer.is_over(now) || self.is_ready {
            return None;
        }
        let awaited = match self.state {
            State::Welcomed => "name its rails",
            State::Answered(..) => "connect its queue pairs",
        };
        Some(local.timed_out(self.stream.peer(), awaited))
    }
}
