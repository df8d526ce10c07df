//! The behaviours of channels over each transport.

#[path = "../../tests/suite/mod.rs"]
mod suite;

use barewire_channel_generic::{
    Error, Failure, Port, Receiver, Region, Request, Sender, Target, Usage,
};
use std::collections::HashMap;
use suite::{Buffer, Channel, Fault, SIZE};

/// Both ends in this process: on one port for `self`, else on two.
struct Pair {
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    source: Region,
    target: Region,
    /// The requests by their numbers in the suite.
    requests: HashMap<u64, Request>,
}

impl Pair {
    fn open(device: &str) -> Self {
        let device = device.parse().unwrap();
        let here = Port::open(&device).unwrap();
        let is_self = device.to_string().starts_with("self/");
        let there = if is_self { here.clone() } else { Port::open(&device).unwrap() };
        let (ours, theirs) = (here.offer().unwrap(), there.offer().unwrap());
        let (our_handle, their_handle) = (ours.handle(), theirs.handle());
        // Some transports need both ends' progress to connect, which the first calls make.
        let sender = ours.sender(&their_handle).unwrap();
        let receiver = theirs.receiver(&our_handle).unwrap();
        let source = here.allocate(SIZE, Usage::Send).unwrap();
        let target = there.allocate(SIZE, Usage::Receive).unwrap();
        let requests = HashMap::new();
        Self { sender: Some(sender), receiver: Some(receiver), source, target, requests }
    }

    fn number(&mut self, request: Option<Request>) -> Option<u64> {
        let number = self.requests.len() as u64;
        self.requests.insert(number, request?);
        Some(number)
    }

    /// The other end makes progress as well, as it would in another process.
    fn progress(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.progress();
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.progress();
        }
    }
}

fn fault(error: Error) -> Fault {
    match error {
        Error::OutOfBounds { .. } => Fault::OutOfBounds,
        Error::Group(_) => Fault::Group,
        Error::Overlong { .. } => Fault::Overlong,
        Error::Refused { .. } => Fault::Refused,
        Error::UnknownRequest => Fault::UnknownRequest,
        Error::Failed(Failure::Closed | Failure::Lost(_)) => Fault::Closed,
        other => Fault::Other(other.to_string()),
    }
}

impl Channel for Pair {
    fn rails(&self) -> usize {
        1
    }

    fn receive(&mut self, buffers: &[Buffer]) -> Result<Option<u64>, Fault> {
        self.progress();
        let Self { receiver, target: region, .. } = self;
        let target = |buffer: &Buffer| {
            let Buffer { offset, length, tag } = *buffer;
            Target { region, offset, length, tag }
        };
        let targets: Vec<_> = buffers.iter().map(target).collect();
        let request = receiver.as_mut().unwrap().receive_group(&targets).map_err(fault)?;
        Ok(self.number(request))
    }

    fn send(&mut self, offset: usize, length: usize, tag: u32) -> Result<Option<u64>, Fault> {
        self.progress();
        let sender = self.sender.as_mut().unwrap();
        let request = sender.send(&self.source, offset, length, tag).map_err(fault)?;
        Ok(self.number(request))
    }

    fn test_received(&mut self, request: u64) -> Result<Option<Vec<usize>>, Fault> {
        self.progress();
        self.receiver.as_mut().unwrap().test(self.requests[&request]).map_err(fault)
    }

    fn test_sent(&mut self, request: u64) -> Result<Option<usize>, Fault> {
        self.progress();
        self.sender.as_mut().unwrap().test(self.requests[&request]).map_err(fault)
    }

    fn fill_source(&mut self, offset: usize, bytes: &[u8]) {
        self.source.memory().write(offset, bytes).unwrap();
    }

    fn fill_target(&mut self, offset: usize, bytes: &[u8]) {
        self.target.memory().write(offset, bytes).unwrap();
    }

    fn target(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.target.memory().read(offset, &mut bytes).unwrap();
        bytes
    }

    fn close_sender(&mut self) {
        self.sender = None;
    }

    fn close_receiver(&mut self) {
        self.receiver = None;
    }
}

macro_rules! over {
    ($($module:ident: $device:expr;)+) => {
        $(mod $module {
            crate::suite! { Some(crate::Pair::open($device)) }
        })+
    };
}

over! {
    self_: "self/memory";
    shm: "shm/memory";
    tcp: "tcp/lo";
    rc_mlx5: "rc_mlx5/soft0:1";
}

/// Over the machine's devices, if the environment names them: `cargo xtask test` does, with the
/// software HCA behind libibverbs.
mod rc_verbs {
    fn open() -> Option<crate::Pair> {
        let names = std::env::var("BAREWIRE_TEST_DEVICES").ok().filter(|_| cfg!(feature = "verbs"));
        let Some(names) = names else {
            eprintln!("skipped: BAREWIRE_TEST_DEVICES names no device, or no feature verbs");
            return None;
        };
        let device = names.split(',').next().unwrap_or_default();
        Some(crate::Pair::open(&format!("rc_verbs/{device}")))
    }

    crate::suite! { open() }
}
