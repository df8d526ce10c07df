//! Doorbell records and BlueFlame registers: the two places in which a post becomes visible to the
//! device.
//!
//! The device reads both at any time, so only this module writes them. A record is host memory that
//! the thread of the software HCA reads as well, so it is stored atomically. A register is written
//! by `store::word` and in bursts of vectors.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use barewire_layouts::doorbell::BLUEFLAME_HALF;
use barewire_layouts::wqe::{DS, WQEBB};

use crate::wqe::{BLOCK_UNITS, Block, Body, Sink, Unit};
use crate::{barrier, store};

mod choose;
mod shared;
mod width;

pub use choose::{Choose, choose};
pub use shared::SharedRegister;
use width::sealed::Sealed as _;
#[cfg(target_arch = "x86_64")]
pub use width::{Direct, Wide32, Wide64};
pub use width::{Wide16, Width};

mod sealed {
    pub trait Sealed {}
}

/// How a send queue notifies the device of new WQEs. Selected by type when the queue is created,
/// never tested per post.
pub trait Doorbell: sealed::Sealed + core::fmt::Debug + 'static {
    /// The width of stores to the register.
    type Width: Width;
    /// Write the whole WQE, not only its first 8 bytes.
    const WHOLE_WQE: bool;
    /// Flush the write-combining buffer after a whole WQE. A write of 8 bytes is always flushed.
    const FLUSH: bool;
    /// Notify the device at every post, not at the end of a batch.
    const AT_ONCE: bool;
    /// Other threads may write the register as well.
    const LOCKED: bool;
    /// Write 8 bytes, and not the whole WQE, if the page is not write-combining. This costs a test
    /// and a branch per post.
    const ADAPTS: bool = false;
}

macro_rules! doorbells {
    ($($(#[$doc:meta])* $visibility:vis $name:ident { $($constant:ident: $value:literal),* })+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        $visibility struct $name<W = Wide16>(PhantomData<W>);

        impl<W> sealed::Sealed for $name<W> {}

        impl<W: Width> Doorbell for $name<W> {
            type Width = W;
            $(const $constant: bool = $value;)*
        }
    )+};
}

doorbells! {
    /// Writes the whole WQE to the BlueFlame register, so that the device need not fetch it. For a
    /// queue that stays on one core.
    pub BlueFlame { WHOLE_WQE: true, FLUSH: false, AT_ONCE: true, LOCKED: false }

    /// [`BlueFlame`] with a flush of the write-combining buffer after each post, for a queue that
    /// moves between cores: the next burst may come from another core.
    pub BlueFlameFlush { WHOLE_WQE: true, FLUSH: true, AT_ONCE: true, LOCKED: false }

    /// [`BlueFlameFlush`] through a register that queues of several threads share under a lock: see
    /// [`SharedRegister`].
    pub BlueFlameShared { WHOLE_WQE: true, FLUSH: true, AT_ONCE: true, LOCKED: true }

    /// [`BlueFlame`] if the page is write-combining, else [`PlainDoorbell`], as decided when the
    /// queue is created.
    pub Adaptive { WHOLE_WQE: true, FLUSH: false, AT_ONCE: true, LOCKED: false, ADAPTS: true }

    /// Writes 8 bytes, and the device fetches the WQE from the ring. For pages that are not
    /// write-combining, and for machines on which a burst costs more than the fetch (ucx#3748).
    pub PlainDoorbell { WHOLE_WQE: false, FLUSH: false, AT_ONCE: true, LOCKED: false }

    /// Writes nothing until the batch ends: see `Batch`.
    pub(crate) Deferred { WHOLE_WQE: false, FLUSH: false, AT_ONCE: false, LOCKED: false }
}

/// One of the two words of a doorbell record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordWord(NonNull<u32>);

impl RecordWord {
    /// # Safety
    /// `word` is valid for 4-byte writes and aligned for as long as the value is used, and only the
    /// device reads it.
    pub(crate) unsafe fn new(word: NonNull<u32>) -> Self {
        Self(word)
    }

    /// Stores `counter` big-endian.
    #[inline(always)]
    pub(crate) fn store(self, counter: u32) {
        // SAFETY: `word` is valid and aligned by the contract of `new`, and the device reads it as
        // a whole.
        let word = unsafe { AtomicU32::from_ptr(self.0.as_ptr()) };
        // The barriers before the store already order it; release costs nothing on x86-64, and
        // ThreadSanitizer, which does not support fences, needs it.
        word.store(counter.to_be(), Ordering::Release);
    }
}

/// The half of a BlueFlame register that is written next. The two are written alternately, so that
/// a burst need not wait for the previous one. All queues of a register share the value, for the
/// order of bursts matters to the register and not to a queue.
///
/// Its lowest bit is set if only 8 bytes may be written ([`Doorbell::ADAPTS`]).
#[derive(Clone, Debug)]
pub(crate) struct Half(Arc<AtomicPtr<u8>>);

impl Half {
    /// The first half of `register`.
    pub(crate) fn new(register: NonNull<u8>) -> Self {
        debug_assert_eq!(register.addr().get() % (2 * BLUEFLAME_HALF), 0);
        Self(Arc::new(AtomicPtr::new(register.as_ptr())))
    }

    /// Returns whether it is a half of `register`.
    pub(crate) fn is_of(&self, register: NonNull<u8>) -> bool {
        self.0.load(Ordering::Relaxed).addr() & !(2 * BLUEFLAME_HALF - 1) == register.addr().get()
    }
}

/// The BlueFlame register of a queue.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Register<D> {
    half: Half,
    mode: PhantomData<D>,
}

