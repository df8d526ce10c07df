//! Progress: messages to their handlers, and what waits its turn.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_shm::{BulkReceiver, Corrupt, Deliver, MESSAGE_WORDS, Port};

use super::NAME;
use super::interface::Shared;
use crate::active_message::{
    Elsewhere, HOME, Keeper, KeptMessage, Message, Reclaim, SHORT_HEADER, write_home,
};
use crate::error::{Cause, EndpointError, Operation};
use crate::gate::Block;
use crate::pool::Lease;

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
    home: [u64; HOME / 8],
    words: [u64; MESSAGE_WORDS],
}

impl Progress {
    pub(super) fn new(shared: Rc<Shared>, port: Port) -> Self {
        let mut scratch = Scratch { home: [0; HOME / 8], words: [0; MESSAGE_WORDS] };
        // SAFETY: the home has 24 bytes of alignment 8.
        unsafe { write_home(NonNull::from(&mut scratch.home).cast(), &Copied) };
        Self { port, delivery: Delivery { scratch, shared } }
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
        let unsettled = shared.attention.get() || !shared.arbiter.is_empty();
        let events = if unsettled { self.settle() } else { 0 };
        let messages = self.port.turn(&mut self.delivery);
        // Who sleeps until he can post is to wake up.
        events + messages + self.delivery.shared.connected.take()
    }

    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        let shared = &*self.delivery.shared;
        shared.attention.set(false);
        // SAFETY: as in `Delivery::dispatch`.
        unsafe { shared.handlers.run_alone() }.renew();
        let mut events = 0;
        for state in shared.states() {
            if let Some(error) = state.unreported() {
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
        shared.closed.set(true);
        for state in shared.states() {
            state.stop(Block::Closed);
        }
        shared.arbiter.clear();
        shared.handlers.close();
        // SAFETY: as in `Delivery::dispatch`.
        unsafe { shared.handlers.run_alone() }.renew();
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
    fn goes_on(&self) -> bool {
        !self.shared.attention.get()
    }

    #[inline(always)]
    fn short(&mut self, id: u8, length: usize) {
        // SAFETY: the words follow the home, whose keeper lives for ever, and hold the header and at least `length` bytes, as the
        // driver checked. The next message is copied after this one's handler returned.
        let message = unsafe {
            let data = NonNull::from(&self.scratch).cast::<u8>().add(HOME);
            Message::new(data, SHORT_HEADER + length)
        };
        self.dispatch(id, message);
    }

    #[inline]
    fn buffered(&mut self, id: u8, buffers: &Rc<BulkReceiver>, number: u8, data: NonNull<u8>, length: usize) {
        let buffer = Buffer { buffers, number, kept: Cell::new(false) };
        let elsewhere = Elsewhere::new(data, &buffer);
        // SAFETY: the driver checked that the buffer is long enough and that it is this side's turn. The sender is a process that was
        // admitted (of this user, with the secret), which writes to the buffer again only after it was given back; it is given back by
        // `buffer`, after the handler returned, or by who keeps the message. `elsewhere` and `buffer` outlive the message.
        let message = unsafe { Message::elsewhere(&elsewhere, length) };
        self.dispatch(id, message);
    }

    #[cold]
    fn broken(&mut self, process: i32, why: Corrupt) {
        let error = EndpointError {
            transport: NAME,
            peer: format!("process {process} ({why})"),
            operation: Operation::Receive,
            cause: Cause::RemoteRequest,
            syndrome: None,
            detail: None,
        };
        self.shared.handlers.dispatch_error(&error);
    }

    #[cold]
    fn peer(&mut self, name: u32) {
        let state = self.shared.endpoints.borrow().get(name as usize).and_then(std::rc::Weak::upgrade);
        if let Some(state) = state {
            state.tend();
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
