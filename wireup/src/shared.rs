//! Memory of the ranks of a parallel program that every rank reads, writes and adds to.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use barewire::{
    Access, AtomicOp, Domain, Endpoint, FetchResult, Flags, FlushMode, Memory, MemoryError,
    RemoteRegion, Unpack, WaitError,
};
use barewire_bootstrap::Bootstrap;
use thiserror::Error;

use crate::link::Link;
use crate::node::Node;
use crate::peers::Peers;
use crate::plan::Kind;
use crate::windows::WindowError;

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
#[derive(Debug)]
pub struct Shared {
    rank: u32,
    own: Option<Own>,
    /// By rank; `None` for those without memory, and for this one unless a link leads to it.
    others: Vec<Option<Other>>,
}

/// The memory of this rank.
#[derive(Debug)]
struct Own {
    memory: Memory,
    /// The transport by which others access it, if its atomics are those of a device.
    device: Option<String>,
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

impl Peers {
    /// Opens `length` zeroed bytes of this rank to all ranks, until the result is dropped, and
    /// connects this rank with those that open memory. Every rank has to call this, with a length
    /// of its own, which may be 0, and waits for the others. `name` is a key of the job: see
    /// [`Bootstrap::put`]. A rank uses each name once.
    ///
    /// All ranks have to reach the memory of a rank by the same device of that rank, since the
    /// atomics of two devices are not atomic to each other: on one host, or with
    /// [`Rules::only`](crate::Rules::only), they do.
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
    ///
    /// # Errors
    /// [`WindowError`]
    pub fn share(
        &self,
        node: &mut Node,
        job: &mut dyn Bootstrap,
        name: &str,
        length: usize,
        timeout: Duration,
    ) -> Result<Shared, WindowError> {
        let own = self.rank();
        let length_key = format!("{name}-length");
        job.put(&length_key, &(length as u64).to_le_bytes())?;
        self.fence(node, job, timeout)?;
        let mut links = Vec::new();
        for rank in 0..self.size() {
            let theirs = job.get(rank, &length_key)?;
            let opens = theirs.iter().any(|byte| *byte != 0);
            let is_used = opens || length > 0;
            links.push(if is_used { Some(self.connect(node, rank, timeout)?) } else { None });
        }
        let memory = if length > 0 { self.open_own(node, &links, length)? } else { None };
        if let Some(own) = &memory {
            job.put(name, &own.memory.pack_region())?;
        }
        self.fence(node, job, timeout)?;
        let mut others = Vec::new();
        for (rank, link) in (0..).zip(links) {
            let Some(link) = link else {
                others.push(None);
                continue;
            };
            let opens = job.get(rank, &length_key)?.iter().any(|byte| *byte != 0);
            let lane = lane(&link).filter(|(_, domain)| {
                let own_domain = memory.as_ref().map(|own| &own.domain);
                rank != own || own_domain.is_some_and(|own| device(own) == device(domain))
            });
            let (endpoint, domain) = match lane {
                Some(lane) if opens => lane,
                None if opens && rank != own => return Err(WindowError::NoLane { rank }),
                _ => {
                    others.push(None);
                    continue;
                }
            };
            let region = domain.unpack_region(&job.get(rank, name)?);
            let region = region.map_err(|source| WindowError::Key { rank, source })?;
            let limits = node.interfaces().find(|(_, known)| device(known) == device(&domain));
            let limits = limits.map(|(interface, _)| interface.attributes().clone());
            let (put, get) = limits.map_or((1, 1), |a| (a.put.max_bcopy, a.get.max_bcopy));
            let (put, get) = (put.max(1), get.max(1));
            others.push(Some(Other { _link: link, endpoint, region, put, get }));
        }
        let own = memory.map(|Opened { memory, device, .. }| Own { memory, device });
        Ok(Shared { rank: self.rank(), own, others })
    }

    /// Allocates the memory of this rank where all links reach it.
    fn open_own(
        &self,
        node: &Node,
        links: &[Option<Link>],
        length: usize,
    ) -> Result<Option<Opened>, WindowError> {
        let mut chosen: Option<(u32, Domain)> = None;
        for (rank, link) in (0..).zip(links) {
            let Some(link) = link.as_ref().filter(|_| rank != self.rank()) else { continue };
            let (_, domain) = lane(link).ok_or(WindowError::NoLane { rank })?;
            match &chosen {
                Some((first, known)) if device(known) != device(&domain) => {
                    let devices = [device(known), device(&domain)];
                    return Err(WindowError::Mixed { ranks: [*first, rank], devices });
                }
                Some(_) => {}
                None => chosen = Some((rank, domain)),
            }
        }
        let alone = links.get(self.rank() as usize).and_then(Option::as_ref).and_then(lane);
        let rank = self.rank();
        let domain = chosen.map(|(_, domain)| domain).or(alone.map(|(_, domain)| domain));
        let domain = domain.ok_or(WindowError::NoLane { rank })?;
        let memory = domain.allocate(length, Access::all());
        let memory = memory.map_err(|source| WindowError::Memory { rank, source })?;
        let flags = node.interfaces().find(|(_, known)| device(known) == device(&domain));
        let by_cpu =
            flags.is_some_and(|(one, _)| one.attributes().flags.contains(Flags::ATOMIC_CPU));
        let device = (!by_cpu).then(|| domain.transport().to_string());
        Ok(Some(Opened { memory, domain, device }))
    }
}

/// Memory of this rank, with the domain in which it is.
struct Opened {
    memory: Memory,
    domain: Domain,
    device: Option<String>,
}

impl Shared {
    /// Returns the memory of this rank, unless it has opened none. Others may change it at any
    /// time.
    pub fn own(&self) -> Option<&Memory> {
        self.own.as_ref().map(|own| &own.memory)
    }

