//! Sockets of this process alone, which a forked child closes.
//!
//! By these sockets, other processes find the listeners of this one and notice its end. A child
//! that kept them would keep the names of its parent taken, and its parent alive in the eyes of
//! peers.

use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Descriptors from this number on are not closed in a child.
const MOST: usize = 1 << 16;
/// The inode of each private socket, by its descriptor; 0 for other descriptors.
static INODES: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// All private descriptors are smaller.
static END: AtomicUsize = AtomicUsize::new(0);

/// A socket that a forked child closes. One that another thread opens at the moment of the fork may
/// stay open.
#[derive(Debug)]
pub(crate) struct Private<T: AsRawFd>(T);

impl<T: AsRawFd> Private<T> {
    pub(crate) fn new(socket: T) -> Self {
        let descriptor = socket.as_raw_fd();
        if let Some(place) = place(descriptor) {
            END.fetch_max(descriptor as usize + 1, Ordering::Relaxed);
            place.store(inode(descriptor), Ordering::Relaxed);
        }
        Self(socket)
    }
}

impl<T: AsRawFd> Deref for Private<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsRawFd> Drop for Private<T> {
    fn drop(&mut self) {
        if let Some(place) = place(self.0.as_raw_fd()) {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Closes the parent's sockets in a forked child. Async-signal-safe: only loads, stores and system
/// calls.
pub(crate) fn close_in_child() {
    for (descriptor, place) in INODES.iter().enumerate().take(END.load(Ordering::Relaxed)) {
        let socket = place.swap(0, Ordering::Relaxed);
        // A program may have closed the descriptor and opened another file.
        if socket != 0 && socket == inode(descriptor as RawFd) {
            // SAFETY: no pointers. The Rust value that owns the descriptor belongs to a thread of
            // the parent, or to state that the child does not use.
            unsafe { libc::syscall(libc::SYS_close, descriptor) };
        }
    }
}

fn place(descriptor: RawFd) -> Option<&'static AtomicU32> {
    INODES.get(usize::try_from(descriptor).ok()?)
}

/// Returns the lower bits of a socket's inode, which has no others, or 0 for other files.
fn inode(descriptor: RawFd) -> u32 {
    // SAFETY: a structure of integers may be zero.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is live, and that of the kernel on 64-bit machines. The raw call is not
    // interposed.
    let result = unsafe { libc::syscall(libc::SYS_fstat, descriptor, &raw mut status) };
    let is_socket = result == 0 && status.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    if is_socket { status.st_ino as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A program may have another file at the descriptor of a socket, and the numbers of its inodes
    /// are those of another file system.
    #[test]
    fn only_sockets_are_recognized() {
        let (socket, other) = UnixStream::pair().unwrap();
        let inodes = [socket.as_raw_fd(), other.as_raw_fd()].map(inode);
        assert!(inodes[0] != inodes[1] && !inodes.contains(&0));
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(inode(file.as_raw_fd()), 0);
        assert_eq!(inode(-1), 0);
    }
}
