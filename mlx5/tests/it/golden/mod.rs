//! Compares the driver with libmlx5: ring, doorbell record and BlueFlame register of every
//! operation in `golden/libmlx5.jsonl`.
//!
//! Bytes that libmlx5 leaves unchanged are `ee` in the file and are not compared.

mod dc;
use crate::machine;
use crate::replay;
mod tags;
mod umr;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use barewire_mlx5::layouts::wqe::{AddressVector, CompactAddressVector};
use barewire_mlx5::queue::send::{Destination, MAX_SEGMENTS};
use barewire_mlx5::request::{
    Inline, MaskedAdd, MaskedCompareSwap, MaskedFetchAdd, MaskedSwap, Nop, Segments, Send,
    SendImmediate, Word, Words, Write,
};
use barewire_mlx5::{
    CompletionQueue, ControlFlags, DataSegment, PostError, ProtectionDomain, RcConfig, RcPath,
    RcQueuePair, RemoteAddressSegment, Uar, WqeIndex,
};
use replay::memory::PlainQueue;
use replay::{Replay, UNTOUCHED, bytes, hex};
use serde_json::Value;

const FILE: &str = include_str!("libmlx5.jsonl");

fn check(what: &str, got: &[u8], wanted: &[u8]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            *wanted == UNTOUCHED || got == wanted,
            "{what}: byte {at} is {got:#04x}, libmlx5 has {wanted:#04x}"
        );
    }
}

fn operations() -> impl Iterator<Item = Value> {
    FILE.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == "op")
}

fn field(line: &Value, key: &str) -> Vec<u8> {
    bytes(line[key].as_str().unwrap()).unwrap()
}

/// RC and UD, single requests and lists, by `ibv_post_send` and `ibv_wr`, across the end of the
/// ring.
#[test]
fn every_operation_is_byte_for_byte_libmlx5s() {
    let written = Replay::new(FILE).unwrap().run().unwrap();
    assert_eq!(written.len(), operations().count());
    assert_eq!(written.len(), 41, "operations compared");
    for (written, line) in written.iter().zip(operations()) {
        let name = &written.name;
        check(name, &written.ring, &field(&line, "sq_hex"));
        assert_eq!(written.record, field(&line, "dbrec"), "{name}, doorbell record");
        check(&format!("{name}, BlueFlame"), &written.register, &field(&line, "bf_hex"));
    }
}

/// On a real queue pair of a device: its ring contains what libmlx5 would have written, except for
/// the queue pair number.
#[test]
fn on_a_device_of_the_machine_too() {
    const PERIOD: u32 = 64;
    let Some(context) = machine::context() else { return };
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let completions = CompletionQueue::create(&context, &uar, 1 << 12).unwrap();
    let mut pairs = BTreeMap::new();
    for line in FILE.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        if line["kind"] == "qp" && line["type"].as_str().unwrap().starts_with("RC") {
            // In the error state the device executes nothing: the keys in the file do not exist
            // here.
            let send_blocks = line["sq_wqe_cnt"].as_u64().unwrap() as u32;
            let config = RcConfig::default().send_blocks(send_blocks).signal_period(PERIOD);
            let config = config.overcommit(true);
            let mut pair =
                RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap();
            pair.connect(&RcPath::to(&pair.address())).unwrap();
            pair.to_error().unwrap();
            pairs.insert(line["ord"].as_u64().unwrap(), (pair, false));
        }
    }
    let recorder = replay::recorder(FILE).unwrap();
    let mut compared = 0;
    for line in operations() {
        let Some((pair, behind_invalidation)) = pairs.get_mut(&line["qp"].as_u64().unwrap()) else {
            continue;
        };
        let number = pair.number().to_be_bytes();
        let (queue, from) = (&mut pair.send, line["pi_before"].as_u64().unwrap() as u16);
        while queue.posted() as u16 != from {
            let index = queue.post(Nop, ControlFlags::empty()).unwrap();
            queue.reap(index.0);
        }
        let start = queue.posted();
        replay::requests(&line, &recorder, None, behind_invalidation)
            .and_then(|requests| replay::post(&requests, queue))
            .unwrap();
        let blocks = (queue.posted() - start) as u32;
        let mut written = queue.ring_bytes(WqeIndex(from), blocks);
        let mut wanted = field(&line, "sq_hex");
        assert_eq!(written[4..7], number[1..], "{}", line["name"]);
        for at in (0..wanted.len()).step_by(64) {
            // A control segment, if it contains the queue pair number. It may request a completion
            // that libmlx5 did not need.
            if written[at + 4..at + 7] == number[1..] {
                wanted[at + 4..at + 7].copy_from_slice(&number[1..]);
                if start / u64::from(PERIOD) != queue.posted() / u64::from(PERIOD) {
                    wanted[at + 11] |= ControlFlags::COMPLETION.bits();
                    written[at + 11] |= ControlFlags::COMPLETION.bits();
                }
            }
        }
        check(line["name"].as_str().unwrap(), &written, &wanted);
        queue.reap(queue.last_index().unwrap().0);
        compared += 1;
    }
    assert_eq!(compared, 39, "operations of connections");
}

