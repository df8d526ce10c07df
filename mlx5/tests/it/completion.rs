//! Polls CQEs in every form, written by a model of the device.

use crate::plain;

use std::sync::atomic::Ordering;

use barewire_mlx5::layouts::be::Be32;
use barewire_mlx5::layouts::cqe::compressed::MiniFormat;
use barewire_mlx5::layouts::cqe::{Cqe64, Cqe128, CqeFormat, CqeOpcode};
use barewire_mlx5::queue::completion::{Enhanced, Layout, Slot};
use barewire_mlx5::{Completion, CompletionKind, CompletionQueue, Polled};
use plain::{Device, Entry, cqe, mini};

fn plain_queue<S: Entry>(device: &Device<S>) -> CompletionQueue<S> {
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    unsafe { CompletionQueue::from_parts(device.parts()) }
}

fn enhanced_queue<S: Entry>(device: &Device<S>) -> CompletionQueue<S, Enhanced> {
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    unsafe { CompletionQueue::from_parts_enhanced(device.parts(), MiniFormat::Checksum) }
}

fn drain<S: Slot, L: Layout>(queue: &mut CompletionQueue<S, L>) -> Vec<Completion> {
    std::iter::from_fn(|| queue.poll().map(Polled::completion)).collect()
}

/// The kind, queue pair, WQE counter, byte count and user index.
fn fields(completion: Completion) -> (CompletionKind, u32, u16, u32, u32) {
    let Completion { kind, qpn, wqe_counter, byte_count, user_index, .. } = completion;
    (kind, qpn, wqe_counter, byte_count, user_index)
}

fn counters(completions: &[Completion]) -> Vec<u16> {
    completions.iter().map(|completion| completion.wqe_counter).collect()
}

fn every_kind<S: Entry>() {
    let mut device = Device::<S>::new(4);
    let mut queue = plain_queue(&device);
    assert_eq!(queue.poll().map(Polled::completion), None);
    let mut immediate = cqe(CqeOpcode::ResponderSendImmediate, 7, 2, 20);
    immediate.immediate = Be32::new(0x01020304);
    immediate.srqn_user_index = Be32::new(0x77ab_cdef);
    for (opcode, kind) in [
        (CqeOpcode::Requester, CompletionKind::Send),
        (CqeOpcode::ResponderSend, CompletionKind::Receive),
        (CqeOpcode::ResponderSendImmediate, CompletionKind::ReceiveImmediate(0x01020304)),
        (CqeOpcode::ResponderWriteImmediate, CompletionKind::WriteImmediate(0x01020304)),
        (CqeOpcode::ResponderSendInvalidate, CompletionKind::ReceiveInvalidate(0x01020304)),
        (CqeOpcode::Resize, CompletionKind::Other(5)),
        (CqeOpcode::NoPacket, CompletionKind::Other(6)),
        (CqeOpcode::SignatureError, CompletionKind::Other(0xc)),
    ] {
        device.complete(Cqe64 { op_own: (opcode as u8) << 4, ..immediate });
        let in_place = queue.poll().map(|polled| (polled.is_write_immediate(), polled.immediate()));
        let is_write = opcode == CqeOpcode::ResponderWriteImmediate;
        assert_eq!(in_place, Some((is_write, 0x01020304)), "{opcode:?}");
        device.complete(Cqe64 { op_own: (opcode as u8) << 4, ..immediate });
        let got = queue.poll().map(Polled::completion).map(fields);
        assert_eq!(got, Some((kind, 7, 2, 20, 0xab_cdef)), "{opcode:?}");
        assert_eq!(queue.poll().map(Polled::completion), None);
        assert_eq!(queue.inline_data().as_deref(), None);
    }
}

#[test]
fn every_kind_in_entries_of_either_size() {
    every_kind::<Cqe64>();
    every_kind::<Cqe128>();
}

