//! The entries of a ring as memory that the device may write at any time.
//!
//! In a queue that is too small for its completions, the device writes an entry while the program
//! reads it. Every access is therefore a relaxed atomic load or store of a whole aligned 8-byte
//! word, like those of the software HCA, so that an overrun loses completions but is no data race.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use barewire_layouts::cqe::Cqe64;

use super::slot::Slot;

const WORD: usize = size_of::<u64>();
/// The word of a CQE that holds the validity bytes.
pub(super) const LAST: usize = size_of::<Cqe64>() / WORD - 1;

/// `byte` at its position in the last word, where `offset` is its offset in the CQE. The crate
/// requires a little-endian host.
pub(super) const fn in_last(offset: usize, byte: u8) -> u64 {
    (byte as u64) << (8 * (offset - LAST * WORD))
}

/// A CQE outside a ring, with the alignment of one in a ring.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Aligned(pub(super) Cqe64);

/// Loads word `at` of a CQE.
///
/// # Safety
/// `cqe` is valid for reads and writes and aligned to 8, and concurrent writers store whole words.
/// `at` is at most [`LAST`].
#[inline(always)]
pub(super) unsafe fn load(cqe: NonNull<Cqe64>, at: usize, order: Ordering) -> u64 {
    // SAFETY: an aligned word of the CQE, by the caller's contract.
    unsafe { AtomicU64::from_ptr(cqe.cast::<u64>().add(at).as_ptr()) }.load(order)
}

/// Stores the last word of a CQE.
///
/// # Safety
/// The contract of [`load`].
pub(super) unsafe fn store_last(cqe: NonNull<Cqe64>, word: u64) {
    // SAFETY: an aligned word of the CQE, by the caller's contract.
    unsafe { AtomicU64::from_ptr(cqe.cast::<u64>().add(LAST).as_ptr()) }
        .store(word, Ordering::Relaxed);
}

/// Copies an entry. If the device writes it at the same time, the copy mixes words of both
/// contents.
///
/// # Safety
/// The contract of [`load`], for all words of the entry.
pub(super) unsafe fn copy<S: Slot>(entry: NonNull<S>) -> S {
    let mut copy = S::new_zeroed();
    for (at, bytes) in copy.as_mut_bytes().as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
        // SAFETY: one of the entry's words, by the caller's contract.
        let word = unsafe { AtomicU64::from_ptr(entry.cast::<u64>().add(at).as_ptr()) };
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    copy
}
