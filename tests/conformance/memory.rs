//! Local memory: bounds, registered memory of the caller, and memory that is dropped in flight.

use std::sync::atomic::{AtomicU64, Ordering};

use barewire::error::PointerError;
use barewire::{Access, Flags, FlushMode, KeyError, MemoryError, PostError, Posted, TransportId};

use crate::place::Place;
use crate::support::{Watch, contents, watch_errors};

pub(crate) fn memory_checks_its_bounds(place: &Place) {
    let pair = place.pair();
    let domain = &pair.client.domain;
    assert!(matches!(domain.allocate(0, Access::all()), Err(MemoryError::Empty)));
    assert!(matches!(
        domain.allocate(usize::MAX, Access::all()),
        Err(MemoryError::NoMemory { length: usize::MAX })
    ));
    // Undefined bits are ignored.
    let memory = domain.allocate(20, Access::from_bits_retain(0xffff_fff0)).unwrap();
    assert_eq!((memory.len(), memory.address() % 4096), (20, 0));
    let out = |offset, length| {
        assert!(matches!(
            memory.slice(offset, length),
            Err(MemoryError::OutOfRange { region: 20, .. })
        ));
        assert!(memory.write(offset, &vec![0; length]).is_err());
        assert!(memory.read(offset, &mut vec![0; length]).is_err());
    };
    out(20, 1);
    out(0, 21);
    assert!(memory.slice(usize::MAX, 2).is_err() && memory.load_u8(20).is_err());
    assert!(memory.slice(20, 0).is_ok() && memory.load_u8(19).is_ok());
    assert!(matches!(memory.load_u64(4), Err(MemoryError::Unaligned { offset: 4 })));
    assert!(matches!(memory.store_u64(16, 0), Err(MemoryError::OutOfRange { .. })));
    memory.store_u64(8, 0x0807_0605_0403_0201).unwrap();
    assert_eq!(
        (memory.load_u8(9).unwrap(), memory.load_u64(8).unwrap()),
        (2, 0x0807_0605_0403_0201)
    );
}

