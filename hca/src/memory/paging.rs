//! Memory that is brought in when it is accessed, and may be gone by then: whoever registered it may unmap it at any time. The kernel copies
//! such memory, so that what is gone is an error and not the process's end.

use std::ptr::NonNull;

/// The most bytes that one access brings in ahead: packets bring in what they carry.
const AHEAD: usize = 1 << 20;
/// Pages are of this size, or of a multiple.
const PAGE: usize = 4096;

/// Brings the memory in, as a page fault would. False if it is not there, or not for this use.
pub(super) fn bring_in(start: NonNull<u8>, length: usize, write: bool) -> bool {
    let first = start.addr().get() & !(PAGE - 1);
    let end = start.addr().get().saturating_add(length.min(AHEAD));
    let Some(end) = end.checked_next_multiple_of(PAGE) else { return false };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: this advice changes no content of memory, whatever is there.
        if unsafe { libc::madvise(first as *mut libc::c_void, end - first, advice) } == 0 {
            return true;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Before Linux 5.14: whether it is there shows when it is copied.
            Some(libc::EINVAL) => return true,
            _ => return false,
        }
    }
}

/// Copies from memory that may be gone; zeros where it is.
pub(super) fn read(start: NonNull<u8>, bytes: &mut [u8]) {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `bytes` is exclusively borrowed; the kernel checks the other end.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    let copied = usize::try_from(copied).unwrap_or(0).min(bytes.len());
    bytes[copied..].fill(0);
}

/// Copies to memory that may be gone. What is not there any more takes nothing.
pub(super) fn write(start: NonNull<u8>, bytes: &[u8]) {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `bytes` is only read; the kernel checks the other end.
    unsafe { libc::process_vm_writev(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
}
