//! Where connections come in: nobody gets further than this without the job's key.
//!
//! Whoever connects is a guest until it has proved that it knows the key. What guests cost is bounded:
//!
//! * A guest has a descriptor and less than 300 bytes, for [`Limits::patience`] at most.
//! * All doors of the process together have places for one in sixteen of the process's descriptors, 64
//!   at most. While they are taken, a door with more than its equal share of them replaces the guest that
//!   has been there longest; one with less still takes guests, so the bound is twice that number.
//! * A call of [`Door::work`] spends at most about 0.1 ms of CPU time on guests, and all calls together
//!   one part in 48 of the time that passes. What an admitted connection cost is given back.
//!
//! An honest end needs one round trip, and tries again if its place was taken.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use socket2::Socket as Raw;

use crate::handshake::{Acceptor, CLAIM_BYTES, Claim, HELLO_BYTES, HandshakeError, Session, Verdict};
use crate::key::{Key, random};
use crate::patience::Patience;
use crate::socket::{Socket, abort, open, say};

/// Connections that the system keeps for us until they are taken.
const BACKLOG: i32 = 256;
/// Events taken from the system in one call.
const EVENTS: usize = 64;
/// Guests of all doors of the process, if its limit of descriptors does not say less.
const MOST_GUESTS: usize = 64;
/// One in so many descriptors of the process may be a guest's.
const DESCRIPTORS: u64 = 16;
/// How long no connection is taken after there was no descriptor for one.
const PAUSE: Duration = Duration::from_millis(20);
/// Of the time that passes, one part in so many may be spent on guests.
const SHARE: u32 = 48;
/// CPU time that one call may spend on guests.
const SLICE: Duration = Duration::from_micros(100);
/// CPU time that can be saved up.
const BURST: Duration = Duration::from_micros(400);
/// CPU time beyond what was allowed that is paid back. More was an interrupt, or the hypervisor's.
const MOST_DEBT: Duration = Duration::from_millis(1);
/// CPU time that newcomers leave to those who are being heard.
const RESERVE: Duration = Duration::from_micros(40);
/// Given back for a guest that knew the key: more than its handshake costs.
const REFUND: Duration = Duration::from_micros(100);
/// The listener's number among the guests'.
const LISTENER: u64 = u64::MAX;

/// How much strangers may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Guests at once.
    pub guests: usize,
    /// How long a guest may take to prove that it knows the key, of time in which the door is looked at ([`Patience`]).
    pub patience: Duration,
    /// How long a connection may then go without any sign of the peer.
    pub silence: Duration,
    /// Ask for records that are encrypted and authenticated ([`seal`](crate::seal)). A connection has
    /// them if either end asks.
    pub protected: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            guests: MOST_GUESTS,
            patience: Duration::from_secs(5),
            silence: Duration::from_secs(30),
            protected: true,
        }
    }
}

/// Somebody who knows the key.
#[derive(Debug)]
pub struct Admitted {
    socket: Raw,
    peer: SocketAddr,
    silence: Duration,
    session: Session,
    /// What it wants.
    pub claim: Claim,
}

impl Admitted {
    /// Lets it in.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn welcome(self) -> io::Result<Socket> {
        let seal = self.session.seal_accepting()?;
        say(&self.socket, &self.session.verdict(Verdict::Welcome))?;
        Socket::new(self.socket, self.peer, self.silence, seal)
    }

    /// Sends it away, with the reason.
    pub fn refuse(self, verdict: Verdict) {
        let _ = say(&self.socket, &self.session.verdict(verdict));
    }
}

/// Guests of all doors.
static GUESTS: AtomicUsize = AtomicUsize::new(0);
/// Doors.
static DOORS: AtomicUsize = AtomicUsize::new(0);

/// One more in a count, as long as it lives.
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

/// The CPU time that this thread has used.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The CPU time that guests may still cost: a part of the time that passes, up to [`BURST`].
#[derive(Debug)]
struct Allowance {
    left: Duration,
    /// What calls spent beyond it, which is taken off what is added; up to [`MOST_DEBT`].
    debt: Duration,
    /// Until when time was added.
    at: Instant,
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let added = passed / SHARE;
        self.left = (self.left + added.saturating_sub(self.debt)).min(BURST);
        self.debt = self.debt.saturating_sub(added);
    }

    fn spend(&mut self, spent: Duration) {
        self.debt = (self.debt + spent.saturating_sub(self.left)).min(MOST_DEBT);
        self.left = self.left.saturating_sub(spent);
    }

    /// When there is so much, if nothing is spent until then.
    fn until(&self, wanted: Duration) -> Instant {
        self.at + (wanted + self.debt).saturating_sub(self.left) * SHARE
    }
}

