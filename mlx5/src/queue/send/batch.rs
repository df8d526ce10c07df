//! Batches: many WQEs, one doorbell.

use core::ops::{Deref, DerefMut};

use super::SendQueue;
use crate::doorbell::{Deferred, Doorbell};

impl<D: Doorbell> SendQueue<D> {
    /// Starts a batch: what is posted through it becomes visible to the device when the batch is dropped, with one doorbell record and one
    /// doorbell of 8 bytes for all of it.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, D> {
        let start = self.producer;
        Batch { queue: self, start }
    }
}

/// WQEs that are rung for together: see [`SendQueue::batch`]. It has the posting functions of [`SendQueue`].
#[derive(Debug)]
pub struct Batch<'q, D: Doorbell> {
    queue: &'q mut SendQueue<D>,
    /// The producer when the batch began.
    start: u64,
}

impl<D: Doorbell> Deref for Batch<'_, D> {
    type Target = SendQueue<Deferred>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: `SendQueue<D>` has the same fields in the same places for every `D`: it is `repr(C)`, and `D` is only in a
        // `PhantomData` of the `repr(transparent)` register.
        unsafe { &*core::ptr::from_ref(&*self.queue).cast() }
    }
}

impl<D: Doorbell> DerefMut for Batch<'_, D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(&mut *self.queue).cast() }
    }
}

impl<D: Doorbell> Drop for Batch<'_, D> {
    #[inline]
    fn drop(&mut self) {
        let queue = &mut *self.queue;
        if queue.producer != self.start {
            queue.record();
            let word = queue.ring.word(queue.last());
            queue.ring(|register| register.ring_word(word));
        }
    }
}
