//! Instructions per call of channels over the software HCA, which stands still while calls are
//! counted.
//!
//! Only the functions of the module `counted` count. The limits are in `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind write public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
#[path = "../budget/gate.rs"]
#[allow(dead_code, reason = "as above")]
mod gate;

use barewire_channel::mlx5::channel::soft::Soft;
use barewire_channel::mlx5::{Context, hca};
use barewire_channel::{
    Config, Connector, Key, Listener, Rail, Rails, Receiver, Region, Request, Sender, Target, Usage,
};
use budget::{Level, ROUNDS, Shape};
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};

/// Bytes of a message, which two rails share.
const LENGTH: usize = 64 << 10;

/// A connected channel. It is leaked, so that a bench moves a reference and drops nothing.
struct Ends {
    devices: Vec<hca::Device>,
    sender: Sender,
    receiver: Receiver,
    source: Region,
    target: Region,
}

fn connected(rails: usize) -> &'static mut Ends {
    connected_by(rails, |_, rail| rail)
}

/// A channel of two rails, the second of which is on standby.
fn with_standby() -> &'static mut Ends {
    connected_by(2, |at, rail| if at == 1 { rail.standby() } else { rail })
}

/// A channel of rails that `shape` changes.
fn connected_by(rails: usize, shape: impl Fn(usize, Rail) -> Rail) -> &'static mut Ends {
    let fabric = hca::Fabric::new();
    let open = |_| {
        let wire = hca::WireKind::Fabric(fabric.clone());
        let config = hca::Config::default().mode(hca::Mode::Stepped).wire(wire);
        hca::Device::open(config).expect("software HCA")
    };
    let devices: Vec<_> = (0..2 * rails).map(open).collect();
    let set = |devices: &[hca::Device]| {
        let rail = |(at, device): (usize, &hca::Device)| {
            let context = Context::open(Soft::new(device.clone())).expect("context");
            shape(at, Rail::new(&format!("soft{at}"), &context).expect("rail").subnet_bits(0))
        };
        Rails::new(devices.iter().enumerate().map(rail).collect()).expect("rails")
    };
    let (from, to) = (set(&devices[..rails]), set(&devices[rails..]));
    let (key, config) = (Key::generate().expect("key"), Config::default());
    let address = "127.0.0.1:0".parse().expect("address");
    let mut listener = Listener::bind(&to, address, &key, &config).expect("listener");
    let mut connector =
        Connector::start(&from, &listener.handle(), &key, &config).expect("connector");
    let (mut sender, mut receiver) = (None, None);
    while sender.is_none() || receiver.is_none() {
        if sender.is_none() {
            sender = connector.poll().expect("connected");
        }
        if receiver.is_none() {
            receiver = listener.accept().expect("accepted");
        }
    }
    let source = from.allocate(8 * LENGTH, Usage::Send).expect("region");
    let target = to.allocate(8 * LENGTH, Usage::Receive).expect("region");
    let (sender, receiver) = (sender.expect("sender"), receiver.expect("receiver"));
    Box::leak(Box::new(Ends { devices, sender, receiver, source, target }))
}

impl Ends {
    /// Steps all devices until none has anything to do.
    fn step(&self) {
        while self.devices.iter().fold(false, |any, device| device.step() | any) {}
    }

    fn targets(&self) -> [Target<'_>; 8] {
        std::array::from_fn(|at| Target {
            region: &self.target,
            offset: at * LENGTH,
            length: LENGTH,
            tag: at as u32,
        })
    }
}

