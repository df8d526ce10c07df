//! A TCP connection of an endpoint, from the first attempt to the last byte.

use crate::base::event::after;
use std::io;
use std::time::{Duration, Instant};

use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::leftover::{Courier, Leftover};
use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::socket::Socket;
use barewire_tcp::stall_timer::StallTimer;

use super::poller::{Interest, Poller, Token};

/// How long a connection that this end closed in order waits for the peer to close it.
const DRAIN: Duration = Duration::from_secs(1);

/// The phases of a connection, in this order.
#[derive(Debug)]
enum Phase {
    /// Not needed yet.
    Idle,
    /// This end connects.
    Connecting(Box<Connector>),
    /// The peer will connect. The timer runs while something waits to be sent.
    Expected(Option<StallTimer>),
    Open(Socket),
    /// Closed in order by this end. What the peer still sends is discarded: if unread bytes were
    /// left, the kernel would reset the connection, and the reset may overtake the last messages.
    Draining(Socket, Instant),
    /// Closed, by either end.
    Closed,
}

/// The result of [`Connection::advance`].
#[derive(Debug)]
pub(super) enum Advance {
    /// This end does not connect.
    None,
    /// The connection is not open yet.
    Unfinished,
    /// The connection is open now.
    Opened,
}

/// A connection and the bytes that wait to be sent on it.
#[derive(Debug)]
pub(super) struct Connection {
    phase: Phase,
    outbox: Outbox,
    /// The events that epoll reports.
    interest: Interest,
    /// The kernel takes no more bytes until epoll reports room.
    is_full: bool,
    /// There is no buffer to receive into.
    is_paused: bool,
    /// Read without epoll.
    is_direct: bool,
    token: Token,
    /// The round of progress in which it sent last.
    round: u64,
    /// Why messages are refused, if they are.
    refusal: Option<Refusal>,
    /// By which a thread sends what the kernel did not take of a message: posts are then refused
    /// until it is sent.
    courier: Option<Courier>,
    /// Bytes that the thread may send.
    leftover: Option<Leftover>,
}

/// Why a connection takes no messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The kernel has not taken all bytes of the last one.
    Full,
    /// It is closed.
    Closed,
}

impl Connection {
    pub(super) fn new(token: Token) -> Self {
        Self {
            phase: Phase::Idle,
            outbox: Outbox::default(),
            interest: Interest::empty(),
            is_full: false,
            is_paused: false,
            is_direct: false,
            token,
            round: 0,
            refusal: None,
            courier: None,
            leftover: None,
        }
    }

    /// A connection for messages of the endpoint in this slot.
    pub(super) fn of_messages(slot: u32, courier: Option<Courier>) -> Self {
        Self { courier, ..Self::new(Token::Messages(slot)) }
    }

    // Opening.

    /// This end connects.
    pub(super) fn connect(&mut self, connector: Connector) {
        self.phase = Phase::Connecting(Box::new(connector));
    }

    /// The peer will connect.
    pub(super) fn expect_peer(&mut self) {
        self.phase = Phase::Expected(None);
    }

