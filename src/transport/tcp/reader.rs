//! The receiving side of the message protocol: from bytes to messages. It knows no endpoint, and reads
//! from any [`Source`].

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;

use barewire_tcp::message::{self, Header, MessageError};

use super::MAX_AM;
use crate::error::MemoryError;
use crate::message::HOME;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::pool::Block;

/// Bytes that are read at once.
const READ: usize = 256 << 10;
/// Bytes in front of the first header: the data of a message begin [`HOME`] bytes behind the place where
/// the owner of its buffer is noted.
const LEAD: usize = HOME - message::HEADER_BYTES;
/// Messages that do not fit in this many bytes get a buffer of their own.
const LARGE: usize = 64 << 10;
/// Bytes that are read behind a large message: if another one follows, its data are not read into the
/// scratch memory and copied.
const PEEK: usize = 4 << 10;

const _: () = assert!(LEAD.is_multiple_of(message::ALIGNMENT), "data are aligned if headers are");

/// Where bytes come from.
pub(super) trait Source {
    /// Reads into `room`. Returns `None` if there is nothing to read, and zero at the end of the stream.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>>;

    /// The bytes come in records. All that is there is read at once: epoll does not report the rest of a
    /// record that was read.
    fn has_records(&self) -> bool;
}

/// Memory into which one connection at a time is read.
#[derive(Debug)]
pub(super) struct Scratch(Allocation);

impl Scratch {
    pub(super) fn new() -> Result<Self, MemoryError> {
        // A message that begins in one read may end in the next.
        Allocation::new(LEAD + READ + LARGE).map(Self)
    }

    fn whole(&mut self) -> &mut [u8] {
        whole(&mut self.0)
    }

    /// Reads up to `most` bytes behind those that are `held`. Returns `None` if there is nothing to read,
    /// and zero at the end of the stream.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        held: &[u8],
        source: &mut impl Source,
        most: usize,
    ) -> io::Result<Option<usize>> {
        let (before, room) = self.whole()[LEAD..].split_at_mut(held.len());
        let most = most.min(room.len()).min(READ);
        let count = source.read(&mut room[..most])?;
        if count.is_some() {
            before.copy_from_slice(held);
        }
        Ok(count)
    }

    /// The first `length` bytes that were held and read.
    pub(super) fn bytes(&mut self, length: usize) -> &[u8] {
        &self.whole()[LEAD..LEAD + length]
    }

    /// Replaces the bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.whole()[LEAD..LEAD + bytes.len()].copy_from_slice(bytes);
    }

    /// Drops the first `taken` bytes and moves the next `length` to the front, where they are aligned.
    fn drop_front(&mut self, taken: usize, length: usize) {
        self.whole().copy_within(LEAD + taken..LEAD + taken + length, LEAD);
    }

    /// The messages in the first `length` bytes.
    #[inline(always)]
    pub(super) fn messages(&mut self, length: usize) -> Messages<'_> {
        Messages { bytes: &mut self.whole()[..LEAD + length], at: LEAD }
    }
}

#[inline]
fn whole(memory: &mut Allocation) -> &mut [u8] {
    // SAFETY: `start` and `len` are those of initialised memory that the allocation owns, and the
    // allocation is borrowed mutably for as long as the slice lives.
    unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), memory.len()) }
}

/// The buffer of the last large message, for the next one: its pages are mapped already.
pub(super) type SpareLarge = Cell<Option<Allocation>>;

/// A large message, in memory of its own.
#[derive(Debug)]
pub(super) struct Large {
    memory: Allocation,
    header: Header,
    /// Bytes that were read, header included.
    filled: usize,
}

impl Large {
    fn read(&mut self, source: &mut impl Source) -> io::Result<Option<usize>> {
        let room = LEAD + self.filled..LEAD + self.header.span();
        let count = source.read(&mut whole(&mut self.memory)[room])?;
        self.filled += count.unwrap_or(0);
        Ok(count)
    }

    /// Copies the bytes that belong to the message from the front of `bytes`, and returns how many.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.header.span() - self.filled);
        whole(&mut self.memory)[LEAD + self.filled..][..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        count
    }

    fn is_whole(&self) -> bool {
        self.filled == self.header.span()
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    /// The place [`HOME`] bytes in front of the data, as of [`Messages::take`].
    pub(super) fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    pub(super) fn into_memory(self) -> Allocation {
        self.memory
    }
}

/// What [`MessageReader::read`] did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// There is nothing to read.
    Nothing,
    /// The stream has ended.
    End,
    /// This many bytes are in the scratch memory.
    Bytes(usize),
}

