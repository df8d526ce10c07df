//! Destinations: the address vectors of WQEs that carry one (UD, DC), and the receive queues of XRC.

use barewire_layouts::wqe::{AddressVector, CompactAddressVector, DS, InlineHeader, XrcSegment};
use zerocopy::transmute;

use super::MAX_WQE_BYTES;
use crate::wqe::{Body, Sink, Unit};

pub(super) mod sealed {
    use barewire_layouts::wqe::DS;

    pub trait Sealed: Copy {
        /// The address vector in 16-byte units.
        type Units: AsRef<[[u8; DS]]> + Copy;

        fn units(&self) -> Self::Units;

        /// The stream of an initiator; others have none.
        #[inline(always)]
        fn stream(&self) -> u16 {
            0
        }
    }
}

/// The destination of a datagram or of a DC request, a full [`AddressVector`], for InfiniBand or RoCE,
/// or a [`CompactAddressVector`], and the same [on a stream](Self::on_stream); or of an XRC request, an
/// [`XrcSegment`].
pub trait Destination: sealed::Sealed {
    /// It is [`Connected`].
    #[doc(hidden)]
    const IS_CONNECTED: bool = false;
    /// Longest payload of an inline send to it, in bytes.
    const MAX_INLINE: usize = MAX_WQE_BYTES - DS - size_of::<Self>() - size_of::<InlineHeader>();
    /// Longest payload of an inline RDMA write to it, in bytes.
    const MAX_WRITE_INLINE: usize = Self::MAX_INLINE - DS;
    /// Most scatter/gather elements of a send to it that fits the BlueFlame register.
    const MAX_SEND_SEGMENTS: usize = (MAX_WQE_BYTES - size_of::<Self>()) / DS - 1;
    /// Most scatter/gather elements of an RDMA read or write that fits the BlueFlame register.
    const MAX_RDMA_SEGMENTS: usize = Self::MAX_SEND_SEGMENTS - 1;

    /// This destination, for requests of stream `stream` of a DC initiator: see
    /// [`InitiatorConfig::log_streams`](crate::dc::InitiatorConfig::log_streams). An initiator without
    /// streams ignores it.
    #[inline(always)]
    fn on_stream(&self, stream: u16) -> OnStream<'_, Self> {
        OnStream { destination: self, stream }
    }
}

/// A destination of requests of one stream: see [`Destination::on_stream`].
#[derive(Clone, Copy, Debug)]
pub struct OnStream<'a, A> {
    destination: &'a A,
    stream: u16,
}

impl<A: Destination> sealed::Sealed for OnStream<'_, A> {
    type Units = A::Units;

    #[inline(always)]
    fn units(&self) -> Self::Units {
        self.destination.units()
    }

    #[inline(always)]
    fn stream(&self) -> u16 {
        self.stream
    }
}

impl<A: Destination> Destination for OnStream<'_, A> {
    const MAX_INLINE: usize = A::MAX_INLINE;
    const MAX_WRITE_INLINE: usize = A::MAX_WRITE_INLINE;
    const MAX_SEND_SEGMENTS: usize = A::MAX_SEND_SEGMENTS;
    const MAX_RDMA_SEGMENTS: usize = A::MAX_RDMA_SEGMENTS;
}

/// The destination of a connected queue pair (RC): its WQEs carry none.
#[derive(Clone, Copy, Debug)]
pub struct Connected;

impl sealed::Sealed for Connected {
    type Units = [[u8; DS]; 0];

    #[inline(always)]
    fn units(&self) -> Self::Units {
        []
    }
}

impl Destination for Connected {
    const IS_CONNECTED: bool = true;
}

impl sealed::Sealed for AddressVector {
    type Units = [[u8; DS]; 3];

    #[inline(always)]
    fn units(&self) -> Self::Units {
        transmute!(*self)
    }
}

impl Destination for AddressVector {}

impl sealed::Sealed for CompactAddressVector {
    type Units = [[u8; DS]; 1];

    #[inline(always)]
    fn units(&self) -> Self::Units {
        transmute!(*self)
    }
}

impl Destination for CompactAddressVector {}

impl sealed::Sealed for XrcSegment {
    type Units = [[u8; DS]; 1];

    #[inline(always)]
    fn units(&self) -> Self::Units {
        transmute!(*self)
    }
}

impl Destination for XrcSegment {}

/// An address vector, then the other segments of a WQE.
#[derive(Clone, Copy)]
pub(super) struct Addressed<U, B> {
    address: U,
    message: B,
}

impl<U, B> Addressed<U, B> {
    #[inline(always)]
    pub(super) fn new<A: Destination + sealed::Sealed<Units = U>>(
        destination: &A,
        message: B,
    ) -> Self {
        Self { address: destination.units(), message }
    }
}

impl<U: AsRef<[[u8; DS]]> + Copy, B: Body> Body for Addressed<U, B> {
    #[inline(always)]
    fn units(&self) -> u32 {
        self.address.as_ref().len() as u32 + self.message.units()
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        for unit in self.address.as_ref() {
            sink.unit(Unit::load(unit));
        }
        self.message.emit(sink);
    }
}
