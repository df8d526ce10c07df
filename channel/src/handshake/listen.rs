//! The end that listens, and receives.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use barewire_tcp::Key;
use barewire_tcp::handshake::{Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Listener as TcpListener};
use barewire_tcp::stall_timer::StallTimer;

use super::handle::TOKEN;
use super::message::Message;
use super::{Agreed, Handle, HandshakeError, Local, pairs, receive, refuse, send};
use crate::config::Config;
use crate::control::Stream;
use crate::plan::Plan;
use crate::queues::{Queues, Role};
use crate::rails::Rails;
use crate::receiver::Receiver;
use crate::ring::{Lines, RemoteLines};

/// Connections at once that are authenticated and not accepted yet; more are refused.
const MOST: usize = 256;

/// Accepts channels, whose receivers are at this end.
#[derive(Debug)]
pub struct Listener {
    local: Local,
    tcp: TcpListener,
    token: [u8; TOKEN],
    authenticated: Vec<Authenticated>,
    pending: Vec<Pending>,
}

/// A channel that is being accepted.
#[derive(Debug)]
struct Pending {
    stream: Stream,
    timer: StallTimer,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The OFFER is awaited.
    Welcomed,
    /// The ANSWER was sent.
    Answered(Box<(Agreed, Plan)>, Vec<Queues>),
}

impl Listener {
    /// Listens on `address`; port 0 chooses a free one. Peers have to prove `key`.
    ///
    /// # Errors
    /// [`HandshakeError::Config`], [`HandshakeError::Listen`].
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
        Ok(Self { local, tcp, token, authenticated: Vec::new(), pending: Vec::new() })
    }

    /// What a peer needs to connect. The address is the one that was bound: bind one that the peer
    /// can reach.
    pub fn handle(&self) -> Handle {
        Handle { address: self.tcp.address(), token: self.token }
    }

    /// Connections so far that did not prove the key.
    pub fn refused(&self) -> u64 {
        self.tcp.refused()
    }

    /// Does what can be done without waiting, for all connections. Returns a channel once it is
    /// connected. The listener can accept any number of them.
    ///
    /// # Errors
    /// [`HandshakeError`] if one connection fails. The others, and the listener, work on.
    pub fn accept(&mut self) -> Result<Option<Receiver>, HandshakeError> {
        let now = Instant::now();
        self.tcp.work(now, &mut self.authenticated);
        for authenticated in std::mem::take(&mut self.authenticated) {
            self.welcome(authenticated, now);
        }
        for at in 0..self.pending.len() {
            let Some(pending) = self.pending.get_mut(at) else { break };
            match pending.advance(&self.local, now) {
                Ok(None) => {}
                Ok(Some((rings, limit))) => {
                    let Pending { stream, state, .. } = self.pending.swap_remove(at);
                    let State::Answered(parts, queues) = state else { continue };
                    return Ok(Some(Receiver::new(parts.1, queues, rings, stream, limit)));
                }
                Err(error) => {
                    refuse(&mut pending.stream, &error);
                    self.pending.swap_remove(at);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    fn welcome(&mut self, authenticated: Authenticated, now: Instant) {
        let (service, endpoint) = self.handle().numbers();
        let claim = authenticated.claim;
        if claim.purpose != Purpose::Control
            || (claim.service, claim.endpoint) != (service, endpoint)
        {
            return authenticated.refuse(Verdict::Unknown);
        }
        if self.pending.len() >= MOST {
            return authenticated.refuse(Verdict::Full);
        }
        // A connection that has failed already has nobody to report it to.
        if let Ok(socket) = authenticated.welcome() {
            let timer = StallTimer::new(self.local.config.timeout, now);
            self.pending.push(Pending {
                stream: Stream::new(socket),
                timer,
                state: State::Welcomed,
            });
        }
    }
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
    /// Returns the parts of a receiver once both ends are connected.
    fn advance(
        &mut self,
        local: &Local,
        now: Instant,
    ) -> Result<Option<Connected>, HandshakeError> {
        let peer = self.stream.peer();
        match (receive(&mut self.stream)?, &mut self.state) {
            (None, _) => {}
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
                return Ok(Some(((RemoteLines { address, keys }, copies), agreed.limit)));
            }
            (Some(_), _) => {
                let what = "a message out of order";
                return Err(HandshakeError::Protocol { peer, what });
            }
        }
        if self.timer.is_over(now) {
            let awaited = match self.state {
                State::Welcomed => "name its rails",
                State::Answered(..) => "connect its queue pairs",
            };
            return Err(local.timed_out(peer, awaited));
        }
        Ok(None)
    }
}
