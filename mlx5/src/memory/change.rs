//! Errors of windows and views.

use core::ops::Range;

use super::{MemoryRegion, OutOfBounds};
use crate::context::ProtectionDomain;
use crate::queue::send::PostError;
use crate::values::Access;

use barewire_layouts::wqe::DataSegment;

/// Why a window or a view was not changed. Nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The send queue took nothing.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The range is not inside the memory.
    #[error(transparent)]
    Range(#[from] OutOfBounds),
    /// A range is empty, or longer than a list can name.
    #[error("a range has {0} bytes, but must have 1 to 2^31 - 1")]
    Length(u64),
    /// The memory was registered without a right that the window or view needs.
    #[error("the memory lacks the rights {}", .0.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" and "))]
    Rights(Access),
    /// The memory is registered in another protection domain.
    #[error("the memory belongs to another protection domain than the key")]
    Domain,
    /// The window is bound.
    #[error("the window is bound: invalidate it first")]
    Bound,
    /// The window is not bound.
    #[error("the window is not bound")]
    Free,
    /// The window was created for other binds.
    #[error("bind_shared needs a window of create_shared, and bind one of create")]
    Sharing,
    /// Another queue pair bound the window.
    #[error("queue pair {0:#x} bound the window and must invalidate it")]
    QueuePair(u32),
    /// More ranges than the view has room for.
    #[error("{got} ranges, but the view was created for {room}")]
    Entries {
        /// Ranges, and one for the header of an interleaved view.
        got: usize,
        /// Room of the view.
        room: u32,
    },
    /// A stride or the length of an interleaved range has more than 16 bits.
    #[error(
        "{0} bytes, but strides and lengths of interleaved ranges are 1 to 65535: join the ranges instead"
    )]
    Wide(usize),
}

/// The segment of `range` of `memory`, if a key of `domain` may name it with `access`.
pub(super) fn checked(
    domain: &ProtectionDomain,
    memory: &MemoryRegion,
    range: &Range<usize>,
    access: Access,
) -> Result<DataSegment, ChangeError> {
    let length = range.end.wrapping_sub(range.start);
    if range.start > range.end || range.end > memory.len() {
        let size = memory.len();
        return Err(OutOfBounds { offset: range.start, length, size }.into());
    }
    if !memory.domain().is(domain) {
        return Err(ChangeError::Domain);
    }
    // The device checks the rights of the memory again whenever the list leads to it.
    let lacks = access - memory.access();
    if !lacks.is_empty() {
        return Err(ChangeError::Rights(lacks));
    }
    match memory.segment(range.start, length) {
        Some(segment) if length > 0 => Ok(segment),
        _ => Err(ChangeError::Length(length as u64)),
    }
}
