//! Receiving from the queue that all endpoints of an interface share: its buffers, and their
//! messages.

mod tagged;

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::time::Duration;

use barewire_mlx5::queue::shared_receive::{List, SharedReceiveQueue};
use barewire_mlx5::{CompletionQueue, DataSegment, MemoryRegion};

use super::domain::Domain;
use crate::base::config::InterfaceConfig;
use crate::base::error::OpenError;
use crate::transport::common::message::{
    BufferOwner, Copying, ExternalMessage, Keeper, KeptMessage, Message, write_keeper,
};
use crate::transport::common::pool::{Block as _, Lease};
use crate::transport::common::registered::{Domain as _, Registered};
use crate::transport::rc::{AM_HEADER, AM_ID, BUFFER, DATA, MAX_AM, MESSAGE, SEGMENT};

/// Most buffers posted with one update of the doorbell record.
const BATCH: u32 = 32;
/// Offset of a buffer's number: behind the pointer to its owner in the headroom, in front of the
/// message.
const NUMBER: usize = 16;
/// No WQE: their numbers are less than 2^15.
const NONE: u32 = u32::MAX;

const _: () = assert!(NUMBER >= size_of::<&dyn Keeper>() && NUMBER + size_of::<u32>() <= MESSAGE);

/// The queue and its buffers. WQE `n` always has buffer `n`.
pub(in crate::transport) struct SharedReceiver {
    /// Declared before the memory that it uses, so that it is dropped first.
    queue: UnsafeCell<SharedReceiveQueue<List>>,
    /// The buffer of each WQE; `None` while its message is kept, or if the WQE has none yet.
    starts: Box<[Cell<Option<NonNull<u8>>>]>,
    /// Number of WQEs of the ring - 1, less than 2^15.
    mask: u32,
    /// Posts after which the doorbell record is updated, at least 1. If 1, no WQE is posted before
    /// its message was handled.
    batch: Cell<u32>,
    /// Posts until the next update, at least 1.
    left: Cell<u32>,
    /// Most buffers.
    most: Cell<u32>,
    /// Buffers of kept messages.
    kept: Cell<u32>,
    /// The message in a CQE that is being handled.
    in_cqe: ExternalMessage<'static>,
    /// The WQE that [`Self::receive_any`] posts, whose handler has kept the message; or [`NONE`].
    keeping: Cell<u32>,
    /// The memory of the buffers, each with the number of its first one.
    memory: RefCell<Vec<(u32, Registered<MemoryRegion>)>>,
    domain: Domain,
    me: Weak<Self>,
}

/// How long a stopped queue pair takes at most to return a receive WQE that it took from the shared
/// queue: the device completes it as flushed when the queue pair enters the error state.
pub(in crate::transport) const GRACE: Duration = Duration::from_millis(50);

/// Most buffers of a shared receive queue.
pub(in crate::transport) fn most_buffers(config: &InterfaceConfig) -> u32 {
    let per_endpoint = config.receive_ring.saturating_add(config.spare_receive_buffers);
    let all = per_endpoint.saturating_mul(config.max_endpoints);
    all.min(config.max_receive_buffers.max(config.receive_ring))
}

/// The WQEs in the ring of a queue that grows up to `buffers` posted buffers, if a ring can have so
/// many.
pub(in crate::transport) fn ring_of(buffers: u32) -> u32 {
    // A list keeps one WQE back.
    buffers.saturating_add(1).clamp(2, 1 << 15).next_power_of_two()
}

/// An owner of a [`SharedReceiver`]: as its `Rc`, whose pointer is to the counts in front of the value,
/// so that a reference, which calls need, would be one more value computed for each message.
pub(in crate::transport) struct Owner {
    receiver: NonNull<SharedReceiver>,
    _rc: Rc<SharedReceiver>,
}

impl Deref for Owner {
    type Target = SharedReceiver;

    #[inline(always)]
    fn deref(&self) -> &SharedReceiver {
        // SAFETY: the pointer is to the value of the `Rc`, which does not move, and which this owner
        // keeps alive. Nothing borrows it exclusively.
        unsafe { self.receiver.as_ref() }
    }
}

impl SharedReceiver {
    /// Creates a queue with `buffers` posted buffers, which grows up to `most`.
    pub(in crate::transport) fn create(
        domain: &Domain,
        buffers: u32,
        most: u32,
    ) -> Result<Owner, OpenError> {
        let entries = ring_of(most.max(buffers));
        let queue = SharedReceiveQueue::create(domain.protection(), entries, 1)
            .map_err(|e| domain.refused("create a shared receive queue", e))?;
        Self::over(domain, queue, buffers, most)
    }

