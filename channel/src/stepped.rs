//! A channel on devices that run only when they are stepped, for tests.

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::{Context, hca};

use crate::{Config, Connector, Key, Listener, Rail, Rails, Receiver, Region, Sender, Usage};

/// Bytes of the regions of [`filled`].
pub(crate) const SIZE: usize = 4096;
pub(crate) const RAILS: usize = 2;
/// Messages up to this length go over one rail.
pub(crate) const WHOLE: usize = 64;

/// A connected channel.
pub(crate) struct Ends {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) from: Rails,
    pub(crate) to: Rails,
    /// Those of the sender, then those of the receiver.
    pub(crate) devices: Vec<hca::Device>,
}

impl Ends {
    pub(crate) fn new() -> Self {
        Self::over(devices(), &Config::default().whole(WHOLE as u64))
    }

    /// Connects a channel over these devices, the first half of which are the sender's.
    pub(crate) fn over(devices: Vec<hca::Device>, config: &Config) -> Self {
        let set = |devices: &[hca::Device]| {
            let rail = |(at, device): (usize, &hca::Device)| {
                let context = Context::open(Soft::new(device.clone())).unwrap();
                Rail::new(&format!("soft{at}"), &context).unwrap().subnet_bits(0)
            };
            Rails::new(devices.iter().enumerate().map(rail).collect()).unwrap()
        };
        let (near, far) = devices.split_at(devices.len() / 2);
        let (from, to, key) = (set(near), set(far), Key::generate().unwrap());
        let address = "127.0.0.1:0".parse().unwrap();
        let mut listener = Listener::bind(&to, address, &key, config).unwrap();
        let mut connector = Connector::start(&from, &listener.handle(), &key, config).unwrap();
        let (mut sender, mut receiver) = (None, None);
        // Bounded by the deadline of the connection.
        while sender.is_none() || receiver.is_none() {
            if sender.is_none() {
                sender = connector.poll().unwrap();
            }
            if receiver.is_none() {
                receiver = listener.accept().unwrap();
            }
        }
        Self { sender: sender.unwrap(), receiver: receiver.unwrap(), from, to, devices }
    }

    /// Lets the devices run for a while; a lost connection may retry for ever.
    pub(crate) fn step(&self) {
        for _ in 0..200 {
            for device in &self.devices {
                device.step();
            }
        }
    }
}

/// A device for each rail of either end, on one fabric.
pub(crate) fn devices() -> Vec<hca::Device> {
    let fabric = hca::Fabric::new();
    let open = |_| {
        let wire = hca::WireKind::Fabric(fabric.clone());
        let config = hca::Config::default().mode(hca::Mode::Stepped).wire(wire);
        hca::Device::open(config).unwrap()
    };
    (0..2 * RAILS).map(open).collect()
}

pub(crate) fn filled(rails: &Rails, usage: Usage, byte: u8) -> Region {
    let region = rails.allocate(SIZE, usage).unwrap();
    region.write(0, &[byte; SIZE]).unwrap();
    region
}
