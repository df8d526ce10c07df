//! The names of the transport and its device, and the sizes of its operations.

use crate::base::address::TransportId;
use crate::transport::common::message::HEADROOM;

/// The transport.
pub(crate) const ID: TransportId = TransportId::Self_;
/// The name of its one device.
pub const DEVICE: &str = "memory";

/// Bytes of a message.
pub(super) const SEGMENT: usize = 8256;
/// Bytes of a buffer: the headroom, then the data.
pub(super) const BUFFER: usize = HEADROOM + SEGMENT;
const _: () = assert!(
    BUFFER.is_multiple_of(align_of::<usize>()),
    "buffers that follow each other are aligned"
);

/// Returns the data part of a buffer.
pub(super) fn data(buffer: &mut [u8; BUFFER]) -> &mut [u8; SEGMENT] {
    buffer.last_chunk_mut().expect("a buffer is longer than its data")
}

/// Slices per zero-copy operation. Nothing here limits them, but the API promises a limit.
pub(super) const MAX_IOV: usize = 16;