    /// Returns how many bytes a rank has opened.
    pub fn len(&self, rank: u32) -> usize {
        let own = self.own.as_ref().filter(|_| rank == self.rank).map(|own| own.memory.len());
        own.or_else(|| self.other(rank).map(|other| other.region.len())).unwrap_or(0)
    }

    fn other(&self, rank: u32) -> Option<&Other> {
        self.others.get(rank as usize)?.as_ref()
    }

    /// Writes to the memory of a rank. Returns when the bytes are there.
    ///
    /// # Errors
    /// [`SharedError`]
    pub fn put(
        &self,
        node: &mut Node,
        rank: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), SharedError> {
        let failed = |source: AccessError| SharedError { rank, source };
        if let Some(own) = self.own.as_ref().filter(|_| rank == self.rank) {
            return own.memory.write(offset, bytes).map_err(|error| failed(error.into()));
        }
        let other = self.other(rank).ok_or_else(|| failed(AccessError::None))?;
        let mut run = || -> Result<(), AccessError> {
            let (start, key) = (other.region.at(offset, bytes.len())?, other.region.key());
            for (number, piece) in (0..).zip(bytes.chunks(other.put)) {
                let at = start + number * other.put as u64;
                let pack = |target: &mut [u8]| {
                    target[..piece.len()].copy_from_slice(piece);
                    piece.len()
                };
                node.post(|| other.endpoint.put_bcopy(pack, at, key)).map_err(WaitError::from)?;
            }
            let flush = |done: &_| other.endpoint.flush(FlushMode::Remote, Some(done));
            Ok(node.complete(flush)?)
        };
        run().map_err(failed)
    }

    /// Reads from the memory of a rank.
    ///
    /// # Errors
    /// [`SharedError`]
    pub fn get(
        &self,
        node: &mut Node,
        rank: u32,
        offset: usize,
        target: &mut [u8],
    ) -> Result<(), SharedError> {
        let failed = |source: AccessError| SharedError { rank, source };
        if let Some(own) = self.own.as_ref().filter(|_| rank == self.rank) {
            return own.memory.read(offset, target).map_err(|error| failed(error.into()));
        }
        let other = self.other(rank).ok_or_else(|| failed(AccessError::None))?;
        let mut run = || -> Result<(), AccessError> {
            let (start, key) = (other.region.at(offset, target.len())?, other.region.key());
            let read = Rc::new(RefCell::new(Vec::new()));
            let sink = Rc::clone(&read);
            let unpack = Unpack::new(move |bytes| *sink.borrow_mut() = bytes.to_vec());
            for (number, piece) in (0..).zip(target.chunks_mut(other.get)) {
                let (at, length) = (start + number * other.get as u64, piece.len());
                let get = |done: &_| other.endpoint.get_bcopy(&unpack, length, at, key, Some(done));
                node.complete(get)?;
                piece.copy_from_slice(&read.borrow());
            }
            Ok(())
        };
        run().map_err(failed)
    }

    /// Adds to a word of 8 bytes in the memory of a rank, and returns what it was before. This is
    /// atomic with the other calls of this function, by any rank.
    ///
    /// # Errors
    /// [`SharedError`]
    pub fn fetch_add(
        &self,
        node: &mut Node,
        rank: u32,
        offset: usize,
        operand: u64,
    ) -> Result<u64, SharedError> {
        let failed = |source: AccessError| SharedError { rank, source };
        let own = self.own.as_ref().filter(|_| rank == self.rank);
        let other = match (own, self.other(rank)) {
            (Some(Own { memory, device: None }), _) => {
                let word = memory.word(offset).map_err(|error| failed(error.into()))?;
                return Ok(word.fetch_add(operand, Ordering::AcqRel));
            }
            (_, Some(other)) => other,
            (Some(Own { device: Some(transport), .. }), None) => {
                let transport = transport.clone();
                return Err(failed(AccessError::OwnAtomics { transport }));
            }
            (None, None) => return Err(failed(AccessError::None)),
        };
        let old = FetchResult::new();
        let word = other.region.at(offset, 8).map_err(|error| failed(error.into()))?;
        let add = |done: &_| {
            let (op, key) = (AtomicOp::add(operand), other.region.key());
            other.endpoint.atomic_fetch(op, word, key, &old, Some(done))
        };
        node.complete(add).map_err(|error| failed(error.into()))?;
        Ok(old.get())
    }
}
