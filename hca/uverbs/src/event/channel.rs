//! Descriptors from which a program reads events: completion channels, asynchronous events of a
//! context, DEVX events.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::errno::Errno;

/// Longest event: a cookie and an event queue entry.
const LONGEST: usize = 8 + 64;

/// One end of a `SOCK_SEQPACKET` pair; the program has the other and may poll, block or close it at
/// any time.
#[derive(Debug)]
pub(crate) struct Channel {
    ours: OwnedFd,
    /// The program's descriptor, and the file it referred to when it was created.
    theirs: RawFd,
    inode: u64,
    /// DEVX: send cookies without event queue entries.
    cookies_only: bool,
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl Channel {
    /// Creates a channel. The program's descriptor is [`Channel::descriptor`].
    pub(crate) fn new(cookies_only: bool) -> Result<Self, Errno> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: both were opened above and have no other owner.
        let (theirs, ours) =
            unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let inode = inode(theirs.as_raw_fd()).ok_or(Errno::IO)?;
        Ok(Self {
            ours,
            theirs: theirs.into_raw_fd(),
            inode,
            cookies_only,
            waiting: Mutex::default(),
        })
    }

    /// Returns the program's descriptor.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.theirs
    }

    /// Passes the descriptor to the program by `give`, and closes it if that fails.
    pub(crate) fn hand_over(
        &self,
        tell: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        tell(self.theirs as u32).inspect_err(|_| {
            // SAFETY: the descriptor was opened by `new` and was not passed to the program.
            unsafe { libc::close(self.theirs) };
        })
    }

    /// Returns whether the program still has its end open.
    pub(crate) fn is_open(&self) -> bool {
        inode(self.theirs) == Some(self.inode)
    }

    /// Sends an event, or queues it until there is room. Returns `false` if the program closed its
    /// end.
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

    /// Sends queued events. Returns `true` if some remain queued.
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
        // SAFETY: the pointer and length are those of a live slice.
        let sent =
            unsafe { libc::send(self.ours.as_raw_fd(), event.as_ptr().cast(), event.len(), flags) };
        sent == event.len() as isize
    }

    /// Removes the unread events that begin with `key`, keeps the others in order, and returns how
    /// many were removed.
    ///
    /// Each unread event is read either here or by the program, never by both.
    pub(crate) fn take_back(&self, key: u64) -> u32 {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unread = VecDeque::new();
        while self.is_open() {
            let mut event = [0; LONGEST];
            // SAFETY: the buffer has this length.
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

/// In tests no program closes the other end.
#[cfg(test)]
impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_open() {
            // SAFETY: the descriptor is open and has no other owner in a test.
            unsafe { libc::close(self.theirs) };
        }
    }
}

/// Returns the file that a descriptor refers to.
fn inode(descriptor: RawFd) -> Option<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the buffer has room for the result, which is initialised if the call succeeds.
    unsafe {
        (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| status.assume_init().st_ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(channel: &Channel) -> Option<u64> {
        let mut event = [0; 8];
        // SAFETY: the buffer has this length.
        let length = unsafe {
            libc::recv(
                channel.descriptor(),
                event.as_mut_ptr().cast(),
                event.len(),
                libc::MSG_DONTWAIT,
            )
        };
        (length == 8).then(|| u64::from_ne_bytes(event))
    }

    fn close(channel: &Channel) {
        // SAFETY: the test owns the descriptor.
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