/// The example program prints the same bytes.
#[test]
fn wqe_dump_prints_what_libmlx5_writes() {
    let run = Command::new(wqe_dump())
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/libmlx5.jsonl"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed: Vec<Value> = String::from_utf8(run.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(printed.len(), operations().count());
    for (printed, line) in printed.iter().zip(operations()) {
        assert_eq!(printed["name"], line["name"]);
        for key in ["sq_hex", "dbrec", "bf_hex"] {
            check(&format!("{}, {key}", line["name"]), &field(printed, key), &field(&line, key));
        }
    }
}

/// `cargo test` builds examples beside the tests, unless a single test was requested.
fn wqe_dump() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples/wqe_dump");
    if !built.exists() {
        let build = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "barewire-mlx5", "--example", "wqe_dump"])
            .status()
            .unwrap();
        assert!(build.success());
    }
    built
}

/// A file with other ring sizes, positions and operands, whose bytes are derived from mlx5dv.h.
#[test]
fn another_file_of_the_same_kind() {
    let file = r#"
{"kind":"qp","ord":5,"type":"RC","qpn":4660,"sq_wqe_cnt":16}
{"kind":"qp","ord":6,"type":"UD","qpn":100,"sq_wqe_cnt":32}
{"kind":"qp","ord":7,"type":"UD","qpn":101,"sq_wqe_cnt":32}
{"kind":"op","name":"a","qp":5,"pi_before":65535,"params":[{"opcode":"SEND_WITH_INV","send_flags":0,"invalidate_rkey":772,"sge":[{"addr":4096,"length":5,"lkey":9}]}]}
{"kind":"op","name":"b","qp":5,"pi_before":15,"params":[{"opcode":"LOCAL_INV","send_flags":2,"invalidate_rkey":255}]}
{"kind":"op","name":"c","qp":5,"pi_before":17,"params":[{"opcode":"RDMA_WRITE","send_flags":0,"remote_addr":7,"rkey":8,"sge":[]}]}
{"kind":"op","name":"d","qp":7,"pi_before":31,"params":[{"opcode":"SEND","send_flags":0,"remote_qkey":3,"sge":[]}]}
"#;
    let written = Replay::new(file).unwrap().run().unwrap();
    let of = |name: &str| written.iter().find(|written| written.name == name).unwrap();
    let untouched = |bytes: usize| "ee".repeat(bytes);
    assert_eq!(
        hex(&of("a").ring),
        format!(
            "00ffff01001234020000000000000304{}{}",
            "00000005000000090000000000001000",
            untouched(32)
        )
    );
    assert_eq!(hex(&of("a").record), "0000000000000000");
    // The WQE starts in the last block of the ring, and the key's segments are in the first.
    let change = format!("98000000000000000000000020006000{}", "00".repeat(32));
    let invalidation =
        format!("00000f250012340800000008000000ff{change}40000000ffffff00{}", "00".repeat(56));
    assert_eq!(hex(&of("b").ring), invalidation);
    assert_eq!(hex(&of("b").register), invalidation);
    let write = "00001108001234020000002000000000000000000000000700000008000000000";
    assert_eq!(hex(&of("c").ring), format!("{}{}", &write[..64], untouched(32)), "the small fence");
    let datagram = format!(
        "00001f0a00006504{}00000003000000008000006400000001{}",
        "00".repeat(8),
        "00".repeat(32)
    );
    assert_eq!(hex(&of("d").ring), datagram);
}

