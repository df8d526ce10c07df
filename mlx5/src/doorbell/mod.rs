//! Doorbell records and BlueFlame registers: the two places in which a post becomes visible to the
//! device.
//!
//! The device reads both at any time, so only this module writes them. A record is host memory that
//! the thread of the software HCA reads as well, so it is stored atomically. A register is written
//! by `store::word` and in bursts of vectors.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
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
    /// Support pages that are not write-combining as well, by a second store per post and without
    /// a branch: see [`Adaptive`].
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
    /// queue is created. Each post stores the whole WQE to one place and its first 8 bytes to
    /// another. One of them is the register, the other is memory that nothing reads. This costs two
    /// instructions, and no branch.
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
        // The barriers before the store already order it; release costs nothing on x86-64, and
        // ThreadSanitizer, which does not support fences, needs it.
        self.word().store(counter.to_be(), Ordering::Release);
    }

    /// Returns the counter that was stored last.
    #[inline(always)]
    pub(crate) fn load(self) -> u32 {
        u32::from_be(self.word().load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: `word` is valid and aligned by the contract of `new`, and the device reads it as
        // a whole.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr()) }
    }
}

/// Where the next post is written: a half of a BlueFlame register. The two halves are written
/// alternately, so that a burst need not wait for the previous one. All queues of a register share
/// the value, for the order of bursts matters to the register and not to a queue.
#[derive(Clone, Debug)]
pub(crate) struct Half(Arc<Targets>);

/// The two places of a post. See [`Adaptive`].
#[derive(Debug)]
#[repr(C)]
struct Targets {
    /// A half of the register, or of `unread`.
    next: AtomicPtr<u8>,
    /// The first word of the other one. [`Doorbell::ADAPTS`] writes it, no other doorbell does.
    word: AtomicPtr<u8>,
    /// Nothing reads it.
    unread: Unread,
}

/// Memory with the size and the alignment of a register.
#[derive(Debug)]
#[repr(C, align(512))]
struct Unread([AtomicU64; 2 * BLUEFLAME_HALF / size_of::<u64>()]);

const _: () = assert!(size_of::<Unread>() == 2 * BLUEFLAME_HALF);
const _: () = assert!(align_of::<Unread>() == 2 * BLUEFLAME_HALF);

impl Half {
    /// The first half of `register`.
    pub(crate) fn new(register: NonNull<u8>) -> Self {
        debug_assert_eq!(register.addr().get() % (2 * BLUEFLAME_HALF), 0);
        let half = Self(Arc::new(Targets {
            next: AtomicPtr::new(register.as_ptr()),
            word: AtomicPtr::default(),
            unread: Unread([const { AtomicU64::new(0) }; _]),
        }));
        half.0.word.store(half.unread(), Ordering::Relaxed);
        half
    }

    /// For a `register` in a page that is not write-combining: [`Adaptive`] writes only its first
    /// word.
    pub(crate) fn plain(register: NonNull<u8>) -> Self {
        let half = Self::new(register);
        half.0.next.store(half.unread(), Ordering::Relaxed);
        half.0.word.store(register.as_ptr(), Ordering::Relaxed);
        half
    }

    /// Returns whether it is a half of `register`.
    pub(crate) fn is_of(&self, register: NonNull<u8>) -> bool {
        let next = self.0.next.load(Ordering::Relaxed);
        next.addr() & !(2 * BLUEFLAME_HALF - 1) == register.addr().get()
    }

    fn unread(&self) -> *mut u8 {
        // Through the cells of the whole array, so that the pointer may write all of them.
        self.0.unread.0.as_ptr().cast_mut().cast()
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
        // SAFETY: `Half` and `flip` store addresses of halves, which are not null.
        unsafe { NonNull::new_unchecked(self.half.0.next.load(Ordering::Relaxed)) }
    }

    /// Announces a WQE that is still in CPU registers.
    #[inline(always)]
    pub(crate) fn ring_blocks<const BLOCKS: usize>(&mut self, blocks: &[Block; BLOCKS]) {
        const { assert!(BLOCKS * WQEBB <= BLUEFLAME_HALF) };
        if !D::AT_ONCE {
            return;
        }
        let half = self.half();
        if D::WHOLE_WQE {
            for (at, block) in blocks.iter().enumerate() {
                // SAFETY: at most as many blocks as a half holds, as asserted; the half is valid
                // and the CPU supports the width by the contract of `new`.
                unsafe { D::Width::store(block, half.cast::<Block>().add(at)) };
            }
            self.store_other(blocks[0][0].low());
            Self::end_burst();
        } else {
            self.store_word(half, blocks[0][0].low());
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
        if D::WHOLE_WQE && units as usize <= BLUEFLAME_HALF / DS {
            let mut burst = Burst::<D::Width>::new(half.cast());
            burst.unit(control);
            body.emit(&mut burst);
            for _ in units..units.next_multiple_of(BLOCK_UNITS as u32) {
                burst.unit(Unit::zero());
            }
            self.store_other(control.low());
            Self::end_burst();
        } else {
            self.store_word(half, control.low());
        }
        self.flip(half);
    }

    /// Announces all WQEs up to the one whose first 8 bytes are `word`.
    #[inline(always)]
    pub(crate) fn ring_word(&mut self, word: u64) {
        let half = self.half();
        self.store_word(half, word);
        self.flip(half);
    }

    /// Writes the 8 bytes that make the device read the doorbell record.
    #[inline(always)]
    fn store_word(&self, half: NonNull<u8>, word: u64) {
        // SAFETY: the address is the first word of a half, valid by the contract of `new`.
        unsafe { store::word(half.cast(), word) };
        self.store_other(word);
        // A buffer that is not full may stay in the core until something else evicts it (Intel SDM
        // vol. 3, 12.3.1).
        barrier::flush_write_combining();
    }

    /// Writes the first 8 bytes of a WQE to the second place of [`Adaptive`].
    #[inline(always)]
    fn store_other(&self, word: u64) {
        if D::ADAPTS {
            // SAFETY: `Half` stores an address that is not null: the first word of the register,
            // valid by the contract of `new`, or of `unread`, which the `Half` keeps alive.
            unsafe {
                let place = NonNull::new_unchecked(self.half.0.word.load(Ordering::Relaxed));
                store::word(place.cast(), word);
            }
        }
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
        self.half.0.next.store(other, Ordering::Relaxed);
    }
}

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
