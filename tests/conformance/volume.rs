//! Many operations: through small rings, over a lossy wire, and compared with a model.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use barewire::{Access, AtomicOp, Endpoint, FetchResult, FlushMode, InterfaceConfig, PostError};

use crate::place::Place;
use crate::support::{Watch, contents, pattern, small, until};

/// A million messages through a ring of 64 WQEBBs: the ring and the 16-bit counters wrap many
/// times.
pub(crate) fn a_million_messages_through_a_small_ring(place: &Place) {
    let count = 1_000_000;
    let config = InterfaceConfig::default().send_ring(64).receive_ring(64);
    let mut pair = place.pair_with(&config);
    // The second pair also needs the kernel's UDP.
    let one = pair.name.contains("one device") || pair.name == "tcp";
    // A build that checks every access is slower.
    let slow = std::env::var_os("BAREWIRE_TEST_SLOW").is_some();
    // A wire that loses packets waits for many of them.
    let lossy = std::env::var_os("BAREWIRE_HCA_FAULTS").is_some();
    let part = match (lossy, one && !slow) {
        (true, _) => 100,
        (false, true) => 1,
        (false, false) => 20,
    };
    let count = count / part;
    let next = Rc::new(Cell::new(0u64));
    let seen = Rc::clone(&next);
    pair.server
        .interface
        .set_handler(1, move |message| {
            let (header, payload) = message.split_short().unwrap();
            assert_eq!(header, seen.get());
            assert_eq!(payload.len() as u64, header % 100);
            assert!(payload.iter().all(|&byte| byte == header as u8));
            seen.set(header + 1);
        })
        .unwrap();
    let endpoint = pair.client.endpoint.clone();
    let mut sent = 0u64;
    let name = pair.name;
    until(&mut [&mut pair.worker, &mut pair.server_worker], name, || {
        let mut payload = [0; 100];
        while sent < count {
            payload.fill(sent as u8);
            match endpoint.am_short(1, sent, &payload[..(sent % 100) as usize]) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error, PostError::NoResource);
                    break;
                }
            }
        }
        next.get() == count
    });
    assert_eq!(pair.server.interface.unhandled(), 0);
}

/// Random operations at unaligned addresses, compared with a model of the peer's memory.
pub(crate) fn random_operations_equal_a_model(place: &Place) {
    const SIZE: usize = 1 << 16;
    let mut pair = place.pair_with(&small().send_ring(32).bcopy_buffers(3));
    let (memory, key) = pair.target(SIZE, Access::all());
    let mut model = vec![0u8; SIZE];
    let source = pair.client.domain.allocate(SIZE, Access::LOCAL_WRITE).unwrap();
    source.write(0, &pattern(5, SIZE)).unwrap();
    let source_bytes = contents(&source);
    let fetched = pair.client.domain.allocate(SIZE, Access::LOCAL_WRITE).unwrap();
    let mut checks: VecDeque<(FetchResult, u64)> = VecDeque::new();
    let mut random = 1u64;
    let mut below = |n: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let limits = pair.client.interface.attributes().put;
    for _ in 0..3000 {
        let short = limits.max_short.min(220);
        let kind = below(6);
        let length = below([short, 8000, 20_000, 8, 8, 5000][kind]);
        let at = below(SIZE - length - 8) & if kind == 3 || kind == 4 { !7 } else { !0 };
        let from = below(SIZE - length);
        let remote = memory.address() + at as u64;
        let bytes = &source_bytes[from..from + length];
        match kind {
            0 => {
                pair.post("short", |e| e.put_short(bytes, remote, &key)).unwrap();
            }
            1 => {
                let pack = |buffer: &mut [u8]| {
                    buffer[..length].copy_from_slice(bytes);
                    length
                };
                assert_eq!(pair.post("bcopy", |e| e.put_bcopy(pack, remote, &key)), Ok(length));
            }
            2 => {
                let slices = [
                    source.slice(from, length / 3).unwrap(),
                    source.slice(from + length / 3, length - length / 3).unwrap(),
                ];
                let _ = pair.post("zcopy", |e| e.put_zcopy(&slices, remote, &key, None)).unwrap();
            }
            3 => {
                let old = u64::from_ne_bytes(model[at..at + 8].try_into().unwrap());
                let result = FetchResult::new();
                let post = |e: &Endpoint| {
                    e.atomic_fetch(AtomicOp::Add(from as u64), remote, &key, &result, None)
                };
                let _ = pair.post("fetch_add", post).unwrap();
                let new = old.wrapping_add(from as u64);
                model[at..at + 8].copy_from_slice(&new.to_ne_bytes());
                checks.push_back((result, old));
            }
            4 => {
                let old = u64::from_ne_bytes(model[at..at + 8].try_into().unwrap());
                pair.post("add", |e| e.atomic_post(AtomicOp::Add(7_u64), remote, &key)).unwrap();
                model[at..at + 8].copy_from_slice(&old.wrapping_add(7).to_ne_bytes());
            }
            _ => {
                let slice = [fetched.slice(0, length).unwrap()];
                let watch = Watch::new(1);
                watch.posted(
                    pair.post("get", |e| {
                        e.get_zcopy(&slice, remote, &key, Some(&watch.completion))
                    }),
                );
                pair.until("get", || watch.is_done());
                assert!(contents(&fetched)[..length] == model[at..at + length], "{}", pair.name);
            }
        }
        if kind < 3 {
            model[at..at + length].copy_from_slice(bytes);
        }
    }
    pair.flush(FlushMode::Remote);
    assert!(contents(&memory) == model, "{}", pair.name);
    for (result, expected) in checks {
        assert_eq!(result.get(), expected, "{}", pair.name);
    }
}
