//! Messages as they come: where the bytes are put, and how handlers see them.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_tcp::message::{self, Header, Kind};
use barewire_tcp::socket::Socket;

use super::MAX_AM;
use super::state::{PendingFailure, State};
use crate::error::{Cause, MemoryError, Operation};
use crate::message::{HOME, Keeper, KeptMessage, Message, Reclaim, write_home};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::handlers::Running;
use crate::transport::common::pool::{Block, Lease};

/// Bytes that are read at once.
const READ: usize = 256 << 10;
/// In front of the first header: a message's data lie [`HOME`] bytes behind where its keeper is noted.
const LEAD: usize = HOME - message::HEADER_BYTES;
/// Messages that do not fit in this get a buffer of their own.
const LARGE: usize = 64 << 10;
/// What is read behind a large message: if another one follows, its data are not read here and copied.
const PEEK: usize = 4 << 10;

const _: () = assert!(LEAD.is_multiple_of(message::ALIGNMENT), "data are aligned if headers are");

/// Where bytes are put that come, for one connection at a time.
#[derive(Debug)]
pub(super) struct Scratch(Allocation);

impl Scratch {
    pub(super) fn new() -> Result<Self, MemoryError> {
        // A message that began in one read may end in the next.
        Allocation::new(LEAD + READ + LARGE).map(Self)
    }

    /// All of it.
    fn whole(&mut self) -> &mut [u8] {
        // SAFETY: initialised memory that is owned, and reached through `&mut self` alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.len()) }
    }

    /// Reads up to `most` bytes behind those that are `held`. `None` if nothing came; zero is the end of the stream.
    #[inline]
    pub(super) fn fill(
        &mut self,
        held: &[u8],
        socket: &mut Socket,
        most: usize,
    ) -> io::Result<Option<usize>> {
        let (before, room) = self.whole()[LEAD..].split_at_mut(held.len());
        let room_len = room.len();
        let count = socket.receive(&mut room[..most.min(room_len).min(READ)])?;
        if count.is_some() {
            before.copy_from_slice(held);
        }
        Ok(count)
    }

    /// The first `length` bytes that were held and read.
    pub(super) fn bytes(&mut self, length: usize) -> &[u8] {
        &self.whole()[LEAD..LEAD + length]
    }
}

/// What came of a message that is not whole yet.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Its beginning, or whole messages that wait for buffers.
    bytes: Vec<u8>,
    /// It is a large one.
    large: Option<Large>,
    /// The last one was large.
    after_large: bool,
    /// Handlers keep as many messages as there are buffers.
    waits: bool,
    /// Something came.
    touched: bool,
}

impl Rest {
    /// Nothing ever came.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A buffer for a large message, while there is none: its pages are there already.
pub(super) type SpareLarge = Cell<Option<Allocation>>;

/// A large message on its way.
#[derive(Debug)]
struct Large {
    memory: Allocation,
    header: Header,
    /// Bytes that came, header included.
    filled: usize,
}

impl Large {
    /// In `spare`, if there is one.
    fn begin(spare: &SpareLarge, header: Header, bytes: &[u8]) -> Result<Self, MemoryError> {
        let memory = match spare.take() {
            Some(memory) => memory,
            None => Allocation::new(LEAD + Header::message(0, MAX_AM as u32).span())?,
        };
        let mut this = Self { memory, header, filled: bytes.len() };
        this.whole()[LEAD..LEAD + bytes.len()].copy_from_slice(bytes);
        Ok(this)
    }

    fn whole(&mut self) -> &mut [u8] {
        // SAFETY: initialised memory that is owned, and reached through `&mut self` alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.memory.len()) }
    }

    fn receive(&mut self, socket: &mut Socket) -> io::Result<Option<usize>> {
        let filled = self.filled;
        let end = LEAD + self.header.span();
        let count = socket.receive(&mut self.whole()[LEAD + filled..end])?;
        self.filled += count.unwrap_or(0);
        Ok(count)
    }

    /// Takes what is its own of `bytes`: how many.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let filled = self.filled;
        let count = bytes.len().min(self.header.span() - filled);
        self.whole()[LEAD + filled..][..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        count
    }

