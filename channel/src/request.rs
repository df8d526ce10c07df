//! Numbers of requests.

use crate::config::{MAX_GROUP, MAX_GROUPS};
use crate::error::Error;

/// Requests of one end that may be outstanding.
pub(crate) const REQUESTS: usize = MAX_GROUPS * MAX_GROUP;
const _: () = assert!(REQUESTS == 256, "the low byte is the slot");

/// An operation of a [`Sender`](crate::Sender) or [`Receiver`](crate::Receiver) that was posted.
///
/// The number of the group and of the buffer in it. No number is used twice in the life of a
/// channel, so a request that is complete cannot be taken for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the operation is complete when a test says so"]
pub struct Request(u64);

impl Request {
    /// Marks a slot without a request.
    pub(crate) const NONE: Self = Self(u64::MAX);
    /// The bit that marks the number of a request which is complete but was not tested since.
    const ENDED: u64 = 1 << 63;

    #[inline(always)]
    pub(crate) fn new(group: u64, member: u8) -> Self {
        Self(group << 3 | u64::from(member & 7))
    }

    /// The request of the buffer with this number among all: eight for each group.
    #[inline(always)]
    pub(crate) fn of(buffer: u64) -> Self {
        Self(buffer)
    }

    /// Whether it is a request that is not complete.
    #[inline(always)]
    pub(crate) fn is_open(self) -> bool {
        self.0 & Self::ENDED == 0
    }

    /// The mark of a slot whose request this was, and which is complete.
    #[inline(always)]
    pub(crate) fn ended(self) -> Self {
        Self(self.0 | Self::ENDED)
    }

    /// Number of the group of an open request.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        self.0 >> 3
    }

    /// Number of the buffer in its group.
    pub(crate) fn member(self) -> u8 {
        self.0 as u8 & 7
    }

    /// Slot of a send request.
    #[inline(always)]
    pub(crate) fn slot(self) -> u8 {
        self.0 as u8
    }

    /// Slot of a group.
    #[inline(always)]
    pub(crate) fn group(self) -> usize {
        (self.0 >> 3) as usize % MAX_GROUPS
    }

    /// The number, for a program that passes requests through another language. Its low byte
    /// differs from those of all other outstanding requests of the same end.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The request with the number `bits`, or `None` if no request has that number. One that was
    /// never returned is refused by `test`.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        // So no marked number is that of a free slot.
        (bits < Self::ENDED / 2).then_some(Self(bits))
    }
}

/// What became of a request that was tested. It fits registers.
#[derive(Debug)]
pub(crate) enum Outcome<'e, S> {
    /// It is not complete.
    Waiting,
    /// It is complete, and its slot is free; the slot keeps the results until it is used again.
    Complete(&'e S),
    /// The call fails with the error that is stored here.
    Failed(&'e mut Option<Error>),
}
