//! Any order of posts and completions against an oracle, and any bytes for the decoders.

use crate::plain;
use crate::replay;

use std::collections::VecDeque;

use barewire_mlx5::layouts::cqe::compressed::MiniFormat;
use barewire_mlx5::layouts::cqe::{Cqe64, Cqe128, ErrorCqe, PacketFields, Syndrome};
use barewire_mlx5::layouts::wqe::{ControlSegment, Opcode};
use barewire_mlx5::queue::completion::{Layout, Slot};
use barewire_mlx5::queue::shared_receive::{
    Cyclic, List, SharedReceiveParts, SharedReceiveQueue, Topology, wqe_bytes,
};
use barewire_mlx5::request::{Inline, Nop, Segments, Send, Write};
use barewire_mlx5::{
    CompletionQueue, ControlFlags, DataSegment, PostError, RemoteAddressSegment, SendQueue,
    WqeIndex,
};
use plain::{Device, Entry, Shared};
use proptest::prelude::*;
use replay::memory::PlainQueue;
use zerocopy::FromBytes;

/// An operation on a send queue.
#[derive(Clone, Debug)]
enum Step {
    /// Posts an inline write of `length` bytes.
    Write { length: usize, signaled: bool },
    /// Posts a list of segments.
    Gather { segments: usize, signaled: bool },
    /// Posts a batch of inline sends.
    Batch(Vec<usize>),
    /// Takes this many of the oldest completions of the device.
    Reap(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..=220usize, any::<bool>())
            .prop_map(|(length, signaled)| Step::Write { length, signaled }),
        (0..=16usize, any::<bool>())
            .prop_map(|(segments, signaled)| Step::Gather { segments, signaled }),
        prop::collection::vec(0..=236usize, 1..5).prop_map(Step::Batch),
        (0..6usize).prop_map(Step::Reap),
    ]
}

/// A reference model of a send queue: a list of WQEs, the oldest first.
struct Oracle {
    blocks: u32,
    period: u32,
    producer: u32,
    /// Start, length in blocks, signalled.
    posted: VecDeque<(u32, u32, bool)>,
    /// Start and length of the last posted WQE of several blocks.
    long: (u32, u32),
    /// Blocks freed.
    freed: u32,
}

impl Oracle {
    fn room(&self) -> u32 {
        self.blocks - (self.producer - self.freed)
    }

    fn post(&mut self, units: u32, signaled: bool) -> Result<WqeIndex, PostError> {
        let blocks = units.div_ceil(4);
        if blocks > self.room() {
            return Err(PostError::QueueFull);
        }
        let start = self.producer;
        self.producer += blocks;
        // Some block of the WQE is the last of a period.
        let moderated = (start..self.producer).any(|block| (block + 1) % self.period == 0);
        self.posted.push_back((start, blocks, signaled || moderated));
        if blocks > 1 {
            self.long = (start, blocks);
        }
        Ok(WqeIndex(start as u16))
    }

    /// The next completion of the device: the oldest signalled WQE's index.
    fn complete(&mut self) -> Option<u16> {
        let at = self.posted.iter().position(|(_, _, signaled)| *signaled)?;
        let (start, _, _) = self.posted.drain(..=at).next_back()?;
        // The blocks after the first are freed by the next completion, unless this is the last WQE
        // of several blocks.
        let (long, blocks) = self.long;
        self.freed = start + if start == long { blocks } else { 1 };
        Some(start as u16)
    }
}

fn inline_units(fixed: u32, length: usize) -> u32 {
    fixed + if length == 0 { 0 } else { (4 + length as u32).div_ceil(16) }
}

