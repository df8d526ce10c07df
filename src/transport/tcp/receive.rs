//! Receiving: from the connections to the handlers and completions.

use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_tcp::message::{Header, Kind};

use super::address::End;
use super::agenda::Task;
use super::failure::PendingFailure;
use super::interface::Shared;
use super::reader::{Messages, Next, Read, Scratch};
use super::state::State;
use crate::base::error::{Cause, Operation};
use crate::base::panics::Panics;
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::message::{
    BufferOwner, HEADROOM, Keeper, KeptMessage, Message, write_keeper,
};
use crate::transport::common::pool::Lease;

/// Reads of a connection that has failed: the kernel keeps what had arrived. The number is bounded
/// because a peer that is alive can go on sending.
const LAST_READS: usize = 64;

impl State {
    /// Receives on the connection for messages, and delivers those that are whole. Returns the
    /// number of events.
    #[inline]
    pub(super) fn receive(
        &self,
        scratch: &mut Scratch,
        running: &mut DispatchGuard<'_, true>,
    ) -> usize {
        match self.read(scratch) {
            Ok(Read::Nothing) => 0,
            Ok(Read::Bytes(length)) => self.deliver(scratch, length, running),
            Ok(Read::Large(length)) => self.deliver_large(scratch, length, running),
            Ok(Read::End) => self.fail_receiving(None),
            Err(error) => self.fail_receiving(Some(error)),
        }
    }

