//! The queue pair of an interface and the memory of its packets.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::{BUFFER, DATA, Driver, PACKET, Queue, ROUTE, Taken};
use crate::error::MemoryError;
use crate::event::{Armed, EventError};
use crate::message::{BufferOwner, HEADROOM, Keeper, KeptMessage, write_keeper};
use crate::transport::common::pool::{Buffer, Lease, Pool};
use crate::transport::common::registered::{Domain, Registered};
use crate::transport::rc::QueueFull;

/// Shift of the block in the number of a receive buffer; the lower bits are its index in the block.
const BLOCK: u32 = 16;

/// How long the device gets for the last requests when the interface closes.
const MOMENT: Duration = Duration::from_millis(20);

/// Receive buffers that were registered together.
struct Block<D: Driver> {
    pool: Pool<Region<D>, BUFFER>,
    key: u32,
    count: u32,
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
    queue: RefCell<D::Queue>,
    sends: Pool<Region<D>, BUFFER>,
    sends_key: u32,
    retired: RefCell<Vec<(u16, Retired<D>)>>,
    blocks: RefCell<Vec<Block<D>>>,
    /// Free room of the receive queue, and the number of posted requests.
    room: Cell<u32>,
    posted: Cell<u32>,
    /// Inline bytes of a request.
    inline: usize,
    mtu: u32,
    /// The queue pair is in error.
    broken: Cell<bool>,
    stopped: Cell<bool>,
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
            queue: RefCell::new(queue),
            sends_key: sends.key(),
            sends: Pool::new(sends),
            retired: RefCell::default(),
            blocks: RefCell::default(),
            room: Cell::new(receives),
            posted: Cell::new(0),
            inline,
            mtu,
            broken: Cell::new(false),
            stopped: Cell::new(false),
            me: me.clone(),
        })
    }

    // Sending.

    /// Returns whether a packet can be posted.
    pub(super) fn has_room(&self) -> bool {
        !self.broken.get() && self.queue.borrow().has_room()
    }

    /// Returns whether a message can be posted.
    pub(super) fn can_send(&self) -> bool {
        self.has_room() && !self.sends.is_empty()
    }

    /// Makes the next request request a completion.
    pub(super) fn request_completion(&self) {
        self.queue.borrow_mut().request_completion();
    }

    /// Takes a buffer for a message.
    pub(super) fn take(&self) -> Option<SendBuffer<'_, D>> {
        let buffer = self.sends.take()?;
        if self.sends.is_empty() {
            // The completion returns buffers.
            self.queue.borrow_mut().request_completion();
        }
        Some(buffer)
    }

    pub(super) fn adopt(&self, buffer: Lease) -> SendBuffer<'_, D> {
        self.sends.adopt(buffer)
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
            return self.queue.borrow_mut().send_inline(to, packet).map(|_| None);
        }
        let address = buffer.address() + PACKET as u64;
        self.queue.borrow_mut().send(to, address, length as u32, self.sends_key).map(Some)
    }

    /// Sends a short packet.
    pub(super) fn send_bytes(&self, to: &Destination<D>, packet: &[u8]) -> Result<(), QueueFull> {
        if packet.len() <= self.inline {
            return self.queue.borrow_mut().send_inline(to, packet).map(drop);
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
            Some(last) if !self.queue.borrow().is_done(last) => {
                self.retired.borrow_mut().push((last, Retired::Buffer(buffer)));
            }
            _ => self.sends.give(buffer),
        }
    }

    /// Frees the destination of a closed endpoint, once requests to it are complete.
    pub(super) fn retire_destination(&self, to: Destination<D>) {
        let last = self.queue.borrow().last();
        self.retired.borrow_mut().push((last, Retired::Destination { _to: to }));
    }

    /// Handles the completion of request `index` and everything before it.
    pub(super) fn complete(&self, index: u16) {
        self.queue.borrow_mut().reap(index);
        if self.retired.borrow().is_empty() {
            return;
        }
        let queue = self.queue.borrow();
        for (_, retired) in
            self.retired.borrow_mut().extract_if(.., |(last, _)| queue.is_done(*last))
        {
            if let Retired::Buffer(buffer) = retired {
                self.sends.give(buffer);
            }
        }
    }

    // Receiving.

    /// Registers more receive buffers, unless there are `blocks` blocks already or the queue is
    /// full.
    pub(super) fn grow(
        &self,
        domain: &D::Domain,
        blocks: usize,
        count: u32,
    ) -> Result<(), MemoryError> {
        if self.blocks.borrow().len() < blocks && self.room.get() > 0 {
            let memory = domain.blocks(count as usize * BUFFER)?;
            let key = memory.key();
            self.blocks.borrow_mut().push(Block { pool: Pool::new(memory), key, count });
            self.refill();
        }
        Ok(())
    }

    /// Returns whether messages that came too early may be held: enough buffers are posted for
    /// others.
    pub(super) fn has_spare(&self) -> bool {
        let all: u32 = self.blocks.borrow().iter().map(|block| block.count).sum();
        4 * self.posted.get() > all
    }

    /// Returns whether no buffer is posted.
    pub(super) fn is_starved(&self) -> bool {
        self.posted.get() == 0
    }

    /// Posts as many free buffers as the queue accepts.
    pub(super) fn refill(&self) {
        let blocks = self.blocks.borrow();
        for (at, block) in blocks.iter().enumerate() {
            while self.room.get() > 0
                && let Some(buffer) = block.pool.take()
            {
                let lease = buffer.into_lease();
                let number = (at as u32) << BLOCK | lease.index() as u32;
                let start = block.pool.start_of(&lease);
                if !self.post_receive(number, start, block.key) {
                    return block.pool.give(lease);
                }
            }
        }
    }

    fn post_receive(&self, number: u32, start: NonNull<u8>, key: u32) -> bool {
        let address = start.addr().get() as u64 + (PACKET - ROUTE) as u64;
        let length = ROUTE as u32 + self.mtu;
        // A buffer posted to a queue pair in error would return flushed, again and again.
        let usable = !self.stopped.get() && !self.broken.get();
        let posted =
            usable && self.queue.borrow_mut().receive(number, address, length, key).is_ok();
        if posted {
            self.room.set(self.room.get() - 1);
            self.posted.set(self.posted.get() + 1);
        }
        posted
    }

    /// Handles a datagram in this buffer. Returns the start of the buffer.
    pub(super) fn arrived(&self, number: u32) -> Option<NonNull<u8>> {
        self.room.set(self.room.get() + 1);
        self.posted.set(self.posted.get().saturating_sub(1));
        self.start(number).map(|(start, _)| start)
    }

    fn start(&self, number: u32) -> Option<(NonNull<u8>, u32)> {
        let blocks = self.blocks.borrow();
        let block = blocks.get((number >> BLOCK) as usize)?;
        let index = number & ((1 << BLOCK) - 1);
        (index < block.count).then(|| (block.pool.start_of(&Lease::numbered(index)), block.key))
    }

    /// Posts this buffer again, whose content is no longer needed.
    pub(super) fn give_back(&self, number: u32) {
        let Some((start, key)) = self.start(number) else { return };
        if self.room.get() == 0 || !self.post_receive(number, start, key) {
            self.give(number);
        }
    }

    fn give(&self, number: u32) {
        if let Some(block) = self.blocks.borrow().get((number >> BLOCK) as usize) {
            block.pool.give(Lease::numbered(number & ((1 << BLOCK) - 1)));
        }
    }

    #[cfg(feature = "mlx5")]
    pub(super) fn with_queue<R>(&self, run: impl FnOnce(&mut D::Queue) -> R) -> R {
        run(&mut self.queue.borrow_mut())
    }

    /// Returns whether there may be a completion.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.queue.borrow().is_ready()
    }

    /// Takes the next completion.
    #[inline]
    pub(super) fn next(&self) -> Option<Taken> {
        self.queue.borrow_mut().take()
    }

    /// Makes the next completion notify the descriptor of `events`.
    pub(super) fn arm(&self, events: &D::Events) -> Result<Armed, EventError> {
        D::arm(events, &mut self.queue.borrow_mut())
    }

    /// Waits for a moment, so that the device can send what was posted last.
    pub(super) fn drain(&self) {
        let end = Instant::now() + MOMENT;
        let is_told = self.queue.borrow().last_is_signaled();
        while is_told && !self.queue.borrow().is_idle() && Instant::now() < end {
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
        let mut queue = self.queue.borrow_mut();
        if self.posted.get() > 0 {
            return queue.fail();
        }
        if !queue.restart() {
            return;
        }
        drop(queue);
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
        self.stopped.set(true);
        self.queue.borrow_mut().stop();
    }
}