    fn is_whole(&self) -> bool {
        self.filled == self.header.span()
    }
}

impl State {
    /// Takes what came on the connection for messages, and delivers what is whole. Answers how many events there were.
    #[inline]
    pub(super) fn receive(&self, scratch: &mut Scratch, running: &mut Running<'_, true>) -> usize {
        let mut rest = self.rest.borrow_mut();
        if rest.waits {
            return 0;
        }
        let heard = {
            // Borrowed while a `pack` function makes progress.
            let Ok(mut connection) = self.messages.try_borrow_mut() else { return 0 };
            let Some(socket) = connection.socket() else { return 0 };
            if socket.is_protected() {
                // Everything that came is taken at once: the system does not report it again.
                let heard = scratch.fill(&rest.bytes, socket, READ);
                drop((rest, connection));
                return self.receive_protected(heard, scratch, running);
            }
            if let Some(large) = &mut rest.large {
                large.receive(socket)
            } else {
                let most = if rest.after_large { PEEK } else { READ };
                scratch.fill(&rest.bytes, socket, most)
            }
        };
        let failure = match heard {
            Ok(None) => return 0,
            Ok(Some(0)) => {
                PendingFailure::new(Operation::Receive, Cause::Disconnected, "it closed the connection")
            }
            Ok(Some(_)) if rest.large.is_some() => {
                drop(rest);
                return self.deliver_large(running);
            }
            Ok(Some(count)) => {
                let length = rest.bytes.len() + count;
                rest.touched = true;
                rest.bytes.clear();
                rest.after_large = false;
                drop(rest);
                return self.deliver(scratch, length, running);
            }
            Err(error) => PendingFailure::of_sending(Operation::Receive, &error.into()),
        };
        drop(rest);
        self.fail(failure);
        1
    }

    /// As [`Self::receive`] on a protected connection: `heard` bytes lie in the scratch, behind what was held.
    #[inline(never)]
    fn receive_protected(
        &self,
        heard: io::Result<Option<usize>>,
        scratch: &mut Scratch,
        running: &mut Running<'_, true>,
    ) -> usize {
        let failure = match heard {
            Ok(None) => return 0,
            Ok(Some(0)) => {
                PendingFailure::new(Operation::Receive, Cause::Disconnected, "it closed the connection")
            }
            Ok(Some(count)) => {
                let mut rest = self.rest.borrow_mut();
                let mut length = rest.bytes.len() + count;
                rest.touched = true;
                rest.bytes.clear();
                let mut events = 0;
                if let Some(large) = &mut rest.large {
                    let taken = large.take(scratch.bytes(length));
                    length -= taken;
                    // What follows is delivered from the front, where it is aligned.
                    scratch.whole().copy_within(LEAD + taken..LEAD + taken + length, LEAD);
                    drop(rest);
                    events += self.deliver_large(running);
                    let mut rest = self.rest.borrow_mut();
                    if rest.waits {
                        rest.bytes.extend_from_slice(scratch.bytes(length));
                        return events;
                    }
                } else {
                    drop(rest);
                }
                return events + self.deliver(scratch, length, running);
            }
            Err(error) => PendingFailure::of_sending(Operation::Receive, &error.into()),
        };
        self.fail(failure);
        1
    }

    /// Goes on with messages that waited for buffers.
    pub(super) fn resume(&self, scratch: &mut Scratch, running: &mut Running<'_, true>) -> usize {
        let mut rest = self.rest.borrow_mut();
        if !std::mem::take(&mut rest.waits) {
            return 0;
        }
        let bytes = std::mem::take(&mut rest.bytes);
        scratch.whole()[LEAD..LEAD + bytes.len()].copy_from_slice(&bytes);
        let large = rest.large.as_ref().is_some_and(Large::is_whole);
        drop(rest);
        let events = if large { self.deliver_large(running) } else { 0 };
        if self.rest.borrow().waits {
            self.rest.borrow_mut().bytes = bytes;
            return events;
        }
        let events = events + self.deliver(scratch, bytes.len(), running);
        if !self.rest.borrow().waits && self.gate.is_alive() {
            let resumed = self.messages.borrow_mut().pause(&self.shared.poller, false);
            if let Err(error) = resumed {
                self.fail(PendingFailure::of_sending(Operation::Receive, &error.into()));
            }
        }
        events
    }

