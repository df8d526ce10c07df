//! Numbers of requests.

/// Most buffers of a group.
pub const MAX_GROUP: usize = 8;
/// Groups that may be posted before the first of them was tested successfully.
pub const MAX_GROUPS: usize = 32;

/// An operation of a [`Sender`](crate::Sender) or [`Receiver`](crate::Receiver) that was posted.
///
/// The number of the group and of the buffer in it. No number is used twice in the life of a
/// channel, so a request that is complete cannot be taken for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the operation is complete when a test says so"]
pub struct Request(u64);

impl Request {
    pub(crate) fn new(group: u64, member: u8) -> Self {
        Self(group << 3 | u64::from(member & 7))
    }

    /// Slot of a send request.
    pub(crate) fn slot(self) -> usize {
        self.0 as usize % (MAX_GROUP * MAX_GROUPS)
    }

    /// Slot of a group.
    pub(crate) fn group(self) -> usize {
        (self.0 >> 3) as usize % MAX_GROUPS
    }

    /// Number of the group.
    pub(crate) fn number(self) -> u64 {
        self.0 >> 3
    }
}
