//! A connection on which each end sends one message at a time.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::socket::{RECEIVE, Socket};

pub(crate) struct Stream {
    socket: Socket,
    outbox: Outbox,
    spare: Spare,
    received: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        let (outbox, spare) = (Outbox::default(), Spare::default());
        Self { socket, outbox, spare, received: Vec::new() }
    }

    /// Posts a message. The kernel may not take all of it at once: [`Self::flush`] sends the rest.
    pub(crate) fn post(&mut self, message: &[u8]) -> io::Result<()> {
        if !self.outbox.push(&self.spare, message) {
            return Err(io::Error::other("the peer does not receive what was sent before"));
        }
        self.flush().map(drop)
    }

    /// Sends what was posted, as far as the kernel takes it. Returns whether that is all.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self.outbox.flush(&mut self.socket, &self.spare) {
            Ok(is_sent) => {
                // Its buffers are for many messages, and there may be many connections.
                self.spare = Spare::default();
                Ok(is_sent)
            }
            Err(SendError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Returns whether everything that was posted is sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Sends a message, for which a new connection always has room.
    pub(crate) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.post(message)?;
        if self.is_flushed() { Ok(()) } else { Err(ErrorKind::ConnectionReset.into()) }
    }

    /// Returns the peer's message once it has arrived. `length` returns the length of a message
    /// from its first bytes, as far as they say it. The end of the stream is
    /// [`ErrorKind::UnexpectedEof`].
    pub(crate) fn receive(
        &mut self,
        length: impl Fn(&[u8]) -> io::Result<usize>,
    ) -> io::Result<Option<Vec<u8>>> {
        loop {
            let filled = self.received.len();
            match filled.cmp(&length(&self.received)?) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(std::mem::take(&mut self.received))),
                std::cmp::Ordering::Greater => return Err(ErrorKind::InvalidData.into()),
            }
            // Protected connections need room for a whole record.
            self.received.resize(filled + RECEIVE, 0);
            let result = self.socket.receive(&mut self.received[filled..]);
            self.received.truncate(filled + result.as_ref().map_or(0, |count| count.unwrap_or(0)));
            match result? {
                None => {
                    if self.received.is_empty() {
                        // Most connections only wait for their end.
                        self.received = Vec::new();
                    }
                    return Ok(None);
                }
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(_) => {}
            }
        }
    }

    /// Ends the outgoing half.
    pub(crate) fn finish(&self) {
        self.socket.finish();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
