//! DEVX: PRM commands of the program (mlx5_user_ioctl_cmds.h: `MLX5_IB_OBJECT_DEVX...`).

use std::sync::Arc;

use barewire_layouts::command::cq::{Cqc, CreateCqIn};
use barewire_layouts::command::{CommandOpcode, CommandStatus};
use barewire_layouts::prm::View;

use crate::abi::access;
use crate::adapter::UserMemory;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::{self, Channel};
use crate::object::{Cq, DevxObject, Object, Qp, Srq, status};
use crate::trace;

use super::device::VECTORS;
use super::devx_command::{Use, allowed, object_number, opcode};

/// Size of the shortest input and output: a header and two dwords.
const SHORTEST: usize = 16;

/// Reads and executes a command if `may` accepts it for this method. The device refuses opcodes
/// that it does not know.
fn execute(
    context: &Context,
    call: &Attributes,
    [input, output]: [u16; 2],
    may: impl FnOnce(Option<Use>, &[u8]) -> Result<(), Errno>,
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    let command = call.bytes(input)?;
    let room = call.room(output);
    if command.len() < SHORTEST || room < SHORTEST {
        return Err(Errno::INVALID);
    }
    let used = match opcode(&command) {
        Some(opcode) => Some(allowed(opcode).ok_or(Errno::INVALID)?),
        None => None,
    };
    // Without DEVX a program may only query capabilities (linux devx.c: `devx_is_whitelist_cmd`).
    if !matches!(
        opcode(&command),
        Some(CommandOpcode::QueryHcaCap | CommandOpcode::QueryHcaVportContext)
    ) {
        context.needs_devx()?;
    }
    may(used, &command)?;
    let limited = context.adapter.device.requirements().no_devx_queue_pairs;
    let mut answer = vec![0; room];
    if limited && opcode(&command) == Some(CommandOpcode::CreateQp) {
        answer[0] = CommandStatus::LimitExceeded as u8;
    } else {
        answer = context.adapter.raw(&command, room);
    }
    trace::record(&command, &answer);
    Ok((command, answer))
}

/// Writes the output; a failure status is also the call's error.
fn give(call: &Attributes, output: u16, answer: &[u8]) -> Result<(), Errno> {
    call.put(output, answer)?;
    status(answer).map_err(|_| Errno::REMOTE)
}

/// `MLX5_IB_METHOD_DEVX_OTHER`: a general command.
pub(super) fn general(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const IN: u16 = 0x1000;
    const OUT: u16 = 0x1001;
    call.only(&[IN, OUT])?;
    let may = |used, _: &[u8]| {
        if matches!(used, None | Some(Use::General)) { Ok(()) } else { Err(Errno::INVALID) }
    };
    let (_, answer) = execute(context, call, [IN, OUT], may)?;
    give(call, OUT, &answer)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    const IN: u16 = 0x1001;
    const OUT: u16 = 0x1002;
    call.only(&[HANDLE, IN, OUT])?;
    let eqn = context.adapter.eqn;
    let may = |used, command: &[u8]| match used {
        // Like the kernel, find the event queue, which must know the completion queue.
        Some(Use::Create(CommandOpcode::DestroyCq)) if event_queue_of(command) != Some(eqn) => {
            Err(Errno::NO_ENTRY)
        }
        None | Some(Use::Create(_)) => Ok(()),
        _ => Err(Errno::INVALID),
    };
    let (command, answer) = execute(context, call, [IN, OUT], may)?;
    if status(&answer).is_err() {
        return give(call, OUT, &answer);
    }
    let made = opcode(&command).ok_or(Errno::IO)?;
    let Some(Use::Create(destroy)) = allowed(made) else { return Err(Errno::IO) };
    let number = object_number(destroy, &answer).ok_or(Errno::IO)?;
    let mut command = [0; SHORTEST];
    command[..2].copy_from_slice(&(destroy as u16).to_be_bytes());
    command[8..12].copy_from_slice(&answer[8..12]);
    let object = Object::Devx(DevxObject { made_by: made, number, destroy: command });
    context.state().objects.insert_given(&context.adapter, object, |handle| {
        give(call, OUT, &answer)?;
        call.put_handle(HANDLE, handle)
    })
}

