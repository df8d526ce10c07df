//! Memory of the ranks of a parallel program that every rank reads, writes and adds to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use barewire::{
    Access, AtomicOp, Attributes, Domain, Endpoint, FetchResult, Flags, FlushMode, Memory,
    MemoryError, RemoteRegion, Unpack, WaitError,
};
use barewire_bootstrap::Bootstrap;
use thiserror::Error;

use crate::link::Link;
use crate::node::Node;
use crate::peers::Peers;
use crate::plan::Kind;
use crate::windows::WindowError;

/// How often an operation examines the connections. Over shared memory an operation never waits, so
/// without this it would not notice that the process of the other rank has ended.
const EXAMINE: Duration = Duration::from_millis(1);

/// Why an operation on memory of a rank failed.
#[derive(Debug, Error)]
#[error("memory of rank {rank}: {source}")]
pub struct SharedError {
    /// The rank that owns the memory.
    pub rank: u32,
    /// Why.
    pub source: AccessError,
}

/// As [`SharedError`], without the rank.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The rank has opened no memory, or there is no such rank.
    #[error("there is none")]
    None,
    /// The range is not inside the memory, or a word of this rank's memory is not aligned.
    #[error(transparent)]
    Range(#[from] MemoryError),
    /// The operation failed.
    #[error(transparent)]
    Failed(#[from] WaitError),
    /// The device does the atomics of the other ranks, and this rank does not reach its own memory
    /// by the device.
    #[error(
        "atomics of {transport} are not atomic with those of the CPU: open the node with \
         Rules::only([\"{transport}\"]), so that this rank uses its device for its own memory, too"
    )]
    OwnAtomics {
        /// The transport.
        transport: String,
    },
}

/// Memory of the ranks, as [`Peers::share`] opens it.
///
/// An operation on memory of a rank whose process has ended fails: over `shm` and `tcp` if it
/// begins 1 ms after that end or later, over RDMA when the device's retries are used up.
#[derive(Debug)]
pub struct Shared {
    rank: u32,
    /// When the connections were examined last.
    examined: Cell<Instant>,
    own: Option<Own>,
    /// By rank; `None` for those without memory, and for this one unless a link leads to it.
    others: Vec<Option<Other>>,
}

/// The memory of this rank.
#[derive(Debug)]
struct Own {
    memory: Memory,
    /// Where it is registered, and others reach it.
    domain: Domain,
    /// The atomics of the others are those of a device.
    by_device: bool,
}

/// The memory of another rank.
#[derive(Debug)]
struct Other {
    _link: Link,
    endpoint: Endpoint,
    region: RemoteRegion,
    /// Longest buffered put and get.
    put: usize,
    get: usize,
}

/// The lane of a link for the operations: one that has all of them.
fn lane(link: &Link) -> Option<(Endpoint, Domain)> {
    link.lane(Kind::Atomics).cloned().zip(link.domain(Kind::Atomics).cloned())
}

fn device(domain: &Domain) -> String {
    format!("{}/{}", domain.transport(), domain.name())
}

/// Returns the attributes of the node's interface of a domain.
fn attributes(node: &Node, domain: &Domain) -> Option<Attributes> {
    let found = node.interfaces().find(|(_, known)| device(known) == device(domain));
    found.map(|(interface, _)| interface.attributes().clone())
}

