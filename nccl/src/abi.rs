//! The structures of NCCL's network plugins, versions 6 to 12 (NCCL's `plugins/net/example/nccl/`:
//! `net_v6.h` to `net_v12.h`), for 64-bit hosts.

use core::ffi::{c_char, c_int, c_ulong, c_void};

/// `ncclResult_t`.
pub type Code = c_int;

/// Success.
pub const SUCCESS: Code = 0;
/// A call of the kernel or of a library failed.
pub const SYSTEM_ERROR: Code = 2;
/// This library is at fault.
pub const INTERNAL_ERROR: Code = 3;
/// An argument is wrong.
pub const INVALID_ARGUMENT: Code = 4;
/// The program uses the library wrongly: sizes do not match.
pub const INVALID_USAGE: Code = 5;
/// The peer, or the way to it, failed.
pub const REMOTE_ERROR: Code = 6;

/// `NCCL_NET_HANDLE_MAXSIZE`.
pub const HANDLE_BYTES: usize = 128;
/// `NCCL_PTR_HOST`.
pub const HOST: c_int = 1;

/// `ncclDebugLogger_t`: level, flags, file, line, format, arguments.
pub type Logger =
    Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;
/// `ncclProfilerCallback_t`, which this library does not call.
pub type Profiler = *const c_void;
/// `ncclNetDeviceHandle_t **`, which this library does not use.
pub type DeviceHandle = *mut *mut c_void;
/// `ncclNetAttr_t *`: hints.
pub type Attributes = *const c_void;

/// `ncclNetCommConfig_t`.
#[derive(Debug)]
#[repr(C)]
pub struct CommConfig {
    /// Traffic class of the packets; -1 for none.
    pub traffic_class: c_int,
}

/// `ncclNetVDeviceProps_t` with room for `N` devices: 4 up to version 11, then 8.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Virtual<const N: usize> {
    /// Number of devices.
    pub count: c_int,
    /// Their numbers.
    pub devices: [c_int; N],
}

macro_rules! properties {
    ($($name:ident, $version:literal, $size:literal {
        $($field:ident: $kind:ty = $offset:literal,)+
    })+) => {
        $(
            #[doc = concat!("`ncclNetProperties_", $version, "_t`.")]
            #[derive(Debug)]
            #[repr(C)]
            #[allow(missing_docs, reason = "NCCL's header has the meaning of each")]
            pub struct $name {
                $(pub $field: $kind,)+
            }

            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(core::mem::offset_of!($name, $field) == $offset);)+
            };
        )+
    };
}

properties! {
    Properties6, "v6", 48 {
        name: *const c_char = 0,
        pci_path: *const c_char = 8,
        guid: u64 = 16,
        memory: c_int = 24,
        speed: c_int = 28,
        port: c_int = 32,
        latency: f32 = 36,
        max_comms: c_int = 40,
        max_receives: c_int = 44,
    }
    Properties7, "v7", 56 {
        name: *const c_char = 0,
        pci_path: *const c_char = 8,
        guid: u64 = 16,
        memory: c_int = 24,
        speed: c_int = 28,
        port: c_int = 32,
        latency: f32 = 36,
        max_comms: c_int = 40,
        max_receives: c_int = 44,
        offload: c_int = 48,
        offload_version: c_int = 52,
    }
    Properties8, "v8", 64 {
        name: *const c_char = 0,
        pci_path: *const c_char = 8,
        guid: u64 = 16,
        memory: c_int = 24,
        global_memory: c_int = 28,
        speed: c_int = 32,
        port: c_int = 36,
        latency: f32 = 40,
        max_comms: c_int = 44,
        max_receives: c_int = 48,
        offload: c_int = 52,
        offload_version: c_int = 56,
    }
    Properties9, "v9", 104 {
        name: *const c_char = 0,
        pci_path: *const c_char = 8,
        guid: u64 = 16,
        memory: c_int = 24,
        global_memory: c_int = 28,
        force_flush: c_int = 32,
        speed: c_int = 36,
        port: c_int = 40,
        latency: f32 = 44,
        max_comms: c_int = 48,
        max_receives: c_int = 52,
        offload: c_int = 56,
        offload_version: c_int = 60,
        devices: Virtual<4> = 64,
        max_message: usize = 88,
        max_collective: usize = 96,
    }
    Properties11, "v11", 112 {
        name: *const c_char = 0,
        pci_path: *const c_char = 8,
        guid: u64 = 16,
        memory: c_int = 24,
        global_memory: c_int = 28,
        force_flush: c_int = 32,
        speed: c_int = 36,
        port: c_int = 40,
        latency: f32 = 44,
        max_comms: c_int = 48,
        max_receives: c_int = 52,
        offload: c_int = 56,
        offload_version: c_int = 60,
        devices: Virtual<4> = 64,
        max_message: usize = 88,
        max_collective: usize = 96,
        max_requests: c_int = 104,
    }
    Properties12, "v12", 128 {
        name: *const c_char = 0,
        pci_path: *const c_char = 8,
        guid: u64 = 16,
        memory: c_int = 24,
        global_memory: c_int = 28,
        force_flush: c_int = 32,
        speed: c_int = 36,
        port: c_int = 40,
        latency: f32 = 44,
        max_comms: c_int = 48,
        max_receives: c_int = 52,
        offload: c_int = 56,
        offload_version: c_int = 60,
        devices: Virtual<8> = 64,
        max_message: usize = 104,
        max_collective: usize = 112,
        max_requests: c_int = 120,
        rail: i16 = 124,
        plane: i16 = 126,
    }
}

