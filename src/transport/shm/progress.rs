//! Progress: messages to their handlers, and what waits its turn.

use std::cell::Cell;
use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_shm::{BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Port};

use super::NAME;
use super::connection::cause;
use super::interface::Shared;
use crate::error::{Cause, EndpointError, Operation};
use crate::message::{Elsewhere, HOME, Keeper, KeptMessage, Message, Reclaim, SHORT_HEADER};
use crate::panics::{self, Panics};
use crate::transport::common::gate::Block;
use crate::transport::common::pool::Lease;

/// The one owner of an interface's progress. Dropping it closes the interface: peers are told, handlers are dropped and posts
/// answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress {
    port: Port,
    delivery: Delivery,
}

/// What the port delivers to.
struct Delivery {
    scratch: Scratch,
    shared: Rc<Shared>,
}

/// Where a short message is copied to, behind the home that says who keeps it.
#[repr(C)]
struct Scratch {
    /// As `write_home` writes it. The field has the pointer's type: integers that are moved lose
    /// the provenance of a pointer that was written to them.
    keeper: NonNull<dyn Keeper>,
    _rest: [u64; HOME / 8 - 2],
    words: [u64; MESSAGE_WORDS],
}

const _: () = assert!(offset_of!(Scratch, keeper) == 0 && offset_of!(Scratch, words) == HOME);

impl Scratch {
    fn new() -> Self {
        let keeper: &'static dyn Keeper = &Copied;
        Self { keeper: NonNull::from(keeper), _rest: [0; HOME / 8 - 2], words: [0; MESSAGE_WORDS] }
    }

    /// The first `length` bytes of the words.
    ///
    /// # Safety
    /// The words have `length` bytes.
    #[inline(always)]
    unsafe fn message(&self, length: usize) -> Message<'_> {
        // SAFETY: the words follow the home, whose keeper is a constant, and hold `length` bytes by
        // the caller's contract. They are borrowed while the message exists, and a kept message is
        // a copy.
        unsafe { Message::new(NonNull::from(self).cast::<u8>().add(HOME), length) }
    }
}

impl Progress {
    /// Whether a call of progress would do nothing: `progress` tests it at the cost of one load.
    #[inline]
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }

    pub(super) fn new(shared: Rc<Shared>, port: Port) -> Self {
        Self { port, delivery: Delivery { scratch: Scratch::new(), shared } }
    }

    /// Delivers messages, up to 32 from one sender. Every few calls it looks at all senders, and from time to time at who comes and goes.
    /// Gives pending requests their turn. Never blocks. Answers how many events there were.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        if self.port.is_due() { self.turn() } else { self.port.take(&mut self.delivery) }
    }

    /// The rest of what there is to be done, every few calls.
    #[cold]
    #[inline(never)]
    fn turn(&mut self) -> usize {
        let shared = &*self.delivery.shared;
        if shared.closed.get() {
            // By a fork: the messages are the parent's. The next call comes here, too.
            shared.call_attention();
            return 0;
        }
        let unsettled = shared.attention.get() || !shared.arbiter.is_empty();
        let events = if unsettled { self.settle() } else { 0 };
        if shared.knocking.get() {
            shared.knock();
        }
        let messages = self.port.scan(&mut self.delivery);
        // Who sleeps until he can post is to wake up.
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
        // SAFETY: as in `Delivery::dispatch`.
        unsafe { shared.handlers.run_alone() }.renew();
        let mut events = 0;
        // One at a time: a handler that panics takes no other error with it.
        let failed = || shared.unreported.borrow_mut().pop_front();
        while let Some(state) = failed() {
            if let Some(error) = state.upgrade().and_then(|state| state.error()) {
                shared.handlers.dispatch_error(&error);
                events += 1;
            }
        }
        events += shared.arbiter.dispatch();
        if !shared.arbiter.is_empty() {
            // They wait for what the port does: it is not to be held up.
            shared.watcher.call_attention();
        }
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let shared = &*self.delivery.shared;
        if shared.closed.replace(true) {
            // Closed by a fork: the port and its peers are the parent's.
            return;
        }
        for state in shared.states() {
            state.stop(Block::Closed);
        }
        let mut panics = Panics::default();
        panics.catch(|| shared.arbiter.clear());
        panics.catch(|| shared.handlers.close());
        // SAFETY: as in `Delivery::dispatch`.
        panics.catch(|| unsafe { shared.handlers.run_alone() }.renew());
    }
}