    /// Reads from the connection for messages, if it is open.
    #[inline(always)]
    fn read(&self, scratch: &mut Scratch) -> io::Result<Read> {
        // Borrowed while a `pack` function makes progress.
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return Ok(Read::Nothing) };
        let Some(socket) = connection.socket() else { return Ok(Read::Nothing) };
        self.reader.borrow_mut().read(scratch, socket)
    }

    /// Delivers what the peer sent before a connection failed. Returns the number of events.
    #[cold]
    pub(super) fn receive_last(
        &self,
        scratch: &mut Scratch,
        running: &mut DispatchGuard<'_, true>,
    ) -> usize {
        let mut events = 0;
        for _ in 0..LAST_READS {
            if !self.has_failed() || self.reader.borrow().is_paused() {
                break;
            }
            events += match self.read(scratch) {
                Ok(Read::Bytes(length)) => self.deliver(scratch, length, running),
                Ok(Read::Large(length)) => self.deliver_large(scratch, length, running),
                Ok(Read::Nothing | Read::End) | Err(_) => break,
            };
        }
        events
    }

    /// The connection has ended or failed. This is one event.
    #[cold]
    #[inline(never)]
    fn fail_receiving(&self, error: Option<io::Error>) -> usize {
        self.fail(match error {
            None => PendingFailure::new(
                Operation::Receive,
                Cause::Disconnected,
                "it closed the connection",
            ),
            Some(error) => PendingFailure::of_sending(Operation::Receive, &error.into()),
        });
        1
    }

    /// Delivers messages that waited for buffers.
    pub(super) fn resume(
        &self,
        scratch: &mut Scratch,
        running: &mut DispatchGuard<'_, true>,
    ) -> usize {
        self.shared.take_news(running);
        let read = self.reader.borrow_mut().resume(scratch);
        let events = match read {
            Read::Bytes(length) => self.deliver(scratch, length, running),
            Read::Large(length) => self.deliver_large(scratch, length, running),
            Read::Nothing | Read::End => return 0,
        };
        if !self.reader.borrow().is_paused() && self.posting.is_alive() {
            self.set_paused(false);
        }
        events
    }

    /// Delivers the messages among the first `length` bytes, and holds what is not whole.
    #[inline(never)]
    fn deliver(
        &self,
        scratch: &mut Scratch,
        length: usize,
        running: &mut DispatchGuard<'_, true>,
    ) -> usize {
        let mut delivery = Delivery { state: self, messages: scratch.messages(length) };
        let mut events = 0;
        while let Some((header, start)) = delivery.next() {
            events += 1;
            if let Kind::Message { handler } = header.kind {
                // SAFETY: `next` has just taken the message with this header, so it lies whole in
                // the scratch memory, `HEADROOM` bytes behind `start`, and what is written in front
                // of it is the lead, or bytes of a message that was taken before and has ended. All
                // of it is aligned to 8, since the memory, the lead and every span are. `delivery`
                // borrows the memory, so nothing else writes it; a kept message is a copy.
                let message = unsafe {
                    write_keeper(start, self);
                    Message::new(start.add(HEADROOM), header.length as usize)
                };
                self.dispatch(running, handler, message);
            } else if header.kind == Kind::Farewell {
                self.on_peer_close();
            }
        }
        events
    }

    /// Delivers the large message if it is whole, and then those among the first `length` bytes.
    #[inline(never)]
    fn deliver_large(
        &self,
        scratch: &mut Scratch,
        length: usize,
        running: &mut DispatchGuard<'_, true>,
    ) -> usize {
        let mut reader = self.reader.borrow_mut();
        let Some(large) = reader.take_large() else {
            reader.hold(scratch.bytes(length));
            return 1;
        };
        if reader.is_out_of_buffers() {
            reader.put_back(large);
            reader.hold(scratch.bytes(length));
            drop(reader);
            self.wait_for_buffers();
            return 0;
        }
        drop(reader);
        if let Kind::Message { handler } = large.header().kind {
            let start = large.start();
            // SAFETY: the memory of a whole large message holds the lead, the header and the data,
            // `HEADROOM` bytes behind `start`. It is aligned to a page, and `large` owns it until
            // the message has ended; a kept message is a copy.
            let message = unsafe {
                write_keeper(start, self);
                Message::new(start.add(HEADROOM), large.header().length as usize)
            };
            let held = HeldOnPanic { state: self, bytes: scratch.bytes(length) };
            self.dispatch(running, handler, message);
            std::mem::forget(held);
        }
        self.shared.spare_large.set(Some(large.into_memory()));
        1 + self.deliver(scratch, length, running)
    }

    #[inline]
    fn dispatch(&self, running: &mut DispatchGuard<'_, true>, handler: u8, message: Message<'_>) {
        running.dispatch(handler, message);
        if self.shared.has_news.get() {
            self.take_news(running);
        }
    }

    /// The handler of the last message has set handlers, or holds the sender.
    #[cold]
    #[inline(never)]
    fn take_news(&self, running: &mut DispatchGuard<'_, true>) {
        if self.shared.take_news(running) {
            self.reader.borrow_mut().hold_back();
            self.shared.held.borrow_mut().push(self.slot());
            self.set_paused(true);
        }
    }

    /// The sender is not held any more.
    pub(super) fn release(&self) {
        // Borrowed only while it is read, and then it is not held.
        if let Ok(mut reader) = self.reader.try_borrow_mut()
            && reader.let_go()
        {
            self.shared.visit_later(Task::Resume, self.slot());
        }
    }

    /// Reads nothing until a kept message is dropped: the peer's messages stay with the kernel, and
    /// then with the peer.
    #[cold]
    fn wait_for_buffers(&self) {
        self.reader.borrow_mut().pause();
        self.set_paused(true);
    }

    fn set_paused(&self, on: bool) {
        if let Err(error) = self.messages.borrow_mut().pause(&self.shared.poller, on) {
            self.fail(PendingFailure::of_sending(Operation::Receive, &error.into()));
        }
    }

    /// Reads the rest of a large message into memory of its own.
    #[cold]
    fn begin_large(&self, header: Header, bytes: &[u8]) {
        let begun = self.reader.borrow_mut().begin_large(&self.shared.spare_large, header, bytes);
        if let Err(error) = begun {
            self.fail(PendingFailure::new(
                Operation::Receive,
                Cause::LocalOperation,
                error.to_string(),
            ));
        }
    }

    /// A handler panicked: progress delivers the messages behind its message.
    #[cold]
    fn resume_after_panic(&self) {
        self.reader.borrow_mut().pause();
        self.shared.visit_later(Task::Resume, self.slot());
    }

    /// Receives on the connection to the peer's memory, and completes what is finished. Returns the
    /// number of events.
    pub(super) fn receive_responses(&self, scratch: &mut Scratch) -> usize {
        let received = match self.memory.try_borrow_mut().as_deref_mut() {
            Ok(Some(memory)) => memory.receive(scratch),
            // Not connected, or a `pack` function makes progress.
            Ok(None) | Err(_) => return 0,
        };
        let mut bytes = match received {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return 0,
            Err(failure) => {
                self.fail(failure);
                return 1;
            }
        };
        let mut panics = Panics::default();
        let mut events = 1;
        while self.posting.is_alive() {
            let next = self
                .memory
                .borrow_mut()
                .as_mut()
                .map_or(Ok(None), |memory| memory.next(&mut bytes));
            match next {
                Ok(Some(finished)) => {
                    let (number, callbacks) = finished.run(&mut panics);
                    events += callbacks;
                    if let Some(number) = number
                        && let Some(memory) = self.memory.borrow_mut().as_mut()
                    {
                        memory.finish(number);
                        self.replenish();
                    }
                }
                Ok(None) => break,
                Err(failure) => self.fail(failure),
            }
        }
        if let Some(memory) = self.memory.borrow_mut().as_mut() {
            memory.hold(bytes);
        }
        panics.catch(|| self.settle());
        events
    }
}

