//! The calls for progress to do more than take completions.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// The bytes of a CQE.
pub(crate) type Words = [AtomicU64; 8];

/// No CQE that the device has written: none has this opcode.
static CALLED: Words = [const { AtomicU64::new(u64::MAX) }; 8];

/// Whether progress has more to do than take completions.
///
/// Idle progress that [watches](Self::watch) the next CQE tests one word for both: a call replaces
/// the CQE by another one, whose word is never that of an idle queue.
#[derive(Debug)]
pub(crate) struct Attention {
    /// The next CQE, or [`CALLED`].
    next: AtomicPtr<Words>,
    called: AtomicBool,
}

impl Attention {
    /// Returns the state of an interface that has nothing to do.
    pub(crate) fn new() -> Self {
        Self { next: AtomicPtr::new(called()), called: AtomicBool::new(false) }
    }

    /// Calls progress, from any thread. The thread of progress receives its own calls; that of
    /// another one is lost if progress takes a completion meanwhile, so that it must be repeated.
    pub(crate) fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.next.store(called(), Ordering::Release);
    }

    /// Returns whether there is a call.
    #[inline(always)]
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Ends the call. What its thread did before it is visible from here on.
    pub(crate) fn answer(&self) {
        self.called.swap(false, Ordering::AcqRel);
    }

    /// Returns the last word of the CQE that is watched, or, after a call, one that no CQE has.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.watched().1
    }

    /// Returns the CQE that is watched, with its last word. After a call it is one that no device
    /// writes, whose last word is all ones.
    #[inline(always)]
    pub(crate) fn watched(&self) -> (NonNull<Words>, u64) {
        // The caller acquires if it takes a completion. ThreadSanitizer does not support fences.
        let order = if cfg!(barewire_sanitize) { Ordering::Acquire } else { Ordering::Relaxed };
        // SAFETY: `CALLED`, or a CQE that is valid by the contract of `watch`.
        let words = unsafe { &*self.next.load(Ordering::Relaxed) };
        let [.., last] = words;
        (NonNull::from(words), last.load(order))
    }

    /// Watches the next CQE. The caller has no call, or is taking a completion.
    ///
    /// # Safety
    /// The CQE is valid for reads until another one is watched, or `self` is dropped. It is written
    /// by whole words.
    #[inline(always)]
    pub(crate) unsafe fn watch(&self, next: NonNull<Words>) {
        self.next.store(next.as_ptr(), Ordering::Relaxed);
    }

    /// Watches no CQE: until the next one is watched, [`Self::word`] is that of a call.
    pub(crate) fn pause(&self) {
        self.next.store(called(), Ordering::Relaxed);
    }

    /// As [`Self::watch`], if there is no call.
    ///
    /// # Safety
    /// The contract of [`Self::watch`].
    pub(crate) unsafe fn watch_again(&self, next: NonNull<Words>) {
        // SAFETY: the contract of this function.
        unsafe { self.watch(next) };
        if self.is_called() {
            self.call();
        }
    }
}

fn called() -> *mut Words {
    // Only read.
    ptr::from_ref(&CALLED).cast_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_replaces_the_word() {
        let attention = Attention::new();
        let cqes = [1, 2].map(|word| [(); 8].map(|()| AtomicU64::new(word)));
        assert!(!attention.is_called());
        assert_eq!(attention.word(), u64::MAX, "nothing is watched");
        // SAFETY: the array outlives the last use of `attention`.
        unsafe { attention.watch(NonNull::from(&cqes[0])) };
        assert_eq!(attention.word(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| attention.call());
        });
        assert!(attention.is_called());
        assert_eq!(attention.word(), u64::MAX);
        // SAFETY: as above.
        unsafe { attention.watch_again(NonNull::from(&cqes[1])) };
        assert_eq!(attention.word(), u64::MAX, "the call stays");
        attention.answer();
        assert!(!attention.is_called());
        // SAFETY: as above.
        unsafe { attention.watch_again(NonNull::from(&cqes[1])) };
        assert_eq!(attention.word(), 2);
    }
}
