//! NCCL's log.

use core::ffi::{c_char, c_int, c_ulong};
use std::ffi::CString;
use std::fmt;
use std::sync::RwLock;

use crate::abi::Logger;

static LOGGER: RwLock<Logger> = RwLock::new(None);

const WARN: c_int = 2;
const INFO: c_int = 3;
const INIT: c_ulong = 1;
const NET: c_ulong = 16;

/// Sets the function that takes messages.
pub(crate) fn set(logger: Logger) {
    if let Ok(mut known) = LOGGER.write() {
        *known = logger;
    }
}

/// Reports an error.
pub(crate) fn warn(text: impl fmt::Display) {
    write(WARN, NET, &text);
}

/// Reports a fact of set-up.
pub(crate) fn info(text: impl fmt::Display) {
    write(INFO, INIT | NET, &text);
}

fn write(level: c_int, flags: c_ulong, text: &dyn fmt::Display) {
    let Some(logger) = LOGGER.read().ok().and_then(|logger| *logger) else { return };
    let text = format!("barewire: {text}").replace('\0', " ");
    let Ok(text) = CString::new(text) else { return };
    let (file, format): (*const c_char, *const c_char) = (c"barewire".as_ptr(), c"%s".as_ptr());
    // SAFETY: the logger is NCCL's, and stays while the plugin is loaded. The format has one
    // argument, a string.
    unsafe { logger(level, flags, file, 0, format, text.as_ptr()) };
}
