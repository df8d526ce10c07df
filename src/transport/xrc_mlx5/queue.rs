//! The send queue of a connection, as one of its endpoints uses it.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::Rc;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::layouts::wqe::XrcSegment;
use barewire_mlx5::queue::send::MAX_WQE_BLOCKS;
use barewire_mlx5::request::{Nop, Read, ToPeer};
use barewire_mlx5::xrc::{self, Target};
use barewire_mlx5::{ControlFlags, DataSegment, RcPath, RemoteAddressSegment, WqeIndex};

use crate::base::error::Source;
use crate::transport::mlx5::change::{Changing, Queue, fenced};
use crate::transport::mlx5::requests::{Posting, Posts, Requests, post_each};
use crate::transport::rc::{self, QueueFull};

/// The queue pair from which messages are sent, whose doorbell suits the UAR page.
pub(super) type Initiator = xrc::Initiator<Adaptive>;

/// The queue pairs of a connection. The endpoints on it have a [`Line`] each.
struct Connection {
    initiator: UnsafeCell<Initiator>,
    /// Where the peer's initiator sends.
    target: RefCell<Target>,
    /// Lines that may still post.
    posting: Cell<u32>,
}

/// A connection, and the receive queue to which an endpoint sends over it.
pub(crate) struct Line {
    connection: Rc<Connection>,
    to: XrcSegment,
    /// Blocks posted to the queue pair up to the last post by this line.
    end: u64,
    /// Posts by this line.
    posts: u64,
    /// It posts no more.
    left: bool,
}

impl Line {
    /// Creates the first line of an unconnected connection.
    pub(super) fn new(initiator: Initiator, target: Target) -> Self {
        let connection = Connection {
            initiator: UnsafeCell::new(initiator),
            target: RefCell::new(target),
            posting: Cell::new(0),
        };
        Self::on(Rc::new(connection), 0)
    }

    /// Creates another line, to the receive queue `queue`.
    pub(super) fn to(&self, queue: u32) -> Self {
        Self::on(Rc::clone(&self.connection), queue)
    }

    fn on(connection: Rc<Connection>, queue: u32) -> Self {
        connection.posting.update(|lines| lines + 1);
        Self { connection, to: XrcSegment::new(queue), end: 0, posts: 0, left: false }
    }

    /// Connects the target to the peer's initiator and the initiator to the peer's target, whose
    /// paths these are. Messages go to the receive queue `queue`.
    pub(super) fn connect(
        &mut self,
        [from, to]: [&RcPath; 2],
        queue: u32,
    ) -> Result<(), barewire_mlx5::Error> {
        self.connection.target.borrow_mut().connect(from)?;
        self.to = XrcSegment::new(queue);
        self.initiator_mut().connect(to)
    }

    /// Moves both queue pairs back to the init state, in which they neither send nor receive.
    pub(super) fn reset(&mut self) -> Result<(), barewire_mlx5::Error> {
        self.connection.target.borrow_mut().reset()?;
        self.initiator_mut().reset()
    }

    /// Moves both queue pairs to error.
    pub(super) fn fail(&mut self) -> Result<(), barewire_mlx5::Error> {
        self.connection.target.borrow_mut().to_error()?;
        self.initiator_mut().to_error()
    }

    #[inline(always)]
    fn initiator(&self) -> &Initiator {
        // SAFETY: a connection stays on its thread. Lines are used inside `State::with_queue` only,
        // whose closures call no code of the transport or of the user, so no other function of any
        // line of this connection is running; this type's own functions hold one borrow at a time.
        unsafe { &*self.connection.initiator.get() }
    }

    #[inline(always)]
    fn initiator_mut(&mut self) -> &mut Initiator {
        // SAFETY: as in `initiator`.
        unsafe { &mut *self.connection.initiator.get() }
    }
}

impl rc::Queue for Line {
    type Segment = DataSegment;
    const LARGEST_POST: u32 = MAX_WQE_BLOCKS;
    const HAS_NOP: bool = true;

