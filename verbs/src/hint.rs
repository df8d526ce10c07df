//! What to look at when the system refuses, from the error and what this process is.

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
const PAGE: u64 = 4096;

/// After a refused registration.
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
        let able = context.extended_attributes().is_ok_and(|found| found.odp_caps.general_caps & 1 != 0);
        if !able {
            return Some("the device has no on-demand paging: register without ON_DEMAND".to_owned());
        }
    }
    Some(match errno {
        ENOMEM | EAGAIN => short(Roots::default().lockable(), fork_safety()),
        EFAULT => "part of it is not mapped, or not for writing while the device is to write".to_owned(),
        EACCES => "the device is to write to memory that this process may only read".to_owned(),
        EINVAL if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) => {
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE".to_owned()
        }
        EINVAL if access.contains(Access::HUGE_PAGES) => {
            "HUGE_PAGES needs every page of it to be a huge one (MAP_HUGETLB, and pages in /proc/sys/vm/nr_hugepages)".to_owned()
        }
        EINVAL if !(start.addr().get() as u64 ^ address).is_multiple_of(PAGE) => {
            format!("address {address:#x} must lie as far into a page as the memory does ({start:p})")
        }
        EINVAL => "with fork support and huge pages, set RDMAV_HUGEPAGES_SAFE=1 before the start".to_owned(),
        EOPNOTSUPP => "the device does not have all of these rights".to_owned(),
        EIO => gone(),
        _ => return None,
    })
}

/// After a refused registration of a dma-buf.
pub(crate) fn dmabuf(error: &io::Error) -> Option<String> {
    Some(match error.raw_os_error()? {
        EOPNOTSUPP | EPROTONOSUPPORT => {
            "the device or the kernel (before 5.12) does not take dma-bufs".to_owned()
        }
        EBADF | EINVAL => "the descriptor must be a dma-buf, and the range inside of it".to_owned(),
        EIO => gone(),
        _ => return None,
    })
}

fn short(lockable: Option<u64>, fork: ForkSafety) -> String {
    match (lockable, fork) {
        (Some(bytes), _) => format!(
            "this process may lock {} KiB of memory in all: raise RLIMIT_MEMLOCK (ulimit -l unlimited, memlock in \
             /etc/security/limits.conf, LimitMEMLOCK= of a service), or give it CAP_IPC_LOCK",
            bytes / 1024
        ),
        // Telling the kernel what a forked child is not to have fails so.
        (None, ForkSafety::ByLibrary) => {
            "part of it is not mapped, or the kernel is short of memory".to_owned()
        }
        (None, _) => {
            "memory is short: the kernel's, the device's, or this process's control group's".to_owned()
        }
    }
}

fn gone() -> String {
    "the device was reset or removed, or this process is a fork of the one that opened it: open it again"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_locked_memory_is_named() {
        let hint = short(Some(65536), ForkSafety::ByKernel);
        assert!(hint.starts_with("this process may lock 64 KiB") && hint.contains("ulimit -l"), "{hint}");
        assert!(short(None, ForkSafety::ByKernel).starts_with("memory is short"));
    }

    #[test]
    fn a_descriptor_that_is_no_dmabuf_is_named() {
        let hint = |errno| dmabuf(&io::Error::from_raw_os_error(errno));
        assert!(hint(EOPNOTSUPP).unwrap().contains("5.12"));
        assert!(hint(EBADF).unwrap().contains("must be a dma-buf"));
        assert!(hint(EACCES).is_none());
    }
}
