//! An initiator of the interface: its queue, and the operations in flight on it.

use std::cell::{Cell, UnsafeCell};
use std::hint::cold_path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::{Directed, MAX_WQE_BLOCKS};
use barewire_mlx5::request::ToPeer;
use barewire_mlx5::{self as mlx5, DataSegment, MemoryRegion, WqeIndex};

use super::post::SIGNALED;
use super::state::State;
use crate::transport::common::operation::{Done, InFlight, InFlightQueue};
use crate::transport::common::pool::Lease;
use crate::transport::common::registered::Buffer;
use crate::transport::mlx5::requests::Posting;

/// An initiator of the driver, whose doorbell suits the UAR page.
pub(super) type Queue = mlx5::Initiator<Adaptive>;
/// Posts to the peer of an endpoint.
pub(super) type Towards<'q> = Directed<'q, AddressVector, Adaptive>;

/// The user of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// It is free, or the endpoints of its `owners` share it.
    Nobody,
    /// An endpoint, which the interface keeps while it holds an initiator.
    Endpoint(NonNull<State>),
    /// Grants to several peers.
    Grants,
}

/// The owner of a WQE that no endpoint posted.
pub(super) const NO_OWNER: u32 = u32::MAX;

pub(crate) struct Initiator {
    /// Declared before the memory that it uses, so that it is dropped first.
    queue: UnsafeCell<Queue>,
    pub(super) in_flight: InFlightQueue,
    /// A word for the result of the operation in each slot of `in_flight`, and one for discarded
    /// results.
    pub(super) results: Buffer<MemoryRegion>,
    pub(super) holder: Cell<Holder>,
    /// Blocks posted before the holder took it.
    pub(super) taken_at: Cell<u64>,
    /// An operation failed: the device executes no more until a reset.
    pub(super) failed: Cell<bool>,
    /// The endpoint that posted the WQE in each block of the ring; empty unless endpoints share the
    /// initiator.
    owners: Box<[Cell<u32>]>,
    /// Its number in the pool.
    pub(super) number: u32,
}

impl Initiator {
    pub(super) fn new(
        queue: Queue,
        in_flight: InFlightQueue,
        results: Buffer<MemoryRegion>,
        is_shared: bool,
        number: u32,
    ) -> Self {
        let blocks = if is_shared { queue.send.blocks() } else { 0 };
        Self {
            queue: UnsafeCell::new(queue),
            in_flight,
            results,
            holder: Cell::new(Holder::Nobody),
            taken_at: Cell::new(0),
            failed: Cell::new(false),
            owners: (0..blocks).map(|_| Cell::new(NO_OWNER)).collect(),
            number,
        }
    }

    /// Runs `run` with the queue. This is the only access to it.
    #[inline(always)]
    pub(super) fn with_queue<R>(&self, run: impl FnOnce(&mut Queue) -> R) -> R {
        // SAFETY: the initiator stays on its thread. Every `run` is a closure of this transport and
        // calls only the driver, which calls no code of the transport or of the user. So no second
        // reference to the queue exists while this one does.
        run(unsafe { &mut *self.queue.get() })
    }

    /// Posts a request to `address`. Returns the index of the WQE.
    #[inline(always)]
    pub(super) fn post(
        &self,
        address: &AddressVector,
        request: impl ToPeer,
    ) -> Result<u16, mlx5::PostError> {
        self.post_by(
            address,
            #[inline(always)]
            |mut to| to.post(request, SIGNALED),
        )
    }

    /// Posts to `address` by `run`, which posts one request. Returns the index of the WQE.
    #[inline(always)]
    pub(super) fn post_by(
        &self,
        address: &AddressVector,
        run: impl FnOnce(Towards<'_>) -> Posting,
    ) -> Result<u16, mlx5::PostError> {
        self.with_queue(|queue| run(queue.send.towards(address))).map(|WqeIndex(index)| index)
    }

    /// Returns whether the largest operation has room.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.with_queue(|queue| queue.send.room() >= MAX_WQE_BLOCKS)
    }

    /// Returns whether all posts are complete.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        self.with_queue(|queue| queue.send.is_idle())
    }

    /// Returns the number of blocks posted since the holder took it.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.with_queue(|queue| queue.send.posted()).wrapping_sub(self.taken_at.get())
    }

    /// Returns the index of the last post; any value before the first.
    pub(super) fn last(&self) -> u16 {
        self.with_queue(|queue| queue.send.last_index()).map_or(0, |WqeIndex(index)| index)
    }

    /// Stores what to do once the post at `index` is complete.
    #[inline(always)]
    pub(super) fn await_done(&self, index: u16, done: Done) {
        self.in_flight.push(InFlight { index, done });
    }

    /// Returns the result word of the next operation in flight, and its segment.
    #[inline]
    pub(super) fn next_result(&self) -> (Lease, DataSegment) {
        let slot = self.in_flight.next_slot();
        (Lease::numbered(slot), self.result(slot))
    }

    /// Reads a result word.
    pub(super) fn collect(&self, word: &Lease) -> u64 {
        let word = self.results.word(word.index() * size_of::<u64>());
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Returns the word of discarded results.
    #[inline]
    pub(super) fn unwanted_result(&self) -> DataSegment {
        self.result(self.in_flight.slots())
    }

    #[inline]
    fn result(&self, slot: u32) -> DataSegment {
        let address = self.results.address() + u64::from(slot) * 8;
        DataSegment::new(address, 8, self.results.local_key())
    }

    /// Notes that the endpoint in `slot` posted the WQE at `index`.
    #[inline(always)]
    pub(super) fn note_owner(&self, index: u16, slot: u32) {
        if !self.owners.is_empty() {
            cold_path();
            self.set_owner(index, slot);
        }
    }

    #[inline(never)]
    fn set_owner(&self, index: u16, slot: u32) {
        let place = usize::from(index) & self.owners.len().wrapping_sub(1);
        if let Some(owner) = self.owners.get(place) {
            owner.set(slot);
        }
    }

    /// Returns the endpoint that posted the WQE at `index`, if endpoints share the initiator.
    pub(super) fn owner(&self, index: u16) -> Option<u32> {
        let place = usize::from(index) & self.owners.len().wrapping_sub(1);
        self.owners.get(place).map(Cell::get)
    }
}
