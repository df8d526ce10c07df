//! Shared receive queues and receive memory pools: one kind of object, two sets of commands.

use barewire_layouts::command::strides::Strides;
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

impl Order {
    /// Returns the offset of a WQE's segments.
    pub(crate) fn header_bytes(self) -> usize {
        match self {
            Self::Cyclic { header: false } => 0,
            Self::Linked | Self::Cyclic { header: true } => size_of::<SharedReceiveHeader>(),
        }
    }
}

/// The strides of a striding queue, and the WQE whose strides are being taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Striding {
    pub(crate) strides: Strides,
    /// Index of the WQE, and its next stride, which exists.
    open: Option<(u16, u16)>,
}

/// What a message, or a packet of a striding queue, takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Index of the WQE.
    pub(crate) index: u16,
    /// Its stride, in a striding queue.
    pub(crate) stride: Option<u16>,
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
    /// For a striding queue.
    pub(crate) striding: Option<Striding>,
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
            striding: None,
            xrc: None,
            tags: None,
            ring_umem,
            doorbell_umem,
            users: 0,
        }
    }

    /// Gives each WQE `strides`.
    pub(crate) fn with_strides(self, strides: Option<Strides>) -> Self {
        let striding = strides.map(|strides| Striding { strides, open: None });
        Self { striding, ..self }
    }

    /// Returns whether a WQE has strides left.
    pub(crate) fn is_open(&self) -> bool {
        self.striding.is_some_and(|striding| striding.open.is_some())
    }

    /// Returns the WQEs posted and not taken. More than the ring's entries means that software's
    /// counter is wrong.
    pub(crate) fn available(&self) -> u16 {
        self.doorbell.receive().wrapping_sub(self.taken)
    }

    /// Takes a WQE, or the next stride of one. Unless a WQE is open, one must be available.
    pub(crate) fn take(&mut self) -> Taken {
        let Some(striding) = self.striding else {
            return Taken { index: self.take_wqe(), stride: None };
        };
        let (index, stride) = striding.open.unwrap_or_else(|| (self.take_wqe(), 0));
        // A WQE has room for few segments, and so for few strides.
        let next = stride + 1;
        let open = (u32::from(next) < striding.strides.count()).then_some((index, next));
        self.striding = Some(Striding { open, ..striding });
        Taken { index, stride: Some(stride) }
    }

    /// Takes a WQE, which must exist, and returns its index.
    fn take_wqe(&mut self) -> u16 {
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
        assert_eq!([(); 5].map(|()| list.take().index), [0, 3, 1, 2, 0]);
        let (mut cycle, _, _) = srq(Order::Cyclic { header: true });
        assert_eq!([(); 5].map(|()| cycle.take().index), [0, 1, 2, 3, 4]);
        assert_eq!((list.order.header_bytes(), cycle.order.header_bytes()), (16, 16));
    }

    #[test]
    fn a_wqe_ends_with_its_last_stride() {
        let (srq, ring, record) = srq(Order::Linked);
        for (index, next) in [(0, 2), (2, 0x0101_u16)] {
            ring.slice(index * 32 + 2, 2).unwrap().write(&next.to_be_bytes());
        }
        record.write(&3_u32.to_be_bytes());
        let mut srq = srq.with_strides(Strides::new(3, 6));
        for (index, left) in [(0, 2), (2, 1), (1, 0)] {
            assert!(!srq.is_open());
            for stride in 0..8 {
                assert_eq!(srq.take(), Taken { index, stride: Some(stride) });
                assert_eq!((srq.available(), srq.is_open()), (left, stride < 7));
            }
        }
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
        assert_eq!((srq.available(), srq.order.header_bytes()), (0, 0));
    }
}