    /// Delivers the messages among the first `length` bytes; what is not whole is kept for later.
    #[inline]
    fn deliver(&self, scratch: &mut Scratch, length: usize, running: &mut Running<'_, true>) -> usize {
        let mut delivery = Delivery { state: self, bytes: &mut scratch.whole()[..LEAD + length], at: LEAD };
        let mut events = 0;
        while let Some((header, start)) = delivery.next() {
            events += 1;
            if let Kind::Message { handler } = header.kind {
                // SAFETY: the message lies whole in the bytes, `HOME` bytes behind `start`. The home
                // overwrites bytes of the message before it, which has ended, or the lead. All of it
                // is aligned to 8, since the memory, the lead and every span are. The memory is
                // borrowed by `delivery`, so nothing else writes it; a kept message is a copy.
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

    /// Delivers the large message if it is whole.
    fn deliver_large(&self, running: &mut Running<'_, true>) -> usize {
        let mut rest = self.rest.borrow_mut();
        let Some(large) = rest.large.take_if(|large| large.is_whole()) else { return 1 };
        if self.is_out_of_buffers() {
            rest.large = Some(large);
            drop(rest);
            self.wait_for_buffers();
            return 0;
        }
        rest.after_large = true;
        drop(rest);
        if let Kind::Message { handler } = large.header.kind {
            let start = large.memory.start();
            // SAFETY: the memory holds `LEAD` bytes, the header and the whole message, is aligned to a
            // page, and is owned by this function until the message has ended; a kept message is a copy.
            let message = unsafe {
                write_home(start, self);
                Message::new(start.add(HOME), large.header.length as usize)
            };
            self.dispatch(running, handler, message);
        }
        self.shared.spare_large.set(Some(large.memory));
        1
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

    /// Nothing is read until a kept message is dropped: the peer's messages stay with the system, and then with the peer.
    #[cold]
    fn wait_for_buffers(&self) {
        self.rest.borrow_mut().waits = true;
        let paused = self.messages.borrow_mut().pause(&self.shared.poller, true);
        if let Err(error) = paused {
            self.fail(PendingFailure::of_sending(Operation::Receive, &error.into()));
        }
    }
}

/// Messages being delivered. Dropping it keeps what was not: also when a handler panics.
struct Delivery<'a> {
    state: &'a State,
    bytes: &'a mut [u8],
    /// Where the next header is.
    at: usize,
}

impl Delivery<'_> {
    /// The next message that is whole, and the place in front of it where its keeper is to be noted. It counts as delivered.
    #[inline]
    fn next(&mut self) -> Option<(Header, NonNull<u8>)> {
        let rest = self.bytes.get(self.at..)?;
        let header = *rest.first_chunk::<{ message::HEADER_BYTES }>()?;
        if !self.state.gate.is_alive() {
            // Closed by a handler: nothing more is delivered.
            self.at = self.bytes.len();
            return None;
        }
        let header = match Header::parse(header, MAX_AM as u32) {
            Ok(header) => header,
            Err(error) => {
                let failure =
                    PendingFailure::new(Operation::Receive, Cause::RemoteOperation, error.to_string());
                self.state.fail(failure);
                self.at = self.bytes.len();
                return None;
            }
        };
        if rest.len() < header.span() {
            self.set_large_aside(header);
            return None;
        }
        if self.state.is_out_of_buffers() {
            self.state.wait_for_buffers();
            return None;
        }
        let start = NonNull::new(self.bytes.as_mut_ptr().wrapping_add(self.at - LEAD))?;
        self.at += header.span();
        Some((header, start))
    }

    /// A message that is not whole and does not fit gets a buffer of its own.
    fn set_large_aside(&mut self, header: Header) {
        if header.span() <= LARGE {
            return;
        }
        match Large::begin(&self.state.shared.spare_large, header, &self.bytes[self.at..]) {
            Ok(large) => self.state.rest.borrow_mut().large = Some(large),
            Err(error) => {
                let failure =
                    PendingFailure::new(Operation::Receive, Cause::LocalOperation, error.to_string());
                self.state.fail(failure);
            }
        }
        self.at = self.bytes.len();
    }
}

impl Drop for Delivery<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.at < self.bytes.len() {
            self.state.rest.borrow_mut().bytes.extend_from_slice(&self.bytes[self.at..]);
        }
        if std::thread::panicking() {
            self.state.rest.borrow_mut().waits = true;
            self.state.shared.resume_later(self.state.index);
        }
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
        if self.state.rest.try_borrow().map_or(true, |rest| rest.waits) {
            self.state.shared.resume_later(self.state.index);
        }
    }
}
