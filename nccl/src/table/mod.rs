//! The functions that NCCL calls, and its tables of them.

mod comms;
mod data;
mod set_up;

use core::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use self::comms::{
    accept, accept6, close, close_listen, connect, connect6, connect10, connect11, deregister,
    listen, listen11, register, register7,
};
use self::data::{flush, receive, receive6, receive9, send, send6, send9, test};
use self::set_up::{
    count, finalize, init, init10, init11, make_virtual4, make_virtual8, properties6, properties7,
    properties8, properties9, properties11, properties12, set_attributes,
};
use crate::abi::{
    Any, Code, INTERNAL_ERROR, Net6, Net7, Net8, Net9, Net10, Net11, Net12, Out, SUCCESS,
};
use crate::comm::{Failed, report};
use crate::log;

const NAME: *const c_char = c"barewire".as_ptr();

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