impl Delivery {
    #[inline(always)]
    fn dispatch(&self, id: u8, message: Message<'_>) {
        // SAFETY: reached by `Progress` only, by `&mut self` of its own; what runs inside has no way to it.
        unsafe { self.shared.handlers.run_alone() }.dispatch(id, message);
    }
}

impl Deliver for Delivery {
    #[inline(always)]
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch.words
    }

    /// Unless there is something else to do first: handlers that were set, for example.
    fn wants_more(&self) -> bool {
        !self.shared.attention.get()
    }

    #[inline(always)]
    fn short(&mut self, id: u8, length: usize) {
        // SAFETY: the words hold the header and `length` bytes, as the driver checked.
        let message = unsafe { self.scratch.message(SHORT_HEADER + length) };
        self.dispatch(id, message);
    }

    #[inline]
    fn buffered(&mut self, id: u8, buffers: &Rc<BulkReceiver>, number: u8, data: NonNull<u8>, length: usize) {
        let buffer = Buffer { buffers, number, kept: Cell::new(false) };
        let elsewhere = Elsewhere::new(data, &buffer);
        // SAFETY: the driver checked that the buffer is long enough and that it is this side's turn.
        // The sender is an admitted process (of this user, with the secret), which writes the buffer
        // only after it is given back: by `buffer`, which is dropped after the message has ended, or,
        // if the handler kept the message, by the kept message. `elsewhere` outlives the message.
        let message = unsafe { Message::elsewhere(&elsewhere, length) };
        self.dispatch(id, message);
    }

    #[cold]
    fn broken(&mut self, process: i32, why: LinkError) {
        let peer = if process == 0 { "a peer".to_owned() } else { format!("process {process}") };
        let error = EndpointError {
            transport: NAME,
            peer: format!("{peer} ({why})"),
            operation: Operation::Receive,
            cause: match why {
                LinkError::Corrupt(_) => Cause::RemoteRequest,
                why => cause(&why),
            },
            syndrome: None,
            detail: None,
        };
        self.shared.handlers.dispatch_error(&error);
    }

    #[cold]
    fn peer(&mut self, name: u32) {
        let connection = self.shared.connections.borrow().get(name);
        if let Some(connection) = connection {
            connection.tend(&self.shared);
        }
    }
}

/// Keeps a short message: as a copy.
struct Copied;

impl Keeper for Copied {
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner = Rc::new(Copy(data.into()));
        let data: *const [u8] = &raw const *owner.0;
        // SAFETY: the copy is the owner's, and nobody writes it.
        unsafe { KeptMessage::new(&*data, None, owner) }
    }
}

struct Copy(Box<[u8]>);

impl Reclaim for Copy {
    fn reclaim(&self, _: Lease) {}
}

/// The buffer of the message being handled: given back unless the handler kept it.
struct Buffer<'a> {
    buffers: &'a Rc<BulkReceiver>,
    number: u8,
    kept: Cell<bool>,
}

impl Keeper for Buffer<'_> {
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        self.kept.set(true);
        let lease = Lease::numbered(self.number.into());
        // SAFETY: `data` lies in the buffer, which is now the kept message's alone; the receiver keeps it mapped.
        unsafe { KeptMessage::new(data, Some(lease), Rc::clone(self.buffers) as Rc<dyn Reclaim>) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if !self.kept.get() {
            self.buffers.give(self.number);
        }
    }
}

impl Reclaim for BulkReceiver {
    fn reclaim(&self, buffer: Lease) {
        self.give(buffer.index() as u8);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("transport", &NAME).field("port", &self.port).finish_non_exhaustive()
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
        // SAFETY: fewer bytes than the words have.
        let kept = unsafe { moved.message(12) }.keep();
        drop(moved);
        assert_eq!(kept[..], [1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }
}
