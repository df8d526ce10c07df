//! Requests that carry their destination (DC): an address vector follows the control segment.

use barewire_layouts::wqe::{
    ControlFlags, DS, DataSegment, InlineHeader, Opcode, RemoteAddressSegment,
};

use super::atomic::{BYTES_4, BYTES_8, standard};
use super::destination::Addressed;
use super::request::{Head, ToPeer};
use super::{Destination, MAX_SEGMENTS, Marks, MaskedAdd, MaskedSwap, PREFIX};
use super::{PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{BLOCK_UNITS, Block, Body, Inline, Segments, Sink, Unit};

impl<D: Doorbell> SendQueue<D> {
    /// Posts to `destination`, for queue pairs of the service DC (DCI).
    #[inline(always)]
    pub fn towards<'q, A: Destination>(&'q mut self, destination: &'q A) -> Directed<'q, A, D> {
        Directed { queue: self, destination }
    }
}

/// A queue with the destination of its next posts: see [`SendQueue::towards`]. The functions are
/// those of [`SendQueue`] for connected queue pairs.
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
        remote: Option<RemoteAddressSegment>,
        units: [Unit; N],
    ) -> Result<WqeIndex, PostError> {
        let Self { queue, destination } = self;
        let address = destination.units();
        let layout = Layout { address: address.as_ref(), remote: remote.as_ref(), units: &units };
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
        let Head { opcode, modifier, immediate } = head;
        let marks = Marks { flags, stream: self.destination.stream() };
        let body = Addressed::new(self.destination, body);
        self.queue.post_modified(opcode, modifier, immediate, marks, body)
    }
}

/// The parts of a WQE after the control segment, whose number is constant.
#[derive(Clone, Copy)]
struct Layout<'a> {
    address: &'a [[u8; DS]],
    remote: Option<&'a RemoteAddressSegment>,
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
            *place = Unit::remote(remote);
        }
        for unit in self.units {
            if let Some(place) = places.next() {
                *place = *unit;
            }
        }
        blocks
    }
}

/// Units that are known when the post is compiled.
#[derive(Clone, Copy)]
struct Fixed<const N: usize>([Unit; N]);

impl<const N: usize> Body for Fixed<N> {
    #[inline(always)]
    fn units(&self) -> u32 {
        N as u32
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        for unit in self.0 {
            sink.unit(unit);
        }
    }
}

/// Sends.
impl<A: Destination, D: Doorbell> Directed<'_, A, D> {
    /// Sends up to [`Destination::MAX_INLINE`] bytes that are copied to the WQE.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_inline(self, payload: &[u8], flags: ControlFlags) -> Result<WqeIndex, PostError> {
        if payload.len() > A::MAX_INLINE {
            return Err(PostError::TooLong);
        }
        self.post_plain(Opcode::Send, flags, Inline::new(None, payload))
    }

    /// Sends `prefix` and 8 bytes inline as one message.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn send_inline_prefixed_8(
        self,
        prefix: [u8; PREFIX],
        payload: [u8; 8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let header = Unit::inline_prefix(InlineHeader::new(20), prefix);
        let word = Unit::from_words(u64::from_le_bytes(payload), 0);
        self.post_pair(Opcode::Send, flags, header, word)
    }

    /// Sends `prefix` and `payload` inline as one message of up to [`Destination::MAX_INLINE`]
    /// bytes.
    ///
    /// # Errors
    /// Those of [`Self::send_inline`].
    #[inline]
    pub fn send_inline_prefixed(
        self,
        prefix: [u8; PREFIX],
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        if payload.len() > A::MAX_INLINE - PREFIX {
            return Err(PostError::TooLong);
        }
        let (low, high) = Unit::split_prefix(prefix);
        self.post_plain(Opcode::Send, flags, Inline::prefixed(None, low, high, payload))
    }

    /// Sends up to [`MAX_SEGMENTS`] segments as one message.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn send_gather(
        self,
        local: &[DataSegment],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::Send, flags, None, local)
    }
}

