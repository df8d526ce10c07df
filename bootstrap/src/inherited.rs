//! Descriptors that a launcher names by number.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// Duplicates an inherited descriptor.
///
/// # Errors
/// EBADF if there is no such descriptor.
pub(crate) fn inherited(descriptor: i32) -> Result<OwnedFd, Errno> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is borrowed for one call, which duplicates it. If it is closed, the
    // call fails with EBADF; whatever file it is, duplicating it changes nothing for its owner.
    #[expect(unsafe_code, reason = "the launcher names the descriptor by number")]
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 0)
}
