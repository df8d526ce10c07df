//! Reports in the log of libucs, as far as UCX's own setting `UCX_LOG_LEVEL` asks for them.

use std::ffi::{CString, c_char, c_uint};
use std::fmt::Display;
use std::sync::OnceLock;

use crate::ucs::functions;

/// `ucs_log_level_t`: from the most severe on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(c_uint);

impl Level {
    pub(crate) const ERROR: Self = Self(1);
    /// UCX's default.
    const WARN: Self = Self(2);
    pub(crate) const DIAG: Self = Self(3);
    pub(crate) const INFO: Self = Self(4);
    pub(crate) const DEBUG: Self = Self(5);

    const NAMES: [&str; 12] = [
        "fatal", "error", "warn", "diag", "info", "debug", "trace", "req", "data", "async", "func",
        "poll",
    ];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let at = Self::NAMES.iter().position(|known| known.eq_ignore_ascii_case(name));
        at.map(|at| Self(at as c_uint))
    }

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.get(self.0 as usize).copied().unwrap_or_default()
    }

    /// Returns the least severe level that the program wants.
    fn most() -> Self {
        static MOST: OnceLock<Level> = OnceLock::new();
        *MOST.get_or_init(|| {
            let name = std::env::var("UCX_LOG_LEVEL").unwrap_or_default();
            Self::parse(&name).unwrap_or(Self::WARN)
        })
    }
}

/// `ucs_log_component_config_t`
#[repr(C)]
pub(crate) struct Component {
    level: c_uint,
    name: [c_char; 16],
    file_filter: *const c_char,
}

/// Reports to the log; without libucs, on standard error.
pub(crate) fn report(level: Level, text: &dyn Display) {
    let most = Level::most();
    if level > most {
        return;
    }
    let text = text.to_string();
    let (Some(ucs), Ok(line)) = (functions(), CString::new(text.as_str())) else {
        eprintln!("barewire-uct: {text}");
        return;
    };
    let (name, file_filter) = (crate::text::field("UCT"), c"*".as_ptr());
    let component = Component { level: most.0, name, file_filter };
    let (file, function, format) = (c"barewire".as_ptr(), c"uct".as_ptr(), c"%s".as_ptr());
    // SAFETY: the format takes one string. libucs keeps none of the pointers.
    unsafe {
        (ucs.log)(file, 0, function, level.0, &raw const component, format, line.as_ptr());
    }
}

/// Reports why a call fails.
#[cold]
pub(crate) fn error(text: &dyn Display) {
    report(Level::ERROR, text);
}

/// Reports what a program expects to fail, such as opening a device that may be unusable.
#[cold]
pub(crate) fn diag(text: &dyn Display) {
    report(Level::DIAG, text);
}
