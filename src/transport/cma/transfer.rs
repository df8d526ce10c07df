//! A put or get in progress: its remaining ranges and the regions that it needs.

use barewire_shm::{PinError, Process, ProcessError, Range, RegionKey, Table};

use super::MAX_IOV;
use crate::base::completion::{Completion, Counted};
use crate::base::error::{Cause, Operation, PostError};
use crate::transport::common::rma;

/// Why a copy was not made.
#[derive(Debug)]
pub(super) enum Failure {
    /// The peer's region does not allow the access.
    Key(PinError),
    /// Local memory was dropped.
    Local,
    /// The kernel refused.
    Process(ProcessError),
}

impl Failure {
    /// Returns the error that the post itself can return, if there is one.
    pub(super) fn refusal(&self) -> Option<PostError> {
        match self {
            Self::Key(PinError::Freed) => Some(PostError::KeyExpired),
            Self::Key(PinError::Range) => Some(PostError::OutOfRange),
            Self::Key(_) => Some(PostError::AccessDenied),
            Self::Local | Self::Process(_) => None,
        }
    }

    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Key(_)
            | Self::Process(ProcessError::Memory { .. } | ProcessError::Denied { .. }) => {
                Cause::RemoteAccess
            }
            Self::Local => Cause::LocalAccess,
            Self::Process(ProcessError::Ended { .. }) => Cause::PeerUnreachable,
            Self::Process(ProcessError::Other { .. }) => Cause::Disconnected,
            Self::Process(_) => Cause::LocalOperation,
        }
    }

    pub(super) fn detail(&self) -> String {
        match self {
            Self::Key(error) => error.to_string(),
            Self::Local => "local memory was dropped during the operation".to_owned(),
            Self::Process(error) => error.to_string(),
        }
    }
}

/// A range of the peer's memory, and its region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) key: RegionKey,
}

/// Checks whether the peer allows the operation now.
pub(super) fn check(
    put: bool,
    process: &Process,
    remote: Remote,
    length: usize,
) -> Result<(), Failure> {
    process
        .pin(remote.key, remote.address, length, rma::right(put).bits())
        .map(drop)
        .map_err(Failure::Key)
}

/// Puts or gets up to `length` bytes with one copy. Returns how many were copied, which may be
/// fewer.
///
/// # Safety
/// The ranges are mapped. For a get, they may be written as if by another process.
pub(super) unsafe fn copy(
    put: bool,
    process: &Process,
    local: &[Range],
    remote: Remote,
    length: usize,
) -> Result<usize, Failure> {
    let pinned = process
        .pin(remote.key, remote.address, length, rma::right(put).bits())
        .map_err(Failure::Key)?;
    // SAFETY: the ranges are mapped, and for a get may be written as if by another process
    // (contract of this function).
    unsafe { if put { pinned.write(local) } else { pinned.read(local) } }.map_err(Failure::Process)
}

/// An entry of an endpoint's queue.
pub(super) enum Step {
    Transfer(Transfer),
    /// A flush: all operations before it are complete when it is first in the queue.
    Mark(Option<Counted>),
    /// A flush that cancels the operations before it.
    Canceled(Option<Counted>),
}

pub(super) struct Transfer {
    put: bool,
    /// The remaining ranges, each with its region of this process.
    ranges: Vec<(Range, RegionKey)>,
    remote: Remote,
    left: usize,
    pub(super) completion: Option<Counted>,
}

impl Transfer {
    pub(super) fn new(
        put: bool,
        ranges: Vec<(Range, RegionKey)>,
        remote: Remote,
        completion: Option<&Completion>,
    ) -> Self {
        let left = ranges.iter().map(|(range, _)| range.length).sum();
        Self { put, ranges, remote, left, completion: completion.map(Completion::begin) }
    }

    pub(super) fn operation(&self) -> Operation {
        rma::operation(self.put)
    }

    /// Copies up to `slice` bytes. Returns whether the transfer is complete.
    pub(super) fn advance(
        &mut self,
        process: &Process,
        table: &Table,
        slice: usize,
    ) -> Result<bool, Failure> {
        if self.left == 0 {
            return Ok(true);
        }
        let mut part = [Range { address: 0, length: 0 }; MAX_IOV];
        let mut pins = [const { None }; MAX_IOV];
        let (mut count, mut room) = (0, slice);
        for ((place, pin), (range, key)) in part.iter_mut().zip(&mut pins).zip(&self.ranges) {
            if room == 0 {
                break;
            }
            *pin = Some(table.pin(*key).ok_or(Failure::Local)?);
            *place = Range { length: range.length.min(room), ..*range };
            room -= place.length;
            count += 1;
        }
        let part = part.get(..count).unwrap_or_default();
        // SAFETY: the ranges are slices of regions that are pinned here, so they stay mapped, and
        // whose rights allow this access.
        let copied = unsafe { copy(self.put, process, part, self.remote, slice - room) }?;
        self.skip(copied);
        Ok(self.left == 0)
    }

    /// Removes `copied` bytes from the remaining ranges.
    pub(super) fn skip(&mut self, mut copied: usize) {
        self.remote.address += copied as u64;
        self.left -= copied.min(self.left);
        self.ranges.retain_mut(|(range, _)| {
            let done = copied.min(range.length);
            copied -= done;
            range.address += done as u64;
            range.length -= done;
            range.length > 0
        });
    }
}
