//! UAR pages as objects (mlx5_user_ioctl_cmds.h: `MLX5_IB_OBJECT_UAR`).

use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Object, Uar, offset_of};

const HANDLE: u16 = 0x1000;
const TYPE: u16 = 0x1001;
const OFFSET: u16 = 0x1002;
const LENGTH: u16 = 0x1003;
const PAGE: u16 = 0x1004;
/// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC`, the other of the two types.
const NOT_CACHED: u64 = 1;

/// `MLX5_IB_METHOD_UAR_OBJ_ALLOC`. Both types are the same memory here.
pub(super) fn alloc(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[HANDLE, TYPE, OFFSET, LENGTH, PAGE])?;
    let kind = call.number(TYPE)?;
    if kind > NOT_CACHED {
        return Err(Errno::INVALID);
    }
    if kind != NOT_CACHED && context.adapter.device.requirements().no_write_combining {
        return Err(Errno::UNSUPPORTED);
    }
    let (index, page) = context.adapter.take_uar()?;
    let uar = Object::Uar(Uar { index, page });
    context.state().objects.insert_given(&context.adapter, uar, |handle| {
        call.put(OFFSET, &offset_of(index).to_ne_bytes())?;
        call.put_word(LENGTH, barewire_hca::host_page() as u32)?;
        call.put_word(PAGE, index)?;
        call.put_handle(HANDLE, handle)
    })
}
