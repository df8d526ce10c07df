//! Stores to memory that the device may read at the same time: rings and registers.
//!
//! A correct program posts to an entry only after the device is done with it. A program that reaps
//! more than was completed does so earlier, and then the device fetches a mixture of two WQEs. No
//! safe call may turn that into a data race, so that no plain store reaches a ring or a register.
//!
//! In normal builds the stores are volatile, of one 8-byte word or of one 16-byte vector. A register
//! of hardware asks for that. The software HCA reads rings and registers by 8-byte words. For these,
//! an aligned volatile store is what two relaxed atomic stores of words are: the compiler emits it
//! as it is written, each aligned word of it is stored whole (Intel SDM vol. 3, 10.1.1; Arm ARM,
//! B2.2.1), and the compiler assumes nothing about it that it does not about an atomic one. Atomic
//! stores of 16 bytes, which would say so in the language, do not exist.
//!
//! Miri and ThreadSanitizer know atomics only, and get atomic stores of words.

use core::ptr::NonNull;

/// Stores 8 bytes: one store, neither split nor left out.
///
/// # Safety
/// `place` is valid for a write of 8 bytes and aligned to 8. If others access it at the same time
/// and are part of this process, they do so by atomic accesses of the whole word.
#[inline(always)]
pub(crate) unsafe fn word(place: NonNull<u64>, word: u64) {
    #[cfg(not(any(miri, barewire_sanitize)))]
    // SAFETY: the caller's contract.
    unsafe { volatile::VolatilePtr::new_restricted(volatile::access::WriteOnly, place) }.write(word);
    #[cfg(any(miri, barewire_sanitize))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: the caller's contract.
        unsafe { AtomicU64::from_ptr(place.as_ptr()) }.store(word, Ordering::Release);
    }
}

/// Stores 16 bytes, whose words are in memory order.
///
/// # Safety
/// As [`word`], for both words.
#[inline(always)]
pub(crate) unsafe fn words<T>(place: NonNull<T>, [low, high]: [u64; 2]) {
    let place = place.cast();
    // SAFETY: the caller's contract.
    unsafe {
        word(place, low);
        word(place.add(1), high);
    }
}
