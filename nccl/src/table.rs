//! The functions that NCCL calls, and its tables of them.

use core::ffi::{c_char, c_int};
use core::ptr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use barewire_channel::MAX_GROUP;

use crate::abi::{
    Any, Attributes, Code, CommConfig, DeviceHandle, HANDLE_BYTES, HOST, INTERNAL_ERROR,
    INVALID_ARGUMENT, Logger, Net6, Net7, Net8, Net9, Net10, Net11, Net12, Out, Profiler,
    Properties6, Properties7, Properties8, Properties9, Properties11, Properties12, SUCCESS,
    Virtual,
};
use crate::comm::{Buffer, Comm, Failed, Listening, Memory, Slot, connect as connect_comm, report};
use crate::devices::{self, Device};
use crate::log;

const NAME: *const c_char = c"barewire".as_ptr();
/// Longest message of versions with sizes of 32 bits (NCCL's `MAX_NET_SIZE`).
const MAX_COLLECTIVE: usize = 512 << 20;
const MAX_MESSAGE: usize = 1 << 30;
const MAX_COMMS: c_int = 1 << 16;

/// Runs a function; its error is reported, and a panic becomes an internal error.
fn run(what: &str, function: impl FnOnce() -> Result<(), Failed>) -> Code {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(failed)) => report(what, &failed),
        Err(_) => {
            log::warn(format_args!("{what} panicked: please report this"));
            INTERNAL_ERROR
        }
    }
}

fn null<T>() -> Result<T, Failed> {
    Err(Failed::Argument("a pointer is null"))
}

/// Stores a pointer for the caller.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn store(place: Out, pointer: Any) -> Result<(), Failed> {
    if place.is_null() {
        return null();
    }
    // SAFETY: the caller guarantees that it is valid.
    unsafe { place.write(pointer) };
    Ok(())
}

/// The object that NCCL got as `pointer`.
///
/// # Safety
/// `pointer` is null, or this library returned it as a `T` and it was not freed since.
unsafe fn object<'a, T>(pointer: Any) -> Result<&'a T, Failed> {
    // SAFETY: the caller guarantees it.
    unsafe { pointer.cast::<T>().as_ref() }.map_or_else(null, Ok)
}

/// Frees the object that NCCL got as `pointer`.
///
/// # Safety
/// That of [`object`], and nothing uses the object.
unsafe fn free<T>(what: &str, pointer: Any) -> Code {
    run(what, || {
        if !pointer.is_null() {
            // SAFETY: the object was made by `Box::into_raw`, and the caller frees it once.
            drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
        }
        Ok(())
    })
}

fn start(logger: Logger) -> Result<(), Failed> {
    log::set(logger);
    Ok(devices::discover()?)
}

unsafe extern "C" fn init(logger: Logger) -> Code {
    run("init", || start(logger))
}

unsafe extern "C" fn init10(logger: Logger, _: Profiler) -> Code {
    run("init", || start(logger))
}

unsafe extern "C" fn init11(
    context: Out,
    _: u64,
    _: *const CommConfig,
    logger: Logger,
    _: Profiler,
) -> Code {
    run("init", || {
        start(logger)?;
        if !context.is_null() {
            // SAFETY: NCCL's pointer is valid for a write.
            unsafe { context.write(ptr::null_mut()) };
        }
        Ok(())
    })
}

unsafe extern "C" fn count(number: *mut c_int) -> Code {
    run("devices", || {
        if number.is_null() {
            return null();
        }
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { number.write(devices::count() as c_int) };
        Ok(())
    })
}

/// What the versions have in common.
fn members<const N: usize>(device: &Device) -> Virtual<N> {
    let mut devices = [0; N];
    for (place, member) in devices.iter_mut().zip(&device.members) {
        *place = *member as c_int;
    }
    Virtual { count: device.members.len().min(N) as c_int, devices }
}

macro_rules! get_properties {
    ($name:ident, $kind:ident { $($field:ident: $value:expr),* $(,)? }) => {
        unsafe extern "C" fn $name(number: c_int, properties: *mut $kind) -> Code {
            run("getProperties", || {
                if properties.is_null() {
                    return null();
                }
                #[allow(unused_variables, reason = "early versions report no members")]
                let device = devices::get(number)?;
                let filled = $kind {
                    name: device.name.as_ptr(),
                    pci_path: device.path().map_or(ptr::null(), |path| path.as_ptr()),
                    guid: device.guid,
                    memory: HOST,
                    speed: device.speed,
                    port: device.port,
                    latency: 0.0,
                    max_comms: MAX_COMMS,
                    max_receives: MAX_GROUP as c_int,
                    $($field: ($value)(device),)*
                };
                // SAFETY: NCCL's pointer is valid for a write.
                unsafe { properties.write(filled) };
                Ok(())
            })
        }
    };
}