/// RDMA writes and reads.
impl<A: Destination, D: Doorbell> Directed<'_, A, D> {
    /// Writes 8 bytes that are copied to the WQE.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn write_inline_8(
        self,
        payload: [u8; 8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let data = Unit::inline_8(InlineHeader::new(8), payload);
        self.post_pair(Opcode::RdmaWrite, flags, Unit::remote(&remote), data)
    }

    /// Writes up to [`Destination::MAX_WRITE_INLINE`] bytes that are copied to the WQE.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn write_inline(
        self,
        payload: &[u8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        if payload.len() > A::MAX_WRITE_INLINE {
            return Err(PostError::TooLong);
        }
        self.post_plain(Opcode::RdmaWrite, flags, Inline::new(Some(remote), payload))
    }

    /// Writes up to [`MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn write_gather(
        self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaWrite, flags, Some(remote), local)
    }

    /// Reads into up to [`MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn read_scatter(
        self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaRead, flags, Some(remote), local)
    }
}

/// Atomics. Results are written to `local` as by the functions of [`SendQueue`].
impl<A: Destination, D: Doorbell> Directed<'_, A, D> {
    /// As [`SendQueue::fetch_add`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn fetch_add(
        self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operand: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), standard(operand, 0), Unit::local(&local)];
        self.post_plain(Opcode::AtomicFetchAdd, flags, Fixed(units))
    }

    /// As [`SendQueue::compare_swap`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn compare_swap(
        self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        compare: u64,
        swap: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), standard(swap, compare), Unit::local(&local)];
        self.post_plain(Opcode::AtomicCompareSwap, flags, Fixed(units))
    }

    /// As [`SendQueue::masked_compare_swap_32`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_compare_swap_32(
        self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedSwap<u32>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), operands.unit(), Unit::local(&local)];
        self.post_modified(Opcode::MaskedCompareSwap, BYTES_4, flags, Fixed(units))
    }

    /// As [`SendQueue::masked_compare_swap_64`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_compare_swap_64(
        self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedSwap<u64>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let [low, high] = operands.units();
        let units = [Unit::remote(&remote), low, high, Unit::local(&local)];
        self.post_modified(Opcode::MaskedCompareSwap, BYTES_8, flags, Fixed(units))
    }

    /// As [`SendQueue::masked_fetch_add_32`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_fetch_add_32(
        self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedAdd<u32>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), operands.unit(), Unit::local(&local)];
        self.post_modified(Opcode::MaskedFetchAdd, BYTES_4, flags, Fixed(units))
    }

    /// As [`SendQueue::masked_fetch_add_64`].
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_fetch_add_64(
        self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedAdd<u64>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), operands.unit(), Unit::local(&local)];
        self.post_modified(Opcode::MaskedFetchAdd, BYTES_8, flags, Fixed(units))
    }
}

impl<A: Destination, D: Doorbell> Directed<'_, A, D> {
    /// Posts a WQE with two units after the address vector.
    #[inline(always)]
    fn post_pair(
        self,
        opcode: Opcode,
        flags: ControlFlags,
        first: Unit,
        second: Unit,
    ) -> Result<WqeIndex, PostError> {
        let (address, zero) = (self.destination.units(), Unit::zero());
        let marks = Marks { flags, stream: self.destination.stream() };
        // The length is that of the type, so that one arm is left.
        match address.as_ref() {
            [a, b, c] => {
                let address = [zero, Unit::load(a), Unit::load(b), Unit::load(c)];
                let blocks = [address, [first, second, zero, zero]];
                self.queue.post_blocks::<2, 6>(opcode, 0, 0, marks, blocks)
            }
            [a] => self.queue.post_block::<4>(opcode, 0, marks, [Unit::load(a), first, second]),
            _ => self.post_plain(opcode, flags, Fixed([first, second])),
        }
    }

    #[inline(always)]
    fn post_segments(
        self,
        opcode: Opcode,
        flags: ControlFlags,
        remote: Option<RemoteAddressSegment>,
        local: &[DataSegment],
    ) -> Result<WqeIndex, PostError> {
        let body = Segments::new(remote, local);
        if body.units() as usize > MAX_SEGMENTS + usize::from(remote.is_some()) {
            return Err(PostError::TooLong);
        }
        self.post_plain(opcode, flags, body)
    }

    #[inline(always)]
    fn post_plain(
        self,
        opcode: Opcode,
        flags: ControlFlags,
        body: impl Body,
    ) -> Result<WqeIndex, PostError> {
        self.post_modified(opcode, 0, flags, body)
    }

    #[inline(always)]
    fn post_modified(
        self,
        opcode: Opcode,
        modifier: u8,
        flags: ControlFlags,
        body: impl Body,
    ) -> Result<WqeIndex, PostError> {
        let marks = Marks { flags, stream: self.destination.stream() };
        let body = Addressed::new(self.destination, body);
        self.queue.post_modified(opcode, modifier, 0, marks, body)
    }
}
