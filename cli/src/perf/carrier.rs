//! Sends one message of the size and in the way of the plan, from either side.

use super::job::{WORD, extent};
use super::{DATA, RECEIVED};
use crate::control::PerfPlan;
use crate::error::{Error, local};
use crate::session::{Remote, Session};
use crate::test::{Layout, Test};
use barewire::{Completion, Flags, Memory, MemoryError, SHORT_HEADER, Slice};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

const SET_UP: &str = "the set-up";

/// The memory of one side.
#[derive(Debug)]
pub(super) struct Regions {
    /// Memory that the peer writes and reads.
    own: Memory,
    /// The source of zero-copy operations, and the destination of gets.
    source: Memory,
    /// The source of other active messages.
    message: Vec<u8>,
}

/// The buffers that one side sends from and receives into.
#[derive(Debug)]
pub(super) struct Carrier<'a> {
    pub(super) layout: Layout,
    pub(super) size: usize,
    pub(super) remote: Remote,
    regions: &'a Regions,
    /// The pieces of the message, without its header.
    pub(super) pieces: Vec<Slice<'a>>,
    /// The pieces as bytes, without the header of a short message.
    parts: Vec<&'a [u8]>,
    /// Offset of the end of the message in the source.
    extent: usize,
    header: usize,
    /// The source of other puts.
    payload: Vec<u8>,
    received: Rc<Received>,
    mark: Mark<'a>,
    passive: bool,
}

/// The byte of this side's memory that indicates an arrival: a word and the shift of the byte in it
/// as a little-endian number.
#[derive(Debug, Clone, Copy)]
struct Mark<'a> {
    word: &'a AtomicU64,
    shift: usize,
}

/// Counts of received messages.
#[derive(Debug, Default)]
struct Received {
    messages: Cell<u64>,
    /// The length of a message of unexpected size.
    foreign: Cell<Option<usize>>,
    /// Messages of this side that the peer has acknowledged.
    acknowledged: Cell<u64>,
}

/// The numbers of the plan, which was checked, as lengths.
fn lengths(plan: &PerfPlan) -> Result<(usize, Vec<usize>, usize, usize), Error> {
    let length = |bytes: u64| usize::try_from(bytes).map_err(|error| local(SET_UP, &error));
    let sizes: Vec<usize> =
        plan.sizes.iter().map(|piece| length(*piece)).collect::<Result<_, _>>()?;
    let extent = extent(length(plan.stride)?, &sizes);
    let extent = extent.ok_or_else(|| Error::Local("the message is too large".into()))?;
    Ok((length(plan.size())?, sizes, length(plan.stride)?, extent))
}

impl Regions {
    pub(super) fn allocate(session: &Session<'_>, plan: &PerfPlan) -> Result<Self, Error> {
        let (size, _, _, extent) = lengths(plan)?;
        // Also the smaller atomics need a whole word, and the last byte is polled as part of a
        // word.
        Ok(Self {
            own: session.allocate(size.max(1).next_multiple_of(WORD))?,
            source: session.allocate(extent)?,
            message: vec![0; size],
        })
    }
}

