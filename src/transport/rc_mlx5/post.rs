//! Posting: what each operation makes of its arguments.

use std::hint::cold_path;

use barewire_mlx5 as mlx5;
use barewire_mlx5::queue::send::PREFIX;
use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment, SendQueue, WqeIndex};

use super::domain::{Registered, RemoteKey};
use super::endpoint::Endpoint;
use super::operation::{Done, InFlight};
use super::{
    AM_HEADER, BUFFER, DATA, MAX_AM, MAX_AM_HEADER, MAX_AM_SHORT, MAX_AM_SLICES, MAX_PUT_SHORT,
    MAX_RMA_SLICES, MESSAGE, SEGMENT,
};
use crate::active_message::MAX_HANDLERS;
use crate::completion::{Completion, FetchResult, Unpack};
use crate::error::PostError;
use crate::memory::Slice;
use crate::pool::Buffer;
use crate::status::{Post, Posted};

impl Endpoint {
    /// Writes `payload` to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        // A word stays in registers; the other sizes are out of the way.
        match payload.try_into() {
            Ok(word) => {
                self.0.gate.check()?;
                let remote = RemoteAddressSegment::new(remote, key.0);
                self.post_sized(|queue| queue.write_inline_8(word, remote, NO_FLAGS))?;
                Ok(Posted::Done)
            }
            Err(_) => match payload.try_into() {
                Ok(line) => {
                    if self.put_line(line, remote, key.0) {
                        Ok(Posted::Done)
                    } else {
                        Err(self.refusal())
                    }
                }
                Err(_) => self.put_short_other(payload, remote, key.0),
            },
        }
    }

    /// `put_short` of a cache line; `false` if it was refused.
    #[inline(never)]
    fn put_line(&self, line: &[u8; 64], remote: u64, key: u32) -> bool {
        let remote = RemoteAddressSegment::new(remote, key);
        self.0.gate.check().is_ok()
            && self.0.post(|queue| queue.write_inline_64(line, remote, NO_FLAGS)).is_ok()
    }

    #[cold]
    fn refusal(&self) -> PostError {
        self.0.gate.check().err().unwrap_or(PostError::NoResource)
    }

    #[inline(never)]
    fn put_short_other(&self, payload: &[u8], remote: u64, key: u32) -> Post {
        self.0.gate.check()?;
        if payload.len() > MAX_PUT_SHORT {
            return Err(PostError::too_long(payload.len(), MAX_PUT_SHORT));
        }
        let remote = RemoteAddressSegment::new(remote, key);
        self.post_sized(|queue| queue.write_inline(payload, remote, NO_FLAGS))?;
        Ok(Posted::Done)
    }

    /// Lets `pack` fill a buffer and writes as many bytes as it says to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        let (buffer, length) = self.pack(SEGMENT, pack)?;
        let local = self.in_buffer(&buffer, DATA, length);
        let remote = RemoteAddressSegment::new(remote, key.0);
        let index = self.post_sized(|queue| queue.write(local, remote, NO_FLAGS))?;
        let done = Done::Release { buffer: buffer.into_lease() };
        self.await_done(index, done);
        Ok(length)
    }

    /// Writes the slices, one after the other, to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        let limit = self.0.shared.attributes.put.max_zcopy;
        let remote = RemoteAddressSegment::new(remote, key.0);
        if let [slice] = slices {
            let local = self.segment(slice, limit)?;
            return self.zcopy(completion, |queue, flags| queue.write(local, remote, flags));
        }
        self.put_gather(slices, remote, completion)
    }

    #[inline(never)]
    fn put_gather(
        &self,
        slices: &[Slice<'_>],
        remote: RemoteAddressSegment,
        completion: Option<&Completion>,
    ) -> Post {
        let mut local = [EMPTY; MAX_RMA_SLICES];
        let local = self.segments(&mut local, slices, self.0.shared.attributes.put.max_zcopy)?;
        self.zcopy(completion, |queue, flags| queue.write_gather(local, remote, flags))
    }

    /// Reads `length` bytes at `remote`; progress gives them to `unpack`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        let buffer = self.0.shared.buffers.take().ok_or(PostError::NoResource)?;
        let local = self.in_buffer(&buffer, DATA, length);
        let remote = RemoteAddressSegment::new(remote, key.0);
        let index = self.post_sized(|queue| queue.read(local, remote, ControlFlags::COMPLETION))?;
        let done = Done::Unpack {
            buffer: buffer.into_lease(),
            length: length as u32,
            unpack: unpack.clone(),
            completion: completion.cloned(),
        };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }

    /// Reads from `remote` into the slices, one after the other.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        let limit = self.0.shared.attributes.get.max_zcopy;
        let remote = RemoteAddressSegment::new(remote, key.0);
        if let [slice] = slices {
            let local = self.segment(slice, limit)?;
            return self.zcopy(completion, |queue, flags| queue.read(local, remote, flags));
        }
        self.get_scatter(slices, remote, completion)
    }

    #[inline(never)]
    fn get_scatter(
        &self,
        slices: &[Slice<'_>],
        remote: RemoteAddressSegment,
        completion: Option<&Completion>,
    ) -> Post {
        let mut local = [EMPTY; MAX_RMA_SLICES];
        let local = self.segments(&mut local, slices, self.0.shared.attributes.get.max_zcopy)?;
        self.zcopy(completion, |queue, flags| queue.read_scatter(local, remote, flags))
    }

    /// Sends `header` and `payload` to the peer's handler `id`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Post {
        self.0.gate.check()?;
        check_id(id)?;
        let prefix = am_prefix(id, header);
        match payload.try_into() {
            Ok(word) => {
                self.post_sized(|queue| queue.send_inline_prefixed_8(prefix, word, NO_FLAGS))?;
                Ok(Posted::Done)
            }
            Err(_) => self.am_short_other(id, header, payload),
        }
    }

    #[inline(never)]
    fn am_short_other(&self, id: u8, header: u64, payload: &[u8]) -> Post {
        if payload.len() > MAX_AM_SHORT {
            return Err(PostError::too_long(payload.len(), MAX_AM_SHORT));
        }
        self.post_sized(|queue| queue.send_inline_prefixed(am_prefix(id, header), payload, NO_FLAGS))?;
        Ok(Posted::Done)
    }

    /// Lets `pack` fill a buffer and sends as many bytes as it says to the peer's handler `id`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        check_id(id)?;
        let (mut buffer, length) = self.pack(MAX_AM, pack)?;
        *am_header(buffer.bytes()) = [id, 0, 0, 0];
        let local = self.in_buffer(&buffer, MESSAGE, AM_HEADER + length);
        let index = self.post_sized(|queue| queue.send(local, NO_FLAGS))?;
        let done = Done::Release { buffer: buffer.into_lease() };
        self.await_done(index, done);
        Ok(length)
    }

    /// Sends `header` followed by the slices to the peer's handler `id`. The header is copied.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        check_id(id)?;
        if header.len() > MAX_AM_HEADER {
            return Err(PostError::too_long(header.len(), MAX_AM_HEADER));
        }
        if let [slice] = slices {
            let local = self.segment(slice, MAX_AM - header.len())?;
            let (buffer, header) = self.header_buffer(id, header)?;
            return self
                .am_segments(buffer, completion, |queue, flags| queue.send_pair(header, local, flags));
        }
        self.am_gather(id, header, slices, completion)
    }

    #[inline(never)]
    fn am_gather(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        // The first segment is the header's.
        let mut local = [EMPTY; 1 + MAX_AM_SLICES];
        let [first, rest @ ..] = &mut local;
        let count = 1 + self.segments(rest, slices, MAX_AM.saturating_sub(header.len()))?.len();
        let (buffer, header) = self.header_buffer(id, header)?;
        *first = header;
        let local = local.get(..count).unwrap_or(&local);
        self.am_segments(buffer, completion, |queue, flags| queue.send_gather(local, flags))
    }

    /// A buffer with the header of a message to handler `id`, and its segment.
    #[inline(always)]
    fn header_buffer(&self, id: u8, header: &[u8]) -> Result<(PooledBuffer<'_>, DataSegment), PostError> {
        let mut buffer = self.0.shared.buffers.take().ok_or(PostError::NoResource)?;
        self.signal_if_last();
        *am_header(buffer.bytes()) = [id, 0, 0, 0];
        if let Some(place) = buffer.bytes()[DATA..].get_mut(..header.len()) {
            place.copy_from_slice(header);
        }
        let segment = self.in_buffer(&buffer, MESSAGE, AM_HEADER + header.len());
        Ok((buffer, segment))
    }

    #[inline(always)]
    fn am_segments(
        &self,
        buffer: PooledBuffer<'_>,
        completion: Option<&Completion>,
        run: impl Fn(&mut SendQueue, ControlFlags) -> Posting,
    ) -> Post {
        let Some(completion) = completion else {
            let index = self.post_sized(|queue| run(queue, NO_FLAGS))?;
            self.await_done(index, Done::Release { buffer: buffer.into_lease() });
            return Ok(Posted::InProgress);
        };
        let index = self.post_sized(|queue| run(queue, ControlFlags::COMPLETION))?;
        let buffer = buffer.into_lease();
        self.await_done(index, Done::ReleaseNotify { buffer, completion: completion.clone() });
        Ok(Posted::InProgress)
    }

    /// Adds `operand` to the word at `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        self.0.gate.check()?;
        let remote = atomic_target(remote, *key)?;
        let local = self.0.unwanted_result();
        self.post_sized(|queue| queue.fetch_add(local, remote, operand, NO_FLAGS))?;
        Ok(Posted::Done)
    }

    /// Adds `operand` to the word at `remote` and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn atomic_fetch_add64(
        &self,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.fetch(remote, *key, result, completion, |queue, local, remote, flags| {
            queue.fetch_add(local, remote, operand, flags)
        })
    }

    /// Stores `swap` at `remote` if `compare` is there, and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.fetch(remote, *key, result, completion, |queue, local, remote, flags| {
            queue.compare_swap(local, remote, compare, swap, flags)
        })
    }
}

