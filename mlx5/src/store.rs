//! Stores to memory that the device may read at the same time: rings and registers.
//!
//! A correct program posts to an entry only after the device has finished with it. A program that
//! reaps more than was completed posts earlier, and the device then fetches a mixture of two WQEs.
//! No safe call may turn that into a data race, so no plain store reaches a ring or a register.
//!
//! In normal builds the stores are volatile, of one 8-byte word or one 16-byte vector, as hardware
//! registers require. The software HCA reads rings and registers by 8-byte words. For these, an
//! aligned volatile store is equivalent to two relaxed atomic stores of words: the compiler emits
//! it as written, each aligned word of it is stored whole (Intel SDM vol. 3, 10.1.1; Arm ARM,
//! B2.2.1), and the compiler assumes nothing about it that it does not assume about an atomic
//! store. Rust has no atomic store of 16 bytes.
//!
//! Miri and ThreadSanitizer support only atomics, and get atomic stores of words.

use core::ptr::NonNull;

/// Stores 8 bytes by exactly one store.
///
/// # Safety
/// `place` is valid for a write of 8 bytes and aligned to 8. Concurrent accesses within this
/// process are atomic accesses of the whole word.
#[inline(always)]
pub(crate) unsafe fn word(place: NonNull<u64>, word: u64) {
    #[cfg(not(any(miri, barewire_sanitize)))]
    // SAFETY: `place` is valid and aligned by the caller's contract.
    unsafe { volatile::VolatilePtr::new_restricted(volatile::access::WriteOnly, place) }
        .write(word);
    #[cfg(any(miri, barewire_sanitize))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: `place` is valid and aligned, and concurrent accesses are atomic, by the caller's
        // contract.
        unsafe { AtomicU64::from_ptr(place.as_ptr()) }.store(word, Ordering::Release);
    }
}

/// Stores 16 bytes, given as two words in memory order.
///
/// # Safety
/// The contract of [`word`] holds for both words.
#[inline(always)]
pub(crate) unsafe fn words<T>(place: NonNull<T>, [low, high]: [u64; 2]) {
    let place = place.cast();
    // SAFETY: both words satisfy the contract of `word` by the caller's contract.
    unsafe {
        word(place, low);
        word(place.add(1), high);
    }
}