/// What one connection has of messages that are not delivered yet.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    /// The beginning of a message, or messages that wait for buffers.
    held: Vec<u8>,
    /// The beginning of a large message, or a whole one that waits for a buffer.
    large: Option<Large>,
    /// The last message was large.
    follows_large: bool,
    /// Handlers keep as many messages as there are buffers: nothing is read.
    is_paused: bool,
    has_read: bool,
}

impl MessageReader {
    /// Reads once. The messages are then among the bytes of `scratch`, except a [large](Self::has_large)
    /// one, which is in front of them. Bytes that the caller does not deliver it has to
    /// [hold](Self::hold).
    ///
    /// # Errors
    /// Those of the source.
    #[inline(always)]
    pub(super) fn read(&mut self, scratch: &mut Scratch, source: &mut impl Source) -> io::Result<Read> {
        if source.has_records() {
            return self.read_records(scratch, source);
        }
        if let Some(large) = &mut self.large {
            return Ok(match large.read(source)? {
                None => Read::Nothing,
                Some(0) => Read::End,
                Some(_) => Read::Bytes(0),
            });
        }
        let most = if self.follows_large { PEEK } else { READ };
        Ok(match scratch.fill(&self.held, source, most)? {
            None => Read::Nothing,
            Some(0) => Read::End,
            Some(count) => {
                self.follows_large = false;
                Read::Bytes(self.release(count))
            }
        })
    }

    #[inline(never)]
    fn read_records(&mut self, scratch: &mut Scratch, source: &mut impl Source) -> io::Result<Read> {
        let mut length = match scratch.fill(&self.held, source, READ)? {
            None => return Ok(Read::Nothing),
            Some(0) => return Ok(Read::End),
            Some(count) => self.release(count),
        };
        if let Some(large) = &mut self.large {
            let taken = large.take(scratch.bytes(length));
            length -= taken;
            scratch.drop_front(taken, length);
        }
        Ok(Read::Bytes(length))
    }

    /// The held bytes and `count` more are in the scratch memory. Returns how many these are.
    #[inline(always)]
    fn release(&mut self, count: usize) -> usize {
        let length = self.held.len() + count;
        self.has_read = true;
        self.held.clear();
        length
    }

    /// Bytes were read at some time.
    pub(super) fn has_read(&self) -> bool {
        self.has_read
    }

    /// Keeps bytes that were not delivered for the next read.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    // Large messages.

    #[inline]
    pub(super) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    /// Begins a large message with its first bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn begin_large(
        &mut self,
        spare: &SpareLarge,
        header: Header,
        bytes: &[u8],
    ) -> Result<(), MemoryError> {
        let memory = match spare.take() {
            Some(memory) => memory,
            None => Allocation::new(LEAD + Header::message(0, MAX_AM as u32).span())?,
        };
        let mut large = Large { memory, header, filled: 0 };
        large.take(bytes);
        self.large = Some(large);
        Ok(())
    }

    /// Returns the large message if it is whole.
    pub(super) fn take_large(&mut self) -> Option<Large> {
        let large = self.large.take_if(|large| large.is_whole());
        self.follows_large |= large.is_some();
        large
    }

    /// Puts a large message back that has to wait for a buffer.
    pub(super) fn put_back(&mut self, large: Large) {
        self.large = Some(large);
    }

    // Waiting for buffers.

    #[inline]
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Returns the held bytes if it was paused, and is so no more.
    pub(super) fn resume(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.is_paused).then(|| std::mem::take(&mut self.held))
    }
}

/// What comes next among [`Messages`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A whole message.
    Whole(Header),
    /// The beginning of a message for [`MessageReader::begin_large`].
    Large(Header),
    /// The beginning of another message, or nothing.
    Incomplete,
}

/// The messages in the scratch memory, in order.
#[derive(Debug)]
pub(super) struct Messages<'a> {
    bytes: &'a mut [u8],
    /// The next header.
    at: usize,
}

