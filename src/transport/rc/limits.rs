//! The sizes of operations, and where things are in buffers.

use crate::transport::common::message::HEADROOM;

/// Most bytes of a buffered operation or an active message, including the message's header.
pub(crate) const SEGMENT: usize = 8256;
/// Bytes in front of every active message: [`am_header`].
pub(crate) const AM_HEADER: usize = 4;
/// Offset of the handler id in these bytes.
pub(crate) const AM_ID: usize = 1;
/// Offset of data in a buffer.
pub(crate) const DATA: usize = HEADROOM;
/// Offset of a message in a buffer, chosen so that the bytes behind its header are aligned to 8.
pub(crate) const MESSAGE: usize = DATA - AM_HEADER;
/// Bytes of a buffer: `DATA` and a segment, in whole cache lines.
pub(crate) const BUFFER: usize = (DATA + SEGMENT).next_multiple_of(64);
/// Longest active message, without its header.
pub(crate) const MAX_AM: usize = SEGMENT - AM_HEADER;
/// Longest user header of a zero-copy active message.
pub(crate) const MAX_AM_HEADER: usize = 256;
/// Longest message of a zero-copy put or get, unless the device has a lower limit.
pub(crate) const MAX_ZCOPY: usize = 1 << 30;