/// Messages that are being delivered. Its drop holds what was not delivered, also when a handler
/// panics.
struct Delivery<'a> {
    state: &'a State,
    messages: Messages<'a>,
}

impl Delivery<'_> {
    /// Takes the next message that is whole: its header, and the place for the owner of its buffer.
    #[inline(always)]
    fn next(&mut self) -> Option<(Header, NonNull<u8>)> {
        let next = self.messages.peek();
        if next == Ok(Next::Incomplete) {
            return None;
        }
        if !self.state.posting.is_alive() && !self.state.has_failed() {
            // Closed by a handler: nothing more is delivered.
            self.messages.discard();
            return None;
        }
        match next {
            Ok(Next::Whole(header, start)) => {
                if self.state.reader.borrow().is_out_of_buffers() {
                    self.state.wait_for_buffers();
                    return None;
                }
                self.messages.take(header);
                Some((header, start))
            }
            Ok(Next::Incomplete) => None,
            Ok(Next::Large(header)) => {
                self.state.begin_large(header, self.messages.rest());
                self.messages.discard();
                None
            }
            Err(error) => {
                let detail = error.to_string();
                self.state.fail(PendingFailure::new(
                    Operation::Receive,
                    Cause::RemoteOperation,
                    detail,
                ));
                self.messages.discard();
                None
            }
        }
    }
}

impl Drop for Delivery<'_> {
    #[inline]
    fn drop(&mut self) {
        let rest = self.messages.rest();
        if !rest.is_empty() {
            self.state.reader.borrow_mut().hold(rest);
        }
        if std::thread::panicking() {
            self.state.resume_after_panic();
        }
    }
}

/// Holds the bytes behind a large message whose handler panics.
struct HeldOnPanic<'a> {
    state: &'a State,
    bytes: &'a [u8],
}

impl Drop for HeldOnPanic<'_> {
    fn drop(&mut self) {
        self.state.reader.borrow_mut().hold(self.bytes);
        self.state.resume_after_panic();
    }
}

/// A message that was kept: a copy, since the next read overwrites the original.
struct Kept {
    shared: Rc<Shared>,
    own: End,
    /// The message has its own pointer to it.
    _data: RefCell<Box<[u8]>>,
}

impl Keeper for State {
    #[cold]
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        self.reader.borrow_mut().keep();
        let copy: Box<[u8]> = data.into();
        let pointer = NonNull::from(&*copy);
        let (shared, own) = (Rc::clone(&self.shared), self.own());
        let owner: Rc<dyn BufferOwner> = Rc::new(Kept { shared, own, _data: RefCell::new(copy) });
        // SAFETY: the copy belongs to the owner, which the message keeps, and nothing writes to it.
        unsafe { KeptMessage::new(pointer.as_ref(), None, owner) }
    }
}

impl BufferOwner for Kept {
    fn reclaim(&self, _: Lease) {}
}

impl Drop for Kept {
    fn drop(&mut self) {
        let slot = self.own.slot();
        if let Some(state) = self.shared.endpoint(slot).filter(|state| state.own() == self.own)
            && state.reader.borrow_mut().drop_kept()
            && !self.shared.core.closed.get()
        {
            self.shared.visit_later(Task::Resume, slot);
        }
    }
}
