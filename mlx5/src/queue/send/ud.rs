//! Datagrams: sends that carry their destination (UD).

use barewire_layouts::wqe::{AddressVector, ControlFlags, DataSegment, InlineHeader, Opcode};
use zerocopy::transmute;

use super::destination::{Addressed, sealed::Sealed as _};
use super::{Destination, MAX_SEGMENTS, PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::{Body, Inline, Segments, Unit};

/// Datagrams of UD queue pairs.
impl<D: Doorbell> SendQueue<D> {
    /// Sends one local segment to `destination`.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn send_to<A: Destination>(
        &mut self,
        destination: &A,
        local: DataSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_datagram(Opcode::Send, 0, flags, destination, &[local])
    }

    /// Sends up to [`MAX_SEGMENTS`] segments to `destination` as one datagram.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn send_gather_to<A: Destination>(
        &mut self,
        destination: &A,
        local: &[DataSegment],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_datagram(Opcode::Send, 0, flags, destination, local)
    }

    /// Like [`Self::send_gather_to`], and the receiver's completion carries `immediate`.
    ///
    /// # Errors
    /// Those of [`Self::send_gather_to`].
    #[inline]
    pub fn send_immediate_to<A: Destination>(
        &mut self,
        destination: &A,
        local: &[DataSegment],
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_datagram(Opcode::SendImmediate, immediate, flags, destination, local)
    }

    /// Sends up to [`Destination::MAX_INLINE`] bytes, which are copied to the WQE, to
    /// `destination`; `payload` can be reused on return.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline]
    pub fn send_inline_to<A: Destination>(
        &mut self,
        destination: &A,
        payload: &[u8],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline_datagram(Opcode::Send, 0, flags, destination, payload)
    }

    /// Like [`Self::send_inline_to`], and the receiver's completion carries `immediate`.
    ///
    /// # Errors
    /// Those of [`Self::send_inline_to`].
    #[inline]
    pub fn send_inline_immediate_to<A: Destination>(
        &mut self,
        destination: &A,
        payload: &[u8],
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline_datagram(Opcode::SendImmediate, immediate, flags, destination, payload)
    }

    /// Like [`Self::send_inline_to`], for four words in memory order, which stay in CPU registers.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn send_words_to(
        &mut self,
        destination: &AddressVector,
        [a, b, c, d]: [u64; 4],
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let header: u32 = transmute!(InlineHeader::new(32));
        let [first, second, third] = destination.units();
        let (first, second, third) = (Unit::load(&first), Unit::load(&second), Unit::load(&third));
        // The inline header shifts everything by half a word.
        let payload = [
            Unit::from_words(u64::from(header) | a << 32, a >> 32 | b << 32),
            Unit::from_words(b >> 32 | c << 32, c >> 32 | d << 32),
            Unit::from_words(d >> 32, 0),
        ];
        let [fourth, fifth, sixth] = payload;
        let blocks = [[Unit::zero(), first, second, third], [fourth, fifth, sixth, Unit::zero()]];
        self.post_blocks::<2, 7>(Opcode::Send, 0, 0, flags, blocks)
    }

    #[inline(always)]
    fn post_datagram<A: Destination>(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        destination: &A,
        local: &[DataSegment],
    ) -> Result<WqeIndex, PostError> {
        let message = Segments::new(None, local);
        if message.units() as usize > MAX_SEGMENTS {
            return Err(PostError::TooLong);
        }
        self.post_wqe(opcode, immediate, flags, Addressed::new(destination, message))
    }

    #[inline(always)]
    fn post_inline_datagram<A: Destination>(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        flags: ControlFlags,
        destination: &A,
        payload: &[u8],
    ) -> Result<WqeIndex, PostError> {
        if payload.len() > A::MAX_INLINE {
            return Err(PostError::TooLong);
        }
        let message = Inline::new(None, payload);
        self.post_wqe(opcode, immediate, flags, Addressed::new(destination, message))
    }
}
