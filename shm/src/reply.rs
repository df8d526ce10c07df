//! The slot that this process writes next.
//!
//! A peer that waits for a response polls the slot of the response, so its core shares that line.
//! The store of the response waits until this core owns the line, which takes about as long as half
//! of a message's way. Therefore the receiving end requests the line as soon as a message arrives,
//! and the request is on its way while the handler runs and the response is posted.
//!
//! Each message that is sent leads to one request. Otherwise a process that only receives would
//! take the line from a peer that polls it with each message.

use std::sync::atomic::{AtomicPtr, Ordering};

use barewire_shared_bytes::request_line;

/// The slot behind the last message that was sent over any connection of a port.
#[derive(Debug, Default)]
pub(crate) struct NextSlot(AtomicPtr<u8>);

impl NextSlot {
    /// Called after a message was sent: the next one begins at `slot`.
    #[inline(always)]
    pub(crate) fn set(&self, slot: *const u8) {
        self.0.store(slot.cast_mut(), Ordering::Relaxed);
    }

    /// Called when a message has arrived: requests the line of the slot, once.
    #[inline(always)]
    pub(crate) fn request(&self) {
        let slot = self.0.load(Ordering::Relaxed);
        // From now on a line that no other core uses, which is cheaper than a test.
        self.0.store(self.0.as_ptr().cast(), Ordering::Relaxed);
        request_line(slot);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_requested_once() {
        let (next, slot) = (NextSlot::default(), 0_u64);
        next.set((&raw const slot).cast());
        assert!(std::ptr::eq(next.0.load(Ordering::Relaxed), (&raw const slot).cast()));
        for _ in 0..2 {
            next.request();
            assert!(std::ptr::eq(next.0.load(Ordering::Relaxed), next.0.as_ptr().cast()));
        }
    }
}
