//! Rendezvous messages, whose data the device or software reads.

use super::{Tags, rendezvous};
use crate::support::{Wqe, pattern};
use barewire_hca::Faults;
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::cqe::{CqeOpcode, TagEvent};
use barewire_layouts::tag::{TagHeader, TagOpcode};
use barewire_layouts::wqe::{Opcode, TagFlags, TagSegment};
use zerocopy::IntoBytes;

#[test]
fn the_device_reads_the_data_of_a_rendezvous() {
    for (length, mtu) in [(0, 256), (3000, 256), (3000, 4096), (256 * 9, 256)] {
        let mtu = if mtu == 256 { Mtu::Bytes256 } else { Mtu::Bytes4096 };
        let mut test = Tags::with(Faults::default(), mtu);
        test.append(1, 5, 4096);
        test.xrq.drain();
        let data = pattern(length, 2);
        test.source.memory.write(4096, &data);
        let reply = test.pair.a.region(64);
        test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
        let header = test.remote(length as u32);
        test.send(rendezvous(5), &[header.as_bytes(), b"of the program"].concat());
        let first = test.xrq.poll().unwrap();
        assert_eq!((first.kind, first.header), (Some(TagEvent::Consumed), rendezvous(5)));
        let last = test.xrq.poll().unwrap();
        assert_eq!((last.kind, last.header), (Some(TagEvent::Expected), TagHeader::default()));
        assert_eq!((last.entry, last.length as usize), (0, length));
        assert_eq!(test.matched.memory.read(0, length), data);
        let finished = test.pair.qa.receive_cq.poll().unwrap();
        assert_eq!((finished.opcode, finished.length), (CqeOpcode::ResponderSend, 16));
        let end = TagHeader { opcode: TagOpcode::Finished as u8, ..rendezvous(5) };
        assert_eq!(reply.memory.read(0, 16), end.as_bytes());
        // The requests of the device have no completion of their own.
        assert_eq!((test.pair.qb.send_cq.poll(), test.xrq.poll()), (None, None));
    }
}

#[test]
fn a_rendezvous_without_a_match_is_left_to_software() {
    let mut test = Tags::new();
    let header = test.remote(100);
    test.send(rendezvous(5), header.as_bytes());
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    assert_eq!(test.plain.memory.read(16, 16), header.as_bytes());
    // Too long for the device, and too short for its header.
    test.change(&TagSegment::nop(TagFlags::empty()).with_software_count(1));
    test.append(1, 5, 4096);
    test.xrq.drain();
    test.send(rendezvous(5), &[header.as_bytes(), &[0; 33]].concat());
    test.send(rendezvous(5), &[0; 15]);
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0), (TagEvent::Unexpected, 0)]);
}

#[test]
fn a_rendezvous_that_does_not_fit_is_matched_and_left_to_software() {
    let mut test = Tags::new();
    test.append(1, 5, 64);
    test.xrq.drain();
    let header = test.remote(65);
    test.send(rendezvous(5), header.as_bytes());
    let matched = test.xrq.poll().unwrap();
    assert_eq!(matched.kind, Some(TagEvent::ConsumedMessageSoftware));
    assert_eq!((matched.header, matched.length), (rendezvous(5), 16));
    assert_eq!(test.matched.memory.read(0, 16), header.as_bytes());
    assert_eq!(test.xrq.poll(), None);
}

/// The sender accepts no end of a rendezvous, so the reads of the others wait.
#[test]
fn software_reads_what_is_too_much_for_the_device() {
    const MESSAGES: u16 = 100;
    let mut test = Tags::new();
    for next in 1..=MESSAGES {
        test.append(next, 5, 64);
    }
    test.xrq.drain();
    let header = test.remote(8);
    test.source.memory.write(0, &[rendezvous(5).as_bytes(), header.as_bytes()].concat());
    let message = Wqe::new(Opcode::Send).data(test.source.address(), 32, test.source.key);
    for _ in 0..MESSAGES {
        test.pair.qa.post(&message);
        test.pair.step(2);
    }
    let reply = test.pair.a.region(64);
    test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
    let (mut consumed, mut left, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut finished = 0;
    for _ in 0..100_000 {
        test.pair.step(1);
        for _ in test.pair.qa.receive_cq.drain() {
            test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
            finished += 1;
        }
        for (event, entry) in test.xrq.drain() {
            match event {
                TagEvent::Consumed => consumed.push(entry),
                TagEvent::ConsumedMessageSoftware => left.push(entry),
                TagEvent::Expected => last.push(entry),
                other => panic!("{other:?}"),
            }
        }
        if finished == consumed.len() && finished + left.len() == usize::from(MESSAGES) {
            break;
        }
    }
    let read = consumed.len() as u16;
    assert!((32..MESSAGES).contains(&read), "{read} rendezvous");
    assert!(consumed.into_iter().eq(0..read));
    assert!(left.into_iter().eq(read..MESSAGES));
    assert!(last.into_iter().eq(0..read));
    assert_eq!(finished, usize::from(read));
}
