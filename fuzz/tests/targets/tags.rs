//! Messages of the tag protocol, alone and as what a peer sends to an open link.

use barewire_wireup::tag::Key;
use barewire_wireup::tag::message::{Header, LONGEST_HEADER, Message, Place};
use barewire_wireup::tag::offload::List;
use barewire_wireup::tag::protocol::{
    ANNOUNCED, Action, Expected, Limits, LinkLimits, Machine, Mode, Moved, Opening, Payload,
    TagError, Window, immediate,
};
use bolero::check;

use crate::script::{Script, bytes_to};

#[test]
fn any_tag_messages() {
    check!().with_generator(bytes_to(300)).for_each(|bytes| {
        let Ok((header, body)) = Header::parse(bytes) else { return };
        let mut front = [0; LONGEST_HEADER];
        let length = header.write(&mut front).expect("room");
        assert_eq!(front[..length], bytes[..bytes.len() - body.len()]);
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

/// Sends what a link has to send, over lanes that move no data.
fn send_all<L: List<Expected<Nothing>>>(machine: &mut Machine<Nothing, L>, link: Key) {
    while let Some(outgoing) = machine.next(link) {
        assert!(outgoing.write(Place::default(), &mut [0; 128]).is_some());
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
}

/// Cancels the requests, and asserts that nothing is left.
fn assert_ended<L: List<Expected<Nothing>>>(machine: &mut Machine<Nothing, L>, requests: Vec<Key>) {
    for request in requests {
        machine.cancel(request);
        assert!(machine.result(request).is_some(), "complete");
        machine.detach(request);
    }
    assert_eq!(machine.requests(), 0);
    assert_eq!(machine.counters().unexpected_messages + machine.counters().announced, 0);
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
        let (link, opening) = machine.open(|| 0x1234_5678_9abc_def0).expect("a link");
        machine.set_limits(link, LinkLimits { message: 128, threshold: 50, tagged: 0 });
        machine.connect(link, Opening { link: 0, window, tagged: false });
        let mut requests = vec![
            machine.receive(1, u64::MAX, Nothing(40)),
            machine.send(link, 2, Nothing(20), Mode::Synchronous),
            machine.send(link, 3, Nothing(500), Mode::Auto),
            machine.send(link, 4, Nothing(600), Mode::Auto),
        ];
        let mut number = 0_u32;
        loop {
            send_all(&mut machine, link);
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
            let mut message = word.to_le_bytes().to_vec();
            let has_credit = script.byte().is_multiple_of(2);
            let kind = (script.byte() % 12) | (u8::from(has_credit) << 7);
            message.extend_from_slice(&[kind, number as u8]);
            // A stranger does not know the number of the link.
            let stranger = script.byte().is_multiple_of(16);
            let link_number = opening.link ^ u64::from(stranger);
            message.extend_from_slice(&link_number.to_le_bytes()[..6]);
            if has_credit {
                message.extend_from_slice(&script.array::<4>());
                let [low, high] = script.array();
                message.extend_from_slice(&[low, high, 0, 0]);
            }
            message.extend_from_slice(script.bytes(length));
            let arrived = machine.arrived(&message);
            number += u32::from(!stranger && Header::parse(&message).is_ok());
            if stranger {
                assert!(arrived.is_err(), "{arrived:?}");
                assert_eq!(machine.failure(link), None);
            }
            if choice.is_multiple_of(16) {
                requests.push(machine.receive(u64::from(choice), 0, Nothing(30)));
            }
            // A message without a valid header fails no link.
            if arrived.is_err() && !stranger && Header::parse(&message).is_ok() {
                assert_eq!(machine.failure(link), Some(TagError::Protocol));
                break;
            }
        }
        machine.close(link);
        assert_ended(&mut machine, requests);
    });
}

/// A list with four entries, which are free again when the device has reported their end.
#[derive(Debug, Default)]
struct Entries([bool; 4]);

impl<R> List<R> for Entries {
    fn append(&mut self, _: u64, _: u64, _: &R) -> Option<u16> {
        let free = self.0.iter().position(|used| !used)?;
        self.0[free] = true;
        Some(free as u16)
    }

    fn remove(&mut self, entry: u16) {
        assert!(self.0[usize::from(entry)], "entry {entry} is not in the list");
    }

    fn release(&mut self, entry: u16) {
        if let Some(used) = self.0.get_mut(usize::from(entry)) {
            *used = false;
        }
    }
}

/// Tagged messages of a peer, and reports of a device in any order: nothing panics, at most the
/// window is buffered, and every request ends.
#[test]
fn any_peer_of_a_link_that_a_device_matches() {
    check!().with_generator(bytes_to(600)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let window = Window { messages: 3, bytes: 200 };
        let limits = Limits { window, ..Limits::default() };
        let mut machine = Machine::with_list(limits, Some(Entries::default()));
        let (link, opening) = machine.open(|| 0x1234_5678_9abc_def0).expect("a link");
        machine.set_source(link, Some(5));
        machine.set_limits(link, LinkLimits { message: 128, threshold: 50, tagged: 64 });
        machine.connect(link, Opening { link: 0, window, tagged: true });
        let mut requests = vec![machine.send(link, 2, Nothing(20), Mode::Synchronous)];
        while !script.is_over() {
            let entry = u16::from(script.byte()) % 5;
            let (tag, length) = (u64::from(script.byte() % 4), usize::from(script.byte()) % 40);
            let announced = if script.byte().is_multiple_of(2) { ANNOUNCED } else { 0 };
            let stranger = script.byte();
            let queue_pair = 5 + u32::from(stranger.is_multiple_of(16));
            let changed = u32::from(stranger.is_multiple_of(32));
            let immediate = immediate(opening.link) ^ changed | announced;
            match script.byte() % 8 {
                0 => machine.entry_matched(entry),
                1 => {
                    let _ = machine.entry_received(entry, queue_pair, tag, immediate, length);
                }
                2 => machine.entry_ended(entry, None),
                3 => {
                    let before = machine.failure(link);
                    let body = script.bytes(length);
                    let _ = machine.unexpected(queue_pair, tag, immediate, body);
                    assert!(queue_pair == 5 || machine.failure(link) == before);
                }
                4 => requests.push(machine.send(link, tag, Nothing(length * 4), Mode::Auto)),
                5 if !requests.is_empty() => {
                    machine.cancel(requests[usize::from(entry) % requests.len()]);
                }
                _ => {
                    let mask = u64::MAX >> (length % 2 * 63);
                    requests.push(machine.receive(tag, mask, Nothing(40)));
                }
            }
            send_all(&mut machine, link);
            let counters = machine.counters();
            assert!(counters.unexpected_messages <= 3 && counters.unexpected_bytes <= 200);
        }
        machine.close(link);
        // An entry that ends makes room for another receive.
        for entry in (0..4).cycle().take(4 * (requests.len() + 1)) {
            machine.entry_ended(entry, Some(TagError::Closed));
        }
        assert_ended(&mut machine, requests);
    });
}
