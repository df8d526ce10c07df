//! Memory that peers reach by themselves: regions of one process, and the same regions as another process maps them.
//!
//! A region's segment has a page of its own in front, whose first word says that the region lives. Every peer is told of every region
//! as soon as it exists, so that no use of it needs the owner's help.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::atomic::{AtomicU64, Ordering};
use crate::control::Message;
use crate::error::SegmentError;
use crate::line::Lines;
use crate::link::Link;
use crate::segment::Segment;

/// Bytes in front of a region's own.
const FRONT: usize = 4096;
/// What [`Mapped::life`] is while a region may be used.
pub const LIVE: u64 = 1;

/// The regions of a process, and who is told of them. Cloning gives another handle.
#[derive(Debug, Clone)]
pub struct Shelf(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    number: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    regions: BTreeMap<u64, Arc<Segment>>,
    readers: Vec<Reader>,
}

#[derive(Debug)]
struct Reader {
    link: Weak<Link>,
    /// The regions before this one were told.
    next: u64,
    gone: Vec<u64>,
}

impl Inner {
    /// Tells every reader what it does not know. One that does not read is told later.
    fn tell(&mut self) {
        let regions = &self.regions;
        self.readers.retain_mut(|reader| {
            let Some(link) = reader.link.upgrade() else { return false };
            for (&region, segment) in regions.range(reader.next..) {
                let message = Message::Region { region, size: segment.size() as u64 };
                match link.send(&message.encode(), &[segment.as_fd()]) {
                    Ok(true) => reader.next = region + 1,
                    Ok(false) => return true,
                    Err(_) => return false,
                }
            }
            while let Some(&region) = reader.gone.last() {
                match link.send(&Message::Gone { region }.encode(), &[]) {
                    Ok(true) => reader.gone.pop(),
                    Ok(false) => return true,
                    Err(_) => return false,
                };
            }
            true
        });
    }
}

impl Shelf {
    /// A shelf without regions. `number` is told to peers, so that a key of another process is not taken for one of ours.
    pub fn new(number: u64) -> Self {
        Self(Arc::new(Shared { number, inner: Mutex::default() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // What is left after a panic is at worst told twice.
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number that it was made with.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Makes a region of `size` zeroed bytes and tells the peers of it.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn region(&self, size: usize) -> Result<Region, SegmentError> {
        self.add(size, Segment::create)
    }

    /// The same in huge pages; what is left of the last one is part of the region.
    ///
    /// # Errors
    /// As [`Segment::create_huge`].
    pub fn huge_region(&self, size: usize) -> Result<Region, SegmentError> {
        self.add(size, Segment::create_huge)
    }

    fn add(
        &self,
        size: usize,
        create: impl FnOnce(&str, usize) -> Result<Segment, SegmentError>,
    ) -> Result<Region, SegmentError> {
        if size == 0 {
            return Err(SegmentError::Empty);
        }
        let all = size.checked_add(FRONT).ok_or(SegmentError::NoMemory { wanted: size, available: 0 })?;
        let segment = Arc::new(create("barewire-region", all)?);
        let front = Lines::of(&segment, 1).ok_or(SegmentError::Empty)?;
        front.line(0).word(0).store(LIVE, Ordering::Release);
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        inner.regions.insert(number, Arc::clone(&segment));
        inner.tell();
        drop(inner);
        Ok(Region { mapped: Mapped { segment, front }, number, shelf: self.clone() })
    }

    /// From now on tells the process at the other end.
    pub(crate) fn join(&self, link: &Arc<Link>) {
        let mut inner = self.inner();
        inner.readers.push(Reader { link: Arc::downgrade(link), next: 0, gone: Vec::new() });
        inner.tell();
    }

    /// Tells again who did not read.
    pub(crate) fn catch_up(&self) {
        let mut inner = self.inner();
        let next = inner.next;
        if inner.readers.iter().any(|reader| reader.next < next || !reader.gone.is_empty()) {
            inner.tell();
        }
    }
}

/// A region in this process's mappings.
#[derive(Debug, Clone)]
pub struct Mapped {
    segment: Arc<Segment>,
    front: Lines,
}

impl Mapped {
    pub(crate) fn attach(segment: Segment) -> Option<Self> {
        let segment = Arc::new(segment);
        let front = Lines::of(&segment, 1).filter(|_| segment.size() > FRONT)?;
        Some(Self { segment, front })
    }

    /// Is [`LIVE`] while its owner wants it to be used, and mapped as long as the bytes.
    pub fn life(&self) -> &AtomicU64 {
        self.front.line(0).word(0)
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.segment.size() - FRONT
    }

    /// The first byte, valid for [`size`](Self::size) bytes while this value or a clone of it lives. Other processes access the same
    /// bytes: make no reference to them.
    pub fn start(&self) -> NonNull<u8> {
        let address = self.segment.as_ptr().addr().saturating_add(FRONT);
        self.segment.as_ptr().with_addr(address)
    }
}

/// A region of this process. Dropping it ends its use; those who mapped it keep their mapping until they are told.
#[derive(Debug)]
pub struct Region {
    mapped: Mapped,
    number: u64,
    shelf: Shelf,
}

impl Region {
    /// Its number on the shelf.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its memory.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.mapped.life().store(0, Ordering::Release);
        let mut inner = self.shelf.inner();
        inner.regions.remove(&self.number);
        for reader in &mut inner.readers {
            if reader.next > self.number {
                reader.gone.push(self.number);
            }
        }
        inner.tell();
    }
}
