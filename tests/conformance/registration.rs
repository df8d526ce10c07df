//! Memory that peers name by another address than its own, paged on demand, and in strides.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use barewire::{
    Access, AtomicOp, Cause, Domain, FetchResult, Flags, FlushMode, Memory, MemoryConfig,
    MemoryError, RemoteKey,
};

use crate::place::Place;
use crate::support::{Pair, Watch, collect, contents, pattern, watch_errors};

const LENGTH: usize = 8192;
const ADDRESS: u64 = 0x7fff_1234_5000;

fn configs(domain: &Domain) -> Vec<MemoryConfig> {
    let config = MemoryConfig::new(Access::all());
    let mut configs = vec![config.at(ADDRESS), config.zero_based()];
    configs.extend(on_demand(domain, config.at(ADDRESS)));
    configs
}

/// The configuration with pages on demand, unless the device has none: a device of the machine
/// may, and one whose faults of DEVX queues the kernel does not resume is refused.
fn on_demand(domain: &Domain, config: MemoryConfig) -> Option<MemoryConfig> {
    domain.allocate(LENGTH, config.on_demand()).is_ok().then(|| config.on_demand())
}

/// Memory of the server under each configuration, and a key to it.
fn targets(pair: &Pair) -> Vec<(Memory, RemoteKey)> {
    let target = |config| {
        let memory = pair.server.domain.allocate(LENGTH, config).unwrap();
        let key = pair.client.domain.unpack_key(&memory.pack_key()).unwrap();
        (memory, key)
    };
    configs(&pair.server.domain).into_iter().map(target).collect()
}

/// Puts and gets name remote memory by the address of its registration. Slices are of memory that
/// has such an address, too.
pub(crate) fn peers_use_the_address_of_a_registration(place: &Place) {
    let mut pair = place.pair();
    for (memory, key) in targets(&pair) {
        let (what, data) = (format!("{}: at {:#x}", pair.name, memory.address()), pattern(7, 3000));
        let config = MemoryConfig::new(Access::all()).at(0x5000);
        let local = pair.client.domain.allocate(LENGTH, config).unwrap();
        local.write(100, &data).unwrap();
        let slice = [local.slice(100, 3000).unwrap()];
        let (put, get) = (Watch::new(1), Watch::new(1));
        let remote = memory.address() + 1001;
        let posted = pair.post("put", |e| e.put_zcopy(&slice, remote, &key, Some(&put.completion)));
        put.posted(posted);
        pair.until("put", || put.is_done());
        pair.flush(FlushMode::Remote);
        assert_eq!(contents(&memory)[1001..4001], data, "{what}");
        let slice = [local.slice(4096, 3000).unwrap()];
        let posted = pair.post("get", |e| e.get_zcopy(&slice, remote, &key, Some(&get.completion)));
        get.posted(posted);
        pair.until("get", || get.is_done());
        assert_eq!(contents(&local)[4096..7096], data, "{what}");
        pair.post("put", |e| e.put_bcopy(|to| copy(to, &data[..9]), remote + 3000, &key)).unwrap();
        pair.flush(FlushMode::Remote);
        assert_eq!(contents(&memory)[4001..4010], data[..9], "{what}");
    }
    let odd = MemoryConfig::new(Access::all()).at(ADDRESS + 8);
    assert!(matches!(
        pair.server.domain.allocate(LENGTH, odd),
        Err(MemoryError::Address { offset: 0, length: LENGTH, .. })
    ));
}

fn copy(to: &mut [u8], from: &[u8]) -> usize {
    to[..from.len()].copy_from_slice(from);
    from.len()
}

