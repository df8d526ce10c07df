//! A socket that accepts message streams.

use crate::Stream;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 16;

/// An error of a [`Listener`].
#[derive(Debug, Error)]
pub enum ListenerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody connected within the deadline.
    #[error("{address}: nobody connected within {:.1} s", .waited.as_secs_f64())]
    TimedOut {
        /// The listener's address.
        address: SocketAddr,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Accepting failed otherwise.
    #[error("{address}: cannot accept a connection: {source}")]
    Accept {
        /// The listener's address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// A socket that accepts message streams.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: SocketAddr,
    limit: u32,
}

impl Listener {
    /// Listens on `address`, or on 127.0.0.1 if there is none. Port 0 takes any free port. Accepted streams
    /// refuse payloads over `limit` bytes.
    ///
    /// # Errors
    /// The address is not one of this host, or is taken.
    pub fn bind(address: Option<IpAddr>, port: u16, limit: u32) -> Result<Self, ListenerError> {
        let address = SocketAddr::new(address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port);
        let open = || -> io::Result<Self> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            // Else the port stays taken for a minute after each run.
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            let address = socket.local_addr()?.as_socket().unwrap_or(address);
            Ok(Self { socket, address, limit })
        };
        open().map_err(|source| ListenerError::Bind { address, source })
    }

    /// The address that is listened on, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits up to `timeout` for a connection.
    ///
    /// # Errors
    /// Nobody connected in time, or the system refuses.
    pub fn accept(&self, timeout: Duration) -> Result<Stream, ListenerError> {
        let fail = |source| ListenerError::Accept { address: self.address, source };
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // On Linux a listening socket's receive timeout is the timeout of accept(2): socket(7), SO_RCVTIMEO.
            let moment = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(moment)).map_err(fail)?;
            match self.socket.accept() {
                Ok((socket, _)) => match Stream::new(socket, self.limit) {
                    // A peer that is gone already is not worth an error: the next one is waited for.
                    Err(error) if error.kind() == ErrorKind::NotConnected => {}
                    other => return other.map_err(fail),
                },
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if left.is_zero() {
                        return Err(ListenerError::TimedOut { address: self.address, waited: timeout });
                    }
                }
                Err(error) => return Err(fail(error)),
            }
        }
    }
}
