//! Memory registration: I/O virtual addresses, and the hints in errors.

use crate::support;

use std::os::fd::AsFd;
use std::ptr::NonNull;

use barewire_verbs::{
    Access, CompletionQueue, Context, Data, ForkSafety, MemoryRegion, Operation, ProtectionDomain,
    Remote, Request, SendFlags, fork_safety, prepare_to_fork,
};
use support::{Pages, all_access, completion, connect, device, reliable, to_itself};

fn open() -> (Context, ProtectionDomain) {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    (context, domain)
}

#[test]
#[ignore = "needs a device"]
fn a_region_may_have_addresses_of_its_own() {
    let (context, domain) = open();
    let queue = CompletionQueue::new(&context, 16).unwrap();
    let qp = reliable(&domain, &queue);
    connect(&qp, qp.number(), to_itself(&context, &domain));
    let pages = Pages::new(8192);
    for address in [0, 0x7000_0000_0000] {
        // SAFETY: the memory is read and written by volatile accesses only, and the region is
        // dropped before the memory.
        let region = unsafe {
            MemoryRegion::register_at(&domain, pages.start(), 8192, address, all_access())
        }
        .unwrap();
        assert_eq!(region.address(), address);
        let remote = Remote { address: address + 4096, key: region.remote_key() };
        let operation = Operation::Write { remote, immediate: None };
        let text = format!("{address:12x}");
        let data = Data::Inline(text.as_bytes());
        qp.post(&Request { id: 1, operation, data, flags: SendFlags::SIGNALED }).unwrap();
        completion(&queue).outcome().unwrap();
        assert_eq!(&pages.read::<12>(4096), text.as_bytes());
    }
}

#[test]
#[ignore = "needs a device"]
fn what_is_refused_says_what_to_look_at() {
    let (_context, domain) = open();
    let pages = Pages::new(8192);
    let refused = |start, address, access| {
        // SAFETY: the memory is not accessed while it is registered, and a region that was created
        // is dropped at once.
        let region = unsafe { MemoryRegion::register_at(&domain, start, 8192, address, access) };
        region.unwrap_err().to_string()
    };
    let same = pages.address(0);
    let error = refused(pages.start(), same, Access::REMOTE_WRITE);
    assert!(error.contains("register 8192 bytes") && error.contains("need LOCAL_WRITE"), "{error}");
    let error = refused(NonNull::dangling(), 1, Access::LOCAL_WRITE);
    assert!(error.contains("not mapped"), "{error}");
    let error = refused(pages.start(), same + 8, Access::LOCAL_WRITE);
    assert!(error.contains("the same offset within a page"), "{error}");
}

#[test]
#[ignore = "needs a device"]
fn pages_on_demand_are_taken_or_refused_with_the_reason() {
    let (context, domain) = open();
    let pages = Pages::new(4096);
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    // SAFETY: the memory is not accessed while it is registered, and a region that was created is
    // dropped at once.
    let region = unsafe { MemoryRegion::register(&domain, pages.start(), 4096, access) };
    match region {
        Ok(_) => assert_ne!(context.limits().unwrap().on_demand, 0),
        Err(error) => assert!(error.to_string().contains("no on-demand paging"), "{error}"),
    }
}

#[test]
#[ignore = "needs a device"]
fn rights_that_the_kernel_may_not_know_are_no_error() {
    let (_context, domain) = open();
    let pages = Pages::new(4096);
    let access = all_access() | Access::RELAXED_ORDERING;
    // SAFETY: the memory is not accessed while it is registered, and a region that was created is
    // dropped at once.
    let region = unsafe { MemoryRegion::register(&domain, pages.start(), 4096, access) }.unwrap();
    assert_ne!(region.local_key(), 0);
}

#[test]
#[ignore = "needs a device"]
fn only_a_dmabuf_is_registered_as_one() {
    let (_context, domain) = open();
    let file = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: the descriptor is not a dma-buf, so no memory is registered.
    let region = unsafe {
        MemoryRegion::register_dmabuf(&domain, file.as_fd(), 0, 4096, 0, Access::LOCAL_WRITE)
    };
    let error = region.unwrap_err().to_string();
    assert!(
        error.contains("register 4096 bytes of a dma-buf") && error.contains("; the d"),
        "{error}"
    );
}

#[test]
#[ignore = "needs a device"]
fn limits_are_those_of_the_device() {
    let (context, _domain) = open();
    let limits = context.limits().unwrap();
    assert!(limits.requests > 0 && limits.elements > 0 && limits.completions > 0, "{limits:?}");
    assert!(CompletionQueue::new(&context, limits.completions + 1).is_err());
}

#[test]
#[ignore = "needs a device"]
fn forking_can_be_prepared() {
    let (_context, domain) = open();
    let pages = Pages::new(4096);
    let prepared = prepare_to_fork();
    match (prepared, fork_safety()) {
        (Ok(safety), now) => {
            assert_eq!(safety, now);
            assert_ne!(safety, ForkSafety::None, "{safety}");
        }
        // Another test of this process may have registered memory before.
        (Err(error), ForkSafety::None) => {
            assert!(error.to_string().contains("before the first memory"), "{error}");
        }
        (Err(error), safety) => panic!("{error}, and yet: {safety}"),
    }
    // SAFETY: the memory is not accessed while it is registered, and a region that was created is
    // dropped at once.
    drop(unsafe { MemoryRegion::register(&domain, pages.start(), 4096, all_access()) }.unwrap());
}
