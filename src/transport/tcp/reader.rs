//! The receiving side of the message protocol: from the bytes of any [`Source`] to messages.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;

use barewire_tcp::message::{self, Header, MessageError};
use barewire_tcp::region::Region;
use barewire_tcp::socket::Socket;

use super::MAX_AM;
use crate::base::error::MemoryError;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::message::HEADROOM;
use crate::transport::common::pool::Block;

/// Bytes that are read at once.
const READ: usize = 256 << 10;
/// Bytes in front of the first header: a message's data begin [`HEADROOM`] bytes behind the place
/// that names the owner of its buffer.
const LEAD: usize = HEADROOM - message::HEADER_BYTES;
/// Messages that do not fit in this many bytes get a buffer of their own.
const LARGE: usize = 64 << 10;
/// Bytes that are read behind a large message: if another one follows, its data are not read into
/// the scratch memory and copied.
const PEEK: usize = 4 << 10;

/// More messages than handlers may keep.
const HELD: u32 = 1 << 31;

const _: () = assert!(LEAD.is_multiple_of(message::ALIGNMENT), "data are aligned if headers are");

/// A stream of received bytes.
pub(super) trait Source {
    /// Reads into `room`. Returns `None` if there is nothing to read, and zero at the end of the
    /// stream.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>>;

    /// Reads up to `length` bytes into a region, of a source without records. Returns as
    /// [`Self::read`].
    ///
    /// # Errors
    /// `None` if the region is revoked or has no such range.
    fn read_region(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
    ) -> Result<Option<usize>, Option<io::Error>>;

    /// The bytes come in records. A read takes all that is there: epoll does not report the rest of
    /// a record that was read.
    fn has_records(&self) -> bool;
}

impl Source for Socket {
    #[inline]
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(room)
    }

    fn read_region(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
    ) -> Result<Option<usize>, Option<io::Error>> {
        region.receive(offset, length, self)
    }

    #[inline]
    fn has_records(&self) -> bool {
        self.is_protected()
    }
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

    /// Reads up to `most` bytes behind those that are `held`. Returns `None` if there is nothing to
    /// read, and zero at the end of the stream.
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

    /// Drops the first `taken` bytes and moves the next `length` to the front, where they are
    /// aligned.
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

    /// The place [`HEADROOM`] bytes in front of the data, as of [`Next::Whole`].
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
    /// This many bytes are in the scratch memory, and the bytes before them were read into the
    /// large message.
    Large(usize),
}

/// What one connection has received of messages that are not delivered yet.
#[derive(Debug)]
pub(super) struct MessageReader {
    /// The beginning of a message, or messages that wait for buffers.
    held: Vec<u8>,
    /// The beginning of a large message, or a whole one that waits for a buffer.
    large: Option<Large>,
    /// The last message was large.
    follows_large: bool,
    /// Messages that handlers keep, with [`HELD`] if the sender is held, and how many they may keep.
    kept: u32,
    buffers: u32,
    /// Nothing is read until a kept message is dropped.
    is_paused: bool,
    has_read: bool,
}

impl MessageReader {
    /// The reader of a connection whose handlers may keep as many messages as there are `buffers`.
    pub(super) fn new(buffers: u32) -> Self {
        Self {
            held: Vec::new(),
            large: None,
            follows_large: false,
            kept: 0,
            buffers,
            is_paused: false,
            has_read: false,
        }
    }

