//! Accepting connections: no byte of a peer is processed further before it has proved the job's
//! key.
//!
//! The cost of connections that have not proved the key (pending handshakes) is bounded:
//!
//! * Each has a descriptor and less than 300 bytes, for at most [`Limits::timeout`].
//! * All listeners of the process together have at most one in sixteen of its descriptors, and at
//!   most 64. When these are in use, a listener with more than an equal share of them drops its
//!   oldest handshake for a new one, once it is 0.1 s old; until then new connections wait in the
//!   kernel's queue. A listener with less still accepts, so the bound is twice that number.
//! * A call of [`Listener::work`] spends at most about 0.1 ms of CPU time on handshakes, and all
//!   calls together 1/125 of the elapsed time.
//!
//! A peer that has proved the key can make connections and end them as well. So the cost of an
//! authenticated connection is returned only if more of them are open than ever before, or for a
//! number in a time (`Refunds`). A job that starts, and the clients of a server, are not delayed.
//!
//! An honest peer needs one round trip, and tries again if its handshake was dropped.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use socket2::Socket as Raw;

use crate::address::HostAddress;
use crate::handshake::{
    Acceptor, CLAIM_BYTES, Claim, HELLO_BYTES, HandshakeError, Session, Verdict,
};
use crate::interfaces::advise;
use crate::key::{Key, random};
use crate::ports;
use crate::share::{Share, Slice, Terms};
use crate::socket::{Socket, abort, open, send_whole};
use crate::stall_timer::StallTimer;
use crate::time::after;

/// Connections that the kernel queues until they are accepted.
///
/// The kernel drops further SYNs, and TCP repeats them after 1, 3 and 7 s. If that happens to many
/// peers at once, they overflow the queue again each time, until their timeouts.
const BACKLOG: i32 = 1024;
/// Events that one call takes from the kernel.
const EVENTS: usize = 64;
/// Pending handshakes of the process, unless its limit of descriptors allows fewer.
const MOST_HANDSHAKES: usize = 64;
/// One in so many descriptors of the process may belong to a pending handshake.
const DESCRIPTORS: u64 = 16;
/// Age at which a handshake may be dropped for a new connection. Many peers that connect at once
/// are slow to respond: without it, they would lose their handshakes to each other.
const YOUNG: Duration = Duration::from_millis(100);
/// How long no connection is accepted after there was no descriptor for one.
const PAUSE: Duration = Duration::from_millis(20);
/// What may be spent on handshakes, a slice in each call.
const TERMS: Terms = Terms {
    burst: Duration::from_micros(400),
    slice: Duration::from_micros(100),
    least: Duration::from_micros(50),
    excess: Duration::from_millis(1),
    ..Terms::CONNECTIONS
};
/// CPU time that new connections leave to pending handshakes.
const RESERVE: Duration = Duration::from_micros(40);
/// Returned for a connection that is authenticated: more than its handshake costs. Or else spent:
/// its owner sets it up, and ends it.
const REFUND: Duration = Duration::from_micros(100);
/// Refunds that can accumulate for connections beside those that are open, and the time of one
/// more.
const MOST_REFUNDS: u32 = 256;
const REFUND_EVERY: Duration = Duration::from_millis(100);
/// The token of the listening socket; handshakes have their numbers.
const LISTENER: u64 = u64::MAX;

/// Limits of a connection and of its handshake.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Pending handshakes at once.
    pub handshakes: usize,
    /// How long a handshake may take, measured by a [`StallTimer`].
    pub timeout: Duration,
    /// How long the connection may then last without a sign of the peer.
    pub peer_timeout: Duration,
    /// Request records that are encrypted and authenticated ([`seal`](crate::seal)). A connection
    /// has them if either end requests them.
    pub protected: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshakes: MOST_HANDSHAKES,
            timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(30),
            protected: true,
        }
    }
}

impl Limits {
    /// The default limits for connections to `address`: protected by records, except on the
    /// loopback interface.
    pub fn toward(address: IpAddr) -> Self {
        Self { protected: !address.is_loopback(), ..Self::default() }
    }
}

