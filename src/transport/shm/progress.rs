//! Progress: dispatch of messages, and everything else that waits.

use std::cell::Cell;
use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_shm::{BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Port};

use super::ID;
use super::connection::{cause, peer_name};
use super::interface::Shared;
use crate::base::error::{Cause, EndpointError, Operation};
use crate::base::panics::{self, Panics};
use crate::transport::common::message::{
    BufferOwner, Copying, ExternalMessage, HEADROOM, Keeper, KeptMessage, Message, SHORT_HEADER,
};
use crate::transport::common::pool::Lease;
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{EndpointList as _, EndpointState as _, InterfaceState as _};

/// The only owner of an interface's progress. Dropping it closes the interface: peers are notified,
/// handlers are dropped and posts return [`PostError::Closed`](crate::PostError::Closed).
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress {
    port: Port,
    delivery: Delivery,
}

/// The receiver of what the port delivers.
struct Delivery {
    scratch: Scratch,
    shared: Rc<Shared>,
}

/// A copy of a short message, behind the headroom that names its keeper.
#[repr(C)]
struct Scratch {
    /// Written as `write_keeper` does. The field has the pointer's type, because an integer field
    /// would lose the pointer's provenance when the struct is moved.
    keeper: NonNull<dyn Keeper>,
    _rest: [u64; HEADROOM / 8 - 2],
    words: [u64; MESSAGE_WORDS],
}

const _: () = assert!(offset_of!(Scratch, keeper) == 0 && offset_of!(Scratch, words) == HEADROOM);

impl Scratch {
    fn new() -> Self {
        let keeper: &'static dyn Keeper = &Copying;
        Self {
            keeper: NonNull::from(keeper),
            _rest: [0; HEADROOM / 8 - 2],
            words: [0; MESSAGE_WORDS],
        }
    }

    /// Returns the first `length` bytes of the words.
    ///
    /// # Safety
    /// The words have at least `length` bytes.
    #[inline(always)]
    unsafe fn message(&self, length: usize) -> Message<'_> {
        // SAFETY: the words follow the headroom, whose keeper is a constant, and hold `length`
        // bytes (contract of this function). They are borrowed while the message exists, and a kept
        // message is a copy.
        unsafe { Message::new(NonNull::from(self).cast::<u8>().add(HEADROOM), length) }
    }
}

impl Progress {
    /// Returns whether `progress` would do nothing; it checks the same with one load.
    #[inline]
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }

    pub(super) fn new(shared: Rc<Shared>, port: Port) -> Self {
        Self { port, delivery: Delivery { scratch: Scratch::new(), shared } }
    }

    /// Delivers messages, up to 32 from one sender. Every few calls it polls all senders, and less
    /// often checks for new and closed connections. Runs pending requests. Never blocks. Returns
    /// the number of events.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        if self.port.is_due() { self.turn() } else { self.port.take(&mut self.delivery) }
    }

    /// Does everything else, every few calls.
    #[cold]
    #[inline(never)]
    fn turn(&mut self) -> usize {
        let shared = &*self.delivery.shared;
        if shared.core.closed.get() {
            // Closed by a fork: the messages are the parent's. Setting the flag makes the next call
            // return here, too.
            shared.call_attention();
            return 0;
        }
        let unsettled = shared.attention.get() || !shared.core.arbiter.is_empty();
        let events = if unsettled { self.settle() } else { 0 };
        if shared.knocking.get() {
            shared.knock();
        }
        if shared.releases.take() {
            self.port.release();
        }
        let messages = self.port.scan(&mut self.delivery);
        // A connection counts as an event: a caller that sleeps until it can post must wake up.
        events + messages + self.delivery.shared.connected.take()
    }

    #[cold]
    #[inline(never)]
    fn settle(&self) -> usize {
        let shared = &*self.delivery.shared;
        panics::or_else(|| self.settle_once(), || shared.call_attention())
    }

    fn settle_once(&self) -> usize {
        let shared = &*self.delivery.shared;
        shared.attention.set(false);
        // SAFETY: `Handlers` are run by `Progress` only, which is borrowed mutably here. No handler
        // is running, and a handler cannot access `Progress`.
        unsafe { shared.core.handlers.enter_unchecked() }.install_pending();
        let mut events = 0;
        // Popped one at a time: a handler that panics does not lose the other errors.
        let failed = || shared.unreported.borrow_mut().pop_front();
        while let Some(state) = failed() {
            if let Some(error) = state.upgrade().and_then(|state| state.error()) {
                shared.core.handlers.dispatch_error(&error);
                events += 1;
            }
        }
        events += shared.core.arbiter.dispatch();
        if !shared.core.arbiter.is_empty() {
            // The requests wait for what the port does, so progress must not skip it.
            shared.watcher.call_attention();
        }
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let shared = &*self.delivery.shared;
        if shared.core.closed.replace(true) {
            // Closed by a fork: the port and its peers belong to the parent.
            return;
        }
        for state in shared.core.endpoints.all() {
            state.stop(PostBlock::Closed);
        }
        shared.core.clear(&mut Panics::default());
    }
}

