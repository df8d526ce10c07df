//! What ThreadSanitizer in the program knows of this library. AddressSanitizer reads its options
//! from the environment: `barewire hca run` sets one.

use std::ffi::{CStr, c_char};

/// The threads of the devices are not instrumented, so the runtime sees their system calls, and not
/// what orders them. The names are the file's, and that which `cargo install` gives it.
const SUPPRESSIONS: &CStr =
    c"called_from_lib:libbarewire_hca.so\ncalled_from_lib:barewire-hca-preload\n";

/// Returns the suppressions, unless the program has a function of this name. GCC's runtime is a
/// shared library and finds this function; Clang's is linked into the program and does not.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    SUPPRESSIONS.as_ptr()
}
