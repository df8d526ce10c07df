//! Where connections come in: nobody gets further than this without the job's key.
//!
//! Whoever connects is a guest until it has proved that it knows the key. Guests cost a descriptor and less than 200 bytes each;
//! there are never more than [`Limits::guests`] of them, and each has [`Limits::patience`] to get through. Where a new one finds no
//! place, the one that has been here longest leaves: an honest end needs one round trip, and tries again.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use socket2::Socket as Raw;

use crate::handshake::{Acceptor, CLAIM_BYTES, Claim, HELLO_BYTES, Verdict};
use crate::key::{Key, random};
use crate::patience::Patience;
use crate::socket::{Socket, abort, open, say};

/// Connections that the system keeps for us until they are taken.
const BACKLOG: i32 = 1024;
/// Connections taken in one call.
const AT_ONCE: usize = 64;
/// How long no connection is taken after there was no descriptor for one.
const PAUSE: Duration = Duration::from_millis(20);
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
}

impl Default for Limits {
    fn default() -> Self {
        Self { guests: 256, patience: Duration::from_secs(5), silence: Duration::from_secs(30) }
    }
}

/// Somebody who knows the key.
#[derive(Debug)]
pub struct Admitted {
    socket: Raw,
    peer: SocketAddr,
    silence: Duration,
    /// What it wants.
    pub claim: Claim,
}

impl Admitted {
    /// Lets it in.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn welcome(self) -> io::Result<Socket> {
        say(&self.socket, &Verdict::Welcome.to_bytes())?;
        Socket::new(self.socket, self.peer, self.silence)
    }

    /// Sends it away, with the reason.
    pub fn refuse(self, verdict: Verdict) {
        let _ = say(&self.socket, &verdict.to_bytes());
    }
}

#[derive(Debug)]
struct Guest {
    socket: Raw,
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
    Enters(Claim),
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
        self.expire(now);
        let mut events = Vec::with_capacity(AT_ONCE);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none)).is_err() {
            return;
        }
        // Guests before newcomers, which might take their places.
        let mut newcomers = false;
        for event in events {
            match event.data.u64() {
                LISTENER => newcomers = true,
                number => self.hear(number, admitted),
            }
        }
        if newcomers {
            self.accept(now);
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

    fn accept(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            match rustix::net::acceptfrom_with(
                &self.listener,
                rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
            ) {
                Ok((fd, address)) => {
                    // Without an address it is gone already.
                    if let Some(peer) = address.and_then(|address| SocketAddr::try_from(address).ok()) {
                        self.receive_guest(Raw::from(fd), peer);
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
        if self.guests.len() >= self.limits.guests.max(1) && self.guests.pop_first().is_some() {
            self.refused += 1;
        }
        let number = self.next;
        let watched =
            epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN);
        if watched.is_ok() {
            self.next += 1;
            let since = self.clock.spent();
            let guest = Guest { socket, peer, since, acceptor: None, held: [0; CLAIM_BYTES], count: 0 };
            self.guests.insert(number, guest);
        }
    }

    fn hear(&mut self, number: u64, admitted: &mut Vec<Admitted>) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        let step = guest.hear(&self.key);
        if matches!(step, Step::Stays) {
            return;
        }
        let Some(Guest { socket, peer, .. }) = self.guests.remove(&number) else { return };
        if let Step::Enters(claim) = step {
            // Its owner watches it now.
            let _ = epoll::delete(&self.epoll, &socket);
            admitted.push(Admitted { socket, peer, silence: self.limits.silence, claim });
        } else {
            abort(&socket);
            self.refused += 1;
        }
    }
}

impl Guest {
    /// Takes what it said. Not one byte more is read than the handshake has.
    fn hear(&mut self, key: &Key) -> Step {
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
                    Ok(claim) => Step::Enters(claim),
                    Err(_) => Step::Leaves,
                };
            }
            match self.challenge(key) {
                Some(acceptor) => self.acceptor = Some(acceptor),
                None => return Step::Leaves,
            }
        }
    }

    fn challenge(&self, key: &Key) -> Option<Acceptor> {
        let hello = self.held.first_chunk::<HELLO_BYTES>()?;
        let (acceptor, challenge) = Acceptor::challenge(key, hello, random().ok()?).ok()?;
        say(&self.socket, &challenge).ok()?;
        Some(acceptor)
    }
}

impl AsFd for Door {
    /// Readable if [`Door::work`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
