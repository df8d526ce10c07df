//! Compares WQEs of DC initiators with those that libmlx5 1.24.44 (Debian 12) wrote on a DCI of
//! RoCE and InfiniBand ports, by `ibv_wr_*` and `mlx5dv_wr_set_dc_addr`: `libmlx5-dc.jsonl`; and on
//! one with streams, by `mlx5dv_wr_set_dc_addr_stream`: `libmlx5-dc-streams.jsonl`.

use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::{Destination, PostError, SendQueue, WqeIndex};
use barewire_mlx5::request::{
    CompareSwap, FetchAdd, Inline, Prefixed, Read, Segments, Send, Word, Write,
};
use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment};
use serde_json::Value;
use zerocopy::FromBytes;

use crate::replay::memory::PlainQueue;
use crate::replay::{bytes, hex};

const FILE: &str = include_str!("libmlx5-dc.jsonl");
const STREAMS: &str = include_str!("libmlx5-dc-streams.jsonl");
/// The target and the key that the recorder named.
const TARGET: u32 = 0x000a_0b0c;
const KEY: u64 = 0x0102_0304_0506_0708;

fn lines(file: &str) -> impl Iterator<Item = (Value, Vec<u8>)> {
    file.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let wqe = bytes(line["wqe_hex"].as_str().unwrap()).unwrap();
        (line, wqe)
    })
}

/// The address vector of a WQE: libmlx5's bytes, read by our layout.
fn destination(wqe: &[u8]) -> AddressVector {
    AddressVector::read_from_bytes(&wqe[16..64]).unwrap()
}

/// Posts the operation that the recorder names so.
fn post<A: Destination>(queue: &mut SendQueue, to: &A, name: &str) -> Result<WqeIndex, PostError> {
    let data: [u8; 100] = core::array::from_fn(|at| at as u8 + 1);
    let remote = RemoteAddressSegment::new(0x1122_3344_5566_7788, 0x99aa_bbcc);
    let local = |length| DataSegment::new(0x5000, length, 0x1234);
    let two = [local(64), DataSegment::new(0x6000, 32, 0x1235)];
    let (mut queue, done) = (queue.towards(to), ControlFlags::COMPLETION);
    match name.trim_start_matches("ib_") {
        "write_inl_8" => queue.post(Write { local: Word([1, 2, 3, 4, 5, 6, 7, 8]), remote }, done),
        "write_inl_100" => queue.post(Write { local: Inline(&data), remote }, done),
        "write_1sge_64" => {
            queue.post(Write { local: Segments(&[local(64)]), remote }, done | ControlFlags::FENCE)
        }
        "write_2sge_64_32" => queue.post(Write { local: Segments(&two), remote }, done),
        "send_inl_20" => {
            let (prefix, word) = (&data[..12], &data[12..20]);
            let (prefix, word) = (prefix.try_into().unwrap(), word.try_into().unwrap());
            queue.post(Send(Prefixed { prefix, payload: Word(word) }), done)
        }
        "send_inl_100" => queue.post(Send(Inline(&data)), done),
        "send_2sge_64_32" => queue.post(Send(Segments(&two)), done),
        "read_1sge_256" => queue.post(Read { local: Segments(&[local(256)]), remote }, done),
        "fetch_add" => queue.post(FetchAdd { local: local(8), remote, add: 0x42 }, done),
        "cmp_swp" => {
            queue.post(CompareSwap { local: local(8), remote, compare: 0x43, swap: 0x44 }, done)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn every_operation_is_byte_for_byte_libmlx5s() {
    for (file, count) in [(FILE, 20), (STREAMS, 16)] {
        let mut queues: Vec<(u64, PlainQueue)> = Vec::new();
        let mut compared = 0;
        for (line, wanted) in lines(file) {
            let qpn = line["qpn"].as_u64().unwrap();
            if queues.last().is_none_or(|(last, _)| *last != qpn) {
                queues.push((qpn, PlainQueue::new(qpn as u32, 64, 8)));
            }
            let plain = &mut queues.last_mut().unwrap().1;
            let at = line["pi"].as_u64().unwrap();
            assert_eq!(plain.queue.posted(), at, "libmlx5's WQEs have as many blocks");
            let (to, name) = (destination(&wanted), line["name"].as_str().unwrap());
            match line["stream"].as_u64() {
                None => post(&mut plain.queue, &to, name),
                Some(stream) => post(&mut plain.queue, &to.on_stream(stream as u16), name),
            }
            .unwrap();
            let written = plain.ring(at as usize, wanted.len());
            assert_eq!(hex(&written), hex(&wanted), "{name}");
            compared += 1;
        }
        assert_eq!((compared, queues.len()), (count, 2));
    }
}

/// The general functions write the same bytes as those for 8 bytes.
#[test]
fn eight_bytes_take_the_same_form_by_either_path() {
    let to = destination(&lines(FILE).next().unwrap().1);
    let remote = RemoteAddressSegment::new(5, 6);
    let [mut one, mut other] = [(); 2].map(|()| PlainQueue::new(7, 16, 2));
    let done = ControlFlags::COMPLETION;
    one.queue.towards(&to).post(Write { local: Word([3; 8]), remote }, done).unwrap();
    one.queue
        .towards(&to)
        .post(Send(Prefixed { prefix: [4; 12], payload: Word([5; 8]) }), done)
        .unwrap();
    other.queue.towards(&to).post(Write { local: Inline(&[3; 8]), remote }, done).unwrap();
    other
        .queue
        .towards(&to)
        .post(Send(Prefixed { prefix: [4; 12], payload: Inline(&[5; 8]) }), done)
        .unwrap();
    assert_eq!(one.ring(0, 96), other.ring(0, 96));
    assert_eq!(one.ring(2, 96), other.ring(2, 96));
    assert_eq!(one.register()[..96], other.register()[..96]);
}

/// libmlx5's address vectors, built from their parts.
#[test]
fn address_vectors_are_libmlx5s() {
    for (line, wqe) in lines(FILE) {
        let found = destination(&wqe);
        let index = found.source_index();
        let built = if line["name"].as_str().unwrap().starts_with("ib_") {
            AddressVector::infiniband(0, 0, found.base.lid_or_port.get())
                .with_global_route(found.gid, index, 64)
        } else {
            let port = found.base.lid_or_port.get();
            AddressVector::roce(0, 0, found.mac, found.gid, port, index, 64)
        };
        let mut built = built;
        built.base = built.base.to_target(TARGET, KEY);
        built.base.rate_service_level = found.base.rate_service_level;
        built.base.path_bits = found.base.path_bits;
        built.traffic_class = 106;
        assert_eq!(built, found);
        // Service level 2: on Ethernet, bits 1 to 3.
        let is_ib = found.mac == [0; 6];
        assert_eq!(found.base.rate_service_level, if is_ib { 2 } else { 4 });
    }
}