fn zero(_: &Device) -> c_int {
    0
}

get_properties!(properties6, Properties6 {});
get_properties!(properties7, Properties7 { offload: zero, offload_version: zero });
get_properties!(
    properties8,
    Properties8 { global_memory: zero, offload: zero, offload_version: zero }
);
get_properties!(
    properties9,
    Properties9 {
        global_memory: zero,
        force_flush: zero,
        offload: zero,
        offload_version: zero,
        devices: members::<4>,
        max_message: |_: &Device| MAX_MESSAGE,
        max_collective: |_: &Device| MAX_COLLECTIVE,
    }
);
get_properties!(
    properties11,
    Properties11 {
        global_memory: zero,
        force_flush: zero,
        offload: zero,
        offload_version: zero,
        devices: members::<4>,
        max_message: |_: &Device| MAX_MESSAGE,
        max_collective: |_: &Device| MAX_COLLECTIVE,
        max_requests: |_: &Device| 1,
    }
);
get_properties!(
    properties12,
    Properties12 {
        global_memory: zero,
        force_flush: zero,
        offload: zero,
        offload_version: zero,
        devices: members::<8>,
        max_message: |_: &Device| MAX_MESSAGE,
        max_collective: |_: &Device| MAX_COLLECTIVE,
        max_requests: |_: &Device| 1,
        rail: |_: &Device| -1,
        plane: |_: &Device| -1,
    }
);

