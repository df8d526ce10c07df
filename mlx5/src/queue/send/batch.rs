//! Several WQEs with one doorbell: batches, and posts that wait for a later doorbell.

use core::mem::ManuallyDrop;
use core::ops::Deref;

use barewire_layouts::wqe::ControlFlags;

use super::request::Request;
use super::{Destination, Directed, PostError, SendQueue, WqeIndex};
use crate::doorbell::{BlueFlame, Deferred, Doorbell};

/// WQEs that wait for a later doorbell, for a program that posts them from several calls.
impl<D: Doorbell> SendQueue<D> {
    /// Like [`Self::post`], without a doorbell: the device does not see the WQE before the next
    /// [`Self::announce`] or [`Self::post_last`], or the end of a [batch](Self::batch). Do not post
    /// in any other way until then: a post may write its WQE to the BlueFlame register, and no
    /// known driver does that while the device has not seen the WQEs before it.
    ///
    /// # Errors
    /// Those of [`Self::post`].
    #[inline(always)]
    pub fn post_deferred<R: Request>(
        &mut self,
        request: R,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.deferred().post(request, flags)
    }

    /// Like [`Self::post`], for the last of several WQEs without a doorbell: rings one doorbell for
    /// all of them.
    ///
    /// # Errors
    /// Those of [`Self::post`], and then it does not ring.
    #[inline(always)]
    pub fn post_last<R: Request>(
        &mut self,
        request: R,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.deferred().post(request, flags)?;
        self.announce_all();
        Ok(posted)
    }

    /// Rings the doorbell for the WQEs that the device has not seen, if there are any.
    #[inline]
    pub fn announce(&mut self) {
        if self.doorbell_record.load() != self.producer as u32 & 0xffff {
            self.announce_all();
        }
    }

    /// The queue with a doorbell type that does not ring.
    #[inline(always)]
    fn deferred(&mut self) -> &mut SendQueue<Deferred> {
        // SAFETY: `SendQueue<D>` has the same layout for every `D`: it is `repr(C)`, and `D` occurs
        // only in a `PhantomData` of the `repr(transparent)` register. The caller posts, so that
        // the value stays a queue of this type.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }

    /// Rings the doorbell for all posted WQEs, of which there is at least one.
    #[inline(always)]
    fn announce_all(&mut self) {
        self.record();
        let word = self.ring.word(self.last());
        self.ring(|register| register.ring_word(word));
    }
}

impl<D: Doorbell> SendQueue<D> {
    /// Starts a batch. WQEs posted through it become visible to the device when the batch is
    /// dropped, with one update of the doorbell record and one doorbell of 8 bytes for all of them.
    /// If it is forgotten instead, they are not posted.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, D> {
        // SAFETY: `SendQueue<D>` has the same layout for every `D`: it is `repr(C)`, and `D` occurs
        // only in a `PhantomData` of the `repr(transparent)` register. The copy is never dropped,
        // so that what it owns has one owner. `Batch` borrows this queue mutably, so that nothing
        // else uses the ring while the copy does.
        let copy =
            unsafe { core::ptr::from_ref(self).cast::<ManuallyDrop<SendQueue<Deferred>>>().read() };
        Batch { queue: self, copy }
    }
}

/// Posts WQEs with one doorbell for all of them: see [`SendQueue::batch`].
///
/// It dereferences to the queue, but does not provide mutable access, so that queues of different
/// doorbell types, such as one with a shared register and one without a lock, cannot be exchanged:
///
/// ```compile_fail,E0308
/// use barewire_mlx5::SendQueue;
/// use barewire_mlx5::doorbell::BlueFlameShared;
///
/// fn exchange(own: &mut SendQueue, shared: &mut SendQueue<BlueFlameShared>) {
///     let (mut a, mut b) = (own.batch(), shared.batch());
///     std::mem::swap(&mut *a, &mut *b);
/// }
/// ```
///
/// ```
/// use barewire_mlx5::request::Nop;
/// use barewire_mlx5::{ControlFlags, PostError, SendQueue};
///
/// fn post(queue: &mut SendQueue) -> Result<(), PostError> {
///     let mut batch = queue.batch();
///     while batch.room() > 0 {
///         batch.post(Nop, ControlFlags::empty())?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it rings the doorbell"]
pub struct Batch<'q, D: Doorbell = BlueFlame> {
    queue: &'q mut SendQueue<D>,
    /// The queue with a doorbell type that does not ring, while the batch posts: a local value,
    /// which the compiler keeps in CPU registers. It must not be public: see the type.
    copy: ManuallyDrop<SendQueue<Deferred>>,
}

impl<D: Doorbell> Batch<'_, D> {
    /// As [`SendQueue::post`].
    ///
    /// # Errors
    /// Those of [`SendQueue::post`].
    #[inline(always)]
    pub fn post<R: Request>(
        &mut self,
        request: R,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.copy.post(request, flags)
    }

    /// As [`SendQueue::towards`].
    #[inline(always)]
    pub fn towards<'q, A: Destination>(
        &'q mut self,
        destination: &'q A,
    ) -> Directed<'q, A, impl Doorbell + use<A, D>> {
        self.copy.towards(destination)
    }

    /// See [`SendQueue::fence`].
    pub fn fence(&mut self) {
        self.copy.fence();
    }

    /// See [`SendQueue::request_completion`].
    pub fn request_completion(&mut self) {
        self.copy.request_completion();
    }
}

impl<D: Doorbell> Deref for Batch<'_, D> {
    type Target = SendQueue<D>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: the layout is the same: see `SendQueue::batch`. A shared reference does not ring
        // the doorbell.
        unsafe { &*core::ptr::from_ref(&*self.copy).cast() }
    }
}

impl<D: Doorbell> Drop for Batch<'_, D> {
    #[inline(always)]
    fn drop(&mut self) {
        let Self { queue, copy } = self;
        // What the copy's posts may change. The rest is the same in both.
        queue.stop = copy.stop;
        queue.special = copy.special;
        queue.next_flags = copy.next_flags;
        if queue.producer != copy.producer {
            queue.producer = copy.producer;
            queue.long = copy.long;
            queue.further = copy.further;
            queue.announce_all();
        }
    }
}
