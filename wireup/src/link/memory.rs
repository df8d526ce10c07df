//! Memory for bulk transfers, which the rails of a link divide among themselves.
#![allow(unsafe_code, reason = "registers one allocation with several devices: see `Local`")]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire::address::AddressError;
use barewire::error::KeyError;
use barewire::{
    Access, Cause, Completion, Endpoint, Hold, Memory, MemoryError, OperationError, PendingRequest,
    PendingResult, Post, PostError, Posted, RemoteRegion,
};

use super::{LaneInfo, Link};
use crate::plan::{Kind, shares};
use crate::words::{WORD, Words};

/// Memory of this process, registered with the device of each bulk lane of a link. Clones are
/// handles to the same memory; it is deregistered when the last one is dropped.
///
/// [`Link::allocate`] makes it. Like [`Memory`], it is read and written by copies, because devices
/// and peers may access it at the same time.
#[derive(Clone)]
pub struct LinkMemory(Rc<Local>);

/// The registrations, and what they cover.
///
/// Invariant: `words` is freed only if every registration of it was deregistered successfully. It
/// is leaked otherwise.
struct Local {
    /// The lane's place in the link and its registration. There is one, at least.
    rails: Vec<(usize, Memory)>,
    /// The memory, if several devices have it. A single device allocated its own.
    words: Option<Words>,
}

impl Drop for Local {
    fn drop(&mut self) {
        for (_, memory) in self.rails.drain(..) {
            if memory.deregister().is_err() {
                std::mem::forget(self.words.take());
            }
        }
    }
}

impl LinkMemory {
    fn first(&self) -> Result<&Memory, MemoryError> {
        self.0.rails.first().map(|(_, memory)| memory).ok_or(MemoryError::Empty)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.first().map_or(0, Memory::len)
    }

    /// True for memory of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `source` to `offset`.
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), MemoryError> {
        self.first()?.write(offset, source)
    }

    /// Copies from `offset` into `target`.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), MemoryError> {
        self.first()?.read(offset, target)
    }

    /// The bytes from which the peer makes a [`LinkRegion`]: for each rail its place in
    /// [`Link::lanes`] in one byte, a length in two bytes, least significant byte first, and
    /// [`Memory::pack_region`] of that length.
    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (lane, memory) in &self.0.rails {
            let region = memory.pack_region();
            // Both are small: a link has few lanes, and a key some dozens of bytes.
            bytes.push(*lane as u8);
            bytes.extend((region.len() as u16).to_le_bytes());
            bytes.extend(region);
        }
        bytes
    }

    fn of_lane(&self, lane: usize) -> Option<&Memory> {
        self.0.rails.iter().find(|(at, _)| *at == lane).map(|(_, memory)| memory)
    }
}

impl fmt::Debug for LinkMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkMemory")
            .field("length", &self.len())
            .field("rails", &self.0.rails.len())
            .finish_non_exhaustive()
    }
}

/// The peer's [`LinkMemory`], as this side's rails reach it. Clones are handles to the same keys.
#[derive(Debug, Clone)]
pub struct LinkRegion(Rc<[(usize, RemoteRegion)]>);

impl LinkRegion {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.first().map_or(0, |(_, region)| region.len())
    }

    /// True for memory of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn of_lane(&self, lane: usize) -> Option<&RemoteRegion> {
        self.0.iter().find(|(at, _)| *at == lane).map(|(_, region)| region)
    }
}

impl Link {
    fn bulk_lanes(&self) -> impl Iterator<Item = (usize, &LaneInfo)> {
        let lanes = self.lanes().iter().enumerate();
        lanes.filter(|(_, info)| info.lane.kinds.contains(Kind::Bulk))
    }

