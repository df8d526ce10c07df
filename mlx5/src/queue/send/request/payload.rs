//! The bytes of transfers and messages.

use core::hint::cold_path;

use barewire_layouts::wqe::{ControlFlags, DS, DataSegment, InlineHeader, Opcode};
use zerocopy::transmute;

use super::super::{
    Destination, Directed, MAX_SEGMENTS, MAX_SEND_INLINE, PREFIX, PostError, SendQueue,
};
use super::{Head, Posting};
use crate::doorbell::Doorbell;
use crate::wqe::{self, Body as _, Unit};
use sealed::Payload as _;

mod sealed {
    use super::{ControlFlags, Destination, Directed, Doorbell, Head, Posting, Unit};

    pub trait Payload: Copy {
        /// Posts a request with this payload after the remote address, if it has one.
        fn post_to<A: Destination, D: Doorbell>(
            self,
            to: Directed<'_, A, D>,
            head: Head,
            flags: ControlFlags,
            remote: Option<Unit>,
        ) -> Posting;
    }
}

/// The bytes of a transfer or of a message.
///
/// In registered memory: a [`DataSegment`]; two of them, `[DataSegment; 2]`; or [`Segments`]. This
/// memory must stay registered and unchanged until the completion. Segments of no bytes are left
/// out.
///
/// Copied to the WQE, so that they can be reused on return: [`Inline`]; [`Word`], [`Words`] and
/// [`Line`], whose length the compiler knows; and [`Prefixed`].
pub trait Payload: sealed::Payload {}

impl<P: sealed::Payload> Payload for P {}

/// A payload in registered memory.
pub trait Registered: Payload {}

impl Registered for DataSegment {}
impl Registered for [DataSegment; 2] {}
impl Registered for Segments<'_> {}

/// Up to [`MAX_SEGMENTS`] segments. More are refused with [`PostError::TooLong`].
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a>(
    /// The segments.
    pub &'a [DataSegment],
);

/// Bytes that are copied to the WQE. More than [`Destination::MAX_INLINE`] of a message and
/// [`Destination::MAX_WRITE_INLINE`] of a write are refused with [`PostError::TooLong`].
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(
    /// The bytes.
    pub &'a [u8],
);

/// Eight bytes that are copied to the WQE.
#[derive(Clone, Copy, Debug)]
pub struct Word(
    /// The bytes.
    pub [u8; 8],
);

/// Four words in memory order that are copied to the WQE, and stay in CPU registers on the way.
#[derive(Clone, Copy, Debug)]
pub struct Words(
    /// The words.
    pub [u64; 4],
);

/// A cache line that is copied to the WQE.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(
    /// The bytes.
    pub &'a [u8; 64],
);

/// A prefix and a payload, [`Word`] or [`Inline`], that are copied to the WQE. A prefix of 12 bytes
/// fills the unit of the inline header, so that the payload starts at the next one.
#[derive(Clone, Copy, Debug)]
pub struct Prefixed<P> {
    /// The first bytes.
    pub prefix: [u8; PREFIX],
    /// What follows.
    pub payload: P,
}

/// Most bytes that are copied to a WQE, with or without a remote address.
#[inline(always)]
fn most<A: Destination>(remote: Option<Unit>) -> usize {
    if remote.is_some() { A::MAX_WRITE_INLINE } else { A::MAX_INLINE }
}

impl sealed::Payload for DataSegment {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        // A byte count of zero means 2 GiB to the device, so an empty segment must not be written.
        if self.byte_count.get() == 0 {
            cold_path();
            return to.post_units(head, flags, remote, []);
        }
        to.post_units(head, flags, remote, [Unit::local(&self)])
    }
}

impl sealed::Payload for [DataSegment; 2] {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let [first, second] = self;
        if first.byte_count.get() == 0 || second.byte_count.get() == 0 {
            cold_path();
            return Segments(&self).post_to(to, head, flags, remote);
        }
        to.post_units(head, flags, remote, [Unit::local(&first), Unit::local(&second)])
    }
}

impl sealed::Payload for Segments<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let body = wqe::Segments::new(remote, self.0);
        if body.units() as usize > MAX_SEGMENTS + usize::from(remote.is_some()) {
            return Err(PostError::TooLong);
        }
        to.post_body(head, flags, body)
    }
}

