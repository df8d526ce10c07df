//! The life of the plugin, its devices and their properties.

use core::ffi::c_int;
use core::ptr;

use barewire_channel::MAX_GROUP;

use super::{null, run};
use crate::abi::{
    Any, Attributes, Code, CommConfig, HOST, INVALID_ARGUMENT, Logger, Out, Profiler, Properties6,
    Properties7, Properties8, Properties9, Properties11, Properties12, SUCCESS, Virtual,
};
use crate::comm::Failed;
use crate::devices::{self, Device};
use crate::log;

/// Longest message of versions with sizes of 32 bits (NCCL's `MAX_NET_SIZE`).
const MAX_COLLECTIVE: usize = 512 << 20;
const MAX_MESSAGE: usize = 1 << 30;
const MAX_COMMS: c_int = 1 << 16;

fn start(logger: Logger) -> Result<(), Failed> {
    log::set(logger);
    Ok(devices::discover()?)
}

pub(super) unsafe extern "C" fn init(logger: Logger) -> Code {
    run("init", || start(logger))
}

pub(super) unsafe extern "C" fn init10(logger: Logger, _: Profiler) -> Code {
    run("init", || start(logger))
}

pub(super) unsafe extern "C" fn init11(
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

pub(super) unsafe extern "C" fn count(number: *mut c_int) -> Code {
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
        pub(super) unsafe extern "C" fn $name(number: c_int, properties: *mut $kind) -> Code {
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
        pub(super) unsafe extern "C" fn $name(
            number: *mut c_int,
            wanted: *const Virtual<$most>,
        ) -> Code {
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

pub(super) unsafe extern "C" fn finalize(_: Any) -> Code {
    SUCCESS
}

pub(super) unsafe extern "C" fn set_attributes(_: Any, _: Attributes) -> Code {
    SUCCESS
}