type PooledBuffer<'a> = Buffer<'a, Registered, BUFFER>;
type Posting = Result<WqeIndex, mlx5::PostError>;

/// What the operations are made of.
impl Endpoint {
    /// Lets `pack` fill a buffer; nothing is taken if nothing could be posted.
    #[inline(always)]
    fn pack(
        &self,
        limit: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(PooledBuffer<'_>, usize), PostError> {
        let state = &*self.0;
        state.gate.check()?;
        if !state.has_room() {
            return Err(PostError::NoResource);
        }
        let mut buffer = state.shared.buffers.take().ok_or(PostError::NoResource)?;
        self.signal_if_last();
        let data = &mut buffer.bytes()[DATA..DATA + SEGMENT];
        let length = pack(data.get_mut(..limit).unwrap_or_default());
        if length > limit {
            return Err(PostError::too_long(length, limit));
        }
        // The user's function may have posted, failed or closed this endpoint.
        state.gate.check()?;
        Ok((buffer, length))
    }

    /// `length` bytes at `offset` of a buffer.
    #[inline(always)]
    fn in_buffer(&self, buffer: &PooledBuffer<'_>, offset: usize, length: usize) -> DataSegment {
        DataSegment::new(buffer.address() + offset as u64, length as u32, self.0.shared.buffers_key)
    }

    /// Whoever took the last buffer asks for a completion, so that buffers come back.
    #[inline(always)]
    fn signal_if_last(&self) {
        if self.0.shared.buffers.is_empty() {
            cold_path();
            self.0.with_pair(|pair| pair.send.request_completion());
        }
    }

    /// Posts what was found to be within the limits, so that a refusal means a full queue.
    #[inline(always)]
    fn post_sized(&self, run: impl FnOnce(&mut SendQueue) -> Posting) -> Result<u16, PostError> {
        self.0.post(run).map_err(|_| PostError::NoResource)
    }

    /// Posts from the user's memory.
    #[inline(always)]
    fn zcopy(
        &self,
        completion: Option<&Completion>,
        run: impl Fn(&mut SendQueue, ControlFlags) -> Posting,
    ) -> Post {
        let Some(completion) = completion else {
            self.post_sized(|queue| run(queue, NO_FLAGS))?;
            return Ok(Posted::InProgress);
        };
        let index = self.post_sized(|queue| run(queue, ControlFlags::COMPLETION))?;
        self.await_done(index, Done::Notify(completion.clone()));
        Ok(Posted::InProgress)
    }

    #[inline(always)]
    fn fetch(
        &self,
        remote: u64,
        key: RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
        run: impl FnOnce(&mut SendQueue, DataSegment, RemoteAddressSegment, ControlFlags) -> Posting,
    ) -> Post {
        self.0.gate.check()?;
        let remote = atomic_target(remote, key)?;
        let local = self.0.next_result();
        let index = self.post_sized(|queue| run(queue, local, remote, ControlFlags::COMPLETION))?;
        let done = Done::Fetch { result: result.clone(), completion: completion.cloned() };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }

    /// Remembers what is to be done once the WQE at `index` is done.
    #[inline(always)]
    fn await_done(&self, index: u16, done: Done) {
        self.0.in_flight.push(InFlight { index, done });
    }

    /// The segment of a slice of at most `limit` bytes.
    #[inline(always)]
    pub(super) fn segment(&self, slice: &Slice<'_>, limit: usize) -> Result<DataSegment, PostError> {
        if slice.domain != self.0.shared.tag {
            return Err(PostError::ForeignMemory);
        }
        if slice.length > limit {
            return Err(PostError::too_long(slice.length, limit));
        }
        Ok(DataSegment::new(slice.address, slice.length as u32, slice.key))
    }

    /// The segments of the slices, in `into`, if there is room and together they have at most `limit` bytes.
    #[inline(always)]
    fn segments<'s>(
        &self,
        into: &'s mut [DataSegment],
        slices: &[Slice<'_>],
        limit: usize,
    ) -> Result<&'s [DataSegment], PostError> {
        let most = into.len();
        let Some(into) = into.get_mut(..slices.len()) else {
            return Err(PostError::TooManySlices { limit: most as u32 });
        };
        let mut room = limit;
        for (segment, slice) in into.iter_mut().zip(slices) {
            if slice.domain != self.0.shared.tag {
                return Err(PostError::ForeignMemory);
            }
            let Some(rest) = room.checked_sub(slice.length) else {
                return Err(total_too_long(slices, limit));
            };
            room = rest;
            *segment = DataSegment::new(slice.address, slice.length as u32, slice.key);
        }
        Ok(into)
    }
}