fn run(plain: &mut PlainQueue, oracle: &mut Oracle, step: &Step) -> Result<(), TestCaseError> {
    let flags = |signaled| if signaled { ControlFlags::COMPLETION } else { ControlFlags::empty() };
    let remote = RemoteAddressSegment::new(0x1000, 5);
    let posted_before = oracle.producer;
    match step {
        Step::Write { length, signaled } => {
            let wanted = oracle.post(inline_units(2, *length), *signaled);
            let got = plain
                .queue
                .post(Write { local: Inline(&vec![7; *length]), remote }, flags(*signaled));
            prop_assert_eq!(got, wanted);
        }
        Step::Gather { segments, signaled } => {
            let wanted = oracle.post(2 + *segments as u32, *signaled);
            let local = vec![DataSegment::new(1, 2, 3); *segments];
            let got = plain.queue.post(Write { local: Segments(&local), remote }, flags(*signaled));
            prop_assert_eq!(got, wanted);
        }
        Step::Batch(lengths) => {
            let mut batch = plain.queue.batch();
            for length in lengths {
                let wanted = oracle.post(inline_units(1, *length), false);
                prop_assert_eq!(
                    batch.post(Send(Inline(&vec![7; *length])), ControlFlags::empty()),
                    wanted
                );
            }
        }
        Step::Reap(count) => {
            for _ in 0..*count {
                let Some(index) = oracle.complete() else { break };
                plain.queue.reap(index);
                prop_assert!(plain.queue.is_done(WqeIndex(index)));
            }
        }
    }
    let queue: &SendQueue = &plain.queue;
    prop_assert_eq!(queue.room(), oracle.room());
    prop_assert_eq!(queue.is_idle(), oracle.room() == oracle.blocks);
    let last_signaled = oracle.posted.back().is_none_or(|(_, _, signaled)| *signaled);
    prop_assert_eq!(queue.last_is_signaled(), last_signaled);
    if oracle.producer != posted_before {
        prop_assert_eq!(&plain.record()[4..], (oracle.producer & 0xffff).to_be_bytes());
    }
    // Every outstanding WQE is in the ring as posted.
    for (start, blocks, signaled) in &oracle.posted {
        let wqe = plain.ring((start % oracle.blocks) as usize, 16);
        let control = ControlSegment::read_from_bytes(&wqe).unwrap();
        prop_assert_eq!(control.index(), *start as u16);
        prop_assert_eq!(control.ds().div_ceil(4), *blocks);
        prop_assert_eq!(control.flags() & ControlFlags::COMPLETION.bits() != 0, *signaled);
        prop_assert!(Opcode::from_bits(control.opcode()).is_some());
        prop_assert_eq!(control.qpn(), 72);
    }
    Ok(())
}

/// Takes at most `limit` completions and calls every accessor.
fn poll_all<S: Slot, L: Layout>(queue: &mut CompletionQueue<S, L>, limit: usize) -> usize {
    let mut taken = 0;
    while taken < limit && queue.poll().is_some() {
        let _ = queue.last_cqe().packet();
        assert!(queue.inline_data().is_none_or(|data| data.len() <= 64));
        taken += 1;
    }
    taken
}

fn cqe_of(bytes: &[u8; 64]) -> Cqe64 {
    zerocopy::transmute!(*bytes)
}

/// A ring of any bytes, with the validity bytes of the test.
fn any_ring<S: Entry>(slots: &[[u8; 64]], valid: bool) {
    let device = Device::<S>::new(8);
    for (at, bytes) in slots.iter().enumerate() {
        let mut cqe = cqe_of(bytes);
        if valid {
            (cqe.op_own, cqe.signature) = (cqe.op_own & !1, 0);
        }
        device.ring.set(at, S::with(*bytes, cqe));
    }
    // SAFETY: `parts` keep the ring of `device` alive, and the queues are used one after the other.
    unsafe {
        let taken = poll_all(&mut CompletionQueue::from_parts(device.parts()), 100);
        assert!(!valid || taken >= 8, "{taken}: nothing stops the queue");
        for format in [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumStride] {
            poll_all(&mut CompletionQueue::from_parts_compressed(device.parts(), format), 100);
            poll_all(&mut CompletionQueue::from_parts_enhanced(device.parts(), format), 100);
        }
    }
}