impl<D: Driver> BufferOwner for Socket<D> {
    fn reclaim(&self, buffer: Lease) {
        self.give(buffer.index() as u32);
        self.refill();
    }
}

/// The message being handled. The drop posts its buffer again unless the handler kept it.
pub(super) struct Delivered<'a, D: Driver> {
    socket: &'a Socket<D>,
    number: u32,
    kept: Cell<bool>,
}

impl<'a, D: Driver> Delivered<'a, D> {
    pub(super) fn new(socket: &'a Socket<D>, number: u32) -> Self {
        Self { socket, number, kept: Cell::new(false) }
    }

    /// Passes the buffer on to the caller.
    pub(super) fn into_number(self) -> u32 {
        let number = self.number;
        std::mem::forget(self);
        number
    }

    /// Writes the headroom of the data, which names the keeper, and returns the address of the
    /// data.
    pub(super) fn data(&self) -> Option<NonNull<u8>> {
        let (start, _) = self.socket.start(self.number)?;
        // SAFETY: the headroom lies in the buffer, in front of the data, where the packet's header
        // was; buffers and `DATA - HEADROOM` are aligned to 8. The receive is complete, so the
        // device does not write the buffer until the drop of `self` posts it again.
        unsafe {
            write_keeper(start.add(DATA - HEADROOM), self);
            Some(start.add(DATA))
        }
    }
}

impl<D: Driver> Keeper for Delivered<'_, D> {
    #[cold]
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn BufferOwner> =
            self.socket.me.upgrade().expect("a socket that is borrowed is alive");
        let buffer = (!self.kept.replace(true)).then(|| Lease::numbered(self.number));
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses, and
        // the kept message keeps its owner alive.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }
}

impl<D: Driver> Drop for Delivered<'_, D> {
    fn drop(&mut self) {
        if self.kept.get() {
            self.socket.refill();
        } else {
            self.socket.give_back(self.number);
        }
    }
}

const _: () = assert!((DATA - HEADROOM).is_multiple_of(8) && DATA - HEADROOM >= PACKET - ROUTE);
