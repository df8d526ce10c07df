//! Two ends in this process over a set of rails: software devices, or devices of the machine if
//! `BAREWIRE_TEST_DEVICES` names them (`cargo xtask test` sets it, with the software HCA behind
//! libmlx5).

use std::time::{Duration, Instant};

use barewire_channel::mlx5::channel::soft::Soft;
use barewire_channel::mlx5::{Context, hca};
use barewire_channel::{
    Config, Connector, Error, HandshakeError, Key, Listener, Rail, Rails, Received, Receiver,
    Region, Request, Sender, Usage,
};

/// For one wait. The machine may be loaded.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// A set of rails to test.
#[derive(Clone, Copy)]
pub(crate) struct Set {
    pub(crate) rails: usize,
    /// Packets of software devices are lost, duplicated and reordered.
    pub(crate) lossy: bool,
    /// Every message has a record.
    pub(crate) adaptive: bool,
    pub(crate) shape: Shape,
}

/// What the rails of a set carry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Equal,
    /// In proportion to their numbers, from 1 on.
    Weighted,
    /// The last one is on standby.
    Standby,
}

impl Shape {
    /// Rail `at` of `count`.
    pub(crate) fn of(self, rail: Rail, at: usize, count: usize) -> Rail {
        match self {
            Self::Weighted => rail.weight(at as u32 + 1),
            Self::Standby if at + 1 == count => rail.standby(),
            _ => rail,
        }
    }
}

impl Set {
    pub(crate) const fn good(rails: usize) -> Self {
        Self { rails, lossy: false, adaptive: false, shape: Shape::Equal }
    }

    pub(crate) const fn lossy(rails: usize) -> Self {
        Self { lossy: true, ..Self::good(rails) }
    }

    pub(crate) const fn weighted(rails: usize) -> Self {
        Self { shape: Shape::Weighted, ..Self::good(rails) }
    }

    pub(crate) const fn standby(rails: usize) -> Self {
        Self { shape: Shape::Standby, ..Self::good(rails) }
    }

    pub(crate) const fn adaptive(rails: usize) -> Self {
        Self { adaptive: true, ..Self::lossy(rails) }
    }
}

/// Devices that run only when they are stepped, on one fabric.
pub(crate) fn stepped(count: usize) -> Vec<hca::Device> {
    let fabric = hca::Fabric::new();
    let open = |_| {
        let wire = hca::WireKind::Fabric(fabric.clone());
        let config = hca::Config::default().mode(hca::Mode::Stepped).wire(wire);
        hca::Device::open(config).unwrap()
    };
    (0..count).map(open).collect()
}

/// A rail for each device. All of them reach each other.
pub(crate) fn rails_of(devices: &[hca::Device], shape: Shape) -> Rails {
    let rail = |(at, device): (usize, &hca::Device)| {
        let context = Context::open(Soft::new(device.clone())).unwrap();
        let rail = Rail::new(&format!("soft{at}"), &context).unwrap().subnet_bits(0);
        shape.of(rail, at, devices.len())
    };
    Rails::new(devices.iter().enumerate().map(rail).collect()).unwrap()
}

/// The devices of a set.
pub(crate) fn contexts(set: Set) -> Vec<Context> {
    if let Some(contexts) = of_machine() {
        return contexts;
    }
    let faults = "drop=0.005,duplicate=0.01,reorder=0.02,seed=7".parse().unwrap();
    let config = hca::Config::default().strict(hca::Strict::Panic);
    let config = if set.lossy { config.faults(faults) } else { config };
    (0..set.rails).map(|_| soft(config.clone())).collect()
}

pub(crate) fn soft(config: hca::Config) -> Context {
    Context::open(Soft::new(hca::Device::open(config).unwrap())).unwrap()
}

#[cfg(feature = "verbs")]
fn of_machine() -> Option<Vec<Context>> {
    let names = std::env::var("BAREWIRE_TEST_DEVICES").ok()?;
    let way =
        std::env::var("BAREWIRE_MLX5_SETUP").ok().map(|way| way.parse().expect("a way of set-up"));
    let open = |name: &str| {
        let (name, port) = name.split_once(':').expect("a device and its port");
        let port = port.parse().expect("the number of a port");
        barewire_channel::mlx5::setup::open(name, port, way)
            .expect("a device that the environment names")
            .context
    };
    Some(names.split(',').map(open).collect())
}

#[cfg(not(feature = "verbs"))]
fn of_machine() -> Option<Vec<Context>> {
    None
}

