//! RDMA writes and reads.

use core::hint::cold_path;

use barewire_layouts::wqe::{
    ControlFlags, DS, DataSegment, InlineHeader, Opcode, RemoteAddressSegment,
};

use super::{PREFIX, PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::Unit;

/// RDMA writes and reads of connected queue pairs.
impl<D: Doorbell> SendQueue<D> {
    /// Writes 8 bytes that are copied to the WQE.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn write_inline_8(
        &mut self,
        payload: [u8; 8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let data = Unit::inline_8(InlineHeader::new(8), payload);
        self.post_block::<3>(
            Opcode::RdmaWrite,
            0,
            flags,
            [Unit::remote(&remote), data, Unit::zero()],
        )
    }

    /// Writes a cache line that is copied to the WQE of two blocks.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn write_inline_64(
        &mut self,
        line: &[u8; 64],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let (head, rest) = line.split_first_chunk().unwrap_or((&[0; PREFIX], &[]));
        let (middle, tail) = rest.as_chunks();
        let [a, b, c] = *middle.first_chunk().unwrap_or(&[[0; DS]; 3]);
        let tail = *tail.first_chunk().unwrap_or(&[0; 4]);
        let (zero, remote) = (Unit::zero(), Unit::remote(&remote));
        let head = Unit::inline_prefix(InlineHeader::new(64), *head);
        let (a, b, c) = (Unit::load(&a), Unit::load(&b), Unit::load(&c));
        let tail = Unit::from_low(u32::from_le_bytes(tail));
        self.post_blocks::<2, 7>(
            Opcode::RdmaWrite,
            0,
            0,
            flags,
            [[zero, remote, head, a], [b, c, tail, zero]],
        )
    }

    /// Writes up to [`super::MAX_WRITE_INLINE`] bytes that are copied to the WQE; `payload` can be
    /// reused on return.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`].
    #[inline(always)]
    pub fn write_inline(
        &mut self,
        payload: &[u8],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // Common sizes have code in which nothing depends on the length.
        if let Ok(word) = payload.try_into() {
            return self.write_inline_8(word, remote, flags);
        }
        // As integers, which are passed in registers.
        let (address, rkey) = (remote.address.get(), remote.rkey.get());
        match payload.try_into() {
            Ok(line) => self.write_line(line, address, rkey, flags),
            Err(_) => self.write_inline_any(payload, address, rkey, flags),
        }
    }

    #[inline(never)]
    fn write_line(
        &mut self,
        line: &[u8; 64],
        address: u64,
        rkey: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.write_inline_64(line, RemoteAddressSegment::new(address, rkey), flags)
    }

    #[inline(never)]
    fn write_inline_any(
        &mut self,
        payload: &[u8],
        address: u64,
        rkey: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(
            Opcode::RdmaWrite,
            0,
            flags,
            Some(RemoteAddressSegment::new(address, rkey)),
            payload,
        )
    }

    /// Like [`Self::write_inline`], and consumes a receive WQE of the peer, whose completion
    /// carries `immediate`.
    ///
    /// # Errors
    /// Those of [`Self::write_inline`].
    #[inline]
    pub fn write_inline_immediate(
        &mut self,
        payload: &[u8],
        remote: RemoteAddressSegment,
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_inline(Opcode::RdmaWriteImmediate, immediate, flags, Some(remote), payload)
    }

    /// Writes one local segment. Its memory must stay registered and unchanged until the
    /// completion.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn write(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_rdma(Opcode::RdmaWrite, 0, local, remote, flags)
    }

    /// Like [`Self::write`], and consumes a receive WQE of the peer, whose completion carries
    /// `immediate`.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn write_one_immediate(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_rdma(Opcode::RdmaWriteImmediate, immediate, local, remote, flags)
    }

    /// Writes up to [`super::MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn write_gather(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaWrite, 0, flags, Some(remote), local)
    }

    /// Like [`Self::write_gather`], and consumes a receive WQE of the peer, whose completion
    /// carries `immediate`.
    ///
    /// # Errors
    /// Those of [`Self::write_gather`].
    #[inline]
    pub fn write_immediate(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        immediate: u32,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaWriteImmediate, immediate, flags, Some(remote), local)
    }

    /// Reads into one local segment.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline(always)]
    pub fn read(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_rdma(Opcode::RdmaRead, 0, local, remote, flags)
    }

    /// Reads into up to [`super::MAX_SEGMENTS`] segments.
    ///
    /// # Errors
    /// [`PostError::QueueFull`], or [`PostError::TooLong`] for too many segments.
    #[inline]
    pub fn read_scatter(
        &mut self,
        local: &[DataSegment],
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        self.post_segments(Opcode::RdmaRead, 0, flags, Some(remote), local)
    }

    #[inline(always)]
    fn post_rdma(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        // A byte count of zero means 2 GiB to the device, so an empty segment must not be written.
        if local.byte_count.get() == 0 {
            cold_path();
            return self.post_empty(opcode, immediate, remote, flags);
        }
        self.post_block::<3>(
            opcode,
            immediate,
            flags,
            [Unit::remote(&remote), Unit::local(&local), Unit::zero()],
        )
    }

    /// Posts an RDMA operation of no bytes. Inlined: otherwise the two `Result`s are re-encoded at
    /// the join.
    #[inline(always)]
    fn post_empty(
        &mut self,
        opcode: Opcode,
        immediate: u32,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), Unit::zero(), Unit::zero()];
        self.post_block::<2>(opcode, immediate, flags, units)
    }
}