    /// Allocates zeroed memory for [`put_zcopy`](Self::put_zcopy) and
    /// [`get_zcopy`](Self::get_zcopy), and registers it with the device of each bulk lane.
    ///
    /// # Errors
    /// [`MemoryError`]; [`MemoryError::Empty`] for no bytes, and without a bulk lane, as before the
    /// link is connected.
    pub fn allocate(&self, length: usize, access: Access) -> Result<LinkMemory, MemoryError> {
        let lanes: Vec<_> = self.bulk_lanes().collect();
        match &lanes[..] {
            [] => Err(MemoryError::Empty),
            // A transport whose peers map the memory has to allocate it.
            [(lane, info)] => {
                let rails = vec![(*lane, info.domain.allocate(length, access)?)];
                Ok(LinkMemory(Rc::new(Local { rails, words: None })))
            }
            _ if length == 0 => Err(MemoryError::Empty),
            _ => {
                let words = Words::new(length, WORD)?;
                let start = NonNull::from(words.as_slice()).cast::<u8>();
                let mut local = Local { rails: Vec::new(), words: Some(words) };
                for (lane, info) in lanes {
                    // SAFETY: the range is inside the allocation of `local.words`, which is not
                    // freed until every registration was deregistered with `Ok` (the invariant of
                    // `Local`, kept by its drop). Nothing else reads or writes the words: they are
                    // not accessible outside, and this process accesses the range only through the
                    // methods of `Memory`. A pointer to atomics may be written through.
                    let memory = unsafe { info.domain.register(start, length, access)? };
                    local.rails.push((lane, memory));
                }
                Ok(LinkMemory(Rc::new(local)))
            }
        }
    }

