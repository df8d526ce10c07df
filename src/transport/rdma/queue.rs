//! A queue pair that counts its requests.

use barewire_verbs::{
    self as verbs, Data, Element, LocalPoster, Operation, Remote, Request, SendFlags,
};

use crate::base::error::Operation as Name;

/// A queue pair that stays on its thread, like all objects of an interface.
pub(crate) type QueuePair = verbs::QueuePair<LocalPoster>;

/// The bit of a receive request in a `wr_id`.
const RECEIVE: u64 = 1 << 31;
/// Shifts of the endpoint's slot, and of a send request's operation, in a `wr_id`.
const SLOT: u32 = 32;
const NAME: u32 = 16;
/// Operations by their code in a `wr_id`.
const NAMES: [Name; 8] = [
    Name::Put,
    Name::Get,
    Name::ActiveMessage,
    Name::Atomic,
    Name::Flush,
    Name::Receive,
    Name::Connect,
    Name::Unnamed,
];

/// A `wr_id`, which the completion returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrId {
    /// The endpoint's slot.
    pub(crate) slot: u32,
    pub(crate) kind: WrKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrKind {
    /// The send request with this index.
    Send(u16),
    /// The receive request with this buffer.
    Receive(u32),
}

impl WrId {
    #[inline(always)]
    pub(crate) fn of(id: u64) -> Self {
        let kind = if id & RECEIVE == 0 {
            WrKind::Send(id as u16)
        } else {
            WrKind::Receive((id & (RECEIVE - 1)) as u32)
        };
        Self { slot: (id >> SLOT) as u32, kind }
    }

    /// Returns the operation of the send request with this `wr_id`.
    pub(crate) fn name(id: u64) -> Name {
        NAMES.get((id >> NAME) as usize & 0xff).copied().unwrap_or(Name::Unnamed)
    }

    /// Returns the `wr_id` of the receive request with this buffer.
    #[inline(always)]
    pub(crate) fn receive(slot: u32, buffer: u32) -> u64 {
        u64::from(slot) << SLOT | RECEIVE | u64::from(buffer)
    }
}

/// Nothing was posted: the queue is full, or libibverbs refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A queue pair that counts its requests, so that its room and the completed requests are known
/// without libibverbs.
pub(crate) struct Pair {
    qp: QueuePair,
    /// The slot in every `wr_id`.
    slot: u64,
    /// Index of the next send request.
    next: u16,
    /// Index of the first request that is not known to be complete.
    first: u16,
    room: u32,
    posted: u64,
    /// Capacity of the queue.
    requests: u32,
    /// Most outstanding requests.
    most: u32,
    signal_every: u32,
    /// One of this many consecutive requests requests a completion.
    period: u32,
    unsignaled: u32,
    /// With fewer unsignaled requests than this, the next one needs neither a fence nor a
    /// completion that its caller did not request.
    plain: u32,
    wants_completion: bool,
    fenced: bool,
}

impl Pair {
    /// Creates the pair. `requests`, a power of two, is the capacity of the queue; `slot` is the
    /// endpoint's.
    pub(crate) fn new(qp: QueuePair, requests: u32, slot: u32, signal_every: u32) -> Self {
        Self {
            qp,
            slot: u64::from(slot) << SLOT,
            next: 0,
            first: 0,
            room: requests,
            posted: 0,
            requests,
            most: requests,
            signal_every,
            // At most half of the queue, so that room is freed in time.
            period: signal_every.clamp(1, requests / 2),
            unsignaled: 0,
            plain: 0,
            wants_completion: false,
            fenced: false,
        }
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Posts a send request and returns its index.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        name: Name,
        operation: Operation<'_>,
        data: Data<'_>,
        completion: bool,
    ) -> Result<u16, Full> {
        if self.room == 0 {
            return Err(Full);
        }
        let index = self.next;
        let id = self.slot | (name as u64) << NAME | u64::from(index);
        // Counted first, so that fewer values live across the call.
        self.next = index.wrapping_add(1);
        self.room -= 1;
        self.posted += 1;
        let flags = if !completion && self.unsignaled < self.plain {
            self.unsignaled += 1;
            SendFlags::empty()
        } else {
            let signal = completion || self.wants_completion || self.unsignaled + 1 >= self.period;
            let mut flags = if signal { SendFlags::SIGNALED } else { SendFlags::empty() };
            flags.set(SendFlags::FENCE, self.fenced);
            self.note(flags);
            flags
        };
        if self.qp.post(&Request { id, operation, data, flags }).is_err() {
            self.take_back();
            return Err(Full);
        }
        Ok(index)
    }

