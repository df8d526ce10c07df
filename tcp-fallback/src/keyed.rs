//! Message streams between ends that proved to each other that they know the job's key. Unlike doors and connectors these wait.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connector::{ConnectFailure, Connector};
use crate::door::{Admitted, Door, Limits};
use crate::handshake::{Claim, Purpose, Verdict};
use crate::{Key, ListenerError, Stream};

/// Such a stream needs no numbers.
const CLAIM: Claim =
    Claim { purpose: Purpose::Stream, service: 0, endpoint: 0, from_service: 0, from_endpoint: 0 };
/// Between two looks at a connection in the making.
const LOOK: Duration = Duration::from_millis(1);

/// A socket that accepts message streams from those who know the key. Strangers cost a bounded little, see [`Limits`].
/// The streams are encrypted and authenticated ([`seal`](crate::seal)), but on the loopback.
///
/// ```
/// use barewire_tcp::{Key, KeyedListener, Stream};
/// use std::{net::Ipv4Addr, thread, time::Duration};
///
/// let (key, limit, soon) = (Key::generate()?, 4096, Duration::from_secs(30));
/// let mut listener = KeyedListener::bind(Ipv4Addr::LOCALHOST.into(), 0, key.clone(), limit)?;
/// let address = listener.address();
/// // The other end would be another process, with the key from a file or the environment.
/// let client = thread::spawn(move || Stream::connect_with_key(address, &key, limit, soon));
/// let mut server = listener.accept(soon)?;
/// let mut client = client.join().map_err(|_| "the client panicked")??;
/// client.send(1, b"let in", soon)?;
/// assert_eq!(server.receive(soon)?.payload, b"let in");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KeyedListener {
    door: Door,
    admitted: Vec<Admitted>,
    limit: u32,
}

impl KeyedListener {
    /// Listens on `address`; port 0 takes any free port. Accepted streams refuse payloads over `limit` bytes.
    ///
    /// # Errors
    /// The address is not one of this host, or is taken.
    pub fn bind(address: IpAddr, port: u16, key: Key, limit: u32) -> Result<Self, ListenerError> {
        let address = SocketAddr::new(address, port);
        let door = Door::open_at(address, key, limits(address));
        let door = door.map_err(|source| ListenerError::Bind { address, source })?;
        Ok(Self { door, admitted: Vec::new(), limit })
    }

    /// The address that is listened on, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// Waits up to `timeout` for somebody who knows the key.
    ///
    /// # Errors
    /// Nobody came in time, or the system refuses.
    pub fn accept(&mut self, timeout: Duration) -> Result<Stream, ListenerError> {
        let address = self.address();
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            self.door.work(now, &mut self.admitted);
            while let Some(newcomer) = self.admitted.pop() {
                if newcomer.claim.purpose != Purpose::Stream {
                    newcomer.refuse(Verdict::Unknown);
                } else if let Ok(stream) =
                    newcomer.welcome().and_then(|socket| socket.into_stream(self.limit))
                {
                    return Ok(stream);
                }
            }
            if now >= deadline {
                return Err(ListenerError::TimedOut { address, waited: timeout });
            }
            let until = self.door.deadline().map_or(deadline, |look| look.min(deadline));
            wait(&self.door, until.saturating_duration_since(now))
                .map_err(|source| ListenerError::Accept { address, source })?;
        }
    }
}

impl Stream {
    /// Connects to a [`KeyedListener`] with the same key, within `timeout`.
    ///
    /// # Errors
    /// [`ConnectFailure`]
    pub fn connect_with_key(
        peer: SocketAddr,
        key: &Key,
        limit: u32,
        timeout: Duration,
    ) -> Result<Self, ConnectFailure> {
        let connector = Connector::start(peer, None, key, CLAIM, timeout, limits(peer));
        let socket = connector.map_err(ConnectFailure::Io)?.wait(|| std::thread::sleep(LOOK))?;
        socket.into_stream(limit).map_err(ConnectFailure::Io)
    }
}

/// Streams are protected but on the loopback.
fn limits(address: SocketAddr) -> Limits {
    Limits { protected: !address.ip().is_loopback(), ..Limits::default() }
}

fn wait(door: &Door, time: Duration) -> io::Result<()> {
    let seconds = time.as_secs().min(u32::MAX.into());
    let timeout = Timespec { tv_sec: seconds as _, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut [PollFd::new(door, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
