//! The process at the other end of a Unix socket (SO_PEERCRED, unix(7)).

#![allow(unsafe_code, reason = "the system call writes to memory of this process")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The user and the process at the other end of a Unix socket, as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// The effective user id of the other process when it connected or listened.
    pub user: u32,
    /// The process id; 0 if the process is in a PID namespace that is not visible from this one.
    pub process: i32,
}

impl Credentials {
    /// Reads the credentials of the process at the other end of a connected Unix socket.
    ///
    /// # Errors
    /// The error of getsockopt(2).
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        // The type in rustix cannot represent process id 0.
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `found`, which has that size and is
        // valid for any bytes, and writes `length`.
        let outcome = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        match outcome {
            0 => Ok(Self { user: found.uid, process: found.pid }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