/// Asserts that the devices complain about nothing.
fn done(ends: &'static mut Ends) -> &'static mut Ends {
    for device in &ends.devices {
        assert!(device.take_reports().is_empty(), "the device complains");
    }
    ends
}

mod counted {
    use super::{LENGTH, Receiver, Region, Request, Sender, Target};

    #[inline(never)]
    pub(super) fn receive(receiver: &mut Receiver, target: &Region) -> Option<Request> {
        receiver.receive(target, 0, LENGTH, 0).unwrap_or(None)
    }

    #[inline(never)]
    pub(super) fn receive_group(receiver: &mut Receiver, all: &[Target<'_>]) -> Option<Request> {
        receiver.receive_group(all).unwrap_or(None)
    }

    #[inline(never)]
    pub(super) fn send(sender: &mut Sender, source: &Region, tag: u32) -> Option<Request> {
        sender.send(source, 0, LENGTH, tag).unwrap_or(None)
    }

    #[inline(never)]
    pub(super) fn test_sent(sender: &mut Sender, request: Request) -> bool {
        matches!(sender.test(request), Ok(Some(_)))
    }

    #[inline(never)]
    pub(super) fn test_received(receiver: &mut Receiver, request: Request) -> usize {
        match receiver.test(request) {
            Ok(Some(received)) => received.sizes().len(),
            _ => 0,
        }
    }
}

/// The call that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Receive,
    Send,
    NotYet,
    Nothing,
    Received,
    Sent,
}

/// Runs messages from start to end, each completed before the next, in which one call counts.
fn messages(ends: &'static mut Ends, call: Call) -> &'static mut Ends {
    for _ in 0..ROUNDS {
        let (source, target) = (ends.source.clone(), ends.target.clone());
        if call == Call::NotYet {
            assert!(counted::send(&mut ends.sender, &source, 0).is_none());
            continue;
        }
        let receiving = match call {
            Call::Receive => counted::receive(&mut ends.receiver, &target),
            _ => ends.receiver.receive(&target, 0, LENGTH, 0).expect("posted"),
        };
        let receiving = receiving.expect("a free request");
        if call == Call::Nothing {
            assert_eq!(counted::test_received(&mut ends.receiver, receiving), 0);
        }
        ends.step();
        let sending = match call {
            Call::Send => counted::send(&mut ends.sender, &source, 0),
            _ => ends.sender.send(&source, 0, LENGTH, 0).expect("posted"),
        };
        let sending = sending.expect("a buffer");
        ends.step();
        let received = match call {
            Call::Received => counted::test_received(&mut ends.receiver, receiving),
            _ => ends.receiver.test(receiving).expect("ok").map_or(0, |all| all.sizes().len()),
        };
        assert_eq!(received, 1);
        match call {
            Call::Sent => assert!(counted::test_sent(&mut ends.sender, sending)),
            _ => assert_eq!(ends.sender.test(sending).expect("ok"), Some(LENGTH)),
        }
    }
    ends
}

/// Runs groups of eight, each completed before the next.
fn groups(ends: &'static mut Ends, call: Call) -> &'static mut Ends {
    for _ in 0..ROUNDS / 8 {
        let source = ends.source.clone();
        let target = ends.target.clone();
        let targets = Ends::targets(ends).map(|buffer| Target { region: &target, ..buffer });
        let receiving = match call {
            Call::Receive => counted::receive_group(&mut ends.receiver, &targets),
            _ => ends.receiver.receive_group(&targets).expect("posted"),
        };
        let receiving = receiving.expect("a free request");
        ends.step();
        let mut sending = [None; 8];
        for (tag, request) in (0..).zip(&mut sending) {
            *request = match call {
                Call::Send => counted::send(&mut ends.sender, &source, tag),
                _ => ends.sender.send(&source, 0, LENGTH, tag).expect("posted"),
            };
        }
        ends.step();
        let received = match call {
            Call::Received => counted::test_received(&mut ends.receiver, receiving),
            _ => ends.receiver.test(receiving).expect("ok").map_or(0, |all| all.sizes().len()),
        };
        assert_eq!(received, 8);
        for request in sending {
            let request = request.expect("a buffer");
            match call {
                Call::Sent => assert!(counted::test_sent(&mut ends.sender, request)),
                _ => assert_eq!(ends.sender.test(request).expect("ok"), Some(LENGTH)),
            }
        }
    }
    ends
}

fn gate(bench: &str) -> LibraryBenchmarkConfig {
    crate::gate::gate_counted(Level::Channel, Shape::Held, bench)
}

macro_rules! benches {
    ($($name:ident: $run:ident, $ends:expr, $call:ident;)+) => {
        $(#[library_benchmark(config = gate(stringify!($name)))]
        #[bench::run(args = ($ends), teardown = done)]
        fn $name(ends: &'static mut Ends) -> &'static mut Ends {
            $run(ends, Call::$call)
        })+
        library_benchmark_group!(name = held; benchmarks = $($name),+);
    };
}

benches! {
    receive_1: messages, connected(1), Receive;
    send_1: messages, connected(1), Send;
    not_yet_1: messages, connected(1), NotYet;
    nothing_1: messages, connected(1), Nothing;
    received_1: messages, connected(1), Received;
    sent_1: messages, connected(1), Sent;
    receive_2: messages, connected(2), Receive;
    send_2: messages, connected(2), Send;
    not_yet_2: messages, connected(2), NotYet;
    nothing_2: messages, connected(2), Nothing;
    received_2: messages, connected(2), Received;
    sent_2: messages, connected(2), Sent;
    receive_standby: messages, with_standby(), Receive;
    send_standby: messages, with_standby(), Send;
    nothing_standby: messages, with_standby(), Nothing;
    received_standby: messages, with_standby(), Received;
    sent_standby: messages, with_standby(), Sent;
    receive_group: groups, connected(1), Receive;
    send_group: groups, connected(1), Send;
    received_group: groups, connected(1), Received;
    sent_group: groups, connected(1), Sent;
}

iai_callgrind::main!(library_benchmark_groups = held);
