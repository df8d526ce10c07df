//! Registered memory in processes that fork.

use std::fmt;
use std::io;

use crate::Error;
use crate::sys;

/// How registered memory is protected when the process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel copies registered pages for the child (Linux 5.12 and later). No action is
    /// needed.
    ByKernel,
    /// libibverbs excludes registered pages from the child; an access there raises SIGSEGV.
    ByLibrary,
    /// Not protected. Parent and child share registered pages until one of them writes; if the
    /// parent writes, it gets a new page while the device keeps using the old one, and data is lost
    /// silently. [`prepare_to_fork`] prevents this if it is called before the first registration.
    None,
}

impl fmt::Display for ForkSafety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByKernel => "the kernel copies registered memory on fork",
            Self::ByLibrary => "registered memory is not in a forked child",
            Self::None => "registered memory is lost when the process forks",
        })
    }
}

/// Returns how registered memory is protected at present.
pub fn fork_safety() -> ForkSafety {
    match sys::fork_status() {
        rdma_sys::IBV_FORK_UNNEEDED => ForkSafety::ByKernel,
        rdma_sys::IBV_FORK_ENABLED => ForkSafety::ByLibrary,
        _ => ForkSafety::None,
    }
}

/// Makes it safe to fork with registered memory. Unless the kernel copies registered pages, they
/// are excluded from child processes. A child still cannot use its parent's devices; it must open
/// them itself.
///
/// # Errors
/// If memory was registered already.
pub fn prepare_to_fork() -> Result<ForkSafety, Error> {
    let prepared = sys::fork_init();
    // libibverbs returns an error if memory is registered, even if the kernel needs no preparation.
    if fork_safety() == ForkSafety::ByKernel {
        return Ok(ForkSafety::ByKernel);
    }
    prepared.map_err(|source| {
        let hint = match source.kind() {
            io::ErrorKind::InvalidInput => "call this before the first memory is registered",
            _ => "the kernel must support MADV_DONTFORK (2.6.12 and later)",
        };
        Error::new("libibverbs", "prepare to fork", source).with_hint(hint.to_owned())
    })?;
    Ok(fork_safety())
}