#[test]
fn errors_carry_syndrome_vendor_syndrome_and_counter() {
    let mut device = Device::<Cqe128>::new(4);
    let mut queue = plain_queue(&device);
    for (opcode, send) in [(CqeOpcode::RequesterError, true), (CqeOpcode::ResponderError, false)] {
        let mut error = cqe(opcode, 0x0800_0048, 0x0102, 0);
        error.timestamp = barewire_mlx5::layouts::be::Be64::new(0x8813);
        error.srqn_user_index = Be32::new(0x00ab_cdef);
        device.complete(error);
        let completion = queue.poll().map(Polled::completion).unwrap();
        let (CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure)) =
            completion.kind
        else {
            panic!("{completion:?}");
        };
        assert_eq!(matches!(completion.kind, CompletionKind::SendError(_)), send);
        assert_eq!((failure.vendor_code, failure.code, failure.opcode), (0x88, 0x13, 8));
        assert_eq!((completion.qpn, completion.wqe_counter), (0x48, 0x0102));
        assert_eq!(queue.last_cqe().user_index(), 0x00ab_cdef);
        assert_eq!(
            failure.to_string(),
            "remote access error (syndrome 0x13, vendor 0x88): the peer's key does not exist any more, or does not allow the access or its range [spdk/spdk#1387, unionxic/rdma-fault-characterization]",
            "the device's words"
        );
    }
}

#[test]
fn a_datagrams_sender_is_handed_out() {
    let mut device = Device::<Cqe64>::new(2);
    let mut queue = plain_queue(&device);
    let mut received = cqe(CqeOpcode::ResponderSend, 1, 0, 64);
    received.metadata[24..28].copy_from_slice(&[0x10, 0, 0, 0x4d]);
    device.complete(received);
    assert!(queue.poll_only(CqeOpcode::Requester).is_none(), "it has another opcode");
    let polled = queue.poll_only(CqeOpcode::ResponderSend).unwrap();
    assert_eq!((polled.source_qpn(), polled.opcode()), (0x4d, CqeOpcode::ResponderSend as u8));
    assert!(queue.poll_only(CqeOpcode::ResponderSend).is_none() && queue.is_empty());
    let packet = queue.last_cqe().packet();
    assert_eq!((packet.source_qpn(), packet.has_global_route()), (0x4d, true));
}

/// Polls with `word` as the last word of the next CQE.
fn poll_word(queue: &mut CompletionQueue, word: u64, opcode: CqeOpcode) -> Option<Polled<'_>> {
    // SAFETY: the words are those of the next CQE.
    unsafe { queue.poll_words(queue.next_words(), word, opcode, CqeFormat::Plain) }
}

/// Entries are overwritten by the words that they had, on every second lap.
#[test]
fn a_word_tells_whether_the_next_completion_is_there() {
    let mut device = Device::<Cqe64>::new(2);
    let mut queue = plain_queue(&device);
    let word = |queue: &CompletionQueue| {
        // SAFETY: the words are in the ring of `device`, which outlives the queue.
        let words = unsafe { queue.next_words().as_ref() };
        words[7].load(Ordering::Relaxed)
    };
    for number in 0..20 {
        let entry = number % 2;
        if number % 3 > 0 {
            assert!(!queue.is_unchanged(word(&queue)), "{number}: another entry");
            let incomplete = word(&queue);
            assert!(poll_word(&mut queue, incomplete, CqeOpcode::ResponderSend).is_none());
            queue.note_empty();
            assert!(queue.is_unchanged(word(&queue)) && !queue.is_unchanged(u64::MAX));
        }
        device.complete(cqe(CqeOpcode::ResponderSend, 1, entry, 64));
        let complete = word(&queue);
        assert!(!queue.is_unchanged(complete), "{number}");
        queue.note_empty();
        assert!(!queue.is_unchanged(complete), "{number}: it is complete");
        assert!(poll_word(&mut queue, complete, CqeOpcode::Requester).is_none(), "another opcode");
        assert!(
            poll_word(&mut queue, u64::MAX, CqeOpcode::ResponderSend).is_none(),
            "no such word"
        );
        let polled = poll_word(&mut queue, complete, CqeOpcode::ResponderSend).unwrap();
        assert_eq!((polled.wqe_counter(), polled.byte_count()), (entry, 64));
    }
}

