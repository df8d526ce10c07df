//! The send queue of a connection: copied bytes, and ranges of memory that are sent without a copy.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use thiserror::Error;

use crate::leftover::{Courier, Leftover};
use crate::region::{Entered, Region};
use crate::socket::{Sent, Socket};

/// Bytes of a buffer.
pub const CAPACITY: usize = 256 << 10;
/// Unused buffers that are kept.
const SPARE: usize = 16;
/// Ranges that one system call sends.
const AT_ONCE: usize = 32;

/// Unused buffers, shared by connections: an idle connection has none.
#[derive(Debug, Default)]
pub struct Spare(RefCell<Vec<Box<[u8]>>>);

impl Spare {
    #[inline]
    pub(crate) fn take(&self) -> Box<[u8]> {
        self.0.borrow_mut().pop().unwrap_or_else(|| vec![0; CAPACITY].into())
    }

    #[inline]
    pub(crate) fn give(&self, buffer: Box<[u8]>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }
}

/// Why a connection cannot send any more.
#[derive(Debug, Error)]
pub enum SendError {
    /// Memory was revoked before it was sent.
    #[error("memory was freed before it was sent")]
    Revoked,
    /// A system call failed, or records cannot be sealed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug)]
enum Item {
    /// The next bytes of the buffer.
    Copied(usize),
    /// A range of a region.
    Range { region: Arc<Region>, offset: usize, length: usize },
}

/// The bytes that wait on one connection, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// `None` while no copied bytes wait.
    buffer: Option<Box<[u8]>>,
    /// The bytes of the buffer that wait.
    head: usize,
    tail: usize,
    /// In order; empty if everything that waits is in the buffer.
    items: VecDeque<Item>,
    /// Bytes of ranges that wait.
    ranges: u64,
    /// Bytes that were ever posted.
    posted: u64,
    /// Bytes that were ever sent.
    sent: u64,
}

impl Outbox {
    /// Nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted == self.sent
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> u64 {
        self.posted - self.sent
    }

    /// Returns whether ranges of memory wait, whose bytes are read when they are sent.
    pub fn has_ranges(&self) -> bool {
        self.ranges > 0
    }

    /// Copied bytes that wait.
    #[inline]
    pub fn copied(&self) -> usize {
        self.tail - self.head
    }

    /// Bytes that were ever posted: the position at which the next ones begin.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Bytes that were ever sent.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns room for `length` bytes, to be filled and [committed](Self::commit), or `None` if
    /// the outbox is full.
    #[inline]
    pub fn room(&mut self, spare: &Spare, length: usize) -> Option<&mut [u8]> {
        if self.buffer.is_none() {
            self.buffer = Some(spare.take());
        }
        let buffer = self.buffer.as_mut()?;
        if buffer.len() - self.tail < length {
            // Only if the front half is free: otherwise a full queue would be moved again and
            // again.
            if self.head < buffer.len() / 2 || buffer.len() - (self.tail - self.head) < length {
                return None;
            }
            buffer.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
        }
        buffer.get_mut(self.tail..self.tail + length)
    }

