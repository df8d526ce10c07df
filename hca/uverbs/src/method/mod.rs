//! The methods of RDMA_VERBS_IOCTL: objects and methods by number (ib_user_ioctl_cmds.h,
//! mlx5_user_ioctl_cmds.h).

mod address;
#[cfg(test)]
mod any_call;
mod completion;
mod device;
mod device_memory;
mod devx;
mod devx_command;
mod legacy;
mod memory;
mod modify;
mod multicast;
mod query_qp;
mod queue_pair;
mod shared_receive;
mod target;
mod uar;

pub(crate) use device::{active_mtu, is_up, lid};
pub(crate) use legacy::COMMAND;

use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Object;

/// Objects.
mod id {
    pub(super) const DEVICE: u16 = 0;
    pub(super) const PD: u16 = 1;
    pub(super) const CQ: u16 = 3;
    pub(super) const QP: u16 = 4;
    pub(super) const SRQ: u16 = 5;
    pub(super) const AH: u16 = 6;
    pub(super) const MR: u16 = 7;
    pub(super) const MW: u16 = 8;
    pub(super) const XRCD: u16 = 10;
    pub(super) const DM: u16 = 14;
    pub(super) const ASYNC_EVENT: u16 = 16;
    pub(super) const DEVX: u16 = 0x1000;
    pub(super) const DEVX_OBJECT: u16 = 0x1001;
    pub(super) const DEVX_UMEM: u16 = 0x1002;
    pub(super) const DEVX_EVENTS: u16 = 0x1005;
    pub(super) const UAR: u16 = 0x1008;
}

/// Executes a call.
pub(crate) fn call(context: &Context, call: &Attributes) -> Result<(), Errno> {
    if !destroys(call) && context.adapter.device.is_unplugged() {
        return Err(Errno::NO_DEVICE);
    }
    match (call.object, call.method) {
        (id::DEVICE, 0) => legacy::invoke(context, call),
        (id::DEVICE, 1) => device::handles(context, call),
        (id::DEVICE, 2) => device::query_port(context, call),
        (id::DEVICE, 3) => device::get_context(context, call),
        (id::DEVICE, 4) => device::query_context(context, call),
        (id::DEVICE, 5) => device::gid_table(context, call),
        (id::DEVICE, 6) => device::gid_entry(context, call),
        (id::PD, 0) => destroy(context, call, crate::object::is_pd, None),
        (id::PD, 0x1000) => device::query_pd(context, call),
        (id::CQ, 0) => completion::create(context, call),
        (id::CQ, 1) => {
            destroy(context, call, |object| matches!(object, Object::Cq(_)), Some(Counts::Both))
        }
        (id::QP, 0) => queue_pair::create(context, call),
        (id::QP, 1) => destroy(
            context,
            call,
            |object| matches!(object, Object::Qp(_)),
            Some(Counts::Asynchronous),
        ),
        (id::SRQ, 0) => shared_receive::create(context, call),
        (id::SRQ, 1) => destroy(
            context,
            call,
            |object| matches!(object, Object::Srq(_)),
            Some(Counts::Asynchronous),
        ),
        (id::AH, 0) => destroy(context, call, |object| matches!(object, Object::Ah { .. }), None),
        (id::MR, 0) => device_memory::register(context, call),
        (id::MR, 1) => destroy(context, call, |object| matches!(object, Object::Mr(_)), None),
        (id::MW, 0) => destroy(context, call, |object| matches!(object, Object::Mw { .. }), None),
        (id::XRCD, 0) => destroy(context, call, |object| matches!(object, Object::Xrcd(_)), None),
        (id::MR, 2) => memory::advise(context, call),
        (id::MR, 3) => memory::query(context, call),
        (id::DM, 0) => device_memory::alloc(context, call),
        (id::DM, 1) => destroy(context, call, |object| matches!(object, Object::Dm(_)), None),
        (id::DM, 0x1001) => device_memory::query(context, call),
        (id::ASYNC_EVENT, 0) => device::asynchronous(context, call),
        (id::DEVX, 0x1000) => devx::general(context, call),
        (id::DEVX, 0x1001) => devx::uar(context, call),
        (id::DEVX, 0x1002) => devx::event_queue(context, call),
        (id::DEVX, 0x1003) => devx::subscribe(context, call),
        (id::DEVX_OBJECT, 0x1000) => devx::create(context, call),
        (id::DEVX_OBJECT, 0x1001) => {
            destroy_driver(context, call, |object| matches!(object, Object::Devx(_)))
        }
        (id::DEVX_OBJECT, 0x1002) => devx::modify(context, call),
        (id::DEVX_OBJECT, 0x1003) => devx::query(context, call),
        (id::DEVX_UMEM, 0x1000) => devx::register(context, call),
        (id::DEVX_UMEM, 0x1001) => {
            destroy_driver(context, call, |object| matches!(object, Object::Umem(_)))
        }
        (id::DEVX_EVENTS, 0x1000) => devx::events(context, call),
        (id::UAR, 0x1000) => uar::alloc(context, call),
        (id::UAR, 0x1001) => {
            destroy_driver(context, call, |object| matches!(object, Object::Uar(_)))
        }
        _ => Err(Errno::UNKNOWN.because("the software HCA does not have it")),
    }
}

/// Returns whether the method destroys an object, which works after the device was removed as well.
fn destroys(call: &Attributes) -> bool {
    matches!(
        (call.object, call.method),
        (id::PD | id::AH | id::MW | id::XRCD, 0)
            | (id::CQ | id::QP | id::SRQ | id::MR | id::DM, 1)
            | (id::DEVX_OBJECT | id::DEVX_UMEM | id::UAR, 0x1001)
    )
}

/// The event counts that destroying an object returns.
#[derive(Clone, Copy)]
enum Counts {
    Asynchronous,
    Both,
}

/// Methods that destroy an object: attribute 0 is its handle, attribute 1 the number of its events
/// that the program has read.
fn destroy(
    context: &Context,
    call: &Attributes,
    is: fn(&Object) -> bool,
    counts: Option<Counts>,
) -> Result<(), Errno> {
    call.only(&[0, 1])?;
    let [completions, events] =
        context.state().objects.destroy(&context.adapter, call.handle(0)?, is)?;
    match counts {
        None => Ok(()),
        Some(Counts::Asynchronous) => call.put_word(1, events),
        Some(Counts::Both) => {
            let [a, b] = [completions, events].map(u32::to_ne_bytes);
            call.put(1, &[a, b].concat())
        }
    }
}

/// The same for driver-specific objects.
fn destroy_driver(
    context: &Context,
    call: &Attributes,
    is: fn(&Object) -> bool,
) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    call.only(&[HANDLE])?;
    context.state().objects.destroy(&context.adapter, call.handle(HANDLE)?, is).map(drop)
}
