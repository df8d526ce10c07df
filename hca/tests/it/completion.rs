//! Completion queues: long entries, inline data, resizing, parameters.

use crate::support::{Connection, Cq, Memory, Node, Pair, Qp, Wqe, command, pattern};
use barewire_hca::{Fabric, Faults, UmemAccess};
use barewire_layouts::command::CommandStatus;
use barewire_layouts::command::cq::{
    CqParameters, CqResize, Cqc, CqeSize, ModifyCqIn, ModifyCqKind,
};
use barewire_layouts::command::qp::Qpc;
use barewire_layouts::cqe::{CqeFormat, CqeOpcode};
use barewire_layouts::wqe::Opcode;

/// Two devices with entries of this size, whose queue pairs have these modes of scatter to CQE.
fn pair(entry: CqeSize, requester: u8, responder: u8) -> Pair {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let qp = |node| {
        let cq = || Cq::with(node, 4, entry, |_| ());
        Qp::with(node, cq(), cq(), |context| {
            context.set(Qpc::CS_REQ, requester).set(Qpc::CS_RES, responder);
        })
    };
    let (qa, qb) = (qp(&a), qp(&b));
    Pair::of(a, b, (qa, qb), &Connection::default())
}

/// The format of the last entry, and its data.
fn inline(cq: &Cq, length: usize) -> (CqeFormat, Vec<u8>) {
    let cqe = &cq.last[cq.last.len() - 64..];
    let format = CqeFormat::from_op_own(cqe[63]);
    let start = if format == CqeFormat::Inline64 { 0 } else { cq.last.len() - 64 };
    (format, cq.last[start..start + length].to_vec())
}

#[test]
fn messages_lie_in_the_entry_if_they_fit() {
    for (entry, mode, most) in
        [(CqeSize::Bytes64, 1, 32), (CqeSize::Bytes64, 2, 32), (CqeSize::Bytes128, 2, 64)]
    {
        let mut pair = pair(entry, 0, mode);
        let (source, target) = (pair.a.region(256), pair.b.region(256));
        for length in [1, 31, 32, 33, 64, 65] {
            let data = pattern(length, length as u64);
            source.memory.write(0, &data);
            target.memory.write(0, &[0; 256]);
            pair.qb.post_receive(&[(target.address(), 256, target.key)]);
            pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), length, source.key));
            pair.settle();
            assert!(pair.qa.send_cq.poll().unwrap().is_ok());
            let completion = pair.qb.receive_cq.poll().expect("a message");
            assert_eq!(
                (completion.opcode, completion.length),
                (CqeOpcode::ResponderSend, length as u32)
            );
            let (format, bytes) = inline(&pair.qb.receive_cq, length.min(64));
            let want = if length > most {
                CqeFormat::Plain
            } else if length <= 32 {
                CqeFormat::Inline32
            } else {
                CqeFormat::Inline64
            };
            assert_eq!(format, want, "{length} of {most}");
            if want == CqeFormat::Plain {
                assert_eq!(target.memory.read(0, length), data);
            } else {
                assert_eq!((bytes, target.memory.read(0, 256)), (data, vec![0; 256]));
            }
        }
    }
}

#[test]
fn results_lie_in_the_entry_if_they_are_signalled() {
    let mut pair = pair(CqeSize::Bytes128, 0x22, 0);
    let (local, remote) = (pair.a.region(256), pair.b.region(256));
    let data = pattern(256, 9);
    remote.memory.write(0, &data);
    let read = |length| {
        Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key).data(
            local.address(),
            length,
            local.key,
        )
    };
    for (length, format) in
        [(8, CqeFormat::Inline32), (48, CqeFormat::Inline64), (65, CqeFormat::Plain)]
    {
        pair.qa.post(&read(length));
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().length, length as u32);
        let got = inline(&pair.qa.send_cq, length.min(64));
        assert_eq!(got.0, format);
        if format == CqeFormat::Plain {
            assert_eq!(local.memory.read(0, length), data[..length]);
        } else {
            assert_eq!((got.1, local.memory.read(0, 8)), (data[..length].to_vec(), vec![0; 8]));
        }
    }
    // Without a completion there is no room but the buffer.
    local.memory.write(0, &[0; 256]);
    pair.qa.post(&read(8).unsignalled());
    let add = Wqe::new(Opcode::AtomicFetchAdd)
        .remote(remote.address() + 8, remote.key)
        .atomic(1, 0)
        .data(local.address() + 8, 8, local.key);
    pair.qa.post(&add);
    pair.settle();
    assert_eq!(local.memory.read(0, 16), [&data[..8], &[0; 8]].concat());
    assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    // In a completion the result of an atomic is big-endian.
    let result = data[8..16].iter().rev().copied().collect();
    assert_eq!(inline(&pair.qa.send_cq, 8), (CqeFormat::Inline32, result));
}