/// A connection whose peer proved the key.
#[derive(Debug)]
pub struct Authenticated {
    socket: Raw,
    peer: SocketAddr,
    timeout: Duration,
    session: Session,
    guest: Arc<()>,
    /// What the peer requests.
    pub claim: Claim,
    /// It costs the peer nothing of the listener's [share](crate::share): more connections are
    /// open than ever before, or few were made recently.
    pub is_free: bool,
    /// It is free since more are open than ever before.
    is_growth: bool,
}

impl Authenticated {
    /// Accepts it.
    ///
    /// # Errors
    /// The connection has failed already.
    pub fn welcome(self) -> io::Result<Socket> {
        let seal = self.session.seal_accepting()?;
        send_whole(&self.socket, &self.session.verdict(Verdict::Welcome))?;
        let socket = Socket::new(self.socket, self.peer, self.timeout, seal)?;
        Ok(socket.counted(self.guest))
    }

    /// Closes it, with a reason for the peer.
    pub fn refuse(self, verdict: Verdict) {
        let _ = send_whole(&self.socket, &self.session.verdict(verdict));
    }
}

/// Pending handshakes of the process.
static HANDSHAKES: AtomicUsize = AtomicUsize::new(0);
/// Listeners of the process.
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// One more in a count until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(&'static AtomicUsize);

