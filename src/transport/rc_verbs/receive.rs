//! Receiving: posted buffers, kept buffers, and the messages in them.
//!
//! An endpoint has its own receiver, or all endpoints of an interface share one over a shared
//! receive queue. There are no credits: if no buffer is posted, the receiving device reports it
//! (RNR NAK), and the sending device waits as long as the receiver says and sends again. Nothing is
//! lost, and the message uses room only in the send queue. A sender also waits when other senders
//! use up the buffers of a shared queue; therefore the queue grows as soon as messages accumulate
//! in it.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use barewire_verbs::{Element, Receive, ReceiveQueue, SharedReceiveQueue, SharedReceiveQueueRef};

use super::ID;
use crate::base::config::{Choice, InterfaceConfig};
use crate::base::error::{MemoryError, OpenError};
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::message::{BufferOwner, Keeper, KeptMessage, Message, write_keeper};
use crate::transport::common::pool::{Block, Lease};
use crate::transport::common::registered::Domain as _;
use crate::transport::rc::{AM_ID, BUFFER, DATA, MAX_AM, MESSAGE, SEGMENT, am_length};
use crate::transport::rdma::{Domain, Registered, WrId};

/// Most buffers that are posted at a time.
const BATCH: usize = 16;
/// Offset of a buffer's number: behind the pointer to its owner in the headroom, in front of the
/// message.
const NUMBER: usize = 16;
/// In place of an endpoint's slot: the request belongs to no endpoint.
const SHARED: u32 = u32::MAX;

const _: () = assert!(NUMBER >= size_of::<&dyn Keeper>() && NUMBER + size_of::<u32>() <= MESSAGE);

/// Where the requests are posted.
enum Requests {
    Own(ReceiveQueue),
    Shared(SharedReceiveQueue),
}

struct Slot {
    start: NonNull<u8>,
    key: u32,
    /// Whether it is posted.
    posted: Cell<bool>,
}

pub(super) struct Receiver {
    /// `None` when no more are posted. Declared before the memory, so that it is dropped first.
    requests: RefCell<Option<Requests>>,
    /// The endpoint's slot, or [`SHARED`].
    slot: u32,
    /// Every buffer, by its number.
    slots: RefCell<Vec<Slot>>,
    /// Buffers that are neither posted nor kept.
    free: RefCell<Vec<u32>>,
    /// Posted requests, and the capacity of the queue.
    posted: Cell<u32>,
    room: u32,
    /// Buffers that were kept, and the limit of all buffers.
    kept: Cell<u32>,
    most: Cell<u32>,
    /// Number of consecutive messages that shows that there are too few buffers.
    backlog: Cell<u32>,
    /// Whether the message being handled was kept.
    is_kept: Cell<bool>,
    memory: RefCell<Vec<Registered>>,
    domain: Domain,
    me: Weak<Self>,
}

impl Receiver {
    /// Creates the receiver of the endpoint in `slot`, whose receive queue this is.
    pub(super) fn own(
        domain: &Domain,
        queue: ReceiveQueue,
        slot: u32,
        config: &InterfaceConfig,
    ) -> Result<Rc<Self>, MemoryError> {
        let most = config.receive_ring + config.spare_receive_buffers;
        let receiver = Self::new(domain, Requests::Own(queue), slot, config.receive_ring, most);
        receiver.add(config.receive_ring)?;
        Ok(receiver)
    }

    /// Creates the receiver of all endpoints of an interface, if the settings ask for one and the
    /// device has shared receive queues.
    pub(super) fn shared(
        domain: &Domain,
        config: &InterfaceConfig,
    ) -> Result<Option<Rc<Self>>, OpenError> {
        let all = config.receive_ring.saturating_mul(config.max_endpoints);
        let wanted = all.min(config.max_receive_buffers).max(config.receive_ring);
        let room = wanted.min(domain.limits().shared_receives);
        let setting = |reason| OpenError::Setting {
            transport: ID,
            setting: "shared_receive_queue",
            value: 1,
            reason,
        };
        let queue = match config.shared_receive_queue {
            Choice::No => return Ok(None),
            // Before Linux 6.4 Soft-RoCE does not report the failure of a queue pair that receives
            // from a shared queue.
            Choice::Auto if room < config.receive_ring || domain.context().is_soft_roce() => {
                return Ok(None);
            }
            Choice::Yes if room < config.receive_ring => {
                return Err(setting(format!(
                    "the device has none of {} messages",
                    config.receive_ring
                )));
            }
            Choice::Auto => SharedReceiveQueue::new(domain.protection(), room, 1).ok(),
            Choice::Yes => Some(
                SharedReceiveQueue::new(domain.protection(), room, 1)
                    .map_err(|e| domain.refused("create a shared receive queue", e))?,
            ),
        };
        let Some(queue) = queue else { return Ok(None) };
        let spare = config.spare_receive_buffers.saturating_mul(config.max_endpoints);
        let most = wanted.saturating_add(spare.min(config.max_receive_buffers));
        let receiver = Self::new(domain, Requests::Shared(queue), SHARED, room, most);
        receiver
            .add(config.receive_ring)
            .map_err(|e| domain.refused("register receive buffers", e))?;
        receiver.bound_backlog();
        Ok(Some(receiver))
    }

