//! Memory that the ranks of a parallel program open to their neighbours.

use std::time::Duration;

use barewire::error::KeyError;
use barewire::{Access, Endpoint, Memory, MemoryError, RemoteRegion};
use barewire_bootstrap::Bootstrap;
use thiserror::Error;

use crate::link::{Link, LinkError, State};
use crate::node::{ConnectError, Idle, Node};
use crate::peers::Peers;
use crate::plan::Kind;

/// Why there is no window to a rank.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The launcher's key-value exchange failed.
    #[error(transparent)]
    Bootstrap(#[from] barewire_bootstrap::Error),
    /// The rank cannot be reached.
    #[error("rank {rank}: {source}")]
    Connect {
        /// The rank.
        rank: u32,
        /// Why.
        source: ConnectError,
    },
    /// The link failed. Its error names the rank.
    #[error("{source}")]
    Link {
        /// The rank.
        rank: u32,
        /// Why.
        source: LinkError,
    },
    /// The link was not connected in time.
    #[error("rank {rank} was not connected within {:.1} s; its node has to make progress", .waited.as_secs_f64())]
    TimedOut {
        /// The rank.
        rank: u32,
        /// The timeout.
        waited: Duration,
    },
    /// No transport to the rank has puts and gets.
    #[error("rank {rank}: no transport to it has puts and gets; see Node::plan for the reasons")]
    NoLane {
        /// The rank.
        rank: u32,
    },
    /// Ranks reach the memory of this rank by different devices.
    #[error(
        "rank {} reaches this rank by {}, and rank {} by {}, whose atomics are not atomic to each \
         other: open a second node with Rules::only([\"tcp\"]) for this memory, and exchange its \
         address by Peers::exchange_as",
        .ranks[0], .devices[0], .ranks[1], .devices[1]
    )]
    Mixed {
        /// Two of the ranks.
        ranks: [u32; 2],
        /// Their transports, with the devices here.
        devices: [String; 2],
    },
    /// The memory of this rank cannot be allocated.
    #[error("rank {rank}: {source}")]
    Memory {
        /// The rank that the memory is for.
        rank: u32,
        /// Why.
        source: MemoryError,
    },
    /// The rank published bytes that are no key to its memory.
    #[error("the key of rank {rank}: {source}")]
    Key {
        /// The rank.
        rank: u32,
        /// What is wrong with it.
        source: KeyError,
    },
}

/// A rank with which this one shares a [`Window`].
///
/// Ranks can share several windows, as in a ring of two, where the next rank is also the previous
/// one: hence the names. Each rank calls a window as its neighbour does the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour<'a> {
    rank: u32,
    name: &'a str,
    peer_name: &'a str,
}

impl<'a> Neighbour<'a> {
    /// The rank, what this rank calls the window, and what the neighbour calls it. Names are keys of
    /// the job: see [`Bootstrap::put`]. A rank uses each name once.
    pub fn new(rank: u32, name: &'a str, peer_name: &'a str) -> Self {
        Self { rank, name, peer_name }
    }
}

/// Memory of this rank and memory of a neighbour, which each of them can read and write.
#[derive(Debug)]
#[non_exhaustive]
pub struct Window {
    /// The link to the neighbour.
    pub link: Link,
    /// The endpoint that reaches the neighbour's memory.
    pub endpoint: Endpoint,
    /// The memory of this rank. It is zeroed at first.
    pub memory: Memory,
    /// The neighbour's memory.
    pub remote: RemoteRegion,
}