unsafe extern "C" fn listen(device: c_int, handle: Any, listening: Out) -> Code {
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

unsafe extern "C" fn listen11(_: Any, device: c_int, handle: Any, listening: Out) -> Code {
    // SAFETY: NCCL passes what `listen` takes.
    unsafe { listen(device, handle, listening) }
}

unsafe extern "C" fn connect6(device: c_int, handle: Any, comm: Out) -> Code {
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

unsafe extern "C" fn connect(device: c_int, handle: Any, comm: Out, _: DeviceHandle) -> Code {
    // SAFETY: NCCL passes what `connect6` takes.
    unsafe { connect6(device, handle, comm) }
}

unsafe extern "C" fn connect10(
    device: c_int,
    _: *const CommConfig,
    handle: Any,
    comm: Out,
    _: DeviceHandle,
) -> Code {
    // SAFETY: NCCL passes what `connect6` takes.
    unsafe { connect6(device, handle, comm) }
}

unsafe extern "C" fn connect11(
    _: Any,
    device: c_int,
    handle: Any,
    comm: Out,
    _: DeviceHandle,
) -> Code {
    // SAFETY: NCCL passes what `connect6` takes.
    unsafe { connect6(device, handle, comm) }
}

unsafe extern "C" fn accept6(listening: Any, comm: Out) -> Code {
    run("accept", || {
        // SAFETY: NCCL passes a listening comm of `listen`.
        let made = unsafe { object::<Listening>(listening) }?.accept()?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(comm, made.map_or(ptr::null_mut(), |made| Box::into_raw(made).cast())) }
    })
}

unsafe extern "C" fn accept(listening: Any, comm: Out, _: DeviceHandle) -> Code {
    // SAFETY: NCCL passes what `accept6` takes.
    unsafe { accept6(listening, comm) }
}

unsafe extern "C" fn register(
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

unsafe extern "C" fn register7(
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

unsafe extern "C" fn deregister(_: Any, memory: Any) -> Code {
    // SAFETY: NCCL passes memory of `register`, once.
    unsafe { free::<Memory>("deregMr", memory) }
}

unsafe extern "C" fn send9(
    comm: Any,
    data: Any,
    length: usize,
    tag: c_int,
    memory: Any,
    request: Out,
) -> Code {
    run("isend", || {
        // SAFETY: NCCL passes a comm of `connect`.
        let comm = unsafe { object::<Comm>(comm) }?;
        // SAFETY: NCCL passes memory of `register`, or null.
        let memory = unsafe { memory.cast::<Memory>().as_ref() };
        // SAFETY: NCCL calls the data path of a comm from one thread at a time.
        let sent = unsafe { comm.send(data as usize, length, tag, memory) }?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(request, sent.map_or(ptr::null_mut(), pointer)) }
    })
}

unsafe extern "C" fn send6(
    comm: Any,
    data: Any,
    length: c_int,
    tag: c_int,
    memory: Any,
    request: Out,
) -> Code {
    let Ok(length) = usize::try_from(length) else { return INVALID_ARGUMENT };
    // SAFETY: NCCL passes what `send9` takes.
    unsafe { send9(comm, data, length, tag, memory, request) }
}

unsafe extern "C" fn send(
    comm: Any,
    data: Any,
    length: usize,
    tag: c_int,
    memory: Any,
    _: Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL passes what `send9` takes.
    unsafe { send9(comm, data, length, tag, memory, request) }
}

fn pointer(slot: &Slot) -> Any {
    ptr::from_ref(slot).cast_mut().cast()
}

/// Posts a group of receives.
///
/// # Safety
/// The arrays have `count` elements, whose types are NCCL's.
unsafe fn receive_sizes<L: Copy + TryInto<usize>>(
    comm: Any,
    count: c_int,
    (data, lengths, tags, memories): (*const Any, *const L, *const c_int, *const Any),
    request: Out,
) -> Code {
    run("irecv", || {
        let count = usize::try_from(count).ok().filter(|count| (1..=MAX_GROUP).contains(count));
        let count = count.ok_or(Failed::Argument("a group has 1 to 8 buffers"))?;
        if data.is_null() || lengths.is_null() || tags.is_null() || memories.is_null() {
            return null();
        }
        // SAFETY: NCCL passes a comm of `accept`.
        let comm = unsafe { object::<Comm>(comm) }?;
        let mut buffers = [Buffer { data: 0, length: 0, tag: 0, memory: None }; MAX_GROUP];
        for (at, buffer) in buffers.iter_mut().enumerate().take(count) {
            // SAFETY: the arrays have `count` elements, and the memory is that of `register`, or
            // null.
            let (length, memory) = unsafe {
                buffer.data = data.add(at).read() as usize;
                buffer.tag = tags.add(at).read();
                (lengths.add(at).read(), memories.add(at).read().cast::<Memory>().as_ref())
            };
            buffer.memory = memory;
            buffer.length =
                length.try_into().map_err(|_| Failed::Argument("a length is negative"))?;
        }
        // SAFETY: NCCL calls the data path of a comm from one thread at a time.
        let posted = unsafe { comm.receive(buffers.get(..count).unwrap_or_default()) }?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { store(request, posted.map_or(ptr::null_mut(), pointer)) }
    })
}

unsafe extern "C" fn receive6(
    comm: Any,
    count: c_int,
    data: *const Any,
    lengths: *const c_int,
    tags: *const c_int,
    memories: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's arrays have `count` elements.
    unsafe { receive_sizes(comm, count, (data, lengths, tags, memories), request) }
}

unsafe extern "C" fn receive9(
    comm: Any,
    count: c_int,
    data: *const Any,
    lengths: *const usize,
    tags: *const c_int,
    memories: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's arrays have `count` elements.
    unsafe { receive_sizes(comm, count, (data, lengths, tags, memories), request) }
}

unsafe extern "C" fn receive(
    comm: Any,
    count: c_int,
    data: *const Any,
    lengths: *const usize,
    tags: *const c_int,
    memories: *const Any,
    _: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's arrays have `count` elements.
    unsafe { receive_sizes(comm, count, (data, lengths, tags, memories), request) }
}

/// Memory of the host needs no flush: a receive that is complete is visible.
unsafe extern "C" fn flush(
    _: Any,
    _: c_int,
    _: *const Any,
    _: *const c_int,
    _: *const Any,
    request: Out,
) -> Code {
    // SAFETY: NCCL's pointer is valid for a write.
    run("iflush", || unsafe { store(request, ptr::null_mut()) })
}

unsafe extern "C" fn test(request: Any, done: *mut c_int, sizes: *mut c_int) -> Code {
    run("test", || {
        if done.is_null() {
            return null();
        }
        // SAFETY: NCCL passes a request of a comm that is open.
        let slot = unsafe { object::<Slot>(request) }?;
        let note = |at: usize, size: usize| {
            if !sizes.is_null() {
                // SAFETY: the array has an element for each buffer of the request.
                unsafe { sizes.add(at).write(size as c_int) };
            }
        };
        // SAFETY: NCCL closes a comm after its requests, and calls its data path from one thread at
        // a time.
        let complete = unsafe { slot.test(note) }?;
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { done.write(complete.into()) };
        Ok(())
    })
}

unsafe extern "C" fn close(comm: Any) -> Code {
    // SAFETY: NCCL passes a comm of `connect` or `accept`, once, after its threads have left it.
    unsafe { free::<Comm>("close", comm) }
}

unsafe extern "C" fn close_listen(listening: Any) -> Code {
    // SAFETY: NCCL passes a listening comm of `listen`, once.
    unsafe { free::<Listening>("closeListen", listening) }
}

fn merge(number: *mut c_int, wanted: &[c_int]) -> Code {
    run("makeVDevice", || {
        let made = devices::merge(wanted)?;
        if number.is_null() {
            return null();
        }
        // SAFETY: NCCL's pointer is valid for a write.
        unsafe { number.write(made as c_int) };
        Ok(())
    })
}

macro_rules! make_virtual {
    ($name:ident, $most:literal) => {
        unsafe extern "C" fn $name(number: *mut c_int, wanted: *const Virtual<$most>) -> Code {
            // SAFETY: NCCL's pointer is null or valid.
            let Some(wanted) = (unsafe { wanted.as_ref() }) else { return INVALID_ARGUMENT };
            let count = usize::try_from(wanted.count).unwrap_or(0);
            let Some(wanted) = wanted.devices.get(..count) else { return INVALID_ARGUMENT };
            merge(number, wanted)
        }
    };
}

make_virtual!(make_virtual4, 4);
make_virtual!(make_virtual8, 8);

unsafe extern "C" fn finalize(_: Any) -> Code {
    SUCCESS
}

unsafe extern "C" fn set_attributes(_: Any, _: Attributes) -> Code {
    SUCCESS
}

macro_rules! table {
    ($name:ident, $kind:ident { $($field:ident: $value:expr,)* } $($rest:ident)*) => {
        #[doc = concat!("The table of `", stringify!($kind), "`.")]
        #[allow(non_upper_case_globals, reason = "NCCL's loader looks for this name")]
        #[unsafe(no_mangle)]
        pub static $name: $kind = $kind {
            name: NAME,
            devices: Some(count),
            register_dma_buf: None,
            deregister: Some(deregister),
            flush: Some(flush),
            test: Some(test),
            close_send: Some(close),
            close_receive: Some(close),
            close_listen: Some(close_listen),
            $($field: $value,)*
            $($rest: None,)*
        };
    };
}

table!(
    ncclNetPlugin_v6,
    Net6 {
        init: Some(init),
        get_properties: Some(properties6),
        listen: Some(listen),
        connect: Some(connect6),
        accept: Some(accept6),
        register: Some(register7),
        send: Some(send6),
        receive: Some(receive6),
    }
);
table!(ncclNetPlugin_v7, Net7 {
    init: Some(init), get_properties: Some(properties7), listen: Some(listen),
    connect: Some(connect), accept: Some(accept), register: Some(register7),
    send: Some(send6), receive: Some(receive6),
} device_memory consumed);
table!(ncclNetPlugin_v8, Net8 {
    init: Some(init), get_properties: Some(properties8), listen: Some(listen),
    connect: Some(connect), accept: Some(accept), register: Some(register),
    send: Some(send6), receive: Some(receive6),
} device_memory consumed);
table!(ncclNetPlugin_v9, Net9 {
    init: Some(init), get_properties: Some(properties9), listen: Some(listen),
    connect: Some(connect), accept: Some(accept), register: Some(register),
    send: Some(send9), receive: Some(receive9), make_virtual: Some(make_virtual4),
} device_memory consumed);
table!(ncclNetPlugin_v10, Net10 {
    init: Some(init10), get_properties: Some(properties9), listen: Some(listen),
    connect: Some(connect10), accept: Some(accept), register: Some(register),
    send: Some(send), receive: Some(receive), make_virtual: Some(make_virtual4),
} device_memory consumed);
table!(ncclNetPlugin_v11, Net11 {
    init: Some(init11), get_properties: Some(properties11), listen: Some(listen11),
    connect: Some(connect11), accept: Some(accept), register: Some(register),
    send: Some(send), receive: Some(receive), make_virtual: Some(make_virtual4),
    finalize: Some(finalize), set_attributes: Some(set_attributes),
} device_memory consumed);
table!(ncclNetPlugin_v12, Net12 {
    init: Some(init11), get_properties: Some(properties12), listen: Some(listen11),
    connect: Some(connect11), accept: Some(accept), register: Some(register),
    send: Some(send), receive: Some(receive), make_virtual: Some(make_virtual8),
    finalize: Some(finalize), set_attributes: Some(set_attributes),
} device_memory consumed);
