//! What a kernel refuses to a process that it keeps short. `cargo xtask vm` runs each in such a process, `barewire-cli`'s `tests/verbs.rs`
//! the last.

mod support;

use barewire_verbs::{Context, MemoryRegion, OpenError, ProtectionDomain};
use support::{Pages, all_access, device};

#[test]
#[ignore = "needs a limit of 64 KiB of locked memory, and no CAP_IPC_LOCK"]
fn memory_beyond_the_limit() {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let pages = Pages::new(1 << 20);
    // SAFETY: nobody looks at the memory, and the region, if there is one, is dropped at once.
    let region = unsafe { MemoryRegion::register(&domain, pages.start(), 1 << 20, all_access()) };
    let error = region.unwrap_err().to_string();
    println!("{error}");
    for words in ["cannot register 1048576 bytes", "may lock 64 KiB", "RLIMIT_MEMLOCK (ulimit -l unlimited"] {
        assert!(error.contains(words), "{error}");
    }
    // SAFETY: as above.
    unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) }.expect("the process lives");
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
    Context::open(&device()).expect("without DEVX it opens");
}
