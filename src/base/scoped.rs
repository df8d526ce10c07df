//! Flags of a thread that are set for the length of a call.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `run` while the flag is set, and then restores it, also after a panic.
pub(crate) fn with<R>(flag: &'static LocalKey<Cell<bool>>, run: impl FnOnce() -> R) -> R {
    struct Restore(&'static LocalKey<Cell<bool>>, bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }

    let _restore = Restore(flag, flag.replace(true));
    run()
}
