//! The unix socket between two processes: short messages, each whole, with up to two descriptors
//! (SCM_RIGHTS, unix(7)).
//!
//! Sockets are of the kind that keeps message boundaries (SOCK_SEQPACKET) and never block. Their names are
//! paths in a directory of this user, or abstract: see [`Place`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::cmsg_space;
use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::address::Place;
use crate::place::{self, PREFIX};

/// Bytes of a message.
pub(crate) const MESSAGE: usize = 64;
/// Descriptors that come with one.
const DESCRIPTORS: usize = 2;
const BACKLOG: i32 = 1024;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The address of port `number` in a directory, or in the abstract namespace.
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

/// The user and the process at the other end, as the kernel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: u32,
    pub(crate) process: i32,
}

/// A listening socket; its path, if it has one, goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: Option<PathBuf>,
    /// The process that made the path, and removes it.
    process: u32,
}

impl Listener {
    /// Listens at the first of the place's candidates that can be had, and removes what killed processes
    /// left in its directory.
    pub(crate) fn bind(number: u64, place: &Place) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for directory in place.candidates() {
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
            // To connect takes the right to write. Before it listens, no connection is taken.
            rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
        }
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// The next who comes, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<Link>> {
        match retry_on_intr(|| rustix::net::accept_with(&self.socket, FLAGS)) {
            Ok(socket) => Ok(Some(Link { socket })),
            // Who came is gone again.
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
            // Someone may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What came.
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
    /// Connects to a listener. Does not wait. False with a socket that is not connected: the queue of the
    /// listener is full.
    pub(crate) fn connect(number: u64, place: &Place) -> io::Result<(Self, bool)> {
        let link = Self { socket: socket()? };
        let mut failed = Errno::NOENT;
        for directory in place.candidates() {
            let (address, _) = name(number, directory.as_deref())?;
            match retry_on_intr(|| rustix::net::connect(&link.socket, &address)) {
                Ok(()) => return Ok((link, true)),
                Err(Errno::AGAIN) => return Ok((link, false)),
                // It is not there, and may be at the next.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => {}
                Err(errno) => failed = errno,
            }
        }
        Err(failed.into())
    }

    /// Who is at the other end.
    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        let found = rustix::net::sockopt::socket_peercred(&self.socket)?;
        Ok(Credentials { user: found.uid.as_raw(), process: found.pid.as_raw_nonzero().get() })
    }

    /// Sends a message. False if the other end has too many unread ones.
    pub(crate) fn send(&self, message: &[u8; MESSAGE], descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let sent = retry_on_intr(|| {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                // The space was made for so many.
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)
        });
        match sent {
            Ok(_) => Ok(true),
            // The second: too many descriptors are under way already.
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next message, if it is there.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end is gone; EMFILE if a descriptor that came found no place in this
    /// process; `InvalidData` for what is not a message.
    pub(crate) fn receive(&self) -> io::Result<Option<Received>> {
        let mut message = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut receive = || {
            retry_on_intr(|| {
                let mut parts = [IoSliceMut::new(&mut message)];
                rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
            })
        };
        // An end that goes without having read everything is told first, once, and then what it said before.
        let answer = match receive() {
            Err(Errno::CONNRESET) => receive(),
            answer => answer,
        };
        let answer = match answer {
            Ok(answer) => answer,
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
        if answer.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Of more descriptors than a message may have, two come and the rest does not.
        if answer.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < DESCRIPTORS {
            return Err(Errno::MFILE.into());
        }
        if answer.bytes != MESSAGE || answer.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
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
