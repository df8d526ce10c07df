//! Processes that fork.

use std::fmt;
use std::io;

use crate::Error;
use crate::sys;

/// What happens to registered memory when the process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel copies registered pages for the child (5.12 and later). Nothing needs to be done.
    ByKernel,
    /// libibverbs keeps registered pages from the child: whoever touches them there dies.
    ByLibrary,
    /// None. Parent and child share registered pages until one writes: the one that wrote then has another page than the device, and
    /// data is lost without a word. [`prepare_to_fork`] helps, if it comes before the first registration.
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

/// What happens to registered memory when the process forks, as it is now.
pub fn fork_safety() -> ForkSafety {
    match sys::fork_status() {
        rdma_sys::IBV_FORK_UNNEEDED => ForkSafety::ByKernel,
        rdma_sys::IBV_FORK_ENABLED => ForkSafety::ByLibrary,
        _ => ForkSafety::None,
    }
}

/// Makes registered memory safe in a process that will fork. Every page of it is then taken from children, unless the kernel copies. A child
/// still cannot use its parent's devices: it opens them anew.
///
/// # Errors
/// If memory was registered before.
pub fn prepare_to_fork() -> Result<ForkSafety, Error> {
    let prepared = sys::fork_init();
    // It refuses when memory is registered, needed or not.
    if fork_safety() == ForkSafety::ByKernel {
        return Ok(ForkSafety::ByKernel);
    }
    prepared.map_err(|source| {
        let hint = match source.kind() {
            io::ErrorKind::InvalidInput => "call this before the first memory is registered",
            _ => "the kernel must know MADV_DONTFORK (2.6.12 and later)",
        };
        Error::new("libibverbs", "prepare to fork", source).with_hint(hint.to_owned())
    })?;
    Ok(fork_safety())
}
