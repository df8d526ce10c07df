//! Which CPUs the measuring processes run on.

use crate::args::CpuList;
use crate::error::{Error, local};
use std::io;

/// Runs this process, and those that it starts, on these CPUs only.
pub(super) fn pin(cpus: &CpuList) -> Result<(), Error> {
    // SAFETY: all zeros is the empty set; CPU_SET gets numbers below CPU_SETSIZE, which the command line's
    // parser saw to; sched_setaffinity(2) reads the set of the size given.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in &cpus.0 {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 {
        return Ok(());
    }
    let list: Vec<String> = cpus.0.iter().map(ToString::to_string).collect();
    Err(local(format!("cannot run on CPU {}", list.join(",")), &io::Error::last_os_error()))
}
