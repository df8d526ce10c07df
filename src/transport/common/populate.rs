//! Bringing in pages of memory before they are accessed.

use std::io;

use barewire_shared_bytes::SharedBytes;

/// Makes the pages of `length` bytes at `offset` resident, for writes if `write`. Their contents
/// stay as they are. Kernels before 5.14 cannot, and then nothing happens.
///
/// # Errors
/// The error of madvise(2).
///
/// # Safety
/// The memory is alive and contains the range, of at least one byte.
pub(crate) unsafe fn populate(
    bytes: &SharedBytes,
    offset: usize,
    length: usize,
    write: bool,
) -> io::Result<()> {
    let start = bytes.start().as_ptr().wrapping_add(offset);
    let in_page = start.addr() % rustix::param::page_size();
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the range is mapped, up to the start of its first page (contract of this function).
    // The advice changes neither mappings nor contents.
    let result =
        unsafe { libc::madvise(start.wrapping_sub(in_page).cast(), length + in_page, advice) };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        error => Err(error),
    }
}
