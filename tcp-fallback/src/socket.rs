//! A connected socket that never waits. If the connection is protected, its bytes are in records.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::TcpKeepalive;

use crate::seal::{OVERHEAD, RECORD, Seal};

/// Room that [`Socket::receive`] needs.
pub const RECEIVE: usize = RECORD + OVERHEAD;

/// A connected socket. Nothing here waits: what cannot be done now says so.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    peer: SocketAddr,
    /// Of a protected connection.
    seal: Option<Box<Seal>>,
}

impl Socket {
    /// Takes a connected socket over. A peer that acknowledges nothing for `patience` counts as gone, whether or not
    /// there is something to send.
    pub(crate) fn new(
        socket: socket2::Socket,
        peer: SocketAddr,
        patience: Duration,
        seal: Option<Seal>,
    ) -> io::Result<Self> {
        // A message waits for nobody; what can travel together is put together above.
        socket.set_tcp_nodelay(true)?;
        let idle = (patience / 2).max(Duration::from_secs(1));
        let interval = (patience / 8).max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))?;
        socket.set_tcp_user_timeout(Some(patience))?;
        Ok(Self { fd: socket.into(), peer, seal: seal.map(Box::new) })
    }

    /// The other end's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The bytes are encrypted and authenticated.
    #[inline]
    pub fn is_protected(&self) -> bool {
        self.seal.is_some()
    }

    /// Takes what is there, up to the buffer's length. `None` if nothing is; zero bytes are the end of the
    /// stream. On a protected connection the buffer must have room for [`RECEIVE`] bytes, and nothing is
    /// there before a record is whole and verified.
    ///
    /// # Errors
    /// What the system says, or that the bytes were changed on the way ([`is_altered`](crate::seal::is_altered)).
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.seal {
            None => receive(&self.fd, buffer),
            Some(seal) => seal.receive(buffer, |room| receive(&self.fd, room)),
        }
    }

    pub(crate) fn seal(&mut self) -> Option<&mut Seal> {
        self.seal.as_deref_mut()
    }

    /// As [`Self::receive`], into several buffers, on a connection that is not protected.
    pub(crate) fn receive_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        if self.is_protected() {
            // What the system puts there has not been verified.
            return Err(ErrorKind::Unsupported.into());
        }
        loop {
            match rustix::io::readv(&self.fd, buffers) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends what there is room for, as it is; zero if there is none.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        send(&self.fd, bytes)
    }

    /// Sends the records that were made.
    pub(crate) fn send_records(&mut self, spare: &crate::outbox::Spare) -> io::Result<Sent> {
        let Some(seal) = &mut self.seal else { return Ok(Sent::All(0)) };
        while let Some(records) = seal.sending() {
            let count = send(&self.fd, records)?;
            if count == 0 {
                return Ok(Sent::Full);
            }
            if let Some(payload) = seal.sent(count, spare) {
                return Ok(Sent::All(payload));
            }
        }
        Ok(Sent::All(0))
    }

    /// As [`Self::send`], from several buffers.
    pub(crate) fn send_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.fd, buffers, &mut control, flags) {
                Err(Errno::INTR) => {}
                other => return sent(other),
            }
        }
    }

    /// Ends the outgoing half: the peer finds the end of the stream behind what was sent.
    pub fn finish(&self) {
        // A connection that is gone already needs no end.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Takes and drops what the peer sent. True once it ended its half, or the connection is gone.
    pub fn drain(&self) -> bool {
        let mut waste = [0; 4096];
        // Bounded: a peer that never stops does not hold this end up.
        for _ in 0..64 {
            match receive(&self.fd, &mut waste) {
                Ok(Some(0)) | Err(_) => return true,
                Ok(Some(_)) => {}
                Ok(None) => return false,
            }
        }
        false
    }
}

/// What [`Socket::send_records`] did.
#[derive(Debug)]
pub(crate) enum Sent {
    /// All records are gone, with so many bytes of payload.
    All(usize),
    /// There is no room for more.
    Full,
}

#[inline]
fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::net::recv(fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[inline]
fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            other => return sent(other),
        }
    }
}

fn sent(result: Result<usize, Errno>) -> io::Result<usize> {
    match result {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An unconnected socket of the right family, which does not wait.
pub(crate) fn open(address: SocketAddr) -> io::Result<socket2::Socket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends the few bytes of a handshake, whole.
pub(crate) fn say(socket: &socket2::Socket, bytes: &[u8]) -> io::Result<()> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)? {
        count if count == bytes.len() => Ok(()),
        // The first bytes on a connection always find room.
        _ => Err(ErrorKind::ConnectionReset.into()),
    }
}

/// The connection is gone by the peer's doing or its absence, in whatever words the system says so.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

/// Ends both halves at once.
pub(crate) fn abort(socket: &socket2::Socket) {
    let _ = socket.shutdown(Shutdown::Both);
}