impl<D: Doorbell> Register<D> {
    /// # Safety
    /// The register of `half` is valid for writes of both halves for as long as the value is used,
    /// and aligned to twice [`BLUEFLAME_HALF`], so that flipping the half bit of its address stays
    /// inside. At most one thread at a time uses the registers of one `half`. The CPU supports the
    /// instructions of `D::Width`.
    pub(crate) unsafe fn new(half: Half) -> Self {
        Self { half, mode: PhantomData }
    }

    /// The register with `half` as the next half to write.
    ///
    /// # Safety
    /// The contract of [`Self::new`] holds for `half`.
    #[inline(always)]
    unsafe fn of(half: &mut Half) -> &mut Self {
        // SAFETY: `Self` is a transparent wrapper of `Half`.
        unsafe { &mut *core::ptr::from_mut(half).cast() }
    }

    #[inline(always)]
    fn half(&self) -> NonNull<u8> {
        // SAFETY: `Half::new` and `flip` store addresses in a register, which are not null.
        unsafe { NonNull::new_unchecked(self.half.0.load(Ordering::Relaxed)) }
    }

    /// Announces a WQE that is still in CPU registers.
    #[inline(always)]
    pub(crate) fn ring_blocks<const BLOCKS: usize>(&mut self, blocks: &[Block; BLOCKS]) {
        const { assert!(BLOCKS * WQEBB <= BLUEFLAME_HALF) };
        if !D::AT_ONCE {
            return;
        }
        let half = self.half();
        if Self::takes_wqes(half) {
            for (at, block) in blocks.iter().enumerate() {
                // SAFETY: at most as many blocks as a half holds, as asserted; the half is valid
                // and the CPU supports the width by the contract of `new`.
                unsafe { D::Width::store(block, half.cast::<Block>().add(at)) };
            }
            Self::end_burst();
        } else {
            Self::store_word(half, blocks[0][0].low());
        }
        self.flip(half);
    }

