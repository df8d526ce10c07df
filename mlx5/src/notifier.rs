//! Completion notification through a descriptor.

use core::any::Any;
use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use barewire_layouts::doorbell::{CqArm, CqDoorbell};

use crate::channel::CompletionEvents;
use crate::doorbell::RecordWord;
use crate::queue::completion::CompletionQueue;
use crate::{barrier, store};

/// Reports completions of one queue through a descriptor: see
/// [`CompletionQueue::create_with_notifier`].
///
/// The [descriptor](AsFd) becomes readable once the queue, [armed](Self::arm), has completions.
#[must_use = "dropping it ends the events"]
pub struct Notifier {
    /// Keeps the record and the doorbell page alive.
    _queue: Arc<dyn Any + Send + Sync>,
    events: Arc<dyn CompletionEvents>,
    doorbell: NonNull<u64>,
    /// The arm word of the queue's record.
    record: RecordWord,
    number: u32,
    /// Counts events: the device ignores a request with the same number as the last.
    sequence: Cell<u8>,
}

// SAFETY: the pointers are not tied to a thread: record and doorbell page are memory that the value
// keeps alive. The arm word is only this value's, which is not `Sync`. Other notifiers of the same
// page ring its doorbell from other threads, but by one store of a whole aligned word each, as
// `store::word` requires of concurrent accesses. Nothing else in it is tied to a thread.
unsafe impl Send for Notifier {}

impl Notifier {
    /// # Safety
    /// Until `queue` is dropped, `record` is valid as the arm word of the doorbell record of queue
    /// `number`, which only this value and the device access, and `doorbell` is valid for stores of
    /// 8 bytes as the CQ doorbell of that queue's page.
    pub(crate) unsafe fn new(
        events: Arc<dyn CompletionEvents>,
        queue: Arc<dyn Any + Send + Sync>,
        doorbell: NonNull<u64>,
        record: NonNull<u32>,
        number: u32,
    ) -> Self {
        // SAFETY: `record` is valid by the caller's contract.
        let record = unsafe { RecordWord::new(record) };
        Self { events, _queue: queue, doorbell, record, number, sequence: Cell::new(0) }
    }

    /// Requests an event (PRM: CQ doorbell, arm) and discards events of earlier requests. The next
    /// completion of `queue`, the queue of this notifier, then makes the descriptor readable.
    ///
    /// Returns whether the queue is empty. If not, the caller polls instead of waiting: a device
    /// sends one event for a completion, which may be one that is discarded here.
    #[must_use = "a queue that is not empty may have no further event"]
    pub fn arm(&self, queue: &mut CompletionQueue) -> bool {
        if self.events.take() {
            self.sequence.set(self.sequence.get().wrapping_add(1) & 3);
        }
        queue.publish_consumer();
        let request = CqArm {
            sequence: self.sequence.get(),
            solicited_only: false,
            consumer: queue.consumer(),
        };
        self.record.store(request.bits());
        barrier::doorbell_record_before_doorbell();
        let CqDoorbell(word) = CqDoorbell::new(request, self.number);
        let word = word.get().to_be();
        // SAFETY: `doorbell` is valid for a store of 8 bytes by the contract of `new`, while `self`
        // holds the queue.
        unsafe { store::word(self.doorbell, word) };
        barrier::flush_write_combining();
        queue.is_empty()
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