/// A set of `count` rails; each device has one, or several where there are fewer devices. All
/// reach each other, in their order.
pub(crate) fn rails(contexts: &[Context], count: usize) -> Rails {
    shaped(contexts, count, Shape::Equal)
}

fn shaped(contexts: &[Context], count: usize, shape: Shape) -> Rails {
    let one = |at: usize| {
        let rail = Rail::new(&format!("rail{at}"), &contexts[at % contexts.len()]).unwrap();
        shape.of(rail.subnet_bits(0), at, count)
    };
    Rails::new((0..count).map(one).collect()).unwrap()
}

/// A connected channel, with memory at both ends.
pub(crate) struct Pair {
    // Dropped first.
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) from: Rails,
    pub(crate) to: Rails,
    pub(crate) source: Region,
    pub(crate) target: Region,
}

/// Bytes of the regions of a [`Pair`].
pub(crate) const SIZE: usize = 1 << 20;

pub(crate) fn config() -> Config {
    // 67 ms instead of 268 until a lost packet is sent again.
    Config::default().timeout(DEADLINE).ack_timeout(14).fail_over_timeout(14)
}

impl Pair {
    pub(crate) fn new(set: Set, config: &Config) -> Self {
        let contexts = contexts(set);
        let rails = || shaped(&contexts, set.rails, set.shape);
        let config = config.clone().adaptive_from(set.adaptive.then_some(0));
        Self::between(rails(), rails(), &config)
    }

    pub(crate) fn between(from: Rails, to: Rails, config: &Config) -> Self {
        let (sender, receiver) = connect(&from, &to, config, config);
        let (sender, receiver) = (sender.unwrap(), receiver.unwrap());
        let source = from.allocate(SIZE, Usage::Send).unwrap();
        let target = to.allocate(SIZE, Usage::Receive).unwrap();
        Self { sender, receiver, from, to, source, target }
    }

    /// Announces a buffer, which must be possible.
    pub(crate) fn receive(&mut self, offset: usize, length: usize, tag: u32) -> Request {
        self.receiver.receive(&self.target, offset, length, tag).unwrap().unwrap()
    }

    /// Sends as soon as a buffer is announced.
    pub(crate) fn send(&mut self, offset: usize, length: usize, tag: u32) -> Request {
        wait("a buffer", || self.sender.send(&self.source, offset, length, tag)).unwrap()
    }

    pub(crate) fn sent(&mut self, request: Request) -> usize {
        wait("the send", || self.sender.test(request)).unwrap()
    }

    pub(crate) fn received(&mut self, request: Request) -> Received {
        wait("the receive", || self.receiver.test(request)).unwrap()
    }

    /// One message from start to end. Returns its length at both ends.
    pub(crate) fn message(&mut self, length: usize, room: usize) -> (usize, usize) {
        let receiving = self.receive(0, room, 0);
        let sending = self.send(0, length, 0);
        let received = self.received(receiving);
        (self.sent(sending), received.sizes()[0])
    }

    /// Fills the source with bytes of `seed`, and the target with others.
    pub(crate) fn fill(&mut self, seed: u64, length: usize) -> Vec<u8> {
        let bytes = pattern(seed, length);
        self.source.write(0, &bytes).unwrap();
        self.target.write(0, &bytes.iter().map(|byte| !byte).collect::<Vec<_>>()).unwrap();
        bytes
    }

    pub(crate) fn target(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.target.read(offset, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// Calls until there is a result.
pub(crate) fn wait<T>(
    what: &str,
    mut call: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        if let Some(value) = call()? {
            return Ok(value);
        }
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::yield_now();
    }
}

type Ends = (Result<Sender, HandshakeError>, Result<Receiver, HandshakeError>);

/// Connects two ends, or returns the error of each.
pub(crate) fn connect(from: &Rails, to: &Rails, ours: &Config, theirs: &Config) -> Ends {
    let key = Key::generate().unwrap();
    let mut listener = Listener::bind(to, "127.0.0.1:0".parse().unwrap(), &key, theirs).unwrap();
    let mut connector = Connector::start(from, &listener.handle(), &key, ours).unwrap();
    let start = Instant::now();
    let (mut sender, mut receiver) = (None, None);
    while sender.is_none() || receiver.is_none() {
        if sender.is_none() {
            sender = connector.poll().transpose();
        }
        if receiver.is_none() {
            receiver = listener.accept().transpose();
        }
        assert!(start.elapsed() < 2 * DEADLINE, "connecting took too long");
        std::thread::yield_now();
    }
    (sender.unwrap(), receiver.unwrap())
}
