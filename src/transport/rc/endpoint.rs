//! The endpoint: connecting, waiting and closing. Each transport implements its posts.

use std::cell::Cell;
use std::rc::Rc;

use super::{Driver, Endpoint, Interface, Queue, QueueAddress, Shared, State, address};
use crate::base::address::{EndpointAddress, PeerAddress};
use crate::base::completion::Completion;
use crate::base::counters::Counters;
use crate::base::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::handle::{EndpointState, InterfaceState as _};

impl<D: Driver> Endpoint<D> {
    /// Creates an unconnected endpoint. It takes its share of the interface's completion queue.
    pub fn new(interface: &Interface<D>) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; after that, both can post.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`], [`ConnectError::Address`]
    /// and [`ConnectError::Unreachable`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let port = address::port::<D>(peer.device())?;
        let peer = QueueAddress::unpack::<D>(peer.endpoint_for(D::ID)?)?;
        if !self.0.posting.has(PostBlock::Unconnected) || !self.0.posting.is_alive() {
            return Err(ConnectError::Connected { transport: D::ID });
        }
        self.0.connect(port, &peer)
    }
}

impl<D: Driver> EndpointState for State<D> {
    type Transport = D;

    fn shared(&self) -> &Rc<Shared<D>> {
        &self.shared
    }

    fn posting(&self) -> &PostState {
        &self.posting
    }

    fn pending(&self) -> &PendingQueue<Endpoint<D>> {
        &self.pending
    }

    fn address(&self) -> EndpointAddress {
        self.own.pack::<D>()
    }

    fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    fn may_wait(&self) -> bool {
        let short = self.with_queue(|queue| queue.room() < D::Queue::LARGEST_POST)
            || self.shared.buffers.is_empty()
            || !self.in_flight().has_flush_room();
        self.posting.is_usable() && (short || !self.pending.is_idle())
    }

    fn counters(&self) -> Counters {
        if let Some(operations) = self.with_queue(|queue| queue.operations()) {
            self.posting.tally.set_posted(operations.wrapping_sub(self.internal.get()));
        }
        self.posting.tally.read()
    }

    fn handles(&self) -> Option<&Cell<u32>> {
        Some(&self.handles)
    }

    /// Stops the queue pair; progress finishes the outstanding operations.
    fn close(&self) {
        let shared = &*self.shared;
        if !shared.core.closed.get() {
            self.stop(PostBlock::Failed);
            shared.closing.set(shared.closing.get() + 1);
            shared.call_attention();
        }
    }

    fn is_idle(&self) -> bool {
        // What is in flight on a shared queue pair may be of other endpoints.
        (self.is_sharing() || self.in_flight().is_empty())
            && (self.with_queue(|queue| queue.is_idle()) || D::is_probe(self))
    }

    fn can_flush(&self) -> bool {
        let failed = self.posting.has(PostBlock::Failed);
        let open = failed || self.posting.is_open();
        let signaled =
            failed || self.has_room() || self.with_queue(|queue| queue.last_is_signaled());
        open && signaled && self.in_flight().has_flush_room()
    }

    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        if !self.posting.has(PostBlock::Failed) {
            self.signal_last()?;
        }
        if let Some(completion) = completion {
            self.in_flight().push_flush(self.last(), Done::Flushed(completion.begin()));
        }
        Ok(())
    }

    /// Reads the word that remote flushes read. A NOP of the driver, and posts whose completion was
    /// not requested, do not report a peer that is dead.
    fn probe(&self) -> Result<(), PostError> {
        let awaited = self.with_queue(|queue| !queue.is_idle() && queue.last_is_signaled());
        if !awaited || D::is_probe(self) {
            // On a full queue, the next round tries again.
            let _ = self.read_flush_word();
        }
        Ok(())
    }

    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.posting.check()?;
        if completion.is_some() && !self.in_flight().has_flush_room() {
            return Err(self.posting.refuse());
        }
        if mode == FlushMode::Remote && self.is_dirty() {
            // An acknowledgement means that the peer's device has the data, not that it is in
            // memory. A read is executed after the writes before it, and PCIe ordering makes its
            // response push them to memory. The flush reads a word of the peer's interface.
            self.read_flush_word()?;
        } else if self.is_idle() {
            return Ok(Posted::Done);
        } else {
            self.signal_last()?;
        }
        if let Some(completion) = completion {
            self.in_flight().push_flush(self.last(), Done::Flushed(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    /// Orders later posts after outstanding ones. A connection executes its writes and sends in
    /// order anyway; the fence bit makes them wait for reads and atomics, too (IBTA 10.8.3.3).
    fn fence(&self) {
        self.with_queue(|queue| {
            if !queue.is_idle() {
                queue.fence();
            }
        });
    }
}
