//! Barrier, broadcast and reduction of small data over all ranks of a parallel program.

mod notice;

use std::time::{Duration, Instant};

use barewire::MemoryError;
use thiserror::Error;

use crate::node::{Idle, Node};
use crate::peers::{Peers, TagLinkError};
use crate::tag::{FULL_MASK, Mode, Request, TagError, TagLink, Tags};

pub use notice::Failure;

/// Bits of a tag: the context, the number of the call, and the rank that sends.
const CONTEXT_SHIFT: u32 = 48;
const CALL_SHIFT: u32 = 24;
const MASK: u64 = (1 << CALL_SHIFT) - 1;
/// In place of the number of a call: the message is a notice.
const NOTICE: u64 = 0;

/// Why a collective operation failed on this rank.
///
/// Other ranks may have completed the operation. This rank tells those that wait for it which rank
/// has failed; they return [`Ended`](Self::Ended), so that all ranks name the same one. Afterwards,
/// no operation of the same context works any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// There is no link to a rank.
    #[error("rank {rank}: {source}")]
    Link {
        /// The rank.
        rank: u32,
        /// Why.
        source: TagLinkError,
    },
    /// A message was not sent or received.
    #[error("rank {rank}: {source}")]
    Message {
        /// The rank that it is to or from.
        rank: u32,
        /// Why.
        source: TagError,
    },
    /// A rank has passed data of another length.
    #[error(
        "rank {rank} has passed {theirs} bytes and this rank {ours}: pass the same length on all"
    )]
    Length {
        /// The other rank.
        rank: u32,
        /// Bytes of its data.
        theirs: usize,
        /// Bytes of the data here.
        ours: usize,
    },
    /// The operation has failed on another rank.
    #[error(
        "rank {rank} {}, according to rank {by}",
        if *.late { "has not taken part in time" } else { "has failed" }
    )]
    Ended {
        /// The rank that died, or did not take part in time.
        rank: u32,
        /// The rank that says so.
        by: u32,
        /// The rank did not take part in time, and may live.
        late: bool,
    },
    /// A rank did not take part in time.
    #[error("rank {rank} has not taken part within {:.1} s", .waited.as_secs_f64())]
    TimedOut {
        /// The rank that is waited for.
        rank: u32,
        /// The timeout.
        waited: Duration,
    },
    /// There is no such rank.
    #[error("there is no rank {rank} of {size}")]
    NoRank {
        /// The number.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// There is no memory for a message.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A number that travels as its bytes, least significant byte first.
pub trait Element: Copy + sealed::Sealed {
    /// Appends the bytes.
    #[doc(hidden)]
    fn put(self, bytes: &mut Vec<u8>);
    /// Reads the number from exactly its bytes.
    #[doc(hidden)]
    fn get(bytes: &[u8]) -> Option<Self>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ty)*) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

elements!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

fn to_bytes<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    for value in values {
        value.put(&mut bytes);
    }
    bytes
}

/// Calls `update` with each value and what `bytes` has in its place. They have the same length.
fn zip<T: Element>(values: &mut [T], bytes: &[u8], update: impl Fn(T, T) -> T) {
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
        *value = T::get(bytes).map_or(*value, |other| update(*value, other));
    }
}

/// The collective operations of the ranks of a job.
///
/// All ranks call the same operations in the same order, with data of the same length. An operation
/// makes progress while it waits. A rank sends and receives about log2(ranks) messages per
/// operation, each with the whole data: for data of megabytes, divide it among the ranks.
///
/// Messages have tags whose upper 16 bits are the `context`, so that a program's own messages over
/// the same [`Tags`] are not confused with them. No other receive may match such tags. The program
/// takes its links from [`Peers::tag_link`].
///
/// ```
/// use barewire_wireup::collective::Collectives;
/// use barewire_wireup::tag::{Limits, Tags};
/// use barewire_wireup::{Node, Peers, Rules};
/// use std::time::Duration;
///
/// let mut job = barewire_bootstrap::detect()?;
/// let mut node = Node::open(&Rules::default())?;
/// let tags = Tags::over(&mut node, Limits::default())?;
/// let peers = Peers::exchange(&mut node, &mut *job, Duration::from_secs(30))?;
/// let mut all = Collectives::new(&peers, &tags, 1);
///
/// let mut sums = [f64::from(peers.rank()), 1.0];
/// all.allreduce(&mut node, &mut sums, |a, b| a + b)?;
/// assert_eq!(sums[1], f64::from(peers.size()));
///
/// let mut seed = [if peers.rank() == 0 { 7_u32 } else { 0 }];
/// all.broadcast(&mut node, 0, &mut seed)?;
/// assert_eq!(seed, [7]);
///
/// all.barrier(&mut node)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Collectives<'a> {
    peers: &'a Peers,
    tags: Tags,
    context: u16,
    timeout: Duration,
    /// Operations so far.
    calls: u64,
    /// How many links of the node had ended when the last operation began that succeeds only if all
    /// ranks take part.
    before: u64,
}