impl<'a> Carrier<'a> {
    /// Exchanges keys and installs the handlers, and waits until the peer has done the same.
    pub(super) fn open(
        session: &mut Session<'_>,
        regions: &'a Regions,
        plan: &PerfPlan,
    ) -> Result<Self, Error> {
        let (size, sizes, stride, extent) = lengths(plan)?;
        let header = plan.header as usize;
        let mut pieces = Vec::with_capacity(sizes.len());
        let (mut begin, mut skip) = (0, header);
        for &piece in &sizes {
            // The header is taken from the payload, the rest from the first piece on.
            let (from, length) = (begin + skip.min(piece), piece - skip.min(piece));
            if length > 0 {
                pieces.push(
                    regions.source.slice(from, length).map_err(|error| local(SET_UP, &error))?,
                );
            }
            begin += if stride == 0 { piece } else { stride };
            skip = 0;
        }
        let mut rest = &*regions.message;
        let mut parts = Vec::with_capacity(plan.sizes.len());
        let mut skip = SHORT_HEADER;
        for &piece in &sizes {
            let (part, after) = rest.split_at(piece.min(rest.len()));
            parts.extend(part.get(skip..).filter(|part| !part.is_empty()));
            (rest, skip) = (after, skip.saturating_sub(piece));
        }
        let remote = session.exchange(&regions.own, size)?;
        let received = Rc::new(Received::default());
        let (data, acknowledged) = (Rc::clone(&received), Rc::clone(&received));
        let handlers = session.interface.set_handler(DATA, move |message| {
            if message.data().len() == size {
                data.messages.set(data.messages.get() + 1);
            } else {
                data.foreign.set(Some(message.data().len()));
            }
        });
        let handlers = handlers.and_then(|()| {
            session.interface.set_handler(RECEIVED, move |message| {
                let count = message.split_short().map_or(0, |(count, _)| count);
                acknowledged.acknowledged.set(count);
            })
        });
        handlers.map_err(|error| local(SET_UP, &error))?;
        let lowest = if plan.test == Test::AddLat && cfg!(target_endian = "little") {
            0
        } else {
            size.max(1) - 1
        };
        let word =
            regions.own.word(lowest - lowest % WORD).map_err(|error| local(SET_UP, &error))?;
        let carrier = Self {
            layout: plan.layout,
            size,
            remote,
            regions,
            pieces,
            parts,
            extent,
            header,
            payload: vec![0; size],
            received,
            mark: Mark { word, shift: 8 * (lowest % WORD) },
            passive: plan.passive,
        };
        // Pass the mapping of the peer's memory now: it needs progress of the peer, and a passive
        // peer makes none later.
        if session.interface.attributes().flags.contains(Flags::RKEY_PTR) {
            let endpoint = &session.endpoint;
            session.wait.post(SET_UP, || endpoint.rkey_ptr(&carrier.remote.key).map(drop))?;
        }
        if !session.wait.is_loopback() {
            session.wait.barrier(SET_UP)?;
        }
        Ok(carrier)
    }

    /// Sends an active message. `completion` counts a zcopy.
    #[inline(always)]
    pub(super) fn send(
        &self,
        session: &mut Session<'_>,
        completion: Option<&Completion>,
        during: &str,
    ) -> Result<(), Error> {
        if self.layout == Layout::Short {
            let payload = self.regions.message.get(SHORT_HEADER..).unwrap_or_default();
            let endpoint = &session.endpoint;
            return session.wait.post(during, || endpoint.am_short(DATA, 0, payload));
        }
        self.send_any(session, completion, during)
    }

    fn send_any(
        &self,
        session: &mut Session<'_>,
        completion: Option<&Completion>,
        during: &str,
    ) -> Result<(), Error> {
        let (endpoint, wait) = (&session.endpoint, &mut session.wait);
        match self.layout {
            Layout::Short | Layout::ShortIov => {
                wait.post(during, || endpoint.am_short_iov(DATA, 0, &self.parts))
            }
            Layout::Bcopy => wait
                .post(during, || {
                    endpoint.am_bcopy(DATA, |buffer| {
                        buffer[..self.size].copy_from_slice(&self.regions.message);
                        self.size
                    })
                })
                .map(|_| ()),
            Layout::Zcopy => {
                let header = self.regions.message.get(..self.header).unwrap_or_default();
                wait.post(during, || endpoint.am_zcopy(DATA, header, &self.pieces, completion))
                    .map(drop)
            }
        }
    }

