//! A rail that fails under load.

use std::time::{Duration, Instant};

use barewire_channel::Usage;
use barewire_channel::mlx5::hca::{self, Fault};

use crate::pair::{Shape, connect, rails_of, wait};

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
