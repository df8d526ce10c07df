//! What a provider offers beyond the first version of verbs.
//!
//! rdma-sys 0.3 has the header's inline functions too, but compares `abi_compat` with 2^32 - 1 where the header has the greatest address:
//! there every context looks like one of the first version.

use std::mem::offset_of;

use rdma_sys::{ibv_context, verbs_context};

/// The structure around a context (verbs.h: `verbs_get_ctx`), if it has the member at `offset`: members are added at its front.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn around(context: *mut ibv_context, offset: usize) -> Option<*mut verbs_context> {
    // SAFETY: open, so that its members can be read.
    if unsafe { (*context).abi_compat }.addr() != usize::MAX {
        return None;
    }
    // SAFETY: a context with this mark is the member of a structure that the library allocated as a whole.
    let around = unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // SAFETY: `sz` is at the end, which every version has.
    let size = unsafe { (*around).sz };
    (size >= size_of::<verbs_context>() - offset).then_some(around)
}

/// The operation `$name` of an open context, if its provider has it (verbs.h: `verbs_get_ctx_op`).
macro_rules! operation {
    ($context:expr, $name:ident) => {
        $crate::sys::extended::around($context, std::mem::offset_of!(rdma_sys::verbs_context, $name))
            .and_then(|around| (*around).$name)
    };
}
pub(super) use operation;