/// What one call may spend.
#[derive(Debug, Clone, Copy)]
struct Slice {
    begun: Duration,
    most: Duration,
}

impl Slice {
    /// Spent but for `reserve`.
    fn is_spent(&self, reserve: Duration) -> bool {
        cpu_time().saturating_sub(self.begun) + reserve >= self.most
    }
}

#[derive(Debug)]
struct Guest {
    socket: Raw,
    _place: Counted,
    peer: SocketAddr,
    /// What the door's clock said when it came.
    since: Duration,
    /// Once it said hello.
    acceptor: Option<Acceptor>,
    held: [u8; CLAIM_BYTES],
    count: usize,
}

/// What became of a guest.
enum Step {
    Stays,
    Leaves,
    Enters(Claim, Session),
}

/// A listening socket with its guests.
#[derive(Debug)]
pub struct Door {
    listener: Raw,
    address: SocketAddr,
    key: Key,
    limits: Limits,
    clock: Patience,
    /// The listener and the guests; readable if there is something to do.
    epoll: OwnedFd,
    /// By age.
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// No connection is taken before.
    paused: Option<Instant>,
    allowance: Allowance,
    /// Guests that all doors may have.
    budget: usize,
    _counted: Counted,
    /// Those who did not get in.
    refused: u64,
}

impl Door {
    /// Listens on a free port of `address`.
    ///
    /// # Errors
    /// The address is not one of this host, or there are no descriptors.
    pub fn open(address: IpAddr, key: Key, limits: Limits) -> io::Result<Self> {
        Self::open_at(SocketAddr::new(address, 0), key, limits)
    }

    /// As [`Self::open`], on the port that `address` names.
    ///
    /// # Errors
    /// As there, and the port may be taken.
    pub fn open_at(address: SocketAddr, key: Key, limits: Limits) -> io::Result<Self> {
        let listener = open(address)?;
        // Else a port stays taken for a minute after each run.
        listener.set_reuse_address(address.port() != 0)?;
        listener.bind(&address.into())?;
        listener.listen(BACKLOG)?;
        let address = listener.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let budget = descriptors.map_or(MOST_GUESTS, |limit| (limit / DESCRIPTORS) as usize);
        Ok(Self {
            listener,
            address,
            key,
            limits,
            clock: Patience::new(limits.patience, Instant::now()),
            epoll,
            guests: BTreeMap::new(),
            next: 0,
            paused: None,
            allowance: Allowance { left: BURST, debt: Duration::ZERO, at: Instant::now() },
            budget: budget.clamp(1, MOST_GUESTS),
            _counted: Counted::among(&DOORS),
            refused: 0,
        })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many did not prove that they know the key.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Guests at the moment.
    pub fn guests(&self) -> usize {
        self.guests.len()
    }

    /// Whether connections that come in from now on are [protected](Limits::protected).
    pub fn protect(&mut self, on: bool) {
        self.limits.protected = on;
    }

    /// True if [`Self::work`] need not be called before something comes in.
    pub fn is_idle(&self) -> bool {
        self.guests.is_empty() && self.paused.is_none()
    }

    /// When [`Self::work`] is to be called although nothing comes in.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.guests.first_key_value().map(|(_, guest)| {
            let left = (guest.since + self.limits.patience).saturating_sub(self.clock.spent());
            self.clock.next_look(left)
        });
        [oldest, self.paused].into_iter().flatten().min()
    }

    /// Takes connections and hears guests. Those who know the key are added to `admitted`.
    pub fn work(&mut self, now: Instant, admitted: &mut Vec<Admitted>) {
        self.allowance.refill(now);
        self.expire(now);
        if self.paused.is_some() {
            // A look that finds nothing costs time, too: the allowance would never grow.
            return;
        }
        if self.allowance.left <= RESERVE {
            return self.pause();
        }
        let slice = Slice { begun: cpu_time(), most: self.allowance.left.min(SLICE) };
        self.attend(now, slice, admitted);
        let spent = cpu_time().saturating_sub(slice.begun);
        self.allowance.spend(spent);
        if self.allowance.left <= RESERVE {
            self.pause();
        }
    }

    /// Takes no connections until there is time for several.
    fn pause(&mut self) {
        if self.paused.is_none() && self.watch_listener(false) {
            self.paused = Some(self.allowance.until(SLICE));
        }
    }

    fn attend(&mut self, now: Instant, slice: Slice, admitted: &mut Vec<Admitted>) {
        let mut events = Vec::with_capacity(EVENTS);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none)).is_err() {
            return;
        }
        // Guests before newcomers, which might take their places.
        let mut newcomers = false;
        for event in events {
            match event.data.u64() {
                LISTENER => newcomers = true,
                _ if slice.is_spent(Duration::ZERO) => return,
                number => self.hear(number, admitted),
            }
        }
        if newcomers {
            self.accept(now, slice);
        }
    }

    fn expire(&mut self, now: Instant) {
        let clock = self.clock.look(now);
        while let Some(oldest) = self.guests.first_entry()
            && clock.saturating_sub(oldest.get().since) >= self.limits.patience
        {
            oldest.remove();
            self.refused += 1;
        }
        if self.paused.is_some_and(|until| now >= until) && self.watch_listener(true) {
            self.paused = None;
        }
    }

    fn watch_listener(&self, on: bool) -> bool {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), flags).is_ok()
    }

    fn accept(&mut self, now: Instant, slice: Slice) {
        while !slice.is_spent(RESERVE) {
            match rustix::net::acceptfrom_with(
                &self.listener,
                rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
            ) {
                Ok((fd, address)) => {
                    // Without an address it is gone already.
                    if let Some(peer) = address.and_then(|address| SocketAddr::try_from(address).ok()) {
                        self.receive_guest(Raw::from(fd), peer);
                    } else {
                        self.refused += 1;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptor, or no memory: the oldest guest makes room, else later.
                Err(_) => {
                    if self.guests.pop_first().is_some() {
                        self.refused += 1;
                    } else if self.watch_listener(false) {
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                }
            }
        }
    }

    fn receive_guest(&mut self, socket: Raw, peer: SocketAddr) {
        let share = self.budget / DOORS.load(Ordering::Relaxed).max(1);
        let taken = GUESTS.load(Ordering::Relaxed) >= self.budget && self.guests.len() >= share;
        if (taken || self.guests.len() >= self.limits.guests.max(1)) && self.guests.pop_first().is_some() {
            self.refused += 1;
        }
        let number = self.next;
        let watched =
            epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN);
        if watched.is_ok() {
            self.next += 1;
            let since = self.clock.spent();
            let place = Counted::among(&GUESTS);
            let guest = Guest {
                socket,
                _place: place,
                peer,
                since,
                acceptor: None,
                held: [0; CLAIM_BYTES],
                count: 0,
            };
            self.guests.insert(number, guest);
        }
    }

    fn hear(&mut self, number: u64, admitted: &mut Vec<Admitted>) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        let step = guest.hear(&self.key, self.limits.protected);
        if matches!(step, Step::Stays) {
            return;
        }
        let Some(Guest { socket, peer, .. }) = self.guests.remove(&number) else { return };
        if let Step::Enters(claim, session) = step {
            self.allowance.left = (self.allowance.left + REFUND).min(BURST);
            // Its owner watches it now.
            let _ = epoll::delete(&self.epoll, &socket);
            admitted.push(Admitted { socket, peer, silence: self.limits.silence, session, claim });
        } else {
            abort(&socket);
            self.refused += 1;
        }
    }
}

