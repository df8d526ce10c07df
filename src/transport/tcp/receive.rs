//! Receiving messages: from the connection to the handlers.

use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_tcp::message::{Header, Kind};
use barewire_tcp::socket::Socket;

use super::reader::{Messages, Next, Read, Scratch, Source};
use super::state::{PendingFailure, State};
use crate::error::{Cause, Operation};
use crate::message::{HOME, Keeper, KeptMessage, Message, Reclaim, write_home};
use crate::transport::common::handlers::Running;
use crate::transport::common::pool::Lease;

impl Source for Socket {
    #[inline]
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(room)
    }

    #[inline]
    fn has_records(&self) -> bool {
        self.is_protected()
    }
}

impl State {
    /// Receives on the connection for messages, and delivers those that are whole. Returns the number of
    /// events.
    #[inline]
    pub(super) fn receive(&self, scratch: &mut Scratch, running: &mut Running<'_, true>) -> usize {
        let mut reader = self.reader.borrow_mut();
        if reader.is_paused() {
            return 0;
        }
        let read = {
            // Borrowed while a `pack` function makes progress.
            let Ok(mut connection) = self.messages.try_borrow_mut() else { return 0 };
            let Some(socket) = connection.socket() else { return 0 };
            reader.read(scratch, socket)
        };
        let has_large = reader.has_large();
        drop(reader);
        match read {
            Ok(Read::Nothing) => 0,
            Ok(Read::Bytes(length)) if has_large => self.deliver_large(scratch, length, running),
            Ok(Read::Bytes(length)) => self.deliver(scratch, length, running),
            Ok(Read::End) => self.fail_receiving(None),
            Err(error) => self.fail_receiving(Some(error)),
        }
    }

    /// The connection has ended, or is of no use. This is one event.
    #[cold]
    #[inline(never)]
    fn fail_receiving(&self, error: Option<io::Error>) -> usize {
        self.fail(match error {
            None => PendingFailure::new(Operation::Receive, Cause::Disconnected, "it closed the connection"),
            Some(error) => PendingFailure::of_sending(Operation::Receive, &error.into()),
        });
        1
    }

    /// Delivers messages that waited for buffers.
    pub(super) fn resume(&self, scratch: &mut Scratch, running: &mut Running<'_, true>) -> usize {
        let mut reader = self.reader.borrow_mut();
        let Some(bytes) = reader.resume() else { return 0 };
        let has_large = reader.has_large();
        drop(reader);
        scratch.put(&bytes);
        let events = if has_large {
            self.deliver_large(scratch, bytes.len(), running)
        } else {
            self.deliver(scratch, bytes.len(), running)
        };
        if !self.reader.borrow().is_paused() && self.gate.is_alive() {
            self.set_paused(false);
        }
        events
    }

