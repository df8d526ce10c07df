//! Regions: memory of one process that peers map and access directly.
//!
//! A region's segment begins with a page. Its first word says whether the region is live, the next
//! two are the numbers of the region and of its set. A region is sent to a peer that requests it by
//! its number. Numbers are random and are only known from keys, so a peer without a key cannot map
//! the region.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::address::PortAddress;
use crate::atomic::{AtomicU64, Ordering};
use crate::control::Message;
use crate::descriptor::RegionPlace;
#[cfg(test)]
use crate::error::OutOfRange;
use crate::error::SegmentError;
use crate::line::Lines;
use crate::link::Link;
use crate::segment::Segment;

/// Bytes in header of a region's data.
const HEADER: usize = 4096;
/// The bits of a region's number that come from a counter.
const COUNTER_BITS: u64 = 3;
/// The value of [`Mapped::life`] while a region may be used.
pub const LIVE: u64 = 1;
/// The word with the region's number, and that with the number of its set.
const NUMBER: usize = 1;
const SET_NUMBER: usize = 2;

/// The regions of a process, and the peers that have mapped them. Cloning returns another handle to
/// the same set.
#[derive(Clone)]
pub struct RegionSet(Arc<Shared>);

/// Omits the regions, whose numbers are secret.
impl fmt::Debug for RegionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSet").field("number", &self.0.number).finish_non_exhaustive()
    }
}

struct Shared {
    number: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The number of regions created so far.
    made: u64,
    regions: HashMap<u64, Entry>,
    /// Notices of dropped regions that peers have not been sent yet.
    undelivered: Vec<(Weak<Link>, u64)>,
}

/// A region, and the peers that have mapped it.
struct Entry {
    segment: Arc<Segment>,
    readers: Vec<Weak<Link>>,
}

impl Entry {
    fn add_reader(&mut self, link: Weak<Link>) {
        self.readers.retain(|reader| reader.strong_count() > 0 && !reader.ptr_eq(&link));
        self.readers.push(link);
    }
}

/// The maximum number of undelivered notices for peers that do not read their sockets. A peer that
/// misses a notice keeps its mapping for longer.
const MAX_UNDELIVERED: usize = 1 << 16;

impl Inner {
    /// Sends the undelivered notices. Those for peers with full sockets are kept for the next call.
    fn notify(&mut self) {
        self.undelivered.retain(|(link, region)| {
            let sent = link
                .upgrade()
                .map(|link| link.send(&Message::NoRegion { region: *region }.encode(), &[]));
            matches!(sent, Some(Ok(false)))
        });
        self.undelivered.truncate(MAX_UNDELIVERED);
    }
}

