//! Twelve mistakes that were found in another driver of this kind, each with a test that would
//! detect it here.

use crate::plain;
use crate::recording;
use crate::replay;

use barewire_mlx5::doorbell::BlueFlame;
use barewire_mlx5::layouts::be::Be32;
use barewire_mlx5::layouts::cqe::compressed::MiniFormat;
use barewire_mlx5::layouts::cqe::{Cqe64, CqeOpcode};
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::receive::{ReceiveParts, ReceiveQueue};
use barewire_mlx5::queue::send::{MAX_SEND_INLINE, MAX_WRITE_INLINE};
use barewire_mlx5::queue::shared_receive::{
    List, SharedReceiveParts, SharedReceiveQueue, wqe_bytes,
};
#[cfg(feature = "soft")]
use barewire_mlx5::request::{Inline, Nop, Prefixed, Send, SendInvalidate, Write, WriteImmediate};
use barewire_mlx5::{
    CompletionKind, CompletionQueue, ControlFlags, DataSegment, Polled, PostError,
    RemoteAddressSegment,
};
use plain::{Device, Shared, cqe, mini};
use replay::memory::PlainQueue;

/// 1. A WQE that was written to the register must be in the ring as well: the write is a hint. The
///    doorbell of a batch has eight bytes, because only a single WQE may be written whole.
#[test]
fn mistake_01_what_is_pushed_lies_in_the_ring_too() {
    let remote = RemoteAddressSegment::new(0x1000, 7);
    let mut plain = PlainQueue::new(5, 16, 2);
    plain.fill(0xee);
    plain.queue.post(Write { local: Inline(&[3; 100]), remote }, ControlFlags::COMPLETION).unwrap();
    let wqe = 32 + 4 + 100;
    assert_eq!(plain.ring(0, wqe), plain.register()[..wqe]);

    let mut plain = PlainQueue::new(5, 16, 2);
    plain.fill(0xee);
    let mut batch = plain.queue.batch();
    for value in 0..4 {
        batch.post(Write { local: Inline(&[value; 8]), remote }, ControlFlags::COMPLETION).unwrap();
    }
    drop(batch);
    let register = plain.register();
    for value in 0..4u8 {
        let wqe = plain.ring(value.into(), 64);
        assert_eq!((wqe[2], &wqe[36..44]), (value, &[value; 8][..]), "every WQE of the batch");
    }
    assert_eq!(register[..8], plain.ring(3, 8), "the last one's first eight bytes");
    assert!(register[8..].iter().all(|&byte| byte == 0xee), "and nothing else");
    assert_eq!(plain.record(), [0, 0, 0, 0, 0, 0, 0, 4]);
}