impl Messages<'_> {
    /// # Errors
    /// The peer does not send messages.
    #[inline(always)]
    pub(super) fn peek(&self) -> Result<Next, MessageError> {
        let rest = self.rest();
        let Some(header) = rest.first_chunk() else { return Ok(Next::Incomplete) };
        let header = Header::parse(*header, MAX_AM as u32)?;
        Ok(match () {
            () if header.span() <= rest.len() => Next::Whole(header),
            () if header.span() > LARGE => Next::Large(header),
            () => Next::Incomplete,
        })
    }

    /// Takes the whole message with this header. Returns the place [`HOME`] bytes in front of its data,
    /// aligned to 8. What is there belongs to messages that were taken before.
    #[inline(always)]
    pub(super) fn take(&mut self, header: Header) -> NonNull<u8> {
        let start = NonNull::from(&mut self.bytes[self.at - LEAD..]).cast();
        self.at += header.span();
        start
    }

    /// The bytes that are not taken.
    #[inline]
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Takes all bytes.
    pub(super) fn discard(&mut self) {
        self.at = self.bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use barewire_tcp::message::Kind;
    use proptest::prelude::*;

    use super::*;

    /// Bytes in pieces.
    struct Pieces {
        pieces: VecDeque<Vec<u8>>,
        records: bool,
    }

    impl Source for Pieces {
        fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
            let Some(piece) = self.pieces.front_mut() else { return Ok(None) };
            let count = piece.len().min(room.len());
            room[..count].copy_from_slice(&piece[..count]);
            piece.drain(..count);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            Ok(Some(count))
        }

        fn has_records(&self) -> bool {
            self.records
        }
    }

    fn encode(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut stream = Vec::new();
        for (id, data) in messages {
            stream.extend(Header::message(*id, data.len() as u32).to_bytes());
            stream.extend(data);
            stream.resize(stream.len().next_multiple_of(message::ALIGNMENT), 0);
        }
        stream
    }

    fn copy(header: Header, start: NonNull<u8>) -> (u8, Vec<u8>) {
        let Kind::Message { handler } = header.kind else { panic!("{header:?}") };
        assert!(start.as_ptr().addr().is_multiple_of(8));
        // SAFETY: the data lie `HOME` bytes behind `start`, and nothing writes to them during the copy.
        let data = unsafe { std::slice::from_raw_parts(start.as_ptr().add(HOME), header.length as usize) };
        (handler, data.to_vec())
    }

    /// Reads until there is nothing more.
    fn receive(source: &mut Pieces) -> Result<Vec<(u8, Vec<u8>)>, MessageError> {
        let mut scratch = Scratch::new().unwrap();
        let (mut reader, spare) = (MessageReader::default(), SpareLarge::default());
        let mut found = Vec::new();
        while let Read::Bytes(length) = reader.read(&mut scratch, source).unwrap() {
            if let Some(large) = reader.take_large() {
                found.push(copy(large.header(), large.start()));
                spare.set(Some(large.into_memory()));
            }
            let mut messages = scratch.messages(length);
            loop {
                match messages.peek()? {
                    Next::Whole(header) => found.push(copy(header, messages.take(header))),
                    Next::Large(header) => {
                        reader.begin_large(&spare, header, messages.rest()).unwrap();
                        messages.discard();
                        break;
                    }
                    Next::Incomplete => break,
                }
            }
            reader.hold(messages.rest());
        }
        Ok(found)
    }

    fn cut(stream: &[u8], sizes: &[usize]) -> VecDeque<Vec<u8>> {
        let (mut rest, mut pieces, mut sizes) = (stream, VecDeque::new(), sizes.iter().cycle());
        while !rest.is_empty() {
            let size = sizes.next().map_or(rest.len(), |size| rest.len().min(*size));
            pieces.push_back(rest[..size].to_vec());
            rest = &rest[size..];
        }
        pieces
    }

    #[test]
    fn the_largest_messages_arrive_in_any_pieces() {
        let lengths = [MAX_AM, 0, LARGE, LARGE - message::HEADER_BYTES, MAX_AM, MAX_AM - 1, 5];
        let messages: Vec<(u8, Vec<u8>)> =
            lengths.iter().enumerate().map(|(id, length)| (id as u8, vec![id as u8; *length])).collect();
        let stream = encode(&messages);
        for records in [false, true] {
            for size in [1000, 16 << 10, 100_003, READ] {
                let pieces = cut(&stream, &[size]);
                assert!(receive(&mut Pieces { pieces, records }).unwrap() == messages, "{size} {records}");
            }
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let mut stream = encode(&[(1, vec![1; 8])]);
        stream.extend([0xff; 16]);
        assert!(receive(&mut Pieces { pieces: cut(&stream, &[]), records: false }).is_err());
    }

    #[test]
    fn held_bytes_come_back_when_it_resumes() {
        let mut reader = MessageReader::default();
        assert_eq!(reader.resume(), None);
        reader.pause();
        reader.hold(b"later");
        assert!(reader.is_paused());
        assert_eq!(reader.resume().as_deref(), Some(&b"later"[..]));
        assert!(!reader.is_paused());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn messages_arrive_in_any_pieces(
            messages in proptest::collection::vec(
                (0u8..32, proptest::collection::vec(any::<u8>(), 0..300)), 0..20,
            ),
            sizes in proptest::collection::vec(1usize..200, 1..10),
            records: bool,
        ) {
            let pieces = cut(&encode(&messages), &sizes);
            prop_assert_eq!(receive(&mut Pieces { pieces, records }).unwrap(), messages);
        }
    }
}