/// Tests a shared receive queue with a model of the outstanding WQEs and their order.
fn shared_receive<T: Topology>(entries: u32, steps: &[(bool, usize)]) -> Result<(), TestCaseError> {
    let ring = Shared::new([0u8; 16], entries as usize * wqe_bytes(2) / 16);
    // SAFETY: the ring has the required size, `keep` keeps it alive, and only the queue writes it.
    let mut queue = unsafe {
        SharedReceiveQueue::<T>::from_parts(SharedReceiveParts {
            ring: ring.start().cast(),
            entries,
            segments: 2,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    let capacity = queue.room() as usize;
    let mut out: VecDeque<u16> = VecDeque::new();
    let mut pushed = 0u32;
    for (push, at) in steps {
        if *push {
            if let Some(index) = queue.push(&[DataSegment::new(1, 1, 1)]) {
                prop_assert!(u32::from(index) < entries && !out.contains(&index));
                out.push_back(index);
                pushed += 1;
            } else {
                prop_assert_eq!(queue.room(), 0);
            }
            queue.publish();
            prop_assert_eq!(ring.published(), pushed & 0xffff);
        } else if !out.is_empty() {
            let index = out.remove(at % out.len()).unwrap_or(0);
            prop_assert_eq!(queue.release(index), Some(index));
            prop_assert_eq!(queue.release(index), None);
        }
        prop_assert!(queue.room() as usize + out.len() <= capacity);
    }
    for index in out.drain(..) {
        prop_assert_eq!(queue.release(index), Some(index));
    }
    prop_assert_eq!(queue.room() as usize, capacity, "none was lost");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn posts_and_completions_agree_with_the_oracle(
        log_blocks in 4..8u32,
        log_period in 0..3u32,
        start in prop_oneof![0..64u32, 65_000..65_536u32],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let (blocks, period) = (1 << log_blocks, 1 << log_period.min(log_blocks - 3));
        let mut plain = PlainQueue::new(72, blocks, period);
        plain.advance(start);
        let mut oracle =
            Oracle { blocks, period, producer: start, posted: VecDeque::new(), long: (u32::MAX, 0), freed: start };
        // The state after the NOPs that advanced the queue, the last of which may not have
        // requested a completion.
        plain.queue.post(Nop, ControlFlags::COMPLETION).unwrap();
        oracle.post(1, true).unwrap();
        for step in &steps {
            run(&mut plain, &mut oracle, step)?;
        }
    }

    #[test]
    fn any_bytes_are_completions_or_not(
        slots in prop::collection::vec(prop::array::uniform32(any::<[u8; 2]>()), 8),
        valid in any::<bool>(),
    ) {
        let slots: Vec<[u8; 64]> =
            slots.iter().map(|pairs| core::array::from_fn(|at| pairs[at / 2][at % 2])).collect();
        any_ring::<Cqe64>(&slots, valid);
        any_ring::<Cqe128>(&slots, valid);
    }

    /// Rings full of blocks with any counts and arrays.
    #[test]
    fn any_bytes_in_compressed_blocks(
        slots in prop::collection::vec(prop::array::uniform32(any::<[u8; 2]>()), 8),
        kinds in prop::collection::vec(0..16u8, 8),
    ) {
        let slots: Vec<[u8; 64]> = slots
            .iter()
            .zip(&kinds)
            .map(|(pairs, kind)| {
                let mut bytes: [u8; 64] = core::array::from_fn(|at| pairs[at / 2][at % 2]);
                (bytes[62], bytes[63]) = (0, kind << 4 | 0x0c);
                bytes
            })
            .collect();
        any_ring::<Cqe64>(&slots, false);
        any_ring::<Cqe128>(&slots, false);
    }

    #[test]
    fn any_bytes_decode(bytes in prop::array::uniform32(any::<[u8; 2]>())) {
        let bytes: [u8; 64] = core::array::from_fn(|at| bytes[at / 2][at % 2]);
        let cqe = cqe_of(&bytes);
        let _: (PacketFields, _) = (cqe.packet(), cqe.format());
        prop_assert!((1..=7).contains(&cqe.enhanced_count()));
        prop_assert!(cqe.basic_count() >= 1);
        for mini in cqe.mini_array() {
            for format in [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumStride] {
                prop_assert_eq!(mini.expand(&cqe, format, 7, 1).op_own & 1, 1);
            }
        }
        let error: ErrorCqe = zerocopy::transmute!(cqe);
        let _ = (Syndrome::from_bits(error.syndrome), error.qpn(), error.user_index());
        let (control, _) = ControlSegment::read_from_prefix(&bytes).unwrap();
        let _ = (Opcode::from_bits(control.opcode()), control.ds(), control.opcode_modifier());
    }

    #[test]
    fn shared_receive_queues_lose_nothing(
        log_entries in 1..6u32,
        steps in prop::collection::vec((any::<bool>(), any::<usize>()), 1..300),
    ) {
        shared_receive::<List>(1 << log_entries, &steps)?;
        shared_receive::<Cyclic>(1 << log_entries, &steps)?;
    }
}
