//! Rails and ends that fail at every step of some messages, on devices that run only when they are
//! stepped; and rails that fail under load.

use std::time::{Duration, Instant};

use barewire_channel::mlx5::hca;
use barewire_channel::{
    Config, Error, Failure, RailCounters, Receiver, Region, Request, Sender, Target, Usage,
};
use hca::Fault;

use crate::pair::{DEADLINE, Shape, config, connect, pattern, rails_of, stepped, wait};

const SIZE: usize = LENGTHS.len() * SPACE;
/// What memory holds that no message may write.
const CANARY: u8 = 0xc5;
/// Steps until messages are complete or both ends have failed.
const BOUND: usize = 40_000;
/// Calls after which an end reads the control connection.
const CALLS: usize = 1100;
/// Lengths of the messages. The last four are a group: some take one rail, and some all of them.
const LENGTHS: [usize; 6] = [150_000, 40, 0, 100_000, 50, 300];
/// Bytes between the starts of the buffers; those after each message are canaries.
const SPACE: usize = 160_000;

/// A channel whose devices are stepped, and the messages on it.
struct Run {
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    source: Region,
    target: Region,
    /// Those of the sender, then those of the receiver.
    devices: Vec<hca::Device>,
    steps: usize,
    receiving: Vec<(Request, Vec<usize>)>,
    sending: Vec<(Request, usize)>,
    /// Messages that arrived.
    arrived: [bool; LENGTHS.len()],
    /// The message that is sent next.
    next: usize,
    errors: [Option<String>; 2],
    /// Sends do not wait for those before them.
    together: bool,
    /// An end without requests is not called.
    unchecked: bool,
}

impl Run {
    fn new(rails: usize) -> Self {
        Self::shaped(rails, Shape::Equal)
    }

    fn shaped(rails: usize, shape: Shape) -> Self {
        // Several rails are not tried for long once none of them works.
        let config = if rails > 1 { config().ack_timeout(1) } else { config() };
        Self::with(rails, shape, config)
    }

    fn with(rails: usize, shape: Shape, config: Config) -> Self {
        let devices = stepped(2 * rails);
        let set = |devices| rails_of(devices, shape);
        let (from, to) = (set(&devices[..rails]), set(&devices[rails..]));
        let config = config.whole(64);
        let (sender, receiver) = connect(&from, &to, &config, &config);
        let source = from.allocate(SIZE, Usage::Send).unwrap();
        source.write(0, &pattern(1, SIZE)).unwrap();
        let target = to.allocate(SIZE, Usage::Receive).unwrap();
        target.write(0, &vec![CANARY; SIZE]).unwrap();
        let mut run = Self {
            sender: Some(sender.unwrap()),
            receiver: Some(receiver.unwrap()),
            source,
            target,
            devices,
            steps: 0,
            receiving: Vec::new(),
            sending: Vec::new(),
            arrived: [false; LENGTHS.len()],
            next: 0,
            errors: [None, None],
            together: false,
            unchecked: false,
        };
        run.announce();
        run
    }

    fn announce(&mut self) {
        let receiver = self.receiver.as_mut().unwrap();
        let buffer = |at: usize| Target {
            region: &self.target,
            offset: at * SPACE,
            length: SPACE - 64,
            tag: at as u32,
        };
        for at in 0..2 {
            let request = receiver.receive_group(&[buffer(at)]).unwrap().unwrap();
            self.receiving.push((request, vec![at]));
        }
        let group = [buffer(2), buffer(3), buffer(4), buffer(5)];
        let request = receiver.receive_group(&group).unwrap().unwrap();
        self.receiving.push((request, vec![2, 3, 4, 5]));
    }

    /// Lets sends not wait for those before them.
    fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// Calls no end without requests any more.
    fn unchecked(mut self) -> Self {
        self.unchecked = true;
        self
    }

    /// Steps one device, then calls both ends.
    fn step(&mut self) {
        let device = &self.devices[self.steps % self.devices.len()];
        device.step();
        self.steps += 1;
        let calls = if self.steps.is_multiple_of(32) { CALLS } else { 1 };
        for _ in 0..calls {
            self.call();
        }
        if calls > 1 && !self.unchecked {
            self.check();
        }
    }