    /// Returns the most receive requests that may be outstanding.
    pub(super) fn room(&self) -> u32 {
        self.room
    }

    fn new(domain: &Domain, requests: Requests, slot: u32, room: u32, most: u32) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            requests: RefCell::new(Some(requests)),
            slot,
            slots: RefCell::default(),
            free: RefCell::default(),
            posted: Cell::new(0),
            room,
            kept: Cell::new(0),
            most: Cell::new(most),
            backlog: Cell::new(u32::MAX),
            is_kept: Cell::new(false),
            memory: RefCell::default(),
            domain: domain.clone(),
            me: me.clone(),
        })
    }

    /// Returns the shared queue, if it is one, for creating queue pairs.
    pub(super) fn reference(&self) -> Option<SharedReceiveQueueRef> {
        match &*self.requests.borrow() {
            Some(Requests::Shared(queue)) => Some(queue.reference()),
            _ => None,
        }
    }

    // Buffers.

    /// Registers `count` more buffers and posts as many as fit.
    fn add(&self, count: u32) -> Result<(), MemoryError> {
        let memory = self.domain.blocks(count as usize * BUFFER)?;
        let mut slots = self.slots.borrow_mut();
        for at in 0..count as usize {
            let number = slots.len() as u32;
            // SAFETY: the buffer lies inside the memory, which is `count` buffers long and lives as
            // long as `self`. No other code uses the buffer yet, and the device writes only from
            // `MESSAGE` on.
            let start = unsafe {
                let start = memory.start().add(at * BUFFER);
                write_keeper(start, self);
                start.add(NUMBER).cast::<u32>().write(number);
                start
            };
            slots.push(Slot { start, key: memory.key(), posted: Cell::new(false) });
            self.free.borrow_mut().push(number);
        }
        self.memory.borrow_mut().push(memory);
        drop(slots);
        self.refill();
        Ok(())
    }

    /// Doubles the number of buffers, up to the limit.
    #[cold]
    fn grow(&self) {
        let have = self.slots.borrow().len() as u32;
        let count = self.most.get().saturating_sub(have).min(have);
        if count > 0
            && let Err(error) = self.add(count)
        {
            tracing::debug!(%error, have, "could not register more receive buffers");
            self.most.set(have);
        }
    }

    /// Sets the backlog at which the queue grows: half of the buffers, as long as there may be
    /// more.
    ///
    /// The device reports a low queue, too (`IBV_EVENT_SRQ_LIMIT_REACHED`), but later, and reading
    /// the event takes a system call.
    fn bound_backlog(&self) {
        let have = self.slots.borrow().len() as u32;
        self.backlog.set(if have < self.most.get() { have / 2 } else { u32::MAX });
    }

    /// Grows the queue if `messages` were received without an idle poll between them.
    #[inline(always)]
    pub(super) fn see_backlog(&self, messages: u32) {
        if messages >= self.backlog.get() {
            self.grow();
            self.bound_backlog();
        }
    }

    /// Handles the completion of this buffer's request. Returns the start of the buffer, unless it
    /// was not posted.
    #[inline(always)]
    pub(super) fn arrived(&self, number: u32) -> Option<NonNull<u8>> {
        let slots = self.slots.borrow();
        let slot = slots.get(number as usize)?;
        // Ignore a duplicate completion.
        if !slot.posted.replace(false) {
            return None;
        }
        self.posted.set(self.posted.get().saturating_sub(1));
        Some(slot.start)
    }

    /// Frees this buffer, whose message has ended. Free buffers are posted in batches.
    #[inline(always)]
    pub(super) fn give_back(&self, number: u32) {
        let mut free = self.free.borrow_mut();
        free.push(number);
        let waiting = free.len();
        drop(free);
        // If few are posted, do not wait for a batch.
        if waiting >= BATCH || self.posted.get() as usize <= waiting {
            self.refill();
        }
    }

    /// Posts as many free buffers as the queue has room for.
    #[inline(never)]
    fn refill(&self) {
        let requests = self.requests.borrow();
        let Some(requests) = &*requests else { return };
        let (slots, mut free) = (self.slots.borrow(), self.free.borrow_mut());
        let mut batch = [Receive { id: 0, element: Element::new(0, 0, 0) }; BATCH];
        loop {
            let count = free.len().min((self.room - self.posted.get()) as usize).min(BATCH);
            let first = free.len() - count;
            for (receive, number) in batch.iter_mut().zip(&free[first..]) {
                if let Some(slot) = slots.get(*number as usize) {
                    let address = slot.start.addr().get() as u64 + MESSAGE as u64;
                    let element = Element::new(address, SEGMENT as u32, slot.key);
                    *receive = Receive { id: WrId::receive(self.slot, *number), element };
                }
            }
            let posted = requests.post(batch.get(..count).unwrap_or_default());
            for number in free.drain(first..first + posted) {
                if let Some(slot) = slots.get(number as usize) {
                    slot.posted.set(true);
                }
            }
            self.posted.set(self.posted.get() + posted as u32);
            // A queue that refuses is full, or in error and not used again.
            if posted < BATCH {
                return;
            }
        }
    }

    /// Accounts for a queue pair that was destroyed without reporting its last request: it may have
    /// taken one.
    pub(super) fn count_lost(&self) {
        self.posted.set(self.posted.get().saturating_sub(1));
        self.refill();
    }

    /// Posts no more buffers.
    pub(super) fn close(&self) {
        drop(self.requests.take());
    }

    // Messages.

    /// Delivers the message of `length` bytes in this buffer, unless it is `muted`.
    #[inline(always)]
    pub(super) fn deliver(
        &self,
        running: &mut DispatchGuard<'_, false>,
        number: u32,
        length: u32,
        muted: bool,
    ) {
        let Some(start) = self.arrived(number) else { return };
        let returning = Returning { receiver: self, number };
        // A message shorter than its header, or longer than a buffer, is not of this transport.
        let length = am_length(length);
        if length > MAX_AM {
            running.count_unhandled();
        } else if !muted {
            // SAFETY: the header lies before `DATA`, and `MAX_AM` bytes follow from `DATA` on. The
            // receive request is complete, so the device writes the buffer only after it is posted
            // again: by `returning`, which is dropped after the message has ended, or, if the
            // handler kept the message, by the kept message. `add` wrote the headroom, which names
            // `self`.
            let (id, message) = unsafe {
                (start.add(MESSAGE + AM_ID).read(), Message::new(start.add(DATA), length))
            };
            running.dispatch(id, message);
        }
        drop(returning);
    }
}

