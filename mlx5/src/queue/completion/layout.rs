//! Layouts of a completion ring: plain, or with blocks of compressed CQEs that are expanded one by
//! one.
//!
//! A block takes as many slots as it has completions, but the device writes only some of them. Each
//! expansion marks the slot after the one just taken as owned by the driver and compressed. The
//! next poll therefore finds the rest of the block by its usual test, and at the end of the block
//! all its slots have the validity of their lap.

use core::fmt;
use core::ptr::NonNull;

use barewire_layouts::cqe::compressed::{MiniArray, MiniCqe, MiniFormat};
use barewire_layouts::cqe::{Cqe64, OP_OWN_OFFSET, OWNER, SIGNATURE_OFFSET};

use super::CompletionQueue;
use super::entry::{Aligned, in_last};
use super::slot::Slot;

pub(super) mod sealed {
    use super::{CompletionQueue, Cqe64, NonNull, Slot};

    pub trait Sealed: Sized {
        /// The bits of a CQE's last word that determine whether the driver owns it.
        const VALIDITY: u64;
        /// The layout has compressed blocks.
        const EXPANDS: bool;

        /// The value of these bits on the lap after `lap`.
        fn next_lap(lap: u64) -> u64;

        /// Called when a plain CQE has been taken.
        fn took_plain(&mut self);

        /// Takes the next completion of the block in the next slot, or of the block that is being
        /// expanded. Returns the address of the completion.
        fn expand<S: Slot>(queue: &mut CompletionQueue<S, Self>) -> NonNull<Cqe64>
        where
            Self: super::Layout;

        /// The completion that was expanded last.
        fn expanded(&self) -> Option<&Cqe64>;
    }
}

/// The layout of a completion ring: [`Plain`], [`Compressed`] or [`Enhanced`]. Selected by type
/// when the queue is created.
pub trait Layout: sealed::Sealed + fmt::Debug + Send + 'static {}

/// One CQE per completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain;

/// Compressed CQEs in the basic layout: see [`barewire_layouts::cqe::compressed`].
#[derive(Clone, Copy, Debug)]
pub struct Compressed(Block);

/// Compressed CQEs in the enhanced layout: see [`barewire_layouts::cqe::compressed`].
#[derive(Clone, Copy, Debug)]
pub struct Enhanced {
    block: Block,
    /// The title of the block is that of the previous block: no plain CQE came between.
    titled: bool,
}

impl Layout for Plain {}
impl Layout for Compressed {}
impl Layout for Enhanced {}

/// A block that is being expanded.
#[derive(Clone, Copy, Debug)]
struct Block {
    format: MiniFormat,
    title: Cqe64,
    array: MiniArray,
    /// The next mini CQE of the array.
    at: usize,
    /// Completions that are left in the block.
    left: u32,
    /// Index of the next receive WQE.
    counter: u16,
    expanded: Aligned,
}

impl Block {
    const fn new(format: MiniFormat) -> Self {
        Self {
            format,
            title: Cqe64::INITIAL,
            array: Cqe64::INITIAL.mini_array(),
            at: 0,
            left: 0,
            counter: 0,
            expanded: Aligned(Cqe64::INITIAL),
        }
    }

    fn start(&mut self, array: MiniArray, completions: u32) {
        (self.array, self.at, self.left) = (array, 0, completions);
    }

    fn entitle(&mut self, title: Cqe64, counter: u16) {
        (self.title, self.counter) = (title, counter);
    }

    fn next(&mut self, owner: u8) {
        // Both layouts keep `at` inside the array; for a malformed block the completion is zero.
        let mini = self.array.get(self.at).copied().unwrap_or_default();
        self.expanded =
            Aligned(MiniCqe::expand(mini, &self.title, self.format, self.counter, owner));
        self.counter = self.counter.wrapping_add(1);
        self.at += 1;
        self.left = self.left.saturating_sub(1);
    }
}

impl Compressed {
    pub(super) const fn new(format: MiniFormat) -> Self {
        Self(Block::new(format))
    }
}

impl Enhanced {
    pub(super) const fn new(format: MiniFormat) -> Self {
        Self { block: Block::new(format), titled: false }
    }
}

impl sealed::Sealed for Plain {
    const VALIDITY: u64 = in_last(OP_OWN_OFFSET, OWNER);
    const EXPANDS: bool = false;

    #[inline(always)]
    fn next_lap(lap: u64) -> u64 {
        lap ^ Self::VALIDITY
    }

    #[inline(always)]
    fn took_plain(&mut self) {}

    fn expand<S: Slot>(queue: &mut CompletionQueue<S, Self>) -> NonNull<Cqe64> {
        // Unreachable: `EXPANDS` is false.
        let cqe = queue.next_cqe();
        queue.advance();
        cqe
    }

    fn expanded(&self) -> Option<&Cqe64> {
        None
    }
}

impl sealed::Sealed for Compressed {
    const VALIDITY: u64 = in_last(OP_OWN_OFFSET, OWNER);
    const EXPANDS: bool = true;

    #[inline(always)]
    fn next_lap(lap: u64) -> u64 {
        lap ^ Self::VALIDITY
    }

    #[inline(always)]
    fn took_plain(&mut self) {}

    #[inline(never)]
    fn expand<S: Slot>(queue: &mut CompletionQueue<S, Self>) -> NonNull<Cqe64> {
        if queue.layout.0.left == 0 {
            let cqe = *queue.at_next().cqe();
            let array = queue.after_next().cqe().mini_array();
            let completions = cqe.basic_count().min(queue.entries());
            queue.layout.0.entitle(cqe, cqe.wqe_counter.get());
            queue.layout.0.start(array, completions);
        }
        let owner = queue.lap & Self::VALIDITY != 0;
        queue.layout.0.next(u8::from(owner));
        queue.advance();
        let left = queue.layout.0.left;
        if left > 0 {
            if queue.layout.0.at == queue.layout.0.array.len() {
                let array = queue.at_next().cqe().mini_array();
                queue.layout.0.start(array, left);
            }
            queue.mark_next();
        }
        NonNull::from(&mut queue.layout.0.expanded).cast()
    }

    fn expanded(&self) -> Option<&Cqe64> {
        Some(&self.0.expanded.0)
    }
}

impl sealed::Sealed for Enhanced {
    const VALIDITY: u64 = in_last(SIGNATURE_OFFSET, u8::MAX);
    const EXPANDS: bool = true;

    #[inline(always)]
    fn next_lap(lap: u64) -> u64 {
        lap.wrapping_add(in_last(SIGNATURE_OFFSET, 1)) & Self::VALIDITY
    }

    #[inline(always)]
    fn took_plain(&mut self) {
        self.titled = false;
    }

    #[inline(never)]
    fn expand<S: Slot>(queue: &mut CompletionQueue<S, Self>) -> NonNull<Cqe64> {
        if queue.layout.block.left == 0 {
            if !queue.layout.titled {
                let title = *queue.before_next().cqe();
                queue.layout.block.entitle(title, title.wqe_counter.get().wrapping_add(1));
                queue.layout.titled = true;
            }
            let cqe = *queue.at_next().cqe();
            queue.layout.block.start(cqe.mini_array(), cqe.enhanced_count());
        }
        queue.layout.block.next(0);
        queue.advance();
        if queue.layout.block.left > 0 {
            queue.mark_next();
        }
        NonNull::from(&mut queue.layout.block.expanded).cast()
    }

    fn expanded(&self) -> Option<&Cqe64> {
        Some(&self.block.expanded.0)
    }
}