/// Returns the event queue that CREATE_CQ names.
fn event_queue_of(command: &[u8]) -> Option<u32> {
    View::<CreateCqIn>::new(command)
        .map(|input| input.nested(CreateCqIn::CQ_CONTEXT).get(Cqc::C_EQN))
}

/// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY`: modifies an object, including those created by verbs.
pub(super) fn modify(context: &Context, call: &Attributes) -> Result<(), Errno> {
    access(context, call, |used| if let Use::Modify(made_by) = used { Some(made_by) } else { None })
}

/// `MLX5_IB_METHOD_DEVX_OBJ_QUERY`: queries an object.
pub(super) fn query(context: &Context, call: &Attributes) -> Result<(), Errno> {
    access(context, call, |used| if let Use::Query(made_by) = used { Some(made_by) } else { None })
}

fn access(
    context: &Context,
    call: &Attributes,
    about: fn(Use) -> Option<CommandOpcode>,
) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    const IN: u16 = 0x1001;
    const OUT: u16 = 0x1002;
    call.only(&[HANDLE, IN, OUT])?;
    let object = identity(context, call.handle(HANDLE)?)?;
    let may = |used: Option<Use>, command: &[u8]| {
        let made_by = used.and_then(about).ok_or(Errno::INVALID)?;
        let number = opcode(command).and_then(|opcode| object_number(opcode, command));
        if Some(object) == number.map(|number| (made_by, number)) {
            Ok(())
        } else {
            Err(Errno::INVALID)
        }
    };
    let (_, answer) = execute(context, call, [IN, OUT], may)?;
    give(call, OUT, &answer)
}

/// Returns the creating command and the number of an object that DEVX commands may name.
fn identity(context: &Context, handle: u32) -> Result<(CommandOpcode, u32), Errno> {
    let state = context.state();
    let objects = &state.objects;
    if let Ok(object) = objects.get::<DevxObject>(handle) {
        return Ok((object.made_by, object.number));
    }
    if let Ok(qp) = objects.get::<Box<Qp>>(handle) {
        return Ok((CommandOpcode::CreateQp, qp.number));
    }
    if let Ok(srq) = objects.get::<Srq>(handle) {
        return Ok((CommandOpcode::CreateSrq, srq.number));
    }
    objects.get::<Cq>(handle).map(|cq| (CommandOpcode::CreateCq, cq.number))
}

/// `MLX5_IB_METHOD_DEVX_QUERY_UAR`: returns the number of one of the program's UAR pages.
pub(super) fn uar(_: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0x1000, 0x1001])?;
    call.put_word(0x1001, call.word(0x1000)?)
}

/// `MLX5_IB_METHOD_DEVX_QUERY_EQN`.
pub(super) fn event_queue(context: &Context, call: &Attributes) -> Result<(), Errno> {
    call.only(&[0x1000, 0x1001])?;
    if call.word(0x1000)? >= VECTORS {
        return Err(Errno::INVALID);
    }
    call.put_word(0x1001, context.adapter.eqn)
}

/// `MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC`.
pub(super) fn events(context: &Context, call: &Attributes) -> Result<(), Errno> {
    /// `MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA`.
    const OMIT_DATA: u64 = 1;
    call.only(&[0x1000, 0x1001])?;
    let flags = call.optional_number(0x1001)?.unwrap_or(0);
    if flags & !OMIT_DATA != 0 {
        return Err(Errno::INVALID);
    }
    let channel = Arc::new(Channel::new(flags & OMIT_DATA != 0)?);
    channel.hand_over(|descriptor| call.put_handle(0x1000, descriptor))?;
    context.state().keep(&channel);
    Ok(())
}

