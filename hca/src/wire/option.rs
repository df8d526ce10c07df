//! Options of sockets that the crate socket2 does not have.

use std::io;
use std::os::fd::AsRawFd;

use socket2::Socket;

/// Sets an option whose value is an int: setsockopt(2).
pub(super) fn set(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` lives; the option is an int of the given size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