    /// An end without requests has to be checked.
    fn check(&mut self) {
        let ours = self.sender.as_mut().and_then(|sender| sender.check().err());
        let theirs = self.receiver.as_mut().and_then(|receiver| receiver.check().err());
        for (first, error) in self.errors.iter_mut().zip([ours, theirs]) {
            *first = first.take().or(error.map(|error| error.to_string()));
        }
    }

    fn call(&mut self) {
        let mut error = None;
        if let Some(sender) = self.sender.as_mut().filter(|_| self.errors[0].is_none()) {
            // One after the other, for more steps.
            let may_send = self.together || self.sending.is_empty();
            if let Some(length) = LENGTHS.get(self.next).filter(|_| may_send) {
                let at = self.next * SPACE;
                match sender.send(&self.source, at, *length, self.next as u32) {
                    Ok(Some(request)) => {
                        self.sending.push((request, self.next));
                        self.next += 1;
                    }
                    Ok(None) => {}
                    Err(failed) => error = Some(failed),
                }
            }
            self.sending.retain(|(request, message)| match sender.test(*request) {
                Ok(None) => true,
                Ok(Some(sent)) => {
                    assert_eq!(sent, LENGTHS[*message]);
                    assert!(matches!(sender.test(*request), Err(Error::UnknownRequest)));
                    false
                }
                Err(failed) => {
                    error = Some(failed);
                    true
                }
            });
        }
        self.errors[0] = self.errors[0].take().or(error.take().map(|error| error.to_string()));
        if let Some(receiver) = self.receiver.as_mut().filter(|_| self.errors[1].is_none()) {
            let (target, source, arrived) = (&self.target, &self.source, &mut self.arrived);
            self.receiving.retain(|(request, members)| match receiver.test(*request) {
                Ok(None) => true,
                Ok(Some(received)) => {
                    let lengths: Vec<_> = members.iter().map(|member| LENGTHS[*member]).collect();
                    assert_eq!(received.sizes(), lengths);
                    assert!(matches!(receiver.test(*request), Err(Error::UnknownRequest)));
                    for member in members {
                        arrived[*member] = true;
                        let (mut got, mut wanted) = (vec![0; SPACE], vec![CANARY; SPACE]);
                        target.read(member * SPACE, &mut got).unwrap();
                        let length = LENGTHS[*member];
                        source.read(member * SPACE, &mut wanted[..length]).unwrap();
                        assert!(got == wanted, "bytes of message {member}");
                        // Nothing may write here any more.
                        target.write(member * SPACE, &vec![CANARY; SPACE]).unwrap();
                    }
                    false
                }
                Err(failed) => {
                    error = Some(failed);
                    true
                }
            });
        }
        self.errors[1] = self.errors[1].take().or(error.map(|error| error.to_string()));
    }

    /// Those of the sender, then those of the receiver.
    fn counters(&self) -> [Vec<RailCounters>; 2] {
        [self.sender.as_ref().unwrap().counters(), self.receiver.as_ref().unwrap().counters()]
    }

    fn is_done(&self) -> bool {
        self.next == LENGTHS.len() && self.sending.is_empty() && self.receiving.is_empty()
    }

