//! The queue pair of an interface and the memory of its packets.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::hint::cold_path;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::{BUFFER, Driver, PACKET, Queue, ROUTE, ReceiveBuffer, Received, Taken};
use crate::base::error::MemoryError;
use crate::base::event::{Armed, EventError, after};
use crate::transport::common::message::{BufferOwner, Keeper, KeptMessage};
use crate::transport::common::pool::{Buffer, Lease, Pool};
use crate::transport::common::registered::{Domain, Registered};
use crate::transport::rc::QueueFull;

/// The number of no buffer.
pub(super) const NONE: u32 = u32::MAX;

/// How long the device gets for the last requests when the interface closes.
const MOMENT: Duration = Duration::from_millis(20);

/// Receive buffers that were registered together.
struct Block<D: Driver> {
    pool: Pool<Region<D>, BUFFER>,
    key: u32,
    /// The number of its first buffer.
    first: u32,
}

/// Registered memory of the driver.
type Region<D> = Registered<<<D as Driver>::Domain as Domain>::Region>;
/// A destination of packets.
type Destination<D> = <<D as Driver>::Queue as Queue>::Destination;

/// An object that the device may still use until a request is complete.
enum Retired<D: Driver> {
    Buffer(Lease),
    /// Held for its drop.
    Destination {
        _to: Destination<D>,
    },
}

pub(super) struct Socket<D: Driver> {
    /// Declared before the memory that it uses, so that it is dropped first.
    queue: UnsafeCell<D::Queue>,
    sends: Pool<Region<D>, BUFFER>,
    sends_key: u32,
    retired: RefCell<Vec<(u16, Retired<D>)>>,
    blocks: RefCell<Vec<Block<D>>>,
    /// Number of receive buffers.
    buffers: Cell<u32>,
    /// Number of the buffer whose message is being handled; [`NONE`] once the handler kept it.
    pub(super) handled: Cell<u32>,
    /// Free room of the receive queue, and the number of posted requests.
    room: Cell<u32>,
    posted: Cell<u32>,
    /// Inline bytes of a request.
    inline: usize,
    mtu: u32,
    /// The queue pair is in error, or was stopped.
    broken: Cell<bool>,
    me: Weak<Self>,
}

pub(super) type SendBuffer<'a, D> = Buffer<'a, Region<D>, BUFFER>;

