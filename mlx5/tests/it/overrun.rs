//! Concurrent accesses of a device and the program to the same entries: completion queues that are
//! too small, and receive WQEs that are reaped before they complete.
//!
//! Miri and ThreadSanitizer report data races. Without them the tests detect only torn words.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::{ptr::NonNull, thread};

use barewire_mlx5::layouts::be::Be32;
use barewire_mlx5::layouts::cqe::compressed::MiniFormat;
use barewire_mlx5::layouts::cqe::{Cqe64, Cqe128};
use barewire_mlx5::queue::completion::{CompletionParts, Layout, Slot};
use barewire_mlx5::queue::receive::{ReceiveParts, ReceiveQueue};
use barewire_mlx5::queue::shared_receive::{
    List, SharedReceiveParts, SharedReceiveQueue, wqe_bytes,
};
use barewire_mlx5::request::{Inline, Word, Write};
use barewire_mlx5::{CompletionQueue, DataSegment};
use zerocopy::transmute;

const ENTRIES: u32 = 4;
const ROUNDS: u32 = if cfg!(miri) { 30 } else { 100_000 };

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// Memory that the queue and the thread of the device share.
#[derive(Default)]
struct Memory {
    lines: [Line; 2 * ENTRIES as usize],
    record: [AtomicU32; 2],
}

impl Memory {
    fn ring<T>(self: &Arc<Self>) -> NonNull<T> {
        // Derived from the whole value, so that the pointer covers all lines.
        NonNull::new(Arc::as_ptr(self).cast_mut().cast()).expect("an Arc is not null")
    }

    fn record(self: &Arc<Self>) -> NonNull<u32> {
        NonNull::from(&self.record).cast()
    }

    /// Writes a CQE of any kind to entry `number`, regardless of the consumer.
    fn complete<S: Slot>(&self, number: u32) {
        let lines = size_of::<S>() / 64;
        let entry = (number % ENTRIES) as usize * lines;
        let value = Be32::new(number);
        let cqe = Cqe64 {
            metadata: [number as u8; 32],
            application: value,
            byte_count: value,
            signature: (number / ENTRIES) as u8,
            // All opcodes and formats.
            op_own: (number.wrapping_mul(0x9e37_79b9) >> 24) as u8 & !1
                | (number / ENTRIES) as u8 & 1,
            ..Cqe64::INITIAL
        };
        let words: [u64; 8] = transmute!(cqe);
        for line in &self.lines[entry..entry + lines] {
            for (place, word) in line.0[..7].iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
        }
        self.lines[entry + lines - 1].0[7].store(words[7], Ordering::Release);
    }

    /// Loads all of the ring's words.
    fn load(&self) -> u64 {
        let words = self.lines.iter().flat_map(|line| &line.0);
        words.fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed))
    }
}

fn overrun<S: Slot, L: Layout>(
    is_plain: bool,
    build: impl Fn(CompletionParts<S>) -> CompletionQueue<S, L>,
) {
    let memory = Arc::new(Memory::default());
    // SAFETY: no device has the ring yet; `Memory` has room for entries of 128 bytes.
    unsafe { CompletionQueue::initialise(memory.ring::<S>(), ENTRIES) };
    let mut queue = build(CompletionParts {
        ring: memory.ring(),
        entries: ENTRIES,
        doorbell_record: memory.record(),
        keep: memory.clone(),
    });
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..ROUNDS).for_each(|number| memory.complete::<S>(number));
            finished.store(true, Ordering::Release);
        });
        while !finished.load(Ordering::Acquire) {
            let Some(polled) = queue.poll() else { continue };
            let completion = polled.completion();
            let cqe = polled.cqe();
            if is_plain {
                assert!(completion.byte_count < ROUNDS, "a number that the device wrote");
                assert_eq!(cqe.application, cqe.byte_count, "two halves of one word");
            }
            assert!(queue.inline_data().is_none_or(|data| data.len() <= 64));
            let _ = queue.last_cqe();
        }
    });
    // At most one completion per entry, and the rest of blocks, can be left.
    assert!((0..16 * ENTRIES).any(|_| queue.poll().is_none()), "the queue does not end");
}

fn overrun_all_layouts<S: Slot>() {
    // SAFETY: ring and record live as long as `keep`, are aligned to 64, and the device stores to
    // them by atomics of whole words.
    overrun::<S, _>(true, |parts| unsafe { CompletionQueue::from_parts(parts) });
    for format in [MiniFormat::Hash, MiniFormat::ChecksumStride] {
        // SAFETY: ring and record live as long as `keep`, are aligned to 64, and the device stores
        // to them by atomics of whole words.
        overrun::<S, _>(false, |parts| unsafe {
            CompletionQueue::from_parts_compressed(parts, format)
        });
        // SAFETY: ring and record live as long as `keep`, are aligned to 64, and the device stores
        // to them by atomics of whole words.
        overrun::<S, _>(false, |parts| unsafe {
            CompletionQueue::from_parts_enhanced(parts, format)
        });
    }
}

