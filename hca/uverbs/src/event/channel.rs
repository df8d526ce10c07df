//! A descriptor that a program reads events from: a completion channel, a context's asynchronous events, DEVX events.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::errno::Errno;

/// Longest event: a cookie and an entry of an event queue.
const LONGEST: usize = 8 + 64;

/// One end of a pair of sockets that keeps messages apart; the program has the other. It may poll, block or not, and close it as it likes.
#[derive(Debug)]
pub(crate) struct Channel {
    ours: OwnedFd,
    /// The program's descriptor, and what tells whether it still is that.
    theirs: RawFd,
    inode: u64,
    /// DEVX: cookies only, no entries.
    cookies_only: bool,
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl Channel {
    /// Makes a channel. The program's descriptor is [`Channel::descriptor`].
    pub(crate) fn new(cookies_only: bool) -> Result<Self, Errno> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: just opened, and nobody else's.
        let (theirs, ours) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let inode = inode(theirs.as_raw_fd()).ok_or(Errno::IO)?;
        Ok(Self { ours, theirs: theirs.into_raw_fd(), inode, cookies_only, waiting: Mutex::default() })
    }

    /// The program's end.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.theirs
    }

    /// Tells the program of its descriptor. If that fails the descriptor is nobody's, and closed.
    pub(crate) fn hand_over(&self, tell: impl FnOnce(u32) -> Result<(), Errno>) -> Result<(), Errno> {
        tell(self.theirs as u32).inspect_err(|_| {
            // SAFETY: just opened, and the program does not know of it.
            unsafe { libc::close(self.theirs) };
        })
    }

    /// The program has not closed its end.
    pub(crate) fn is_open(&self) -> bool {
        inode(self.theirs) == Some(self.inode)
    }

    /// Sends an event, at the latest when there is room. False if nobody can read it.
    pub(crate) fn send(&self, event: &[u8]) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.is_empty() || !self.try_send(event) {
            if !self.is_open() {
                return false;
            }
            waiting.push_back(event.to_vec());
        }
        true
    }

    /// Sends a DEVX event.
    pub(crate) fn send_event(&self, cookie: u64, entry: &[u8]) {
        let mut event = cookie.to_ne_bytes().to_vec();
        if !self.cookies_only {
            event.extend(entry);
        }
        self.send(&event);
    }

    /// Sends what waits for room. True if something still does.
    pub(crate) fn send_rest(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = waiting.front() {
            if !self.try_send(event) {
                return true;
            }
            waiting.pop_front();
        }
        false
    }

    fn try_send(&self, event: &[u8]) -> bool {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: so many bytes of a live slice.
        let sent = unsafe { libc::send(self.ours.as_raw_fd(), event.as_ptr().cast(), event.len(), flags) };
        sent == event.len() as isize
    }

    /// Takes the unread events back that begin with `key`, and leaves the others in order. How many there were.
    ///
    /// Each unread event is either read here or by the program, never by both.
    pub(crate) fn take_back(&self, key: u64) -> u32 {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unread = VecDeque::new();
        while self.is_open() {
            let mut event = [0; LONGEST];
            // SAFETY: the buffer is as long as said.
            let length = unsafe {
                libc::recv(self.theirs, event.as_mut_ptr().cast(), event.len(), libc::MSG_DONTWAIT)
            };
            match usize::try_from(length) {
                Ok(length) if length > 0 => unread.push_back(event[..length].to_vec()),
                _ => break,
            }
        }
        unread.append(&mut waiting);
        let before = unread.len();
        unread.retain(|event| event.get(..8) != Some(&key.to_ne_bytes()[..]));
        let taken = before - unread.len();
        for event in unread {
            if !waiting.is_empty() || !self.try_send(&event) {
                waiting.push_back(event);
            }
        }
        taken as u32
    }
}

/// A test has no program that would close its end.
#[cfg(test)]
impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_open() {
            // SAFETY: the program's descriptor, and nobody else has it.
            unsafe { libc::close(self.theirs) };
        }
    }
}

/// What a descriptor refers to.
fn inode(descriptor: RawFd) -> Option<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer, which is there if the call succeeds.
    unsafe { (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| status.assume_init().st_ino) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(channel: &Channel) -> Option<u64> {
        let mut event = [0; 8];
        // SAFETY: the buffer is as long as said.
        let length = unsafe {
            libc::recv(channel.descriptor(), event.as_mut_ptr().cast(), event.len(), libc::MSG_DONTWAIT)
        };
        (length == 8).then(|| u64::from_ne_bytes(event))
    }

    fn close(channel: &Channel) {
        // SAFETY: the test's own descriptor.
        unsafe { libc::close(channel.descriptor()) };
    }

    #[test]
    fn what_nobody_read_is_taken_back() {
        let channel = Channel::new(false).unwrap();
        for key in [7_u64, 9, 7, 8, 7] {
            assert!(channel.send(&key.to_ne_bytes()));
        }
        assert_eq!(read(&channel), Some(7));
        assert_eq!(channel.take_back(7), 2);
        assert_eq!([(); 3].map(|()| read(&channel)), [Some(9), Some(8), None]);
        close(&channel);
    }

    #[test]
    fn more_than_the_socket_holds() {
        let channel = Channel::new(false).unwrap();
        for key in 0..10_000_u64 {
            assert!(channel.send(&key.to_ne_bytes()));
        }
        assert_eq!(channel.take_back(5_000), 1);
        for key in (0..10_000).filter(|&key| key != 5_000) {
            if read(&channel).map(|got| assert_eq!(got, key)).is_none() {
                channel.send_rest();
                assert_eq!(read(&channel), Some(key));
            }
        }
        assert!(!channel.send_rest());
        close(&channel);
    }

    #[test]
    fn a_closed_channel_takes_nothing() {
        let channel = Channel::new(false).unwrap();
        close(&channel);
        assert!(!channel.send(&[1; 8]) && channel.take_back(1) == 0 && !channel.is_open());
    }
}
