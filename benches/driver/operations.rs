//! The operations of the driver: posts, polls and receives. `benches/asm/` has the assembly of
//! some.

#![allow(clippy::no_mangle_with_rust_abi, reason = "the name is for the assembly listings")]

use std::hint::black_box;

use barewire_mlx5::doorbell::PlainDoorbell;
use barewire_mlx5::layouts::tag::{TagHeader, TagOpcode};
use barewire_mlx5::layouts::wqe::{AddressVector, RepeatEntry, XrcSegment};
use barewire_mlx5::queue::send::PREFIX;
use barewire_mlx5::queue::shared_receive::{SharedReceiveQueue, StridingReceiveQueue};
use barewire_mlx5::queue::tags::TagList;
use barewire_mlx5::request::{
    Bind, Binding, CompareSwap, FetchAdd, Inline, Interleave, Invalidate, Join, MaskedAdd,
    MaskedFetchAdd, Prefixed, Read, Send, SendTagged, Word, Write,
};
use barewire_mlx5::{
    Access, CompletionQueue, ControlFlags, DataSegment, Polled, ReceiveQueue, RemoteAddressSegment,
    SendQueue,
};
use iai_callgrind::{library_benchmark, library_benchmark_group};

use crate::budget::{BATCH, Level, ROUNDS};
use crate::queues::{
    appended, completed, destination, empty_completion_queue, filled_tag_list, packets, posted,
    pushed, pushed_shared, reaped, receive_queue, receiver, released, removing, send_queue,
    shared_receive_queue, still_empty, tag_list,
};

const NO_FLAGS: ControlFlags = ControlFlags::empty();

/// Address and rkey of remote memory.
const REMOTE: (u64, u32) = (0x1000, 7);
/// Address, length and lkey of local memory.
const LOCAL: (u64, u32, u32) = (0x2000, 64, 9);

#[inline(always)]
fn remote(address: u64, rkey: u32) -> RemoteAddressSegment {
    RemoteAddressSegment::new(address, rkey)
}

#[inline(always)]
fn local(address: u64, length: u32, lkey: u32) -> DataSegment {
    DataSegment::new(address, length, lkey)
}