#[test]
fn a_completion_queue_that_is_too_small_is_no_data_race() {
    overrun_all_layouts::<Cqe64>();
}

#[test]
fn nor_is_one_of_large_entries() {
    overrun_all_layouts::<Cqe128>();
}

/// Runs `post` many times while a device loads the ring.
fn race(memory: &Memory, mut post: impl FnMut(&DataSegment)) {
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                std::hint::black_box(memory.load());
                thread::yield_now();
            }
        });
        (1..=ROUNDS).for_each(|round| post(&DataSegment::new(round.into(), round, round)));
        finished.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_receive_that_is_reaped_too_early_is_no_data_race() {
    let memory = Arc::new(Memory::default());
    // SAFETY: ring and record live as long as `keep`, and the device loads whole words.
    let mut queue = unsafe {
        ReceiveQueue::<4>::from_parts(ReceiveParts {
            ring: memory.ring(),
            entries: ENTRIES,
            doorbell_record: memory.record(),
            keep: memory.clone(),
        })
    };
    race(&memory, |buffer| {
        assert!(queue.push(*buffer));
        assert!(queue.push_scatter(&[*buffer, *buffer]));
        queue.publish();
        queue.reap();
        queue.reap();
    });
}

#[test]
fn a_shared_receive_that_is_released_too_early_is_no_data_race() {
    let memory = Arc::new(Memory::default());
    assert!(wqe_bytes(3) * ENTRIES as usize <= size_of_val(&memory.lines));
    // SAFETY: ring and record live as long as `keep`, and the device loads whole words.
    let mut queue = unsafe {
        SharedReceiveQueue::<List>::from_parts(SharedReceiveParts {
            ring: memory.ring(),
            entries: ENTRIES,
            segments: 3,
            doorbell_record: memory.record(),
            keep: memory.clone(),
        })
    };
    race(&memory, |buffer| {
        let index = queue.push(&[*buffer, *buffer]).expect("room");
        queue.publish();
        assert_eq!(queue.release(index), Some(index));
    });
}

/// The software HCA writes sixteen times as many CQEs as there are entries, and fetches WQEs that
/// are overwritten, because the program reaps them too early.
#[cfg(all(feature = "soft", not(miri)))]
#[test]
fn a_queue_pair_that_is_reaped_too_early_harms_itself_only() {
    use std::time::{Duration, Instant};

    use barewire_mlx5::channel::soft::Soft;
    use barewire_mlx5::doorbell::BlueFlame;
    use barewire_mlx5::{
        Access, Buffer, Context, ControlFlags, ProtectionDomain, RcConfig, RcPath, RcQueuePair,
        Uar, hca,
    };

    const DEADLINE: Duration = Duration::from_secs(30);

    let device = hca::Device::open(hca::Config::default()).unwrap();
    let context = Context::open(Soft::new(device)).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let buffer = Buffer::allocate(&domain, 64, Access::all()).unwrap();
    let mut completions = CompletionQueue::create(&context, &uar, ENTRIES).unwrap();
    let config = RcConfig::default().send_blocks(64).overcommit(true);
    let mut pair =
        RcQueuePair::<BlueFlame>::create(&domain, &uar, &completions, &completions, &config)
            .unwrap();
    let segment = buffer.region().segment(0, 8).unwrap();
    let remote = buffer.region().remote(32);
    let mut taken = 0;
    for _ in 0..20 {
        pair.connect(&RcPath::to(&pair.address())).unwrap();
        let start = Instant::now();
        // Ten milliseconds are many rounds, with at least one in which the device ran.
        while start.elapsed() < Duration::from_millis(10)
            || (taken == 0 && start.elapsed() < DEADLINE)
        {
            let mut last =
                pair.send.post(Write { local: Inline(&[7; 24]), remote }, ControlFlags::COMPLETION);
            for _ in 0..8 {
                last = pair
                    .send
                    .post(Write { local: Word([7; 8]), remote }, ControlFlags::COMPLETION)
                    .or(last);
                let _ = pair.receive.push(segment);
                pair.receive.reap();
            }
            pair.receive.publish();
            thread::yield_now();
            for _ in 0..ENTRIES {
                let Some(polled) = completions.poll() else { break };
                let _ = std::hint::black_box((polled.completion(), polled.cqe()));
                let _ = completions.inline_data();
                taken += 1;
            }
            if let Ok(last) = last {
                pair.send.reap(last.0);
            }
        }
        pair.reset().unwrap();
    }
    assert!(taken > 0);
    let mut rest = [1; 24];
    buffer.read(8, &mut rest).unwrap();
    assert_eq!(rest, [0; 24], "what no WQE named is as it was");
}