    /// Steps until `is_over`.
    fn until(&mut self, what: &str, is_over: impl Fn(&Self) -> bool) {
        let end = self.steps + BOUND;
        while !is_over(self) {
            assert!(self.steps < end, "{what}: {:?} {:?}", self.errors, self.sending);
            self.step();
        }
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    fn inject(&self, device: usize, fault: Fault) {
        assert!(self.devices[device].inject(fault));
    }

    /// Everything arrived, and nothing was written afterwards.
    fn finish(&mut self, what: &str) {
        self.until(what, Self::is_done);
        self.steps(20 * self.devices.len());
        assert_eq!(self.errors, [None, None], "{what}");
        self.is_untouched(what);
    }

    fn is_untouched(&self, what: &str) {
        let mut bytes = vec![0; SIZE];
        self.target.read(0, &mut bytes).unwrap();
        let written = bytes.iter().position(|byte| *byte != CANARY);
        assert_eq!(written, None, "{what}: written after completion");
    }
}

/// Steps of the messages if nothing fails.
fn all_steps(rails: usize) -> usize {
    let mut run = Run::new(rails);
    run.finish("without a failure");
    let mut run = Run::new(rails);
    run.until("without a failure", Run::is_done);
    println!("{rails} rails: {} steps", run.steps);
    assert!(run.steps > 20);
    run.steps
}

/// Lets each rail fail by `fault` at every step, at either end.
fn a_rail_fails(rails: usize, fault: Fault) {
    let all = all_steps(rails);
    for device in 0..2 * rails {
        for at in 0..=all {
            let mut run = Run::new(rails);
            run.steps(at);
            run.inject(device, fault);
            run.finish(&format!("device {device} of {rails} rails, step {at} of {all}"));
        }
    }
}

/// As above, for messages that are all sent at once, so that a group is one part per rail.
#[test]
fn a_rail_fails_at_every_step_of_a_whole_group() {
    for rails in [2, 3] {
        let mut run = Run::new(rails).together();
        run.until("without a failure", Run::is_done);
        let all = run.steps;
        println!("{rails} rails: {all} steps");
        assert!(all > 10);
        for fault in [Fault::LinkDown, Fault::Fatal] {
            for (device, at) in (0..2 * rails).flat_map(|one| (0..=all).map(move |at| (one, at))) {
                let mut run = Run::new(rails).together();
                run.steps(at);
                run.inject(device, fault);
                run.finish(&format!("{fault:?} of {device}, {rails} rails, step {at} of {all}"));
            }
        }
    }
}

#[test]
fn a_link_of_two_fails_at_every_step() {
    a_rail_fails(2, Fault::LinkDown);
}

#[test]
fn a_link_of_three_fails_at_every_step() {
    a_rail_fails(3, Fault::LinkDown);
}

#[test]
fn a_device_of_two_breaks_down_at_every_step() {
    a_rail_fails(2, Fault::Fatal);
}

/// Lets each rail of `shape` fail by `fault` at every step, at either end. The last one is on
/// standby, and in use at the end if another one has failed.
fn a_rail_fails_with_a_standby(rails: usize, fault: Fault) {
    let new = || Run::shaped(rails, Shape::Standby);
    let mut run = new();
    run.until("without a failure", Run::is_done);
    let all = run.steps;
    println!("{rails} rails, one of them on standby: {all} steps");
    for counters in run.counters() {
        let standby = counters.last().unwrap();
        assert_eq!((standby.shares, standby.in_use), (0, false), "{counters:?}");
    }
    for (device, at) in (0..2 * rails).flat_map(|device| (0..=all).map(move |at| (device, at))) {
        let mut run = new();
        run.steps(at);
        run.inject(device, fault);
        let what = format!("{fault:?} of device {device}, {rails} rails, step {at} of {all}");
        run.finish(&what);
        for counters in run.counters() {
            let in_use = counters.iter().filter(|rail| rail.in_use).count();
            // The standby rail is used for one that has failed, and fails only if it is used.
            assert_eq!(in_use, rails - 1, "{what}: {counters:?}");
        }
    }
}

#[test]
fn a_standby_rail_replaces_the_only_one_at_every_step() {
    a_rail_fails_with_a_standby(2, Fault::LinkDown);
    a_rail_fails_with_a_standby(2, Fault::Fatal);
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

/// Closes one end at every step. The other one completes what it has, or fails.
fn an_end_closes(is_sender: bool) {
    let all = all_steps(2);
    let mut left = Vec::new();
    for at in 0..=all {
        let mut run = Run::new(2);
        run.steps(at);
        if is_sender {
            run.sender = None;
            run.sending.clear();
        } else {
            run.receiver = None;
            run.receiving.clear();
        }
        run.steps(100);
        left.push((at, run));
    }
    let end = usize::from(is_sender);
    for (at, mut run) in left {
        let begun = Instant::now();
        loop {
            run.step();
            let rest = if is_sender {
                run.receiving.is_empty()
            } else {
                run.sending.is_empty() && run.next == LENGTHS.len()
            };
            if rest || run.errors[end].is_some() {
                break;
            }
            assert!(begun.elapsed() < DEADLINE, "step {at}");
        }
        if let Some(error) = &run.errors[end] {
            assert!(error.contains("closed"), "{error}");
            // What was received was sent, even if the last acknowledgement is missing.
            let lost = run.sending.iter().find(|(_, message)| run.arrived[*message]);
            assert_eq!(lost, None, "step {at}");
        }
        // What was received was overwritten; the rest may be there in part, inside its buffer.
        let mut bytes = vec![0; SIZE];
        run.target.read(0, &mut bytes).unwrap();
        for (at, length) in LENGTHS.iter().enumerate() {
            let rest = &bytes[at * SPACE + length..(at + 1) * SPACE];
            assert!(rest.iter().all(|byte| *byte == CANARY));
        }
    }
}

#[test]
fn a_sender_closes_at_every_step() {
    an_end_closes(true);
}

#[test]
fn a_receiver_closes_at_every_step() {
    an_end_closes(false);
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

/// Under load, messages go on over the other rail within a second.
#[test]
fn traffic_goes_on_within_a_second() {
    let open = || hca::Device::open(hca::Config::default()).unwrap();
    let devices = [open(), open(), open(), open()];
    let set = |devices| rails_of(devices, Shape::Equal);
    let (from, to) = (set(&devices[..2]), set(&devices[2..]));
    let config = barewire_channel::Config::default();
    let (sender, receiver) = connect(&from, &to, &config, &config);
    let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
    let source = from.allocate(1 << 16, Usage::Send).unwrap();
    let target = to.allocate(1 << 16, Usage::Receive).unwrap();
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    for message in 0..600_u32 {
        if message == 300 {
            assert!(devices[1].inject(Fault::LinkDown));
        }
        source.write(0, &message.to_ne_bytes()).unwrap();
        source.write((1 << 16) - 4, &message.to_ne_bytes()).unwrap();
        let receiving = receiver.receive(&target, 0, 1 << 16, 0).unwrap().unwrap();
        let sending = wait("a buffer", || sender.send(&source, 0, 1 << 16, 0)).unwrap();
        let (mut sent, mut received) = (false, false);
        // Both ends are called, since each waits for the other.
        wait("the message", || {
            sent = sent || sender.test(sending)?.is_some();
            received = received || receiver.test(receiving)?.is_some();
            sender.check()?;
            receiver.check()?;
            Ok((sent && received).then_some(()))
        })
        .unwrap();
        let mut ends = ([0; 4], [0; 4]);
        target.read(0, &mut ends.0).unwrap();
        target.read((1 << 16) - 4, &mut ends.1).unwrap();
        assert_eq!(ends, (message.to_ne_bytes(), message.to_ne_bytes()));
        let now = Instant::now();
        if message >= 300 {
            longest = longest.max(now - last);
        }
        last = now;
    }
    println!("longest time between messages after the loss of a rail: {longest:?}");
    assert!(longest > Duration::from_millis(100), "the rail was not used");
    assert_eq!((sender.rails(), receiver.rails()), (1, 1));
    // Half of each message went over the second rail before, and everything over the first
    // afterwards, with the half that was lost.
    for counters in [sender.counters(), receiver.counters()] {
        let [first, second] = &counters[..] else { panic!("{counters:?}") };
        assert_eq!((first.losses, first.in_use), (0, true));
        assert_eq!((second.losses, second.in_use), (1, false));
        assert!((300..=301).contains(&second.shares), "{second:?}");
        assert!((600..=602).contains(&first.shares), "{first:?}");
    }
    // A loaded machine takes longer.
    assert!(longest < Duration::from_secs(10), "{longest:?}");
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
