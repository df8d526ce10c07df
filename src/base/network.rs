//! The identity of this thread's network namespace, which addresses carry: a loopback address leads
//! nowhere else, and two namespaces may have the same private address.

use std::cell::OnceCell;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

use super::random;

/// Bytes of [`Network`].
pub(crate) const BYTES: usize = 6;

/// Identifies a network namespace of a running kernel.
pub(crate) type Network = [u8; BYTES];

/// Returns the namespace of this thread. A process without /proc cannot find out. It gets random
/// bytes, which differ from those of every other process.
pub(crate) fn network() -> Network {
    thread_local!(static NETWORK: OnceCell<Network> = const { OnceCell::new() });
    static UNKNOWN: LazyLock<Network> = LazyLock::new(|| truncated(random::number()));
    NETWORK.with(|network| *network.get_or_init(|| find().unwrap_or(*UNKNOWN)))
}

/// The namespaces of one kernel that exist have different inodes; kernels have different boot ids.
fn find() -> Option<Network> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = ["/proc/thread-self/ns/net", "/proc/self/ns/net"];
    let namespace = namespace.iter().find_map(|path| std::fs::metadata(path).ok())?;
    let identity = (boot, namespace.dev(), namespace.ino());
    Some(truncated(BuildHasherDefault::<DefaultHasher>::default().hash_one(identity)))
}

fn truncated(number: u64) -> Network {
    let [_, _, rest @ ..] = number.to_be_bytes();
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_namespace_agree() {
        let here = network();
        assert_eq!(std::thread::spawn(network).join().unwrap(), here);
        if std::path::Path::new("/proc/self/ns/net").exists() {
            assert_eq!(find(), Some(here));
        }
    }
}
