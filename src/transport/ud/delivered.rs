//! The message being handled, and its buffer.

use std::ptr::NonNull;

use super::socket::{NONE, Socket};
use super::{DATA, Driver};
use crate::transport::common::message::{HEADROOM, write_keeper};

/// The message being handled. The drop posts its buffer again unless the handler kept it.
pub(super) struct Delivered<'a, D: Driver> {
    socket: &'a Socket<D>,
    /// The buffer's entry in the receive queue is not free yet.
    has_entry: bool,
}

impl<'a, D: Driver> Delivered<'a, D> {
    /// The datagram in the buffer `number`, which has its entry in the receive queue unless it was
    /// held meanwhile. There is at most one at a time.
    #[inline(always)]
    pub(super) fn new(socket: &'a Socket<D>, number: u32, has_entry: bool) -> Self {
        socket.handled.set(number);
        Self { socket, has_entry }
    }

    /// Passes the buffer on to the caller.
    pub(super) fn into_number(self) -> u32 {
        if self.has_entry {
            self.socket.free_entry();
        }
        let number = self.socket.handled.replace(NONE);
        std::mem::forget(self);
        number
    }

    /// Writes the headroom of the data in the buffer at `start`, which names the keeper, and
    /// returns the address of the data.
    ///
    /// # Safety
    /// `start` is the start of this buffer, which the device does not write.
    #[inline(always)]
    pub(super) unsafe fn data(&self, start: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: the headroom lies in the buffer, in front of the data; buffers and `DATA - HEADROOM`
        // are aligned to 8. The device does not write it by the caller's contract, and only the
        // caller uses the buffer.
        unsafe {
            write_keeper(start.add(DATA - HEADROOM), self.socket);
            start.add(DATA)
        }
    }

    /// Ends a message whose buffer has this entry. The drop does the same, in more instructions.
    #[inline(always)]
    pub(super) fn finish(self, entry: u32) {
        let socket = self.socket;
        std::mem::forget(self);
        socket.post_again(entry);
    }
}

impl<D: Driver> Drop for Delivered<'_, D> {
    #[inline(always)]
    fn drop(&mut self) {
        self.socket.end(self.has_entry);
    }
}

const _: () = assert!((DATA - HEADROOM).is_multiple_of(8));