    /// Messages received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.messages.get()
    }

    /// Waits until `total` messages have been received.
    #[inline(always)]
    pub(super) fn receive(
        &self,
        session: &mut Session<'_>,
        total: u64,
        during: &str,
    ) -> Result<(), Error> {
        session.wait.until(during, || match self.received.foreign.get() {
            Some(length) => {
                Err(format!("a message of {length} bytes came, not of {}", self.size).into())
            }
            None => Ok((self.received() >= total).then_some(())),
        })
    }

    /// Waits until the peer has acknowledged `total` messages.
    pub(super) fn acknowledged(
        &self,
        session: &mut Session<'_>,
        total: u64,
        during: &str,
    ) -> Result<(), Error> {
        if session.wait.is_loopback() {
            return self.receive(session, total, during);
        }
        let received = &self.received;
        if received.acknowledged.get() >= total {
            return Ok(());
        }
        session.wait.until(during, || Ok((received.acknowledged.get() >= total).then_some(())))
    }

    /// Puts to the peer's memory, with `mark` as the last byte. `completion` counts a zcopy.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        session: &mut Session<'_>,
        mark: u8,
        completion: Option<&Completion>,
        during: &str,
    ) -> Result<(), Error> {
        let Remote { address, key } = &self.remote;
        if self.layout == Layout::Short && self.size == WORD {
            // Assembled in a register: a load of the whole word would wait for the store of its
            // last byte.
            let word = (u64::from(mark) << 56).to_le_bytes();
            let endpoint = &session.endpoint;
            return session.wait.post(during, || endpoint.put_short(&word, *address, key));
        }
        self.put_any(session, mark, completion, during)
    }

    fn put_any(
        &mut self,
        session: &mut Session<'_>,
        mark: u8,
        completion: Option<&Completion>,
        during: &str,
    ) -> Result<(), Error> {
        let (endpoint, wait) = (&session.endpoint, &mut session.wait);
        let Remote { address, key } = &self.remote;
        match self.layout {
            // Only active messages have several pieces; the plan was checked.
            Layout::Short | Layout::ShortIov => {
                let payload = marked(&mut self.payload, mark);
                wait.post(during, || endpoint.put_short(payload, *address, key))
            }
            Layout::Bcopy => {
                let payload = marked(&mut self.payload, mark);
                wait.post(during, || {
                    let pack = |buffer: &mut [u8]| {
                        buffer[..payload.len()].copy_from_slice(payload);
                        payload.len()
                    };
                    endpoint.put_bcopy(pack, *address, key)
                })
                .map(|_| ())
            }
            Layout::Zcopy => {
                // An earlier put may still read the byte, but only if its arrival was already
                // detected.
                let failed = |error: MemoryError| local(during, &error);
                self.regions.source.write(self.extent - 1, &[mark]).map_err(failed)?;
                wait.post(during, || endpoint.put_zcopy(&self.pieces, *address, key, completion))
                    .map(drop)
            }
        }
    }

    /// Waits until the byte that the peer changes in this side's memory equals `mark`: the last
    /// byte of a put, or the lowest of a word that the peer adds to.
    #[inline(always)]
    pub(super) fn marked(
        &self,
        session: &mut Session<'_>,
        mark: u8,
        during: &str,
    ) -> Result<(), Error> {
        let Mark { word, shift } = self.mark;
        let arrived = || {
            let byte = (word.load(Ordering::Acquire).to_le() >> shift) as u8;
            Ok((byte == mark).then_some(()))
        };
        if self.passive {
            session.wait.until_passively(during, arrived)
        } else {
            session.wait.until(during, arrived)
        }
    }
}

/// The payload with its last byte set.
fn marked(payload: &mut [u8], mark: u8) -> &[u8] {
    if let Some(last) = payload.last_mut() {
        *last = mark;
    }
    payload
}

/// Acknowledges `count` messages to the peer.
pub(super) fn acknowledge(
    session: &mut Session<'_>,
    count: u64,
    during: &str,
) -> Result<(), Error> {
    let endpoint = &session.endpoint;
    session.wait.post(during, || endpoint.am_short(RECEIVED, count, &[]))
}
