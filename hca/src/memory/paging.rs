//! Memory that is paged in on access, and that the user may unmap at any time. The kernel copies
//! it, so that an access to unmapped memory is an error and does not end the process.

use std::ops::Range;
use std::ptr::NonNull;

use thiserror::Error;

use super::indirect::Part;
use super::{Access, Memory, Piece, Umem, User, Window};

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

/// Returns the addresses of the pages that contain a range of memory.
pub(super) fn pages_of(range: Range<usize>) -> Option<Range<usize>> {
    let (first, length) = pages_around(range.start, range.len(), host_page())?;
    Some(first..first + length)
}

/// Absent pages that work waits for: part of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsentPages {
    /// The registration.
    pub umem: u32,
    /// Offset of the first byte in it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The device is to write to them.
    pub write: bool,
}

/// Pages could not be brought in or taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PagingError {
    /// No registration has this number.
    #[error("there is no user memory {umem}")]
    Unknown {
        /// The given number.
        umem: u32,
    },
    /// The registration keeps its pages.
    #[error("user memory {umem} is not paged on demand")]
    NotOnDemand {
        /// The given number.
        umem: u32,
    },
    /// The range is not within the registration.
    #[error("{length} bytes at offset {offset:#x} are not inside user memory {umem}")]
    Bounds {
        /// The given number.
        umem: u32,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// The pages are for writing, but the registration is not.
    #[error("user memory {umem} is not writable")]
    ReadOnly {
        /// The given number.
        umem: u32,
    },
    /// The process has no memory there, or does not allow the access.
    #[error("no memory is mapped in {length} bytes at {start:#x}, or not for this access")]
    Unmapped {
        /// Address of the first byte.
        start: usize,
        /// Bytes.
        length: usize,
    },
    /// The device's engine panicked; its message is on standard error.
    #[error("the device stopped after a panic in its engine; its message is on standard error")]
    Stopped,
}

impl Memory {
    /// Brings in pages of memory that is paged on demand.
    pub(crate) fn page_in(&mut self, pages: AbsentPages) -> Result<(), PagingError> {
        let (umem, window, range) = self.pages(pages)?;
        if pages.write && !umem.access.writable() {
            return Err(PagingError::ReadOnly { umem: pages.umem });
        }
        let Range { start, end } = window.addresses();
        if !window.page_in(pages.write) {
            return Err(PagingError::Unmapped { start, length: end - start });
        }
        umem.presence.add(range, pages.write);
        Ok(())
    }

    /// Takes pages away from the device.
    pub(crate) fn page_out(&mut self, pages: AbsentPages) -> Result<(), PagingError> {
        let (umem, _, range) = self.pages(pages)?;
        umem.presence.remove(range);
        Ok(())
    }

    /// Returns a registration with part of it, and the addresses of the pages of that part.
    fn pages(
        &mut self,
        AbsentPages { umem: id, offset, length, .. }: AbsentPages,
    ) -> Result<(&mut Umem, Window, Range<usize>), PagingError> {
        let umem = self.umems.get_mut(id).ok_or(PagingError::Unknown { umem: id })?;
        let outside = PagingError::Bounds { umem: id, offset, length };
        let window = umem.window(offset, length).ok_or(outside)?;
        if !window.is_on_demand() {
            return Err(PagingError::NotOnDemand { umem: id });
        }
        let pages = pages_of(window.addresses()).ok_or(outside)?;
        Ok((umem, window, pages))
    }

    /// Returns the absent pages of an access to ranges of keys, as far as one fault reports them.
    /// If none is known to be absent, the kernel took some without a notice, and so all are.
    pub(crate) fn absent(&mut self, user: User, ranges: &[Part], need: Access) -> Vec<AbsentPages> {
        let write = need.intersects(Access::WRITES);
        let mut pieces = Vec::new();
        for range in ranges {
            let part = Part { length: range.length.min(AHEAD as u64), ..*range };
            // An error behind absent pages is found when they are present.
            let _ = self.walk(0, part, (user, need), &mut |piece| {
                pieces.push(piece);
                Ok(())
            });
        }
        let mut absent = Vec::new();
        for unknown in [false, true] {
            for &Piece { umem: id, start, offset, length, .. } in &pieces {
                let Some(umem) = self.umems.get_mut(id) else { continue };
                let window = umem.window(start.wrapping_add(offset), length);
                let Some(window) = window.filter(|window| window.is_on_demand()) else { continue };
                let Some(pages) = pages_of(window.addresses()) else { continue };
                if unknown {
                    umem.presence.remove(pages.clone());
                }
                let whole = umem.whole().addresses();
                absent.extend(umem.presence.missing(pages, write).into_iter().map(|missing| {
                    let start = missing.start.max(whole.start);
                    let length = (missing.end.min(whole.end) - start) as u64;
                    let offset = (start - whole.start) as u64;
                    AbsentPages { umem: id, offset, length, write }
                }));
            }
            if !absent.is_empty() {
                break;
            }
        }
        absent
    }
}

/// Pages the start of the memory in. Returns false if it is not mapped, or not for this access.
pub(super) fn bring_in(start: NonNull<u8>, length: usize, write: bool) -> bool {
    populate(start, length.min(AHEAD), write)
}

/// Pages the memory in. Returns false if it is not mapped, or not for this access.
pub(super) fn populate(start: NonNull<u8>, length: usize, write: bool) -> bool {
    let pages = pages_around(start.addr().get(), length, host_page());
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