    /// The peer's memory from the bytes of its [`LinkMemory::pack`]. Lanes that this side does not
    /// use for bulk data are left out.
    ///
    /// # Errors
    /// [`KeyError`] for other bytes, or if no bulk lane has a key.
    pub fn unpack(&self, mut bytes: &[u8]) -> Result<LinkRegion, KeyError> {
        const FOREIGN: KeyError = KeyError::Format(AddressError::Foreign);
        let mut regions: Vec<(usize, RemoteRegion)> = Vec::new();
        while let Some((lane, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk().ok_or(FOREIGN)?;
            let length = usize::from(u16::from_le_bytes(*length));
            let (packed, rest) = rest.split_at_checked(length).ok_or(FOREIGN)?;
            bytes = rest;
            let lane = usize::from(*lane);
            let known = regions.iter().any(|(at, _)| *at == lane);
            if let Some((_, info)) = self.bulk_lanes().find(|(at, _)| *at == lane && !known) {
                let region = info.domain.unpack_region(packed)?;
                // Rails of different lengths would not be one memory.
                if regions.first().is_some_and(|(_, first)| first.len() != region.len()) {
                    return Err(FOREIGN);
                }
                regions.push((lane, region));
            }
        }
        if regions.is_empty() { Err(FOREIGN) } else { Ok(LinkRegion(regions.into())) }
    }

    /// Writes `range` of the own memory to `offset` of the peer's, divided among the bulk lanes in
    /// proportion to their bandwidths; see [`rails`](Self::rails). The completion counts each part
    /// that is in progress, so it is done once all are. If a rail has no room after another one has
    /// begun, its part waits on that rail, as a [pending request](Self::pending_add), so the
    /// transfer is never divided in time by the caller.
    ///
    /// For one lane with its own memory and key, use the endpoint of [`lane`](Self::lane).
    ///
    /// # Errors
    /// [`PostError`], of the first part: nothing is posted then. [`PostError::NoResource`] until
    /// the link is connected, [`PostError::Unsupported`] without a bulk lane,
    /// [`PostError::OutOfRange`], [`PostError::ForeignKey`] if no bulk lane has both memories. An
    /// error of a later part is reported by the completion; that of a lane that failed, with the
    /// lane, by [`error`](Self::error).
    pub fn put_zcopy(
        &self,
        source: &LinkMemory,
        range: Range<usize>,
        target: &LinkRegion,
        offset: usize,
        completion: Option<&Completion>,
    ) -> Post {
        self.divide(true, source, range, target, offset, completion)
    }

    /// Reads from `offset` of the peer's memory into `range` of the own memory. As
    /// [`put_zcopy`](Self::put_zcopy).
    ///
    /// # Errors
    /// As [`put_zcopy`](Self::put_zcopy).
    pub fn get_zcopy(
        &self,
        target: &LinkMemory,
        range: Range<usize>,
        source: &LinkRegion,
        offset: usize,
        completion: Option<&Completion>,
    ) -> Post {
        self.divide(false, target, range, source, offset, completion)
    }

    fn divide(
        &self,
        puts: bool,
        local: &LinkMemory,
        range: Range<usize>,
        region: &LinkRegion,
        offset: usize,
        completion: Option<&Completion>,
    ) -> Post {
        self.of_kind(Kind::Bulk)?;
        let length = range.len();
        if range.start > range.end || range.end > local.len() || region.at(offset, length).is_none()
        {
            return Err(PostError::OutOfRange);
        }
        let rails = self
            .bulk_lanes()
            .filter(|(lane, _)| local.of_lane(*lane).is_some() && region.of_lane(*lane).is_some());
        let rails: Vec<_> = rails.collect();
        let bandwidths: Vec<_> = rails.iter().map(|(_, info)| info.lane.bandwidth).collect();
        let mut result = None;
        for ((lane, info), part) in rails.into_iter().zip(shares(&bandwidths, length)) {
            if part.is_empty() && length > 0 {
                continue;
            }
            let piece = Piece {
                puts,
                lane,
                local: local.clone(),
                at: range.start + part.start,
                length: part.len(),
                region: region.clone(),
                offset: offset + part.start,
            };
            let posted = match piece.post(&info.endpoint, completion) {
                Err(error) if result.is_none() => return Err(error),
                Err(PostError::NoResource) => {
                    post_later(&info.endpoint, completion, move |endpoint, completion| {
                        piece.post(endpoint, completion)
                    });
                    Posted::InProgress
                }
                Err(error) => {
                    fail(completion.map(Completion::hold), error);
                    Posted::InProgress
                }
                Ok(posted) => posted,
            };
            if result != Some(Posted::InProgress) {
                result = Some(posted);
            }
        }
        result.ok_or(PostError::ForeignKey)
    }
}

impl LinkRegion {
    /// Whether the range is inside; every rail has the same length.
    fn at(&self, offset: usize, length: usize) -> Option<()> {
        self.0.iter().all(|(_, region)| region.at(offset, length).is_ok()).then_some(())
    }
}

/// The part of a transfer that one rail carries.
struct Piece {
    puts: bool,
    lane: usize,
    local: LinkMemory,
    at: usize,
    length: usize,
    region: LinkRegion,
    offset: usize,
}

impl Piece {
    fn post(&self, endpoint: &Endpoint, completion: Option<&Completion>) -> Post {
        let memory = self.local.of_lane(self.lane).ok_or(PostError::ForeignMemory)?;
        let region = self.region.of_lane(self.lane).ok_or(PostError::ForeignKey)?;
        let slice = [memory.slice(self.at, self.length).map_err(|_| PostError::OutOfRange)?];
        let remote = region.at(self.offset, self.length).map_err(|_| PostError::OutOfRange)?;
        if self.puts {
            endpoint.put_zcopy(&slice, remote, region.key(), completion)
        } else {
            endpoint.get_zcopy(&slice, remote, region.key(), completion)
        }
    }
}

/// Posts once the endpoint has resources, after the requests that wait there. The completion counts
/// the post from now on, and its error is the completion's.
pub(super) fn post_later(
    endpoint: &Endpoint,
    completion: Option<&Completion>,
    post: impl Fn(&Endpoint, Option<&Completion>) -> Post + 'static,
) {
    let mut waiting = Waiting(completion.map(Completion::hold));
    let completion = completion.cloned();
    let mut request = PendingRequest::new(move |endpoint| {
        match post(endpoint, completion.as_ref()) {
            Err(PostError::NoResource) => return PendingResult::Again,
            Err(error) => fail(waiting.0.take(), error),
            Ok(_) => drop(waiting.0.take()),
        }
        PendingResult::Done
    });
    // It runs here only if resources were freed since the post was refused.
    while let Err(back) = endpoint.pending_add_request(request) {
        request = back;
        if request.run(endpoint) == PendingResult::Done {
            return;
        }
    }
}

/// A post that waits. Dropped with its endpoint's requests, it ends as cancelled.
struct Waiting(Option<Hold>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            hold.finish(Err(OperationError::CANCELED));
        }
    }
}