impl Guest {
    /// Takes what it said. Not one byte more is read than the handshake has.
    fn hear(&mut self, key: &Key, protected: bool) -> Step {
        loop {
            let wanted = if self.acceptor.is_some() { CLAIM_BYTES } else { HELLO_BYTES };
            let read = rustix::net::recv(
                &self.socket,
                &mut self.held[self.count..wanted],
                rustix::net::RecvFlags::DONTWAIT,
            );
            match read {
                Ok((0, _)) => return Step::Leaves,
                Ok((count, _)) => self.count += count,
                Err(Errno::AGAIN) => return Step::Stays,
                Err(Errno::INTR) => {}
                Err(_) => return Step::Leaves,
            }
            if self.count < wanted {
                continue;
            }
            self.count = 0;
            if let Some(acceptor) = &self.acceptor {
                return match acceptor.admit(key, &self.held) {
                    Ok((claim, session)) => Step::Enters(claim, session),
                    Err(_) => Step::Leaves,
                };
            }
            match self.challenge(key, protected) {
                Some(acceptor) => self.acceptor = Some(acceptor),
                None => return Step::Leaves,
            }
        }
    }

    fn challenge(&self, key: &Key, protected: bool) -> Option<Acceptor> {
        let hello = self.held.first_chunk::<HELLO_BYTES>()?;
        match Acceptor::challenge(key, hello, random().ok()?, protected) {
            Ok((acceptor, challenge)) => {
                say(&self.socket, &challenge).ok()?;
                Some(acceptor)
            }
            Err(HandshakeError::Version(_)) => {
                // So that it can name the two versions.
                let _ = say(&self.socket, &Acceptor::another_version());
                None
            }
            Err(_) => None,
        }
    }
}

impl AsFd for Door {
    /// Readable if [`Door::work`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