/// Atomics name remote memory by the address of its registration.
pub(crate) fn atomics_use_the_address_of_a_registration(place: &Place) {
    let mut pair = place.pair();
    for (memory, key) in targets(&pair) {
        memory.store_u64(16, 40).unwrap();
        let (remote, result, watch) = (memory.address() + 16, FetchResult::new(), Watch::new(1));
        let posted = pair.post("atomic", |e| {
            e.atomic_fetch(AtomicOp::Add(2_u64), remote, &key, &result, Some(&watch.completion))
        });
        watch.posted(posted);
        pair.until("atomic", || watch.is_done());
        assert_eq!((result.get(), memory.load_u64(16).unwrap()), (40, 42), "{}", pair.name);
    }
}

/// Messages are sent from memory that has another address than its own.
pub(crate) fn messages_leave_memory_at_another_address(place: &Place) {
    let mut pair = place.pair();
    let inbox = collect(&pair.server.interface, 5);
    for config in configs(&pair.client.domain) {
        let memory = pair.client.domain.allocate(LENGTH, config).unwrap();
        let data = pattern(3, 64);
        memory.write(4090, &data).unwrap();
        let slice = [memory.slice(4090, 64).unwrap()];
        let watch = Watch::new(1);
        let posted = pair.post("am", |e| e.am_zcopy(5, b"head", &slice, Some(&watch.completion)));
        watch.posted(posted);
        pair.until("am", || watch.is_done() && inbox.borrow().len() == 1);
        let message = inbox.borrow_mut().pop().unwrap();
        assert_eq!(message, [&b"head"[..], &data].concat(), "{}", pair.name);
    }
}

/// The column of a matrix is put as a row, and a row is got into a column.
pub(crate) fn slices_in_strides(place: &Place) {
    const ROW: usize = 96;
    let mut pair = place.pair();
    let attributes = pair.client.interface.attributes();
    let count = attributes.put.max_iov.min(attributes.get.max_iov).min(LENGTH / ROW);
    let matrix = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
    let data = pattern(11, LENGTH);
    matrix.write(0, &data).unwrap();
    let (row, key) = pair.target(LENGTH, Access::all());
    let column = |at: usize| -> Vec<_> { matrix.strided(at, 8, ROW, count).unwrap().collect() };
    let watch = Watch::new(1);
    let posted = pair
        .post("put", |e| e.put_zcopy(&column(24), row.address(), &key, Some(&watch.completion)));
    watch.posted(posted);
    pair.until("put", || watch.is_done());
    pair.flush(FlushMode::Remote);
    let expected: Vec<u8> =
        data[24..].chunks(ROW).take(count).flat_map(|row| &row[..8]).copied().collect();
    assert_eq!(contents(&row)[..8 * count], expected, "{}", pair.name);
    let watch = Watch::new(1);
    let posted = pair
        .post("get", |e| e.get_zcopy(&column(64), row.address(), &key, Some(&watch.completion)));
    watch.posted(posted);
    pair.until("get", || watch.is_done());
    let mut after = data.clone();
    for (number, bytes) in expected.chunks(8).enumerate() {
        after[64 + number * ROW..][..8].copy_from_slice(bytes);
    }
    assert_eq!(contents(&matrix), after, "{}", pair.name);
    assert!(matrix.strided(LENGTH - 16, 8, 8, 2).is_ok());
    for (length, stride, count) in [(8, 8, 3), (17, 0, 1), (8, usize::MAX, 2), (8, 1, usize::MAX)] {
        assert!(matrix.strided(LENGTH - 16, length, stride, count).is_err());
    }
}

/// Pages of memory, on demand or not, can be brought in, and keep their contents.
pub(crate) fn pages_are_brought_in(place: &Place) {
    const LENGTH: usize = 1 << 20;
    let pair = place.pair();
    let pinned = MemoryConfig::new(Access::all());
    let on_demand = on_demand(&pair.client.domain, pinned);
    for config in [Some(pinned), on_demand].into_iter().flatten() {
        let memory = pair.client.domain.allocate(LENGTH, config).unwrap();
        memory.write(5000, b"contents").unwrap();
        for write in [false, true] {
            for range in [0..LENGTH, 4097..4098, 5000..5000, LENGTH - 1..LENGTH] {
                memory.prefetch(range.clone(), write).unwrap_or_else(|error| {
                    panic!("{}: {range:?} {write}: {error}", pair.name);
                });
            }
            let mut bytes = [0; 8];
            memory.read(5000, &mut bytes).unwrap();
            assert_eq!(&bytes, b"contents", "{}", pair.name);
        }
        #[expect(clippy::reversed_empty_ranges, reason = "it is what is refused")]
        for range in [0..LENGTH + 1, LENGTH + 1..LENGTH + 1, 9..8] {
            let refused = memory.prefetch(range, true).unwrap_err();
            assert!(matches!(refused, MemoryError::OutOfRange { .. }), "{}: {refused}", pair.name);
        }
    }
}

