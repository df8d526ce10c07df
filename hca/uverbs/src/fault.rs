//! Faults that a program injects into the devices of its process.

use std::ffi::{c_int, c_uint};
use std::panic::catch_unwind;

use barewire_hca::Fault;

use crate::process;

/// Takes the links of all ports of device `number` down (0 for `mlx5_0`), or up again if `up` is not
/// 0. Packets in either direction are lost, and the program gets an asynchronous event for each port.
///
/// Returns 0, or the error number `ENODEV` if the process has not opened the device, or if the device
/// has stopped, as after a panic of its thread.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn barewire_hca_set_link(number: c_uint, up: c_int) -> c_int {
    let fault = if up == 0 { Fault::LinkDown } else { Fault::LinkUp };
    let set = || process::get().adapter(number as usize)?.device.inject(fault).then_some(0);
    // A panic must not enter C.
    catch_unwind(set).ok().flatten().unwrap_or(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_open_has_no_link() {
        assert_eq!(barewire_hca_set_link(7, 0), libc::ENODEV);
        assert_eq!(barewire_hca_set_link(c_uint::MAX, 1), libc::ENODEV);
    }
}