    /// Delivers the messages among the first `length` bytes, and holds what is not whole.
    #[inline(never)]
    fn deliver(&self, scratch: &mut Scratch, length: usize, running: &mut Running<'_, true>) -> usize {
        let mut delivery = Delivery { state: self, messages: scratch.messages(length) };
        let mut events = 0;
        while let Some((header, start)) = delivery.next() {
            events += 1;
            if let Kind::Message { handler } = header.kind {
                // SAFETY: `next` has just taken the message with this header, so it lies whole in the
                // scratch memory, `HOME` bytes behind `start`, and what is written in front of it is the
                // lead, or bytes of a message that was taken before and has ended. All of it is aligned
                // to 8, since the memory, the lead and every span are. `delivery` borrows the memory,
                // so nothing else writes it; a kept message is a copy.
                let message = unsafe {
                    write_home(start, self);
                    Message::new(start.add(HOME), header.length as usize)
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
    fn deliver_large(&self, scratch: &mut Scratch, length: usize, running: &mut Running<'_, true>) -> usize {
        let mut reader = self.reader.borrow_mut();
        let Some(large) = reader.take_large() else {
            reader.hold(scratch.bytes(length));
            return 1;
        };
        if self.is_out_of_buffers() {
            reader.put_back(large);
            reader.hold(scratch.bytes(length));
            drop(reader);
            self.wait_for_buffers();
            return 0;
        }
        drop(reader);
        if let Kind::Message { handler } = large.header().kind {
            let start = large.start();
            // SAFETY: the memory of a whole large message holds the lead, the header and the data, `HOME`
            // bytes behind `start`. It is aligned to a page, and `large` owns it until the message has
            // ended; a kept message is a copy.
            let message = unsafe {
                write_home(start, self);
                Message::new(start.add(HOME), large.header().length as usize)
            };
            let held = HeldOnPanic { state: self, bytes: scratch.bytes(length) };
            self.dispatch(running, handler, message);
            std::mem::forget(held);
        }
        self.shared.spare_large.set(Some(large.into_memory()));
        1 + self.deliver(scratch, length, running)
    }

    #[inline]
    fn dispatch(&self, running: &mut Running<'_, true>, handler: u8, message: Message<'_>) {
        // The message before may have set handlers.
        if self.shared.renewed.replace(false) {
            running.renew();
        }
        running.dispatch(handler, message);
    }

    /// Handlers keep as many messages as they may.
    fn is_out_of_buffers(&self) -> bool {
        let config = &self.shared.config;
        self.kept.get() >= config.receive_ring + config.spare_receive_buffers
    }

    /// Nothing is read until a kept message is dropped: the peer's messages stay with the kernel, and then
    /// with the peer.
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

    /// A large message that is not whole is read into memory of its own.
    #[cold]
    fn begin_large(&self, header: Header, bytes: &[u8]) {
        let begun = self.reader.borrow_mut().begin_large(&self.shared.spare_large, header, bytes);
        if let Err(error) = begun {
            self.fail(PendingFailure::new(Operation::Receive, Cause::LocalOperation, error.to_string()));
        }
    }
}

/// Messages that are being delivered. Its drop holds what was not delivered, also when a handler panics.
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
        if !self.state.gate.is_alive() {
            // Closed by a handler: nothing more is delivered.
            self.messages.discard();
            return None;
        }
        match next {
            Ok(Next::Whole(header)) => {
                if self.state.is_out_of_buffers() {
                    self.state.wait_for_buffers();
                    return None;
                }
                Some((header, self.messages.take(header)))
            }
            Ok(Next::Incomplete) => None,
            Ok(Next::Large(header)) => {
                self.state.begin_large(header, self.messages.rest());
                self.messages.discard();
                None
            }
            Err(error) => {
                let detail = error.to_string();
                self.state.fail(PendingFailure::new(Operation::Receive, Cause::RemoteOperation, detail));
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

impl State {
    /// A handler panicked: progress delivers the messages behind its message.
    #[cold]
    fn resume_after_panic(&self) {
        self.reader.borrow_mut().pause();
        self.shared.resume_later(self.index);
    }
}

/// A message that was kept: a copy, since what comes next is read where it lay.
struct Kept {
    state: Rc<State>,
    /// Behind the message's own pointer.
    _data: RefCell<Box<[u8]>>,
}

impl Keeper for State {
    #[cold]
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let state = self.me.upgrade().expect("a state that is borrowed is alive");
        state.kept.set(state.kept.get() + 1);
        let copy: Box<[u8]> = data.into();
        let pointer = NonNull::from(&*copy);
        let owner: Rc<dyn Reclaim> = Rc::new(Kept { state, _data: RefCell::new(copy) });
        // SAFETY: the copy is the owner's, which the message keeps; nobody writes it.
        unsafe { KeptMessage::new(pointer.as_ref(), None, owner) }
    }
}

impl Reclaim for Kept {
    fn reclaim(&self, _: Lease) {}
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.state.kept.set(self.state.kept.get() - 1);
        if self.state.shared.closed.get() {
            return;
        }
        if self.state.reader.try_borrow().map_or(true, |reader| reader.is_paused()) {
            self.state.shared.resume_later(self.state.index);
        }
    }
}
