//! The credit window of a link: how many eager messages, and how many bytes, may wait at the
//! receiver.
//!
//! Both directions count from the beginning of the link, modulo the width of their fields, so that
//! a repeated or combined report changes nothing. The difference of two counters is exact as long
//! as the windows are at most half of the fields' ranges.

use super::super::message::Credit;

/// How much unexpected payload a link may leave at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Eager messages, at most 2^15 - 1.
    pub messages: u16,
    /// Bytes of their payload, at most 2^31 - 1.
    pub bytes: u32,
}

impl Window {
    /// No eager message: every send is a rendezvous.
    pub const CLOSED: Self = Self { messages: 0, bytes: 0 };

    pub(super) fn clamped(self) -> Self {
        Self {
            messages: self.messages.min(i16::MAX as u16),
            bytes: self.bytes.min(i32::MAX as u32),
        }
    }
}

impl Default for Window {
    /// Credit is read by progress, which a program calls when a send is not complete: with so many
    /// messages, a receiver that keeps up seldom makes one wait.
    fn default() -> Self {
        Self { messages: 1024, bytes: 256 << 10 }
    }
}

impl From<Window> for Credit {
    fn from(window: Window) -> Self {
        Self { messages: window.messages, bytes: window.bytes }
    }
}

impl Credit {
    /// Adds one message of `length` bytes.
    #[inline]
    pub(super) fn add(&mut self, length: usize) {
        self.messages = self.messages.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(length as u32);
    }

    /// Takes back one message of `length` bytes.
    pub(super) fn remove(&mut self, length: usize) {
        self.messages = self.messages.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub(length as u32);
    }

    /// Whether `self`, as used, leaves room for a message of `length` bytes below `limit`.
    #[inline]
    pub(super) fn has_room(self, limit: Self, length: usize) -> bool {
        let messages = limit.messages.wrapping_sub(self.messages) as i16;
        let bytes = limit.bytes.wrapping_sub(self.bytes) as i32;
        messages > 0 && i64::from(bytes) >= i64::try_from(length).unwrap_or(i64::MAX)
    }

    /// Returns whether `self` is ahead of what was `reported` by one part of `PARTS` of `window`.
    #[inline]
    pub(super) fn is_ahead<const PARTS: u32>(self, reported: Self, window: Window) -> bool {
        let messages = u32::from(self.messages.wrapping_sub(reported.messages));
        let bytes = self.bytes.wrapping_sub(reported.bytes);
        messages > 0
            && (messages >= u32::from(window.messages).div_ceil(PARTS)
                || bytes >= window.bytes.div_ceil(PARTS).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap() {
        let window = Window { messages: 2, bytes: 100 };
        let mut used = Credit { messages: u16::MAX, bytes: u32::MAX - 10 };
        let mut limit = used;
        assert!(!used.has_room(limit, 0));
        for _ in 0..window.messages {
            limit.add(50);
        }
        assert!(used.has_room(limit, 100) && !used.has_room(limit, 101));
        used.add(60);
        assert!(used.has_room(limit, 40) && !used.has_room(limit, 41));
        used.add(0);
        assert!(!used.has_room(limit, 0), "both messages are used");
        // More than allowed is no room, instead of a lot of it.
        used.add(1);
        assert!(!used.has_room(limit, 0));
    }

    #[test]
    fn a_report_is_due_at_half_of_the_window() {
        let window = Window { messages: 4, bytes: 100 };
        let reported = Credit { messages: u16::MAX, bytes: u32::MAX };
        let mut now = reported;
        assert!(!now.is_ahead::<2>(reported, window));
        now.add(10);
        assert!(!now.is_ahead::<2>(reported, window));
        now.add(10);
        assert!(now.is_ahead::<2>(reported, window), "two messages of four");
        now = reported;
        now.add(50);
        assert!(now.is_ahead::<2>(reported, window), "50 bytes of 100");
    }
}