    /// As [`Self::create`], over a queue of [`ring_of`] the larger number of buffers.
    pub(in crate::transport) fn over(
        domain: &Domain,
        queue: SharedReceiveQueue<List>,
        buffers: u32,
        most: u32,
    ) -> Result<Owner, OpenError> {
        let entries = queue.entries();
        let receiver = Rc::new_cyclic(|me| Self {
            queue: UnsafeCell::new(queue),
            starts: (0..entries).map(|_| Cell::new(None)).collect(),
            mask: entries - 1,
            batch: Cell::new(1),
            left: Cell::new(1),
            most: Cell::new(entries.min(most.saturating_add(1))),
            kept: Cell::new(0),
            in_cqe: ExternalMessage::new(NonNull::dangling(), &Copying),
            keeping: Cell::new(NONE),
            memory: RefCell::default(),
            domain: domain.clone(),
            me: me.clone(),
        });
        receiver.add(entries.min(buffers.saturating_add(1)))?;
        Ok(Owner { receiver: NonNull::from(&*receiver), _rc: receiver })
    }

    /// Runs `run` with the queue. This is the only access to it.
    #[inline(always)]
    pub(in crate::transport) fn with_queue<R>(
        &self,
        run: impl FnOnce(&mut SharedReceiveQueue<List>) -> R,
    ) -> R {
        // SAFETY: the receiver stays on its thread. Every `run` calls only the driver, which calls
        // no code of the transport or of the user. So no second reference to the queue exists while
        // this one does.
        run(unsafe { &mut *self.queue.get() })
    }

    // Buffers.

    /// Registers `count` more buffers, at least 2 in the first call, and posts them.
    fn add(&self, count: u32) -> Result<(), OpenError> {
        let memory = self
            .domain
            .blocks(count as usize * BUFFER)
            .map_err(|e| self.domain.refused("register receive buffers", e))?;
        let first = self.with_queue(|queue| queue.filled());
        let buffer = |index: u32| {
            // SAFETY: the buffer lies inside the memory, which is `count` buffers long.
            unsafe { memory.start().add((index - first) as usize * BUFFER) }
        };
        for index in first..first + count {
            let start = buffer(index);
            // SAFETY: the headroom of a buffer that nothing uses yet, and which the device does not
            // write. A message, which reads it, is delivered by the receiver, which thus lives.
            unsafe {
                write_keeper(start, self);
                start.add(NUMBER).cast::<u32>().write(index);
            }
            if let Some(slot) = self.starts.get(index as usize) {
                slot.set(Some(start));
            }
        }
        let segment = |index: u16| {
            let address = buffer(index.into()).addr().get() as u64 + MESSAGE as u64;
            DataSegment::new(address, SEGMENT as u32, memory.key())
        };
        if !self.with_queue(|queue| queue.extend(count, segment)) {
            return Err(self.domain.refused("post receive buffers", "the ring is full"));
        }
        self.memory.borrow_mut().push((first, memory));
        self.publish();
        Ok(())
    }

    /// Doubles the number of buffers, up to the limit.
    #[cold]
    #[inline(never)]
    fn grow(&self) {
        let have = self.with_queue(|queue| queue.filled());
        let count = self.most.get().saturating_sub(have).min(have);
        if count > 0
            && let Err(error) = self.add(count)
        {
            tracing::debug!(%error, have, "could not register more receive buffers");
            self.most.set(have);
        }
    }

    /// Updates the doorbell record after a batch. No handler is running.
    #[inline(always)]
    pub(in crate::transport) fn update(&self, completions: &CompletionQueue) {
        self.with_queue(SharedReceiveQueue::publish);
        self.check_backlog(completions);
        // The message that follows is counted again.
        self.left.set(self.batch.get() + 1);
    }

    /// Grows the queue if half of its buffers have messages that wait in `completions`. Called after
    /// an update of the doorbell record, so that messages do not pay for it.
    ///
    /// The device reports a low queue, too (the event `SRQ_LIMIT`), but reading the event takes a
    /// system call.
    #[inline]
    pub(in crate::transport) fn check_backlog(&self, completions: &CompletionQueue) {
        let have = self.with_queue(|queue| queue.filled());
        if have < self.most.get() && completions.has(have / 2) {
            self.grow();
        }
    }

    /// Posts the buffer of WQE `index`, whose message has ended, unless it was kept.
    fn end(&self, index: u32) {
        if self.keeping.get() == index {
            self.keeping.set(NONE);
        }
        let has_buffer = self.start(index as u16).get().is_some();
        if has_buffer && self.with_queue(|queue| queue.recycle(index)) && self.ends_batch() {
            self.publish();
        }
    }

    /// Counts a post. Returns whether it completes a batch.
    #[inline(always)]
    fn ends_batch(&self) -> bool {
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        left == 0
    }

