//! Message numbers, which wrap.

/// The number of a message. Numbers wrap at 2^32; of two, the later is the one that is less than
/// 2^31 ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Sequence(pub(in super::super) u32);

impl Sequence {
    pub(in super::super) fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Returns the distance from `first`; a huge number if it is before `first`.
    pub(in super::super) fn since(self, first: Self) -> u32 {
        self.0.wrapping_sub(first.0)
    }

    /// Returns whether it is before `other`.
    pub(in super::super) fn is_before(self, other: Self) -> bool {
        self.since(other) > i32::MAX as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_over_the_wrap() {
        let last = Sequence(u32::MAX);
        assert_eq!((last.plus(1), last.plus(3).since(last)), (Sequence(0), 3));
        assert!(
            last.is_before(Sequence(0)) && !Sequence(0).is_before(last) && !last.is_before(last)
        );
    }
}