    /// Reads once, unless it is paused. The messages are then among the bytes of `scratch`, except
    /// a [large](Read::Large) one, which precedes them. Bytes that the caller does not deliver it
    /// has to [hold](Self::hold).
    ///
    /// # Errors
    /// Those of the source.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        scratch: &mut Scratch,
        source: &mut impl Source,
    ) -> io::Result<Read> {
        if self.is_paused {
            return Ok(Read::Nothing);
        }
        if source.has_records() {
            return self.read_records(scratch, source);
        }
        if let Some(large) = &mut self.large {
            return Ok(match large.read(source)? {
                None => Read::Nothing,
                Some(0) => Read::End,
                Some(_) => Read::Large(0),
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
    fn read_records(
        &mut self,
        scratch: &mut Scratch,
        source: &mut impl Source,
    ) -> io::Result<Read> {
        let mut length = match scratch.fill(&self.held, source, READ)? {
            None => return Ok(Read::Nothing),
            Some(0) => return Ok(Read::End),
            Some(count) => self.release(count),
        };
        let Some(large) = &mut self.large else { return Ok(Read::Bytes(length)) };
        let taken = large.take(scratch.bytes(length));
        length -= taken;
        scratch.drop_front(taken, length);
        Ok(Read::Large(length))
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

    /// Discards what was received.
    pub(super) fn clear(&mut self) {
        *self = Self { kept: self.kept, ..Self::new(self.buffers) };
    }

    // Large messages.

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

    /// Nothing may be delivered: handlers keep as many messages as there are buffers, or the sender
    /// is held.
    #[inline]
    pub(super) fn is_out_of_buffers(&self) -> bool {
        self.kept >= self.buffers
    }

    /// A handler keeps a message.
    pub(super) fn keep(&mut self) {
        self.kept += 1;
    }

    /// A kept message was dropped. Returns true if the reader can resume.
    pub(super) fn drop_kept(&mut self) -> bool {
        self.kept -= 1;
        self.is_paused && self.kept & HELD == 0
    }

    /// Delivers and reads nothing until [`Self::let_go`].
    pub(super) fn hold_back(&mut self) {
        self.kept |= HELD;
        self.is_paused = true;
    }

    /// Reverts [`Self::hold_back`]. Returns true if the reader can resume.
    pub(super) fn let_go(&mut self) -> bool {
        self.kept &= !HELD;
        self.is_paused
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Reads nothing until [`Self::resume`].
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// If it was paused, puts the held bytes into `scratch`, and returns as [`Self::read`].
    pub(super) fn resume(&mut self, scratch: &mut Scratch) -> Read {
        if !std::mem::take(&mut self.is_paused) {
            return Read::Nothing;
        }
        let held = std::mem::take(&mut self.held);
        scratch.put(&held);
        if self.large.is_some() { Read::Large(held.len()) } else { Read::Bytes(held.len()) }
    }
}

/// What comes next among [`Messages`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A whole message, and the place [`HEADROOM`] bytes in front of its data, aligned to 8. The
    /// bytes there belong to messages that were taken before.
    Whole(Header, NonNull<u8>),
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
    /// The bytes are not a message.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Result<Next, MessageError> {
        let Some(start) = self.bytes.get_mut(self.at - LEAD..) else { return Ok(Next::Incomplete) };
        let Some(header) = start[LEAD..].first_chunk() else { return Ok(Next::Incomplete) };
        let header = Header::parse(*header, MAX_AM as u32)?;
        Ok(match start.len() - LEAD {
            length if header.span() <= length => Next::Whole(header, NonNull::from(start).cast()),
            _ if header.span() > LARGE => Next::Large(header),
            _ => Next::Incomplete,
        })
    }

    /// Takes the whole message with this header.
    #[inline(always)]
    pub(super) fn take(&mut self, header: Header) {
        self.at += header.span();
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
pub(super) mod tests {
    use std::collections::VecDeque;

    use barewire_tcp::message::Kind;
    use proptest::prelude::*;

    use super::*;

    /// Bytes in pieces.
    pub(in super::super) struct Pieces {
        pub(in super::super) pieces: VecDeque<Vec<u8>>,
        pub(in super::super) records: bool,
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

        fn read_region(
            &mut self,
            region: &Region,
            offset: usize,
            length: usize,
        ) -> Result<Option<usize>, Option<io::Error>> {
            let mut bytes = vec![0; length];
            let count = self.read(&mut bytes)?;
            region.write(offset, &bytes[..count.unwrap_or(0)]).map_err(|_| None)?;
            Ok(count)
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
        // SAFETY: the data lie `HEADROOM` bytes behind `start`, and nothing writes to them during
        // the copy.
        let data = unsafe {
            std::slice::from_raw_parts(start.as_ptr().add(HEADROOM), header.length as usize)
        };
        (handler, data.to_vec())
    }

    /// Reads until there is nothing more.
    fn receive(source: &mut Pieces) -> Result<Vec<(u8, Vec<u8>)>, MessageError> {
        let mut scratch = Scratch::new().unwrap();
        let (mut reader, spare) = (MessageReader::new(1), SpareLarge::default());
        let mut found = Vec::new();
        while let Read::Bytes(length) | Read::Large(length) =
            reader.read(&mut scratch, source).unwrap()
        {
            if let Some(large) = reader.take_large() {
                found.push(copy(large.header(), large.start()));
                spare.set(Some(large.into_memory()));
            }
            let mut messages = scratch.messages(length);
            loop {
                match messages.peek()? {
                    Next::Whole(header, start) => {
                        found.push(copy(header, start));
                        messages.take(header);
                    }
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

    pub(in super::super) fn cut(stream: &[u8], sizes: &[usize]) -> VecDeque<Vec<u8>> {
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
        let messages: Vec<(u8, Vec<u8>)> = lengths
            .iter()
            .enumerate()
            .map(|(id, length)| (id as u8, vec![id as u8; *length]))
            .collect();
        let stream = encode(&messages);
        for records in [false, true] {
            for size in [1000, 16 << 10, 100_003, READ] {
                let pieces = cut(&stream, &[size]);
                assert!(
                    receive(&mut Pieces { pieces, records }).unwrap() == messages,
                    "{size} {records}"
                );
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
        let (mut scratch, mut reader) = (Scratch::new().unwrap(), MessageReader::new(1));
        assert_eq!(reader.resume(&mut scratch), Read::Nothing);
        reader.pause();
        reader.hold(b"later");
        let mut source = Pieces { pieces: VecDeque::from([vec![1]]), records: false };
        assert_eq!(reader.read(&mut scratch, &mut source).unwrap(), Read::Nothing);
        assert_eq!(reader.resume(&mut scratch), Read::Bytes(5));
        assert_eq!(scratch.bytes(5), b"later");
        assert_eq!(reader.read(&mut scratch, &mut source).unwrap(), Read::Bytes(1));
    }

    #[test]
    fn kept_messages_use_up_the_buffers() {
        let mut reader = MessageReader::new(2);
        reader.keep();
        assert!(!reader.is_out_of_buffers());
        reader.keep();
        assert!(reader.is_out_of_buffers());
        assert!(!reader.drop_kept(), "it was not paused");
        reader.keep();
        reader.pause();
        assert!(reader.drop_kept() && !reader.is_out_of_buffers());
        reader.keep();
        reader.clear();
        assert!(reader.is_out_of_buffers() && !reader.is_paused());
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
