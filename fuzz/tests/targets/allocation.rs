//! How much memory this thread holds: no bytes from outside may take more than their share.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    MOST.set(MOST.get().max(held));
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

/// The most bytes that `work` held at a time on top of what there was. Other threads do not count.
pub(crate) fn most(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    work();
    usize::try_from(MOST.get() - before).unwrap_or(0)
}

#[test]
fn the_most_is_what_was_held_at_once() {
    let most = most(|| {
        drop(std::hint::black_box(vec![0_u8; 1 << 20]));
        drop(std::hint::black_box(vec![0_u8; 1 << 19]));
    });
    assert!((1 << 20..1 << 21).contains(&most), "{most}");
}
