//! DEVX: PRM commands of the program's own (mlx5_user_ioctl_cmds.h: `MLX5_IB_OBJECT_DEVX...`).

use std::sync::Arc;

use crate::abi::access;
use crate::adapter::UserMemory;
use crate::attributes::Attributes;
use crate::context::Context;
use crate::errno::Errno;
use crate::event::Channel;
use crate::object::{DevxObject, Object, opcode, status};

use super::device::VECTORS;

/// The shortest command and answer: a header and two dwords.
const SHORTEST: usize = 16;

/// Creating commands, and what destroys their objects. The number lies at the same place in answer and request.
const OBJECTS: [(u16, u16); 12] = [
    (0x200, 0x202), // MKEY
    (0x400, 0x401), // CQ
    (0x500, 0x501), // QP
    (0x700, 0x701), // SRQ
    (0x705, 0x706), // XRC_SRQ
    (0x710, 0x711), // DCT
    (0x717, 0x718), // XRQ
    (0x771, 0x772), // Q_COUNTER
    (0x800, 0x801), // PD
    (0x802, 0x803), // UAR
    (0x80e, 0x80f), // XRCD
    (0x90c, 0x90e), // RMP
];

/// Reads a command, carries it out and gives its answer back. The answer's status is an error of the call's, too.
fn execute(
    context: &Context,
    call: &Attributes,
    input: u16,
    output: u16,
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    let command = call.bytes(input)?;
    let room = call.room(output);
    if command.len() < SHORTEST || room < SHORTEST {
        return Err(Errno::INVALID);
    }
    let answer = context.adapter.raw(&command, room);
    call.put(output, &answer)?;
    status(&answer).map_err(|_| Errno::REMOTE)?;
    Ok((command, answer))
}

/// `MLX5_IB_METHOD_DEVX_OTHER`: a command that makes nothing.
pub(super) fn general(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const IN: u16 = 0x1000;
    const OUT: u16 = 0x1001;
    call.only(&[IN, OUT])?;
    if makes(&call.bytes(IN)?).is_some() {
        return Err(Errno::INVALID);
    }
    execute(context, call, IN, OUT).map(drop)
}

/// What destroys the object that a command makes, if it makes one.
fn makes(command: &[u8]) -> Option<u16> {
    let opcode = opcode(command)?;
    OBJECTS.iter().find(|(create, _)| *create == opcode).map(|&(_, destroy)| destroy)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`.
pub(super) fn create(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    const IN: u16 = 0x1001;
    const OUT: u16 = 0x1002;
    call.only(&[HANDLE, IN, OUT])?;
    let destroy = makes(&call.bytes(IN)?).ok_or(Errno::INVALID)?;
    let (_, answer) = execute(context, call, IN, OUT)?;
    let mut command = [0; SHORTEST];
    command[..2].copy_from_slice(&destroy.to_be_bytes());
    command[8..12].copy_from_slice(&answer[8..12]);
    let object = Object::Devx(DevxObject { destroy: command });
    call.put_handle(HANDLE, context.state().objects.insert(object))
}

/// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY` and `..._QUERY`: a command about an object. Queue pairs and queues of verbs are objects, too.
pub(super) fn access(context: &Context, call: &Attributes) -> Result<(), Errno> {
    const HANDLE: u16 = 0x1000;
    const IN: u16 = 0x1001;
    const OUT: u16 = 0x1002;
    call.only(&[HANDLE, IN, OUT])?;
    let number = object_number(context, call.handle(HANDLE)?)?;
    let command = call.bytes(IN)?;
    let meant = command.get(9..12).ok_or(Errno::INVALID)?;
    if meant != &number.to_be_bytes()[1..] || makes(&command).is_some() {
        return Err(Errno::INVALID);
    }
    execute(context, call, IN, OUT).map(drop)
}

/// The device's number of an object that DEVX commands may be about.
fn object_number(context: &Context, handle: u32) -> Result<u32, Errno> {
    let state = context.state();
    let objects = &state.objects;
    if let Ok(object) = objects.get::<DevxObject>(handle) {
        return Ok(object.number());
    }
    if let Ok(qp) = objects.get::<Box<crate::object::Qp>>(handle) {
        return Ok(qp.number);
    }
    if let Ok(srq) = objects.get::<crate::object::Srq>(handle) {
        return Ok(srq.number);
    }
    objects.get::<crate::object::Cq>(handle).map(|cq| cq.number)
}

/// `MLX5_IB_METHOD_DEVX_QUERY_UAR`: the device's number of a UAR page, which is the program's.
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
    context.state().keep(&channel);
    call.put_handle(0x1000, channel.descriptor() as u32)
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
        Some(handle) => Some(object_number(context, handle)?),
        None => None,
    };
    let types = call.bytes(TYPES)?;
    let cookie = call.optional_number(COOKIE)?.unwrap_or(0);
    let counter = call.optional_number(COUNTER)?.map(|number| number as i32);
    let channel = Arc::clone(context.state().channel(descriptor)?);
    let mut events = context.adapter.events();
    for event_type in types.chunks_exact(2) {
        let event_type = u16::from_ne_bytes([event_type[0], event_type[1]]);
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
    let rights = call.optional_number(ACCESS)?.unwrap_or(0) as u32;
    if rights & !ALLOWED != 0 {
        return Err(Errno::INVALID);
    }
    let (start, length) = (call.number(ADDRESS)?, call.number(LENGTH)?);
    let memory = UserMemory::register(&context.adapter, start, length, rights & WRITES != 0)?;
    call.put_word(ID, memory.id())?;
    call.put_handle(HANDLE, context.state().objects.insert(Object::Umem(memory)))
}
