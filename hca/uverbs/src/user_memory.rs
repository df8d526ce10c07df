//! Copies from and to addresses supplied by the program. As in the kernel, an invalid address is an
//! error instead of a fault.

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
