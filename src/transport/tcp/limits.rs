//! The name of the transport, and the sizes of its operations.

use crate::base::address::TransportId;

/// The transport.
pub(crate) const ID: TransportId = TransportId::Tcp;

/// Bytes of a short or buffered operation.
pub(super) const SEGMENT: usize = 8256;
/// Bytes of a message.
pub(super) const MAX_AM: usize = 1 << 20;
/// Bytes of a header of a zero-copy message.
pub(super) const MAX_AM_HEADER: usize = 256;
/// Bytes of a zero-copy put or get.
pub(super) const MAX_ZCOPY: usize = 1 << 30;
/// Slices of a zero-copy operation.
pub(super) const MAX_IOV: usize = 16;
/// Zero-copy operations of at most so many bytes are copied: that costs less than a vectored send.
pub(super) const COPIED: usize = 2 << 10;
/// Copied bytes that are sent without waiting for more.
pub(super) const EAGER: usize = 32 << 10;
