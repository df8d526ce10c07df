//! The names of the transport and its device, and the sizes of its operations.

use crate::base::address::TransportId;
use crate::transport::common::message::SHORT_HEADER;

/// The transport.
pub(crate) const ID: TransportId = TransportId::Shm;
/// The name of its one device.
pub const DEVICE: &str = "memory";

/// Bytes of a message in a buffer.
pub(super) const SEGMENT: usize = 8256;
const _: () = assert!(SEGMENT <= barewire_shm::BUFFER);
/// Slices per zero-copy operation. Nothing here limits them, but the API promises a limit.
pub(super) const MAX_IOV: usize = 16;
pub(super) const MAX_AM_SHORT: usize = SEGMENT - SHORT_HEADER;
pub(super) const MAX_AM_HEADER: usize = 256;