/// Registers memory of the caller.
pub(crate) fn foreign_memory_is_registered(place: &Place) {
    let mut pair = place.pair();
    let mut backing = vec![0u64; 100];
    let start = std::ptr::NonNull::new(backing.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: `backing` is read, and dropped, only after the memory was deregistered. Start and end
    // are deliberately unaligned.
    let memory = unsafe {
        pair.server.domain.register(start.add(3), 700, Access::REMOTE_WRITE | Access::REMOTE_READ)
    };
    let memory = memory.unwrap();
    if pair.name == "shm" {
        let refused = pair.client.domain.unpack_key(&memory.pack_key()).map(drop);
        assert_eq!(
            refused,
            Err(KeyError::NotShared { transport: TransportId::Shm, instead: TransportId::Cma })
        );
        memory.deregister().unwrap();
        return;
    }
    let key = pair.client.domain.unpack_key(&memory.pack_key()).unwrap();
    let source = pair.client.domain.allocate(20, Access::empty()).unwrap();
    source.write(0, &[7; 20]).unwrap();
    let slice = [source.slice(0, 20).unwrap()];
    let _ = pair.post("put", |e| e.put_zcopy(&slice, memory.address() + 680, &key, None)).unwrap();
    pair.flush(FlushMode::Remote);
    assert_eq!(contents(&memory)[680..], [7; 20]);
    // Also while there is a key to it.
    memory.deregister().unwrap();
    let bytes: Vec<u8> = backing.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert!(bytes[..683].iter().all(|byte| *byte == 0));
    assert!(bytes[683..703].iter().all(|byte| *byte == 7) && bytes[703] == 0);
}

/// A key covers its region and rights only: an access outside fails the post, or fails the endpoint
/// once; neither adjacent bytes nor other endpoints are affected.
pub(crate) fn a_key_gives_no_more_than_it_says(place: &Place) {
    let cases = [
        ("a right that is missing", Access::REMOTE_READ, 0),
        ("a range beyond", Access::REMOTE_WRITE, 4092),
    ];
    for (what, access, offset) in cases {
        let mut pair = place.pair();
        let errors = watch_errors(&pair.client.interface);
        let (memory, key) = pair.target(4096, access);
        let source = pair.client.domain.allocate(8, Access::empty()).unwrap();
        source.write(0, &[9; 8]).unwrap();
        let slice = [source.slice(0, 8).unwrap()];
        let watch = Watch::new(1);
        let remote = memory.address() + offset;
        let post = pair.post(what, |e| e.put_zcopy(&slice, remote, &key, Some(&watch.completion)));
        match post {
            Ok(Posted::InProgress) => {
                pair.until(what, || watch.is_done() && !errors.borrow().is_empty());
                assert!(watch.result().unwrap().is_err(), "{}: {what}", pair.name);
                assert_eq!(errors.borrow().len(), 1, "{}: {what}", pair.name);
                assert!(pair.client.endpoint.error().is_some(), "{}: {what}", pair.name);
            }
            Ok(Posted::Done) => panic!("{}: {what} was done", pair.name),
            Err(error) => {
                let known = matches!(
                    error,
                    PostError::AccessDenied | PostError::OutOfRange | PostError::EndpointFailed
                );
                assert!(known, "{}: {what}: {error}", pair.name);
            }
        }
        assert_eq!(contents(&memory), [0; 4096], "{}: {what}", pair.name);
    }
}

/// After memory is dropped, its key gives access neither to other memory of the program at the same
/// address nor to a new region there. The post is refused, or the endpoint fails.
pub(crate) fn a_key_to_freed_memory_reaches_nothing(place: &Place) {
    const LENGTH: usize = 64 << 10;
    for put in [true, false] {
        let mut pair = place.pair();
        let name = pair.name;
        let (memory, key) = pair.target(LENGTH, Access::all());
        let remote = memory.address();
        let local = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
        local.write(0, &vec![9; LENGTH]).unwrap();
        let slice = [local.slice(0, LENGTH).unwrap()];
        let watch = Watch::new(1);
        let posted =
            pair.post("put", |e| e.put_zcopy(&slice, remote, &key, Some(&watch.completion)));
        watch.posted(posted);
        pair.until("put", || watch.is_done());
        drop(memory);

        // The allocators may return the same address for the program's memory and for a new region.
        let regions = |_| {
            let region = pair.server.domain.allocate(LENGTH, Access::all()).unwrap();
            region.write(0, &vec![7; LENGTH]).unwrap();
            region
        };
        let regions: Vec<_> = (0..4).map(regions).collect();
        let own: Vec<Vec<u8>> = (0..16).map(|at| vec![7; LENGTH + at * 128]).collect();
        let errors = watch_errors(&pair.client.interface);
        let watch = Watch::new(1);
        let post = pair.post("with the old key", |e| {
            let completion = Some(&watch.completion);
            if put {
                e.put_zcopy(&slice, remote, &key, completion)
            } else {
                e.get_zcopy(&slice, remote, &key, completion)
            }
        });
        match post {
            Ok(Posted::InProgress) => {
                pair.until("its end", || watch.is_done());
                assert!(watch.result().unwrap().is_err(), "{name}: it was done");
                pair.until("the error", || !errors.borrow().is_empty());
                assert!(pair.client.endpoint.error().is_some(), "{name}");
            }
            Ok(Posted::Done) => panic!("{name}: it was done"),
            Err(error) => {
                let known = matches!(error, PostError::KeyExpired | PostError::EndpointFailed);
                assert!(known, "{name}: {error}");
            }
        }
        let untouched = |bytes: &[u8]| std::hint::black_box(bytes).iter().all(|byte| *byte == 7);
        assert!(own.iter().all(|bytes| untouched(bytes)), "{name}: memory of the program changed");
        assert!(
            regions.iter().all(|region| untouched(&contents(region))),
            "{name}: a new region changed"
        );
        assert!(contents(&local).iter().all(|byte| *byte == 9), "{name}: something was read");
    }
}

/// The mapping of the peer's memory has the same bytes, for as long as the pointer lives.
pub(crate) fn rkey_ptr_leads_to_the_peers_bytes(place: &Place) {
    {
        let mut pair = place.pair();
        let (memory, key) = pair.target(4096, Access::all());
        if !pair.client.interface.attributes().flags.contains(Flags::RKEY_PTR) {
            assert!(
                matches!(pair.client.endpoint.rkey_ptr(&key), Err(PostError::Unsupported)),
                "{}",
                pair.name
            );
            assert!(matches!(key.pointer(), Err(PointerError::Unsupported(_))), "{}", pair.name);
            return;
        }
        let alone = key.pointer().unwrap();
        let pointer = pair.post("rkey_ptr", |endpoint| endpoint.rkey_ptr(&key)).unwrap();
        assert_eq!(pointer.size(), 4096);
        let (first, word) = (memory.address(), pointer.locate(memory.address() + 8, 8).unwrap());
        // SAFETY: mapped while `pointer` lives, and aligned; all accesses to the region are atomic
        // accesses of words.
        let word = unsafe { word.cast::<AtomicU64>().as_ref() };
        word.store(0x0102_0304_0506_0708, Ordering::Release);
        assert_eq!(contents(&memory)[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        pair.post("put", |endpoint| endpoint.put_short(&[9; 8], first + 8, &key)).unwrap();
        assert_eq!(word.load(Ordering::Acquire).to_ne_bytes(), [9; 8]);
        let same = alone.locate(first + 8, 8).unwrap();
        // SAFETY: as above, in another mapping.
        let same = unsafe { same.cast::<AtomicU64>().as_ref() };
        assert_eq!(same.load(Ordering::Acquire).to_ne_bytes(), [9; 8], "without an endpoint");
        assert!(pointer.locate(first + 4090, 6).is_some());
        for (remote, length) in
            [(first + 4090, 7), (first - 1, 1), (u64::MAX, 2), (first, usize::MAX)]
        {
            assert_eq!(pointer.locate(remote, length), None);
        }
        drop((memory, pair));
        assert_eq!(word.load(Ordering::Acquire).to_ne_bytes(), [9; 8], "it is mapped still");
    }
}
