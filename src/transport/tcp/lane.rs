//! One connection of an endpoint and what waits on it.

use std::io;
use std::os::fd::OwnedFd;

use barewire_tcp::connector::Connector;
use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::patience::Patience;
use barewire_tcp::socket::Socket;
use rustix::event::epoll::{self, EventData, EventFlags};

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Link {
    /// Not wanted yet.
    Idle,
    /// This end asks.
    Connecting(Box<Connector>),
    /// The other end will ask.
    Awaiting,
    Open(Socket),
    /// The peer closed it in order.
    Parted,
    /// It is no more.
    Closed,
}

/// A connection and what waits on it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) link: Link,
    pub(super) outbox: Outbox,
    /// What the socket is watched for.
    watched: EventFlags,
    /// The socket took no more; the system tells when it does.
    full: bool,
    /// Not read from: nobody could take what comes.
    deaf: bool,
    /// Read from without asking the system first.
    direct: bool,
    /// By which it is known in the interface's epoll.
    number: u64,
    /// The round of progress in which it sent last.
    pub(super) round: u64,
    /// While something waits for the other end to ask.
    pub(super) awaited: Option<Patience>,
}

impl Lane {
    pub(super) fn new(number: u64) -> Self {
        Self {
            link: Link::Idle,
            outbox: Outbox::default(),
            watched: EventFlags::empty(),
            full: false,
            deaf: false,
            direct: false,
            number,
            round: 0,
            awaited: None,
        }
    }

    /// The connection is there.
    pub(super) fn open(&mut self, epoll: &OwnedFd, socket: Socket) -> io::Result<()> {
        self.watched = EventFlags::IN;
        self.full = false;
        self.direct = false;
        epoll::add(epoll, &socket, EventData::new_u64(self.number), self.watched)?;
        self.link = Link::Open(socket);
        Ok(())
    }

    /// Sends what the socket takes, if it is there and is not known to be full. True once nothing waits.
    #[inline]
    pub(super) fn send(&mut self, epoll: &OwnedFd, spare: &Spare, round: u64) -> Result<bool, SendError> {
        self.round = round;
        let Link::Open(socket) = &mut self.link else { return Ok(self.outbox.is_empty()) };
        if self.full {
            return Ok(false);
        }
        let done = self.outbox.flush(socket, spare)?;
        self.full = !done;
        if done == self.watched.contains(EventFlags::OUT) {
            self.watch(epoll)?;
        }
        Ok(done)
    }

    /// The system says that the socket has room.
    pub(super) fn has_room(&mut self) {
        self.full = false;
    }

    /// Whether the socket is read from.
    pub(super) fn listen(&mut self, epoll: &OwnedFd, on: bool) -> io::Result<()> {
        self.deaf = !on;
        self.watch(epoll)
    }

    /// Whether the system tells what comes.
    pub(super) fn watch_for_messages(&mut self, epoll: &OwnedFd, on: bool) -> io::Result<()> {
        self.direct = !on;
        self.watch(epoll)
    }

    #[cold]
    fn watch(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, !self.deaf && !self.direct);
        wanted.set(EventFlags::OUT, !self.outbox.is_empty());
        let Link::Open(socket) = &self.link else { return Ok(()) };
        let data = EventData::new_u64(self.number);
        match (self.watched.is_empty(), wanted.is_empty()) {
            _ if wanted == self.watched => {}
            (true, _) => epoll::add(epoll, socket, data, wanted)?,
            // Of what is watched for nothing the end would be told again and again.
            (_, true) => epoll::delete(epoll, socket)?,
            _ => epoll::modify(epoll, socket, data, wanted)?,
        }
        self.watched = wanted;
        Ok(())
    }

    /// Ends it and forgets what waits. The socket, if there was one.
    pub(super) fn close(&mut self, epoll: &OwnedFd, spare: &Spare) -> Option<Socket> {
        self.outbox.clear(spare);
        match std::mem::replace(&mut self.link, Link::Closed) {
            Link::Open(socket) => {
                // It may linger, unwatched.
                let _ = epoll::delete(epoll, &socket);
                Some(socket)
            }
            _ => None,
        }
    }
}
