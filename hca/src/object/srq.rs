//! Shared receive queues and receive memory pools: one kind of object, two sets of commands.

use barewire_layouts::wqe::SharedReceiveHeader;
use zerocopy::transmute;

use super::{DoorbellRecord, Ring};

/// Whose commands the object obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// CREATE_SRQ.
    Srq,
    /// CREATE_RMP.
    Rmp,
    /// CREATE_XRC_SRQ.
    Xrc,
}

/// What a shared receive queue of an XRC domain has beside the others: the queue pairs through which its messages come know neither
/// its completion queue nor its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xrc {
    pub(crate) domain: u32,
    /// The completion queue of what arrives.
    pub(crate) cqn: u32,
    /// The user's own number, for CQEs.
    pub(crate) user_index: u32,
}

/// How the next WQE is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The header of each WQE names the next one.
    Linked,
    /// In the order of the ring. `header`: segments begin behind a header nevertheless.
    Cyclic {
        /// Whether there is one.
        header: bool,
    },
}

/// A receive queue that many queue pairs take from.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) kind: SrqKind,
    pub(crate) order: Order,
    /// Entries are WQEs.
    pub(crate) ring: Ring,
    /// Software's producer counter: its first word.
    pub(crate) doorbell: DoorbellRecord,
    /// The protection domain of the WQEs' buffers.
    pub(crate) pd: u32,
    /// An event is sent, once, when fewer WQEs are left; 0 for never.
    pub(crate) limit: u16,
    /// Gives no WQE.
    pub(crate) failed: bool,
    /// WQEs taken, modulo 2^16.
    pub(crate) taken: u16,
    /// Index of the next WQE of a linked list.
    next: u16,
    /// Of one that belongs to an XRC domain.
    pub(crate) xrc: Option<Xrc>,
    /// The umem of the ring, and where it starts there.
    pub(crate) ring_umem: (u32, u64),
    /// The umem of the doorbell record, and where it is there.
    pub(crate) doorbell_umem: (u32, u64),
    /// Queue pairs that take from it.
    pub(crate) users: u32,
}

impl Srq {
    /// A queue of which nothing is taken yet.
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
            ring_umem,
            doorbell_umem,
            users: 0,
        }
    }

    /// WQEs posted and not taken. More than the ring's entries: software has lost count.
    pub(crate) fn available(&self) -> u16 {
        self.doorbell.receive().wrapping_sub(self.taken)
    }

    /// Where a WQE's segments begin.
    pub(crate) fn header_bytes(&self) -> usize {
        match self.order {
            Order::Cyclic { header: false } => 0,
            Order::Linked | Order::Cyclic { header: true } => size_of::<SharedReceiveHeader>(),
        }
    }

    /// Takes a WQE, of which there is one, and gives its index.
    pub(crate) fn take(&mut self) -> u16 {
        let index = match self.order {
            Order::Cyclic { .. } => self.taken,
            Order::Linked => {
                let index = self.next;
                let mut bytes = [0; size_of::<SharedReceiveHeader>()];
                self.ring.read(index, 0, &mut bytes);
                let header: SharedReceiveHeader = transmute!(bytes);
                // At most 2^15 entries; any index leads to one of them.
                self.next = header.next_wqe_index.get() & (self.ring.entries() as u16).wrapping_sub(1);
                index
            }
        };
        self.taken = self.taken.wrapping_add(1);
        index
    }

    /// Whether the limit's event is due; it is not again until the limit is set anew.
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
