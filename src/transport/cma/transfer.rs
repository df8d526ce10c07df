//! A put or a get on its way: what is left of it, and the memory that it needs.

use std::sync::Arc;

use barewire_shm::{Process, ProcessError, Range};

use super::MAX_IOV;
use super::domain::Region;
use crate::completion::Completion;
use crate::error::Operation;

/// What an endpoint has in its queue.
pub(super) enum Step {
    Transfer(Transfer),
    /// A flush: everything before it is done when it is first.
    Mark(Option<Completion>),
    /// A flush that cancels what is before it.
    Canceled(Option<Completion>),
}

pub(super) struct Transfer {
    put: bool,
    ranges: Vec<Range>,
    remote: u64,
    left: usize,
    pub(super) completion: Option<Completion>,
    /// Keep the ranges mapped.
    _regions: Vec<Arc<Region>>,
}

impl Transfer {
    pub(super) fn new(
        put: bool,
        ranges: Vec<Range>,
        remote: u64,
        regions: Vec<Arc<Region>>,
        completion: Option<&Completion>,
    ) -> Self {
        let left = ranges.iter().map(|range| range.length).sum();
        Self { put, ranges, remote, left, completion: completion.cloned(), _regions: regions }
    }

    pub(super) fn operation(&self) -> Operation {
        if self.put { Operation::Put } else { Operation::Get }
    }

    /// Copies up to so many bytes. True if that was the rest.
    pub(super) fn advance(&mut self, process: &Process, slice: usize) -> Result<bool, ProcessError> {
        if self.left == 0 {
            return Ok(true);
        }
        let mut part = [Range { address: 0, length: 0 }; MAX_IOV];
        let (mut count, mut room) = (0, slice);
        for (place, range) in part.iter_mut().zip(&self.ranges) {
            if room == 0 {
                break;
            }
            *place = Range { length: range.length.min(room), ..*range };
            room -= place.length;
            count += 1;
        }
        let part = part.get(..count).unwrap_or_default();
        // SAFETY: the ranges are slices of the regions, which are kept, and whose owners allowed this.
        let copied = unsafe {
            if self.put { process.write(part, self.remote) } else { process.read(part, self.remote) }
        }?;
        if copied == 0 {
            return Err(ProcessError::Memory { process: process.number() });
        }
        self.skip(copied);
        Ok(self.left == 0)
    }

    /// So many bytes were copied.
    pub(super) fn skip(&mut self, mut copied: usize) {
        self.remote += copied as u64;
        self.left -= copied.min(self.left);
        self.ranges.retain_mut(|range| {
            let done = copied.min(range.length);
            copied -= done;
            range.address += done as u64;
            range.length -= done;
            range.length > 0
        });
    }
}
