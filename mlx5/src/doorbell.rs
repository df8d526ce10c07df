//! Doorbell records and BlueFlame registers: the two places where a post becomes visible to the device.
//!
//! Both are looked at by the device while we run, so both are written through [`volatile`], and only here.

use core::marker::PhantomData;
use core::ptr::NonNull;

use barewire_layouts::doorbell::BLUEFLAME_HALF;
use barewire_layouts::wqe::{DS, WQEBB};
use volatile::VolatilePtr;
use volatile::access::WriteOnly;

use crate::barrier;
use crate::wqe::{BLOCK_UNITS, Block, Body, Sink, Unit};

mod sealed {
    pub trait Sealed {}
}

/// How a send queue tells the device about new WQEs. Chosen by type when the queue is created, never tested per post.
pub trait Doorbell: sealed::Sealed + core::fmt::Debug + 'static {
    /// The whole WQE is written, not only its first 8 bytes.
    const WHOLE_WQE: bool;
    /// The write-combining buffer is flushed after every write.
    const FLUSH: bool;
    /// The device is told with every post, not when a batch ends.
    const AT_ONCE: bool;
}

macro_rules! doorbells {
    ($($(#[$doc:meta])* $name:ident { whole_wqe: $whole:literal, flush: $flush:literal, at_once: $at_once:literal })+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl Doorbell for $name {
            const WHOLE_WQE: bool = $whole;
            const FLUSH: bool = $flush;
            const AT_ONCE: bool = $at_once;
        }
    )+};
}

doorbells! {
    /// Pushes the whole WQE through the BlueFlame register, so that the device need not fetch it. For a queue that stays on one core.
    BlueFlame { whole_wqe: true, flush: false, at_once: true }

    /// [`BlueFlame`], and flushes the write-combining buffer: for a queue that moves between cores, where the next burst may come
    /// from another one.
    BlueFlameFlush { whole_wqe: true, flush: true, at_once: true }

    /// Writes 8 bytes; the device fetches the WQE from the ring. For pages that are not write-combining, and for machines where a
    /// burst costs more than the fetch (ucx#3748).
    PlainDoorbell { whole_wqe: false, flush: true, at_once: true }

    /// Nothing is written until the batch ends: see `SendQueue::batch`.
    Deferred { whole_wqe: false, flush: false, at_once: false }
}

/// One of the two words of a doorbell record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordWord(NonNull<u32>);

impl RecordWord {
    /// # Safety
    /// `word` is valid for 4-byte writes and aligned for as long as the value is used; only the device reads it.
    pub(crate) unsafe fn new(word: NonNull<u32>) -> Self {
        Self(word)
    }

    /// Stores `counter` big-endian.
    #[inline(always)]
    pub(crate) fn store(self, counter: u32) {
        // SAFETY: valid and aligned by the contract of `new`.
        let word = unsafe { VolatilePtr::new_restricted(WriteOnly, self.0) };
        word.write(counter.to_be());
    }
}

/// The BlueFlame register of a queue: two halves that are written in turns, so that a burst need not wait for the one before.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Register<D> {
    half: NonNull<u8>,
    mode: PhantomData<D>,
}

impl<D: Doorbell> Register<D> {
    /// # Safety
    /// `register` is valid for writes over both halves for as long as the value is used, and aligned to twice
    /// [`BLUEFLAME_HALF`], so that flipping the half bit of its address stays inside.
    pub(crate) unsafe fn new(register: NonNull<u8>) -> Self {
        debug_assert_eq!(register.addr().get() % (2 * BLUEFLAME_HALF), 0);
        Self { half: register, mode: PhantomData }
    }

    /// Announces a WQE that is still in registers.
    #[inline(always)]
    pub(crate) fn ring_blocks<const BLOCKS: usize>(&mut self, blocks: &[Block; BLOCKS]) {
        const { assert!(BLOCKS * WQEBB <= BLUEFLAME_HALF) };
        if !D::AT_ONCE {
            return;
        }
        if D::WHOLE_WQE {
            for (at, unit) in blocks.as_flattened().iter().enumerate() {
                // SAFETY: units of a half, which holds the blocks, as asserted.
                unsafe { unit.store_volatile(self.half.cast::<Unit>().add(at)) };
            }
        } else {
            self.store_word(blocks[0][0].low());
        }
        self.flip();
    }

    /// Announces a WQE of `units` units. Whole blocks are written, so that the write-combining buffers leave in full.
    #[inline(always)]
    pub(crate) fn ring_wqe(&mut self, control: Unit, body: &impl Body, units: u32) {
        if !D::AT_ONCE {
            return;
        }
        // A half holds four blocks; the device fetches what is longer.
        if D::WHOLE_WQE && units as usize <= BLUEFLAME_HALF / DS {
            let mut burst = Burst { at: self.half.cast() };
            burst.unit(control);
            body.emit(&mut burst);
            for _ in units..units.next_multiple_of(BLOCK_UNITS as u32) {
                burst.unit(Unit::zero());
            }
        } else {
            self.store_word(control.low());
        }
        self.flip();
    }

    /// Announces whatever was posted up to the WQE whose first 8 bytes are `word`.
    #[inline(always)]
    pub(crate) fn ring_word(&mut self, word: u64) {
        self.store_word(word);
        self.flip();
    }

    /// Writes the 8 bytes that tell the device to look.
    #[inline(always)]
    fn store_word(&mut self, word: u64) {
        // SAFETY: the first word of a half, by the contract of `new`.
        unsafe { VolatilePtr::new_restricted(WriteOnly, self.half.cast::<u64>()) }.write(word);
    }

    #[inline(always)]
    fn flip(&mut self) {
        if D::FLUSH {
            barrier::flush_write_combining();
        }
        self.half = self.half.map_addr(|address| {
            // SAFETY: registers are aligned to two halves, so the address with its half bit flipped is not zero: a register at
            // page offset 0x800 or above keeps a higher bit set.
            unsafe { core::num::NonZero::new_unchecked(address.get() ^ BLUEFLAME_HALF) }
        });
    }
}

/// Stores units to a register half.
struct Burst {
    at: NonNull<Unit>,
}

impl Sink for Burst {
    #[inline(always)]
    fn unit(&mut self, unit: Unit) {
        // SAFETY: `ring_wqe` stores at most the four blocks that a half holds.
        unsafe {
            unit.store_volatile(self.at);
            self.at = self.at.add(1);
        }
    }
}
