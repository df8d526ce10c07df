//! Messages of the tag protocol, alone and as what a peer sends to an open link.

use barewire_wireup::tag::message::{Header, Message, Place};
use barewire_wireup::tag::protocol::{
    Action, Limits, LinkLimits, Machine, Mode, Moved, Opening, Payload, TagError, Window,
};
use bolero::check;

use crate::script::{Script, bytes_to};

#[test]
fn any_tag_messages() {
    check!().with_generator(bytes_to(300)).for_each(|bytes| {
        let Ok((header, body)) = Header::parse(bytes) else { return };
        assert_eq!(header.to_bytes(), bytes[..bytes.len() - body.len()]);
        match Message::parse(header.kind, body) {
            Ok(message) => {
                let mut back = vec![0; body.len()];
                assert_eq!((message.write(&mut back), back.as_slice()), (Some(body.len()), body));
                assert_eq!(message.kind(), header.kind);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

/// A buffer without bytes.
#[derive(Debug, Clone)]
struct Nothing(usize);

impl Payload for Nothing {
    type Grant = ();

    fn len(&self) -> usize {
        self.0
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= self.0);
    }

    fn write(&self, offset: usize, source: &[u8]) {
        assert!(offset + source.len() <= self.0);
    }

    fn share(&self) {}

    fn unshare(&self, _: bool) {}
}

/// A peer sends anything with a plausible header while requests of every kind are open: the link
/// may fail, and then every request completes, but nothing panics and at most the window is
/// buffered.
#[test]
fn any_peer_of_a_tag_link() {
    check!().with_generator(bytes_to(600)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let window = Window { messages: 3, bytes: 200 };
        let mut machine = Machine::new(Limits { window, ..Limits::default() });
        let (link, opening) = machine.open().expect("a link");
        machine.set_limits(link, LinkLimits { message: 128, threshold: 50 });
        machine.connect(link, Opening { link: 0, window });
        let mut requests = vec![
            machine.receive(1, u64::MAX, Nothing(40)),
            machine.send(link, 2, Nothing(20), Mode::Synchronous),
            machine.send(link, 3, Nothing(500), Mode::Auto),
            machine.send(link, 4, Nothing(600), Mode::Auto),
        ];
        let mut target = [0; 128];
        for number in 0.. {
            while let Some(outgoing) = machine.next(link) {
                assert!(outgoing.write(Place::default(), &mut target).is_some());
                machine.sent(link, &outgoing);
            }
            while let Some(action) = machine.action() {
                match action {
                    Action::Expose { request, .. } => machine.exposed(request, None),
                    Action::Fetch(transfer) | Action::Put(transfer) => {
                        machine.moved(transfer.request, Moved::Unsupported);
                    }
                }
            }
            let counters = machine.counters();
            assert!(counters.unexpected_messages <= 3 && counters.unexpected_bytes <= 200);
            if script.is_over() {
                break;
            }
            // A word is a small tag, or the number of one of the requests.
            let choice = script.byte();
            let request = requests[usize::from(choice) % requests.len()].to_u64();
            let word = if choice < 128 { u64::from(choice % 8) } else { request };
            let length = usize::from(script.byte()) % 64;
            let mut message = vec![0; 24];
            message[..8].copy_from_slice(&word.to_le_bytes());
            (message[8], message[9]) = (script.byte() % 12, 1);
            message[10..12].copy_from_slice(&script.array::<2>());
            message[12..16].copy_from_slice(&opening.link.to_le_bytes());
            message[16..20].copy_from_slice(&script.array::<4>());
            message[20..24].copy_from_slice(&u32::to_le_bytes(number));
            message.extend_from_slice(script.bytes(length));
            let arrived = machine.arrived(&message);
            if choice.is_multiple_of(16) {
                requests.push(machine.receive(u64::from(choice), 0, Nothing(30)));
            }
            // A message without a valid header fails no link.
            if arrived.is_err() && Header::parse(&message).is_ok() {
                assert_eq!(machine.failure(link), Some(TagError::Protocol));
                break;
            }
        }
        machine.close(link);
        for request in requests {
            machine.cancel(request);
            assert!(machine.result(request).is_some(), "complete");
            machine.detach(request);
        }
        assert_eq!(machine.requests(), 0);
        assert_eq!(machine.counters().unexpected_messages + machine.counters().announced, 0);
    });
}