#[test]
fn a_poll_selects_the_format_of_the_data() {
    let mut device = Device::<Cqe64>::new(2);
    let mut queue = plain_queue(&device);
    let formats = [CqeFormat::Plain, CqeFormat::Inline32, CqeFormat::Inline64];
    // Both states of the owner bit, and the end of the ring.
    for lap in 0..4 {
        for format in formats {
            let mut received = cqe(CqeOpcode::ResponderSend, 1, lap, 5);
            received.metadata = [lap as u8; 32];
            received.op_own |= format.bits();
            device.complete(received);
            let others = formats.into_iter().filter(|other| *other != format);
            for wanted in others.chain([format]) {
                let words = queue.next_words();
                // SAFETY: the words are in the ring of `device`, which outlives the queue.
                let word = unsafe { words.as_ref() }[7].load(Ordering::Relaxed);
                // SAFETY: the words are those of the next CQE.
                let polled =
                    unsafe { queue.poll_words(words, word, CqeOpcode::ResponderSend, wanted) };
                assert_eq!(polled.is_some(), wanted == format, "{lap} {format:?} {wanted:?}");
                let Some(polled) = polled else { continue };
                assert_eq!((polled.format(), polled.wqe_counter()), (format, lap));
                // SAFETY: the device completes nothing until the next turn of the loop.
                assert_eq!(unsafe { *polled.data().as_ref() }, [lap as u8; 32]);
            }
            assert_eq!(queue.last().format(), format);
        }
    }
}

#[test]
fn inline_data_of_either_size() {
    let mut device = Device::<Cqe128>::new(2);
    let mut queue = plain_queue(&device);
    let data = core::array::from_fn(|at| at as u8);
    let format = |format: CqeFormat| (CqeOpcode::ResponderSend as u8) << 4 | format.bits();
    let mut small = cqe(CqeOpcode::ResponderSend, 1, 0, 5);
    small.metadata = core::array::from_fn(|at| 100 + at as u8);
    // Five laps over a ring of two: the entry before the next is the last of the ring, then the
    // first.
    for (scatter, count, wanted) in [
        (CqeFormat::Inline32, 5, &[100, 101, 102, 103, 104][..]),
        (CqeFormat::Inline64, 3, &[0, 1, 2]),
        (CqeFormat::Inline64, 64, &data),
        (CqeFormat::Inline32, 1000, &small.metadata),
        (CqeFormat::Inline64, u32::MAX, &data),
        (CqeFormat::Inline32, 0, &[]),
    ] {
        device.complete_with(
            data,
            Cqe64 { op_own: format(scatter), byte_count: Be32::new(count), ..small },
        );
        let completion = queue.poll().map(Polled::completion).unwrap();
        assert_eq!((completion.kind, completion.byte_count), (CompletionKind::Receive, count));
        assert_eq!(queue.inline_data().as_deref(), Some(wanted), "{scatter:?}, {count} bytes");
    }
    let mut device = Device::<Cqe64>::new(2);
    let mut queue = plain_queue(&device);
    device.complete(Cqe64 { op_own: format(CqeFormat::Inline64), ..small });
    queue.poll().map(Polled::completion).unwrap();
    assert_eq!(queue.inline_data(), None, "there are no 64 bytes before a 64-byte CQE");
    device.complete(Cqe64 {
        op_own: (CqeOpcode::RequesterError as u8) << 4 | CqeFormat::Inline32.bits(),
        ..small
    });
    queue.poll().map(Polled::completion).unwrap();
    assert_eq!(queue.inline_data(), None, "an error has no data");
}

/// Blocks of 2 to 20 completions in rings of 32 and 64, with plain CQEs between, so that titles,
/// arrays and ends occur in every slot.
#[test]
fn compressed_blocks_of_the_basic_layout() {
    for entries in [32, 64] {
        let mut device = Device::<Cqe64>::new(entries);
        // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has
        // one thread.
        let mut queue =
            unsafe { CompletionQueue::from_parts_compressed(device.parts(), MiniFormat::Checksum) };
        let (mut index, mut total) = (0u16, 0u32);
        for round in 0..if cfg!(miri) { 20 } else { 200 } {
            let count = 2 + round % 19;
            let minis: Vec<_> =
                (0..count).map(|at| mini([0xaa, at as u8, 0, 0], 1000 + at)).collect();
            device.compress(cqe(CqeOpcode::ResponderSend, 9, index, 0), &minis);
            for at in 0..count {
                let got = queue.poll().map(Polled::completion).map(fields);
                let counter = index.wrapping_add(at as u16);
                let wanted = (CompletionKind::Receive, 9, counter, 1000 + at, 0);
                assert_eq!(got, Some(wanted), "round {round}, {at}");
                assert_eq!(queue.last_cqe().packet().checksum.get(), 0xaa00 | at as u16);
                assert_eq!(queue.inline_data(), None);
            }
            assert_eq!(
                queue.poll().map(Polled::completion),
                None,
                "round {round}: the block is through"
            );
            index = index.wrapping_add(count as u16);
            device.complete(cqe(CqeOpcode::ResponderSend, 9, index, 7));
            assert_eq!(
                queue.poll().map(Polled::completion).map(|completion| completion.byte_count),
                Some(7)
            );
            assert_eq!(queue.poll().map(Polled::completion), None);
            index = index.wrapping_add(1);
            total += count + 1;
            queue.publish_consumer();
            assert_eq!(device.ring.published(), total & 0x00ff_ffff, "one for each mini CQE");
        }
    }
}

