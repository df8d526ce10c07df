//! No operation allocates or frees memory once the queues exist.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::operations::{DRIVER, Driver, OPERATIONS, ROUNDS, Sides};

thread_local! {
    /// Calls of the allocator by this thread while it counts.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    /// Bytes that this thread allocated, and did not free.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with its calls counted.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(bytes: isize) {
    BYTES.set(BYTES.get() + bytes);
    if IS_COUNTING.get() {
        CALLS.set(CALLS.get() + 1);
    }
}

// SAFETY: everything is the system allocator's; the cells are initialised at compile time and need no memory of their own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size as isize - layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

/// Bytes that this thread holds.
pub(crate) fn held() -> isize {
    BYTES.get()
}

/// What `run` answers, and its calls of the allocator.
fn counted<T>(run: impl FnOnce() -> T) -> (T, u64) {
    CALLS.set(0);
    IS_COUNTING.set(true);
    let answer = run();
    IS_COUNTING.set(false);
    (answer, CALLS.get())
}

#[test]
fn the_allocator_counts() {
    let (boxed, calls) = counted(|| Box::new(std::hint::black_box(7)));
    assert_eq!(calls, 1);
    let ((), calls) = counted(|| drop(std::hint::black_box(boxed)));
    assert_eq!(calls, 1);
}

/// Posts and progress of both sides, with the device, which may allocate, at work in between.
#[test]
fn no_operation_of_the_api_allocates() {
    const AT_ONCE: u32 = 50;
    let mut sides = Sides::with_room_for(AT_ONCE);
    for (name, post) in OPERATIONS {
        let mut events = 0;
        // The first pass warms up.
        for pass in 0..=ROUNDS / AT_ONCE {
            let (posted, calls) = counted(|| (0..AT_ONCE).all(|_| post(&sides).is_ok()));
            assert!(posted, "{name}");
            assert!(pass == 0 || calls == 0, "{name}: {calls} calls of the allocator in {AT_ONCE} posts");
            loop {
                sides.let_the_device_work();
                let (done, calls) =
                    counted(|| sides.pair.worker.progress() + sides.pair.server_worker.progress());
                assert!(pass == 0 || calls == 0, "{name}: {calls} calls of the allocator in progress");
                if done == 0 {
                    break;
                }
                events += done;
            }
        }
        assert!(events > 0, "{name}: nothing was completed");
    }
}

#[test]
fn no_operation_of_the_driver_allocates() {
    for (name, post) in DRIVER {
        let mut driver = Driver::new();
        let (posted, calls) = counted(|| (0..ROUNDS).all(|_| driver.post(*post)));
        assert!(posted, "{name}");
        assert_eq!(calls, 0, "{name}: calls of the allocator");
    }
}