impl Peers {
    /// Opens `length` zeroed bytes of this rank to all ranks, until the result is dropped, and
    /// connects this rank with those that open memory. Every rank has to call this, and waits for
    /// the others; the length may differ between ranks, and may be 0. `name` is a key of the job,
    /// which a rank uses once: see [`Bootstrap::put`].
    ///
    /// All ranks have to reach the memory of a rank by the same device of that rank, since the
    /// atomics of two devices are not atomic to each other: on one host they do. Between hosts,
    /// give each rank a second node of one transport ([`Peers::exchange_as`],
    /// [`Rules::only`](crate::Rules::only)) for this memory, as the example `shared_counter` does:
    /// the first node keeps `shm` for the rest.
    ///
    /// ```
    /// use barewire_wireup::{Node, Peers, Rules};
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_secs(30);
    /// let mut job = barewire_bootstrap::detect()?;
    /// let mut node = Node::open(&Rules::default())?;
    /// let peers = Peers::exchange(&mut node, &mut *job, timeout)?;
    ///
    /// // A counter in the memory of rank 0.
    /// let length = if peers.rank() == 0 { 8 } else { 0 };
    /// let shared = peers.share(&mut node, &mut *job, "counter", length, timeout)?;
    /// let number = shared.fetch_add(&mut node, 0, 0, 1)?;
    /// assert!(number < u64::from(peers.size()));
    /// peers.fence(&mut node, &mut *job, timeout)?; // until then, others may need this rank
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(
        &self,
        node: &mut Node,
        job: &mut dyn Bootstrap,
        name: &str,
        length: usize,
        timeout: Duration,
    ) -> Result<Shared, WindowError> {
        let rank = self.rank();
        let length_key = format!("{name}-length");
        job.put(&length_key, &(length as u64).to_le_bytes())?;
        self.fence(node, job, timeout)?;
        let mut links = Vec::new();
        for other in 0..self.size() {
            let opens = job.get(other, &length_key)?.iter().any(|byte| *byte != 0);
            if opens || length > 0 {
                links.push(Some((self.connect(node, other, timeout)?, opens)));
            } else {
                links.push(None);
            }
        }
        let own = if length > 0 { Some(self.open_own(node, &links, length)?) } else { None };
        if let Some(own) = &own {
            job.put(name, &own.memory.pack_region())?;
        }
        self.fence(node, job, timeout)?;
        // This rank reaches its own memory by a link if that leads to the same device.
        let is_reached = |other: u32, domain: &Domain| {
            let same = |own: &Own| device(&own.domain) == device(domain);
            other != rank || own.as_ref().is_some_and(same)
        };
        let mut others = Vec::new();
        for (other, link) in (0..).zip(links) {
            let Some((link, true)) = link else {
                others.push(None);
                continue;
            };
            let lane = lane(&link).filter(|(_, domain)| is_reached(other, domain));
            let Some((endpoint, domain)) = lane else {
                if other != rank {
                    return Err(WindowError::NoLane { rank: other });
                }
                others.push(None);
                continue;
            };
            let region = domain.unpack_region(&job.get(other, name)?);
            let region = region.map_err(|source| WindowError::Key { rank: other, source })?;
            let limits = attributes(node, &domain);
            let (put, get) = limits.map_or((1, 1), |a| (a.put.max_bcopy, a.get.max_bcopy));
            let (put, get) = (put.max(1), get.max(1));
            others.push(Some(Other { _link: link, endpoint, region, put, get }));
        }
        Ok(Shared { rank, examined: Cell::new(Instant::now()), own, others })
    }

    /// Allocates the memory of this rank where all links reach it.
    fn open_own(
        &self,
        node: &Node,
        links: &[Option<(Link, bool)>],
        length: usize,
    ) -> Result<Own, WindowError> {
        let rank = self.rank();
        let mut chosen: Option<(u32, Domain)> = None;
        for (other, link) in (0..).zip(links) {
            let Some((link, _)) = link.as_ref().filter(|_| other != rank) else { continue };
            let (_, domain) = lane(link).ok_or(WindowError::NoLane { rank: other })?;
            match &chosen {
                Some((first, known)) if device(known) != device(&domain) => {
                    let devices = [device(known), device(&domain)];
                    return Err(WindowError::Mixed { ranks: [*first, other], devices });
                }
                Some(_) => {}
                None => chosen = Some((other, domain)),
            }
        }
        // A rank alone has a link to itself only.
        let alone = || links.get(rank as usize)?.as_ref().and_then(|(link, _)| lane(link));
        let domain = chosen.map(|(_, domain)| domain);
        let domain = domain.or_else(|| alone().map(|(_, domain)| domain));
        let domain = domain.ok_or(WindowError::NoLane { rank })?;
        let memory = domain.allocate(length, Access::all());
        let memory = memory.map_err(|source| WindowError::Memory { rank, source })?;
        let by_cpu = |attributes: Attributes| attributes.flags.contains(Flags::ATOMIC_CPU);
        let by_device = !attributes(node, &domain).is_some_and(by_cpu);
        Ok(Own { memory, domain, by_device })
    }
}

impl Other {
    fn put(&self, node: &mut Node, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let (start, key) = (self.region.at(offset, bytes.len())?, self.region.key());
        for (number, piece) in (0..).zip(bytes.chunks(self.put)) {
            let at = start + number * self.put as u64;
            let pack = |target: &mut [u8]| {
                target[..piece.len()].copy_from_slice(piece);
                piece.len()
            };
            node.post(|| self.endpoint.put_bcopy(pack, at, key)).map_err(WaitError::from)?;
        }
        Ok(node.complete(|done| self.endpoint.flush(FlushMode::Remote, Some(done)))?)
    }