    /// Updates the doorbell record, and sets the size of batches by the number of buffers that are
    /// not kept: those that wait for an update are at most a quarter of them.
    ///
    /// No handler of a message is running whose buffer is posted.
    fn publish(&self) {
        let filled = self.with_queue(|queue| {
            queue.publish();
            queue.filled()
        });
        let batch = (filled.saturating_sub(self.kept.get()) / 4).clamp(1, BATCH);
        if batch == 1 {
            // Each of so few buffers is posted when its message ends.
            self.with_queue(SharedReceiveQueue::doubt);
        }
        self.batch.set(batch);
        self.left.set(batch);
    }

    /// Posts the buffer of WQE `counter`, whose message is not delivered. No handler is running.
    #[cold]
    #[inline(never)]
    pub(in crate::transport) fn discard(&self, counter: u16) {
        self.end(self.index(counter));
    }

    /// Returns the slot of WQE `counter`.
    #[inline(always)]
    fn start(&self, counter: impl Into<u32>) -> &Cell<Option<NonNull<u8>>> {
        // SAFETY: the mask keeps the index below the length, which is a power of two.
        unsafe { self.starts.get_unchecked(self.index(counter) as usize) }
    }

    /// Returns the index of WQE `counter`.
    #[inline(always)]
    fn index(&self, counter: impl Into<u32>) -> u32 {
        counter.into() & self.mask
    }

    // Messages.

