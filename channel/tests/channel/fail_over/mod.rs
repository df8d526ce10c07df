//! Rails and ends that fail at every step of some messages, on devices that run only when they are
//! stepped; and rails that fail under load.

mod all;
mod close;
mod load;
mod one;

use barewire_channel::mlx5::hca;
use barewire_channel::{
    Config, Error, RailCounters, Receiver, Region, Request, Sender, Target, Usage,
};
use hca::Fault;

use crate::pair::{Shape, config, connect, pattern, rails_of, stepped};

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