/// What goes in front of the payload of `am_short`.
#[inline(always)]
fn am_prefix(id: u8, header: u64) -> [u8; PREFIX] {
    let prefix = (u128::from(id) | u128::from(header) << 32).to_le_bytes();
    *prefix.first_chunk().unwrap_or(&[0; PREFIX])
}

const NO_FLAGS: ControlFlags = ControlFlags::empty();
/// A segment without bytes; posting leaves it out.
const EMPTY: DataSegment = DataSegment::new(0, 0, 0);

#[cold]
fn total_too_long(slices: &[Slice<'_>], limit: usize) -> PostError {
    let total = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.length));
    PostError::too_long(total, limit)
}

#[inline(always)]
fn check_id(id: u8) -> Result<(), PostError> {
    if id < MAX_HANDLERS { Ok(()) } else { Err(PostError::UnknownHandlerId(id)) }
}

#[inline(always)]
fn atomic_target(remote: u64, key: RemoteKey) -> Result<RemoteAddressSegment, PostError> {
    if !remote.is_multiple_of(size_of::<u64>() as u64) {
        return Err(PostError::Unaligned);
    }
    Ok(RemoteAddressSegment::new(remote, key.0))
}

/// Where the header of a message lies in its buffer.
#[inline(always)]
fn am_header(buffer: &mut [u8; BUFFER]) -> &mut [u8; AM_HEADER] {
    let (header, _) = buffer[MESSAGE..].split_first_chunk_mut().expect("a buffer is longer than a header");
    header
}
