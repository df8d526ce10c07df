//! The identity of this host, for transports between processes that share memory.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::ErrorKind;
use std::sync::OnceLock;

use crate::base::error::OpenError;

/// Identifies the running kernel. Processes with different numbers share no memory.
static HOST: OnceLock<u64> = OnceLock::new();

fn number_of(boot: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(boot)
}

/// Reads the value that [`host`] returns. A domain calls this on open: later, reading can fail for
/// lack of a file descriptor.
pub(crate) fn find_host(transport: &str) -> Result<(), OpenError> {
    if HOST.get().is_none() {
        let boot = match std::fs::read("/proc/sys/kernel/random/boot_id") {
            // Without /proc there is no boot id: all such hosts compare equal.
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|error| OpenError::Device {
                device: transport.to_owned(),
                step: "read the boot id of this machine",
                source: error.into(),
            })?,
        };
        HOST.get_or_init(|| number_of(&boot));
    }
    Ok(())
}

/// Identifies the running kernel, as read by [`find_host`].
pub(crate) fn host() -> u64 {
    HOST.get().copied().unwrap_or_else(|| number_of(&[]))
}
