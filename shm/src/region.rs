//! Memory that peers reach by themselves: regions of one process, and the same regions as another process maps them.
//!
//! A region's segment has a page of its own in front, whose first word says that the region lives. A region
//! is handed to a peer that asks for it by its number. Numbers are random and travel in keys alone, so that
//! a peer without a key has no mapping.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::address::PortAddress;
use crate::atomic::{AtomicU64, Ordering};
use crate::control::Message;
use crate::error::SegmentError;
use crate::line::Lines;
use crate::link::Link;
use crate::segment::Segment;

/// Bytes in front of a region's own.
const FRONT: usize = 4096;
/// The bits of a region's number that count.
const COUNT: u64 = 3;
/// What [`Mapped::life`] is while a region may be used.
pub const LIVE: u64 = 1;

/// The regions of a process, and who has them. Cloning gives another handle.
#[derive(Clone)]
pub struct Shelf(Arc<Shared>);

/// Without the regions, whose numbers are secret.
impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("number", &self.0.number).finish_non_exhaustive()
    }
}

struct Shared {
    number: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Regions that were made.
    made: u64,
    regions: HashMap<u64, Entry>,
    /// Peers that still have a dropped region and were not notified yet.
    untold: Vec<(Weak<Link>, u64)>,
}

/// A region, and who has it.
struct Entry {
    segment: Arc<Segment>,
    readers: Vec<Weak<Link>>,
}

/// The most notices that wait for peers which do not read their sockets. Without a notice a peer keeps its
/// mapping for longer.
const MOST_UNTOLD: usize = 1 << 16;

impl Inner {
    /// Tells peers which regions are gone. One that does not read is told later.
    fn tell(&mut self) {
        self.untold.retain(|(link, region)| {
            let told = link.upgrade().map(|link| link.send(&Message::Gone { region: *region }.encode(), &[]));
            matches!(told, Some(Ok(false)))
        });
        self.untold.truncate(MOST_UNTOLD);
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

    /// Makes a region of `size` zeroed bytes.
    ///
    /// # Errors
    /// As [`Segment::create`], and what getrandom(2) says.
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
        let random = PortAddress::random();
        let random = random.map_err(|source| SegmentError::System { call: "getrandom", source })?.secret;
        let mut inner = self.inner();
        // The lowest bits count, so that regions made one after the other lie in different places of a table.
        let number = random as u64 & !COUNT | inner.made & COUNT;
        inner.made += 1;
        inner.regions.insert(number, Entry { segment: Arc::clone(&segment), readers: Vec::new() });
        drop(inner);
        Ok(Region {
            mapped: Mapped { segment, front },
            number,
            shelf: self.clone(),
            process: std::process::id(),
        })
    }

    /// Hands the region to the process at the other end, or tells it that there is none. False if that
    /// process has too many unread messages.
    pub(crate) fn hand_over(&self, region: u64, link: &Arc<Link>) -> io::Result<bool> {
        let mut inner = self.inner();
        let Some(entry) = inner.regions.get_mut(&region) else {
            return link.send(&Message::Gone { region }.encode(), &[]);
        };
        let message = Message::Region { region, size: entry.segment.size() as u64 };
        let descriptor = entry.segment.descriptor();
        if !link.send(&message.encode(), descriptor.as_slice())? {
            return Ok(false);
        }
        entry.readers.retain(|reader| reader.strong_count() > 0 && !reader.ptr_eq(&Arc::downgrade(link)));
        entry.readers.push(Arc::downgrade(link));
        Ok(true)
    }

    /// Tells again which regions are gone.
    pub(crate) fn catch_up(&self) {
        let mut inner = self.inner();
        if !inner.untold.is_empty() {
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

    /// Bytes of the segment, as its owner announced them.
    pub(crate) fn announced(&self) -> u64 {
        self.segment.size() as u64
    }

    /// The first byte, valid for [`size`](Self::size) bytes while this value or a clone of it lives. Other processes access the same
    /// bytes: make no reference to them.
    pub fn start(&self) -> NonNull<u8> {
        let address = self.segment.as_ptr().addr().saturating_add(FRONT);
        self.segment.as_ptr().with_addr(address)
    }
}

/// A region of this process. Dropping it ends its use; those who mapped it keep their mapping until they are told.
/// In a child by fork, dropping it unmaps it there and does nothing else.
pub struct Region {
    mapped: Mapped,
    number: u64,
    shelf: Shelf,
    /// The process that made it.
    process: u32,
}

impl Region {
    /// Its number on the shelf, for its keys: whoever knows it, and is admitted, can map the region.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its memory.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }
}

/// Without the number.
impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("mapped", &self.mapped).finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child by fork: the region lives on in the parent.
            return;
        }
        self.mapped.life().store(0, Ordering::Release);
        let mut inner = self.shelf.inner();
        let entry = inner.regions.remove(&self.number);
        let readers = entry.into_iter().flat_map(|entry| entry.readers);
        inner.untold.extend(readers.map(|link| (link, self.number)));
        inner.tell();
    }
}
