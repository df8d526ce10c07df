//! Comms: how they are made and closed, and the registration of memory.

use core::ffi::c_int;
use core::ptr;

use super::{free, null, object, run, store};
use crate::abi::{Any, Code, CommConfig, DeviceHandle, HANDLE_BYTES, HOST, INVALID_ARGUMENT, Out};
use crate::comm::{Failed, Listening, Memory, connect as connect_comm};
use crate::data::Comm;
use crate::devices;

pub(super) unsafe extern "C" fn listen(device: c_int, handle: Any, listening: Out) -> Code {
    run("listen", || {
        if handle.is_null() {
            return null();
        }
        let (comm, bytes) = Listening::new(devices::get(device)?)?;
        // SAFETY: NCCL's handles have 128 bytes.
        unsafe { handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(bytes) };
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(listening, Box::into_raw(Box::new(comm)).cast()) }
    })
}

pub(super) unsafe extern "C" fn listen11(
    _: Any,
    device: c_int,
    handle: Any,
    listening: Out,
) -> Code {
    // SAFETY: NCCL passes what `listen` takes.
    unsafe { listen(device, handle, listening) }
}

pub(super) unsafe extern "C" fn connect6(device: c_int, handle: Any, comm: Out) -> Code {
    run("connect", || {
        if handle.is_null() {
            return null();
        }
        // SAFETY: NCCL's handles have 128 bytes.
        let bytes = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
        let made = connect_comm(devices::get(device)?, handle as usize, &bytes)?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(comm, made.map_or(ptr::null_mut(), |made| Box::into_raw(made).cast())) }
    })
}

pub(super) unsafe extern "C" fn connect(
    device: c_int,
    handle: Any,
    comm: Out,
    _: DeviceHandle,
) -> Code {
    // SAFETY: NCCL passes what `connect6` takes.
    unsafe { connect6(device, handle, comm) }
}

pub(super) unsafe extern "C" fn connect10(
    device: c_int,
    _: *const CommConfig,
    handle: Any,
    comm: Out,
    _: DeviceHandle,
) -> Code {
    // SAFETY: NCCL passes what `connect6` takes.
    unsafe { connect6(device, handle, comm) }
}

pub(super) unsafe extern "C" fn connect11(
    _: Any,
    device: c_int,
    handle: Any,
    comm: Out,
    _: DeviceHandle,
) -> Code {
    // SAFETY: NCCL passes what `connect6` takes.
    unsafe { connect6(device, handle, comm) }
}

pub(super) unsafe extern "C" fn accept6(listening: Any, comm: Out) -> Code {
    run("accept", || {
        // SAFETY: NCCL passes a listening comm of `listen`.
        let made = unsafe { object::<Listening>(listening) }?.accept()?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(comm, made.map_or(ptr::null_mut(), |made| Box::into_raw(made).cast())) }
    })
}

pub(super) unsafe extern "C" fn accept(listening: Any, comm: Out, _: DeviceHandle) -> Code {
    // SAFETY: NCCL passes what `accept6` takes.
    unsafe { accept6(listening, comm) }
}

pub(super) unsafe extern "C" fn register(
    comm: Any,
    data: Any,
    length: usize,
    kind: c_int,
    memory: Out,
) -> Code {
    run("regMr", || {
        if kind != HOST {
            return Err(Failed::Argument("only memory of the host is supported"));
        }
        // SAFETY: NCCL passes a comm of `connect` or `accept`, which may be in use by the data path
        // meanwhile: registering does not access that part.
        let comm = unsafe { object::<Comm>(comm) }?;
        // SAFETY: NCCL keeps the memory until it deregisters it, after the traffic, and accesses it
        // as memory that devices share.
        let made = unsafe { comm.register(data, length) }?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(memory, Box::into_raw(made).cast()) }
    })
}

pub(super) unsafe extern "C" fn register7(
    comm: Any,
    data: Any,
    length: c_int,
    kind: c_int,
    memory: Out,
) -> Code {
    let Ok(length) = usize::try_from(length) else { return INVALID_ARGUMENT };
    // SAFETY: NCCL passes what `register` takes.
    unsafe { register(comm, data, length, kind, memory) }
}

pub(super) unsafe extern "C" fn deregister(_: Any, memory: Any) -> Code {
    // SAFETY: NCCL passes memory of `register`, once.
    unsafe { free::<Memory>("deregMr", memory) }
}

pub(super) unsafe extern "C" fn close(comm: Any) -> Code {
    // SAFETY: NCCL passes a comm of `connect` or `accept`, once, after its threads have left it.
    unsafe { free::<Comm>("close", comm) }
}

pub(super) unsafe extern "C" fn close_listen(listening: Any) -> Code {
    // SAFETY: NCCL passes a listening comm of `listen`, once.
    unsafe { free::<Listening>("closeListen", listening) }
}
