//! Files of sysfs that have values of a device of this process: each process has devices of its
//! own.

use std::ffi::CStr;
use std::fmt::Write;
use std::os::fd::RawFd;

use barewire_hca::COUNTER_FILES;

use crate::adapter::Adapter;
use crate::errno::Errno;
use crate::method::{is_up, lid};
use crate::{path, process};

/// A file in the folder of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// `node_guid`, `sys_image_guid`
    Guid,
    /// `ports/1/lid`
    Lid { port: u8 },
    /// `ports/1/state`
    State { port: u8 },
    /// `ports/1/phys_state`
    PhysicalState { port: u8 },
    /// `ports/1/gids/0`
    Gid { port: u8, index: u16 },
    /// `ports/1/hw_counters/out_of_sequence`; the index in [`COUNTER_FILES`]. Devices count for all
    /// their ports together.
    Counter { port: u8, index: usize },
}

impl Value {
    /// Returns the device and the value of a file in the tree.
    fn of(path: &CStr) -> Option<(usize, Self)> {
        let (device, file) = path::in_device(path)?;
        let mut parts = file.split('/');
        let value = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
            ("node_guid" | "sys_image_guid", None, ..) => Self::Guid,
            ("ports", Some(port), Some("lid"), None) => Self::Lid { port: port.parse().ok()? },
            ("ports", Some(port), Some("state"), None) => Self::State { port: port.parse().ok()? },
            ("ports", Some(port), Some("phys_state"), None) => {
                Self::PhysicalState { port: port.parse().ok()? }
            }
            ("ports", Some(port), Some("gids"), Some(index)) => {
                Self::Gid { port: port.parse().ok()?, index: index.parse().ok()? }
            }
            ("ports", Some(port), Some("counters" | "hw_counters"), Some(_)) => {
                let counter = file.splitn(3, '/').nth(2)?;
                let index = COUNTER_FILES.iter().position(|&(name, _)| name == counter)?;
                Self::Counter { port: port.parse().ok()?, index }
            }
            _ => return None,
        };
        Some((device, value))
    }

    /// Returns the text of the file, as the kernel writes it.
    fn text(self, adapter: &Adapter) -> Result<String, Errno> {
        Ok(match self {
            Self::Guid => groups(&adapter.guid()?),
            Self::Lid { port } => format!("{:#x}", lid(adapter, port)?),
            Self::State { port } if is_up(adapter, port)? => "4: ACTIVE".to_owned(),
            Self::State { .. } => "1: DOWN".to_owned(),
            Self::PhysicalState { port } if is_up(adapter, port)? => "5: LinkUp".to_owned(),
            Self::PhysicalState { .. } => "3: Disabled".to_owned(),
            Self::Gid { port, index } => {
                groups(&adapter.gid(port, index)?.map_or([0; 16], |gid| gid.gid))
            }
            Self::Counter { port, .. } if !(1..=adapter.ports).contains(&port) => {
                return Err(Errno::INVALID);
            }
            Self::Counter { index, .. } => {
                let (_, count) = COUNTER_FILES.get(index).ok_or(Errno::IO)?;
                count(&adapter.device.counters()).to_string()
            }
        })
    }
}

/// Returns groups of two bytes in hexadecimal, separated by colons.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(2) {
        let separator = if text.is_empty() { "" } else { ":" };
        let number = group.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let _ = write!(text, "{separator}{number:04x}");
    }
    text
}

/// Opens a file whose value is that of a device of this process. Returns `None` for other paths, and
/// if the device cannot be opened: the file in the tree then has zeros.
pub(crate) fn open(path: &CStr) -> Option<RawFd> {
    let (device, value) = Value::of(path)?;
    let process = process::get();
    if device >= process.devices() {
        return None;
    }
    let adapter = process.adapter_or_open(device).ok()?;
    let text = value.text(&adapter).ok()?;
    // SAFETY: the name ends with a zero; the text is valid for reads of its length.
    unsafe {
        let file = libc::memfd_create(c"sysfs".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return None;
        }
        let text = format!("{text}\n");
        let written = libc::pwrite(file, text.as_ptr().cast(), text.len(), 0);
        if written == text.len() as isize {
            return Some(file);
        }
        libc::syscall(libc::SYS_close, file);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_kernel_does() {
        assert_eq!(groups(&[0, 2, 0xc9, 3, 0, 0xa1, 0xb2, 0xc4]), "0002:c903:00a1:b2c4");
    }
}