impl Peers {
    /// Connects the link to a rank, and makes progress until it is connected.
    ///
    /// # Errors
    /// [`WindowError::Connect`], [`WindowError::Link`], [`WindowError::TimedOut`]
    ///
    /// # Panics
    /// As [`link`](Self::link).
    pub fn connect(
        &self,
        node: &mut Node,
        rank: u32,
        timeout: Duration,
    ) -> Result<Link, WindowError> {
        let link = self.link(node, rank);
        let link = link.map_err(|source| WindowError::Connect { rank, source })?;
        let settled = || matches!(link.state(), State::Connected | State::Failed(_));
        match (node.until(timeout, settled), link.error()) {
            (_, Some(source)) => Err(WindowError::Link { rank, source }),
            (true, None) => Ok(link),
            (false, None) => Err(WindowError::TimedOut { rank, waited: timeout }),
        }
    }

    /// Waits until every rank has called this as often as this one, as [`Bootstrap::fence`], and
    /// makes progress meanwhile, so that other ranks can complete what needs this one.
    ///
    /// # Errors
    /// As [`Bootstrap::fence`].
    pub fn fence(
        &self,
        node: &mut Node,
        job: &mut dyn Bootstrap,
        timeout: Duration,
    ) -> Result<(), barewire_bootstrap::Error> {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| job.fence(timeout));
            let mut idle = Idle::default();
            while !waiting.is_finished() {
                node.progress_or_rest(&mut idle);
            }
            waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Allocates memory for each neighbour, and exchanges the keys: the result has a window for each,
    /// in this order. Every rank has to call this,
    /// also one without neighbours, and waits for the others. Windows have `length` bytes, the same
    /// at both ends.
    ///
    /// ```
    /// use barewire_wireup::{Neighbour, Node, Peers, Rules};
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_secs(30);
    /// let mut job = barewire_bootstrap::detect()?;
    /// let mut node = Node::open(&Rules::default())?;
    /// let peers = Peers::exchange(&mut node, &mut *job, timeout)?;
    /// let (rank, size) = (peers.rank(), peers.size());
    /// let next = Neighbour::new((rank + 1) % size, "next", "previous");
    /// let previous = Neighbour::new((rank + size - 1) % size, "previous", "next");
    /// let windows = peers.windows(&mut node, &mut *job, &[next, previous], 4096, timeout)?;
    /// let [next, previous] = &windows[..] else { unreachable!("a window for each neighbour") };
    ///
    /// let (target, key) = (next.remote.at(0, 5)?, next.remote.key());
    /// node.post(|| next.endpoint.put_short(b"hello", target, key))?;
    /// assert!(node.until(timeout, || previous.memory.load_u8(4).is_ok_and(|last| last == b'o')));
    /// peers.fence(&mut node, &mut *job, timeout)?; // until then, others may write to this memory
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WindowError`]
    ///
    /// # Panics
    /// As [`link`](Self::link).
    pub fn windows(
        &self,
        node: &mut Node,
        job: &mut dyn Bootstrap,
        neighbours: &[Neighbour<'_>],
        length: usize,
        timeout: Duration,
    ) -> Result<Vec<Window>, WindowError> {
        let mut own = Vec::new();
        for &Neighbour { rank, name, .. } in neighbours {
            let link = self.connect(node, rank, timeout)?;
            let lane = link.lane(Kind::Memory).cloned().zip(link.domain(Kind::Memory));
            let (endpoint, domain) = lane.ok_or(WindowError::NoLane { rank })?;
            let memory = domain.allocate(length, Access::all());
            let memory = memory.map_err(|source| WindowError::Memory { rank, source })?;
            job.put(name, &memory.pack_region())?;
            own.push((link, endpoint, memory));
        }
        self.fence(node, job, timeout)?;
        let mut windows = Vec::new();
        for (&Neighbour { rank, peer_name, .. }, (link, endpoint, memory)) in
            neighbours.iter().zip(own)
        {
            let packed = job.get(rank, peer_name)?;
            let domain = link.domain(Kind::Memory).ok_or(WindowError::NoLane { rank })?;
            let remote = domain.unpack_region(&packed);
            let remote = remote.map_err(|source| WindowError::Key { rank, source })?;
            windows.push(Window { link, endpoint, memory, remote });
        }
        Ok(windows)
    }
}