fn fail(hold: Option<Hold>, error: PostError) {
    let cause = match error {
        PostError::EndpointFailed => Cause::Flushed,
        PostError::Closed => Cause::Canceled,
        PostError::KeyExpired | PostError::AccessDenied => Cause::RemoteAccess,
        _ => Cause::LocalOperation,
    };
    if let Some(hold) = hold {
        let mut error = OperationError::CANCELED;
        error.cause = cause;
        hold.finish(Err(error));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use barewire::{Domain, FlushMode, Interface, InterfaceConfig, TransportId, Worker};

    use super::*;
    use crate::link::{Inner, Options};
    use crate::node::{Node, Rules};
    use crate::plan::{Connects, Kinds, Lane, Needs, Pair};

    const LENGTH: usize = 3 << 20;

    /// Both ends of a link over two software devices, of which the first is twice as fast.
    struct Ends {
        worker: Worker,
        links: [Link; 2],
        mine: LinkMemory,
        theirs: LinkMemory,
        region: LinkRegion,
    }

    fn lane(number: u8) -> Lane {
        let kinds = Kinds::of(Kind::Bulk);
        Lane {
            pair: Pair { here: number, there: number },
            transport: TransportId::RcMlx5,
            kinds: if number == 0 { kinds.with(Kind::Messages) } else { kinds },
            connects: Connects::ToEndpoint,
            latency_ns: 800.0,
            overhead_ns: 80.0,
            bandwidth: if number == 0 { 2e9 } else { 1e9 },
            max_message: 8192,
        }
    }

    fn ends() -> Ends {
        let mut worker = Worker::new();
        let mut lanes = [Vec::new(), Vec::new()];
        for number in 0..2 {
            let mut side = || {
                let domain = Domain::open(&"rc_mlx5/soft0:1".parse().unwrap()).unwrap();
                let config = InterfaceConfig::default();
                let interface = Interface::open(&mut worker, &domain, &config).unwrap();
                (domain, Endpoint::new(&interface).unwrap())
            };
            let sides = [side(), side()];
            sides[0].1.connect(&sides[1].1.address()).unwrap();
            sides[1].1.connect(&sides[0].1.address()).unwrap();
            for (lanes, (domain, endpoint)) in lanes.iter_mut().zip(sides) {
                lanes.push(LaneInfo { lane: lane(number), endpoint, domain });
            }
        }
        let mut node = Node::open(&Rules::default().only(["self"])).unwrap();
        let own = node.connect(&node.address(), Options::default()).unwrap();
        let links = lanes.map(|lanes| {
            let node = own.0.node.clone();
            let inner = Inner::new(node, own.id(), own.peer(), Needs::default());
            assert!(inner.lanes.set(lanes));
            Link(Rc::new(inner))
        });
        let memory = |link: &Link| link.allocate(LENGTH, Access::all()).unwrap();
        let (mine, theirs) = (memory(&links[0]), memory(&links[1]));
        let region = links[0].unpack(&theirs.pack()).unwrap();
        Ends { worker, links, mine, theirs, region }
    }

    impl Ends {
        fn until(&mut self, what: &str, mut done: impl FnMut(&Link) -> bool) {
            let start = Instant::now();
            while !done(&self.links[0]) {
                self.worker.progress();
                assert!(start.elapsed() < Duration::from_secs(100), "{what}");
            }
        }

        fn flush(&mut self) {
            let completion = Completion::counter();
            let mut posted = Err(PostError::NoResource);
            self.until("room to flush", |link| {
                posted = link.flush(FlushMode::Remote, Some(&completion));
                posted != Err(PostError::NoResource)
            });
            let _ = posted.unwrap();
            self.until("flushed", |_| completion.pending() == 0);
            completion.status().unwrap();
        }
    }

    fn pattern(seed: usize) -> Vec<u8> {
        (0..LENGTH).map(|at| (at.wrapping_mul(31) >> 3).wrapping_add(seed) as u8).collect()
    }

    fn carried(link: &Link) -> Vec<u64> {
        link.lanes().iter().map(|info| info.endpoint.counters().bytes).collect()
    }

    #[test]
    fn a_transfer_is_divided_in_proportion_to_the_bandwidths() {
        let mut ends = ends();
        let (mine, region) = (ends.mine.clone(), ends.region.clone());
        mine.write(0, &pattern(1)).unwrap();
        let completion = Completion::counter();
        let link = ends.links[0].clone();
        let _ = link.put_zcopy(&mine, 0..LENGTH, &region, 0, Some(&completion)).unwrap();
        assert_eq!(completion.pending(), 2, "a part on each rail");
        ends.until("the put", |_| completion.pending() == 0);
        completion.status().unwrap();
        ends.flush();
        assert_eq!(carried(&link), [2 << 20, 1 << 20]);
        let mut bytes = vec![0; LENGTH];
        ends.theirs.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(1));

        ends.theirs.write(0, &pattern(2)).unwrap();
        // From and to other offsets, so that parts are not mixed up.
        let range = 4096..LENGTH;
        let _ = link.get_zcopy(&mine, range.clone(), &region, 0, Some(&completion)).unwrap();
        ends.until("the get", |_| completion.pending() == 0);
        completion.status().unwrap();
        mine.read(4096, &mut bytes[..range.len()]).unwrap();
        assert!(bytes[..range.len()] == pattern(2)[..range.len()]);
    }

    #[test]
    fn parts_that_wait_for_room_arrive_before_a_flush_ends_and_a_fence_succeeds() {
        let mut ends = ends();
        let (mine, region, link) = (ends.mine.clone(), ends.region.clone(), ends.links[0].clone());
        mine.write(0, &pattern(3)).unwrap();
        // Fill the second rail alone, so that the first part of a transfer has room.
        let rail = &link.lanes()[1];
        let (memory, remote) = (mine.of_lane(1).unwrap(), region.of_lane(1).unwrap());
        let slice = [memory.slice(0, 1).unwrap()];
        let one = || rail.endpoint.put_zcopy(&slice, remote.address(), remote.key(), None);
        while one().is_ok() {}
        let completion = Completion::counter();
        let _ = link.put_zcopy(&mine, 0..LENGTH, &region, 0, Some(&completion)).unwrap();
        assert_eq!(one(), Err(PostError::NoResource), "nothing overtakes the part that waits");
        assert_eq!(link.fence(), Err(PostError::NoResource));
        assert!(completion.pending() > 0);
        // The flush, which is posted now, waits behind the part.
        ends.flush();
        assert_eq!((completion.pending(), completion.status()), (0, Ok(())));
        ends.until("the fence", |link| link.fence().is_ok());
        let mut bytes = vec![0; LENGTH];
        ends.theirs.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(3));
    }

    #[test]
    fn a_failed_rail_ends_the_transfer_with_an_error_and_is_named() {
        let mut ends = ends();
        let (mine, link) = (ends.mine.clone(), ends.links[0].clone());
        // The peer revokes the key of the second rail.
        let other = ends.links[1].allocate(LENGTH, Access::all()).unwrap();
        let (packed, revoked) = (ends.theirs.pack(), other.pack());
        let first = 3 + usize::from(u16::from_le_bytes([packed[1], packed[2]]));
        let region = link.unpack(&[&packed[..first], &revoked[first..]].concat()).unwrap();
        drop(other);
        let calls = Rc::new(std::cell::Cell::new(0));
        let seen = Rc::clone(&calls);
        let completion = Completion::new(move |result| {
            assert!(result.is_err());
            seen.set(seen.get() + 1);
        });
        let _ = link.put_zcopy(&mine, 0..LENGTH, &region, 0, Some(&completion)).unwrap();
        ends.until("the end", |_| completion.pending() == 0);
        assert_eq!(calls.get(), 1);
        ends.until("the rail's error", |link| link.0.failed_lane().is_some());
        let error = link.0.failed_lane().unwrap().to_string();
        assert!(error.ends_with("(lane 1)"), "{error}");
    }

    #[test]
    fn keys_in_part_and_of_other_lengths_are_refused() {
        let ends = ends();
        let packed = ends.theirs.pack();
        let first = 3 + usize::from(u16::from_le_bytes([packed[1], packed[2]]));
        for length in 0..packed.len() {
            let unpacked = ends.links[0].unpack(&packed[..length]);
            // What ends behind the first rail is a region with one rail.
            assert_eq!(unpacked.is_ok(), length == first, "{length}");
        }
        let short = ends.links[1].allocate(64, Access::all()).unwrap().pack();
        let mixed = [&packed[..first], &short[first..]].concat();
        assert!(ends.links[0].unpack(&mixed).is_err());
        // A rail that is named twice counts once; an unknown one is left out.
        let twice = [&packed[..first], &packed[..first]].concat();
        assert_eq!(ends.links[0].unpack(&twice).unwrap().0.len(), 1);
        let mut unknown = packed.clone();
        unknown[0] = 9;
        assert_eq!(ends.links[0].unpack(&unknown).unwrap().0.len(), 1);
    }
}
