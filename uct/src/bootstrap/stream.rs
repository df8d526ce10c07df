//! The connection of a link: each end sends one message of a known length.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::socket::{RECEIVE, Socket};

pub(super) struct Stream {
    socket: Socket,
    received: Vec<u8>,
}

impl Stream {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, received: Vec::new() }
    }

    /// Sends a message, for which a new connection always has room.
    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let (mut outbox, spare) = (Outbox::default(), Spare::default());
        let is_posted = outbox.push(&spare, message);
        match outbox.flush(&mut self.socket, &spare) {
            Ok(true) if is_posted => Ok(()),
            Ok(_) => Err(ErrorKind::ConnectionReset.into()),
            Err(SendError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Returns the peer's message of `length` bytes once it has arrived. The end of the stream is
    /// [`ErrorKind::UnexpectedEof`].
    pub(super) fn receive(&mut self, length: usize) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.received.len() == length {
                return Ok(Some(std::mem::take(&mut self.received)));
            }
            let filled = self.received.len();
            // Protected connections need room for a whole record.
            self.received.resize(filled + RECEIVE, 0);
            let result = self.socket.receive(&mut self.received[filled..]);
            self.received.truncate(filled + result.as_ref().map_or(0, |count| count.unwrap_or(0)));
            match result? {
                None => return Ok(None),
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(_) if self.received.len() > length => {
                    return Err(ErrorKind::InvalidData.into());
                }
                Some(_) => {}
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