impl<'a> Collectives<'a> {
    /// Operations over the links of `peers`, whose node `tags` is [over](Tags::over). Every rank
    /// passes the same `context`.
    pub fn new(peers: &'a Peers, tags: &Tags, context: u16) -> Self {
        let (tags, timeout) = (tags.clone(), Duration::from_mins(1));
        Self { peers, tags, context, timeout, calls: 0, before: 0 }
    }

    /// Sets how long an operation waits for another rank; a minute otherwise.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> u32 {
        self.peers.rank()
    }

    /// Waits until every rank has called this.
    pub fn barrier(&mut self, node: &mut Node) -> Result<(), CollectiveError> {
        let now = node.endings();
        let result = self.wait_for_all(node);
        self.conclude_of_all(node, now, result)
    }

    fn wait_for_all(&mut self, node: &mut Node) -> Result<(), CollectiveError> {
        let call = self.begin();
        let (rank, size) = (u64::from(self.peers.rank()), u64::from(self.peers.size()));
        let mut distance = 1;
        // After each round, this rank knows that twice as many ranks before it have called.
        while distance < size {
            let to = (rank + distance) % size;
            let from = (rank + size - distance) % size;
            self.exchange(node, call, (to as u32, &[]), (from as u32, 0))?;
            distance *= 2;
        }
        Ok(())
    }

    /// Copies the data of the rank `root` to all ranks.
    pub fn broadcast<T: Element>(
        &mut self,
        node: &mut Node,
        root: u32,
        data: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.check(root)?;
        let result = self.spread(node, root, data);
        self.conclude(node, result)
    }

    fn spread<T: Element>(
        &mut self,
        node: &mut Node,
        root: u32,
        data: &mut [T],
    ) -> Result<(), CollectiveError> {
        let call = self.begin();
        let (rank, size) = (u64::from(self.peers.rank()), u64::from(self.peers.size()));
        // In a binomial tree, whose ranks count from the root.
        let place = (rank + size - u64::from(root)) % size;
        let at = |place: u64| ((place + u64::from(root)) % size) as u32;
        let mut distance = 1;
        while distance < size && place & distance == 0 {
            distance *= 2;
        }
        if place != 0 {
            let received = self.receive(node, call, at(place - distance), size_of_val(data))?;
            zip(data, &received, |_, new| new);
        }
        let bytes = to_bytes(data);
        while distance > 1 {
            distance /= 2;
            if place + distance < size {
                self.send(node, call, at(place + distance), &bytes)?;
            }
        }
        Ok(())
    }

    /// Replaces each value by the combination of the values of all ranks in its place. All ranks
    /// get the same bits. The order in which values are combined depends on the number of ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; the values are unspecified then.
    pub fn allreduce<T: Element>(
        &mut self,
        node: &mut Node,
        values: &mut [T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), CollectiveError> {
        let now = node.endings();
        let result = self.reduce(node, values, combine);
        self.conclude_of_all(node, now, result)
    }

    fn reduce<T: Element>(
        &mut self,
        node: &mut Node,
        values: &mut [T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), CollectiveError> {
        let call = self.begin();
        let (rank, size) = (self.peers.rank(), self.peers.size());
        let length = size_of_val(values);
        // The ranks beyond a power of two add theirs to those of a partner, and get the result.
        let core = 1 << size.ilog2();
        if let Some(partner) = rank.checked_sub(core) {
            self.send(node, call, partner, &to_bytes(values))?;
            let received = self.receive(node, call, partner, length)?;
            zip(values, &received, |_, new| new);
            return Ok(());
        }
        let partner = Some(rank + core).filter(|partner| *partner < size);
        if let Some(partner) = partner {
            let received = self.receive(node, call, partner, length)?;
            zip(values, &received, &combine);
        }
        let mut distance = 1;
        while distance < core {
            let other = rank ^ distance;
            let bytes = to_bytes(values);
            let received = self.exchange(node, call, (other, &bytes), (other, length))?;
            // Both sides combine in the same order.
            zip(values, &received, |own, theirs| {
                if rank < other { combine(own, theirs) } else { combine(theirs, own) }
            });
            distance *= 2;
        }
        if let Some(partner) = partner {
            self.send(node, call, partner, &to_bytes(values))?;
        }
        Ok(())
    }

    fn link(&self, node: &mut Node, rank: u32) -> Result<TagLink, CollectiveError> {
        let link = self.peers.tag_link(node, &self.tags, rank);
        link.map_err(|source| CollectiveError::Link { rank, source })
    }

    fn check(&self, rank: u32) -> Result<(), CollectiveError> {
        let size = self.peers.size();
        if rank < size { Ok(()) } else { Err(CollectiveError::NoRank { rank, size }) }
    }

    fn begin(&mut self) -> u64 {
        // From 1 to the mask: `NOTICE` is no call.
        self.calls = (self.calls % MASK).wrapping_add(1);
        self.calls
    }

    fn tag(&self, call: u64, from: u32) -> u64 {
        let context = u64::from(self.context) << CONTEXT_SHIFT;
        context | (call & MASK) << CALL_SHIFT | u64::from(from) & MASK
    }

    /// Sends bytes to a rank while it receives a number of bytes from a rank, which may be another
    /// one.
    fn exchange(
        &self,
        node: &mut Node,
        call: u64,
        (to, bytes): (u32, &[u8]),
        (from, length): (u32, usize),
    ) -> Result<Vec<u8>, CollectiveError> {
        let sending = self.start(node, call, to, bytes)?;
        let received = self.receive(node, call, from, length)?;
        self.finish(node, to, sending)?;
        Ok(received)
    }

    fn send(
        &self,
        node: &mut Node,
        call: u64,
        to: u32,
        bytes: &[u8],
    ) -> Result<(), CollectiveError> {
        let sending = self.start(node, call, to, bytes)?;
        self.finish(node, to, sending)
    }

    fn start(
        &self,
        node: &mut Node,
        call: u64,
        to: u32,
        bytes: &[u8],
    ) -> Result<(TagLink, Request), CollectiveError> {
        let link = self.link(node, to)?;
        let tag = self.tag(call, self.peers.rank());
        let request = self.tags.send(&link, tag, bytes, Mode::Auto);
        Ok((link, request))
    }

    fn finish(
        &self,
        node: &mut Node,
        to: u32,
        (link, request): (TagLink, Request),
    ) -> Result<(), CollectiveError> {
        self.wait(node, to, &link, || request.poll()).map(drop)
    }

    /// Receives `ours` bytes from a rank.
    fn receive(
        &self,
        node: &mut Node,
        call: u64,
        from: u32,
        ours: usize,
    ) -> Result<Vec<u8>, CollectiveError> {
        let (link, tag) = (self.link(node, from)?, self.tag(call, from));
        let found = self.wait(node, from, &link, || {
            // Another member of the job may use any tag, but not this link: what it sends is
            // discarded.
            let found = self.tags.probe(tag, FULL_MASK)?;
            (found.envelope().link == link.key()).then_some(Ok(found))
        })?;
        let theirs = found.envelope().length;
        if theirs != ours {
            return Err(CollectiveError::Length { rank: from, theirs, ours });
        }
        let buffer = self.tags.buffer(ours)?;
        let request = found.receive(&buffer);
        self.wait(node, from, &link, || request.poll())?;
        Ok(buffer.to_vec())
    }

    /// Makes progress until `done` returns a result, or the link to `rank` fails.
    fn wait<R>(
        &self,
        node: &mut Node,
        rank: u32,
        link: &TagLink,
        mut done: impl FnMut() -> Option<Result<R, TagError>>,
    ) -> Result<R, CollectiveError> {
        let (start, mut idle) = (Instant::now(), Idle::default());
        let failed = |source| CollectiveError::Message { rank, source };
        loop {
            if let Some(result) = done() {
                return result.map_err(failed);
            }
            // A receive belongs to no link, so it does not end with it.
            if let Some(failure) = self.tags.failure(link) {
                return Err(failed(failure));
            }
            if start.elapsed() >= self.timeout {
                return Err(CollectiveError::TimedOut { rank, waited: self.timeout });
            }
            if self.tags.progress(node) > 0 {
                idle = Idle::default();
            } else if let Some(notice) = self.notice() {
                return Err(notice);
            } else {
                node.progress_or_rest(&mut idle);
            }
        }
    }
}
