//! Tests the arithmetic of room for every state of a small ring, before and after its counters
//! wrap.

use barewire_layouts::wqe::{DataSegment, Opcode, RemoteAddressSegment};

use super::*;
use crate::request::{Inline, Nop, Segments, Write};

const BLOCKS: u32 = 16;

#[repr(align(512))]
struct Memory([u64; 256]);

/// A queue for tests that do not post, so the memory is not used.
fn queue(memory: &mut Memory, signal_period: u32) -> SendQueue {
    let start = NonNull::from(&mut memory.0).cast::<u8>();
    // SAFETY: the ring is bytes 0 to 1023 of the memory, the register bytes 1024 to 1535, and the
    // record follows; tests drop the queue before the memory.
    unsafe {
        SendQueue::from_parts(SendParts {
            ring: start,
            blocks: BLOCKS,
            doorbell_record: start.add(1536).cast(),
            register: start.add(1024),
            qpn: 7,
            signal_period,
            keep: Arc::new(()),
        })
    }
}

/// Counter values around the wraps of the low 16 and 32 bits, and around zero.
fn counters() -> impl Iterator<Item = u64> {
    let around = |wrap: u64| wrap - 2 * u64::from(BLOCKS)..=wrap + 2 * u64::from(BLOCKS);
    (0..=40)
        .chain(around(1 << 16))
        .chain(around(3 << 16))
        .chain(around(1 << 32))
        .chain(around(5 << 32))
}