    /// Returns true if [`Self::room`] for `length` bytes would return `None`.
    pub fn is_crowded(&self, length: usize) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| {
            buffer.len() - self.tail < length
                && (self.head < buffer.len() / 2 || buffer.len() - self.copied() < length)
        })
    }

    /// Posts the first `length` bytes of the [room](Self::room).
    #[inline]
    pub fn commit(&mut self, length: usize) {
        self.tail += length;
        self.posted += length as u64;
        // Without ranges no items are needed.
        if self.ranges > 0 {
            match self.items.back_mut() {
                Some(Item::Copied(count)) => *count += length,
                _ => self.items.push_back(Item::Copied(length)),
            }
        }
    }

    /// Posts a copy of `bytes`. Returns false if there is no room.
    #[inline]
    pub fn push(&mut self, spare: &Spare, bytes: &[u8]) -> bool {
        let Some(room) = self.room(spare, bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.commit(bytes.len());
        true
    }

    /// Posts a range of memory, which is sent without a copy. A range that does not lie inside the
    /// region makes [`Self::flush`] fail.
    pub fn push_range(&mut self, region: Arc<Region>, offset: usize, length: usize) {
        if length == 0 {
            return;
        }
        if self.ranges == 0 && self.tail > self.head {
            self.items.push_back(Item::Copied(self.tail - self.head));
        }
        self.items.push_back(Item::Range { region, offset, length });
        self.ranges += length as u64;
        self.posted += length as u64;
    }

    /// Sends what the socket takes. Returns true once nothing waits.
    ///
    /// # Errors
    /// [`SendError`]; the connection cannot be used any more.
    #[inline]
    pub fn flush(&mut self, socket: &mut Socket, spare: &Spare) -> Result<bool, SendError> {
        if socket.is_protected() {
            return self.flush_records(socket, spare);
        }
        while !self.is_empty() {
            let count = if self.ranges == 0 {
                let Some(buffer) = &self.buffer else { break };
                socket.send(&buffer[self.head..self.tail])?
            } else {
                self.send_items(socket, spare)?
            };
            if count == 0 {
                return Ok(false);
            }
            self.take(count);
        }
        self.is_sent(spare);
        Ok(true)
    }

    /// As [`Self::flush`], in records. Sealed bytes wait until they are sent.
    #[inline(never)]
    fn flush_records(&mut self, socket: &mut Socket, spare: &Spare) -> Result<bool, SendError> {
        while !self.is_empty() {
            match socket.send_records(spare)? {
                Sent::Full => return Ok(false),
                Sent::All(0) => match socket.seal() {
                    Some(seal) => seal.begin(spare, |skip, room| self.copy(skip, room))?,
                    None => break,
                },
                Sent::All(payload) => self.take(payload),
            }
        }
        self.is_sent(spare);
        Ok(true)
    }

    /// Lets the thread of `courier` send the copied bytes that `socket` did not take, if the process
    /// makes no progress. Until [`Self::settle`] has returned `true`, nothing else may be sent.
    /// Returns `None` if nothing waits, ranges of memory wait, or there is no descriptor left.
    pub fn leave(&self, courier: &Courier, socket: &Socket) -> Option<Leftover> {
        if self.is_empty() || self.has_ranges() {
            return None;
        }
        let bytes = match socket.sending() {
            Some(records) => records,
            None if socket.is_protected() => return None,
            None => self.buffer.as_deref()?.get(self.head..self.tail)?,
        };
        courier.give(socket, bytes)
    }

    /// Sends what the kernel takes of a leftover, and counts what was sent. Returns whether all of it
    /// was.
    pub fn settle(&mut self, leftover: &mut Leftover, socket: &mut Socket, spare: &Spare) -> bool {
        let (count, is_done) = leftover.send();
        let payload = match socket.seal() {
            Some(seal) if count > 0 => seal.sent(count, spare).unwrap_or(0),
            Some(_) => 0,
            None => count,
        };
        self.take(payload);
        is_done
    }

    fn is_sent(&mut self, spare: &Spare) {
        self.head = 0;
        self.tail = 0;
        if let Some(buffer) = self.buffer.take() {
            spare.give(buffer);
        }
    }

    /// Copies waiting bytes, without the first `skip`, to the front of `room`. Returns how many.
    pub fn copy(&self, mut skip: usize, room: &mut [u8]) -> Result<usize, SendError> {
        let buffer = self.buffer.as_deref().unwrap_or_default();
        if self.ranges == 0 {
            let waiting = &buffer[(self.head + skip).min(self.tail)..self.tail];
            let count = waiting.len().min(room.len());
            room[..count].copy_from_slice(&waiting[..count]);
            return Ok(count);
        }
        let (mut at, mut done) = (self.head, 0);
        for item in &self.items {
            let (Item::Copied(length) | Item::Range { length, .. }) = item;
            let from = skip.min(*length);
            skip -= from;
            let count = (length - from).min(room.len() - done);
            let place = &mut room[done..done + count];
            match item {
                Item::Copied(length) => {
                    place.copy_from_slice(&buffer[at + from..at + from + count]);
                    at += length;
                }
                Item::Range { region, offset, .. } => {
                    region.read(offset + from, place).map_err(|_| SendError::Revoked)?;
                }
            }
            done += count;
            if done == room.len() {
                break;
            }
        }
        Ok(done)
    }

    fn send_items(&self, socket: &Socket, spare: &Spare) -> Result<usize, SendError> {
        if let Some(Item::Range { region, offset, length }) = self.items.front()
            && !region.is_contiguous()
        {
            return send_copy(socket, spare, region, *offset, *length);
        }
        let mut entered: Vec<Option<Entered<'_>>> = Vec::new();
        let mut is_first = true;
        for item in self.items.iter().take(AT_ONCE) {
            let next = match item {
                Item::Copied(_) => None,
                Item::Range { region, .. } if !region.is_contiguous() => break,
                Item::Range { region, .. } if is_first => {
                    is_first = false;
                    Some(region.enter().ok_or(SendError::Revoked)?)
                }
                // A revocation may wait for the regions that are entered already, so this does not
                // wait for one. What is not sent now is entered first the next time.
                Item::Range { region, .. } => match region.try_enter() {
                    Some(next) => Some(next),
                    None => break,
                },
            };
            entered.push(next);
        }
        let buffer = self.buffer.as_deref().unwrap_or_default();
        let mut at = self.head;
        let mut slices = Vec::with_capacity(entered.len());
        for (item, entered) in self.items.iter().zip(&entered) {
            slices.push(match (item, entered) {
                (Item::Range { offset, length, .. }, Some(entered)) => {
                    entered.source(*offset, *length)?
                }
                (Item::Copied(length), _) => {
                    at += length;
                    IoSlice::new(&buffer[at - length..at])
                }
                (Item::Range { .. }, None) => return Err(SendError::Revoked),
            });
        }
        Ok(socket.send_vectored(&slices)?)
    }

    /// The first `count` bytes were sent.
    fn take(&mut self, mut count: usize) {
        self.sent += count as u64;
        if self.ranges == 0 {
            self.head += count;
            return;
        }
        while count > 0 {
            let Some(item) = self.items.front_mut() else { break };
            let part = match item {
                Item::Copied(length) => {
                    let part = count.min(*length);
                    *length -= part;
                    self.head += part;
                    part
                }
                Item::Range { offset, length, .. } => {
                    let part = count.min(*length);
                    *offset += part;
                    *length -= part;
                    self.ranges -= part as u64;
                    part
                }
            };
            count -= part;
            if matches!(item, Item::Copied(0) | Item::Range { length: 0, .. }) {
                self.items.pop_front();
            }
        }
        if self.ranges == 0 {
            self.items.clear();
        }
    }

    /// Discards what waits, and returns the buffer to `spare`.
    pub fn clear(&mut self, spare: &Spare) {
        self.items.clear();
        self.ranges = 0;
        self.head = 0;
        self.tail = 0;
        self.sent = self.posted;
        if let Some(buffer) = self.buffer.take() {
            spare.give(buffer);
        }
    }
}