impl RegionSet {
    /// Creates an empty set. `number` is sent to peers, so that they can reject a key of another
    /// process.
    pub fn new(number: u64) -> Self {
        Self(Arc::new(Shared { number, inner: Mutex::default() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // After a panic a notice may be sent twice, which is harmless.
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number that was passed to [`Self::new`].
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Creates a region of `size` zeroed bytes.
    ///
    /// # Errors
    /// Those of [`Segment::create`], and the error of getrandom(2).
    pub fn region(&self, size: usize) -> Result<Region, SegmentError> {
        self.add(size, Segment::create)
    }

    /// Creates a region in huge pages. The size is rounded up to the end of the last page.
    ///
    /// # Errors
    /// Those of [`Segment::create_huge`], and the error of getrandom(2).
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
        let all = size
            .checked_add(HEADER)
            .ok_or(SegmentError::NoMemory { wanted: size, available: 0 })?;
        let segment = Arc::new(create("barewire-region", all)?);
        let header = Lines::of(&segment, 1).ok_or(SegmentError::Empty)?;
        let random = PortAddress::random();
        let random =
            random.map_err(|source| SegmentError::System { call: "getrandom", source })?.secret;
        let mut inner = self.inner();
        // The lowest bits count up, so that consecutive regions use different slots of a table
        // indexed by number.
        let number = random as u64 & !COUNTER_BITS | inner.made & COUNTER_BITS;
        inner.made += 1;
        let words = header.line(0);
        words.store(NUMBER, number);
        words.store(SET_NUMBER, self.0.number);
        words.word(0).store(LIVE, Ordering::Release);
        inner.regions.insert(number, Entry { segment: Arc::clone(&segment), readers: Vec::new() });
        drop(inner);
        Ok(Region {
            mapped: Mapped { segment, header },
            number,
            set: self.clone(),
            process: std::process::id(),
        })
    }

    /// Sends region `region` to the peer, or notifies the peer that it does not exist. Returns
    /// false if the peer has too many unread messages.
    pub(crate) fn send_to(&self, region: u64, link: &Arc<Link>) -> io::Result<bool> {
        let mut inner = self.inner();
        let Some(entry) = inner.regions.get_mut(&region) else {
            return link.send(&Message::NoRegion { region }.encode(), &[]);
        };
        let message = Message::Region { region, size: entry.segment.size() as u64 };
        let descriptor = entry.segment.descriptor();
        if !link.send(&message.encode(), descriptor.as_slice())? {
            return Ok(false);
        }
        entry.add_reader(Arc::downgrade(link));
        Ok(true)
    }

    /// Returns region `region` of this process, for the peer at the other end of `link`; `None` if
    /// it does not exist.
    pub(crate) fn enter(&self, region: u64, link: &Weak<Link>) -> Option<Mapped> {
        let mut inner = self.inner();
        let entry = inner.regions.get_mut(&region)?;
        let segment = Arc::clone(&entry.segment);
        let header = Lines::of(&segment, 1)?;
        entry.add_reader(link.clone());
        Some(Mapped { segment, header })
    }

    /// Tries again to send undelivered notices.
    pub(crate) fn retry_notices(&self) {
        let mut inner = self.inner();
        if !inner.undelivered.is_empty() {
            inner.notify();
        }
    }
}

/// A region that is mapped in this process.
#[derive(Debug, Clone)]
pub struct Mapped {
    segment: Arc<Segment>,
    header: Lines,
}

impl Mapped {
    pub(crate) fn attach(segment: Segment) -> Option<Self> {
        let segment = Arc::new(segment);
        let header = Lines::of(&segment, 1).filter(|_| segment.size() > HEADER)?;
        Some(Self { segment, header })
    }

    /// The word that is [`LIVE`] until the owner drops the region. It is mapped as long as the
    /// data.
    pub fn life(&self) -> &AtomicU64 {
        self.header.line(0).word(0)
    }

    /// Returns true if this is region `number` of set `set`, and live.
    pub(crate) fn is(&self, set: u64, number: u64) -> bool {
        let words = self.header.line(0);
        words.word(0).load(Ordering::Acquire) == LIVE
            && (words.load(NUMBER), words.load(SET_NUMBER)) == (number, set)
    }

    /// Size of the region in bytes.
    pub fn size(&self) -> usize {
        self.segment.size() - HEADER
    }

    #[cfg(test)]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.segment.write(HEADER + offset, from)
    }

    #[cfg(test)]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.segment.read(HEADER + offset, into)
    }

    /// Size of the segment in bytes, as sent to peers.
    pub(crate) fn announced(&self) -> u64 {
        self.segment.size() as u64
    }

    /// The first byte. It is valid for [`size`](Self::size) bytes while this value or a clone of it
    /// lives. Other processes access the same bytes: do not create references to them.
    pub fn start(&self) -> NonNull<u8> {
        let address = self.segment.as_ptr().addr().saturating_add(HEADER);
        self.segment.as_ptr().with_addr(address)
    }
}

/// A region of this process. Dropping it ends its use and notifies the peers, which then unmap it.
/// In a forked child, dropping it only unmaps the child's copy.
pub struct Region {
    mapped: Mapped,
    number: u64,
    set: RegionSet,
    /// The process that created the region.
    process: u32,
}

impl Region {
    /// The region's number, for its keys. Any admitted peer that knows it can map the region.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The place by which processes of the same user can map the region without a connection.
    pub fn place(&self) -> RegionPlace {
        let descriptor = self.mapped.segment.descriptor();
        RegionPlace {
            process: self.process,
            // No descriptor has this number.
            descriptor: descriptor.map_or(u32::MAX, |descriptor| descriptor.as_raw_fd() as u32),
            region_set: self.set.number(),
            region: self.number,
        }
    }

    /// The region's memory.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }
}

/// Omits the number, which is secret.
impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("mapped", &self.mapped).finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a forked child: the region still exists in the parent.
            return;
        }
        self.mapped.life().store(0, Ordering::Release);
        let mut inner = self.set.inner();
        let entry = inner.regions.remove(&self.number);
        let readers = entry.into_iter().flat_map(|entry| entry.readers);
        inner.undelivered.extend(readers.map(|link| (link, self.number)));
        inner.notify();
    }
}
