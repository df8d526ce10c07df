//! Hints on the cause of a refused registration, derived from the error and the state of the
//! process.

use std::io;
use std::ptr::NonNull;

use crate::fork::{ForkSafety, fork_safety};
use crate::memory::Access;
use crate::probe::Roots;
use crate::sys::OpenContext;

const EIO: i32 = 5;
const EBADF: i32 = 9;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const EPROTONOSUPPORT: i32 = 93;
const EOPNOTSUPP: i32 = 95;

/// The hint for a refused registration of memory.
pub(crate) fn registration(
    error: &io::Error,
    start: NonNull<u8>,
    address: u64,
    access: Access,
    context: &OpenContext,
) -> Option<String> {
    let errno = error.raw_os_error()?;
    let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.contains(Access::ON_DEMAND) && matches!(errno, EINVAL | EOPNOTSUPP) {
        let able =
            context.extended_attributes().is_ok_and(|found| found.odp_caps.general_caps & 1 != 0);
        if !able {
            return Some(
                "the device has no on-demand paging: register without ON_DEMAND".to_owned(),
            );
        }
    }
    Some(match errno {
        ENOMEM | EAGAIN => out_of_memory_here(),
        EFAULT => "part of the memory is not mapped, or it is read-only and the access flags include writes".to_owned(),
        EACCES => "the access flags include writes, but this process may only read the memory".to_owned(),
        EINVAL if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) => {
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE".to_owned()
        }
        EINVAL if access.contains(Access::HUGE_PAGES) => {
            "HUGE_PAGES requires that every page is a huge page (MAP_HUGETLB, and pages in /proc/sys/vm/nr_hugepages)".to_owned()
        }
        EINVAL if !(start.addr().get() as u64 ^ address)
            .is_multiple_of(rustix::param::page_size() as u64) => {
            format!("address {address:#x} must have the same offset within a page as the memory ({start:p})")
        }
        EINVAL => "if fork support and huge pages are used, set RDMAV_HUGEPAGES_SAFE=1 before the program starts".to_owned(),
        EOPNOTSUPP => "the device does not support all of these access flags".to_owned(),
        EIO => unusable(),
        _ => return None,
    })
}

/// Adds the hint to the error of a refused UMEM, if it is about memory that may not be locked.
pub(crate) fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(ENOMEM | EAGAIN) => {
            io::Error::new(error.kind(), format!("{error}; {}", out_of_memory_here()))
        }
        _ => error,
    }
}

/// The hint for a refused registration of a dma-buf.
pub(crate) fn dmabuf(error: &io::Error) -> Option<String> {
    Some(match error.raw_os_error()? {
        EOPNOTSUPP | EPROTONOSUPPORT => {
            "the device or the kernel (before 5.12) does not support dma-bufs".to_owned()
        }
        EBADF | EINVAL => {
            "the descriptor must be a dma-buf, and the range must be inside it".to_owned()
        }
        EIO => unusable(),
        _ => return None,
    })
}

/// The hint for memory that this process may not lock.
fn out_of_memory_here() -> String {
    out_of_memory(Roots::default().lockable(), fork_safety())
}

fn out_of_memory(lockable: Option<u64>, fork: ForkSafety) -> String {
    match (lockable, fork) {
        (Some(bytes), _) => format!(
            "this process may lock {} KiB of memory in all: raise RLIMIT_MEMLOCK (ulimit -l unlimited, memlock in \
             /etc/security/limits.conf, LimitMEMLOCK= of a service), or give it CAP_IPC_LOCK",
            bytes / 1024
        ),
        // madvise(MADV_DONTFORK), which libibverbs calls, fails with ENOMEM if a part is not
        // mapped.
        (None, ForkSafety::ByLibrary) => {
            "part of the memory is not mapped, or the kernel is out of memory".to_owned()
        }
        (None, _) => {
            "out of memory: the kernel's, the device's, or that of this process's control group"
                .to_owned()
        }
    }
}

fn unusable() -> String {
    "the device was reset or removed, or a parent of this process opened it: open the device in this process"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_locked_memory_is_named() {
        let hint = out_of_memory(Some(65536), ForkSafety::ByKernel);
        assert!(
            hint.starts_with("this process may lock 64 KiB") && hint.contains("ulimit -l"),
            "{hint}"
        );
        assert!(out_of_memory(None, ForkSafety::ByKernel).starts_with("out of memory"));
    }

    #[test]
    fn a_descriptor_that_is_no_dmabuf_is_named() {
        let hint = |errno| dmabuf(&io::Error::from_raw_os_error(errno));
        assert!(hint(EOPNOTSUPP).unwrap().contains("5.12"));
        assert!(hint(EBADF).unwrap().contains("must be a dma-buf"));
        assert!(hint(EACCES).is_none());
    }
}