    fn get(&self, node: &mut Node, offset: usize, target: &mut [u8]) -> Result<(), AccessError> {
        let (start, key) = (self.region.at(offset, target.len())?, self.region.key());
        let read = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&read);
        let unpack = Unpack::new(move |bytes| *sink.borrow_mut() = bytes.to_vec());
        for (number, piece) in (0..).zip(target.chunks_mut(self.get)) {
            let (at, length) = (start + number * self.get as u64, piece.len());
            node.complete(|done| self.endpoint.get_bcopy(&unpack, length, at, key, Some(done)))?;
            piece.copy_from_slice(&read.borrow());
        }
        Ok(())
    }

    fn fetch_add(&self, node: &mut Node, offset: usize, operand: u64) -> Result<u64, AccessError> {
        let (word, key, old) = (self.region.at(offset, 8)?, self.region.key(), FetchResult::new());
        let add = AtomicOp::add(operand);
        node.complete(|done| self.endpoint.atomic_fetch(add, word, key, &old, Some(done)))?;
        Ok(old.get())
    }
}

impl Shared {
    /// Returns the memory of this rank, unless it has opened none. Others may change it at any
    /// time.
    pub fn own(&self) -> Option<&Memory> {
        self.own.as_ref().map(|own| &own.memory)
    }

    /// Returns how many bytes a rank has opened.
    pub fn len(&self, rank: u32) -> usize {
        let own = self.own_of(rank).map(|own| own.memory.len());
        own.or_else(|| self.other(rank).map(|other| other.region.len())).unwrap_or(0)
    }

    fn other(&self, rank: u32) -> Option<&Other> {
        self.others.get(rank as usize)?.as_ref()
    }

    /// Returns the memory of `rank` if that is this rank.
    fn own_of(&self, rank: u32) -> Option<&Own> {
        self.own.as_ref().filter(|_| rank == self.rank)
    }

    /// Returns the memory of another rank, for an operation.
    fn reach(&self, node: &mut Node, rank: u32) -> Option<&Other> {
        let other = self.other(rank)?;
        if self.examined.get().elapsed() >= EXAMINE {
            node.progress_with_connections();
            self.examined.set(Instant::now());
        }
        Some(other)
    }

    /// Writes to the memory of a rank. Returns when the bytes are there.
    pub fn put(
        &self,
        node: &mut Node,
        rank: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), SharedError> {
        let result = match (self.own_of(rank), self.reach(node, rank)) {
            (Some(own), _) => own.memory.write(offset, bytes).map_err(AccessError::from),
            (None, Some(other)) => other.put(node, offset, bytes),
            (None, None) => Err(AccessError::None),
        };
        result.map_err(|source| SharedError { rank, source })
    }

    /// Reads from the memory of a rank.
    pub fn get(
        &self,
        node: &mut Node,
        rank: u32,
        offset: usize,
        target: &mut [u8],
    ) -> Result<(), SharedError> {
        let result = match (self.own_of(rank), self.reach(node, rank)) {
            (Some(own), _) => own.memory.read(offset, target).map_err(AccessError::from),
            (None, Some(other)) => other.get(node, offset, target),
            (None, None) => Err(AccessError::None),
        };
        result.map_err(|source| SharedError { rank, source })
    }

    /// Adds to a word of 8 bytes in the memory of a rank, and returns what it was before. This is
    /// atomic with the other calls of this function, by any rank.
    pub fn fetch_add(
        &self,
        node: &mut Node,
        rank: u32,
        offset: usize,
        operand: u64,
    ) -> Result<u64, SharedError> {
        let result = match (self.own_of(rank), self.reach(node, rank)) {
            (Some(own), _) if !own.by_device => {
                let word = own.memory.word(offset).map_err(AccessError::from);
                word.map(|word| word.fetch_add(operand, Ordering::AcqRel))
            }
            (_, Some(other)) => other.fetch_add(node, offset, operand),
            (Some(own), None) => {
                Err(AccessError::OwnAtomics { transport: own.domain.transport().to_string() })
            }
            (None, None) => Err(AccessError::None),
        };
        result.map_err(|source| SharedError { rank, source })
    }
}
