//! The limit of locked memory, against which the kernel counts the pages that a process registers
//! (linux umem.c: `ib_umem_get`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::errno::Errno;
use crate::process;

/// Pages that count until this value is dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    pages: u64,
    count: Option<&'static AtomicU64>,
}

impl Pinned {
    /// Counts the pages of a range. Returns ENOMEM if the process would have more than
    /// RLIMIT_MEMLOCK allows, and EPERM if it may have none.
    pub(crate) fn new(start: u64, length: u64) -> Result<Self, Errno> {
        let Some(count) = process::get().pinned() else { return Ok(Self::none()) };
        let page = barewire_hca::host_page() as u64;
        let pages = start.saturating_add(length).div_ceil(page) - start / page;
        let limit = limit();
        if limit == 0 && !is_privileged() {
            return Err(Errno(libc::EPERM).because("RLIMIT_MEMLOCK is 0 (ulimit -l)"));
        }
        let before = count.fetch_add(pages, Ordering::Relaxed);
        // Uncounted by its drop.
        let pinned = Self { pages, count: Some(count) };
        if before.saturating_add(pages) > limit / page && !is_privileged() {
            return Err(Errno::NO_MEMORY.because(format_args!(
                "RLIMIT_MEMLOCK: {pages} pages more than {before} are over the limit of {} \
                 (ulimit -l {})",
                limit / page,
                limit / 1024,
            )));
        }
        Ok(pinned)
    }

    /// Counts nothing.
    pub(crate) fn none() -> Self {
        Self { pages: 0, count: None }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(count) = self.count {
            count.fetch_sub(self.pages, Ordering::Relaxed);
        }
    }
}

/// Returns the soft limit in bytes.
fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a structure that lives for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur
}

/// Returns whether the process has CAP_IPC_LOCK. In a user namespace of its own it may have that
/// here, but not for the kernel's check.
fn is_privileged() -> bool {
    /// `_LINUX_CAPABILITY_VERSION_3`
    const VERSION: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    /// `__user_cap_header_struct` of the calling thread.
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let mut header = Header { version: VERSION, pid: 0 };
    // Twice `__user_cap_data_struct`: effective, permitted, inheritable.
    let mut data = [[0_u32; 3]; 2];
    // SAFETY: both pointers are to structures of this version that live for the call.
    unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    data[0][0] >> CAP_IPC_LOCK & 1 != 0
}