impl<D: Driver> Socket<D> {
    /// Creates the socket. `receives` is the capacity of the receive queue, `mtu` the longest
    /// packet.
    pub(super) fn new(
        queue: D::Queue,
        sends: Region<D>,
        receives: u32,
        inline: usize,
        mtu: u32,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            queue: UnsafeCell::new(queue),
            sends_key: sends.key(),
            sends: Pool::new(sends),
            retired: RefCell::default(),
            blocks: RefCell::default(),
            buffers: Cell::new(0),
            handled: Cell::new(NONE),
            room: Cell::new(receives),
            posted: Cell::new(0),
            inline,
            mtu,
            broken: Cell::new(false),
            me: me.clone(),
        })
    }

    // Sending.

    /// Returns whether a packet can be posted.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        !self.broken.get() && self.with_queue(|queue| queue.has_room())
    }

    /// Returns whether a message can be posted.
    pub(super) fn can_send(&self) -> bool {
        self.has_room() && !self.sends.is_empty()
    }

    /// Makes the next request request a completion.
    pub(super) fn request_completion(&self) {
        self.with_queue(Queue::request_completion);
    }

    /// Takes a buffer for a message.
    #[inline(always)]
    pub(super) fn take(&self) -> Option<SendBuffer<'_, D>> {
        let buffer = self.sends.take()?;
        if self.sends.is_empty() {
            cold_path();
            // The completion returns buffers.
            self.with_queue(Queue::request_completion);
        }
        Some(buffer)
    }

    pub(super) fn adopt(&self, buffer: Lease) -> SendBuffer<'_, D> {
        self.sends.adopt(buffer)
    }

    /// Returns whether [`Self::send_words`] can be used.
    #[inline(always)]
    pub(super) fn takes_words(&self) -> bool {
        self.inline >= size_of::<[u64; 4]>()
    }

    /// Sends a packet of these little-endian words.
    #[inline(always)]
    pub(super) fn send_words(&self, to: &Destination<D>, words: [u64; 4]) -> Result<(), QueueFull> {
        self.with_queue(|queue| queue.send_words(to, words)).map(drop)
    }

    /// Sends the packet of `length` bytes in a buffer. Returns the index of the request while the
    /// device reads the buffer, or `None` for inline data.
    pub(super) fn send(
        &self,
        to: &Destination<D>,
        buffer: &mut SendBuffer<'_, D>,
        length: usize,
    ) -> Result<Option<u16>, QueueFull> {
        if length <= self.inline {
            let packet = buffer.bytes().get(PACKET..PACKET + length).unwrap_or_default();
            return self.with_queue(|queue| queue.send_inline(to, packet)).map(|_| None);
        }
        let (address, key) = (buffer.address() + PACKET as u64, self.sends_key);
        self.with_queue(|queue| queue.send(to, address, length as u32, key)).map(Some)
    }

    /// Sends a short packet.
    pub(super) fn send_bytes(&self, to: &Destination<D>, packet: &[u8]) -> Result<(), QueueFull> {
        if packet.len() <= self.inline {
            return self.with_queue(|queue| queue.send_inline(to, packet)).map(drop);
        }
        let mut buffer = self.take().ok_or(QueueFull)?;
        if let Some(place) = buffer.bytes().get_mut(PACKET..PACKET + packet.len()) {
            place.copy_from_slice(packet);
        }
        let sent = self.send(to, &mut buffer, packet.len())?;
        self.retire_buffer(buffer.into_lease(), sent);
        Ok(())
    }

    /// Frees a buffer whose message has ended; `last` is the request with which the device reads
    /// it.
    pub(super) fn retire_buffer(&self, buffer: Lease, last: Option<u16>) {
        match last {
            Some(last) if !self.is_done(last) => {
                self.retired.borrow_mut().push((last, Retired::Buffer(buffer)));
            }
            _ => self.sends.give(buffer),
        }
    }

    /// Frees the destination of a closed endpoint, once requests to it are complete.
    pub(super) fn retire_destination(&self, to: Destination<D>) {
        let last = self.with_queue(|queue| queue.last());
        self.retired.borrow_mut().push((last, Retired::Destination { _to: to }));
    }

    /// Handles the completion of request `index` and everything before it.
    pub(super) fn complete(&self, index: u16) {
        self.with_queue(|queue| queue.reap(index));
        if self.retired.borrow().is_empty() {
            return;
        }
        for (_, retired) in
            self.retired.borrow_mut().extract_if(.., |(last, _)| self.is_done(*last))
        {
            if let Retired::Buffer(buffer) = retired {
                self.sends.give(buffer);
            }
        }
    }

    fn is_done(&self, index: u16) -> bool {
        self.with_queue(|queue| queue.is_done(index))
    }

    // Receiving.

    /// Registers `count` more receive buffers, unless the queue is full.
    pub(super) fn add(&self, domain: &D::Domain, count: u32) -> Result<(), MemoryError> {
        if self.room.get() > 0 {
            let memory = domain.blocks(count as usize * BUFFER)?;
            let (key, pool, first) = (memory.key(), Pool::new(memory), self.buffers.get());
            self.buffers.set(first + pool.count());
            self.blocks.borrow_mut().push(Block { pool, key, first });
            self.refill();
        }
        Ok(())
    }

    /// Returns the number of receive buffers.
    pub(super) fn buffers(&self) -> u32 {
        self.buffers.get()
    }

    /// Returns whether half of the buffers have messages that wait for progress, if the driver sees it.
    pub(super) fn has_backlog(&self) -> bool {
        self.with_queue(|queue| queue.has_backlog(self.buffers.get() / 2))
    }

    /// Returns whether messages that came too early may be held, or kept in their buffers: enough
    /// others are posted.
    pub(super) fn has_spare(&self) -> bool {
        4 * self.posted.get() > self.buffers.get()
    }

    /// Returns whether no buffer is posted.
    pub(super) fn is_starved(&self) -> bool {
        self.posted.get() == 0
    }

    /// Posts as many free buffers as the queue accepts.
    pub(super) fn refill(&self) {
        let blocks = self.blocks.borrow();
        for block in &*blocks {
            while self.room.get() > 0
                && let Some(buffer) = block.pool.take()
            {
                let lease = buffer.into_lease();
                let start = block.pool.start_of(&lease);
                let number = block.first + lease.index() as u32;
                if !self.post_receive(ReceiveBuffer { start, number, key: block.key }) {
                    return block.pool.give(lease);
                }
            }
        }
    }

    fn post_receive(&self, buffer: ReceiveBuffer) -> bool {
        let receive = |queue: &mut D::Queue| queue.receive(buffer, self.receive_length()).is_ok();
        let posted = self.is_usable() && self.with_queue(receive);
        if posted {
            self.room.set(self.room.get() - 1);
            self.posted.set(self.posted.get() + 1);
        }
        posted
    }

    #[inline(always)]
    fn receive_length(&self) -> u32 {
        ROUTE as u32 + self.mtu
    }

    /// Returns whether buffers may be posted: to a queue pair in error, they would return flushed,
    /// again and again.
    #[inline(always)]
    fn is_usable(&self) -> bool {
        !self.broken.get()
    }

    /// Frees the entry of a buffer that was taken from the receive queue.
    pub(super) fn free_entry(&self) {
        self.with_queue(Queue::free);
        self.room.set(self.room.get() + 1);
        self.posted.set(self.posted.get().saturating_sub(1));
    }

    /// Posts the buffer that was taken with `entry` again, unless the handler kept it.
    #[inline(always)]
    pub(super) fn post_again(&self, entry: u32) {
        let again =
            |queue: &mut D::Queue| queue.receive_again(entry, self.receive_length()).is_ok();
        if self.handled.get() == NONE || !self.is_usable() || !self.with_queue(again) {
            cold_path();
            self.end(true);
        }
    }

    /// Frees the entry of the message that was handled, if it still has one, and its buffer, unless
    /// the handler kept it.
    #[cold]
    #[inline(never)]
    pub(super) fn end(&self, has_entry: bool) {
        if has_entry {
            self.free_entry();
        }
        match self.handled.replace(NONE) {
            NONE => self.refill(),
            number => self.give_back(number),
        }
    }

    /// Posts this buffer again, whose content is no longer needed.
    pub(super) fn give_back(&self, number: u32) {
        let Some(buffer) = self.buffer(number) else { return };
        if self.room.get() == 0 || !self.post_receive(buffer) {
            self.give(number);
        }
    }

    /// Returns the buffer with this number, which was taken from its pool.
    pub(super) fn buffer(&self, number: u32) -> Option<ReceiveBuffer> {
        let blocks = self.blocks.borrow();
        let block = blocks.iter().rev().find(|block| block.first <= number)?;
        let index = number - block.first;
        (index < block.pool.count()).then(|| {
            let start = block.pool.start_of(&Lease::numbered(index));
            ReceiveBuffer { start, number, key: block.key }
        })
    }

    fn give(&self, number: u32) {
        let blocks = self.blocks.borrow();
        let block = blocks.iter().rev().find(|block| block.first <= number);
        if let Some(block) = block {
            block.pool.give(Lease::numbered(number - block.first));
        }
    }

    /// Runs `run` with the queue pair. This is the only access to it.
    #[inline(always)]
    pub(super) fn with_queue<R>(&self, run: impl FnOnce(&mut D::Queue) -> R) -> R {
        // SAFETY: the socket stays on its thread. Every `run` is a closure of these transports and
        // calls only the driver's queue, which calls no code of the transports or of the user. So
        // no second reference to the queue exists while this one does.
        run(unsafe { &mut *self.queue.get() })
    }

    /// Returns whether there may be a completion.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.with_queue(|queue| queue.is_ready())
    }

    /// Takes the next completion if it is a datagram: see [`Queue::take_datagram`].
    #[inline(always)]
    pub(super) fn next_datagram(&self) -> Option<Received> {
        self.with_queue(Queue::take_datagram)
    }

    /// Takes the next completion.
    pub(super) fn next(&self) -> Option<Taken> {
        self.with_queue(Queue::take)
    }

    /// Makes the next completion notify the descriptor of `events`.
    pub(super) fn arm(&self, events: &D::Events) -> Result<Armed, EventError> {
        self.with_queue(|queue| D::arm(events, queue))
    }

    /// Waits for a moment, so that the device can send what was posted last.
    pub(super) fn drain(&self) {
        let end = after(Instant::now(), MOMENT);
        let is_told = self.with_queue(|queue| queue.last_is_signaled());
        while is_told && !self.with_queue(|queue| queue.is_idle()) && Instant::now() < end {
            match self.next() {
                Some(Taken::Sent(index)) => self.complete(index),
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
    }

    /// Handles a failed request: the queue pair is in error.
    #[cold]
    pub(super) fn fail(&self) {
        self.broken.set(true);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Sets the queue pair up again once all its requests have returned, such as after its port was
    /// down. Packets are lost at most.
    #[cold]
    pub(super) fn heal(&self) {
        if self.posted.get() > 0 {
            return self.with_queue(Queue::fail);
        }
        if !self.with_queue(Queue::restart) {
            return;
        }
        for (_, retired) in self.retired.take() {
            if let Retired::Buffer(buffer) = retired {
                self.sends.give(buffer);
            }
        }
        self.broken.set(false);
        self.refill();
    }

    /// Resets the queue pair: the device accesses its memory no more.
    pub(super) fn stop(&self) {
        self.broken.set(true);
        self.with_queue(Queue::stop);
    }
}

impl<D: Driver> BufferOwner for Socket<D> {
    fn reclaim(&self, buffer: Lease) {
        self.give(buffer.index() as u32);
        self.refill();
    }
}

impl<D: Driver> Keeper for Socket<D> {
    #[cold]
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn BufferOwner> =
            self.me.upgrade().expect("a socket that is borrowed is alive");
        let number = self.handled.replace(NONE);
        let buffer = (number != NONE).then(|| Lease::numbered(number));
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses, and
        // the kept message keeps its owner alive.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }

    fn lends(&self) -> bool {
        // Half of the buffers stay posted, for the windows of peers.
        self.handled.get() != NONE && 2 * self.posted.get() > self.buffers.get()
    }
}
