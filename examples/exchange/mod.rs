//! Shared by the examples with several processes: a second process, a socket to it, and an endpoint
//! that leads to the second process's endpoint.
//!
//! A real program has its own channel for the few bytes that are exchanged here, and its own way to
//! start processes.

#![allow(dead_code, reason = "each example uses some of it")]

use barewire::prelude::*;
use std::error::Error;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The software HCA that is part of barewire. `BAREWIRE_EXAMPLE=shm/memory` selects another
/// transport and device.
const TRANSPORT_AND_DEVICE: &str = "rc_mlx5/soft0:1";
/// Nothing here takes this long unless the other process is stuck.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The other process, and a socket to it.
#[derive(Debug)]
pub(crate) struct Peer {
    socket: UnixStream,
    child: Option<Child>,
}

impl Peer {
    /// Starts this program again, with this argument.
    pub(crate) fn start(argument: &str) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        near.set_read_timeout(Some(PATIENCE))?;
        let child = Command::new(std::env::current_exe()?)
            .arg(argument)
            .stdin(OwnedFd::from(far))
            .spawn()?;
        Ok(Self { socket: near, child: Some(child) })
    }

    /// Returns the process that started this one.
    pub(crate) fn parent() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, child: None })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.socket.write_all(&length.to_le_bytes())?;
        self.socket.write_all(bytes)
    }

    pub(crate) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let mut bytes = Vec::new();
        let length = u32::from_le_bytes(length).into();
        let read = (&self.socket).take(length).read_to_end(&mut bytes)?;
        if read as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Waits until the peer has called `barrier`, too.
    pub(crate) fn barrier(&mut self) -> io::Result<()> {
        self.send(b"here")?;
        self.receive().map(|_| ())
    }

    /// Kills the process, like a crash.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.as_mut().map_or(Ok(()), Child::kill)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // A child that waits for this side reads the end of the socket and exits.
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
            let _ = child.wait();
        }
    }
}

/// Connects an endpoint to the peer's endpoint.
pub(crate) fn connect(endpoint: &Endpoint, peer: &mut Peer) -> Result<()> {
    peer.send(&endpoint.address().to_bytes())?;
    endpoint.connect(&PeerAddress::from_bytes(&peer.receive()?)?)?;
    // Return when the other end is connected, too.
    Ok(peer.barrier()?)
}

/// One end of a connection, and the objects that it was opened from.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    pub(crate) interface: Interface,
    pub(crate) domain: Domain,
    pub(crate) worker: Worker,
}

impl Side {
    pub(crate) fn open() -> Result<Self> {
        Self::open_at(TRANSPORT_AND_DEVICE)
    }

    /// As `open`, with another default for the transport and device.
    pub(crate) fn open_at(place: &str) -> Result<Self> {
        let place = std::env::var("BAREWIRE_EXAMPLE").unwrap_or_else(|_| place.into());
        let mut worker = Worker::new();
        let domain = Domain::open(&place.parse()?)?;
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
        let endpoint = Endpoint::new(&interface)?;
        Ok(Self { endpoint, interface, domain, worker })
    }

    /// Connects to the peer's endpoint. The peer must do the same.
    pub(crate) fn connect(&self, peer: &mut Peer) -> Result<()> {
        connect(&self.endpoint, peer)
    }

    /// Allocates memory for every remote operation, and tells the peer how to reach it.
    pub(crate) fn expose(&self, length: usize, peer: &mut Peer) -> Result<Memory> {
        let memory = self.domain.allocate(length, Access::all())?;
        peer.send(&memory.pack_region())?;
        Ok(memory)
    }

    /// Receives the region that the peer exposed.
    pub(crate) fn reach(&self, peer: &mut Peer) -> Result<RemoteRegion> {
        Ok(self.domain.unpack_region(&peer.receive()?)?)
    }

    /// Posts an operation. Makes progress until there are resources for it.
    pub(crate) fn post<T>(
        &mut self,
        mut operation: impl FnMut(&Endpoint) -> std::result::Result<T, PostError>,
    ) -> Result<T> {
        let endpoint = &self.endpoint;
        Ok(self.worker.post(|| operation(endpoint))?)
    }

    /// Posts an operation and waits until it has finished.
    pub(crate) fn finish(
        &mut self,
        operation: impl Fn(&Endpoint, &Completion) -> Post,
    ) -> Result<()> {
        let completion = Completion::counter();
        match self.post(|endpoint| operation(endpoint, &completion))? {
            Posted::Done => Ok(()),
            Posted::InProgress => self.until(|| {
                completion.status()?;
                Ok(completion.pending() == 0)
            }),
        }
    }

    /// Waits until everything posted so far has reached the peer's memory.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.finish(|endpoint, completion| endpoint.flush(FlushMode::Remote, Some(completion)))
    }

    /// Waits for a message on the socket and makes progress meanwhile. Operations of the peer on
    /// this side's memory need no progress, but some transports need it to connect.
    pub(crate) fn listen(&mut self, peer: &mut Peer) -> io::Result<Vec<u8>> {
        std::thread::scope(|scope| {
            let word = scope.spawn(|| peer.receive());
            while !word.is_finished() {
                self.worker.progress();
                std::thread::sleep(Duration::from_micros(200));
            }
            word.join().map_err(|_| io::Error::other("the listening thread panicked"))?
        })
    }

    /// Makes progress until `ready` returns true.
    pub(crate) fn until(&mut self, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
        let mut give_up: Option<Instant> = None;
        loop {
            match ready() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The endpoint's error has more details than the operation's.
                Err(error) => {
                    return Err(self.endpoint.error().map_or(error, |why| why.to_string().into()));
                }
            }
            if self.worker.progress() > 0 {
                give_up = None;
                continue;
            }
            if let Some(error) = self.endpoint.error() {
                return Err(error.to_string().into());
            }
            if Instant::now() > *give_up.get_or_insert_with(|| Instant::now() + PATIENCE) {
                return Err("the other process does nothing".into());
            }
            // The software HCA is a thread and needs a CPU; with hardware, spin instead.
            std::thread::yield_now();
        }
    }
}