/// 2. A receive queue has no register. [`ReceiveParts`] has no field for one, and `publish` writes
///    only the doorbell record.
#[test]
fn mistake_02_receives_are_announced_by_the_record_alone() {
    let ring = Shared::new([0xee_u8; 16], 8);
    // SAFETY: the queue has the first four segments, which `keep` keeps alive.
    let mut queue = unsafe {
        ReceiveQueue::<1>::from_parts(ReceiveParts {
            ring: ring.start().cast(),
            entries: 4,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    assert!(queue.push(DataSegment::new(1, 2, 3)));
    assert_eq!(ring.published(), 0, "not before publish");
    queue.publish();
    assert_eq!(ring.published(), 1);
    assert!((1..8).all(|at| ring.get(at) == [0xee; 16]), "nothing beside the WQE was written");
}

/// 3. A WQE that wraps at the end of the ring is written to the register whole, without bytes from
///    behind the ring.
#[test]
fn mistake_03_a_wqe_over_the_rings_end_is_pushed_whole() {
    let payload: Vec<u8> = (0..MAX_WRITE_INLINE as u8).collect();
    for before in 13..16 {
        let mut plain = PlainQueue::new(5, 16, 2);
        plain.advance(before);
        plain.fill(0xee);
        let flags = ControlFlags::COMPLETION;
        plain
            .queue
            .post(Write { local: Inline(&payload), remote: RemoteAddressSegment::new(1, 2) }, flags)
            .unwrap();
        let register = plain.register();
        let half = if register[0] == 0xee { 256 } else { 0 };
        assert_eq!(plain.posted(), register[half..half + 256], "from block {before}");
        assert_eq!(register[half + 36..half + 256], payload);
    }
}

/// 4. The fields of the address vector have the offsets of mlx5dv.h: MAC 20, class 26, hop limit
///    27, flow and GID index 28, GID 32.
#[test]
fn mistake_04_the_roce_address_vector() {
    let gid = core::array::from_fn(|at| 0xa0 + at as u8);
    let to = AddressVector::roce(0x010203, 0x11223344, [1, 2, 3, 4, 5, 6], gid, 0xc001, 9, 77);
    let to = AddressVector { traffic_class: 0x68, ..to };
    let mut plain = PlainQueue::new(5, 16, 2);
    plain.queue.towards(&to).post(Send(Inline(&[1])), ControlFlags::COMPLETION).unwrap();
    let vector = &plain.ring(0, 64)[16..];
    assert_eq!(vector[..16], [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x80, 1, 2, 3, 0, 0, 0xc0, 1]);
    assert_eq!(vector[16..20], [0; 4], "reserved");
    assert_eq!(vector[20..26], [1, 2, 3, 4, 5, 6], "MAC");
    assert_eq!((vector[26], vector[27]), (0x68, 77), "traffic class, hop limit");
    assert_eq!(vector[28..32], [0, 0x90, 0, 0], "source GID index, flow label");
    assert_eq!(vector[32..48], gid);
}

/// 5. Blocks of compressed CQEs: detected by the format, not by an opcode; counted as the layout
///    defines; one step of the ring per completion. Twenty blocks were enough to hang the other
///    driver.
#[test]
fn mistake_05_compressed_blocks_go_on_and_on() {
    let mut device = Device::<Cqe64>::new(32);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut basic =
        unsafe { CompletionQueue::from_parts_compressed(device.parts(), MiniFormat::Hash) };
    let mut other = Device::<Cqe64>::new(32);
    // SAFETY: `parts` describe the ring of `other`, which they keep alive, and the test has one
    // thread.
    let mut enhanced =
        unsafe { CompletionQueue::from_parts_enhanced(other.parts(), MiniFormat::Hash) };
    for round in 0..if cfg!(miri) { 10 } else { 500u32 } {
        let minis = [mini([0; 4], round); 5];
        device.compress(cqe(CqeOpcode::ResponderSend, 1, 0, 0), &minis);
        assert_eq!(std::iter::from_fn(|| basic.poll().map(Polled::completion)).count(), 5);
        other.complete(cqe(CqeOpcode::ResponderSend, 1, 0, round));
        other.compress_enhanced(&minis);
        let completions: Vec<_> =
            std::iter::from_fn(|| enhanced.poll().map(Polled::completion)).collect();
        assert_eq!(completions.len(), 6);
        assert!(completions.iter().all(|completion| completion.byte_count == round));
        basic.publish_consumer();
        enhanced.publish_consumer();
        assert_eq!(device.ring.published(), 5 * (round + 1));
        assert_eq!(other.ring.published(), 6 * (round + 1));
    }
}

/// 6. The error of a WQE without a completion request is reported, and the queue continues after
///    it.
#[test]
fn mistake_06_errors_of_unsignalled_wqes_are_told() {
    let mut plain = PlainQueue::new(5, 16, 2);
    let index = plain.queue.post(Nop, ControlFlags::empty()).unwrap();
    assert!(!plain.queue.last_is_signaled());
    let mut device = Device::<Cqe64>::new(4);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut completions = unsafe { CompletionQueue::from_parts(device.parts()) };
    let mut error = cqe(CqeOpcode::RequesterError, 5, index.0, 0);
    error.timestamp = barewire_mlx5::layouts::be::Be64::new(0x05);
    device.complete(error);
    let completion = completions.poll().map(Polled::completion).unwrap();
    let CompletionKind::SendError(failure) = completion.kind else { panic!("{completion:?}") };
    assert!(failure.is_flush());
    assert_eq!((completion.qpn, completion.wqe_counter), (5, index.0));
    assert_eq!(completions.poll().map(Polled::completion), None);
    plain.queue.reap(completion.wqe_counter);
    assert!(plain.queue.is_idle() && plain.queue.room() == 16);
}

/// 7. No opcode stops the queue: a CQE that does not complete a WQE is identified and skipped.
#[test]
fn mistake_07_no_opcode_stops_the_queue() {
    let mut device = Device::<Cqe64>::new(8);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut queue = unsafe { CompletionQueue::from_parts(device.parts()) };
    for opcode in 0..16u8 {
        device.complete(Cqe64 { op_own: opcode << 4, ..cqe(CqeOpcode::Requester, 1, 2, 3) });
        let completion = queue.poll().map(Polled::completion).unwrap();
        if !(0..5).contains(&opcode) && opcode != 0xd && opcode != 0xe {
            assert_eq!(completion.kind, CompletionKind::Other(opcode));
        }
        device.complete(cqe(CqeOpcode::Requester, 1, 2, 3));
        assert_eq!(
            queue.poll().map(Polled::completion).map(|completion| completion.kind),
            Some(CompletionKind::Send)
        );
        assert_eq!(queue.poll().map(Polled::completion), None);
    }
}

/// 8. A shared receive queue is a list: WQEs that complete out of order are appended, and the links
///    stay consistent.
#[test]
fn mistake_08_a_shared_receive_queue_is_a_list() {
    let ring = Shared::new([0_u8; 32], 8);
    // SAFETY: the ring has eight WQEs of one segment, which `keep` keeps alive.
    let mut queue = unsafe {
        SharedReceiveQueue::<List>::from_parts(SharedReceiveParts {
            ring: ring.start().cast(),
            entries: 8,
            segments: 1,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    assert_eq!(wqe_bytes(1), 32);
    let buffer = [DataSegment::new(1, 2, 3)];
    let mut posted: Vec<u16> = std::iter::from_fn(|| queue.push(&buffer)).collect();
    assert_eq!(posted.len(), 7);
    // The device follows the headers from WQE to WQE. One message of every round stays with its
    // queue pair for a while.
    let (mut at, mut slow) = (0, None);
    for round in 0..if cfg!(miri) { 10 } else { 100 } {
        for index in &posted {
            assert_eq!(at, *index, "round {round}: the device goes where we posted");
            assert_ne!(slow, Some(at), "round {round}: its buffer is in use");
            let wqe = ring.get(at.into());
            at = u16::from_be_bytes([wqe[2], wqe[3]]);
        }
        let stays = posted.remove(round % posted.len());
        posted.reverse();
        posted.extend(slow.replace(stays));
        assert!(posted.iter().all(|index| queue.release(*index) == Some(*index)));
        posted = std::iter::from_fn(|| queue.push(&buffer)).collect();
        assert_eq!(posted.len(), 6, "none was lost");
    }
}

/// 9. Completions work for many laps without publishing the consumer counter, and a published
///    counter is correct. The test below covers the flag that disables overrun checks.
#[test]
fn mistake_09_completions_go_on_without_a_published_counter() {
    let mut device = Device::<Cqe64>::new(4);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut queue = unsafe { CompletionQueue::from_parts(device.parts()) };
    for counter in 0..1001u16 {
        device.complete(cqe(CqeOpcode::Requester, 1, counter, 0));
        assert_eq!(
            queue.poll().map(Polled::completion).map(|completion| completion.wqe_counter),
            Some(counter)
        );
        assert_eq!(queue.poll().map(Polled::completion), None);
    }
    assert_eq!(device.ring.published(), 0);
    queue.publish_consumer();
    assert_eq!(device.ring.published(), 1001);
}

/// 9, the other half: `oi` is set in CREATE_CQ. 10. Every value of a path reaches the device as
/// given by the caller.
#[cfg(feature = "soft")]
#[test]
fn mistake_10_the_path_is_the_callers() {
    use barewire_mlx5::layouts::command::cq::{Cqc, CreateCqIn};
    use barewire_mlx5::layouts::command::qp::{
        AddressPath, Init2RtrQpIn, ModifyQp, Mtu, Qpc, Rtr2RtsQpIn,
    };
    use barewire_mlx5::layouts::prm::View;
    use barewire_mlx5::{
        Context, PortAddress, ProtectionDomain, RcAddress, RcConfig, RcPath, RcQueuePair, Uar,
    };

    let (channel, commands) = recording::Recording::new();
    let context = Context::open(channel).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let queue = CompletionQueue::create(&context, &uar, 2048).unwrap();
    let create = commands.last::<CreateCqIn>();
    assert!(View::<CreateCqIn>::new(&create).unwrap().nested(CreateCqIn::CQ_CONTEXT).get(Cqc::OI));

    let mut pair =
        RcQueuePair::<BlueFlame>::create(&domain, &uar, &queue, &queue, &RcConfig::default())
            .unwrap();
    let remote = PortAddress { gid: context.port_address().gid, mac: [2, 3, 4, 5, 6, 7], lid: 0 };
    for (mtu, small) in [(Mtu::Bytes1024, 1), (Mtu::Bytes256, 2)] {
        let number = 0x99 + u32::from(small);
        let path = RcPath::to(&RcAddress { port: remote, number, psn: 0, mtu })
            .ack_timeout(17 + small)
            .retry_count(2 + small)
            .rnr_retry(1 + small)
            .min_rnr_nak(4 + small)
            .log_max_reads(small)
            .send_psn(Some(0x0a0b00 + u32::from(small)))
            .receive_psn(0x0c0d00 + u32::from(small));
        pair.connect(&path).unwrap();
        let ready = commands.last::<Init2RtrQpIn>();
        let ready = View::<Init2RtrQpIn>::new(&ready).unwrap().nested(Init2RtrQpIn::QPC);
        assert_eq!(ready.get(Qpc::MTU), Ok(path.mtu));
        assert_eq!(ready.get(Qpc::REMOTE_QPN), path.remote_qpn);
        assert_eq!(ready.get(Qpc::MIN_RNR_NAK), path.min_rnr_nak);
        assert_eq!(ready.get(Qpc::NEXT_RCV_PSN), path.receive_psn);
        assert_eq!(ready.get(Qpc::LOG_RRA_MAX), path.log_max_reads);
        assert_eq!(ready.nested(Qpc::PRIMARY_ADDRESS_PATH).array(AddressPath::RMAC), remote.mac);
        let sending = commands.last::<Rtr2RtsQpIn>();
        let sending = View::<Rtr2RtsQpIn>::new(&sending).unwrap().nested(Rtr2RtsQpIn::QPC);
        assert_eq!(sending.get(Qpc::RETRY_COUNT), path.retry_count);
        assert_eq!(sending.get(Qpc::RNR_RETRY), path.rnr_retry);
        assert_eq!(Some(sending.get(Qpc::NEXT_SEND_PSN)), path.send_psn);
        assert_eq!(sending.get(Qpc::LOG_SRA_MAX), path.log_max_reads);
        let route = sending.nested(Qpc::PRIMARY_ADDRESS_PATH);
        assert_eq!(route.get(AddressPath::ACK_TIMEOUT), path.ack_timeout);
        pair.reset().unwrap();
    }
}

/// 11. The length of an inline payload is checked against the limit of a WQE, and the `ds` count of
///     one that fits is correct.
#[test]
fn mistake_11_inline_lengths_are_checked() {
    let remote = RemoteAddressSegment::new(0, 0);
    let flags = ControlFlags::COMPLETION;
    let mut plain = PlainQueue::new(5, 16, 2);
    let long = vec![0; 1 << 20];
    for length in [MAX_WRITE_INLINE + 1, 1000, 1008, 1024, 4096, long.len()] {
        assert_eq!(
            plain.queue.post(Write { local: Inline(&long[..length]), remote }, flags),
            Err(PostError::TooLong)
        );
        assert_eq!(
            plain.queue.post(
                WriteImmediate { local: Inline(&long[..length]), remote, immediate: 0 },
                flags
            ),
            Err(PostError::TooLong)
        );
    }
    assert_eq!(plain.queue.post(Send(Inline(&long)), flags), Err(PostError::TooLong));
    assert_eq!(
        plain.queue.post(SendInvalidate { local: Inline(&long), rkey: 0 }, flags),
        Err(PostError::TooLong)
    );
    assert_eq!(
        plain.queue.post(Send(Prefixed { prefix: [0; 12], payload: Inline(&long) }), flags),
        Err(PostError::TooLong)
    );
    for length in 0..=MAX_SEND_INLINE {
        plain.queue.post(Send(Inline(&long[..length])), flags).unwrap();
        let units = 1 + if length == 0 { 0 } else { (4 + length).div_ceil(16) };
        let wqe = plain.posted();
        assert_eq!(usize::from(wqe[7]), units, "{length} bytes");
        assert_eq!(wqe.len(), units.div_ceil(4) * 64);
        plain.reap();
    }
}

/// 12. A CQE is read only after its validity byte shows that the driver owns it, so an entry that
///     the device wrote between two polls is read whole. `overrun.rs` tests entries that the device
///     writes during the read.
#[test]
fn mistake_12_nothing_is_read_before_it_is_ours() {
    static_assertions();
    let mut device = Device::<Cqe64>::new(2);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut queue = unsafe { CompletionQueue::from_parts(device.parts()) };
    device.ring.set(0, Cqe64 { op_own: 0x01, ..cqe(CqeOpcode::Requester, 9, 9, 9) });
    assert_eq!(
        queue.poll().map(Polled::completion),
        None,
        "the rest may be there before the validity byte"
    );
    let mut done = cqe(CqeOpcode::ResponderSendImmediate, 1, 2, 3);
    done.immediate = Be32::new(4);
    device.complete(done);
    let completion = queue.poll().map(Polled::completion).unwrap();
    assert_eq!(completion.kind, CompletionKind::ReceiveImmediate(4));
    assert_eq!((completion.qpn, completion.wqe_counter, completion.byte_count), (1, 2, 3));
}

/// A send queue shares its register with others of its thread and must stay there; a completion
/// queue need not.
fn static_assertions() {
    trait OnThread<Marker> {
        fn check() {}
    }
    impl<T> OnThread<()> for T {}
    struct Leaves;
    impl<T: core::marker::Send> OnThread<Leaves> for T {}
    // Ambiguous, and a compile error, if a send queue were `Send`.
    <barewire_mlx5::SendQueue as OnThread<_>>::check();
    <CompletionQueue as OnThread<Leaves>>::check();
}

/// Object numbers of another context name other objects: a queue pair that completed to a queue of
/// another device could forge completions of the local queue with that number.
#[cfg(feature = "soft")]
#[test]
fn objects_of_two_contexts_do_not_mix() {
    use barewire_mlx5::channel::soft::Soft;
    use barewire_mlx5::{Context, Error, ProtectionDomain, RcConfig, RcQueuePair, Uar, hca};

    let device = hca::Device::open(hca::Config::default()).unwrap();
    let [here, there] = [(); 2].map(|()| Context::open(Soft::new(device.clone())).unwrap());
    let domain = ProtectionDomain::allocate(&here).unwrap();
    let [uar, foreign_uar] = [&here, &there].map(|context| Uar::allocate(context).unwrap());
    let completions = CompletionQueue::create(&here, &uar, 512).unwrap();
    let foreign = CompletionQueue::create(&there, &foreign_uar, 512).unwrap();
    let config = RcConfig::default();
    let refused =
        |error: Error| assert!(error.to_string().contains("the same for all objects"), "{error}");
    let pair =
        |uar, send, receive| RcQueuePair::<BlueFlame>::create(&domain, uar, send, receive, &config);
    refused(CompletionQueue::create(&here, &foreign_uar, 64).unwrap_err());
    refused(CompletionQueue::create_with_notifier(&here, &foreign_uar, 64).map(drop).unwrap_err());
    refused(pair(&foreign_uar, &completions, &completions).map(drop).unwrap_err());
    refused(pair(&uar, &foreign, &completions).map(drop).unwrap_err());
    refused(pair(&uar, &completions, &foreign).map(drop).unwrap_err());
    drop(pair(&uar, &completions, &completions).unwrap());
}
