//! No operation makes a system call: the operations run in a process in which a system call is
//! fatal.

use crate::confinement::{confined, fail, forbid_system_calls, say};
use crate::operations::{DRIVER, Driver, OPERATIONS, ROUNDS, Sides};

/// The filter works.
#[test]
fn a_system_call_is_caught() {
    let end = confined("system_calls::a_system_call_is_caught", || {
        forbid_system_calls();
        // SAFETY: the call has no arguments.
        let _ = unsafe { libc::getppid() };
    });
    assert!(end.was_caught(), "{end}");
}

#[test]
fn no_operation_of_the_driver_makes_one() {
    let end = confined("system_calls::no_operation_of_the_driver_makes_one", || {
        let mut driver = Driver::new();
        forbid_system_calls();
        for (name, post) in DRIVER {
            say(name);
            if !(0..ROUNDS).all(|_| driver.post(*post)) {
                fail("refused");
            }
        }
        driver
    });
    assert!(end.is_well(), "{end}");
}

#[test]
fn no_post_and_no_idle_progress_of_the_api_makes_one() {
    let end = confined("system_calls::no_post_and_no_idle_progress_of_the_api_makes_one", || {
        let mut sides = Sides::with_room_for(ROUNDS);
        forbid_system_calls();
        say("progress with nothing to do");
        if (0..ROUNDS).any(|_| sides.pair.worker.progress() > 0) {
            fail("there was something to do");
        }
        for (name, post) in OPERATIONS {
            say(name);
            if !(0..ROUNDS).all(|_| post(&sides).is_ok()) {
                fail("refused");
            }
        }
        sides
    });
    assert!(end.is_well(), "{end}");
}

/// Progress with completions of every operation, and with messages.
#[test]
fn no_progress_of_the_api_makes_one() {
    let end = confined("system_calls::no_progress_of_the_api_makes_one", || {
        const AT_ONCE: u32 = 50;
        let mut sides = Sides::with_room_for(AT_ONCE);
        for (name, post) in OPERATIONS {
            if !(0..AT_ONCE).all(|_| post(&sides).is_ok()) {
                fail(name);
            }
        }
        sides.let_the_device_work();
        forbid_system_calls();
        for worker in [&mut sides.pair.worker, &mut sides.pair.server_worker] {
            let mut events = 0;
            while let done @ 1.. = worker.progress() {
                events += done;
            }
            if events < AT_ONCE as usize {
                fail("nothing was there");
            }
        }
        sides
    });
    assert!(end.is_well(), "{end}");
}
