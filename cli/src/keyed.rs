//! Control connections over TCP between processes that share the job key. They are encrypted and
//! authenticated ([`barewire_tcp::seal`]) except on the loopback interface.

use crate::channel::{self, Channel};
use barewire_tcp::Key;
use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::time::after;
use rustix::event::PollFlags;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A control connection addresses neither an interface nor an endpoint.
const CLAIM: Claim =
    Claim { purpose: Purpose::Control, service: 0, endpoint: 0, from_service: 0, from_endpoint: 0 };
/// Time between two calls of a connector.
const PAUSE: Duration = Duration::from_millis(1);

/// A listening socket that accepts peers with the job key. The cost of other peers is bounded: see
/// [`barewire_tcp::listener`].
///
/// ```
/// use barewire_cli::keyed::{self, KeyedListener};
/// use barewire_tcp::Key;
/// use std::{net::Ipv4Addr, thread, time::Duration};
///
/// let (key, soon) = (Key::generate()?, Duration::from_secs(30));
/// let mut listener = KeyedListener::bind((Ipv4Addr::LOCALHOST, 0).into(), key.clone())?;
/// let address = listener.address();
/// let client = thread::spawn(move || keyed::connect(address, &key, soon));
/// let mut server = listener.accept(soon)?.ok_or("no client")?;
/// let mut client = client.join().map_err(|_| "the client panicked")??;
/// client.send(b"let in", soon)?;
/// assert_eq!(server.receive(soon)?, b"let in");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KeyedListener {
    door: Listener,
    admitted: Vec<Authenticated>,
}

impl KeyedListener {
    /// Listens on `address`; port 0 selects a free port.
    ///
    /// # Errors
    /// The address does not belong to this host, or is in use.
    pub fn bind(address: SocketAddr, key: Key) -> io::Result<Self> {
        Ok(Self { door: Listener::open_at(address, key, limits(address))?, admitted: Vec::new() })
    }

    /// The listening address, with the selected port.
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// Connections so far that did not prove the key.
    pub fn refused(&self) -> u64 {
        self.door.refused()
    }

    /// Waits up to `timeout` for a peer with the key. Returns `None` if none connected.
    ///
    /// # Errors
    /// The kernel failed to wait.
    pub fn accept(&mut self, timeout: Duration) -> io::Result<Option<Channel>> {
        let deadline = after(Instant::now(), timeout);
        loop {
            let now = Instant::now();
            self.door.work(now, &mut self.admitted);
            while let Some(peer) = self.admitted.pop() {
                if peer.claim.purpose != Purpose::Control {
                    peer.refuse(Verdict::Unknown);
                } else if let Ok(socket) = peer.welcome() {
                    return Ok(Some(socket.into()));
                }
            }
            if now >= deadline {
                return Ok(None);
            }
            let until = self.door.deadline().map_or(deadline, |due| due.min(deadline));
            channel::wait(&self.door, PollFlags::IN, until.saturating_duration_since(now))?;
        }
    }
}

/// Connects to a [`KeyedListener`] with the same key, within `timeout`.
///
/// # Errors
/// [`ConnectFailure`]
pub fn connect(peer: SocketAddr, key: &Key, timeout: Duration) -> Result<Channel, ConnectFailure> {
    let connector = Connector::start(peer, None, key, CLAIM, timeout, limits(peer));
    let socket = connector.map_err(ConnectFailure::Io)?.wait(|| std::thread::sleep(PAUSE))?;
    Ok(socket.into())
}

fn limits(address: SocketAddr) -> Limits {
    Limits { protected: !address.ip().is_loopback(), ..Limits::default() }
}
