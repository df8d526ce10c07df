//! Reports on standard error, as far as UCX's own setting `UCX_LOG_LEVEL` asks for them.

use std::fmt::Display;
use std::sync::OnceLock;

/// UCX's levels, from the most severe on.
const LEVELS: [&str; 12] = [
    "fatal", "error", "warn", "diag", "info", "debug", "trace", "req", "data", "async", "func",
    "poll",
];
const ERROR: usize = 1;
/// UCX's default.
const WARN: usize = 2;
const DIAG: usize = 3;

fn is_reported(level: usize) -> bool {
    static LEVEL: OnceLock<usize> = OnceLock::new();
    let most = *LEVEL.get_or_init(|| {
        let name = std::env::var("UCX_LOG_LEVEL").unwrap_or_default().to_lowercase();
        LEVELS.iter().position(|known| *known == name).unwrap_or(WARN)
    });
    level <= most
}

fn report(level: usize, text: &dyn Display) {
    if is_reported(level) {
        eprintln!("barewire-uct: {text}");
    }
}

/// Reports why a call fails.
#[cold]
pub(crate) fn error(text: &dyn Display) {
    report(ERROR, text);
}

/// Reports what a program expects to fail, such as opening a device that may be unusable.
#[cold]
pub(crate) fn diag(text: &dyn Display) {
    report(DIAG, text);
}
