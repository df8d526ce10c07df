//! A global allocator that counts the calls and the bytes of each thread.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    CALLS.set(CALLS.get() + 1);
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is forwarded to the system allocator with the same arguments. The counters are
// initialised at compile time and have no destructor, so counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: this function has the contract of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: this function has the contract of `System.dealloc`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: this function has the contract of `System.alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: this function has the contract of `System.realloc`.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

/// Returns the bytes that this thread allocated and did not free.
pub fn held() -> isize {
    HELD.get()
}

/// Returns the result of `work`, and the number of its calls to the allocator.
pub fn calls<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = CALLS.get();
    let result = work();
    (result, CALLS.get() - before)
}

/// Returns the most bytes that `work` held at a time, beyond those held before.
pub fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    usize::try_from(PEAK.get() - before).unwrap_or(0)
}
