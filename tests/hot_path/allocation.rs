//! No operation allocates or frees memory once the queues exist.

#[path = "../support/allocator.rs"]
mod allocator;

pub(crate) use allocator::held;

use crate::operations::{DRIVER, Driver, OPERATIONS, ROUNDS, Sides};

#[test]
fn the_allocator_counts() {
    let (boxed, calls) = allocator::calls(|| Box::new(std::hint::black_box(7)));
    assert_eq!(calls, 1);
    let ((), calls) = allocator::calls(|| drop(std::hint::black_box(boxed)));
    assert_eq!(calls, 1);
}

/// Posts and progress of both sides. The device, which may allocate, runs in between.
#[test]
fn no_operation_of_the_api_allocates() {
    const AT_ONCE: u32 = 50;
    let mut sides = Sides::with_room_for(AT_ONCE);
    for (name, post) in OPERATIONS {
        let mut events = 0;
        // The first pass is the warm-up.
        for pass in 0..=ROUNDS / AT_ONCE {
            let (posted, calls) = allocator::calls(|| (0..AT_ONCE).all(|_| post(&sides).is_ok()));
            assert!(posted, "{name}");
            assert!(
                pass == 0 || calls == 0,
                "{name}: {calls} calls of the allocator in {AT_ONCE} posts"
            );
            loop {
                sides.let_the_device_work();
                let (done, calls) = allocator::calls(|| {
                    sides.pair.worker.progress() + sides.pair.server_worker.progress()
                });
                assert!(
                    pass == 0 || calls == 0,
                    "{name}: {calls} calls of the allocator in progress"
                );
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
        let (posted, calls) = allocator::calls(|| (0..ROUNDS).all(|_| driver.post(*post)));
        assert!(posted, "{name}");
        assert_eq!(calls, 0, "{name}: calls of the allocator");
    }
}