impl Counted {
    pub(crate) fn among(count: &'static AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which authenticated connections cost nothing.
#[derive(Debug)]
struct Refunds {
    /// Connections that were open at once, at most.
    most: usize,
    /// Of the elapsed time, [`REFUND_EVERY`] for each.
    share: Share,
}

impl Refunds {
    fn new(now: Instant) -> Self {
        let burst = REFUND_EVERY.saturating_mul(MOST_REFUNDS);
        Self { most: 0, share: Share::new(Terms { part: 1, burst, ..TERMS }, now) }
    }

    /// A connection was authenticated, and so many are open with it. Returns whether it is free,
    /// and whether that is since more are open than ever before.
    fn take(&mut self, open: usize, now: Instant) -> (bool, bool) {
        if open > self.most {
            self.most = open;
            return (true, true);
        }
        let is_free = self.share.left(now) >= REFUND_EVERY;
        if is_free {
            self.share.spend(REFUND_EVERY, now);
        }
        (is_free, false)
    }

    /// A free connection is not accepted after all.
    fn give_back(&mut self, is_growth: bool) {
        if is_growth {
            self.most = self.most.saturating_sub(1);
        } else {
            self.share.refund(REFUND_EVERY);
        }
    }
}

/// A connection that has not proved the key yet.
#[derive(Debug)]
struct PendingHandshake {
    socket: Raw,
    _counted: Counted,
    peer: SocketAddr,
    /// The listener's clock when it was accepted.
    since: Duration,
    /// Once the hello arrived.
    acceptor: Option<Acceptor>,
    held: [u8; CLAIM_BYTES],
    count: usize,
}

/// The state of a handshake after bytes were received.
enum Step {
    Pending,
    Failed,
    Authenticated(Claim, Session),
}

/// A listening socket with its pending handshakes.
#[derive(Debug)]
pub struct Listener {
    socket: Raw,
    address: SocketAddr,
    key: Key,
    limits: Limits,
    clock: StallTimer,
    /// Watches the listening socket and the handshakes: readable if there is something to do.
    epoll: OwnedFd,
    /// By age.
    handshakes: BTreeMap<u64, PendingHandshake>,
    next: u64,
    /// No connection is accepted before.
    paused: Option<Instant>,
    /// No connection is accepted before a handshake ends, or the oldest may be dropped.
    is_full: bool,
    share: Share,
    refunds: Refunds,
    /// Counts the authenticated connections that are open.
    guests: Arc<()>,
    /// Pending handshakes that all listeners may have.
    budget: usize,
    _counted: Counted,
    /// Connections that did not prove the key.
    refused: u64,
    shortage: Shortage,
}

/// Whether connections wait for descriptors or memory.
#[derive(Debug)]
enum Shortage {
    None,
    New(Errno),
    Reported,
}

impl Listener {
    /// Listens on a free port of `address`, of those in
    /// [`BAREWIRE_TCP_PORTS`](crate::ports::PORTS_VARIABLE) if that is set.
    ///
    /// # Errors
    /// The address is not one of this host, there are no descriptors, or the variable is not a
    /// range or has no free port.
    pub fn open(address: impl Into<HostAddress>, key: Key, limits: Limits) -> io::Result<Self> {
        Self::open_at(address.into().at(0), key, limits)
    }

    /// As [`Self::open`], on the port that `address` names; 0 is a free one.
    ///
    /// # Errors
    /// As there, and the port may be in use.
    pub fn open_at(mut address: SocketAddr, key: Key, limits: Limits) -> io::Result<Self> {
        if address.port() != 0 {
            return Self::open_on(address, key, limits);
        }
        let mut last = io::Error::from(ErrorKind::AddrInUse);
        for port in ports::candidates()? {
            address.set_port(port);
            match Self::open_on(address, key.clone(), limits) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => last = error,
                opened => return opened,
            }
        }
        Err(ports::all_in_use(last))
    }

    fn open_on(address: SocketAddr, key: Key, limits: Limits) -> io::Result<Self> {
        let socket = open(address)?;
        // Otherwise the port stays in use for a minute after each run.
        socket.set_reuse_address(address.port() != 0)?;
        socket.bind(&address.into()).map_err(|error| advise(address, error))?;
        Self::over(socket.into(), key, limits)
    }

    /// As [`Self::open_at`], over a stream socket that is bound to an address of this host, for
    /// example by the process that started this one.
    ///
    /// # Errors
    /// The socket cannot listen, or there are no descriptors.
    pub fn over(socket: OwnedFd, key: Key, limits: Limits) -> io::Result<Self> {
        let socket = Raw::from(socket);
        socket.set_nonblocking(true)?;
        socket.listen(BACKLOG)?;
        let address = socket.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let budget = descriptors.map_or(MOST_HANDSHAKES, |limit| (limit / DESCRIPTORS) as usize);
        Ok(Self {
            socket,
            address,
            key,
            limits,
            clock: StallTimer::new(limits.timeout, Instant::now()),
            epoll,
            handshakes: BTreeMap::new(),
            next: 0,
            paused: None,
            is_full: false,
            share: Share::new(TERMS, Instant::now()),
            refunds: Refunds::new(Instant::now()),
            guests: Arc::default(),
            budget: budget.clamp(1, MOST_HANDSHAKES),
            _counted: Counted::among(&LISTENERS),
            refused: 0,
            shortage: Shortage::None,
        })
    }

    /// Returns why no connection could be accepted, if this process has run out of descriptors or
    /// memory; only the first time.
    pub fn take_shortage(&mut self) -> Option<io::Error> {
        let Shortage::New(errno) = self.shortage else { return None };
        self.shortage = Shortage::Reported;
        let advice = match errno {
            Errno::MFILE => "; raise the limit of descriptors (ulimit -n)",
            _ => "",
        };
        let (address, error) = (self.address, io::Error::from(errno));
        let text = format!("peers cannot connect to {address}: {error}{advice}");
        Some(io::Error::new(error.kind(), text))
    }

    /// The address that the socket listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections so far that did not prove the key.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Pending handshakes.
    pub fn handshakes(&self) -> usize {
        self.handshakes.len()
    }

    /// Sets whether new connections are [protected](Limits::protected).
    pub fn protect(&mut self, on: bool) {
        self.limits.protected = on;
    }

    /// Returns true if [`Self::work`] need not be called before the descriptor is readable.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.handshakes.is_empty() && self.paused.is_none() && !self.is_full
    }