/// `MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT`.
pub(super) fn subscribe(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const CHANNEL: u16 = 0x1000;
    const OBJECT: u16 = 0x1001;
    const TYPES: u16 = 0x1002;
    const COUNTER: u16 = 0x1003;
    const COOKIE: u16 = 0x1004;
    call.only(&[CHANNEL, OBJECT, TYPES, COUNTER, COOKIE])?;
    let descriptor = call.optional_descriptor(CHANNEL)?.ok_or(Errno::INVALID)?;
    let object = match call.optional_handle(OBJECT)? {
        Some(handle) => Some(identity(context, handle)?),
        None => None,
    };
    let types = call.bytes(TYPES)?;
    let types = types.chunks_exact(2).map(|number| u16::from_ne_bytes([number[0], number[1]]));
    if !types.clone().all(|number| event::is_valid(number, object.is_some())) {
        return Err(
            Errno::INVALID.because("the list of events: it has none that can be subscribed")
        );
    }
    let cookie = call.optional_number(COOKIE)?.unwrap_or(0);
    let counter = call.optional_number(COUNTER)?.map(|number| number as i32);
    let channel = Arc::clone(context.state().channel(descriptor)?);
    let mut events = context.adapter.events();
    for event_type in types {
        events.subscribe((event_type, object), cookie, Some(&channel), counter);
    }
    Ok(())
}

/// `MLX5_IB_METHOD_DEVX_UMEM_REG`.
pub(super) fn register(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    const ADDRESS: u16 = 0x1001;
    const LENGTH: u16 = 0x1002;
    const ACCESS: u16 = 0x1003;
    const ID: u16 = 0x1004;
    const PAGE_SIZES: u16 = 0x1005;
    const ALLOWED: u32 = access::LOCAL_WRITE
        | access::REMOTE_WRITE
        | access::REMOTE_READ
        | access::REMOTE_ATOMIC
        | access::RELAXED_ORDERING;
    const WRITES: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    call.only(&[HANDLE, ADDRESS, LENGTH, ACCESS, ID, PAGE_SIZES])?;
    context.needs_devx()?;
    let rights = call.optional_number(ACCESS)?.unwrap_or(0) as u32;
    if rights & !ALLOWED != 0 {
        return Err(Errno::INVALID);
    }
    let (start, length) = (call.number(ADDRESS)?, call.number(LENGTH)?);
    let memory = UserMemory::register(&context.adapter, start, length, rights & WRITES != 0)?;
    if context.adapter.device.requirements().large_pages() {
        let allowed = call.optional_number(PAGE_SIZES)?.unwrap_or(u64::MAX);
        context.adapter.device.set_umem_page(memory.id(), page_size(start, length, allowed));
    }
    let id = memory.id();
    context.state().objects.insert_given(&context.adapter, Object::Umem(memory), |handle| {
        call.put_word(ID, id)?;
        call.put_handle(HANDLE, handle)
    })
}

/// Returns the size of the pages of user memory on a host that translates DMA addresses, where the
/// pages of a registration are contiguous and aligned to their size (linux devx.c:
/// `devx_umem_find_best_pgsize`). `allowed` has a bit for each size that the program accepts.
fn page_size(start: u64, length: u64, allowed: u64) -> u64 {
    const SMALLEST: u64 = 4096;
    // Memory that starts inside a page keeps that offset in every page size.
    let fits = |size: &u64| {
        allowed & size != 0 && length.is_multiple_of(*size) && start.is_multiple_of(SMALLEST)
    };
    (12..48).rev().map(|log| 1 << log).find(fits).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_large_as_the_length_and_the_program_allow() {
        let all = !4095;
        assert_eq!(page_size(0x10_2000, 0x10_4000, all), 0x4000);
        assert_eq!(page_size(0x10_2000, 0x10_0000, all), 0x10_0000);
        assert_eq!(page_size(0x10_2000, 0x10_0000, 0x3000), 0x2000);
        assert_eq!(page_size(0x10_2000, 0x10_0008, all), 1);
        assert_eq!(page_size(0x10_2040, 0x10_0000, all), 1);
    }
}
