//! Copies from and to addresses supplied by the program. As in the kernel, an invalid address is an
//! error instead of a fault.

use barewire_hca::Mapping;

use crate::errno::Errno;

/// Reads bytes at `address`; returns EFAULT if they are not readable.
///
/// # Safety
/// Without process_vm_readv(2), the bytes must be readable.
pub(crate) unsafe fn read(address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there =
        libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `bytes` is live and exclusively borrowed; the kernel checks the other end.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
    };
    match check(copied, bytes.len()) {
        // SAFETY: the caller's contract is the same.
        Err(Refused) => unsafe {
            std::ptr::copy_nonoverlapping(
                there.iov_base.cast::<u8>(),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
            Ok(())
        },
        Ok(result) => result,
    }
}

/// Writes bytes to `address`; returns EFAULT if they are not writable.
///
/// # Safety
/// No Rust reference covers the bytes at `address`. Without process_vm_writev(2), they must be
/// writable.
pub(crate) unsafe fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there =
        libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `bytes` is live and only read; the kernel checks the other end.
    let copied = unsafe {
        libc::process_vm_writev(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
    };
    match check(copied, bytes.len()) {
        // SAFETY: the caller's contract is the same.
        Err(Refused) => unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), there.iov_base.cast::<u8>(), bytes.len());
            Ok(())
        },
        Ok(result) => result,
    }
}

/// Faults in the pages of a range for reading, or for writing if `writable` is set, as pinning
/// would; returns EFAULT if the program may not access all of them so.
pub(crate) fn populate(start: usize, length: usize, writable: bool) -> Result<(), Errno> {
    let pages = barewire_hca::pages_around(start, length, barewire_hca::host_page());
    let (first, length) = pages.ok_or(Errno::INVALID)?;
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let advise = |length| {
        // SAFETY: this advice does not change the memory's contents.
        let result = unsafe { libc::madvise(first as *mut libc::c_void, length, advice) };
        if result == 0 { Ok(()) } else { Err(Errno::last()) }
    };
    match advise(length) {
        // The kernel predates this advice (Linux 5.14), or the pages do not have these rights
        // (madvise(2)).
        Err(Errno::INVALID) if advise(0).is_err() => check_rights(first, length, writable),
        Err(Errno::INVALID | Errno::NO_MEMORY | Errno(libc::EFAULT | libc::EHWPOISON)) => {
            Err(Errno::FAULT)
        }
        result => result,
    }
}

/// Returns EFAULT unless all of a range is mapped for reading, or for writing if `writable` is set.
/// Nothing is checked without /proc.
fn check_rights(start: usize, length: usize, writable: bool) -> Result<(), Errno> {
    let end = start.saturating_add(length);
    let Ok(mappings) = Mapping::over(start..end) else { return Ok(()) };
    let mut next = start;
    for Mapping { addresses, rights, .. } in mappings {
        if addresses.start > next || !rights.contains(if writable { &b'w' } else { &b'r' }) {
            break;
        }
        next = addresses.end;
        if next >= end {
            return Ok(());
        }
    }
    Err(Errno::FAULT)
}

/// The kernel does not permit process_vm_readv(2) or process_vm_writev(2).
struct Refused;

fn check(copied: isize, wanted: usize) -> Result<Result<(), Errno>, Refused> {
    if copied == wanted as isize {
        return Ok(Ok(()));
    }
    match Errno::last() {
        Errno(libc::ENOSYS | libc::EPERM) if copied < 0 => Err(Refused),
        _ => Ok(Err(Errno::FAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks both ways: kernels that know the advice, and older ones.
    #[test]
    fn rights_of_every_page_of_a_range_count() {
        const RIGHTS: [i32; 5] = [
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ,
            libc::PROT_WRITE,
            libc::PROT_NONE,
        ];
        let page = barewire_hca::host_page();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = RIGHTS.len() + 1;
        // SAFETY: new pages, at an address that the kernel chooses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), pages * page, RIGHTS[0], flags, -1, 0) };
        for (at, rights) in RIGHTS.into_iter().enumerate() {
            // SAFETY: pages of the mapping above, which nothing else uses.
            unsafe { assert_eq!(libc::mprotect(start.byte_add(at * page), page, rights), 0) };
        }
        // SAFETY: as above.
        unsafe { assert_eq!(libc::munmap(start.byte_add(RIGHTS.len() * page), page), 0) };
        for (at, count, writable, permitted) in [
            (0, 2, true, true),
            (0, 3, false, true),
            (0, 3, true, false),
            (2, 1, false, true),
            (2, 1, true, false),
            (2, 2, false, false),
            (3, 1, true, true),
            (3, 1, false, false),
            (4, 1, false, false),
            // Nothing is mapped at the end.
            (5, 1, false, false),
            (5, 1, true, false),
        ] {
            let (start, length) = (start.addr() + at * page + 1, count * page - 1);
            let expected = if permitted { Ok(()) } else { Err(Errno::FAULT) };
            for check in [populate, check_rights] {
                assert_eq!(check(start, length, writable), expected, "{at} {count} {writable}");
            }
        }
        // SAFETY: the rest of the mapping.
        unsafe { libc::munmap(start, RIGHTS.len() * page) };
    }

    #[test]
    fn a_bad_address_is_an_error() {
        let mut bytes = [7_u8; 9];
        let source = [1_u8, 2, 3];
        // SAFETY: the bytes are live and not borrowed, or the kernel refuses the address.
        unsafe {
            assert_eq!(read(source.as_ptr() as u64, &mut bytes[..3]), Ok(()));
            assert_eq!(read(8, &mut bytes[3..]), Err(Errno::FAULT));
            assert_eq!(write(u64::MAX - 3, &source), Err(Errno::FAULT));
            assert_eq!(read(0, &mut []), Ok(()));
        }
        assert_eq!(bytes, [1, 2, 3, 7, 7, 7, 7, 7, 7]);
    }
}
