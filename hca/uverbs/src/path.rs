//! Paths that this library redirects: device files and their directory, and the sysfs tree of the
//! devices.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

use crate::config::SYSFS_VARIABLE;

/// The directory of device files.
const FOLDER: &[u8] = b"/dev/infiniband";
/// Path of device files, without the number.
const DEVICE: &[u8] = b"/dev/infiniband/uverbs";
/// The file of the connection manager.
const CONNECTIONS: &CStr = c"/dev/infiniband/rdma_cm";
/// Directories of `/sys` that are redirected to the tree.
const CLASSES: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_cma",
    b"/sys/class/misc/rdma_cm",
];
/// PCI devices; only those in the tree are redirected.
const BUS: &[u8] = b"/sys/bus/pci/devices/";

/// Returns the number of the device file at `path`.
pub(crate) fn device(path: &CStr) -> Option<usize> {
    let number = path.to_bytes().strip_prefix(DEVICE)?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Returns whether `path` is the file of the connection manager.
pub(crate) fn is_connections(path: &CStr) -> bool {
    path == CONNECTIONS
}

/// Returns the path in the tree that replaces `path`, if it is redirected: in sysfs, or the
/// directory of device files.
pub(crate) fn in_tree(path: &CStr) -> Option<CString> {
    let path = path.to_bytes();
    if path.strip_prefix(FOLDER).is_some_and(|rest| rest.iter().all(|&byte| byte == b'/')) {
        return CString::new([root()?.as_bytes(), FOLDER].concat()).ok();
    }
    if !path.starts_with(b"/sys/") {
        return None;
    }
    let root = root()?;
    let within = |prefix: &[u8]| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    let rest = path.strip_prefix(b"/sys")?;
    let ours = CLASSES.iter().any(|class| within(class))
        || path.strip_prefix(BUS).is_some_and(|device| {
            let end = device.iter().position(|&byte| byte == b'/').unwrap_or(device.len());
            let mut place = root.as_bytes().to_vec();
            place.extend(b"/bus/pci/devices/");
            place.extend(&device[..end]);
            end > 0 && std::path::Path::new(std::ffi::OsStr::from_bytes(&place)).exists()
        });
    if !ours {
        return None;
    }
    let mut place = root.as_bytes().to_vec();
    place.extend(rest);
    CString::new(place).ok()
}

/// Returns the number of a device and the path of a file in its folder, if `path` is a file in the
/// tree of an RDMA device.
pub(crate) fn in_device(path: &CStr) -> Option<(usize, &str)> {
    const FOLDER: &str = "/infiniband/mlx5_";
    let rest = std::str::from_utf8(path.to_bytes().strip_prefix(root()?.as_bytes())?).ok()?;
    // The folder of a class or of a PCI function.
    let (_, rest) = rest.rsplit_once(FOLDER)?;
    let (number, file) = rest.split_once('/')?;
    Some((number.parse().ok()?, file))
}

/// Returns the tree's root without a trailing slash.
fn root() -> Option<&'static OsString> {
    static ROOT: OnceLock<Option<OsString>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let mut root = std::env::var_os(SYSFS_VARIABLE)?.into_vec();
        while root.last() == Some(&b'/') {
            root.pop();
        }
        (!root.is_empty() && root != b"/sys").then(|| OsString::from_vec(root))
    })
    .as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_by_number() {
        for (path, number) in [
            (c"/dev/infiniband/uverbs0", Some(0)),
            (c"/dev/infiniband/uverbs12", Some(12)),
            (c"/dev/infiniband/uverbs", None),
            (c"/dev/infiniband/uverbs0/x", None),
            (c"/dev/infiniband/rdma_cm", None),
            (c"", None),
        ] {
            assert_eq!(device(path), number, "{path:?}");
        }
    }
}
