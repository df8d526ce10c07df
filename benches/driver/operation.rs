//! What is measured in both shapes: a post each, with arguments as a caller has them.

use barewire_mlx5::doorbell::Doorbell;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::{MaskedAdd, PREFIX};
use barewire_mlx5::queue::shared_receive::SharedReceiveQueue;
use barewire_mlx5::{
    CompletionQueue, ControlFlags, DataSegment, Polled, ReceiveQueue, RemoteAddressSegment, SendQueue,
};

use crate::budget::BATCH;

/// Memory on the other side, as two numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

impl Remote {
    #[inline(always)]
    fn segment(self) -> RemoteAddressSegment {
        RemoteAddressSegment::new(self.address, self.rkey)
    }
}

/// Memory on this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

impl Local {
    #[inline(always)]
    fn segment(self) -> DataSegment {
        DataSegment::new(self.address, self.length, self.lkey)
    }
}

const NO_FLAGS: ControlFlags = ControlFlags::empty();

#[inline(always)]
pub(crate) fn write_8<D: Doorbell>(queue: &mut SendQueue<D>, payload: u64, remote: Remote) -> bool {
    queue.write_inline_8(payload.to_ne_bytes(), remote.segment(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn write_slice(queue: &mut SendQueue, payload: &[u8], remote: Remote) -> bool {
    queue.write_inline(payload, remote.segment(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn write_segment(queue: &mut SendQueue, local: Local, remote: Remote) -> bool {
    queue.write(local.segment(), remote.segment(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn read_segment(queue: &mut SendQueue, local: Local, remote: Remote) -> bool {
    queue.read(local.segment(), remote.segment(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn send_8(queue: &mut SendQueue, payload: u64) -> bool {
    queue.send_inline(&payload.to_ne_bytes(), NO_FLAGS).is_ok()
}

/// As `am_short`: an id and a header, then the payload.
#[inline(always)]
pub(crate) fn send_prefixed(queue: &mut SendQueue, id: u8, header: u64, payload: u64) -> bool {
    let prefix = (u128::from(id) | u128::from(header) << 32).to_le_bytes();
    let prefix = *prefix.first_chunk().unwrap_or(&[0; PREFIX]);
    queue.send_inline_prefixed(prefix, &payload.to_ne_bytes(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn send_segment(queue: &mut SendQueue, local: Local) -> bool {
    queue.send(local.segment(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn fetch_add(queue: &mut SendQueue, local: Local, remote: Remote, operand: u64) -> bool {
    queue.fetch_add(local.segment(), remote.segment(), operand, NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn compare_swap(
    queue: &mut SendQueue,
    local: Local,
    remote: Remote,
    compare: u64,
    swap: u64,
) -> bool {
    queue.compare_swap(local.segment(), remote.segment(), compare, swap, NO_FLAGS).is_ok()
}

/// To a queue pair of a datagram service (UD), with a full address vector.
#[inline(always)]
pub(crate) fn send_datagram(queue: &mut SendQueue, destination: &AddressVector, payload: u64) -> bool {
    queue.send_inline_to(destination, &payload.to_ne_bytes(), NO_FLAGS).is_ok()
}

#[inline(always)]
pub(crate) fn masked_fetch_add(queue: &mut SendQueue, local: Local, remote: Remote, operand: u64) -> bool {
    let operands = MaskedAdd { operand, field_boundary: 1 << 31 };
    queue.masked_fetch_add_64(local.segment(), remote.segment(), operands, NO_FLAGS).is_ok()
}

/// A word each to places one after the other, with one doorbell.
#[inline(always)]
pub(crate) fn write_batch(queue: &mut SendQueue, words: &[u64; BATCH as usize], remote: Remote) -> bool {
    let mut batch = queue.batch();
    let mut address = remote.address;
    let mut posted = true;
    for word in words {
        posted &= batch
            .write_inline_8(word.to_ne_bytes(), Remote { address, ..remote }.segment(), NO_FLAGS)
            .is_ok();
        address += 8;
    }
    posted
}

#[inline(always)]
pub(crate) fn poll(queue: &mut CompletionQueue) -> Option<Polled<'_>> {
    queue.poll()
}

#[inline(always)]
pub(crate) fn reap(completions: &mut CompletionQueue, queue: &mut SendQueue) -> bool {
    match completions.poll() {
        Some(completion) => {
            queue.reap(completion.wqe_counter());
            true
        }
        None => false,
    }
}

#[inline(always)]
pub(crate) fn receive(queue: &mut ReceiveQueue, buffer: Local) -> bool {
    let pushed = queue.push(buffer.segment());
    queue.publish();
    pushed
}

#[inline(always)]
pub(crate) fn shared_receive(queue: &mut SharedReceiveQueue, buffer: Local) -> bool {
    let pushed = queue.push(&[buffer.segment()]);
    queue.publish();
    pushed.is_some()
}

/// Buffers one after the other, published together.
#[inline(always)]
pub(crate) fn receive_batch(queue: &mut ReceiveQueue, first: Local) -> bool {
    let mut pushed = true;
    for at in 0..BATCH {
        let address = first.address + at * u64::from(first.length);
        pushed &= queue.push(Local { address, ..first }.segment());
    }
    queue.publish();
    pushed
}
