//! Compares WQEs that change memory keys with those of libmlx5 1.24.44 (Debian 12), by
//! `ibv_wr_bind_mw`, `ibv_wr_local_inv`, `mlx5dv_wr_mr_list` and `mlx5dv_wr_mr_interleaved`, across
//! the end of a ring: `libmlx5-umr.jsonl`. Bytes that libmlx5 leaves are `ee`.

use barewire_mlx5::layouts::wqe::RepeatEntry;
use barewire_mlx5::request::{
    Bind, Binding, Interleave, Invalidate, Join, MAX_INTERLEAVED, MAX_RANGES, Unbind, Write,
};
use barewire_mlx5::{Access, ControlFlags, DataSegment, PostError, RemoteAddressSegment};
use serde_json::Value;

use super::check;
use crate::replay::bytes;
use crate::replay::memory::PlainQueue;

const FILE: &str = include_str!("libmlx5-umr.jsonl");
/// `IBV_ACCESS_ZERO_BASED`.
const ZERO_BASED: u64 = 1 << 5;

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap()
}

fn access(line: &Value) -> Access {
    Access::from_bits_truncate(number(line, "access") as u8)
}

/// The entries of a list as the recorder made them: the `at`-th has so many bytes at so far from
/// the first.
fn ranges(line: &Value, bytes: u64, apart: u64) -> Vec<DataSegment> {
    let (address, lkey) = (number(line, "address"), number(line, "lkey") as u32);
    let range = |at| DataSegment::new(address + apart * at, (bytes + at) as u32, lkey);
    (0..number(line, "entries")).map(range).collect()
}

fn repeated(range: &DataSegment) -> RepeatEntry {
    const SKIPPED: u16 = 32;
    let bytes = range.byte_count.get() as u16;
    RepeatEntry {
        stride: (bytes + SKIPPED).into(),
        byte_count: bytes.into(),
        key: range.lkey,
        address: range.address,
    }
}

#[test]
fn every_change_is_byte_for_byte_libmlx5s() {
    let first: Value = serde_json::from_str(FILE.lines().next().unwrap()).unwrap();
    let (qpn, blocks) = (number(&first, "qpn") as u32, number(&first, "blocks") as u32);
    let mut plain = PlainQueue::new(qpn, blocks, 8);
    let (mut compared, mut wrapped) = (0, 0);
    for line in FILE.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let wanted = bytes(line["wqe_hex"].as_str().unwrap()).unwrap();
        let queue = &mut plain.queue;
        let at = number(&line, "pi");
        assert_eq!(queue.posted(), at, "libmlx5's WQEs have as many blocks");
        // libmlx5 fences what follows a change; here the caller does.
        let flags = ControlFlags::from_bits_truncate(wanted[11]);
        let named = u32::from_be_bytes(*wanted[12..].first_chunk().unwrap());
        let name = line["name"].as_str().unwrap();
        match name {
            "bind" => {
                let rights = number(&line, "access");
                let (address, length) = (number(&line, "address"), number(&line, "length"));
                let lkey = number(&line, "lkey") as u32;
                let binding = Binding {
                    range: DataSegment::new(address, length as u32, lkey),
                    start: if rights & ZERO_BASED == 0 { address } else { 0 },
                    access: access(&line),
                };
                queue.post(
                    Bind {
                        free: named,
                        key: number(&line, "key") as u32,
                        binding,
                        is_shared: false,
                    },
                    flags,
                )
            }
            "unbind" => {
                // libmlx5 names the window by its first key, whose low byte the device ignores.
                let key = number(&line, "key") as u32;
                assert_eq!(named >> 8, key >> 8);
                let posted = queue.post(Unbind { key, is_shared: false }, flags);
                let written = plain.ring(at as usize, wanted.len());
                assert_eq!(written[12..16], key.to_be_bytes());
                posted
            }
            "invalidate" => queue.post(Invalidate { key: named }, flags),
            "write" => {
                let (address, lkey) = (number(&line, "address"), number(&line, "lkey") as u32);
                let remote = RemoteAddressSegment::new(address, lkey);
                queue.post(Write { local: DataSegment::new(address, 8, lkey), remote }, flags)
            }
            "list" => queue.post(
                Join { key: named, access: access(&line), ranges: &ranges(&line, 128, 512) },
                flags,
            ),
            "interleaved" => {
                let entries: Vec<_> = ranges(&line, 64, 4096).iter().map(repeated).collect();
                let repeat = number(&line, "repeat") as u32;
                queue.post(
                    Interleave { key: named, access: access(&line), repeat, entries: &entries },
                    flags,
                )
            }
            other => panic!("{other}"),
        }
        .unwrap();
        let posted = (plain.queue.posted() - at) as u32;
        let mut written = plain.ring(at as usize, wanted.len());
        assert_eq!(written.len(), posted as usize * 64, "{name}");
        if name == "unbind" {
            written[12..16].copy_from_slice(&wanted[12..16]);
        }
        check(name, &written, &wanted);
        if posted <= 4 {
            // The halves of the register take turns.
            let half = &plain.register()[compared % 2 * 256..];
            check("BlueFlame", &half[16..written.len()], &wanted[16..]);
        }
        wrapped +=
            u32::from(at / u64::from(blocks) != (plain.queue.posted() - 1) / u64::from(blocks));
        plain.queue.reap(plain.queue.last_index().unwrap().0);
        compared += 1;
    }
    assert_eq!(compared, 80);
    assert!(wrapped > 0, "no WQE wraps");
}

#[test]
fn the_longest_lists_fit_and_longer_ones_are_refused() {
    let mut plain = PlainQueue::new(7, 16, 2);
    let range = DataSegment::new(0x1000, 16, 5);
    let (ranges, entries) = ([range; MAX_RANGES + 1], [repeated(&range); MAX_INTERLEAVED + 1]);
    let (rights, flags) = (Access::all(), ControlFlags::empty());
    let queue = &mut plain.queue;
    queue.post(Join { key: 0x100, access: rights, ranges: &ranges[1..] }, flags).unwrap();
    assert_eq!(queue.posted(), 8);
    queue
        .post(Interleave { key: 0x100, access: rights, repeat: 3, entries: &entries[1..] }, flags)
        .unwrap();
    assert_eq!(queue.posted(), 16);
    assert_eq!(
        queue.post(Join { key: 0x100, access: rights, ranges: &ranges }, flags),
        Err(PostError::TooLong)
    );
    assert_eq!(
        queue.post(Interleave { key: 0x100, access: rights, repeat: 3, entries: &entries }, flags),
        Err(PostError::TooLong)
    );
    assert_eq!(
        queue.post(Join { key: 0x100, access: rights, ranges: &[range] }, flags),
        Err(PostError::QueueFull)
    );
}