/// The possible values of `long` after `producer` blocks.
fn longs(producer: u64, most: u32) -> impl Iterator<Item = (u64, u64)> {
    let oldest = producer.saturating_sub(u64::from(2 * BLOCKS));
    let lengths = move |start| (2..=u64::from(most)).map(move |length| (start, start + length));
    let ended = (oldest..producer).flat_map(lengths).filter(move |(_, end)| *end <= producer);
    ended.chain([NONE])
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn room_is_right_in_every_state() {
    let mut memory = Memory([0; 256]);
    let mut queue = queue(&mut memory, 1);
    let mut states = 0u64;
    for producer in counters() {
        for outstanding in 0..=u64::from(BLOCKS).min(producer) {
            let freed = producer - outstanding;
            queue.producer = producer;
            for long in longs(producer, MAX_WQE_BLOCKS) {
                states += 1;
                queue.long = long;
                (queue.tail, queue.stop) = (freed, producer);
                let room = BLOCKS - outstanding as u32;
                assert_eq!((queue.room(), queue.is_idle()), (room, outstanding == 0));
                for blocks in 1..=BLOCKS {
                    let is_admitted = queue.admit(Unit::zero(), blocks).is_ok();
                    assert_eq!(is_admitted, blocks <= room, "{producer} {freed} {blocks}");
                    queue.stop = producer;
                }
                let last = if long.1 == producer { long.0 } else { producer.wrapping_sub(1) };
                assert_eq!(queue.last_index(), (producer > 0).then_some(WqeIndex(last as u16)));
                for index in producer.saturating_sub(u64::from(BLOCKS))..producer {
                    assert_eq!(queue.is_done(WqeIndex(index as u16)), index < freed);
                }
                // Any outstanding WQE may be the next to complete.
                for index in freed..producer {
                    queue.reap(index as u16);
                    let end = if index == long.0 { long.1 } else { index + 1 };
                    assert_eq!(
                        queue.room(),
                        BLOCKS - (producer - end) as u32,
                        "{producer} {index} {long:?}"
                    );
                }
            }
        }
    }
    assert!(states > 100_000, "{states}");
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn completions_are_asked_for_once_a_period_in_every_state() {
    let mut memory = Memory([0; 256]);
    for period in [1, 2, UNMODERATED] {
        let mut queue = queue(&mut memory, period);
        for producer in counters() {
            for blocks in 1..=MAX_WQE_BLOCKS {
                for fenced in [false, true] {
                    let end = producer + u64::from(blocks);
                    // The state that earlier posts would have left.
                    queue.special = producer | queue.signal_mask;
                    (queue.producer, queue.tail, queue.stop) = (producer, producer, producer);
                    if fenced {
                        queue.fence();
                    }
                    let own = ControlFlags::empty();
                    let control = queue.control(Head::of(Opcode::Nop), 1, own.into());
                    let control = queue.admit(control, blocks).unwrap();
                    let mut wanted = if fenced { ControlFlags::FENCE } else { own };
                    let is_last = |block: u64| (block + 1).is_multiple_of(period.into());
                    wanted.set(ControlFlags::COMPLETION, (producer..end).any(is_last));
                    let mut words = [Unit::zero()];
                    // SAFETY: `words` has the size and alignment of a unit.
                    let high = unsafe {
                        control.store(NonNull::from(&mut words[0]));
                        words.as_ptr().cast::<[u64; 2]>().read()[1]
                    };
                    assert_eq!(high, Marks::from(wanted).word(0), "{producer} {blocks} {period}");
                    assert_eq!(queue.special, end | queue.signal_mask);
                    assert_eq!(queue.stop, queue.special.min(producer + u64::from(BLOCKS)));
                    assert_eq!(queue.next_flags, own);
                }
            }
        }
    }
}

/// A queue with a limit never has more outstanding, and whenever it is full, a completion is on its
/// way, however the limit changes.
#[test]
fn a_limit_is_kept_and_never_blocks() {
    let mut memory = Memory([0; 256]);
    for period in [1, 2] {
        let mut queue = queue(&mut memory, period);
        // The last block of each outstanding WQE that requested a completion.
        let mut signalled = std::collections::VecDeque::new();
        let (mut full, mut limits, mut random) = (0, 0, 1_u32);
        for _ in 0..if cfg!(miri) { 500 } else { 50_000 } {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match random >> 28 {
                0..=9 => {
                    let remote = RemoteAddressSegment::new(0, 0);
                    let posted = if random & 0x100 == 0 {
                        queue.post(Nop, ControlFlags::empty())
                    } else {
                        queue
                            .post(Write { local: Inline(&[1; 100]), remote }, ControlFlags::empty())
                    };
                    if let Ok(WqeIndex(index)) = posted {
                        if queue.last_is_signaled() {
                            signalled.push_back(index);
                        }
                    } else {
                        full += 1;
                        assert!(!signalled.is_empty(), "full, and nothing will complete");
                    }
                }
                10..=13 => {
                    if let Some(index) = signalled.pop_front() {
                        queue.reap(index);
                    }
                }
                _ => {
                    let (wanted, before) = (random & 0x1f, queue.outstanding());
                    let most = queue.limit_outstanding(wanted);
                    assert_eq!(most, wanted.max(before + LEAST_OUTSTANDING).min(BLOCKS));
                    assert_eq!((queue.outstanding(), queue.room()), (before, most - before));
                    limits += 1;
                }
            }
            assert!(queue.outstanding() <= queue.most_outstanding());
            // No post passes the place where one has to stop.
            assert!((queue.producer..=queue.special).contains(&queue.stop));
            assert!(queue.stop <= queue.tail + u64::from(queue.most));
        }
        assert!(cfg!(miri) || (full > 100 && limits > 1000), "{full} {limits}");
    }
}

/// A queue that requests no completions by itself takes as many posts as there is room for.
#[test]
fn posts_fill_a_queue_without_a_signal_period() {
    let mut memory = Memory([0; 256]);
    let mut queue = queue(&mut memory, UNMODERATED);
    let mut posted = 0;
    for reaped in [1, 3, 16, 2, 7, 1, 16, 5] {
        while let Ok(index) = queue.post(Nop, ControlFlags::empty()) {
            assert_eq!(index, WqeIndex(posted));
            assert!(!queue.last_is_signaled());
            posted += 1;
        }
        assert_eq!((queue.room(), queue.outstanding()), (0, BLOCKS));
        queue.reap(posted - BLOCKS as u16 + reaped - 1);
        assert_eq!(queue.room(), u32::from(reaped));
    }
}

/// Without the flush, the device would see the doorbell only when something else evicts the
/// write-combining buffer.
#[test]
fn doorbells_of_8_bytes_are_flushed() {
    use crate::barrier::tests::FLUSHES;

    let mut memory = Memory([0; 256]);
    let mut queue = queue(&mut memory, UNMODERATED);
    let start = FLUSHES.get();
    queue.post(Nop, ControlFlags::empty()).unwrap();
    assert_eq!(FLUSHES.get(), start, "a whole block leaves by itself");
    let mut batch = queue.batch();
    batch.post(Nop, ControlFlags::empty()).unwrap();
    batch.post(Nop, ControlFlags::empty()).unwrap();
    drop(batch);
    assert_eq!(FLUSHES.get(), start + 1, "a batch");
    let segment = DataSegment::new(0, 1, 0);
    let remote = RemoteAddressSegment::new(0, 0);
    queue
        .post(Write { local: Segments(&[segment; MAX_SEGMENTS]), remote }, ControlFlags::empty())
        .unwrap();
    assert_eq!(FLUSHES.get(), start + 2, "a WQE that the device fetches");
}
