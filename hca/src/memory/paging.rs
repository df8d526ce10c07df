//! Memory that is paged in on access, and that the user may unmap at any time. The kernel copies
//! it, so that an access to unmapped memory is an error and does not end the process.

use std::ptr::NonNull;

/// Maximum bytes of one access that are paged in ahead; the data of packets is paged in as they
/// arrive.
const AHEAD: usize = 1 << 20;
/// The page size, or a divisor of it.
const PAGE: usize = 4096;

/// Pages the memory in. Returns false if it is not mapped, or not for this access.
pub(super) fn bring_in(start: NonNull<u8>, length: usize, write: bool) -> bool {
    let first = start.addr().get() & !(PAGE - 1);
    let end = start.addr().get().saturating_add(length.min(AHEAD));
    let Some(end) = end.checked_next_multiple_of(PAGE) else { return false };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: this advice changes no contents, whatever is mapped.
        if unsafe { libc::madvise(first as *mut libc::c_void, end - first, advice) } == 0 {
            return true;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Before Linux 5.14: the copy finds out.
            Some(libc::EINVAL) => return true,
            _ => return false,
        }
    }
}

/// Copies from memory that may be unmapped; zeros where it is.
pub(super) fn read(start: NonNull<u8>, bytes: &mut [u8]) {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `bytes` is borrowed exclusively; the kernel checks the other address.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
    };
    let copied = usize::try_from(copied).unwrap_or(0).min(bytes.len());
    bytes[copied..].fill(0);
}

/// Copies to memory that may be unmapped. Bytes for unmapped memory are lost.
pub(super) fn write(start: NonNull<u8>, bytes: &[u8]) {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `bytes` is only read; the kernel checks the other address.
    unsafe { libc::process_vm_writev(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
}