impl Delivery {
    #[inline(always)]
    fn dispatch(&self, id: u8, message: Message<'_>) {
        // SAFETY: `Handlers` are run by `Progress` only, which owns this value and is borrowed
        // mutably by its caller. A handler cannot access `Progress`, so no second right to run
        // exists.
        unsafe { self.shared.core.handlers.enter_unchecked() }.dispatch(id, message);
    }
}

impl Deliver for Delivery {
    #[inline(always)]
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch.words
    }

    /// Stops delivery if something else comes first, such as handlers that were set.
    fn wants_more(&self) -> bool {
        !self.shared.attention.get()
    }

    fn takes_hold(&mut self) -> bool {
        self.shared.holds.take()
    }

    #[inline(always)]
    fn short(&mut self, id: u8, length: usize) {
        // SAFETY: the driver has checked that the words hold the header and `length` bytes.
        let message = unsafe { self.scratch.message(SHORT_HEADER + length) };
        self.dispatch(id, message);
    }

    #[inline]
    fn buffered(
        &mut self,
        id: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        data: NonNull<u8>,
        length: usize,
    ) {
        let buffer = Buffer { buffers, number, kept: Cell::new(false) };
        let external = ExternalMessage::new(data, &buffer);
        // SAFETY: the driver has checked that the buffer is long enough and that it is this side's
        // turn. The sender is an authenticated process (of this user, with the secret), which
        // writes the buffer only after it is returned: by `buffer`, which is dropped after the
        // message has ended, or by the kept message, if the handler kept it. `external` outlives
        // the message.
        let message = unsafe { Message::external(&external, length) };
        self.dispatch(id, message);
    }

    #[cold]
    fn broken(&mut self, process: i32, why: LinkError) {
        let peer = peer_name(process);
        let error = EndpointError {
            transport: ID,
            peer: format!("{peer} ({why})"),
            operation: Operation::Receive,
            cause: match why {
                LinkError::Corrupt(_) => Cause::RemoteRequest,
                why => cause(&why),
            },
            syndrome: None,
            detail: None,
        };
        self.shared.core.handlers.dispatch_error(&error);
    }

    #[cold]
    fn peer(&mut self, name: u32) {
        let connection = self.shared.connections.borrow().get(name);
        if let Some(connection) = connection {
            connection.tend(&self.shared);
        }
    }
}

/// The buffer of the message being handled. The drop returns it unless the handler kept it.
struct Buffer<'a> {
    buffers: &'a Rc<BulkReceiver>,
    number: u8,
    kept: Cell<bool>,
}

impl Keeper for Buffer<'_> {
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        self.kept.set(true);
        let lease = Lease::numbered(self.number.into());
        // SAFETY: `data` lies in the buffer, which from now on only the kept message accesses. The
        // receiver, which the kept message keeps alive, keeps it mapped.
        unsafe {
            KeptMessage::new(data, Some(lease), Rc::clone(self.buffers) as Rc<dyn BufferOwner>)
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if !self.kept.get() {
            self.buffers.give(self.number);
        }
    }
}

impl BufferOwner for BulkReceiver {
    fn reclaim(&self, buffer: Lease) {
        self.give(buffer.index() as u8);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &ID)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For Miri: the keeper is still a valid pointer after the scratch was moved.
    #[test]
    fn a_message_is_kept_from_a_scratch_that_was_moved() {
        let mut moved = Box::new(Scratch::new());
        moved.words[..2].copy_from_slice(&[1, u64::MAX]);
        // SAFETY: the words have more than 12 bytes.
        let kept = unsafe { moved.message(12) }.keep();
        drop(moved);
        assert_eq!(kept[..], [1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }
}
