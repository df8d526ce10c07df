//! Shared receive queues and receive memory pools: one kind of object, two sets of commands.

use barewire_layouts::wqe::SharedReceiveHeader;
use zerocopy::transmute;

use super::{DoorbellRecord, Ring, Tags};

/// The commands that the object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// CREATE_SRQ.
    Srq,
    /// CREATE_RMP.
    Rmp,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_XRQ.
    Xrq,
}

/// Attributes of a shared receive queue of an XRC domain. The queue pairs that deliver to it know
/// neither its completion queue nor its user index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xrc {
    pub(crate) domain: u32,
    /// The completion queue of received messages.
    pub(crate) cqn: u32,
    /// The user index, for CQEs.
    pub(crate) user_index: u32,
}

/// How the next WQE is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The header of each WQE names the next one.
    Linked,
    /// In ring order. `header`: the segments follow a header all the same.
    Cyclic {
        /// Whether there is a header.
        header: bool,
    },
}

/// A receive queue that several queue pairs use.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) kind: SrqKind,
    pub(crate) order: Order,
    /// The ring of WQEs.
    pub(crate) ring: Ring,
    /// Software's producer counter, in the first word.
    pub(crate) doorbell: DoorbellRecord,
    /// The protection domain of the WQEs' buffers.
    pub(crate) pd: u32,
    /// An event is sent once if fewer WQEs are left; 0 for never.
    pub(crate) limit: u16,
    /// Set if it provides no more WQEs.
    pub(crate) failed: bool,
    /// WQEs taken, modulo 2^16.
    pub(crate) taken: u16,
    /// Index of the next WQE of a linked list.
    next: u16,
    /// For a queue of an XRC domain.
    pub(crate) xrc: Option<Xrc>,
    /// For a queue with tag matching.
    pub(crate) tags: Option<Box<Tags>>,
    /// The umem of the ring, and its offset there.
    pub(crate) ring_umem: (u32, u64),
    /// The umem of the doorbell record, and its offset there.
    pub(crate) doorbell_umem: (u32, u64),
    /// Queue pairs that use it.
    pub(crate) users: u32,
}

impl Srq {
    /// Creates a queue with no WQE taken.
    pub(crate) fn new(
        kind: SrqKind,
        order: Order,
        (ring, ring_umem): (Ring, (u32, u64)),
        (doorbell, doorbell_umem): (DoorbellRecord, (u32, u64)),
        (pd, limit): (u32, u16),
    ) -> Self {
        Self {
            kind,
            order,
            ring,
            doorbell,
            pd,
            limit,
            failed: false,
            taken: 0,
            next: 0,
            xrc: None,
            tags: None,
            ring_umem,
            doorbell_umem,
            users: 0,
        }
    }

    /// Returns the WQEs posted and not taken. More than the ring's entries means that software's
    /// counter is wrong.
    pub(crate) fn available(&self) -> u16 {
        self.doorbell.receive().wrapping_sub(self.taken)
    }

    /// Returns the offset of a WQE's segments.
    pub(crate) fn header_bytes(&self) -> usize {
        match self.order {
            Order::Cyclic { header: false } => 0,
            Order::Linked | Order::Cyclic { header: true } => size_of::<SharedReceiveHeader>(),
        }
    }

    /// Takes a WQE, which must exist, and returns its index.
    pub(crate) fn take(&mut self) -> u16 {
        let index = match self.order {
            Order::Cyclic { .. } => self.taken,
            Order::Linked => {
                let index = self.next;
                let mut bytes = [0; size_of::<SharedReceiveHeader>()];
                self.ring.read(index, 0, &mut bytes);
                let header: SharedReceiveHeader = transmute!(bytes);
                // At most 2^15 entries; every index names one of them.
                self.next =
                    header.next_wqe_index.get() & (self.ring.entries() as u16).wrapping_sub(1);
                index
            }
        };
        self.taken = self.taken.wrapping_add(1);
        index
    }

    /// Returns whether the limit's event is due. It is due once for each setting of the limit.
    pub(crate) fn passed_limit(&mut self) -> bool {
        let passed = self.limit > 0 && self.available() < self.limit;
        if passed {
            self.limit = 0;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::leaked;

    fn srq(order: Order) -> (Srq, crate::memory::Window, crate::memory::Window) {
        let (ring, record) = (leaked(4 * 32), leaked(8));
        let srq = Srq::new(
            SrqKind::Rmp,
            order,
            (Ring::new(ring, 2, 5), (0, 0)),
            (DoorbellRecord::new(record), (0, 0)),
            (1, 0),
        );
        (srq, ring, record)
    }

    #[test]
    fn a_list_is_followed_and_a_ring_goes_round() {
        let (mut list, ring, _) = srq(Order::Linked);
        for (index, next) in [(0, 3), (3, 1), (1, 0x0102_u16), (2, 0)] {
            ring.slice(index * 32 + 2, 2).unwrap().write(&next.to_be_bytes());
        }
        assert_eq!([(); 5].map(|()| list.take()), [0, 3, 1, 2, 0]);
        let (mut cycle, _, _) = srq(Order::Cyclic { header: true });
        assert_eq!([(); 5].map(|()| cycle.take()), [0, 1, 2, 3, 4]);
        assert_eq!((list.header_bytes(), cycle.header_bytes()), (16, 16));
    }

    #[test]
    fn the_limit_is_passed_once() {
        let (mut srq, _, record) = srq(Order::Cyclic { header: false });
        record.write(&3_u32.to_be_bytes());
        srq.limit = 2;
        srq.take();
        assert!(!srq.passed_limit());
        srq.take();
        assert!(srq.passed_limit());
        srq.take();
        assert!(!srq.passed_limit());
        assert_eq!((srq.available(), srq.header_bytes()), (0, 0));
    }
}