    /// Returns true if [`Self::work`] does nothing before [`Self::deadline`], although the
    /// descriptor may be readable: do not watch it until then.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// When [`Self::work`] must be called although the descriptor is not readable.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.handshakes.first_key_value().map(|(_, handshake)| {
            let age = if self.is_full { YOUNG } else { self.limits.timeout };
            let left = handshake.since.saturating_add(age).saturating_sub(self.clock.spent());
            self.clock.next_update(left)
        });
        [oldest, self.paused].into_iter().flatten().min()
    }

    /// Accepts connections and advances handshakes. Connections whose peers prove the key are added
    /// to `authenticated`.
    pub fn work(&mut self, now: Instant, authenticated: &mut Vec<Authenticated>) {
        self.expire(now);
        if self.paused.is_some() {
            // To check for events costs time, too: the share would never grow.
            return;
        }
        let Some(slice) = self.share.begin(now) else {
            return self.pause();
        };
        self.attend(now, slice, authenticated);
        self.share.end(slice);
        if !self.share.has_slice(now) {
            self.pause();
        }
    }

    /// Accepts no connections until there is time for several.
    fn pause(&mut self) {
        if self.paused.is_none() && self.watch_listener(false) {
            self.paused = Some(self.share.until(TERMS.slice));
        }
    }

    /// Returns whether a new connection has to wait for a handshake to end: all that there may be
    /// are in use, and the oldest may not be dropped yet.
    fn must_wait(&self) -> bool {
        let oldest = self.handshakes.first_key_value();
        let is_young = |(_, oldest): (_, &PendingHandshake)| {
            self.clock.spent().saturating_sub(oldest.since) < YOUNG.min(self.limits.timeout)
        };
        self.has_all_handshakes() && oldest.is_some_and(is_young)
    }

    /// Returns whether a new connection replaces a handshake.
    fn has_all_handshakes(&self) -> bool {
        let share = self.budget / LISTENERS.load(Ordering::Relaxed).max(1);
        let count = self.handshakes.len();
        count >= self.limits.handshakes.max(1)
            || HANDSHAKES.load(Ordering::Relaxed) >= self.budget && count >= share
    }

    fn attend(&mut self, now: Instant, slice: Slice, authenticated: &mut Vec<Authenticated>) {
        let mut events = Vec::with_capacity(EVENTS);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none))
            .is_err()
        {
            return;
        }
        // Pending handshakes first: new connections may replace them.
        let mut is_readable = false;
        for event in events {
            match event.data.u64() {
                LISTENER => is_readable = true,
                _ if slice.is_over(Duration::ZERO) => return,
                number => self.advance(number, now, authenticated),
            }
        }
        if is_readable {
            self.accept(now, slice);
        }
    }

    fn expire(&mut self, now: Instant) {
        let clock = self.clock.update(now);
        while let Some(oldest) = self.handshakes.first_entry()
            && clock.saturating_sub(oldest.get().since) >= self.limits.timeout
        {
            oldest.remove();
            self.refused += 1;
        }
        if self.paused.is_some_and(|until| now >= until)
            && (self.is_full || self.watch_listener(true))
        {
            self.paused = None;
        }
        if self.is_full && !self.must_wait() && (self.paused.is_some() || self.watch_listener(true))
        {
            self.is_full = false;
        }
    }

    fn watch_listener(&self, on: bool) -> bool {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.epoll, &self.socket, epoll::EventData::new_u64(LISTENER), flags).is_ok()
    }

    fn accept(&mut self, now: Instant, slice: Slice) {
        while !slice.is_over(RESERVE) {
            if self.must_wait() {
                self.is_full = self.watch_listener(false);
                return;
            }
            match rustix::net::acceptfrom_with(
                &self.socket,
                rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
            ) {
                Ok((fd, address)) => {
                    // Without an address it is closed already.
                    if let Some(peer) =
                        address.and_then(|address| SocketAddr::try_from(address).ok())
                    {
                        self.add(Raw::from(fd), peer);
                    } else {
                        self.refused += 1;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptor or no memory: drops the oldest handshake, or else waits.
                Err(errno) => {
                    if matches!(self.shortage, Shortage::None) {
                        self.shortage = Shortage::New(errno);
                    }
                    if self.handshakes.pop_first().is_some() {
                        self.refused += 1;
                    } else if self.watch_listener(false) {
                        self.paused = Some(after(now, PAUSE));
                        return;
                    }
                }
            }
        }
    }

    /// Refuses a connection for which there is no room at this moment. Its peer tries again. If the
    /// connection was free, its cost is counted after all, and the next one is free instead.
    pub fn turn_away(&mut self, newcomer: Authenticated, now: Instant) {
        if newcomer.is_free {
            self.refunds.give_back(newcomer.is_growth);
            // The refund, and what others pay.
            self.share.spend(REFUND.saturating_mul(2), now);
        }
        newcomer.refuse(Verdict::Busy);
    }

    fn add(&mut self, socket: Raw, peer: SocketAddr) {
        if self.has_all_handshakes() && self.handshakes.pop_first().is_some() {
            self.refused += 1;
        }
        let number = self.next;
        let data = epoll::EventData::new_u64(number);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            self.next += 1;
            let handshake = PendingHandshake {
                socket,
                _counted: Counted::among(&HANDSHAKES),
                peer,
                since: self.clock.spent(),
                acceptor: None,
                held: [0; CLAIM_BYTES],
                count: 0,
            };
            self.handshakes.insert(number, handshake);
        }
    }

    fn advance(&mut self, number: u64, now: Instant, authenticated: &mut Vec<Authenticated>) {
        let Some(handshake) = self.handshakes.get_mut(&number) else { return };
        let step = handshake.receive(&self.key, self.limits.protected);
        if matches!(step, Step::Pending) {
            return;
        }
        let Some(PendingHandshake { socket, peer, .. }) = self.handshakes.remove(&number) else {
            return;
        };
        if let Step::Authenticated(claim, session) = step {
            let guest = Arc::clone(&self.guests);
            // The listener has one itself.
            let open = Arc::strong_count(&guest).saturating_sub(1);
            let (is_free, is_growth) = self.refunds.take(open, now);
            if is_free {
                self.share.refund(REFUND);
            } else {
                self.share.spend(REFUND, now);
            }
            // Its new owner watches it.
            let _ = epoll::delete(&self.epoll, &socket);
            let timeout = self.limits.peer_timeout;
            authenticated.push(Authenticated {
                socket,
                peer,
                timeout,
                session,
                guest,
                claim,
                is_free,
                is_growth,
            });
        } else {
            abort(&socket);
            self.refused += 1;
        }
    }
}

