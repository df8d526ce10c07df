//! Rails that carry different amounts, and rails on standby.

use barewire_channel::{HandshakeError, Rails, Target, Usage};

use crate::pair::{Set, wait};
use crate::pair::{Shape, config, connect, contexts, pattern, rails_of, stepped};

/// Bytes of a message: 500 units of 128.
const LENGTH: usize = 64_000;

/// Rails of these weights, on devices that are stepped.
fn weighted(devices: &[barewire_channel::mlx5::hca::Device], weights: &[u32]) -> Rails {
    use barewire_channel::mlx5::{Context, channel::soft::Soft};
    let rail = |(at, (device, weight)): (usize, (_, &u32))| {
        let device: &barewire_channel::mlx5::hca::Device = device;
        let context = Context::open(Soft::new(device.clone())).unwrap();
        let rail = barewire_channel::Rail::new(&format!("soft{at}"), &context).unwrap();
        rail.subnet_bits(0).weight(*weight)
    };
    Rails::new(devices.iter().zip(weights).enumerate().map(rail).collect()).unwrap()
}

/// Only the first rail is stepped: what arrives is its share. The smaller weight of two partners
/// counts, at both ends.
#[test]
fn shares_are_in_proportion_to_weights() {
    for (ours, theirs, first) in [
        ([400_000, 100_000], [400_000, 100_000], LENGTH * 4 / 5),
        ([400_000, 400_000], [400_000, 100_000], LENGTH * 4 / 5),
        ([100, 100], [100, 900], LENGTH / 2),
        ([1, 24], [1, 24], LENGTH / 25),
    ] {
        let devices = stepped(4);
        let (from, to) = (weighted(&devices[..2], &ours), weighted(&devices[2..], &theirs));
        let (sender, receiver) = connect(&from, &to, &config(), &config());
        let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
        let source = from.allocate(LENGTH, Usage::Send).unwrap();
        let target = to.allocate(LENGTH, Usage::Receive).unwrap();
        let bytes: Vec<u8> = pattern(1, LENGTH).iter().map(|byte| byte | 1).collect();
        source.write(0, &bytes).unwrap();
        let receiving = receiver.receive(&target, 0, LENGTH, 0).unwrap().unwrap();
        let step = |devices: &[_]| {
            let step = |device: &barewire_channel::mlx5::hca::Device| device.step();
            while devices.iter().fold(false, |any, device| step(device) | any) {}
        };
        step(&devices);
        let sending = wait("a buffer", || sender.send(&source, 0, LENGTH, 0)).unwrap();
        for _ in 0..1000 {
            devices[0].step();
            devices[2].step();
        }
        let mut got = vec![0; LENGTH];
        target.read(0, &mut got).unwrap();
        let arrived = got.iter().position(|byte| *byte == 0).unwrap_or(LENGTH);
        assert_eq!(arrived, first, "{ours:?} {theirs:?}");
        assert!(got[arrived..].iter().all(|byte| *byte == 0));
        wait("the message", || {
            step(&devices);
            receiver.test(receiving)
        })
        .unwrap();
        wait("the send", || {
            step(&devices);
            sender.test(sending)
        })
        .unwrap();
        target.read(0, &mut got).unwrap();
        assert!(got == bytes);
    }
}

/// Messages that are not cut take turns in proportion, and so do groups.
#[test]
fn turns_are_in_proportion_to_weights() {
    let mut pair = crate::pair::Pair::new(Set::weighted(3), &config());
    for _ in 0..60 {
        assert_eq!(pair.message(8, 8), (8, 8));
    }
    let shares = |pair: &crate::pair::Pair| {
        let counters = [pair.sender.counters(), pair.receiver.counters()];
        counters.map(|all| all.iter().map(|rail| rail.shares).collect::<Vec<_>>())
    };
    let [sent, received] = shares(&pair);
    assert_eq!(sent, received);
    assert_eq!(sent, [10, 20, 30]);
    let region = pair.target.clone();
    for _ in 0..60 {
        let buffer = |tag| Target { region: &region, offset: 0, length: 8, tag };
        let receiving = pair.receiver.receive_group(&[buffer(0), buffer(1)]).unwrap().unwrap();
        let sending = [pair.send(0, 8, 0), pair.send(0, 8, 1)];
        pair.received(receiving);
        for request in sending {
            pair.sent(request);
        }
    }
    assert_eq!(shares(&pair), [[20, 40, 60]; 2]);
}

#[test]
fn a_channel_needs_a_rail_that_is_not_on_standby() {
    let contexts = contexts(Set::good(1));
    let standby = || {
        let rail = barewire_channel::Rail::new("rail0", &contexts[0]).unwrap().subnet_bits(0);
        Rails::new(vec![rail.standby()]).unwrap()
    };
    let (sender, receiver) = connect(&standby(), &standby(), &config(), &config());
    let error = receiver.unwrap_err();
    assert!(matches!(error, HandshakeError::Pairing { .. }), "{error}");
    for words in [error.to_string(), sender.unwrap_err().to_string()] {
        assert!(
            words.contains("every rail is on standby") && words.contains(", standby)"),
            "{words}"
        );
    }
    // One that is on standby at one end only is so for both.
    let devices = stepped(4);
    let from = rails_of(&devices[..2], Shape::Equal);
    let to = rails_of(&devices[2..], Shape::Standby);
    let (sender, receiver) = connect(&from, &to, &config(), &config());
    let (sender, receiver) = (sender.unwrap(), receiver.unwrap());
    assert_eq!((sender.rails(), receiver.rails()), (1, 1));
    let in_use =
        |of: Vec<barewire_channel::RailCounters>| of.iter().map(|one| one.in_use).collect();
    let both: [Vec<bool>; 2] = [in_use(sender.counters()), in_use(receiver.counters())];
    assert_eq!(both, [[true, false]; 2]);
}
