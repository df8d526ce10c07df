//! Copies from and to addresses that a program gave. As with a kernel, a bad one is an error and not the program's end.

use crate::errno::Errno;

/// Bytes at `address`; EFAULT if they cannot be read.
///
/// # Safety
/// Where the kernel has no process_vm_readv(2), the bytes must be there.
pub(crate) unsafe fn read(address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `bytes` is live and exclusively borrowed; the kernel checks the other end.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    match check(copied, bytes.len()) {
        // SAFETY: the caller's promise.
        Err(Refused) => unsafe {
            std::ptr::copy_nonoverlapping(there.iov_base.cast::<u8>(), bytes.as_mut_ptr(), bytes.len());
            Ok(())
        },
        Ok(result) => result,
    }
}

/// Puts bytes to `address`; EFAULT if they cannot be written.
///
/// # Safety
/// No Rust reference may cover the bytes at `address`. Where the kernel has no process_vm_writev(2), there must be room.
pub(crate) unsafe fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `bytes` is live and only read; the kernel checks the other end.
    let copied =
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    match check(copied, bytes.len()) {
        // SAFETY: the caller's promise.
        Err(Refused) => unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), there.iov_base.cast::<u8>(), bytes.len());
            Ok(())
        },
        Ok(result) => result,
    }
}

/// The kernel does not let a process copy so.
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
        // SAFETY: live bytes, which nobody refers to, or an address that the kernel refuses.
        unsafe {
            assert_eq!(read(source.as_ptr() as u64, &mut bytes[..3]), Ok(()));
            assert_eq!(read(8, &mut bytes[3..]), Err(Errno::FAULT));
            assert_eq!(write(u64::MAX - 3, &source), Err(Errno::FAULT));
            assert_eq!(read(0, &mut []), Ok(()));
        }
        assert_eq!(bytes, [1, 2, 3, 7, 7, 7, 7, 7, 7]);
    }
}