impl Requests {
    /// Posts receive requests. Returns how many were accepted.
    fn post(&self, receives: &[Receive]) -> usize {
        let posted = match self {
            Self::Own(queue) => queue.post_all(receives),
            Self::Shared(queue) => queue.post_all(receives),
        };
        posted.map_or_else(|(posted, _)| posted, |()| receives.len())
    }
}

/// Frees a message's buffer when its handler returns or panics, unless the message was kept.
struct Returning<'a> {
    receiver: &'a Receiver,
    number: u32,
}

impl Drop for Returning<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.receiver.is_kept.replace(false) {
            self.receiver.give_back(self.number);
        }
    }
}

impl Keeper for Receiver {
    #[cold]
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn BufferOwner> =
            self.me.upgrade().expect("a receiver that is borrowed is alive");
        // SAFETY: `start` is the start of a buffer, where `add` wrote its number. The device does
        // not write that part.
        let number = unsafe { start.add(NUMBER).cast::<u32>().read() };
        let buffer = (!self.is_kept.replace(true)).then(|| Lease::numbered(number));
        self.kept.set(self.kept.get() + 1);
        // Half of the buffers are kept, so there are too few.
        if 2 * self.kept.get() >= self.slots.borrow().len() as u32 {
            self.grow();
        }
        if self.posted.get() as usize <= self.free.borrow().len() {
            self.refill();
        }
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses, and
        // the kept message keeps its owner alive.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }

    /// `keep` lets the queue grow as long as half of its buffers are kept.
    fn lends(&self) -> bool {
        2 * (self.kept.get() + 1) <= self.slots.borrow().len() as u32
    }
}

impl BufferOwner for Receiver {
    fn reclaim(&self, buffer: Lease) {
        self.kept.set(self.kept.get().saturating_sub(1));
        self.give_back(buffer.index() as u32);
    }
}