    /// The peer will connect, and has not yet.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self.phase, Phase::Expected(_))
    }

    /// One of the ends connects, and has not yet.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.phase, Phase::Connecting(_) | Phase::Expected(_))
    }

    /// Returns true once something, or this end (`awaits`), has waited for the peer to connect for as
    /// long as `limit`.
    pub(super) fn is_overdue(&mut self, now: Instant, limit: Duration, awaits: bool) -> bool {
        let Phase::Expected(timer) = &mut self.phase else { return false };
        if self.outbox.is_empty() && !awaits {
            *timer = None;
            return false;
        }
        timer.get_or_insert_with(|| StallTimer::new(limit, now)).is_over(now)
    }

    /// Advances a connection that this end opens.
    pub(super) fn advance<T>(
        &mut self,
        poller: &Poller<T>,
        now: Instant,
    ) -> Result<Advance, ConnectFailure> {
        let Phase::Connecting(connector) = &mut self.phase else { return Ok(Advance::None) };
        match connector.advance(now)? {
            None => Ok(Advance::Unfinished),
            Some(socket) => {
                self.open(poller, socket).map_err(ConnectFailure::Io)?;
                Ok(Advance::Opened)
            }
        }
    }

    /// Adopts the socket of an established connection.
    pub(super) fn open<T>(&mut self, poller: &Poller<T>, socket: Socket) -> io::Result<()> {
        self.interest = Interest::IN;
        self.is_full = false;
        self.is_direct = false;
        poller.add(&socket, self.token, self.interest)?;
        self.phase = Phase::Open(socket);
        Ok(())
    }

    // Open.

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
    }

    /// The socket of an open connection.
    #[inline]
    pub(super) fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.phase {
            Phase::Open(socket) => Some(socket),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    #[inline]
    pub(super) fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// It has sent in this round of progress already.
    #[inline]
    pub(super) fn has_sent_in(&self, round: u64) -> bool {
        self.round == round
    }

    /// Sends what the socket takes, if it is open and is not known to be full. Returns true once
    /// nothing waits.
    #[inline]
    pub(super) fn send<T>(
        &mut self,
        poller: &Poller<T>,
        spare: &Spare,
        round: u64,
    ) -> Result<bool, SendError> {
        self.round = round;
        let Phase::Open(socket) = &mut self.phase else { return Ok(self.outbox.is_empty()) };
        if self.is_full {
            return Ok(false);
        }
        let done = self.outbox.flush(socket, spare)?;
        self.is_full = !done;
        if done == self.interest.contains(Interest::OUT) {
            self.update_interest(poller)?;
        }
        Ok(done)
    }

    /// Returns why messages are refused, if they are.
    #[inline]
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Epoll reported that the socket has room.
    pub(super) fn has_room(&mut self, spare: &Spare) {
        if let (Some(leftover), Phase::Open(socket)) = (&mut self.leftover, &mut self.phase)
            && !self.outbox.settle(leftover, socket, spare)
        {
            return;
        }
        self.leftover = None;
        self.is_full = false;
    }

    /// Stops or resumes to receive.
    pub(super) fn pause<T>(&mut self, poller: &Poller<T>, on: bool) -> io::Result<()> {
        self.is_paused = on;
        self.update_interest(poller)
    }

    /// Whether the socket is read without epoll.
    pub(super) fn poll_directly<T>(&mut self, poller: &Poller<T>, on: bool) -> io::Result<()> {
        self.is_direct = on;
        self.update_interest(poller)
    }

    #[cold]
    fn update_interest<T>(&mut self, poller: &Poller<T>) -> io::Result<()> {
        let mut wanted = Interest::empty();
        wanted.set(Interest::IN, !self.is_paused && !self.is_direct);
        wanted.set(Interest::OUT, !self.outbox.is_empty());
        let Phase::Open(socket) = &self.phase else { return Ok(()) };
        poller.change(socket, self.token, self.interest, wanted)?;
        self.interest = wanted;
        if let Some(courier) = &self.courier {
            self.refusal = (!self.outbox.is_empty()).then_some(Refusal::Full);
            if self.leftover.is_none() {
                self.leftover = self.outbox.leave(courier, socket);
            }
        }
        Ok(())
    }

    // Closing.

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Closes the connection, and discards what waits to be sent.
    pub(super) fn close<T>(&mut self, poller: &Poller<T>, spare: &Spare) {
        self.leftover = None;
        self.refusal = Some(Refusal::Closed);
        self.outbox.clear(spare);
        if let Phase::Open(socket) = std::mem::replace(&mut self.phase, Phase::Closed) {
            poller.remove(&socket);
        }
    }

    /// Sends what waits and `farewell`, and closes the connection. If the socket takes all of it
    /// and the peer did not close its end yet, returns the connection as one that drains.
    pub(super) fn finish<T>(
        &mut self,
        poller: &Poller<T>,
        spare: &Spare,
        farewell: &[u8],
        now: Instant,
    ) -> Option<Self> {
        let is_sent = self.is_open()
            && self.outbox.push(spare, farewell)
            && self.send(poller, spare, self.round).unwrap_or(false);
        if !is_sent {
            self.close(poller, spare);
            return None;
        }
        self.outbox.clear(spare);
        self.refusal = Some(Refusal::Closed);
        let Phase::Open(socket) = std::mem::replace(&mut self.phase, Phase::Closed) else {
            return None;
        };
        poller.remove(&socket);
        socket.finish();
        let draining =
            Self { phase: Phase::Draining(socket, after(now, DRAIN)), ..Self::new(self.token) };
        (!draining.is_drained(now)).then_some(draining)
    }

    /// Returns true once a connection that drains may be dropped.
    pub(super) fn is_drained(&self, now: Instant) -> bool {
        match &self.phase {
            // Drained in any case: progress may not have been called for long.
            Phase::Draining(socket, until) => socket.drain() || now >= *until,
            _ => true,
        }
    }
}
