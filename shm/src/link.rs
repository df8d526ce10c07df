//! The unix socket between two processes. It carries messages of a fixed size with up to two file
//! descriptors each (SCM_RIGHTS, unix(7)).
//!
//! The sockets preserve message boundaries (SOCK_SEQPACKET) and never block. Their names are paths
//! in a directory of this user, or abstract: see [`Place`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::cmsg_space;
use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::address::Place;
use crate::credentials::Credentials;
use crate::place::{self, PREFIX};

/// Bytes of a message.
pub(crate) const MESSAGE: usize = 64;
/// The maximum number of descriptors of a message.
const DESCRIPTORS: usize = 2;
const BACKLOG: i32 = 1024;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The address of the socket of port `number` in `directory`, or in the abstract namespace; and its
/// path in the former case.
fn name(number: u64, directory: Option<&Path>) -> io::Result<(SocketAddrUnix, Option<PathBuf>)> {
    let name = format!("{PREFIX}{number:016x}");
    Ok(match directory {
        None => (SocketAddrUnix::new_abstract_name(name.as_bytes())?, None),
        Some(directory) => {
            let path = directory.join(name);
            (SocketAddrUnix::new(&path)?, Some(path))
        }
    })
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// A listening socket. Dropping it removes its path, if it has one.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: Option<PathBuf>,
    /// The process that created the path; only it removes the path.
    process: u32,
}

impl Listener {
    /// Listens at the first usable location of `place`, and removes the sockets that killed
    /// processes left in its directory.
    pub(crate) fn bind(number: u64, place: &Place) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for directory in place.create() {
            match Self::bind_in(number, directory.as_deref()) {
                Ok(listener) => {
                    directory.as_deref().map(place::sweep);
                    return Ok(listener);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn bind_in(number: u64, directory: Option<&Path>) -> io::Result<Self> {
        let (address, path) = name(number, directory)?;
        let socket = socket()?;
        rustix::net::bind(&socket, &address)?;
        let listener = Self { socket, path, process: std::process::id() };
        if let Some(path) = &listener.path {
            // Connecting requires write permission. No connection is possible before listen(2).
            rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
        }
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// Accepts the next connection, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<Link>> {
        match retry_on_intr(|| rustix::net::accept_with(&self.socket, FLAGS)) {
            Ok(socket) => Ok(Some(Link { socket })),
            // No connection, or the peer closed it already.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && self.process == std::process::id()
        {
            // The file may have been removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A received message with its descriptors.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) message: [u8; MESSAGE],
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
}

impl Link {
    /// Connects to a listener without blocking. Returns false with an unconnected socket if the
    /// queue of the listener is full.
    pub(crate) fn connect(number: u64, place: &Place) -> io::Result<(Self, bool)> {
        let link = Self { socket: socket()? };
        let mut failed = Errno::NOENT;
        for directory in place.candidates() {
            let (address, _) = name(number, directory.as_deref())?;
            match retry_on_intr(|| rustix::net::connect(&link.socket, &address)) {
                Ok(()) => return Ok((link, true)),
                Err(Errno::AGAIN) => return Ok((link, false)),
                // The port does not listen here; it may listen at the next location.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => {}
                Err(errno) => failed = errno,
            }
        }
        Err(failed.into())
    }

    /// Creates both ends of a connection in this process.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (first, second) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        Ok((Self { socket: first }, Self { socket: second }))
    }

    /// Returns the user and the process id of the other end.
    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        Credentials::of_peer(&self.socket)
    }

    /// Sends a message. Returns false if the other end has too many unread messages.
    pub(crate) fn send(
        &self,
        message: &[u8; MESSAGE],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<bool> {
        let sent = retry_on_intr(|| {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                // `space` has room for `DESCRIPTORS`, the maximum.
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            rustix::net::sendmsg(
                &self.socket,
                &[IoSlice::new(message)],
                &mut control,
                SendFlags::NOSIGNAL,
            )
        });
        match sent {
            Ok(_) => Ok(true),
            // ETOOMANYREFS: too many descriptors are in flight.
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives the next message, if there is one.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is closed; EMFILE if this process had no free file
    /// descriptor for one that was sent; `InvalidData` if the bytes are not a message.
    pub(crate) fn receive(&self) -> io::Result<Option<Received>> {
        let mut message = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut receive = || {
            retry_on_intr(|| {
                let mut parts = [IoSliceMut::new(&mut message)];
                rustix::net::recvmsg(
                    &self.socket,
                    &mut parts,
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC,
                )
            })
        };
        // If the other end was closed with unread data, the first receive fails with ECONNRESET
        // once; messages that it sent before can be received afterwards.
        let result = match receive() {
            Err(Errno::CONNRESET) => receive(),
            result => result,
        };
        let result = match result {
            Ok(result) => result,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(errno) => return Err(errno.into()),
        };
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                descriptors.extend(received);
            }
        }
        if result.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // If a peer sends more descriptors than allowed, the kernel truncates them to two. Fewer
        // mean that this process reached its limit.
        if result.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < DESCRIPTORS {
            return Err(Errno::MFILE.into());
        }
        if result.bytes != MESSAGE
            || result.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(Received { message, descriptors }))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