impl sealed::Payload for Inline<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let Self(payload) = self;
        if let (true, Opcode::RdmaWrite, Some(remote)) = (A::IS_CONNECTED, head.opcode, remote) {
            // Common sizes have code in which nothing depends on the length.
            if let Ok(word) = payload.try_into() {
                return Word(word).post_to(to, head, flags, Some(remote));
            }
            // As integers, which are passed in registers.
            let (address, rkey) = remote.words();
            return match payload.try_into() {
                Ok(line) => write_line(to.queue, line, address, rkey, flags),
                Err(_) => write_inline(to.queue, payload, address, rkey, flags),
            };
        }
        if payload.len() > most::<A>(remote) {
            return Err(PostError::TooLong);
        }
        to.post_body(head, flags, wqe::Inline::new(remote, payload))
    }
}

#[inline(never)]
fn write_line<D: Doorbell>(
    queue: &mut SendQueue<D>,
    line: &[u8; 64],
    address: u64,
    rkey: u64,
    flags: ControlFlags,
) -> Posting {
    let remote = Some(Unit::from_words(address, rkey));
    Line(line).post_to(queue.connected(), Head::of(Opcode::RdmaWrite), flags, remote)
}

#[inline(never)]
fn write_inline<D: Doorbell>(
    queue: &mut SendQueue<D>,
    payload: &[u8],
    address: u64,
    rkey: u64,
    flags: ControlFlags,
) -> Posting {
    let remote = Some(Unit::from_words(address, rkey));
    if payload.len() > most::<super::super::Connected>(remote) {
        return Err(PostError::TooLong);
    }
    let body = wqe::Inline::new(remote, payload);
    queue.connected().post_body(Head::of(Opcode::RdmaWrite), flags, body)
}

impl sealed::Payload for Word {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        to.post_units(head, flags, remote, [Unit::inline_8(InlineHeader::new(8), self.0)])
    }
}

impl sealed::Payload for Words {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let [a, b, c, d] = self.0;
        let header: u32 = transmute!(InlineHeader::new(32));
        // The inline header shifts everything by half a word.
        let units = [
            Unit::from_words(u64::from(header) | a << 32, a >> 32 | b << 32),
            Unit::from_words(b >> 32 | c << 32, c >> 32 | d << 32),
            Unit::from_words(d >> 32, 0),
        ];
        to.post_units(head, flags, remote, units)
    }
}

impl sealed::Payload for Line<'_> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let (first, rest) = self.0.split_first_chunk().unwrap_or((&[0; PREFIX], &[]));
        let (middle, tail) = rest.as_chunks();
        let [a, b, c] = *middle.first_chunk().unwrap_or(&[[0; DS]; 3]);
        let tail = *tail.first_chunk().unwrap_or(&[0; 4]);
        let first = Unit::inline_prefix(InlineHeader::new(64), *first);
        let tail = Unit::from_low(u32::from_le_bytes(tail));
        let units = [first, Unit::load(&a), Unit::load(&b), Unit::load(&c), tail];
        to.post_units(head, flags, remote, units)
    }
}

impl sealed::Payload for Prefixed<Word> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let header = Unit::inline_prefix(InlineHeader::new(20), self.prefix);
        let word = Unit::from_words(u64::from_le_bytes(self.payload.0), 0);
        to.post_units(head, flags, remote, [header, word])
    }
}

impl sealed::Payload for Prefixed<Inline<'_>> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
    ) -> Posting {
        let Self { prefix, payload: Inline(payload) } = self;
        let (low, high) = Unit::split_prefix(prefix);
        if let (true, Opcode::Send) = (A::IS_CONNECTED, head.opcode) {
            // An 8-byte payload stays in a CPU register, as of `Inline`.
            if let Ok(word) = payload.try_into() {
                return Prefixed { prefix, payload: Word(word) }.post_to(to, head, flags, remote);
            }
            return send_prefixed(to.queue, low, high, payload, flags);
        }
        if payload.len() > most::<A>(remote) - PREFIX {
            return Err(PostError::TooLong);
        }
        to.post_body(head, flags, wqe::Inline::prefixed(remote, low, high, payload))
    }
}

#[inline(never)]
fn send_prefixed<D: Doorbell>(
    queue: &mut SendQueue<D>,
    low: u32,
    high: u64,
    payload: &[u8],
    flags: ControlFlags,
) -> Posting {
    if payload.len() > MAX_SEND_INLINE - PREFIX {
        return Err(PostError::TooLong);
    }
    let body = wqe::Inline::prefixed(None, low, high, payload);
    queue.connected().post_body(Head::of(Opcode::Send), flags, body)
}
