//! Settings of domains and interfaces, of which callers have handles only.

use std::ffi::{c_char, c_void};

use barewire::InterfaceConfig;

use crate::component::{Component, of_handle};
use crate::md::{Md, of_md};
use crate::status::{INVALID_PARAM, NO_ELEM, Status, guard};
use crate::text;

/// `uct_md_config_t` and `uct_iface_config_t`
pub(crate) struct Config {
    pub(crate) interface: InterfaceConfig,
}

/// Returns the settings of the environment (`BAREWIRE_...`).
fn read() -> Result<*mut Config, Status> {
    match InterfaceConfig::from_env() {
        Ok(interface) => Ok(Box::into_raw(Box::new(Config { interface }))),
        Err(error) => {
            crate::log::error(&error);
            Err(INVALID_PARAM)
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_config_read(
    component: *const Component,
    _prefix: *const c_char,
    _file: *const c_char,
    config: *mut *mut Config,
) -> Status {
    guard(|| {
        // SAFETY: contract of the handle.
        unsafe { of_handle(component) }?;
        if config.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *config = read()? };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_iface_config_read(
    md: *const Md,
    _transport: *const c_char,
    _prefix: *const c_char,
    _file: *const c_char,
    config: *mut *mut Config,
) -> Status {
    guard(|| {
        // SAFETY: an open handle.
        unsafe { of_md(md) }?;
        if config.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: the caller's pointer is valid for writes.
        unsafe { *config = read()? };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_config_release(config: *mut Config) {
    if !config.is_null() {
        // SAFETY: settings that were read, and are released once.
        drop(unsafe { Box::from_raw(config) });
    }
}

/// Copies the value of a setting, named as in UCX: `SEND_RING`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_config_get(
    config: *const Config,
    name: *const c_char,
    value: *mut c_char,
    max: usize,
) -> Status {
    guard(|| {
        // SAFETY: null or valid for this call.
        let (config, name) = unsafe { (config.as_ref(), text::read(name)) };
        let (config, name) = (config.ok_or(INVALID_PARAM)?, name.ok_or(INVALID_PARAM)?);
        if value.is_null() || max == 0 {
            return Err(INVALID_PARAM);
        }
        let settings = config.interface.settings();
        let setting = settings.iter().find(|setting| setting.name.eq_ignore_ascii_case(name));
        let found = &setting.ok_or(NO_ELEM)?.value;
        let length = found.len().min(max - 1);
        // SAFETY: the caller's buffer has `max` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(found.as_ptr().cast(), value, length);
            *value.add(length) = 0;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_config_modify(
    config: *mut Config,
    name: *const c_char,
    value: *const c_char,
) -> Status {
    guard(|| {
        // SAFETY: null or valid for this call; nothing else accesses the settings.
        let (config, name, value) =
            unsafe { (config.as_mut(), text::read(name), text::read(value)) };
        let (Some(config), Some(name), Some(value)) = (config, name, value) else {
            return Err(INVALID_PARAM);
        };
        let changed = config.interface.clone().with_setting(name, value);
        config.interface = changed.ok_or(NO_ELEM)?.map_err(|error| {
            crate::log::error(&error);
            INVALID_PARAM
        })?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn uct_cm_config_read(
    _component: *const Component,
    _prefix: *const c_char,
    _file: *const c_char,
    _config: *mut *mut c_void,
) -> Status {
    crate::status::UNSUPPORTED
}
