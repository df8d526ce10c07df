//! The end that connects, and sends.

use std::time::Instant;

use barewire_tcp::Key;
use barewire_tcp::connector::Connector as TcpConnector;
use barewire_tcp::frames::Stream;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::stall_timer::StallTimer;

use super::message::{LONGEST, Message};
use super::{Agreed, Handle, HandshakeError, Local, pairs, receive, refuse, send};
use crate::config::Config;
use crate::plan::Plan;
use crate::queues::{Queues, Role};
use crate::rails::Rails;
use crate::ring::{Lines, RemoteLines};
use crate::sender::Sender;

/// What this end has made: its queues, how they are made again, its ring, and the limits.
type Made = (Vec<Queues>, Plan, Lines, Agreed);

/// A channel that is being connected, on the side of the sender.
#[derive(Debug)]
pub struct Connector {
    local: Local,
    handle: Handle,
    timer: StallTimer,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The connection is being made.
    Connecting(Box<TcpConnector>),
    /// The OFFER was sent.
    Offered(Box<Stream>),
    /// The READY was sent.
    Ready(Box<(Stream, Made)>),
    Finished,
}

impl Connector {
    /// Begins to connect to the listener of `handle`.
    pub fn start(
        rails: &Rails,
        handle: &Handle,
        key: &Key,
        config: &Config,
    ) -> Result<Self, HandshakeError> {
        let local = Local::new(rails, config, Role::Sender)?;
        let (service, endpoint) = handle.numbers();
        let claim = Claim {
            purpose: Purpose::Control,
            service,
            endpoint,
            from_service: 0,
            from_endpoint: 0,
        };
        let peer = handle.address;
        let begun = TcpConnector::start(peer, None, key, claim, config.timeout, local.tcp());
        let connecting = begun.map_err(|error| HandshakeError::Connect {
            peer,
            source: barewire_tcp::connector::ConnectFailure::Io(error),
        })?;
        let timer = StallTimer::new(config.timeout, Instant::now());
        let state = State::Connecting(Box::new(connecting));
        Ok(Self { local, handle: *handle, timer, state })
    }

    /// Does what can be done without waiting. Returns the channel once it is connected; messages
    /// may be sent as soon as the receiver has posted buffers.
    ///
    /// # Errors
    /// [`HandshakeError`]; later calls return [`HandshakeError::Finished`].
    pub fn poll(&mut self) -> Result<Option<Sender>, HandshakeError> {
        let now = Instant::now();
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Connecting(mut connecting) => {
                let peer = self.handle.address;
                let socket = connecting
                    .advance(now)
                    .map_err(|source| HandshakeError::Connect { peer, source })?;
                let Some(socket) = socket else {
                    self.state = State::Connecting(connecting);
                    // The TCP connector has its own deadline.
                    return Ok(None);
                };
                self.timer = StallTimer::new(self.local.config.timeout, now);
                let mut stream = Stream::new(socket, LONGEST);
                let (limits, rails) = (self.local.limits(), self.local.rails.infos());
                send(&mut stream, &Message::Offer { limits, rails })?;
                self.state = State::Offered(Box::new(stream));
            }
            State::Offered(mut stream) => match self.answer(&mut stream) {
                Ok(Some(made)) => {
                    self.timer = StallTimer::new(self.local.config.timeout, now);
                    self.state = State::Ready(Box::new((*stream, made)));
                }
                Ok(None) => self.state = State::Offered(stream),
                Err(error) => {
                    refuse(&mut stream, &error);
                    return Err(error);
                }
            },
            State::Ready(mut ready) => match receive(&mut ready.0)? {
                Some(Message::Go { address, keys }) => {
                    let (stream, (queues, plan, ring, agreed)) = *ready;
                    let (rings, limits) =
                        ((ring, RemoteLines { address, keys }), (agreed.limit, agreed.share));
                    return Ok(Some(Sender::new(plan, queues, rings, stream, limits)));
                }
                Some(_) => {
                    let (peer, what) = (ready.0.peer(), "a message other than GO");
                    return Err(HandshakeError::Protocol { peer, what });
                }
                None => self.state = State::Ready(ready),
            },
            State::Finished => return Err(HandshakeError::Finished),
        }
        if self.timer.is_over(now) {
            let awaited = match self.state {
                State::Connecting(_) => "accept the connection",
                State::Offered(_) => "respond to the rails of this end",
                _ => "connect its queue pairs",
            };
            self.state = State::Finished;
            return Err(self.local.timed_out(self.handle.address, awaited));
        }
        Ok(None)
    }

    /// Receives the ANSWER, makes the queues of this end, and sends READY.
    fn answer(&self, stream: &mut Stream) -> Result<Option<Made>, HandshakeError> {
        let (local, peer) = (&self.local, stream.peer());
        let (limits, theirs, pairing, peer_pairs) = match receive(stream)? {
            None => return Ok(None),
            Some(Message::Answer { limits, rails, pairing, pairs }) => {
                (limits, rails, pairing, pairs)
            }
            Some(_) => {
                let what = "a message other than ANSWER";
                return Err(HandshakeError::Protocol { peer, what });
            }
        };
        let agreed = local.agree(peer, theirs, &limits)?;
        local.check(peer, &agreed, &pairing, &peer_pairs)?;
        let plan = local.plan(&agreed);
        let mut queues = Local::create(peer, &plan)?;
        Local::connect(peer, &plan, &mut queues, &peer_pairs)?;
        let (ring, RemoteLines { address, keys }) = local.lines(peer, &queues)?;
        let ready = Message::Ready { pairing, pairs: pairs(&queues), address, keys };
        send(stream, &ready)?;
        Ok(Some((queues, plan, ring, agreed)))
    }
}
