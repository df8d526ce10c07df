//! All rails fail, for good or for a while.

use std::time::{Duration, Instant};

use barewire_channel::mlx5::hca::{self, Fault};
use barewire_channel::{Config, Error, Failure, Target, Usage};

use super::{Run, all_steps};
use crate::pair::{DEADLINE, Shape, config, connect, rails_of, wait};

#[test]
fn without_rails_both_ends_fail_alike_at_every_step() {
    let all = all_steps(2);
    for at in 0..all {
        for gap in [0, 1, 7] {
            let mut run = Run::new(2);
            run.steps(at);
            run.inject(0, Fault::LinkDown);
            run.steps(gap);
            run.inject(3, Fault::LinkDown);
            let what = format!("step {at} of {all}, then {gap}");
            run.until(&what, |run| run.is_done() || run.errors.iter().any(Option::is_some));
            if run.is_done() {
                continue;
            }
            run.until(&what, |run| run.errors.iter().all(Option::is_some));
            let [ours, theirs] = &run.errors;
            assert_eq!(ours, theirs, "{what}");
            let text = ours.as_ref().unwrap();
            for part in ["no rail is left", "soft0", "soft1", "a write", "syndrome", "queue pair"] {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
    }
}

/// All rails fail, at every second step, and work again later: no message is lost. In some runs
/// they are tried in vain meanwhile.
#[test]
fn all_rails_fail_for_a_while() {
    let all = all_steps(2);
    let mut lost = 0;
    let faults = [[0, 1], [0, 3], [2, 3]].into_iter().cycle();
    for (round, (at, faults)) in (0..=all).step_by(2).zip(faults).enumerate() {
        let what = format!("links {faults:?} at step {at} of {all}");
        let mut run = Run::with(2, Shape::Equal, config().ack_timeout(20));
        run.steps(at);
        for device in faults {
            run.inject(device, Fault::LinkDown);
        }
        let begun = Instant::now();
        let rails = |run: &Run| {
            run.sender.as_ref().unwrap().rails() + run.receiver.as_ref().unwrap().rails()
        };
        // What has arrived may need no rail any more.
        while rails(&run) > 0 && !run.is_done() {
            assert!(begun.elapsed() < DEADLINE, "{what}");
            run.step();
        }
        lost += u32::from(rails(&run) == 0);
        if round % 4 == 0 {
            let without = Instant::now();
            while without.elapsed() < Duration::from_millis(300) {
                run.step();
            }
        }
        for device in faults {
            run.inject(device, Fault::LinkUp);
        }
        while !run.is_done() {
            assert_eq!(run.errors, [None, None], "{what}");
            assert!(begun.elapsed() < DEADLINE, "{what}");
            run.step();
        }
        run.finish(&what);
    }
    assert!(lost > 10, "{lost}");
}

/// No rail has a link until all are lost and 0.2 s longer, as behind a switch that restarts a
/// protocol. A channel of one rail retries for longer, and so does one of several.
#[test]
fn traffic_survives_an_interruption_of_all_rails() {
    let open = || hca::Device::open(hca::Config::default()).unwrap();
    let devices = [open(), open(), open(), open()];
    let set = |devices| rails_of(devices, Shape::Equal);
    let (from, to) = (set(&devices[..2]), set(&devices[2..]));
    let config = Config::default();
    let (sender, receiver) = connect(&from, &to, &config, &config);
    let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
    let source = from.allocate(1 << 16, Usage::Send).unwrap();
    let target = to.allocate(1 << 16, Usage::Receive).unwrap();
    let begun = Instant::now();
    let mut down = None;
    let mut message = 0_u32;
    // Some messages before, during and after the interruption.
    while message < 20 || down != Some(false) || sender.rails() + receiver.rails() < 4 {
        assert!(begun.elapsed() < DEADLINE);
        if message == 10 && down.is_none() {
            assert!(devices[..2].iter().all(|device| device.inject(Fault::LinkDown)));
            down = Some(true);
        }
        source.write(0, &message.to_ne_bytes()).unwrap();
        source.write((1 << 16) - 4, &message.to_ne_bytes()).unwrap();
        let (mut receiving, mut sending, mut sent, mut received) = (None, None, false, false);
        let mut lost = None;
        wait("the message", || {
            if sender.rails() + receiver.rails() == 0 {
                lost = lost.or(Some(Instant::now()));
            }
            if down == Some(true)
                && lost.is_some_and(|lost| lost.elapsed() > Duration::from_millis(200))
            {
                assert!(devices[..2].iter().all(|device| device.inject(Fault::LinkUp)));
                down = Some(false);
            }
            if receiving.is_none() {
                receiving = receiver.receive(&target, 0, 1 << 16, 0)?;
            }
            if sending.is_none() {
                sending = sender.send(&source, 0, 1 << 16, 0)?;
            }
            if let Some(request) = sending.filter(|_| !sent) {
                sent = sender.test(request)?.is_some();
            }
            if let Some(request) = receiving.filter(|_| !received) {
                received = receiver.test(request)?.is_some();
            }
            sender.check()?;
            receiver.check()?;
            Ok((sent && received).then_some(()))
        })
        .unwrap();
        let mut ends = ([0; 4], [0; 4]);
        target.read(0, &mut ends.0).unwrap();
        target.read((1 << 16) - 4, &mut ends.1).unwrap();
        assert_eq!(ends, (message.to_ne_bytes(), message.to_ne_bytes()));
        message += 1;
    }
    for counters in [sender.counters(), receiver.counters()] {
        assert!(counters.iter().all(|rail| rail.losses >= 1 && rail.in_use), "{counters:?}");
    }
}

#[test]
fn a_single_rail_fails_with_both_ends() {
    let mut run = Run::new(1);
    run.steps(3);
    run.inject(1, Fault::LinkDown);
    run.until("the failure", |run| run.errors.iter().all(Option::is_some));
    assert_eq!(run.errors[0], run.errors[1]);
    assert_eq!(run.sender.as_ref().unwrap().rails(), 0);
    assert_eq!(run.receiver.as_ref().unwrap().rails(), 0);
    let source = run.source.clone();
    let Error::Failed(failure) = run.sender.as_mut().unwrap().send(&source, 0, 0, 0).unwrap_err()
    else {
        panic!("the channel works");
    };
    let Failure::Rails(failures) = &*failure else { panic!("{failure}") };
    assert_eq!(failures.len(), 1);
    assert!(failures[0].syndrome.is_some(), "{failure}");
    assert_ne!(failures[0].from, failures[0].to);
}

/// The age of the operation is that of the write, not of its queue pair.
#[test]
fn errors_have_the_age_of_the_operation() {
    let open = || hca::Device::open(hca::Config::default()).unwrap();
    let devices = [open(), open()];
    let set = |devices| rails_of(devices, Shape::Equal);
    let (from, to) = (set(&devices[..1]), set(&devices[1..]));
    // 17 ms, eight times.
    let config = config().ack_timeout(12);
    let (sender, receiver) = connect(&from, &to, &config, &config);
    let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
    let source = from.allocate(64, Usage::Send).unwrap();
    let target = to.allocate(64, Usage::Receive).unwrap();
    let buffer = |tag| Target { region: &target, offset: 0, length: 64, tag };
    let receiving = receiver.receive_group(&[buffer(0), buffer(1)]).unwrap().unwrap();
    let first = wait("a buffer", || sender.send(&source, 0, 64, 0)).unwrap();
    wait("the first send", || sender.test(first)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(devices[1].inject(Fault::LinkDown));
    let posted = Instant::now();
    let second = wait("the other buffer", || sender.send(&source, 0, 64, 1)).unwrap();
    let (mut ours, mut theirs) = (None, None);
    while ours.is_none() || theirs.is_none() {
        if ours.is_none() {
            ours = sender.test(second).err();
        }
        if theirs.is_none() {
            theirs = receiver.test(receiving).err();
        }
        assert!(posted.elapsed() < DEADLINE);
    }
    for error in [ours.unwrap(), theirs.unwrap()] {
        let Error::Failed(failure) = &error else { panic!("{error}") };
        let Failure::Rails(rails) = &**failure else { panic!("{error}") };
        assert!(rails[0].age > Duration::from_millis(30), "{error}");
        assert!(rails[0].age <= posted.elapsed(), "{error}");
        assert!(rails[0].connected > rails[0].age + Duration::from_millis(200), "{error}");
        assert!(error.to_string().contains("s after it was posted"), "{error}");
    }
}
