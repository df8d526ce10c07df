//! Registrations that the kernel refuses to a process with low limits. `cargo xtask vm` runs each
//! test in such a process; `tests/verbs.rs` of `barewire-cli` runs the last one.

use crate::support;

use barewire_verbs::{Context, MemoryRegion, OpenError, ProtectionDomain};
use support::{Pages, all_access, device};

#[test]
#[ignore = "needs a limit of 64 KiB of locked memory, and no CAP_IPC_LOCK"]
fn memory_beyond_the_limit() {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let pages = Pages::new(1 << 20);
    // SAFETY: the memory is not accessed while it is registered, and a region that was created is
    // dropped at once.
    let region = unsafe { MemoryRegion::register(&domain, pages.start(), 1 << 20, all_access()) };
    let error = region.unwrap_err().to_string();
    println!("{error}");
    for words in
        ["cannot register 1048576 bytes", "may lock 64 KiB", "RLIMIT_MEMLOCK (ulimit -l unlimited"]
    {
        assert!(error.contains(words), "{error}");
    }
    // SAFETY: the memory is not accessed while it is registered, and a region that was created is
    // dropped at once.
    let region = unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) };
    drop(region.expect("a small registration must succeed"));
}

#[test]
#[ignore = "needs a device file without permission"]
fn a_device_without_permission() {
    let error = Context::open(&device()).unwrap_err();
    println!("{error}");
    assert!(matches!(error, OpenError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("check its owner and mode"), "{error}");
}

#[test]
#[ignore = "needs a device that refuses DEVX: barewire hca run --no-devx"]
fn a_device_without_devx() {
    let error = Context::open_devx(&device()).unwrap_err();
    println!("{error}");
    assert!(matches!(error, OpenError::DevxRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("objects of verbs may still be opened"), "{error}");
    drop(Context::open(&device()).expect("the device must open without DEVX"));
}
