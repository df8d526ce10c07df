//! The tables of names that programs link to (uct.h, v2/uct_v2.h). Their sizes are part of the
//! interface: a program may have a copy of them.

use std::ffi::{CStr, c_char};

/// A pointer to a constant string, or null at the end of a table.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Name(*const c_char);

// SAFETY: it points to a constant.
unsafe impl Sync for Name {}

const END: Name = Name(std::ptr::null());

const fn table<const N: usize>(names: &[&'static CStr]) -> [Name; N] {
    let mut table = [END; N];
    let mut at = 0;
    while at < names.len() {
        table[at] = Name(names[at].as_ptr());
        at += 1;
    }
    table
}

/// By `uct_device_type_t`.
#[unsafe(no_mangle)]
pub(crate) static uct_device_type_names: [Name; 4] =
    table(&[c"network", c"intra-node", c"accelerator", c"loopback"]);

/// By `uct_alloc_method_t`.
#[unsafe(no_mangle)]
pub(crate) static uct_alloc_method_names: [Name; 6] =
    table(&[c"thp", c"md", c"heap", c"mmap", c"huge"]);

/// By `uct_ep_operation_t`.
#[unsafe(no_mangle)]
pub(crate) static uct_ep_operation_names: [Name; 16] = table(&[
    c"am_short",
    c"am_bcopy",
    c"am_zcopy",
    c"put_short",
    c"put_bcopy",
    c"put_zcopy",
    c"get_short",
    c"get_bcopy",
    c"get_zcopy",
    c"eager_short",
    c"eager_bcopy",
    c"eager_zcopy",
    c"rndv_zcopy",
    c"atomic_post",
    c"atomic_fetch",
]);
