//! A peer of one channel of a port sends messages to the other channels of the port.

use std::time::{Duration, Instant};

use barewire::{
    DeviceId, Domain, Endpoint, Flags, Interface, InterfaceConfig, PeerAddress, PostError, Worker,
};
use barewire_channel_generic::{Error, Port, Receiver, Region, Sender, Usage};

/// The active message of channels.
const AM: u8 = 30;
/// Generous: the machine may be busy.
const DEADLINE: Duration = Duration::from_mins(1);
const TRANSPORTS: [&str; 3] = ["shm/memory", "tcp/lo", "rc_mlx5/soft0:1"];

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < DEADLINE, "not within the deadline: {what}");
    }
}

/// A peer with an interface of its own, which sends any bytes to a port.
struct Hostile {
    worker: Worker,
    endpoint: Endpoint,
    _interface: Interface,
    /// The bytes of its handle in front of the address.
    number: Vec<u8>,
}

impl Hostile {
    /// Becomes the sending end of a channel of `port`. Returns the receiving end as well.
    fn connect(device: &DeviceId, port: &Port) -> (Self, Receiver) {
        let mut worker = Worker::new();
        let domain = Domain::open(device).unwrap();
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
        let to_interface = interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE);
        let own = (!to_interface).then(|| Endpoint::new(&interface).unwrap());
        let offer = port.offer().unwrap();
        let handle = offer.handle();
        let address = own.as_ref().map_or_else(|| interface.address(), Endpoint::address);
        let (number, theirs) = handle.split_at(handle.len() - address.to_bytes().len());
        let receiver = offer.receiver(&[number, &address.to_bytes()].concat()).unwrap();
        let theirs = PeerAddress::from_bytes(theirs).unwrap();
        let endpoint = match own {
            Some(own) => {
                own.connect(&theirs).unwrap();
                own
            }
            None => interface.connect(&theirs).unwrap(),
        };
        let number = number.to_vec();
        (Self { worker, endpoint, _interface: interface, number }, receiver)
    }

    fn send(&mut self, port: &Port, message: &[u8]) {
        let pack = |buffer: &mut [u8]| {
            buffer[..message.len()].copy_from_slice(message);
            message.len()
        };
        until("room for a message", || {
            self.worker.progress();
            port.progress();
            match self.endpoint.am_bcopy(AM, pack) {
                Err(PostError::NoResource | PostError::NotConnected) => false,
                sent => sent.is_ok(),
            }
        });
    }

    /// Numbers near its own, and small ones.
    fn guesses(&self) -> Vec<Vec<u8>> {
        let mut own = [0; 8];
        own[..self.number.len()].copy_from_slice(&self.number);
        let own = u64::from_le_bytes(own);
        let near = (1..=8).flat_map(|step| [own.wrapping_sub(step), own.wrapping_add(step)]);
        let small = (0..8).filter(|small| *small != own);
        near.chain(small).map(|guess| guess.to_le_bytes()[..self.number.len()].to_vec()).collect()
    }
}

/// DONE of the first buffer of a channel: `size` bytes are in it.
fn done(number: &[u8], size: u64) -> Vec<u8> {
    [&[2], number, &0_u64.to_le_bytes(), &size.to_le_bytes(), &[0, 0]].concat()
}

fn close(number: &[u8]) -> Vec<u8> {
    [&[3], number].concat()
}

/// An honest channel to `port`.
fn channel(device: &DeviceId, port: &Port) -> (Port, Sender, Receiver) {
    let there = Port::open(device).unwrap();
    let (ours, theirs) = (port.offer().unwrap(), there.offer().unwrap());
    let (our_handle, their_handle) = (ours.handle(), theirs.handle());
    let receiver = ours.receiver(&their_handle).unwrap();
    (there, theirs.sender(&our_handle).unwrap(), receiver)
}

fn transfer(sender: &mut Sender, source: &Region, receiver: &mut Receiver, target: &Region) {
    let receiving = receiver.receive(target, 0, 64, 5).unwrap().unwrap();
    let mut sending = None;
    until("the announcement", || {
        receiver.progress();
        sending = sender.send(source, 0, 64, 5).unwrap();
        sending.is_some()
    });
    until("the message", || {
        sender.progress();
        receiver.test(receiving).unwrap().is_some_and(|sizes| sizes == [64])
    });
    until("the end of the send", || {
        receiver.progress();
        sender.test(sending.unwrap()).unwrap().is_some()
    });
}

#[test]
fn a_peer_of_another_channel_neither_completes_a_receive_nor_closes_the_channel() {
    for name in TRANSPORTS {
        let device: DeviceId = name.parse().unwrap();
        let port = Port::open(&device).unwrap();
        let (there, mut sender, mut receiver) = channel(&device, &port);
        let (mut hostile, mut own) = Hostile::connect(&device, &port);
        let target = port.allocate(4096, Usage::Receive).unwrap();
        let source = there.allocate(4096, Usage::Send).unwrap();
        source.memory().write(0, &[7; 64]).unwrap();
        target.memory().write(0, &[0xaa; 64]).unwrap();
        let receiving = receiver.receive(&target, 0, 64, 5).unwrap().unwrap();
        for guess in hostile.guesses() {
            hostile.send(&port, &done(&guess, 64));
            hostile.send(&port, &close(&guess));
        }
        // The messages before this one have arrived once its own channel is closed.
        let number = hostile.number.clone();
        hostile.send(&port, &close(&number));
        let request = own.receive(&target, 64, 64, 1);
        until("the end of the hostile peer's own channel", || {
            hostile.worker.progress();
            sender.progress();
            own.progress();
            request.as_ref().map_or(true, |request| own.test(request.unwrap()).is_err())
        });
        assert!(matches!(receiver.test(receiving), Ok(None)), "{name}: nothing was sent");
        let mut sending = None;
        until("the announcement", || {
            receiver.progress();
            sending = sender.send(&source, 0, 64, 5).unwrap();
            sending.is_some()
        });
        until("the message", || {
            sender.progress();
            receiver.test(receiving).unwrap().is_some_and(|sizes| sizes == [64])
        });
        let mut bytes = [0; 64];
        target.memory().read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64], "{name}");
        transfer(&mut sender, &source, &mut receiver, &target);
    }
}

#[test]
fn a_peer_that_floods_its_own_channel_ends_it_and_no_other() {
    let device: DeviceId = "shm/memory".parse().unwrap();
    let port = Port::open(&device).unwrap();
    let (there, mut sender, mut receiver) = channel(&device, &port);
    let (mut hostile, mut own) = Hostile::connect(&device, &port);
    let number = hostile.number.clone();
    // A line: group, address, length, tag, count, member, and the longest key.
    let line = [&[1], &number[..], &[0; 28], &[1, 0], &[0; 255]].concat();
    for _ in 0..5000 {
        hostile.send(&port, &line);
    }
    let target = port.allocate(4096, Usage::Receive).unwrap();
    until("the end of the flooded channel", || {
        matches!(own.receive(&target, 0, 64, 1), Err(Error::Failed(_)))
    });
    let source = there.allocate(4096, Usage::Send).unwrap();
    transfer(&mut sender, &source, &mut receiver, &target);
}