impl PendingHandshake {
    /// Receives bytes of the handshake, and not one that follows it.
    fn receive(&mut self, key: &Key, protected: bool) -> Step {
        loop {
            let wanted = if self.acceptor.is_some() { CLAIM_BYTES } else { HELLO_BYTES };
            let read = rustix::net::recv(
                &self.socket,
                &mut self.held[self.count..wanted],
                rustix::net::RecvFlags::DONTWAIT,
            );
            match read {
                Ok((0, _)) => return Step::Failed,
                Ok((count, _)) => self.count += count,
                Err(Errno::AGAIN) => return Step::Pending,
                Err(Errno::INTR) => {}
                Err(_) => return Step::Failed,
            }
            if self.count < wanted {
                continue;
            }
            self.count = 0;
            if let Some(acceptor) = &self.acceptor {
                return match acceptor.admit(key, &self.held) {
                    Ok((claim, session)) => Step::Authenticated(claim, session),
                    Err(_) => Step::Failed,
                };
            }
            match self.challenge(key, protected) {
                Some(acceptor) => self.acceptor = Some(acceptor),
                None => return Step::Failed,
            }
        }
    }

    fn challenge(&self, key: &Key, protected: bool) -> Option<Acceptor> {
        let hello = self.held.first_chunk::<HELLO_BYTES>()?;
        match Acceptor::challenge(key, hello, random().ok()?, protected) {
            Ok((acceptor, challenge)) => {
                send_whole(&self.socket, &challenge).ok()?;
                Some(acceptor)
            }
            Err(HandshakeError::Version(_)) => {
                // The peer can then report both versions.
                let _ = send_whole(&self.socket, &Acceptor::another_version());
                None
            }
            Err(_) => None,
        }
    }
}

impl AsFd for Listener {
    /// Readable if [`Listener::work`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many times, that all refunds would be used up.
    #[test]
    fn connections_that_are_turned_away_leave_the_next_one_free() {
        let now = Instant::now();
        let mut refunds = Refunds::new(now);
        for is_growth in [true, false] {
            for _ in 0..4 * MOST_REFUNDS {
                assert_eq!(refunds.take(1, now), (true, is_growth));
                refunds.give_back(is_growth);
            }
            assert_eq!(refunds.take(1, now), (true, is_growth));
        }
        let accepted = (0..4 * MOST_REFUNDS).filter(|_| refunds.take(1, now).0).count();
        assert_eq!(accepted as u32, MOST_REFUNDS - 1);
    }
}