/// A key to the whole address space names memory that was never registered, also memory that is
/// newer than the key; other transports say which have such keys.
pub(crate) fn one_key_names_all_memory(place: &Place) {
    const BYTES: usize = 3 * 4096;
    let mut pair = place.pair();
    let access = Access::all();
    // SAFETY: slices and the peer name only `there` and `here`, which are atomics.
    let (theirs, ours) = unsafe {
        (
            pair.server.domain.whole_address_space(access),
            pair.client.domain.whole_address_space(access),
        )
    };
    let flags = pair.client.interface.attributes().flags;
    let (theirs, ours) = match (theirs, ours) {
        (Ok(theirs), Ok(ours)) => (theirs, ours),
        (Err(MemoryError::Unsupported { instead, .. }), _) => {
            assert!(!flags.contains(Flags::WHOLE_ADDRESS_SPACE));
            assert!(instead.contains("rc_mlx5"), "{}: {instead}", pair.name);
            return;
        }
        (Err(MemoryError::AddressSpace { source }), _) if !place.is_ours() => {
            println!("{}: {source}", pair.name);
            return;
        }
        (refused, _) => panic!("{}: {refused:?}", pair.name),
    };
    let new = || (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (there, here) = (new(), new());
    let start = |words: &[AtomicU64]| NonNull::from(words).cast::<u8>();
    for (at, word) in here.iter().enumerate() {
        word.store(at as u64 + 1, Ordering::Relaxed);
    }
    let key = pair.client.domain.unpack_key(&theirs.pack_key()).unwrap();
    let remote = start(&there).addr().get() as u64;
    // SAFETY: `here` has so many bytes, which are atomics and outlive the operations.
    let slice = [unsafe { ours.slice(start(&here).byte_add(8), BYTES - 8) }];
    let watch = Watch::new(1);
    let posted = pair.post("put", |e| e.put_zcopy(&slice, remote, &key, Some(&watch.completion)));
    watch.posted(posted);
    pair.until("the put", || watch.is_done());
    assert_eq!(watch.result(), Some(Ok(())), "{}", pair.name);
    pair.flush(FlushMode::Remote);
    let words = |words: &[AtomicU64]| {
        words.iter().map(|word| word.load(Ordering::Acquire)).collect::<Vec<_>>()
    };
    let expected: Vec<_> = (2..=BYTES as u64 / 8).chain([0]).collect();
    assert_eq!(words(&there), expected, "{}", pair.name);

    // SAFETY: as above.
    let slice = [unsafe { ours.slice(start(&here), 16) }];
    let watch = Watch::new(1);
    let posted =
        pair.post("get", |e| e.get_zcopy(&slice, remote + 800, &key, Some(&watch.completion)));
    watch.posted(posted);
    pair.until("the get", || watch.is_done());
    assert_eq!(words(&here)[..3], [102, 103, 3], "{}", pair.name);

    // The first page of a process is never mapped.
    let errors = watch_errors(&pair.client.interface);
    pair.post("put", |e| e.put_short(&[1], 16, &key)).unwrap();
    pair.until("the error", || !errors.borrow().is_empty());
    assert_eq!(errors.borrow()[0].cause, Cause::RemoteAccess, "{}", pair.name);
    ours.deregister().unwrap();
    theirs.deregister().unwrap();
}
