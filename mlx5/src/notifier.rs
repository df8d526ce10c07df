//! Being woken by a completion queue.

use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use barewire_layouts::doorbell::{CqArm, CqDoorbell};
use volatile::VolatilePtr;
use volatile::access::WriteOnly;

use crate::barrier;
use crate::channel::{CompletionEvents, Uar};
use crate::doorbell::RecordWord;
use crate::queue::completion::CompletionQueue;

/// Tells of completions of one queue, by a descriptor: see [`CompletionQueue::create_with_notifier`].
///
/// Its [descriptor](AsFd) is readable once the queue, [armed](Self::arm), has completions.
pub struct Notifier {
    events: Arc<dyn CompletionEvents>,
    /// Holds the page of the doorbell.
    _uar: Arc<dyn Uar>,
    doorbell: NonNull<u64>,
    /// The arm word of the queue's record.
    record: RecordWord,
    number: u32,
    /// Counts requests, so that no two in a row are alike.
    sequence: Cell<u8>,
}

impl Notifier {
    /// # Safety
    /// `record` is the arm word of queue `number`'s doorbell record, and valid as long as the queue that [`Self::arm`] gets.
    pub(crate) unsafe fn new(
        events: Arc<dyn CompletionEvents>,
        uar: Arc<dyn Uar>,
        doorbell: NonNull<u64>,
        record: NonNull<u32>,
        number: u32,
    ) -> Self {
        // SAFETY: the caller's contract.
        let record = unsafe { RecordWord::new(record) };
        Self { events, _uar: uar, doorbell, record, number, sequence: Cell::new(0) }
    }

    /// Asks for an event (PRM: CQ doorbell, arm). Events of earlier requests are forgotten. The next completion that `queue`, the one this was made
    /// with, has not given yet makes the descriptor readable, also if it is there already.
    pub fn arm(&self, queue: &mut CompletionQueue) {
        self.events.take();
        queue.publish_consumer();
        self.sequence.set(self.sequence.get().wrapping_add(1) & 3);
        let request =
            CqArm { sequence: self.sequence.get(), solicited_only: false, consumer: queue.consumer() };
        self.record.store(request.bits());
        barrier::doorbell_record_before_doorbell();
        let CqDoorbell(word) = CqDoorbell::new(request, self.number);
        let word = word.get().to_be();
        // SAFETY: the CQ doorbell of a page that `_uar` holds, valid for stores of 8 bytes.
        unsafe { VolatilePtr::new_restricted(WriteOnly, self.doorbell) }.write(word);
        barrier::flush_write_combining();
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier")
            .field("number", &self.number)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}
