//! Messages that begin with the header of tag matching.

use std::ptr::NonNull;

use barewire_mlx5::layouts::tag::TagHeader;

use super::{Received, SharedReceiver};
use crate::transport::common::message::{ExternalMessage, Keeper, KeptMessage, Message};
use crate::transport::rc::{MESSAGE, SEGMENT};

const HEADER: usize = size_of::<TagHeader>();

/// Keeps the message in the buffer at `start`. Its data begins behind the header, where that of an
/// active message does not.
struct Buffered<'a> {
    receiver: &'a SharedReceiver,
    start: NonNull<u8>,
}

impl Keeper for Buffered<'_> {
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        self.receiver.keep(self.start, data)
    }
}

impl SharedReceiver {
    /// Returns the first byte of the message in the buffer of WQE `counter`, which is complete.
    #[inline]
    pub(in crate::transport) fn opcode(&self, counter: u16) -> Option<u8> {
        let start = self.start(counter).get()?;
        // SAFETY: the byte lies in the buffer, which the device does not write before the WQE is
        // posted again.
        Some(unsafe { start.add(MESSAGE).read() })
    }

    /// Passes the message of `bytes` bytes in the buffer of WQE `counter` to `handle`, with its
    /// header. Returns the result; `None` if the message is shorter than its header.
    pub(in crate::transport) fn receive_tagged<R>(
        &self,
        counter: u16,
        bytes: u32,
        handle: impl FnOnce(TagHeader, Message<'_>) -> R,
    ) -> Option<R> {
        let index = self.index(counter);
        let start = self.start(counter).get()?;
        let _ended = Received { receiver: self, index };
        let length = (bytes as usize).checked_sub(HEADER);
        length.filter(|length| *length <= SEGMENT - HEADER).map(|length| {
            let keeper = Buffered { receiver: self, start };
            // SAFETY: the header and `SEGMENT - HEADER` bytes follow from `MESSAGE` on, and arrays
            // of bytes have no alignment. The receive WQE is complete, so the device writes the
            // buffer only after it is posted again: when the guard is dropped after the handler has
            // returned, or, if the message is kept, when the kept message is dropped.
            unsafe {
                let header = start.add(MESSAGE).cast::<[u8; HEADER]>().read();
                let external = ExternalMessage::new(start.add(MESSAGE + HEADER), &keeper);
                handle(TagHeader::from_bytes(header), Message::external(&external, length))
            }
        })
    }
}