    /// Passes the message of `length` bytes ([`am_length`](crate::transport::rc::am_length)) of WQE
    /// `counter` to `handle`, with its id, or `None` if it is not of this transport. Only the low
    /// half of `counter` has a meaning. Returns `false` without effect if [`Self::update`] must be
    /// called before. No handler is running.
    #[inline(always)]
    pub(in crate::transport) fn receive<P: Place>(
        &self,
        counter: u32,
        length: usize,
        place: P,
        handle: impl FnOnce(Option<(u8, Message<'_>)>),
    ) -> bool {
        // Not here, since no value then has to survive a call.
        if self.ends_batch() {
            return false;
        }
        let index = self.index(counter);
        let Some(start) = place.start(self, index) else { return true };
        // The buffer is posted before its message is handled, after which nothing is left to do.
        // The device cannot use it: the list keeps the WQE back until another one is posted behind
        // it, by the next call; and the doorbell record is not updated before, except by `keep`,
        // which takes the WQE back, and after that.
        // SAFETY: the index is masked, and `mask` is less than 2^15.
        if !self.with_queue(|queue| unsafe { queue.recycle_next_masked(index) }) {
            self.receive_any::<P>(start, length, index, handle);
            return true;
        }
        // SAFETY: the device does not write the buffer before the message has ended, or, if it is
        // kept, before the kept message is dropped, as the comment above explains.
        unsafe { P::pass(start, self, length, handle) };
        true
    }

    /// As [`Self::receive`], for a WQE in any order: its buffer is posted after its message has
    /// ended.
    #[cold]
    #[inline(never)]
    fn receive_any<P: Place>(
        &self,
        start: NonNull<u8>,
        length: usize,
        index: u32,
        handle: impl FnOnce(Option<(u8, Message<'_>)>),
    ) {
        let _ended = Received { receiver: self, index };
        // SAFETY: the receive WQE is complete, so the device writes the buffer only after it is
        // posted again: when the guard is dropped after the message has ended, or, if the kept
        // message outlives that, when it is dropped (the slot is empty until then).
        unsafe { P::pass(start, self, length, handle) };
    }
}

/// Where the device has written a message.
pub(in crate::transport) trait Place {
    /// Returns the start of the buffer or CQE that contains the message of WQE `index`, which is
    /// masked; `None` if the WQE has no buffer.
    fn start(self, receiver: &SharedReceiver, index: u32) -> Option<NonNull<u8>>;

    /// Passes the message of `length` bytes at `start` to `handle`, with its id, or `None` if it is
    /// not of this transport.
    ///
    /// # Safety
    /// [`Self::start`] returned `start`, for a message of `receiver`. The device does not write the
    /// buffer of the WQE before `handle` returns or unwinds, or, if the message is kept, before the
    /// kept message is dropped.
    unsafe fn pass(
        start: NonNull<u8>,
        receiver: &SharedReceiver,
        length: usize,
        handle: impl FnOnce(Option<(u8, Message<'_>)>),
    );
}

/// The buffer of the WQE.
pub(in crate::transport) struct InBuffer;

impl Place for InBuffer {
    #[inline(always)]
    fn start(self, receiver: &SharedReceiver, index: u32) -> Option<NonNull<u8>> {
        receiver.start(index).get()
    }

    #[inline(always)]
    unsafe fn pass(
        start: NonNull<u8>,
        _: &SharedReceiver,
        length: usize,
        handle: impl FnOnce(Option<(u8, Message<'_>)>),
    ) {
        // A message shorter than its header, or longer than a buffer, is not of this transport.
        if length > MAX_AM {
            return handle(None);
        }
        // SAFETY: the header lies before `DATA`, and `MAX_AM` bytes follow from `DATA` on, which
        // the device does not write (contract of this function). `add` wrote the headroom, which
        // names the receiver.
        let (id, message) =
            unsafe { (start.add(MESSAGE + AM_ID).read(), Message::new(start.add(DATA), length)) };
        handle(Some((id, message)));
    }
}

/// Bytes of a CQE with a message, including the message's header.
const IN_CQE: usize = 32;

/// The first bytes of the CQE. The buffer of the WQE is not accessed, so that progress does not
/// wait for another cache line in another page.
pub(in crate::transport) struct InCqe(NonNull<[u8; IN_CQE]>);

impl InCqe {
    /// # Safety
    /// `data` is valid for reads, and nothing writes it before [`SharedReceiver::receive`] returns
    /// or unwinds.
    #[inline(always)]
    pub(in crate::transport) unsafe fn new(data: NonNull<[u8; IN_CQE]>) -> Self {
        Self(data)
    }
}

impl Place for InCqe {
    #[inline(always)]
    fn start(self, _: &SharedReceiver, _: u32) -> Option<NonNull<u8>> {
        Some(self.0.cast())
    }

    #[inline(always)]
    unsafe fn pass(
        start: NonNull<u8>,
        receiver: &SharedReceiver,
        length: usize,
        handle: impl FnOnce(Option<(u8, Message<'_>)>),
    ) {
        // A message shorter than its header, or longer than a CQE has room for.
        if length > IN_CQE - AM_HEADER {
            return handle(None);
        }
        // SAFETY: the header and `length` bytes lie within the array, which is valid and not
        // written (contract of `new`). No other message refers to `in_cqe`: no handler was running,
        // and this message ends before `handle` returns.
        let (id, message) = unsafe {
            receiver.in_cqe.move_to(start.add(AM_HEADER));
            (start.add(AM_ID).read(), Message::external(&receiver.in_cqe, length))
        };
        handle(Some((id, message)));
    }
}

/// Posts the buffer of a message that was handled in [`SharedReceiver::receive_any`], also if its
/// handler panics.
struct Received<'a> {
    receiver: &'a SharedReceiver,
    index: u32,
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        self.receiver.end(self.index);
    }
}

impl Keeper for SharedReceiver {
    #[cold]
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn BufferOwner> =
            self.me.upgrade().expect("a receiver that is borrowed is alive");
        // SAFETY: `start` is the start of a buffer, where `add` wrote its number. The device does
        // not write that part.
        let number = unsafe { start.add(NUMBER).cast::<u32>().read() };
        let buffer = self.start(number as u16).take().map(|_| Lease::numbered(number));
        if buffer.is_some() {
            self.kept.set(self.kept.get() + 1);
            // A WQE that was posted before its message was handled is the one that the list keeps
            // back. Any other is posted after that.
            if !self.with_queue(|queue| queue.take_back(number as u16)) {
                self.keeping.set(number);
            }
        }
        // Half of the buffers are kept, so there are too few.
        if 2 * self.kept.get() >= self.with_queue(|queue| queue.filled()) {
            self.grow();
        }
        // What was posted since the last update may be all that is left.
        self.publish();
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses, and
        // the kept message keeps its owner alive.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }

    /// `keep` lets the queue grow as long as half of its buffers are kept.
    fn lends(&self) -> bool {
        2 * (self.kept.get() + 1) <= self.with_queue(|queue| queue.filled())
    }
}

impl BufferOwner for SharedReceiver {
    fn reclaim(&self, buffer: Lease) {
        let index = buffer.index() as u32;
        let memory = self.memory.borrow();
        let Some((first, memory)) = memory.iter().rfind(|(first, _)| *first <= index) else {
            return;
        };
        // SAFETY: the buffer lies in the memory whose first buffer is the last before it.
        let start = unsafe { memory.start().add((index - first) as usize * BUFFER) };
        self.start(index as u16).set(Some(start));
        self.kept.set(self.kept.get().saturating_sub(1));
        if self.keeping.get() == index {
            // The handler of this message is still running. The WQE is posted when it returns, as if
            // the message had not been kept: a WQE posted here would be posted twice.
            return;
        }
        // The WQE that the list keeps back may be that of a message whose handler is running.
        if self.with_queue(|queue| queue.is_published()) {
            let _ = self.with_queue(|queue| queue.recycle(index));
            // The queue may be short of buffers.
            self.publish();
        } else {
            let _ = self.with_queue(|queue| queue.recycle_before(index));
            // The next message updates the doorbell record, if this completes a batch.
            self.left.set(self.left.get().saturating_sub(1).max(1));
        }
    }
}
