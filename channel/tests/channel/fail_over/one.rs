//! Rails that fail while another one works.

use std::time::Instant;

use barewire_channel::RailCounters;
use barewire_channel::mlx5::hca::Fault;

use super::{Run, all_steps};
use crate::pair::{DEADLINE, Shape, config};

/// Lets each rail of the channels that `new` makes fail by `fault` at every step, at either end.
/// `check` gets each of them, and what was done to it, when all messages have arrived.
fn a_rail_fails(new: impl Fn() -> Run, fault: Fault, check: impl Fn(&Run, &str)) {
    new().finish("without a failure");
    let mut run = new();
    run.until("without a failure", Run::is_done);
    let (all, devices) = (run.steps, run.devices.len());
    println!("{} rails: {all} steps", devices / 2);
    assert!(all > 10);
    for (device, at) in (0..devices).flat_map(|device| (0..=all).map(move |at| (device, at))) {
        let mut run = new();
        run.steps(at);
        run.inject(device, fault);
        let what = format!("{fault:?} of device {device} of {devices}, step {at} of {all}");
        run.finish(&what);
        check(&run, &what);
    }
}

/// The messages are all sent at once, so that a group is one part per rail.
#[test]
fn a_rail_fails_at_every_step_of_a_whole_group() {
    for rails in [2, 3] {
        for fault in [Fault::LinkDown, Fault::Fatal] {
            a_rail_fails(|| Run::new(rails).together(), fault, |_, _| ());
        }
    }
}

#[test]
fn a_link_of_two_fails_at_every_step() {
    a_rail_fails(|| Run::new(2), Fault::LinkDown, |_, _| ());
}

#[test]
fn a_link_of_three_fails_at_every_step() {
    a_rail_fails(|| Run::new(3), Fault::LinkDown, |_, _| ());
}

#[test]
fn a_device_of_two_breaks_down_at_every_step() {
    a_rail_fails(|| Run::new(2), Fault::Fatal, |_, _| ());
}

/// Single messages have records as well.
#[test]
fn a_link_fails_at_every_step_with_adaptive_routing() {
    let config = || config().ack_timeout(1).adaptive_from(Some(0));
    a_rail_fails(|| Run::with(2, Shape::Equal, config()), Fault::LinkDown, |_, _| ());
}

/// The last rail is on standby, and in use at the end if another one has failed.
fn a_rail_fails_with_a_standby(rails: usize, fault: Fault) {
    let mut run = Run::shaped(rails, Shape::Standby);
    run.finish("without a failure");
    for counters in run.counters() {
        let standby = counters.last().unwrap();
        assert_eq!((standby.shares, standby.in_use), (0, false), "{counters:?}");
    }
    a_rail_fails(
        || Run::shaped(rails, Shape::Standby),
        fault,
        |run, what| {
            for counters in run.counters() {
                let in_use = counters.iter().filter(|rail| rail.in_use).count();
                // The standby rail is used for one that has failed, and fails only if it is used.
                assert_eq!(in_use, rails - 1, "{what}: {counters:?}");
            }
        },
    );
}

#[test]
fn a_standby_rail_replaces_the_only_one_at_every_step() {
    for fault in [Fault::LinkDown, Fault::Fatal] {
        a_rail_fails_with_a_standby(2, fault);
    }
}

#[test]
fn a_standby_rail_replaces_one_of_two_at_every_step() {
    a_rail_fails_with_a_standby(3, Fault::LinkDown);
}

/// The standby rail fails as well, at every step after the failure of the other.
#[test]
fn a_standby_rail_fails_alike_at_both_ends() {
    let (mut second, mut failed) = (0, 0);
    loop {
        let mut run = Run::shaped(2, Shape::Standby);
        run.steps(5);
        run.inject(0, Fault::LinkDown);
        run.steps(second);
        let is_late = run.is_done();
        run.inject(3, Fault::LinkDown);
        let what = format!("second failure after {second} steps");
        run.until(&what, |run| run.is_done() || run.errors.iter().all(Option::is_some));
        if !run.is_done() {
            failed += 1;
            assert_eq!(run.errors[0], run.errors[1], "{what}");
            assert!(run.errors[0].as_ref().unwrap().contains("no rail is left"));
        }
        if is_late {
            break;
        }
        second += 1;
    }
    assert!(failed > 20, "{failed} of {second}");
}

/// A rail that works again takes the messages back from the standby rail.
#[test]
fn a_standby_rail_rests_when_the_other_is_back() {
    let mut run = Run::shaped(2, Shape::Standby);
    let begun = Instant::now();
    for round in 0..2 {
        run.inject(2 * round, Fault::LinkDown);
        run.finish("with the standby rail");
        run.inject(2 * round, Fault::LinkUp);
        let uses_first = |run: &Run| {
            let uses = |of: &[RailCounters]| of[0].in_use && !of[1].in_use;
            run.counters().iter().all(|of| uses(of))
        };
        while !uses_first(&run) {
            assert!(begun.elapsed() < DEADLINE, "round {round}");
            run.step();
        }
        let before = run.counters();
        run.next = 0;
        run.announce();
        run.finish("with the first rail");
        let after = run.counters();
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before[1].shares, after[1].shares, "{after:?}");
            assert!(before[0].shares < after[0].shares, "{after:?}");
        }
        run.next = 0;
        run.announce();
    }
    run.finish("at the end");
}

/// Rails fail at every step, and neither end is called any more once its requests are complete: the
/// other one completes its own.
#[test]
fn an_end_that_is_not_called_does_not_hold_up_the_other() {
    for (together, fault) in
        [(false, Fault::LinkDown), (true, Fault::LinkDown), (true, Fault::Fatal)]
    {
        let new = || Run { together, ..Run::new(2).unchecked() };
        let mut run = new();
        run.until("without a failure", Run::is_done);
        let all = run.steps;
        for (device, at) in (0..4).flat_map(|device| (0..=all).map(move |at| (device, at))) {
            let mut run = new();
            run.steps(at);
            run.inject(device, fault);
            run.finish(&format!("{fault:?} of device {device}, {together}, step {at} of {all}"));
        }
    }
}

#[test]
fn failures_in_a_row_leave_one_rail() {
    let all = all_steps(3);
    let mut steps = 0;
    let mut second = 0;
    // The second failure is at every step after the first, while the first is handled.
    loop {
        let mut run = Run::new(3);
        run.steps(all / 2);
        run.inject(0, Fault::LinkDown);
        run.steps(second);
        let is_late = run.is_done();
        run.inject(4, Fault::LinkDown);
        run.finish(&format!("second failure after {second} steps"));
        steps += 1;
        if is_late {
            break;
        }
        second += 1;
    }
    assert!(steps > 100, "{steps}");
}

/// A rail that works again is used again, and then carries everything alone.
#[test]
fn a_failed_rail_comes_back() {
    let mut run = Run::new(2);
    let begun = Instant::now();
    for round in 0..4 {
        let fails = round % 2;
        run.inject(fails, Fault::LinkDown);
        run.finish("with one rail");
        let rails = |run: &Run| {
            (run.sender.as_ref().unwrap().rails(), run.receiver.as_ref().unwrap().rails())
        };
        run.next = 0;
        run.announce();
        // The rail is lost where it was in use.
        run.finish("with one rail, again");
        run.inject(fails, Fault::LinkUp);
        while rails(&run) != (2, 2) {
            assert!(begun.elapsed() < DEADLINE, "rail {fails} in round {round}");
            run.step();
        }
        run.next = 0;
        run.announce();
    }
    run.finish("at the end");
}