#[test]
fn a_malformed_file_is_an_error_in_words() {
    for (file, wanted) in [
        ("{", "line 1"),
        (r#"{"kind":"qp","ord":0,"qpn":1,"sq_wqe_cnt":17}"#, "17 blocks"),
        (r#"{"kind":"op","name":"x","qp":0}"#, "not in the file"),
        (r#"{"kind":"op","name":"x"}"#, "no number qp"),
    ] {
        let error = Replay::new(file).and_then(|mut replay| replay.run()).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

/// The fast path for 8 bytes and the general path write the same WQE.
#[test]
fn eight_bytes_take_the_same_form_by_either_path() {
    let remote = RemoteAddressSegment::new(0x1122_3344_5566, 0x778899);
    let payload = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut general = PlainQueue::new(72, 64, 8);
    general
        .queue
        .post(Write { local: Inline(&payload), remote }, ControlFlags::COMPLETION)
        .unwrap();
    let mut short = PlainQueue::new(72, 64, 8);
    short.queue.post(Write { local: Word(payload), remote }, ControlFlags::COMPLETION).unwrap();
    assert_eq!(general.ring(0, 48), short.ring(0, 48));
    assert_eq!(general.register()[..48], short.register()[..48]);
}

#[test]
fn halves_of_the_register_take_turns() {
    let mut plain = PlainQueue::new(72, 64, 8);
    plain.queue.post(Nop, ControlFlags::COMPLETION).unwrap();
    plain.queue.post(Nop, ControlFlags::COMPLETION).unwrap();
    let register = plain.register();
    assert_eq!(hex(&register[..16]), "00000000000048010000000800000000");
    assert_eq!(hex(&register[256..272]), "00000100000048010000000800000000");
}

/// The layouts of UCX: opcode modifier, operands in one unit or two, result.
#[test]
fn masked_atomics_of_either_width() {
    let (local, remote) = (DataSegment::new(0x10, 4, 2), RemoteAddressSegment::new(0x20, 3));
    let (remote_hex, local_hex) =
        ("00000000000000200000000300000000", "00000004000000020000000000000010");
    let mut plain = PlainQueue::new(1, 16, 2);
    let queue = &mut plain.queue;
    let swap = MaskedSwap { compare: 1_u32, compare_mask: 2, swap: 3, swap_mask: 4 };
    queue
        .post(MaskedCompareSwap { local, remote, operands: swap }, ControlFlags::COMPLETION)
        .unwrap();
    let add = MaskedAdd { operand: 5_u32, field_boundary: 6 };
    queue
        .post(
            MaskedFetchAdd { local, remote, operands: add },
            ControlFlags::FENCE | ControlFlags::COMPLETION,
        )
        .unwrap();
    let swap = MaskedSwap { compare: 1_u64, compare_mask: 2, swap: 3, swap_mask: 4 };
    queue
        .post(MaskedCompareSwap { local, remote, operands: swap }, ControlFlags::COMPLETION)
        .unwrap();
    let add = MaskedAdd { operand: 5_u64, field_boundary: 1 << 63 };
    queue.post(MaskedFetchAdd { local, remote, operands: add }, ControlFlags::COMPLETION).unwrap();

    let ring = hex(&plain.ring(0, 5 * 64));
    let wqe = |block: usize, bytes: usize| &ring[block * 128..block * 128 + 2 * bytes];
    assert_eq!(
        wqe(0, 64),
        format!(
            "08000014000001040000000800000000{remote_hex}00000003000000010000000400000002{local_hex}"
        )
    );
    assert_eq!(
        wqe(1, 64),
        format!(
            "08000115000001040000008800000000{remote_hex}00000005000000060000000000000000{local_hex}"
        )
    );
    assert_eq!(
        wqe(2, 80),
        format!(
            "09000214000001050000000800000000{remote_hex}0000000000000003000000000000000100000000000000040000000000000002{local_hex}"
        )
    );
    assert_eq!(
        wqe(4, 64),
        format!(
            "09000415000001040000000800000000{remote_hex}00000000000000058000000000000000{local_hex}"
        )
    );
}

/// Compact address vectors, and the RoCE form with MAC and GID, inline and by reference.
#[test]
fn datagrams_in_every_form() {
    let mut plain = PlainQueue::new(0x4c, 16, 2);
    let compact = CompactAddressVector::new(0x4d, 0x1111_1111, 1);
    plain.queue.towards(&compact).post(Send(Inline(&[1, 2, 3])), ControlFlags::SOLICITED).unwrap();
    let gid = core::array::from_fn(|at| at as u8);
    let roce =
        AddressVector::roce(0x4d, 0x1111_1111, [0xa, 0xb, 0xc, 0xd, 0xe, 0xf], gid, 0xc123, 2, 64);
    plain
        .queue
        .towards(&roce)
        .post(Send(DataSegment::new(0x1000, 64, 7)), ControlFlags::COMPLETION)
        .unwrap();
    let ring = hex(&plain.ring(0, 3 * 64));
    let (control, address) =
        ("0000000a00004c030000000200000000", "11111111000000000000004d00000001");
    assert_eq!(ring[..96], format!("{control}{address}80000003010203000000000000000000"));
    let (control, base) = ("0000010a00004c050000000800000000", "11111111000000008000004d0000c123");
    let route = "000000000a0b0c0d0e0f004000200000000102030405060708090a0b0c0d0e0f";
    let local = "00000040000000070000000000001000";
    assert_eq!(ring[128..288], format!("{control}{base}{route}{local}"));
}

/// Words in registers make the WQE of the same bytes, also where the ring ends.
#[test]
fn datagrams_of_words() {
    let roce = AddressVector::roce(0x4d, 0x1111_1111, [6; 6], [7; 16], 0xc123, 2, 64);
    let words = [0x0807_0605_0403_0201, 0x1817_1615_1413_1211, 0x28, u64::MAX];
    let bytes = words.map(u64::to_ne_bytes);
    let mut queues = [(); 2].map(|()| PlainQueue::new(0x4c, 16, 2));
    let [of_words, of_bytes] = &mut queues;
    for lap in 0..9 {
        // One block first, so that the last datagram wraps between its blocks.
        if lap == 0 {
            let mut index = 0;
            for plain in [&mut *of_words, &mut *of_bytes] {
                index = plain.queue.post(Nop, ControlFlags::empty()).unwrap().0;
            }
            assert_eq!(index, 0);
            continue;
        }
        let flags = if lap == 3 { ControlFlags::SOLICITED } else { ControlFlags::empty() };
        let index = of_words.queue.towards(&roce).post(Send(Words(words)), flags).unwrap();
        assert_eq!(
            of_bytes.queue.towards(&roce).post(Send(Inline(bytes.as_flattened())), flags),
            Ok(index)
        );
        assert_eq!(of_words.register(), of_bytes.register());
        for plain in [&mut *of_words, &mut *of_bytes] {
            plain.queue.reap(index.0);
        }
    }
    // The last unit of a second block is not part of the WQE.
    let used = |plain: &PlainQueue| -> Vec<u8> {
        (0..16).flat_map(|at| plain.ring(at, if at % 2 == 0 { 48 } else { 64 })).collect()
    };
    assert_eq!(used(of_words), used(of_bytes));
    let mut full = PlainQueue::new(0x4c, 16, 2);
    let posted =
        (0..9).map(|_| full.queue.towards(&roce).post(Send(Words(words)), ControlFlags::empty()));
    assert_eq!(posted.flatten().count(), 8);
}

#[test]
fn the_longest_datagrams() {
    let mut plain = PlainQueue::new(1, 64, 8);
    let queue = &mut plain.queue;
    let (full, compact) = (AddressVector::infiniband(2, 3, 4), CompactAddressVector::new(2, 3, 4));
    assert_eq!((AddressVector::MAX_INLINE, CompactAddressVector::MAX_INLINE), (188, 220));
    let flags = ControlFlags::COMPLETION;
    assert_eq!(queue.towards(&full).post(Send(Inline(&[0; 189])), flags), Err(PostError::TooLong));
    assert_eq!(
        queue
            .towards(&compact)
            .post(SendImmediate { local: Inline(&[0; 221]), immediate: 7 }, flags),
        Err(PostError::TooLong)
    );
    let segments = [DataSegment::new(0, 1, 0); MAX_SEGMENTS + 1];
    assert_eq!(
        queue.towards(&full).post(Send(Segments(&segments)), flags),
        Err(PostError::TooLong)
    );
    assert_eq!(queue.room(), 64, "a refused post takes no room");
    queue.towards(&full).post(Send(Inline(&[0; 188])), flags).unwrap();
    queue
        .towards(&compact)
        .post(SendImmediate { local: Inline(&[0; 220]), immediate: 7 }, flags)
        .unwrap();
    queue.towards(&full).post(Send(Segments(&segments[1..])), flags).unwrap();
    assert_eq!(queue.room(), 64 - 4 - 4 - 5);
    assert_eq!(
        plain.ring(8, 8)[4..],
        [0, 0, 1, 20],
        "control, three units of address, sixteen segments"
    );
    let register = plain.register();
    assert_eq!(
        register[..8],
        plain.ring(8, 8),
        "more than a register half holds: only its first 8 bytes are pushed"
    );
}

#[test]
fn room_is_counted_exactly() {
    let mut plain = PlainQueue::new(72, 16, 2);
    let queue = &mut plain.queue;
    let long = [7; 220];
    let remote = RemoteAddressSegment::new(0, 0);
    for _ in 0..4 {
        queue.post(Write { local: Inline(&long), remote }, ControlFlags::COMPLETION).unwrap();
    }
    assert_eq!(queue.room(), 0);
    assert_eq!(queue.post(Nop, ControlFlags::empty()), Err(PostError::QueueFull));
    assert!(!queue.is_idle());
    // The second WQE frees the first WQE and its own first block; its other blocks are freed later.
    queue.reap(4);
    assert!(
        queue.is_done(WqeIndex(0)) && queue.is_done(WqeIndex(4)) && !queue.is_done(WqeIndex(8))
    );
    assert_eq!(queue.room(), 5);
    queue.reap(12);
    assert!(queue.is_idle());
    assert_eq!(queue.room(), 16);
    let segments = [DataSegment::new(0, 1, 0); MAX_SEGMENTS + 1];
    assert_eq!(
        queue.post(Write { local: Inline(&[0; 221]), remote }, ControlFlags::empty()),
        Err(PostError::TooLong)
    );
    assert_eq!(queue.post(Send(Inline(&[0; 237])), ControlFlags::empty()), Err(PostError::TooLong));
    assert_eq!(
        queue.post(Write { local: Segments(&segments), remote }, ControlFlags::empty()),
        Err(PostError::TooLong)
    );
    assert_eq!(
        queue.post(Send(Segments(&segments)), ControlFlags::empty()),
        Err(PostError::TooLong)
    );
    assert_eq!(queue.room(), 16, "a refused post takes no room");
    queue.post(Send(Inline(&[0; 236])), ControlFlags::empty()).unwrap();
    queue.post(Write { local: Segments(&segments[1..]), remote }, ControlFlags::empty()).unwrap();
    queue.post(Send(Segments(&segments[1..])), ControlFlags::empty()).unwrap();
    assert_eq!(queue.room(), 16 - 4 - 5 - 5);
}

#[test]
fn unsignalled_posts_are_moderated() {
    let mut plain = PlainQueue::new(72, 16, 2);
    let queue = &mut plain.queue;
    assert!(queue.last_is_signaled(), "nothing to wait for");
    let mut signaled = Vec::new();
    for index in 0..8 {
        queue.post(Nop, ControlFlags::empty()).unwrap();
        if queue.last_is_signaled() {
            signaled.push(index);
        }
    }
    assert_eq!(signaled, [1, 3, 5, 7], "with a period of two blocks");
}