#[test]
fn compressed_sends_carry_their_own_counter_and_opcode() {
    let mut device = Device::<Cqe128>::new(16);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut queue =
        unsafe { CompletionQueue::from_parts_compressed(device.parts(), MiniFormat::Hash) };
    let minis = [mini([0, 5, 0x08, 0], 0), mini([1, 9, 0x0a, 0], 0), mini([0, 77, 0x10, 0], 64)];
    device.compress(cqe(CqeOpcode::Requester, 3, 1, 0), &minis);
    let completions = drain(&mut queue);
    assert_eq!(counters(&completions), [5, 0x0109, 77]);
    assert!(completions.iter().all(|completion| completion.kind == CompletionKind::Send));
    assert_eq!(queue.last_cqe().send_opcode(), 0x10);
}

#[test]
fn the_stride_format_has_the_stride_for_counter() {
    let mut device = Device::<Cqe64>::new(16);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    let mut queue = unsafe {
        CompletionQueue::from_parts_compressed(device.parts(), MiniFormat::ChecksumStride)
    };
    let minis = [mini([0, 0, 0x01, 0x02], 1), mini([0, 0, 0x01, 0x08], 2)];
    device.compress(cqe(CqeOpcode::ResponderSend, 3, 1, 0), &minis);
    assert_eq!(counters(&drain(&mut queue)), [0x0102, 0x0108]);
}

/// The same in the enhanced layout: blocks of one to seven after a title that was itself a
/// completion, some blocks consecutive, for more than 256 laps, because the lap number has eight
/// bits.
#[test]
fn compressed_blocks_of_the_enhanced_layout() {
    let mut device = Device::<Cqe128>::new(16);
    let mut queue = enhanced_queue(&device);
    let mut index = 0u16;
    for round in 0..if cfg!(miri) { 30 } else { 1200u32 } {
        device.complete(cqe(CqeOpcode::ResponderSendImmediate, 9, index, 5));
        let sizes: &[u32] = match round % 3 {
            0 => &[7, 3],
            1 => &[1 + round % 7],
            _ => &[1, 1, 7],
        };
        let mut wanted = vec![index];
        for size in sizes {
            let minis: Vec<_> = (0..*size).map(|at| mini([0; 4], at)).collect();
            device.compress_enhanced(&minis);
        }
        for _ in 0..sizes.iter().sum() {
            index = index.wrapping_add(1);
            wanted.push(index);
        }
        let completions = drain(&mut queue);
        assert_eq!(counters(&completions), wanted, "round {round}");
        assert!(
            completions
                .iter()
                .all(|completion| completion.kind == CompletionKind::ReceiveImmediate(0)),
            "the title's opcode"
        );
        index = index.wrapping_add(1);
    }
}

/// The empty poll tests one byte: the rest of the ring may have any contents.
#[test]
fn an_entry_of_the_device_is_not_looked_at() {
    let device = Device::<Cqe64>::new(2);
    let mut queue = plain_queue(&device);
    device
        .ring
        .set(0, Cqe64 { metadata: [0xff; 32], op_own: 0x01, signature: 3, ..Cqe64::INITIAL });
    assert_eq!(queue.poll().map(Polled::completion), None);
    device.ring.set(0, Cqe64 { metadata: [0xff; 32], op_own: 0x00, ..Cqe64::INITIAL });
    assert!(queue.poll().map(Polled::completion).is_some());
}
