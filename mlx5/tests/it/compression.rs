//! Completions that the software HCA compresses equal, in the same order, those without
//! compression.

#[path = "../../../hca/tests/support/mod.rs"]
mod support;

use std::ptr::NonNull;
use std::sync::Arc;

use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::cq::{CompressionLayout, Cqc, CqeSize};
use barewire_layouts::cqe::compressed::MiniFormat;
use barewire_layouts::cqe::{Cqe64, Cqe128, CqeFormat};
use barewire_layouts::wqe::Opcode;
use barewire_mlx5::queue::completion::{CompletionParts, Layout, Polled, Slot};
use barewire_mlx5::{Completion, CompletionQueue};
use support::{Connection, Cq, Node, Pair, Qp, Region, Wqe};

const LOG_CQ: u8 = 5;

/// A queue of the device and the driver's queue over its ring.
struct Reader<S: Slot, L: Layout> {
    queue: CompletionQueue<S, L>,
    ring: NonNull<u8>,
    size: usize,
    /// Blocks that were found in the ring.
    blocks: usize,
}

impl<S: Slot, L: Layout> Reader<S, L> {
    fn new(cq: &Cq, build: &impl Fn(CompletionParts<S>) -> CompletionQueue<S, L>) -> Self {
        let (ring, entries, doorbell_record) = cq.parts();
        let start = ring.cast::<S>();
        // SAFETY: the ring belongs to a queue to which nothing has been posted.
        unsafe { CompletionQueue::<S>::initialise(start, entries) };
        let parts = CompletionParts { ring: start, entries, doorbell_record, keep: Arc::new(()) };
        Self { queue: build(parts), ring, size: entries as usize, blocks: 0 }
    }

    fn drain(&mut self) -> Vec<Completion> {
        for entry in 1..=self.size {
            // SAFETY: the last byte of an entry of the ring; the stepped device does not run now.
            let op_own = unsafe { self.ring.add(entry * size_of::<S>() - 1).read() };
            self.blocks += usize::from(CqeFormat::from_op_own(op_own) == CqeFormat::Compressed);
        }
        let completions =
            std::iter::from_fn(|| self.queue.poll().map(Polled::completion)).collect();
        self.queue.publish_consumer();
        completions
    }
}

/// A random operation.
fn operation(random: &mut fastrand::Rng, source: &Region, target: &Region) -> (Wqe, bool) {
    let length = random.u64(..600) as usize;
    let (opcode, receives) = match random.u64(..8) {
        0..4 => (Opcode::Send, true),
        4 => (Opcode::SendImmediate, true),
        5 => (Opcode::RdmaWriteImmediate, true),
        6 => (Opcode::RdmaWrite, false),
        _ => (Opcode::RdmaRead, false),
    };
    let mut wqe = Wqe::new(opcode);
    if !matches!(opcode, Opcode::Send | Opcode::SendImmediate) {
        wqe = wqe.remote(target.address(), target.key);
    } else if opcode == Opcode::SendImmediate {
        wqe = wqe.immediate(random.u64(..2) as u32);
    }
    wqe = wqe.data(source.address(), length, source.key);
    if random.u64(..5) == 0 {
        wqe = wqe.unsignalled();
    }
    (wqe, receives)
}

/// Runs random operations. Returns the completions of the sender and of the receiver, and the
/// number of blocks.
fn run<S: Slot, L: Layout>(
    seed: u64,
    entry: CqeSize,
    compression: Option<(CompressionLayout, MiniFormat)>,
    build: impl Fn(CompletionParts<S>) -> CompletionQueue<S, L>,
) -> (Vec<Completion>, Vec<Completion>, usize) {
    let fabric = Fabric::new();
    let faults = Faults::default().drop(0.02).seed(seed);
    let (a, b) = (Node::stepped(&fabric, faults.clone()), Node::stepped(&fabric, faults));
    let cq = |node: &Node| {
        Cq::with(node, LOG_CQ, entry, |context| {
            if let Some((layout, format)) = compression {
                context
                    .set(Cqc::CQE_COMP_EN, true)
                    .set(Cqc::CQE_COMPRESSION_LAYOUT, layout)
                    .set(Cqc::MINI_CQE_RES_FORMAT, format as u8);
            }
        })
    };
    let (send_cq, receive_cq) = (cq(&a), cq(&b));
    let (mut sent, mut received) =
        (Reader::new(&send_cq, &build), Reader::new(&receive_cq, &build));
    let (qa, qb) = (
        Qp::with(&a, send_cq, Cq::new(&a, 5), |_| ()),
        Qp::with(&b, Cq::new(&b, 5), receive_cq, |_| ()),
    );
    let mut pair = Pair::of(a, b, (qa, qb), &Connection::default());
    let (source, target) = (pair.a.region(1024), pair.b.region(1024));
    let (mut random, mut all_sent, mut all_received) =
        (fastrand::Rng::with_seed(seed), Vec::new(), Vec::new());
    for _ in 0..40 {
        for _ in 0..=random.u64(..20) {
            let (wqe, receives) = operation(&mut random, &source, &target);
            if receives {
                pair.qb.post_receive(&[(target.address(), 1024, target.key)]);
            }
            pair.qa.place(&wqe);
        }
        let last = Wqe::new(Opcode::Nop);
        pair.qa.post(&last);
        pair.settle();
        all_sent.extend(sent.drain());
        all_received.extend(received.drain());
    }
    // An error is not compressed, even between completions that are.
    pair.qb.to_error();
    pair.qa.place(&Wqe::new(Opcode::Send));
    pair.qa.place(&Wqe::new(Opcode::Send));
    pair.qa.post(&Wqe::new(Opcode::Send));
    pair.settle();
    all_sent.extend(sent.drain());
    (all_sent, all_received, sent.blocks + received.blocks)
}

fn agrees<S: Slot>(entry: CqeSize) {
    for seed in 1..=3 {
        // SAFETY: queues and rings are dropped at the end of `run`, which uses one thread.
        let plain = run(seed, entry, None, |parts: CompletionParts<S>| unsafe {
            CompletionQueue::from_parts(parts)
        });
        assert!(plain.0.len() > 300 && plain.1.len() > 200 && plain.2 == 0);
        for format in [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumStride] {
            let basic = Some((CompressionLayout::Basic, format));
            let basic = run(seed, entry, basic, |parts: CompletionParts<S>| {
                // SAFETY: queues and rings are dropped at the end of `run`, which uses one thread.
                unsafe { CompletionQueue::from_parts_compressed(parts, format) }
            });
            assert!(basic.2 > 20, "only {} blocks", basic.2);
            assert!((&basic.0, &basic.1) == (&plain.0, &plain.1), "basic {format:?}, seed {seed}");
            let enhanced = Some((CompressionLayout::Enhanced, format));
            let enhanced = run(seed, entry, enhanced, |parts: CompletionParts<S>| {
                // SAFETY: queues and rings are dropped at the end of `run`, which uses one thread.
                unsafe { CompletionQueue::from_parts_enhanced(parts, format) }
            });
            assert!(enhanced.2 > 20, "only {} blocks", enhanced.2);
            assert!(
                (&enhanced.0, &enhanced.1) == (&plain.0, &plain.1),
                "enhanced {format:?}, seed {seed}"
            );
        }
    }
}

#[test]
fn blocks_of_short_entries_are_what_they_stand_for() {
    agrees::<Cqe64>(CqeSize::Bytes64);
}

#[test]
fn blocks_of_long_entries_are_what_they_stand_for() {
    agrees::<Cqe128>(CqeSize::Bytes128);
}