crate::rows::operations! {
    Level::Driver;

    write_8: held_write_8(queue: &mut SendQueue, payload: u64, address: u64, rkey: u32) -> bool {
        let request = Write { local: Word(payload.to_ne_bytes()), remote: remote(address, rkey) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let (address, rkey) = black_box(REMOTE);
        for round in 0..ROUNDS {
            post(queue, round, address, rkey);
        }
    }

    write_8_run_time: held_write_slice(queue: &mut SendQueue, payload: &[u8], address: u64, rkey: u32) -> bool {
        let request = Write { local: Inline(payload), remote: remote(address, rkey) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let (payload, (address, rkey)) = black_box((&[7; 8][..], REMOTE));
        for _ in 0..ROUNDS {
            post(queue, payload, address, rkey);
        }
    }

    write_8_plain: held_write_8_plain(
        queue: &mut SendQueue<PlainDoorbell>,
        payload: u64,
        address: u64,
        rkey: u32,
    ) -> bool {
        let request = Write { local: Word(payload.to_ne_bytes()), remote: remote(address, rkey) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue<PlainDoorbell>| {
        let (address, rkey) = black_box(REMOTE);
        for round in 0..ROUNDS {
            post(queue, round, address, rkey);
        }
    }

    write_64: held_write_64(queue: &mut SendQueue, payload: &[u8; 64], address: u64, rkey: u32) -> bool {
        let request = Write { local: Inline(payload), remote: remote(address, rkey) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<2, _>] |post, queue: SendQueue| {
        let (payload, (address, rkey)) = black_box((&[7; 64], REMOTE));
        for _ in 0..ROUNDS {
            post(queue, payload, address, rkey);
        }
    }

    write_segment: held_write_segment(
        queue: &mut SendQueue,
        source: u64,
        length: u32,
        lkey: u32,
        address: u64,
        rkey: u32,
    ) -> bool {
        let request = Write { local: local(source, length, lkey), remote: remote(address, rkey) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let ((source, length, lkey), (address, rkey)) = black_box((LOCAL, REMOTE));
        for _ in 0..ROUNDS {
            post(queue, source, length, lkey, address, rkey);
        }
    }

    read_segment: held_read_segment(
        queue: &mut SendQueue,
        target: u64,
        length: u32,
        lkey: u32,
        address: u64,
        rkey: u32,
    ) -> bool {
        let request = Read { local: local(target, length, lkey), remote: remote(address, rkey) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let ((target, length, lkey), (address, rkey)) = black_box((LOCAL, REMOTE));
        for _ in 0..ROUNDS {
            post(queue, target, length, lkey, address, rkey);
        }
    }

    send_8: held_send_8(queue: &mut SendQueue, payload: u64) -> bool {
        queue.post(Send(Inline(&payload.to_ne_bytes())), NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        for round in 0..ROUNDS {
            post(queue, round);
        }
    }

    // Id, header and payload, as `am_short` sends them.
    send_prefixed: held_send_prefixed(queue: &mut SendQueue, id: u8, header: u64, payload: u64) -> bool {
        let prefix = (u128::from(id) | u128::from(header) << 32).to_le_bytes();
        let prefix = *prefix.first_chunk().unwrap_or(&[0; PREFIX]);
        let request = Send(Prefixed { prefix, payload: Inline(&payload.to_ne_bytes()) });
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let (id, payload) = black_box((1, 5));
        for round in 0..ROUNDS {
            post(queue, id, round, payload);
        }
    }

    send_segment: held_send_segment(queue: &mut SendQueue, source: u64, length: u32, lkey: u32) -> bool {
        queue.post(Send(local(source, length, lkey)), NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let (source, length, lkey) = black_box(LOCAL);
        for _ in 0..ROUNDS {
            post(queue, source, length, lkey);
        }
    }

    fetch_add: held_fetch_add(
        queue: &mut SendQueue,
        result: u64,
        lkey: u32,
        address: u64,
        rkey: u32,
        operand: u64,
    ) -> bool {
        let request = FetchAdd {
            local: local(result, 8, lkey),
            remote: remote(address, rkey),
            add: operand,
        };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let ((result, _, lkey), (address, rkey)) = black_box((LOCAL, REMOTE));
        for round in 0..ROUNDS {
            post(queue, result, lkey, address, rkey, round);
        }
    }

    compare_swap: held_compare_swap(
        queue: &mut SendQueue,
        result: u64,
        lkey: u32,
        address: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    ) -> bool {
        let request = CompareSwap {
            local: local(result, 8, lkey),
            remote: remote(address, rkey),
            compare,
            swap,
        };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let ((result, _, lkey), (address, rkey)) = black_box((LOCAL, REMOTE));
        for round in 0..ROUNDS {
            post(queue, result, lkey, address, rkey, round, round + 1);
        }
    }

    masked_fetch_add: held_masked_fetch_add(
        queue: &mut SendQueue,
        result: u64,
        lkey: u32,
        address: u64,
        rkey: u32,
        operand: u64,
    ) -> bool {
        let operands = MaskedAdd { operand, field_boundary: 1 << 31 };
        let request = MaskedFetchAdd {
            local: local(result, 8, lkey),
            remote: remote(address, rkey),
            operands,
        };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let ((result, _, lkey), (address, rkey)) = black_box((LOCAL, REMOTE));
        for round in 0..ROUNDS {
            post(queue, result, lkey, address, rkey, round);
        }
    }

    // To a queue pair of the datagram service (UD), with a full address vector.
    send_datagram: held_send_datagram(queue: &mut SendQueue, destination: &AddressVector, payload: u64) -> bool {
        queue.towards(destination).post(Send(Inline(&payload.to_ne_bytes())), NO_FLAGS).is_ok()
    }
    with [send_queue(), destination()] until [posted::<2, _>]
    |post, queue: SendQueue, destination: AddressVector| {
        for round in 0..ROUNDS {
            post(queue, &destination, round);
        }
    }

    // To a target of dynamic connections (DC), with a full address vector.
    dc_write_8: held_dc_write_8(
        queue: &mut SendQueue,
        target: &AddressVector,
        payload: u64,
        address: u64,
        rkey: u32,
    ) -> bool {
        let request = Write { local: Word(payload.to_ne_bytes()), remote: remote(address, rkey) };
        queue.towards(target).post(request, NO_FLAGS).is_ok()
    }
    with [send_queue(), destination()] until [posted::<2, _>]
    |post, queue: SendQueue, target: AddressVector| {
        let (address, rkey) = black_box(REMOTE);
        for round in 0..ROUNDS {
            post(queue, &target, round, address, rkey);
        }
    }

    // To a shared receive queue of an extended reliable connection (XRC).
    xrc_write_8: held_xrc_write_8(
        queue: &mut SendQueue,
        receiver: &XrcSegment,
        payload: u64,
        address: u64,
        rkey: u32,
    ) -> bool {
        let request = Write { local: Word(payload.to_ne_bytes()), remote: remote(address, rkey) };
        queue.towards(receiver).post(request, NO_FLAGS).is_ok()
    }
    with [send_queue(), receiver()] until [posted::<1, _>] |post, queue: SendQueue, receiver: XrcSegment| {
        let (address, rkey) = black_box(REMOTE);
        for round in 0..ROUNDS {
            post(queue, &receiver, round, address, rkey);
        }
    }

    bind_window: held_bind_window(
        queue: &mut SendQueue,
        free: u32,
        key: u32,
        address: u64,
        length: u32,
        lkey: u32,
    ) -> bool {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let binding = Binding { range: local(address, length, lkey), start: address, access };
        queue.post(Bind { free, key, binding, is_shared: false }, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<3, _>] |post, queue: SendQueue| {
        let ((address, length, lkey), (_, free)) = black_box((LOCAL, REMOTE));
        for _ in 0..ROUNDS {
            post(queue, free, free + 1, address, length, lkey);
        }
    }

    local_invalidate: held_local_invalidate(queue: &mut SendQueue, key: u32) -> bool {
        queue.post(Invalidate { key }, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<2, _>] |post, queue: SendQueue| {
        let (_, key) = black_box(REMOTE);
        for _ in 0..ROUNDS {
            post(queue, key);
        }
    }

    // The ranges are given by address, length and key, as to libmlx5.
    join_4: held_join_4(queue: &mut SendQueue, key: u32, ranges: &[(u64, u32, u32); 4]) -> bool {
        let ranges = ranges.map(|(address, length, lkey)| local(address, length, lkey));
        queue.post(Join { key, access: Access::LOCAL_WRITE, ranges: &ranges }, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<3, _>] |post, queue: SendQueue| {
        let (ranges, (_, key)) = black_box((&[LOCAL; 4], REMOTE));
        for _ in 0..ROUNDS {
            post(queue, key, ranges);
        }
    }

    interleave_3: held_interleave_3(
        queue: &mut SendQueue,
        key: u32,
        repeat: u32,
        ranges: &[(u64, u32, u32); 3],
    ) -> bool {
        let ranges = ranges.map(|(address, length, lkey)| {
            RepeatEntry::new(length as u16 + 32, length as u16, lkey, address)
        });
        let request = Interleave { key, access: Access::LOCAL_WRITE, repeat, entries: &ranges };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<3, _>] |post, queue: SendQueue| {
        let (ranges, repeat, (_, key)) = black_box((&[LOCAL; 3], 8, REMOTE));
        for _ in 0..ROUNDS {
            post(queue, key, repeat, ranges);
        }
    }

    // Consecutive words, with one doorbell.
    write_batch: held_write_batch(
        queue: &mut SendQueue,
        words: &[u64; BATCH as usize],
        address: u64,
        rkey: u32,
    ) -> bool {
        let mut batch = queue.batch();
        let mut address = address;
        for word in words {
            let request = Write { local: Word(word.to_ne_bytes()), remote: remote(address, rkey) };
            if batch.post(request, NO_FLAGS).is_err() {
                return false;
            }
            address += 8;
        }
        true
    }
    with [send_queue()] until [posted::<BATCH, _>] |post, queue: SendQueue| {
        let (words, (address, rkey)) = black_box((&[7; _], REMOTE));
        for _ in 0..ROUNDS {
            post(queue, words, address, rkey);
        }
    }

    poll_empty: held_poll(queue: &mut CompletionQueue) -> Option<Polled<'_>> {
        queue.poll()
    }
    with [empty_completion_queue()] until [still_empty] |post, queue: CompletionQueue| {
        // Eight per round: otherwise the loop would be a quarter of the count.
        for _ in 0..ROUNDS / 8 {
            post(queue);
            post(queue);
            post(queue);
            post(queue);
            post(queue);
            post(queue);
            post(queue);
            post(queue);
        }
    }

    reap: held_reap(completions: &mut CompletionQueue, queue: &mut SendQueue) -> bool {
        match completions.poll() {
            Some(completion) => {
                queue.reap(completion.wqe_counter());
                true
            }
            None => false,
        }
    }
    with [completed()] until [reaped] |post, queues: (CompletionQueue, SendQueue)| {
        let (completions, queue) = &mut *queues;
        for _ in 0..ROUNDS {
            post(completions, queue);
        }
    }

    receive: held_receive(queue: &mut ReceiveQueue, address: u64, length: u32, lkey: u32) -> bool {
        let pushed = queue.push(local(address, length, lkey));
        queue.publish();
        pushed
    }
    with [receive_queue()] until [pushed::<1>] |post, queue: ReceiveQueue| {
        let (address, length, lkey) = black_box(LOCAL);
        for _ in 0..ROUNDS {
            post(queue, address, length, lkey);
        }
    }

    // Consecutive buffers, published together.
    receive_batch: held_receive_batch(queue: &mut ReceiveQueue, address: u64, length: u32, lkey: u32) -> bool {
        let mut pushed = true;
        for at in 0..BATCH {
            pushed &= queue.push(local(address + at * u64::from(length), length, lkey));
        }
        queue.publish();
        pushed
    }
    with [receive_queue()] until [pushed::<BATCH>] |post, queue: ReceiveQueue| {
        let (address, length, lkey) = black_box(LOCAL);
        for _ in 0..ROUNDS {
            post(queue, address, length, lkey);
        }
    }

    shared_receive: held_shared_receive(
        queue: &mut SharedReceiveQueue,
        address: u64,
        length: u32,
        lkey: u32,
    ) -> bool {
        let pushed = queue.push_one(local(address, length, lkey));
        queue.publish();
        pushed.is_some()
    }
    with [shared_receive_queue()] until [pushed_shared] |post, queue: SharedReceiveQueue| {
        let (address, length, lkey) = black_box(LOCAL);
        for _ in 0..ROUNDS {
            post(queue, address, length, lkey);
        }
    }

    tag_append: held_tag_append(
        list: &mut TagList,
        tag: u64,
        address: u64,
        length: u32,
        lkey: u32,
    ) -> bool {
        list.append(tag, u64::MAX, local(address, length, lkey)).is_ok()
    }
    with [tag_list()] until [appended] |post, list: TagList| {
        let (address, length, lkey) = black_box(LOCAL);
        for tag in 0..ROUNDS {
            post(list, tag, address, length, lkey);
        }
    }

    tag_remove: held_tag_remove(list: &mut TagList, entry: u16) -> bool {
        list.remove(entry) == Ok(true)
    }
    with [filled_tag_list()] until [removing] |post, list: TagList| {
        for entry in 0..ROUNDS {
            post(list, entry as u16);
        }
    }

    // A tag and 8 bytes, as `am_short` has an id and a header.
    tag_send_8: held_tag_send_8(queue: &mut SendQueue, tag: u64, payload: u64) -> bool {
        let header = TagHeader::new(TagOpcode::Eager, 0, tag);
        let request = SendTagged { header: &header, payload: Inline(&payload.to_ne_bytes()) };
        queue.post(request, NO_FLAGS).is_ok()
    }
    with [send_queue()] until [posted::<1, _>] |post, queue: SendQueue| {
        let payload = black_box(5);
        for tag in 0..ROUNDS {
            post(queue, tag, payload);
        }
    }

    // Includes the share of the WQE that is posted again after its 16 strides.
    striding_receive: held_striding_receive(
        completions: &mut CompletionQueue,
        queue: &mut StridingReceiveQueue,
    ) -> u32 {
        let Some(packet) = completions.poll().and_then(|polled| queue.take(polled)) else {
            return 0;
        };
        let end = packet.offset() + u32::from(packet.length());
        if queue.release(packet) {
            queue.publish();
        }
        end
    }
    with [packets()] until [released] |post, queues: (CompletionQueue, StridingReceiveQueue)| {
        let (completions, queue) = &mut *queues;
        for _ in 0..ROUNDS {
            post(completions, queue);
        }
    }
}
