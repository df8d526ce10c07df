//! The identity of this thread's network namespace, which addresses carry: a loopback address leads
//! nowhere else, and two namespaces may have the same private address.

use std::cell::OnceCell;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

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

/// Kernels have different boot ids, and the namespaces of a kernel different cookies; before Linux
/// 5.14, those that exist have different inodes.
fn find() -> Option<Network> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = cookie().map(|cookie| (0, cookie)).or_else(inode)?;
    Some(truncated(BuildHasherDefault::<DefaultHasher>::default().hash_one((boot, namespace))))
}

/// Needs no /proc: that of a process in a PID namespace of its own may be of another namespace, and
/// have no entry for the process.
fn cookie() -> Option<u64> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the descriptor is open during the call. The kernel writes at most `length` bytes to
    // `cookie`, which has as many, and the number of bytes to `length`; both are borrowed mutably
    // during the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(cookie)
}

fn inode() -> Option<(u64, u64)> {
    let namespace = ["/proc/thread-self/ns/net", "/proc/self/ns/net"];
    let namespace = namespace.iter().find_map(|path| std::fs::metadata(path).ok())?;
    Some((namespace.dev(), namespace.ino()))
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
