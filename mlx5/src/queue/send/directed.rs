//! Requests that carry their destination (UD, DC, XRC), which follows the control segment.

use barewire_layouts::wqe::{ControlFlags, DS};

use super::destination::Addressed;
use super::request::{Head, ToPeer};
use super::{Destination, Marks, PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{BLOCK_UNITS, Block, Body, Unit};

impl<D: Doorbell> SendQueue<D> {
    /// Posts to `destination`, for queue pairs whose requests carry it (UD, DC, XRC).
    #[inline(always)]
    pub fn towards<'q, A: Destination>(&'q mut self, destination: &'q A) -> Directed<'q, A, D> {
        Directed { queue: self, destination }
    }
}

/// A queue with the destination of its next posts: see [`SendQueue::towards`].
#[derive(Debug)]
#[must_use = "posts to the destination are methods of this type"]
pub struct Directed<'q, A: Destination, D: Doorbell> {
    pub(super) queue: &'q mut SendQueue<D>,
    pub(super) destination: &'q A,
}

impl<A: Destination, D: Doorbell> Directed<'_, A, D> {
    /// Posts `request` to the destination.
    ///
    /// # Errors
    /// [`PostError::QueueFull`]; [`PostError::TooLong`] for a payload that does not fit a WQE.
    #[inline(always)]
    pub fn post<R: ToPeer>(
        &mut self,
        request: R,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let to = Directed { queue: self.queue, destination: self.destination };
        request.post_to(to, flags)
    }

    /// Posts a WQE whose number of units the compiler knows: the control segment, the destination,
    /// the remote address if there is one, and `units`.
    #[inline(always)]
    pub(super) fn post_units<const N: usize>(
        self,
        head: Head,
        flags: ControlFlags,
        remote: Option<Unit>,
        units: [Unit; N],
    ) -> Result<WqeIndex, PostError> {
        let Self { queue, destination } = self;
        let address = destination.units();
        let layout = Layout { address: address.as_ref(), remote, units: &units };
        let marks = Marks { flags, stream: destination.stream() };
        let count = layout.count();
        match count.div_ceil(BLOCK_UNITS) {
            0 | 1 => queue.post_fixed::<1>(head, marks, count, layout.blocks()),
            2 => queue.post_fixed::<2>(head, marks, count, layout.blocks()),
            3 => queue.post_fixed::<3>(head, marks, count, layout.blocks()),
            _ => Err(PostError::TooLong),
        }
    }

    /// Posts a WQE whose length is known at run time: the control segment, the destination, `body`.
    #[inline(always)]
    pub(super) fn post_body(
        self,
        head: Head,
        flags: ControlFlags,
        body: impl Body,
    ) -> Result<WqeIndex, PostError> {
        let marks = Marks { flags, stream: self.destination.stream() };
        self.queue.post_wqe(head, marks, Addressed::new(self.destination, body))
    }
}

/// The parts of a WQE after the control segment, whose number is constant.
#[derive(Clone, Copy)]
struct Layout<'a> {
    address: &'a [[u8; DS]],
    remote: Option<Unit>,
    units: &'a [Unit],
}

impl Layout<'_> {
    /// Units, with the control segment.
    #[inline(always)]
    fn count(self) -> usize {
        1 + self.address.len() + usize::from(self.remote.is_some()) + self.units.len()
    }

    /// The WQE, with zeros for the control segment and at the end.
    #[inline(always)]
    fn blocks<const BLOCKS: usize>(self) -> [Block; BLOCKS] {
        let mut blocks = [[Unit::zero(); BLOCK_UNITS]; BLOCKS];
        let mut places = blocks.as_flattened_mut().iter_mut().skip(1);
        for unit in self.address {
            if let Some(place) = places.next() {
                *place = Unit::load(unit);
            }
        }
        if let Some(remote) = self.remote
            && let Some(place) = places.next()
        {
            *place = remote;
        }
        for unit in self.units {
            if let Some(place) = places.next() {
                *place = *unit;
            }
        }
        blocks
    }
}