    #[inline(always)]
    fn segment(address: u64, length: u32, key: u32) -> DataSegment {
        DataSegment::new(address, length, key)
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        self.initiator().send.room()
    }

    #[inline]
    fn posted(&self) -> u64 {
        self.posts
    }

    #[inline]
    fn operations(&self) -> Option<u64> {
        Some(self.posts)
    }

    /// Of the connection, so that a flush follows the operations of other endpoints in the queue of
    /// those in flight.
    #[inline]
    fn last(&self) -> u16 {
        self.initiator().send.last_index().map_or(0, |WqeIndex(index)| index)
    }

    /// Returns whether the posts of this line are complete.
    #[inline]
    fn is_idle(&self) -> bool {
        let send = &self.initiator().send;
        let outstanding = send.most_outstanding().wrapping_sub(send.room());
        self.end == 0 || send.is_idle() || send.posted() - self.end >= outstanding.into()
    }

    fn last_is_signaled(&self) -> bool {
        self.initiator().send.last_is_signaled()
    }

    #[inline]
    fn is_done(&self, index: u16) -> bool {
        self.initiator().send.is_done(WqeIndex(index))
    }

    #[inline]
    fn request_completion(&mut self) {
        self.initiator_mut().send.request_completion();
    }

    /// The next request on the connection waits; if it is of another endpoint, all behind it wait
    /// with it.
    fn fence(&mut self) {
        self.initiator_mut().send.fence();
    }

    fn most_outstanding(&self) -> u32 {
        self.initiator().send.most_outstanding()
    }

    fn limit_outstanding(&mut self, most: u32) -> u32 {
        self.initiator_mut().send.limit_outstanding(most)
    }

    #[inline(always)]
    fn reap(&mut self, index: u16) {
        self.initiator_mut().send.reap(index);
    }

    fn read_word(&mut self, local: DataSegment, remote: u64, key: u32) -> Result<(), QueueFull> {
        let remote = RemoteAddressSegment::new(remote, key);
        let posted = self.post(Read { local, remote }, ControlFlags::COMPLETION);
        posted.map(drop).map_err(|_| QueueFull)
    }

    fn nop(&mut self) -> Result<(), QueueFull> {
        let send = &mut self.initiator_mut().send;
        send.post(Nop, ControlFlags::COMPLETION).map_err(|_| QueueFull)?;
        self.end = send.posted();
        self.posts += 1;
        Ok(())
    }

    fn is_shared(&self) -> bool {
        Rc::strong_count(&self.connection) > 1
    }

    fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.connection, &other.connection)
    }

    fn leave(&mut self) -> bool {
        if !std::mem::replace(&mut self.left, true) {
            self.connection.posting.update(|lines| lines - 1);
        }
        self.connection.posting.get() > 0
    }

    fn to_error(&mut self) -> Result<(), Source> {
        Ok(self.initiator_mut().to_error()?)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        rc::Queue::leave(self);
    }
}

impl Posts for Line {
    /// Posts to the receive queue of this line.
    #[inline(always)]
    fn post(&mut self, request: impl ToPeer, flags: ControlFlags) -> Posting {
        // SAFETY: as in `initiator`.
        let initiator = unsafe { &mut *self.connection.initiator.get() };
        let index = initiator.send.towards(&self.to).post(request, flags)?;
        self.end = initiator.send.posted();
        self.posts += 1;
        Ok(index)
    }
}

impl Requests for Line {
    type To = XrcSegment;

    fn blocks(&self) -> u32 {
        self.initiator().send.blocks()
    }

    #[inline]
    fn change_key(&mut self, run: impl FnOnce(&mut Queue) -> Changing) -> Changing {
        let send = &mut self.initiator_mut().send;
        let index = fenced(send, run)?;
        self.end = send.posted();
        self.posts += 1;
        Ok(index)
    }

    /// Rings a doorbell for each.
    fn post_list<const PUT: bool>(
        &mut self,
        transfers: impl ExactSizeIterator<Item = (DataSegment, RemoteAddressSegment)>,
        flags: ControlFlags,
    ) -> Posting {
        post_each::<PUT>(self, transfers, flags)
    }
}
