//! Memory on the device, and of other devices.

use std::os::fd::AsFd;

use barewire::{Access, AtomicOp, FetchResult, Flags, FlushMode, Memory, MemoryError};

use crate::place::Place;
use crate::support::{Watch, collect, contents, pattern};

const LENGTH: usize = 4096;

/// Both ends put from and get into memory on their devices, at any offset.
pub(crate) fn memory_on_the_device_is_used_like_any(place: &Place) {
    let mut pair = place.pair();
    let all = Access::all();
    let there = pair.server.domain.allocate_on_device(LENGTH, all).unwrap();
    let here = pair.client.domain.allocate_on_device(LENGTH - 10, all).unwrap();
    assert_eq!((there.len(), here.len()), (LENGTH, LENGTH), "whole units of 64 bytes");
    assert_eq!((there.address(), contents(&here)), (0, vec![0; LENGTH]), "{}", pair.name);
    let key = pair.client.domain.unpack_key(&there.pack_key()).unwrap();
    let data = pattern(5, LENGTH);
    here.write(0, &data).unwrap();
    let mut expected = vec![0; LENGTH];
    for (at, length) in [(0, LENGTH), (64, 8), (1001, 777), (4095, 1)] {
        let slice = [here.slice(at, length).unwrap()];
        let to = LENGTH - at - length;
        let watch = Watch::new(1);
        let posted =
            pair.post("put", |e| e.put_zcopy(&slice, to as u64, &key, Some(&watch.completion)));
        watch.posted(posted);
        pair.until("the put", || watch.is_done());
        pair.flush(FlushMode::Remote);
        expected[to..to + length].copy_from_slice(&data[at..at + length]);
        assert_eq!(contents(&there), expected, "{}: {length} bytes", pair.name);
    }
    pair.post("put", |e| e.put_short(b"short", 3001, &key)).unwrap();
    pair.flush(FlushMode::Remote);
    expected[3001..3006].copy_from_slice(b"short");
    // Gets into memory on the device and into that of the host.
    let host = pair.client.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    let get = |pair: &mut crate::support::Pair, memory: &Memory| {
        let slice = [memory.slice(8, 4000).unwrap()];
        let watch = Watch::new(1);
        let posted = pair.post("get", |e| e.get_zcopy(&slice, 17, &key, Some(&watch.completion)));
        watch.posted(posted);
        pair.until("the get", || watch.is_done());
        assert_eq!(contents(memory)[8..4008], expected[17..4017], "{}", pair.name);
    };
    get(&mut pair, &here);
    get(&mut pair, &host);
}

/// Peers change words of memory on the device, and messages are sent from it.
pub(crate) fn memory_on_the_device_has_atomics_and_messages(place: &Place) {
    let mut pair = place.pair();
    let counter = pair.server.domain.allocate_on_device(64, Access::REMOTE_ATOMIC).unwrap();
    let key = pair.client.domain.unpack_key(&counter.pack_key()).unwrap();
    counter.store_u64(8, 40).unwrap();
    for before in [40, 42] {
        let (result, watch) = (FetchResult::new(), Watch::new(1));
        let posted = pair.post("atomic", |e| {
            e.atomic_fetch(AtomicOp::Add(2_u64), 8, &key, &result, Some(&watch.completion))
        });
        watch.posted(posted);
        pair.until("the atomic", || watch.is_done());
        assert_eq!((result.get(), counter.load_u64(8).unwrap()), (before, before + 2));
    }
    let inbox = collect(&pair.server.interface, 5);
    let memory = pair.client.domain.allocate_on_device(128, Access::empty()).unwrap();
    let data = pattern(3, 100);
    memory.write(20, &data).unwrap();
    let slice = [memory.slice(20, 100).unwrap()];
    let watch = Watch::new(1);
    let posted = pair.post("am", |e| e.am_zcopy(5, b"head", &slice, Some(&watch.completion)));
    watch.posted(posted);
    pair.until("the message", || watch.is_done() && !inbox.borrow().is_empty());
    assert_eq!(inbox.borrow()[0], [&b"head"[..], &data].concat(), "{}", pair.name);
}

/// The device has a limited amount, which is free again once the memory is dropped.
pub(crate) fn memory_on_the_device_is_limited(place: &Place) {
    let pair = place.pair();
    let domain = &pair.client.domain;
    assert!(matches!(domain.allocate_on_device(0, Access::all()), Err(MemoryError::Empty)));
    for length in [usize::MAX, usize::MAX / 2] {
        let refused = domain.allocate_on_device(length, Access::all()).unwrap_err();
        assert!(matches!(refused, MemoryError::OnDevice { .. }), "{}: {refused}", pair.name);
    }
    let take = |length| {
        let mut all = Vec::new();
        while let Ok(memory) = domain.allocate_on_device(length, Access::all()) {
            assert!(all.len() < 1 << 14, "{}: no limit", pair.name);
            all.push(memory);
        }
        all
    };
    let before = take(16 << 10);
    assert!(!before.is_empty(), "{}", pair.name);
    let count = before.len();
    for memory in before {
        memory.deregister().unwrap();
    }
    assert_eq!(take(16 << 10).len(), count, "{}: memory was lost", pair.name);
}

/// Without memory on the device, the error names transports that have it.
pub(crate) fn who_has_no_memory_on_the_device_names_others(place: &Place) {
    let pair = place.pair();
    let has = pair.client.interface.attributes().flags.contains(Flags::DEVICE_MEMORY);
    match pair.client.domain.allocate_on_device(64, Access::all()) {
        Ok(_) => assert!(has, "{}", pair.name),
        Err(MemoryError::Unsupported { instead, .. }) => {
            assert!(!has && instead.contains("rc_mlx5"), "{}: {instead}", pair.name);
        }
        Err(error) => assert!(!has && !place.is_ours(), "{}: {error}", pair.name),
    }
}

/// A descriptor that is no dma-buf is refused by a reason; transports without dma-bufs name others.
pub(crate) fn what_is_no_dma_buf_is_refused(place: &Place) {
    let pair = place.pair();
    let flags = pair.client.interface.attributes().flags;
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let register = |length| {
        // SAFETY: nothing is registered.
        unsafe { pair.client.domain.register_dma_buf(file.as_fd(), 0, length, Access::all()) }
    };
    match register(4096).map(drop).unwrap_err() {
        MemoryError::DmaBuf { length: 4096, source } => {
            assert!(flags.contains(Flags::DMA_BUF) || place.is_ours(), "{}", pair.name);
            assert!(source.to_string().contains("dma-buf"), "{}: {source}", pair.name);
        }
        MemoryError::Unsupported { instead, .. } => {
            assert!(!flags.contains(Flags::DMA_BUF), "{}", pair.name);
            assert!(instead.contains("rc_mlx5"), "{}: {instead}", pair.name);
        }
        error => panic!("{}: {error}", pair.name),
    }
    assert!(matches!(register(0).map(drop), Err(MemoryError::Empty)), "{}", pair.name);
}