fn resize(cq: &Cq, node: &Node, memory: &Memory, log_size: u8) -> Result<Vec<u8>, CommandStatus> {
    command::<ModifyCqIn>(&node.device, |modify| {
        modify
            .set(ModifyCqIn::OP_MOD, ModifyCqKind::Resize)
            .set(ModifyCqIn::CQN, cq.number)
            .set(ModifyCqIn::FIELD_SELECT, CqResize::all().bits())
            .set(ModifyCqIn::CQ_UMEM_ID, memory.umem())
            .set(ModifyCqIn::CQ_UMEM_VALID, true);
        modify.nested(ModifyCqIn::CQ_CONTEXT).set(Cqc::LOG_CQ_SIZE, log_size);
    })
    .map_err(|error| error.status.unwrap())
}

#[test]
fn a_resized_queue_ends_the_old_ring_and_goes_on_in_the_new_one() {
    let mut pair = pair(CqeSize::Bytes64, 0, 0);
    let ring = Memory::register(&pair.b.device, 64 << 5, UmemAccess::LOCAL_WRITE);
    let send = |pair: &mut Pair| {
        pair.qb.post_receive(&[]);
        pair.qa.post(&Wqe::new(Opcode::Send));
        pair.settle();
    };
    for _ in 0..3 {
        send(&mut pair);
    }
    assert_eq!(pair.qb.receive_cq.drain().len(), 3);
    send(&mut pair);
    send(&mut pair);
    // Two wait: they do not fit a ring of two together with the entry that ends the old ring.
    let refused = resize(&pair.qb.receive_cq, &pair.b, &ring, 1);
    assert_eq!(refused, Err(CommandStatus::BadSize));
    resize(&pair.qb.receive_cq, &pair.b, &ring, 5).unwrap();
    send(&mut pair);
    let old = pair.qb.receive_cq.drain();
    assert_eq!(
        old.iter().map(|one| one.opcode).collect::<Vec<_>>(),
        [CqeOpcode::ResponderSend, CqeOpcode::ResponderSend, CqeOpcode::Resize]
    );
    // Entry 5 ended the old ring, entry 6 is the first of the new one.
    assert_eq!(ring.load_byte(6 * 64 + 63), (CqeOpcode::ResponderSend as u8) << 4);
    assert_eq!(ring.read(5 * 64, 64), [0; 64]);
}

#[test]
fn moderation_needs_an_event_queue_and_overrun_does_not() {
    let pair = pair(CqeSize::Bytes64, 0, 0);
    let modify = |selected: u32| {
        command::<ModifyCqIn>(&pair.b.device, |modify| {
            modify
                .set(ModifyCqIn::CQN, pair.qb.receive_cq.number)
                .set(ModifyCqIn::FIELD_SELECT, selected);
            modify.nested(ModifyCqIn::CQ_CONTEXT).set(Cqc::OI, true);
        })
        .map(|_| ())
        .map_err(|error| error.status.unwrap())
    };
    assert_eq!(modify(CqParameters::OVERRUN.bits()), Ok(()));
    assert_eq!(modify(CqParameters::PERIOD.bits()), Err(CommandStatus::BadResourceState));
    assert_eq!(modify(1 << 31), Err(CommandStatus::BadParameter));
}