    /// Announces a WQE of `units` units. Writes whole blocks, so that the write-combining buffers
    /// leave in full.
    #[inline(always)]
    pub(crate) fn ring_wqe(&mut self, control: Unit, body: &impl Body, units: u32) {
        if !D::AT_ONCE {
            return;
        }
        let half = self.half();
        // A half holds four blocks; the device fetches longer WQEs.
        if Self::takes_wqes(half) && units as usize <= BLUEFLAME_HALF / DS {
            let mut burst = Burst::<D::Width>::new(half.cast());
            burst.unit(control);
            body.emit(&mut burst);
            for _ in units..units.next_multiple_of(BLOCK_UNITS as u32) {
                burst.unit(Unit::zero());
            }
            Self::end_burst();
        } else {
            Self::store_word(half, control.low());
        }
        self.flip(half);
    }

    /// Announces all WQEs up to the one whose first 8 bytes are `word`.
    #[inline(always)]
    pub(crate) fn ring_word(&mut self, word: u64) {
        let half = self.half();
        Self::store_word(half, word);
        self.flip(half);
    }

    /// Makes every post write 8 bytes only, for a page that is not write-combining.
    pub(crate) fn adapt(&mut self) {
        if D::ADAPTS {
            let plain = self.half().as_ptr().map_addr(|address| address | PLAIN);
            self.half.0.store(plain, Ordering::Relaxed);
        }
    }

    /// Returns whether whole WQEs may be written.
    #[inline(always)]
    fn takes_wqes(half: NonNull<u8>) -> bool {
        D::WHOLE_WQE && !(D::ADAPTS && half.addr().get() & PLAIN != 0)
    }

    /// Writes the 8 bytes that make the device read the doorbell record.
    #[inline(always)]
    fn store_word(half: NonNull<u8>, word: u64) {
        let half = half.map_addr(|address| {
            // SAFETY: the register is aligned to two halves and is not at address zero, so a bit
            // above the lowest is set.
            unsafe { core::num::NonZero::new_unchecked(address.get() & !PLAIN) }
        });
        // SAFETY: the address is the first word of a half, valid by the contract of `new`.
        unsafe { store::word(half.cast(), word) };
        // A buffer that is not full may stay in the core until something else evicts it (Intel SDM
        // vol. 3, 12.3.1).
        barrier::flush_write_combining();
    }

    /// Ends a burst of whole blocks.
    #[inline(always)]
    fn end_burst() {
        if D::FLUSH {
            barrier::flush_write_combining();
        } else {
            barrier::end_write_combining();
        }
    }

    #[inline(always)]
    fn flip(&mut self, half: NonNull<u8>) {
        let other = half.as_ptr().map_addr(|address| address ^ BLUEFLAME_HALF);
        self.half.0.store(other, Ordering::Relaxed);
    }
}

/// The bit of [`Half`] for a page that is not write-combining.
const PLAIN: usize = 1;

/// Stores units to a half of a register.
struct Burst<W> {
    at: NonNull<Unit>,
    /// The part of a block that is not stored yet, for widths that store whole blocks.
    block: Block,
    filled: usize,
    width: PhantomData<W>,
}

impl<W: Width> Burst<W> {
    #[inline(always)]
    fn new(at: NonNull<Unit>) -> Self {
        Self { at, block: [Unit::zero(); BLOCK_UNITS], filled: 0, width: PhantomData }
    }
}

impl<W: Width> Sink for Burst<W> {
    #[inline(always)]
    fn unit(&mut self, unit: Unit) {
        if !W::WHOLE_BLOCKS {
            // SAFETY: `ring_wqe` stores at most the four blocks that a half holds.
            unsafe {
                unit.store(self.at);
                self.at = self.at.add(1);
            }
            return;
        }
        self.block[self.filled % BLOCK_UNITS] = unit;
        self.filled += 1;
        if self.filled.is_multiple_of(BLOCK_UNITS) {
            // SAFETY: `ring_wqe` stores at most the four blocks that a half holds; the CPU supports
            // the width by the contract of `Register::new`.
            unsafe {
                W::store(&self.block, self.at.cast());
                self.at = self.at.add(BLOCK_UNITS);
            }
        }
    }
}
