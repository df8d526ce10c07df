//! Enhancements (ECE) that the ends of a channel agree on.

use std::time::Instant;

use barewire_channel::mlx5::hca;
use barewire_channel::{Config, Receiver, Sender, Usage};

use crate::pair::{DEADLINE, Pair, Shape, config, connect, rails_of, wait};

/// A device that supports the enhancements `ece`, in hexadecimal.
fn device(ece: &str) -> hca::Device {
    let requirements = format!("ece={ece}").parse().unwrap();
    let config = hca::Config::default().requirements(requirements).strict(hca::Strict::Panic);
    hca::Device::open(config).unwrap()
}

/// The enhancements of each rail that works, as the ends report them.
fn of_both(sender: &Sender, receiver: &Receiver) -> [Vec<u32>; 2] {
    [sender.counters(), receiver.counters()].map(|rails| {
        let used = |rail: &barewire_channel::RailCounters| rail.enhancements.bits();
        rails.iter().map(used).collect()
    })
}

#[test]
fn a_rail_uses_the_enhancements_that_both_devices_support() {
    let (allowed, refused) = (config().pairs(2), config().enhancements(false));
    for (ours, theirs, config, used) in [
        ("30000006", "20000003", &allowed, 0x2000_0002),
        ("20000003", "30000006", &allowed, 0x2000_0002),
        ("30000002", "30000002", &allowed, 0x3000_0002),
        ("0", "30000002", &allowed, 0),
        ("30000002", "0", &allowed, 0),
        ("0", "0", &allowed, 0),
        ("30000002", "30000002", &refused, 0),
    ] {
        let (ours, theirs) = ([device(ours)], [device(theirs)]);
        let (from, to) = (rails_of(&ours, Shape::Equal), rails_of(&theirs, Shape::Equal));
        for (first, second) in [(config, &allowed), (&allowed, config)] {
            let (sender, receiver) = connect(&from, &to, first, second);
            let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
            assert_eq!(of_both(&sender, &receiver), [[used]; 2]);
            let memory = [from.allocate(8, Usage::Send), to.allocate(8, Usage::Receive)];
            let [source, target] = memory.map(Result::unwrap);
            let receiving = receiver.receive(&target, 0, 8, 0).unwrap().unwrap();
            let sending = wait("a buffer", || sender.send(&source, 0, 8, 0)).unwrap();
            wait("the receive", || receiver.test(receiving)).unwrap();
            wait("the send", || sender.test(sending)).unwrap();
        }
    }
}

/// The rails of a channel agree on different enhancements, and on the same when they are connected
/// again.
#[test]
fn a_rail_that_is_back_uses_its_enhancements_again() {
    let ours = [device("30000002"), device("30000007")];
    let theirs = [device("10000002"), device("2000000e")];
    let set = |devices| rails_of(devices, Shape::Equal);
    // Every message is cut.
    let config: &Config = &Config::default().timeout(DEADLINE).whole(0);
    let mut pair = Pair::between(set(&ours), set(&theirs), config);
    let used = [0x1000_0002, 0x2000_0006];
    assert_eq!(of_both(&pair.sender, &pair.receiver), [used; 2]);
    let begun = Instant::now();
    let mut until = |used: [u32; 2]| {
        while of_both(&pair.sender, &pair.receiver) != [used; 2] {
            assert!(begun.elapsed() < DEADLINE, "{:?}", of_both(&pair.sender, &pair.receiver));
            let receiving = pair.receive(0, 1000, 0);
            let sending = pair.send(0, 1000, 0);
            let (mut sent, mut received) = (false, false);
            // Both ends are called, since each waits for the other.
            wait("the message", || {
                sent = sent || pair.sender.test(sending)?.is_some();
                received = received || pair.receiver.test(receiving)?.is_some();
                pair.sender.check()?;
                pair.receiver.check()?;
                Ok((sent && received).then_some(()))
            })
            .unwrap();
        }
    };
    assert!(ours[1].inject(hca::Fault::LinkDown));
    // A rail that does not work has none.
    until([used[0], 0]);
    assert!(ours[1].inject(hca::Fault::LinkUp));
    until(used);
}
