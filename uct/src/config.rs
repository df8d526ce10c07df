//! Settings of domains and interfaces, of which callers have handles only.

use std::ffi::c_char;

use barewire::InterfaceConfig;

use crate::component::{Component, of_handle};
use crate::log::Level;
use crate::md::{Md, of_md};
use crate::status::{INVALID_PARAM, NO_ELEM, Status, guard};
use crate::text;

/// `uct_md_config_t` and `uct_iface_config_t`: the settings of barewire by their names, and three of
/// UCX's transports.
pub(crate) struct Config {
    pub(crate) interface: InterfaceConfig,
    /// `SEG_SIZE`: the most bytes of buffered operations.
    pub(crate) segment: usize,
    /// `FAILURE`: the level of reports about endpoints that fail.
    pub(crate) failure: Level,
}

/// The names that UCX's transports have for `SEG_SIZE`.
const SEGMENT: [&str; 3] = ["SEG_SIZE", "IB_SEG_SIZE", "TX_SEG_SIZE"];
/// Numbers of bytes that these transports choose by themselves: receive buffers, and responses inside
/// of completions.
const CHOSEN: [&str; 2] = ["RX_SEG_SIZE", "IB_TX_INLINE_RESP"];
const FAILURE: &str = "FAILURE";

/// Parses a number of bytes as UCX does: `8192`, `8k`, `inf`.
fn parse_bytes(text: &str) -> Option<usize> {
    if text.eq_ignore_ascii_case("inf") || text.eq_ignore_ascii_case("auto") {
        return Some(usize::MAX);
    }
    let text = text.strip_suffix(['b', 'B']).unwrap_or(text);
    for (unit, shift) in [('k', 10), ('m', 20), ('g', 30)] {
        if let Some(digits) = text.strip_suffix([unit, unit.to_ascii_uppercase()]) {
            return digits.parse::<usize>().ok()?.checked_mul(1 << shift);
        }
    }
    text.parse().ok()
}

impl Default for Config {
    fn default() -> Self {
        Self::new(InterfaceConfig::default())
    }
}

impl Config {
    /// An MPI job has an endpoint for each of its processes, and UCX's transports have no limit.
    const ENDPOINTS: u32 = 4096;

    fn new(interface: InterfaceConfig) -> Self {
        let limit = std::env::var_os("BAREWIRE_MAX_ENDPOINTS");
        let is_limited = limit.is_some_and(|limit| !limit.is_empty());
        let interface =
            if is_limited { interface } else { interface.max_endpoints(Self::ENDPOINTS) };
        Self { interface, segment: usize::MAX, failure: Level::DIAG }
    }

    /// Returns the value of a setting.
    fn get(&self, name: &str) -> Option<String> {
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        if is(FAILURE) {
            return Some(self.failure.name().to_owned());
        }
        if CHOSEN.into_iter().any(is) {
            return Some("auto".to_owned());
        }
        if SEGMENT.into_iter().any(is) {
            let is_limited = self.segment != usize::MAX;
            return Some(if is_limited { self.segment.to_string() } else { "inf".to_owned() });
        }
        let settings = self.interface.settings();
        settings.into_iter().find(|setting| is(setting.name)).map(|setting| setting.value)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Status> {
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        if is(FAILURE) {
            self.failure = Level::parse(value).ok_or(INVALID_PARAM)?;
        } else if SEGMENT.into_iter().any(is) {
            self.segment = parse_bytes(value).ok_or(INVALID_PARAM)?;
        } else if CHOSEN.into_iter().any(is) {
            parse_bytes(value).ok_or(INVALID_PARAM)?;
        } else {
            let changed = self.interface.clone().with_setting(name, value);
            self.interface = changed.ok_or(NO_ELEM)?.map_err(|error| {
                crate::log::error(&error);
                INVALID_PARAM
            })?;
        }
        Ok(())
    }
}

/// Returns the settings of the environment (`BAREWIRE_...`).
fn read() -> Result<*mut Config, Status> {
    match InterfaceConfig::from_env() {
        Ok(interface) => Ok(Box::into_raw(Box::new(Config::new(interface)))),
        Err(error) => {
            crate::log::error(&error);
            Err(INVALID_PARAM)
        }
    }
}

/// # Safety
/// `config` is null or valid for writes.
unsafe fn read_to(config: *mut *mut Config) -> Result<(), Status> {
    if config.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: the caller's pointer.
    unsafe { *config = read()? };
    Ok(())
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
        // SAFETY: the caller's pointer is null or valid for writes.
        unsafe { read_to(config) }
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
        // SAFETY: the caller's pointer is null or valid for writes.
        unsafe { read_to(config) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_config_release(config: *mut Config) {
    if !config.is_null() {
        // SAFETY: settings that were read, and are released once.
        drop(unsafe { Box::from_raw(config) });
    }
}

/// Copies the value of a setting: `SEND_RING`.
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
        let found = config.get(name).ok_or(NO_ELEM)?;
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
        config.set(name, value)
    })
}

/// The settings of a connection manager are those of the environment.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_cm_config_read(
    component: *const Component,
    prefix: *const c_char,
    file: *const c_char,
    config: *mut *mut Config,
) -> Status {
    // SAFETY: contract of that function, which is the same.
    unsafe { uct_md_config_read(component, prefix, file, config) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_ucx_have_its_units() {
        let right = [("8192", 8192), ("8k", 8192), ("2MB", 2 << 20), ("inf", usize::MAX)];
        for (text, expected) in right {
            assert_eq!(parse_bytes(text), Some(expected), "{text}");
        }
        for text in ["", "k", "8x", "-1", "99999999999999999999g"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        let mut config = Config::default();
        assert_eq!(config.set("tx_seg_size", "4k"), Ok(()));
        assert_eq!(config.get("SEG_SIZE").as_deref(), Some("4096"));
        assert_eq!(config.set("FAILURE", "none"), Err(INVALID_PARAM));
        assert_eq!(config.set("FAILURE", "error"), Ok(()));
        assert_eq!(config.get("failure").as_deref(), Some("error"));
        assert_eq!(config.set("NONE", "1"), Err(NO_ELEM));
    }
}
