//! CPU affinity of the measuring processes.

use crate::args::CpuList;
use crate::error::{Error, local};
use std::io;

/// Restricts this process and its children to these CPUs.
pub(super) fn pin(cpus: &CpuList) -> Result<(), Error> {
    // SAFETY: all zeros is the empty set; CPU_SET gets numbers below CPU_SETSIZE, as checked by the
    // parser of the command line; sched_setaffinity(2) reads a set of the given size.
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
