//! Memory that is paged in on access, and that the user may unmap at any time. The kernel copies
//! it, so that an access to unmapped memory is an error and does not end the process.

use std::ptr::NonNull;

/// Maximum bytes of one access that are paged in ahead; the data of packets is paged in as they
/// arrive.
const AHEAD: usize = 1 << 20;

/// Returns the size of the kernel's pages: 4, 16 or 64 KiB. The device's pages have 4 KiB.
pub fn host_page() -> usize {
    // SAFETY: no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // The kernel gives every process this number.
    usize::try_from(size).expect("a page size")
}

/// Returns the start and the length of the pages of `page` bytes that contain a range of memory.
/// None if they exceed the address space.
pub fn pages_around(start: usize, length: usize, page: usize) -> Option<(usize, usize)> {
    let first = start & !(page - 1);
    let end = start.checked_add(length)?.checked_next_multiple_of(page)?;
    Some((first, end - first))
}

/// Pages the memory in. Returns false if it is not mapped, or not for this access.
pub(super) fn bring_in(start: NonNull<u8>, length: usize, write: bool) -> bool {
    let pages = pages_around(start.addr().get(), length.min(AHEAD), host_page());
    let Some((first, length)) = pages else { return false };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: this advice changes no contents, whatever is mapped.
        if unsafe { libc::madvise(first as *mut libc::c_void, length, advice) } == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_pages_of_the_kernel() {
        for page in [0x1000, 0x4000, 0x1_0000] {
            let start = 0x12_3000;
            let (first, length) = pages_around(start, 0x2001, page).unwrap();
            assert!(first.is_multiple_of(page) && length.is_multiple_of(page), "{page:#x}");
            assert!((first..first + page).contains(&start));
            assert!(first + length >= start + 0x2001 && first + length - page < start + 0x2001);
            assert_eq!(pages_around(first, page, page), Some((first, page)));
        }
        assert_eq!(pages_around(usize::MAX - 10, 5, 0x1_0000), None);
        assert_eq!(pages_around(usize::MAX, 5, 0x1000), None);
        assert!(host_page().is_power_of_two() && host_page() >= 0x1000);
    }
}