/// Sends a range of a region that is not contiguous, or the first part of it, from a buffer.
#[cold]
fn send_copy(
    socket: &Socket,
    spare: &Spare,
    region: &Region,
    offset: usize,
    length: usize,
) -> Result<usize, SendError> {
    let mut buffer = spare.take();
    let copied = &mut buffer[..length.min(CAPACITY)];
    let sent = match region.read(offset, copied) {
        Ok(()) => socket.send(copied).map_err(SendError::Io),
        Err(_) => Err(SendError::Revoked),
    };
    spare.give(buffer);
    sent
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use barewire_shared_bytes::{Layout, LayoutRange};

    use super::*;
    use crate::region::tests::owned;

    const DEADLINE: Duration = Duration::from_mins(1);

    /// A socket whose peer receives nothing.
    fn socket(listener: &TcpListener) -> Socket {
        let peer = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(peer).unwrap();
        Socket::new(stream.into(), peer, DEADLINE, None).unwrap()
    }

    /// A thread sends many ranges of one region, or of one region and parts of it, while another
    /// thread revokes the region.
    #[test]
    fn a_batch_does_not_wait_for_the_revocation_of_its_own_region() {
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = Arc::new(socket(&listener));
            for round in 0..1000 {
                let whole = Arc::new(owned(4096));
                let part = Arc::new(Region::part(&whole, 0..4096, whole.rights()));
                let mut outbox = Outbox::default();
                for index in 0..AT_ONCE {
                    let part = if round % 2 == 0 || index % 2 == 0 { &whole } else { &part };
                    outbox.push_range(Arc::clone(part), 64 * index, 64);
                }
                let (socket, begun) = (Arc::clone(&socket), Arc::new(AtomicBool::new(false)));
                let sender = thread::spawn({
                    let begun = Arc::clone(&begun);
                    move || {
                        begun.store(true, Ordering::Release);
                        let spare = Spare::default();
                        let error = loop {
                            if let Err(error) = outbox.send_items(&socket, &spare) {
                                break error;
                            }
                        };
                        assert!(matches!(error, SendError::Revoked), "{error}");
                    }
                });
                while !begun.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                whole.revoke();
                sender.join().unwrap();
            }
            done.send(()).unwrap();
        });
        finished.recv_timeout(DEADLINE).expect("the sender and the revocation wait for each other");
    }

    #[test]
    fn a_list_is_sent_behind_copied_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut socket, spare) = (socket(&listener), Spare::default());
        let (mut receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(DEADLINE)).unwrap();
        let memory = Arc::new(owned(64));
        memory.write(0, b"abcdefghijkl").unwrap();
        let ranges =
            vec![LayoutRange { memory: Arc::clone(&memory), offset: 1, bytes: 2, stride: 4 }];
        let list = Region::list(Layout::new(ranges, 3).unwrap(), memory.rights());
        let mut outbox = Outbox::default();
        assert!(outbox.push(&spare, b"copied "));
        outbox.push_range(memory, 0, 3);
        outbox.push_range(Arc::new(list), 0, 6);
        assert!(outbox.flush(&mut socket, &spare).unwrap());
        let mut received = [0; 16];
        std::io::Read::read_exact(&mut receiver, &mut received).unwrap();
        assert_eq!(&received, b"copied abcbcfgjk");
    }

    #[test]
    fn a_revoked_range_is_not_sent_and_those_before_it_are() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut socket, spare) = (socket(&listener), Spare::default());
        let (live, revoked) = (Arc::new(owned(64)), Arc::new(owned(64)));
        revoked.revoke();
        let mut outbox = Outbox::default();
        assert!(outbox.push(&spare, b"copied"));
        outbox.push_range(live, 0, 64);
        outbox.push_range(revoked, 0, 64);
        let error = outbox.flush(&mut socket, &spare).unwrap_err();
        assert!(matches!(error, SendError::Revoked), "{error}");
        assert_eq!((outbox.sent(), outbox.waiting()), (70, 64));
    }
}