    /// Handles a refused request. Its completion and fence flags are lost, so the next request has
    /// both.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self) {
        self.next = self.next.wrapping_sub(1);
        self.room += 1;
        self.posted -= 1;
        self.unsignaled = self.unsignaled.max(1);
        (self.wants_completion, self.fenced, self.plain) = (true, true, 0);
    }

    /// Records that a request with these flags was posted.
    #[inline(always)]
    fn note(&mut self, flags: SendFlags) {
        self.unsignaled = if flags.contains(SendFlags::SIGNALED) { 0 } else { self.unsignaled + 1 };
        (self.wants_completion, self.fenced) = (false, false);
        self.plain = self.period - 1;
    }

    /// Posts a list with one doorbell; it must have room. Returns the index of the last request,
    /// which requests a completion if `completion` is set.
    pub(crate) fn post_all<'a>(
        &mut self,
        name: Name,
        list: &[(Operation<'a>, &'a [Element])],
        completion: bool,
    ) -> Result<u16, Full> {
        let mut unsignaled = self.unsignaled;
        let request = |(at, &(operation, elements)): (usize, &(Operation<'a>, &'a [Element]))| {
            let wanted = (at == 0 && self.wants_completion) || (completion && at + 1 == list.len());
            let signal = wanted || unsignaled + 1 >= self.period;
            unsignaled = if signal { 0 } else { unsignaled + 1 };
            let mut flags = if signal { SendFlags::SIGNALED } else { SendFlags::empty() };
            flags.set(SendFlags::FENCE, at == 0 && self.fenced);
            let id =
                self.slot | (name as u64) << NAME | u64::from(self.next.wrapping_add(at as u16));
            Request { id, operation, data: Data::Elements(elements), flags }
        };
        let requests: Vec<_> = list.iter().enumerate().map(request).collect();
        if requests.len() > self.room as usize {
            return Err(Full);
        }
        let posted =
            self.qp.post_all(&requests).map_or_else(|(posted, _)| posted, |()| requests.len());
        for request in &requests[..posted] {
            self.note(request.flags);
        }
        self.next = self.next.wrapping_add(posted as u16);
        self.room -= posted as u32;
        self.posted += posted as u64;
        if posted == requests.len() { Ok(self.last()) } else { Err(Full) }
    }

    /// Returns how many requests can be posted now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// Returns the number of requests posted so far.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns the index of the last request; any value before the first.
    pub(crate) fn last(&self) -> u16 {
        self.next.wrapping_sub(1)
    }

    /// Returns whether all posted requests are complete.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.first == self.next
    }

    /// Returns whether the last request requested a completion.
    pub(crate) fn last_is_signaled(&self) -> bool {
        self.unsignaled == 0
    }

    /// Makes the next request request a completion.
    pub(crate) fn request_completion(&mut self) {
        self.wants_completion = true;
        self.plain = 0;
    }

    /// Makes the next request wait for earlier reads and atomics.
    pub(crate) fn fence(&mut self) {
        self.fenced = !self.is_idle();
        self.plain = 0;
    }

    /// Returns the most requests that may be outstanding.
    pub(crate) fn most_outstanding(&self) -> u32 {
        self.most
    }

    /// Limits the requests that may be outstanding to `most`, but to at least 8 more than are, and to
    /// the capacity of the queue. Returns the limit.
    pub(crate) fn limit_outstanding(&mut self, most: u32) -> u32 {
        let outstanding = self.most - self.room;
        self.most = most.max(outstanding + 8).min(self.requests);
        self.room = self.most - outstanding;
        // One of the requests for which there is room requests a completion.
        self.period = self.signal_every.clamp(1, (self.most / 2).min(self.room).max(1));
        self.plain = 0;
        self.most
    }

    /// Frees the room of the request at `index` and all before it, which are complete.
    #[inline(always)]
    pub(crate) fn reap(&mut self, index: u16) {
        let done = index.wrapping_add(1).wrapping_sub(self.first);
        // Ignore a duplicate completion.
        if u32::from(done) <= self.most - self.room {
            self.first = index.wrapping_add(1);
            self.room += u32::from(done);
        }
    }

    /// Returns whether the request at `index` is complete.
    pub(crate) fn is_done(&self, index: u16) -> bool {
        let outstanding = self.next.wrapping_sub(self.first);
        index.wrapping_sub(self.first) >= outstanding
    }

    /// Forgets all outstanding requests, after a reset of the queue pair.
    pub(crate) fn forget(&mut self) {
        (self.first, self.room, self.unsignaled) = (self.next, self.most, 0);
    }

    /// Posts a receive request for a buffer.
    #[inline(always)]
    pub(crate) fn receive(&self, buffer: u32, element: Element) -> Result<(), verbs::PostError> {
        self.qp.post_receive(self.slot | RECEIVE | u64::from(buffer), &[element])
    }
}

/// A write to the peer.
#[inline(always)]
pub(crate) fn write(address: u64, key: u32) -> Operation<'static> {
    Operation::Write { remote: Remote { address, key }, immediate: None }
}

/// A read from the peer.
#[inline(always)]
pub(crate) fn read(address: u64, key: u32) -> Operation<'static> {
    Operation::Read { remote: Remote { address, key } }
}

/// A message to the peer.
pub(crate) const SEND: Operation<'static> = Operation::Send { immediate: None };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wr_id_names_the_slot_and_the_request() {
        let id = 7_u64 << SLOT;
        assert_eq!(WrId::of(id | 0xffff), WrId { slot: 7, kind: WrKind::Send(0xffff) });
        for name in NAMES {
            assert_eq!(WrId::name(id | (name as u64) << NAME | 0xffff), name);
        }
        assert_eq!(
            WrId::of(id | (Name::Unnamed as u64) << NAME | 3),
            WrId { slot: 7, kind: WrKind::Send(3) }
        );
        assert_eq!(WrId::receive(7, 0x1_0001), id | RECEIVE | 0x1_0001);
        assert_eq!(
            WrId::of(id | RECEIVE | 0x1_0001),
            WrId { slot: 7, kind: WrKind::Receive(0x1_0001) }
        );
    }
}
