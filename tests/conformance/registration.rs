//! Memory that peers name by another address than its own, paged on demand, and in strides.

use barewire::{
    Access, AtomicOp, FetchResult, FlushMode, Memory, MemoryConfig, MemoryError, RemoteKey,
};

use crate::place::Place;
use crate::support::{Pair, Watch, collect, contents, pattern};

const LENGTH: usize = 8192;
const ADDRESS: u64 = 0x7fff_1234_5000;

fn configs() -> [MemoryConfig; 3] {
    let config = MemoryConfig::new(Access::all());
    [config.at(ADDRESS), config.zero_based(), config.at(ADDRESS).on_demand()]
}

/// Memory of the server under each configuration, and a key to it.
fn targets(pair: &Pair) -> Vec<(Memory, RemoteKey)> {
    let target = |config| {
        let memory = pair.server.domain.allocate(LENGTH, config).unwrap();
        let key = pair.client.domain.unpack_key(&memory.pack_key()).unwrap();
        (memory, key)
    };
    configs().into_iter().map(target).collect()
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
    for config in configs() {
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
