//! Nonblocking connected sockets. The bytes of a protected connection are in records.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::TcpKeepalive;

use crate::seal::{OVERHEAD, RECORD, Seal};

/// Bytes of room that [`Socket::receive`] needs.
pub const RECEIVE: usize = RECORD + OVERHEAD;

/// Longest idle time and interval of keepalive probes that the kernel accepts (MAX_TCP_KEEPIDLE and
/// MAX_TCP_KEEPINTVL of linux/tcp.h).
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(32_767);
/// Longest TCP_USER_TIMEOUT that the kernel accepts: its type is `int`.
const LONGEST_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// A connected socket. No method waits.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    peer: SocketAddr,
    /// Present if the connection is protected.
    seal: Option<Box<Seal>>,
    /// Its listener counts it.
    _guest: Option<Arc<()>>,
}

impl Socket {
    /// Takes over a connected socket. It fails if the peer acknowledges nothing for `timeout`,
    /// as [`set_timeout`](Self::set_timeout) describes.
    pub(crate) fn new(
        socket: socket2::Socket,
        peer: SocketAddr,
        timeout: Duration,
        seal: Option<Seal>,
    ) -> io::Result<Self> {
        // The outbox coalesces messages; the kernel must not delay them.
        socket.set_tcp_nodelay(true)?;
        let this = Self { fd: socket.into(), peer, seal: seal.map(Box::new), _guest: None };
        this.set_timeout(timeout)?;
        Ok(this)
    }

    /// Takes over a connected Unix socket. The peer's address is unspecified.
    pub(crate) fn unix(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let peer = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
        Ok(Self { fd: socket.into(), peer, seal: None, _guest: None })
    }

    /// The listener that accepted it counts it until it is dropped.
    pub(crate) fn counted(self, guest: Arc<()>) -> Self {
        Self { _guest: Some(guest), ..self }
    }

    /// Sets how long the peer may acknowledge nothing before the connection fails, whether or not
    /// there is something to send. The kernel supports at most 24 days, which count for more.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let socket = socket2::SockRef::from(&self.fd);
        let timeout = timeout.min(LONGEST_TIMEOUT);
        let idle = (timeout / 2).clamp(Duration::from_secs(1), LONGEST_KEEPALIVE);
        let interval = (timeout / 8).clamp(Duration::from_secs(1), LONGEST_KEEPALIVE);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))?;
        socket.set_tcp_user_timeout(Some(timeout))
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The bytes are encrypted and authenticated.
    #[inline]
    pub fn is_protected(&self) -> bool {
        self.seal.is_some()
    }

    /// Receives into `buffer`. Returns `None` if there is nothing to receive, and zero at the end
    /// of the stream. On a protected connection, `buffer` needs room for [`RECEIVE`] bytes, and
    /// only whole verified records are received.
    ///
    /// # Errors
    /// Those of recv(2), and [altered](crate::seal::is_altered) bytes.
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

    /// The sealed records that wait to be sent, of a protected connection.
    pub(crate) fn sending(&self) -> Option<&[u8]> {
        self.seal.as_ref()?.sending()
    }

    /// As [`Self::receive`], into several buffers, on a connection that is not protected.
    pub(crate) fn receive_vectored(
        &self,
        buffers: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        if self.is_protected() {
            // The bytes of a record have to be verified first.
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

    /// Sends as many bytes as the kernel takes, unprotected. Returns zero if it takes none.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        send(&self.fd, bytes)
    }

    /// Sends the sealed records.
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

    /// Returns whether the peer has ended its half, or the connection has failed, whether or not
    /// everything before was received.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        // An error says nothing about the connection.
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Ends the outgoing half: the peer receives what was sent, and then the end of the stream.
    pub fn finish(&self) {
        // It fails only if the connection has ended.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Discards what the peer sent. Returns true once the peer has ended its half, or the
    /// connection failed.
    pub fn drain(&self) -> bool {
        let mut waste = [0; 4096];
        // Bounded, as the peer may never stop sending.
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
    /// All records were sent, with so many bytes of payload.
    All(usize),
    /// The kernel takes no more.
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
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
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

/// Waits until `descriptor` is ready, or a signal arrives. Returns false after the deadline, also
/// if it is ready then.
///
/// # Errors
/// Those of ppoll(2).
pub fn wait(descriptor: &impl AsFd, events: PollFlags, deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    // A time that the kernel cannot express is for ever.
    let timeout = Timespec::try_from(left).ok();
    match poll(&mut [PollFd::new(descriptor, events)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// An unconnected nonblocking socket for `address`.
pub(crate) fn open(address: SocketAddr) -> io::Result<socket2::Socket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends the few bytes of a handshake.
pub(crate) fn send_whole(socket: &socket2::Socket, bytes: &[u8]) -> io::Result<()> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)? {
        count if count == bytes.len() => Ok(()),
        // There is always room for the first bytes on a connection.
        _ => Err(ErrorKind::ConnectionReset.into()),
    }
}

/// Returns true if the error says that the peer, or the network to it, ended the connection.
pub fn is_disconnected(error: &io::Error) -> bool {
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

/// Ends both halves.
pub(crate) fn abort(socket: &socket2::Socket) {
    let _ = socket.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_any_length_are_accepted() {
        const DAY: Duration = Duration::from_hours(24);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for timeout in
            [Duration::ZERO, Duration::from_nanos(1), DAY, 24 * DAY, 25 * DAY, Duration::MAX]
        {
            let socket = socket2::Socket::from(std::net::TcpStream::connect(address).unwrap());
            let kept = socket.try_clone().unwrap();
            Socket::new(socket, address, timeout, None).expect("the kernel accepts the timeout");
            let milliseconds = |found: Option<Duration>| found.unwrap_or_default().as_millis();
            let expected = timeout.as_millis().min(i32::MAX as u128);
            assert_eq!(milliseconds(kept.tcp_user_timeout().unwrap()), expected, "{timeout:?}");
            assert!(kept.tcp_keepalive_time().unwrap() <= LONGEST_KEEPALIVE);
        }
    }
}