macro_rules! tables {
    ($($name:ident, $version:literal, $size:literal { $($field:ident($($kind:ty),*),)+ })+) => {
        $(
            #[doc = concat!("`ncclNet_", $version, "_t`: the name of the network and its functions.")]
            #[derive(Debug)]
            #[repr(C)]
            #[allow(missing_docs, reason = "NCCL's header has the meaning of each")]
            pub struct $name {
                pub name: *const c_char,
                $(pub $field: Option<unsafe extern "C" fn($($kind),*) -> Code>,)+
            }

            // SAFETY: the table and the name that it points to do not change.
            unsafe impl Sync for $name {}
            const _: () = assert!(size_of::<$name>() == $size);
        )+
    };
}

/// A pointer.
pub type Any = *mut c_void;
/// Where a pointer is stored.
pub type Out = *mut *mut c_void;

tables! {
    Net6, "v6", 136 {
        init(Logger),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties6),
        listen(c_int, Any, Out),
        connect(c_int, Any, Out),
        accept(Any, Out),
        register(Any, Any, c_int, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, c_int, c_int, Any, Out),
        receive(Any, c_int, *const Any, *const c_int, *const c_int, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
    }
    Net7, "v7", 152 {
        init(Logger),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties7),
        listen(c_int, Any, Out),
        connect(c_int, Any, Out, DeviceHandle),
        accept(Any, Out, DeviceHandle),
        register(Any, Any, c_int, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, c_int, c_int, Any, Out),
        receive(Any, c_int, *const Any, *const c_int, *const c_int, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
        device_memory(Any, Any, Out),
        consumed(Any, c_int, Any),
    }
    Net8, "v8", 152 {
        init(Logger),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties8),
        listen(c_int, Any, Out),
        connect(c_int, Any, Out, DeviceHandle),
        accept(Any, Out, DeviceHandle),
        register(Any, Any, usize, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, c_int, c_int, Any, Out),
        receive(Any, c_int, *const Any, *const c_int, *const c_int, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
        device_memory(Any, Any, Out),
        consumed(Any, c_int, Any),
    }
    Net9, "v9", 160 {
        init(Logger),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties9),
        listen(c_int, Any, Out),
        connect(c_int, Any, Out, DeviceHandle),
        accept(Any, Out, DeviceHandle),
        register(Any, Any, usize, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, usize, c_int, Any, Out),
        receive(Any, c_int, *const Any, *const usize, *const c_int, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
        device_memory(Any, Any, Out),
        consumed(Any, c_int, Any),
        make_virtual(*mut c_int, *const Virtual<4>),
    }
    Net10, "v10", 160 {
        init(Logger, Profiler),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties9),
        listen(c_int, Any, Out),
        connect(c_int, *const CommConfig, Any, Out, DeviceHandle),
        accept(Any, Out, DeviceHandle),
        register(Any, Any, usize, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, usize, c_int, Any, Any, Out),
        receive(Any, c_int, *const Any, *const usize, *const c_int, *const Any, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
        device_memory(Any, Any, Out),
        consumed(Any, c_int, Any),
        make_virtual(*mut c_int, *const Virtual<4>),
    }
    Net11, "v11", 176 {
        init(Out, u64, *const CommConfig, Logger, Profiler),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties11),
        listen(Any, c_int, Any, Out),
        connect(Any, c_int, Any, Out, DeviceHandle),
        accept(Any, Out, DeviceHandle),
        register(Any, Any, usize, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, usize, c_int, Any, Any, Out),
        receive(Any, c_int, *const Any, *const usize, *const c_int, *const Any, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
        device_memory(Any, Any, Out),
        consumed(Any, c_int, Any),
        make_virtual(*mut c_int, *const Virtual<4>),
        finalize(Any),
        set_attributes(Any, Attributes),
    }
    Net12, "v12", 176 {
        init(Out, u64, *const CommConfig, Logger, Profiler),
        devices(*mut c_int),
        get_properties(c_int, *mut Properties12),
        listen(Any, c_int, Any, Out),
        connect(Any, c_int, Any, Out, DeviceHandle),
        accept(Any, Out, DeviceHandle),
        register(Any, Any, usize, c_int, Out),
        register_dma_buf(Any, Any, usize, c_int, u64, c_int, Out),
        deregister(Any, Any),
        send(Any, Any, usize, c_int, Any, Any, Out),
        receive(Any, c_int, *const Any, *const usize, *const c_int, *const Any, *const Any, Out),
        flush(Any, c_int, *const Any, *const c_int, *const Any, Out),
        test(Any, *mut c_int, *mut c_int),
        close_send(Any),
        close_receive(Any),
        close_listen(Any),
        device_memory(Any, Any, Out),
        consumed(Any, c_int, Any),
        make_virtual(*mut c_int, *const Virtual<8>),
        finalize(Any),
        set_attributes(Any, Attributes),
    }
}

const _: () = {
    use core::mem::offset_of;
    // The order of the functions, as the loader reads them.
    assert!(offset_of!(Net12, init) == 8 && offset_of!(Net12, connect) == 40);
    assert!(offset_of!(Net12, register) == 56 && offset_of!(Net12, send) == 80);
    assert!(offset_of!(Net12, receive) == 88 && offset_of!(Net12, test) == 104);
    assert!(offset_of!(Net12, close_listen) == 128 && offset_of!(Net12, make_virtual) == 152);
    assert!(offset_of!(Net12, finalize) == 160 && offset_of!(Net12, set_attributes) == 168);
};
