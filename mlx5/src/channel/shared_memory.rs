//! Memory that queues share: a ring and a doorbell record are pieces of larger registrations, so that
//! a queue pair costs neither registrations of its own nor whole pages for 8 bytes.

use core::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::CommandChannel;
use super::queue_memory::QueueMemory;
use crate::error::Error;
use crate::pages::PAGE;

/// Bytes of a doorbell record with its cache line.
pub(crate) const RECORD: usize = 64;
/// Most pieces of a chunk: the bits of its map.
const MOST: usize = 64;

/// The chunks of a context.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    /// In pages.
    rings: Mutex<Vec<Weak<Chunk>>>,
    /// In cache lines.
    records: Mutex<Vec<Weak<Chunk>>>,
}

/// A registration, divided into units.
#[derive(Debug)]
struct Chunk {
    memory: QueueMemory,
    unit: usize,
    units: usize,
    /// A bit for each unit that is in use.
    used: Mutex<u64>,
}

/// Zeroed memory of one queue. Dropping it returns it to its chunk: the device must not use it any
/// more.
#[derive(Debug)]
pub(crate) struct Piece {
    chunk: Arc<Chunk>,
    first: usize,
    units: usize,
}

/// The offset of a ring in a UMEM has 6 bits, in units of a 64th of the page that the kernel chose for
/// the UMEM (linux devx.c: `devx_umem_reg_cmd_alloc`). That page is at most a chunk, so the offset of
/// every piece is a multiple of the unit.
const _: () = assert!(MOST * PAGE / 64 <= PAGE);

impl SharedMemory {
    /// Takes at least `bytes` bytes for a ring, aligned to a page of the device.
    pub(crate) fn ring(&self, channel: &dyn CommandChannel, bytes: usize) -> Result<Piece, Error> {
        let pages = bytes.div_ceil(PAGE).max(1);
        let mut chunks = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if pages > MOST {
            return Ok(Chunk::create(channel, pages * PAGE, 1)?.only());
        }
        if let Some(piece) = take(&mut chunks, pages) {
            return Ok(piece);
        }
        // As much again as there is.
        let present: usize = chunks.iter().filter_map(Weak::upgrade).map(|c| c.units).sum();
        let chunk = Chunk::create(channel, PAGE, present.clamp(pages, MOST))?;
        chunks.push(Arc::downgrade(&chunk));
        chunk.take(pages).ok_or_else(exhausted)
    }

    /// Takes a doorbell record.
    pub(crate) fn record(&self, channel: &dyn CommandChannel) -> Result<Piece, Error> {
        let mut chunks = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = take(&mut chunks, 1) {
            return Ok(piece);
        }
        let chunk = Chunk::create(channel, RECORD, PAGE / RECORD)?;
        chunks.push(Arc::downgrade(&chunk));
        chunk.take(1).ok_or_else(exhausted)
    }
}

/// Takes units of a chunk that has them, and forgets chunks that are gone.
fn take(chunks: &mut Vec<Weak<Chunk>>, units: usize) -> Option<Piece> {
    chunks.retain(|chunk| chunk.strong_count() > 0);
    chunks.iter().rev().filter_map(Weak::upgrade).find_map(|chunk| chunk.take(units))
}

#[cold]
fn exhausted() -> Error {
    Error::OutOfMemory { what: "a queue", bytes: PAGE }
}

impl Chunk {
    fn create(channel: &dyn CommandChannel, unit: usize, units: usize) -> Result<Arc<Self>, Error> {
        let memory = QueueMemory::allocate(channel, unit * units, "queue pairs")?;
        Ok(Arc::new(Self { memory, unit, units, used: Mutex::new(0) }))
    }

    /// The whole chunk, which has one unit and is new.
    fn only(self: Arc<Self>) -> Piece {
        Piece { chunk: self, first: 0, units: 1 }
    }

    /// Takes `units` units that follow each other.
    fn take(self: Arc<Self>, units: usize) -> Option<Piece> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.units.checked_sub(units)?;
        let first = (0..=last).find(|first| *used & mask(*first, units) == 0)?;
        *used |= mask(first, units);
        drop(used);
        let piece = Piece { chunk: self, first, units };
        // SAFETY: the units lie inside the chunk's memory, belong to this piece alone since their
        // bits were set, and no device uses them: they are new, or were returned (`Piece`).
        unsafe { piece.start().write_bytes(0, units * piece.chunk.unit) };
        Some(piece)
    }
}

/// The bits of units.
fn mask(first: usize, units: usize) -> u64 {
    (u64::MAX >> (MOST - units)) << first
}

impl Piece {
    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the units of a piece lie inside the chunk's memory.
        unsafe { self.chunk.memory.start().add(self.first * self.chunk.unit) }
    }

    /// The UMEM in which the piece lies.
    pub(crate) fn umem_id(&self) -> u32 {
        self.chunk.memory.umem_id()
    }

    /// Its offset in the UMEM, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        (self.first * self.chunk.unit) as u64
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut used = self.chunk.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used &= !mask(self.first, self.units);
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::channel::soft::Soft;

    fn channel() -> Soft {
        Soft::new(barewire_hca::Device::open(barewire_hca::Config::default()).unwrap())
    }

    /// Pieces of many sizes never overlap, are zeroed and aligned, and share registrations, which are
    /// released with the last piece.
    #[test]
    #[cfg_attr(miri, ignore = "the device reads files")]
    fn pieces_are_disjoint() {
        let (channel, memory) = (channel(), SharedMemory::default());
        let mut pieces: Vec<(Piece, usize)> = Vec::new();
        let mut random = 1_u32;
        for round in 0..2000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if random >> 30 == 0 && !pieces.is_empty() {
                pieces.swap_remove(round % pieces.len());
                continue;
            }
            let (piece, bytes) = if random & 0x100 == 0 {
                (memory.record(&channel).unwrap(), RECORD)
            } else {
                let pages = [1, 2, 4, 7, 64, 65][(random >> 9) as usize % 6];
                (memory.ring(&channel, pages * PAGE).unwrap(), pages * PAGE)
            };
            let start = piece.start();
            assert!(start.addr().get().is_multiple_of(bytes.min(PAGE)));
            // SAFETY: the piece has this many bytes, and only this test accesses it.
            unsafe {
                let bytes = core::slice::from_raw_parts_mut(start.as_ptr(), bytes);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(0xa5);
            }
            let range = |piece: &Piece, bytes| {
                let at = piece.start().addr().get();
                at..at + bytes
            };
            let own = range(&piece, bytes);
            for (other, bytes) in &pieces {
                let other = range(other, *bytes);
                assert!(own.end <= other.start || other.end <= own.start);
            }
            pieces.push((piece, bytes));
            if pieces.len() > 100 {
                pieces.truncate(20);
            }
        }
        drop(pieces);
        for list in [memory.rings, memory.records] {
            assert!(list.into_inner().unwrap().iter().all(|chunk| chunk.strong_count() == 0));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the device reads files")]
    fn many_queues_have_few_registrations() {
        let (channel, memory) = (channel(), SharedMemory::default());
        let pieces: Vec<_> = (0..128)
            .map(|_| (memory.ring(&channel, 4 * PAGE).unwrap(), memory.record(&channel).unwrap()))
            .collect();
        let mut umems: Vec<_> =
            pieces.iter().flat_map(|(ring, record)| [ring.umem_id(), record.umem_id()]).collect();
        umems.sort_unstable();
        umems.dedup();
        assert!(umems.len() <= 16, "{} registrations", umems.len());
    }
}
