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
    /// Called when a message is sent: the next one begins at `slot`.
    #[inline(always)]
    pub(crate) fn set(&self, slot: *const u8) {
        self.0.store(slot.cast_mut(), Ordering::Relaxed);
    }

    /// Called when a message has arrived: requests the line of the slot, and from then on that of
    /// `own`, which no other core uses. This is cheaper than a test whether there is a slot.
    #[inline(always)]
    pub(crate) fn request(&self, own: *const u8) {
        request_line(self.0.load(Ordering::Relaxed));
        self.set(own);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_requested_once() {
        let (next, slot, own) = (NextSlot::default(), 0_u64, 0_u64);
        let [slot, own] = [&slot, &own].map(|word| std::ptr::from_ref(word).cast());
        next.set(slot);
        assert!(std::ptr::eq(next.0.load(Ordering::Relaxed), slot));
        for _ in 0..2 {
            next.request(own);
            assert!(std::ptr::eq(next.0.load(Ordering::Relaxed), own));
        }
    }
}
