//! What these transports lack of the newer versions: endpoints and memory of devices, memory that
//! other processes export, lists of transfers, and operations that move to another endpoint. Every
//! function returns `UCS_ERR_UNSUPPORTED`, whatever its arguments.

use crate::status::{Status, UNSUPPORTED};

/// Functions without a use of their arguments, which the C calling convention lets them leave out.
macro_rules! exported {
    ($($name:ident)+) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> Status {
            UNSUPPORTED
        })+
    };
}

exported! {
    uct_md_mem_attach uct_md_mem_query_v2 uct_md_mem_elem_pack
    uct_ep_get_device_ep uct_ep_put_sgl_zcopy uct_ep_get_sgl_zcopy
    uct_ep_invalidate uct_ep_outstanding_purge
}

#[unsafe(no_mangle)]
extern "C" fn uct_md_mem_elem_release() {}
