//! Messages that fail.

use super::{ALL, HEADER, PLAIN, Tags, eager, rendezvous};
use crate::support::tags::append;
use crate::support::{Connection, LOG_CQ, Qp, Wqe, pattern};
use barewire_layouts::command::qp::QpState;
use barewire_layouts::cqe::{Syndrome, TagEvent};
use barewire_layouts::tag::RendezvousHeader;
use barewire_layouts::wqe::{Opcode, TagFlags, TagSegment};
use zerocopy::IntoBytes;

#[test]
fn a_match_that_fails_is_cancelled_once() {
    // Too long, in one packet and in several; a key that does not exist.
    for (buffer, message, key) in [(10, 11, true), (300, 301, true), (4096, 4, false)] {
        let mut test = Tags::new();
        if !key {
            test.matched.key = 0x00ab_cd00;
        }
        test.append(1, 5, buffer);
        test.xrq.drain();
        test.post(&Wqe::new(Opcode::Send), eager(5), &pattern(message, 3));
        let failed = test.pair.qa.send_cq.poll().unwrap().syndrome;
        let wanted = if key { Syndrome::RemoteInvalidRequest } else { Syndrome::RemoteOperation };
        assert_eq!(failed, Some(wanted));
        let events = test.xrq.drain();
        assert_eq!(events.last(), Some(&(TagEvent::Cancelled, 0)));
        assert_eq!(events.len(), if message > 240 { 2 } else { 1 });
        assert_eq!(test.receiver_state(), QpState::Err);
    }
}

/// Software gets no completion of such a message, so the entries of another queue pair must not
/// wait for one.
#[test]
fn an_unexpected_message_that_fails_is_not_counted() {
    type End = fn(&mut Qp);
    let cases: [(usize, End, Option<Syndrome>); 4] = [
        (PLAIN + 1, |_| (), Some(Syndrome::LocalLength)),
        (PLAIN, |qp| qp.to_error(), Some(Syndrome::WorkRequestFlushed)),
        (PLAIN, Qp::reset, None),
        (PLAIN, Qp::destroy, None),
    ];
    for (length, end, wanted) in cases {
        let mut test = Tags::new();
        let (mut sender, mut receiver) = (Qp::new(&test.pair.a), test.xrq.queue_pair());
        let connection = Connection::default();
        sender.connect(&test.pair.b, receiver.number, &connection, (1, 2));
        receiver.connect(&test.pair.a, sender.number, &connection, (2, 1));

        test.source.memory.write(0, eager(6).as_bytes());
        let (address, key) = (test.source.address(), test.source.key);
        let (half, rest) = (PLAIN / 2, length - PLAIN);
        let mut message = Wqe::new(Opcode::Send).data(address, half, key).data(address, half, key);
        if rest > 0 {
            message = message.data(address, rest, key);
        }
        test.pair.qa.post(&message);
        test.pair.step(1);
        test.list.post(&append(1, (5, ALL), &test.matched, 64));
        test.pair.b.device.step();
        let appended = test.xrq.poll().unwrap();
        assert_eq!(
            (appended.kind, appended.result.hardware_count.get()),
            (Some(TagEvent::Append), 1)
        );

        end(&mut test.pair.qb);
        test.pair.settle();
        let failed = test.xrq.cq.drain();
        assert_eq!(
            failed.iter().filter_map(|cqe| cqe.syndrome).collect::<Vec<_>>(),
            Vec::from_iter(wanted)
        );
        assert_eq!(failed.len(), usize::from(wanted.is_some()));

        test.source.memory.write(0, eager(5).as_bytes());
        sender.post(&Wqe::new(Opcode::Send).data(address, HEADER + 4, key));
        test.pair.settle();
        assert_eq!(test.xrq.drain(), [(TagEvent::ConsumedMessage, 0)]);
    }
}

#[test]
fn a_read_that_is_refused_cancels_the_match() {
    let mut test = Tags::new();
    test.append(1, 5, 4096);
    test.append(2, 6, 4096);
    test.xrq.drain();
    let header = RendezvousHeader { rkey: 0x00ab_cd00.into(), ..test.remote(100) };
    test.post(&Wqe::new(Opcode::Send), rendezvous(5), header.as_bytes());
    assert_eq!(test.xrq.drain(), [(TagEvent::Consumed, 0), (TagEvent::Cancelled, 0)]);
    assert_eq!(test.receiver_state(), QpState::Err);
    assert_eq!(test.pair.qb.send_cq.poll(), None);
}

/// The completion of the cancelled match finds its queue full, which must not move the queue pair to
/// the error state.
#[test]
fn a_reset_that_overruns_the_completion_queue_is_a_reset() {
    for is_read in [false, true] {
        let mut test = Tags::new();
        test.matched = test.pair.b.region(PLAIN);
        test.append(1, 5, PLAIN);
        test.append(2, 6, PLAIN);
        test.xrq.drain();
        // One entry is left, for the match.
        for _ in 1..1 << LOG_CQ {
            test.change(&TagSegment::nop(TagFlags::COMPLETION));
        }
        test.begin(is_read);
        test.pair.step(1);
        assert_eq!(test.pair.b.device.counters().cq_overruns, 0);

        test.pair.qb.reset();
        assert_eq!(test.pair.b.device.counters().cq_overruns, 1, "read: {is_read}");
        assert_eq!(test.receiver_state(), QpState::Rst);
        test.pair.settle();
        assert_eq!(test.receiver_state(), QpState::Rst);
    }
}

/// The program gets the buffer of an entry back, whatever ends the queue pair.
#[test]
fn a_match_is_cancelled_when_its_queue_pair_ends() {
    let ends: [fn(&mut Qp); 3] = [|qp| qp.to_error(), Qp::reset, Qp::destroy];
    for end in ends {
        for is_read in [false, true] {
            let mut test = Tags::new();
            // More than the packets that are sent at once.
            test.matched = test.pair.b.region(PLAIN);
            test.append(1, 5, PLAIN);
            test.append(2, 6, PLAIN);
            test.xrq.drain();
            test.begin(is_read);
            test.pair.step(1);
            assert_eq!(test.xrq.drain(), [(TagEvent::Consumed, 0)]);

            end(&mut test.pair.qb);
            test.pair.settle();
            let events = test.xrq.drain();
            assert_eq!(events, [(TagEvent::Cancelled, 0)], "read: {is_read}");
        }
    }
}
