//! Local memory: bounds, foreign memory, and memory that is dropped in flight.

use std::sync::atomic::{AtomicU64, Ordering};

use barewire::{Access, Flags, FlushMode, KeyError, MemoryError, PostError, Posted};

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
    let memory = domain.allocate(20, Access::empty()).unwrap();
    assert_eq!((memory.len(), memory.address() % 4096), (20, 0));
    let out = |offset, length| {
        assert!(matches!(memory.slice(offset, length), Err(MemoryError::OutOfRange { region: 20, .. })));
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
    assert_eq!((memory.load_u8(9).unwrap(), memory.load_u64(8).unwrap()), (2, 0x0807_0605_0403_0201));
}

/// Registered memory of the caller's.
pub(crate) fn foreign_memory_is_registered(place: &Place) {
    let mut pair = place.pair();
    let mut backing = vec![0u64; 100];
    let start = std::ptr::NonNull::new(backing.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: `backing` outlives the memory, and is looked at only after the memory is dropped. The odd start and
    // end are on purpose.
    let memory =
        unsafe { pair.server.domain.register(start.add(3), 700, Access::REMOTE_WRITE | Access::REMOTE_READ) };
    let memory = memory.unwrap();
    if pair.name == "shm" {
        let refused = pair.client.domain.unpack_key(&memory.pack_key()).map(drop);
        assert_eq!(refused, Err(KeyError::NotShared { transport: "shm", instead: "cma" }));
        return;
    }
    let key = pair.client.domain.unpack_key(&memory.pack_key()).unwrap();
    let source = pair.client.domain.allocate(20, Access::empty()).unwrap();
    source.write(0, &[7; 20]).unwrap();
    let slice = [source.slice(0, 20).unwrap()];
    let _ = pair.post("put", |e| e.put_zcopy(&slice, memory.address() + 680, &key, None)).unwrap();
    pair.flush(FlushMode::Remote);
    assert_eq!(contents(&memory)[680..], [7; 20]);
    drop((memory, key));
    let bytes: Vec<u8> = backing.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert!(bytes[..683].iter().all(|byte| *byte == 0));
    assert!(bytes[683..703].iter().all(|byte| *byte == 7) && bytes[703] == 0);
}

/// A key gives what it was made for and nothing else: what is beyond it, or was freed, is an error of the post or of the endpoint, told
/// once; neither the bytes around nor other endpoints are harmed.
pub(crate) fn a_key_gives_no_more_than_it_says(place: &Place) {
    let cases =
        [("a right that is missing", Access::REMOTE_READ, 0), ("a range beyond", Access::REMOTE_WRITE, 4092)];
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

/// The peer's memory as it is mapped here: the same bytes, for as long as the pointer lives.
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
            return;
        }
        let pointer = pair.post("rkey_ptr", |endpoint| endpoint.rkey_ptr(&key)).unwrap();
        assert_eq!(pointer.size(), 4096);
        let (first, word) = (memory.address(), pointer.locate(memory.address() + 8, 8).unwrap());
        // SAFETY: mapped while `pointer` lives, and aligned; everybody accesses the region by words.
        let word = unsafe { word.cast::<AtomicU64>().as_ref() };
        word.store(0x0102_0304_0506_0708, Ordering::Release);
        assert_eq!(contents(&memory)[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        let _ = pair.post("put", |endpoint| endpoint.put_short(&[9; 8], first + 8, &key)).unwrap();
        assert_eq!(word.load(Ordering::Acquire).to_ne_bytes(), [9; 8]);
        assert!(pointer.locate(first + 4090, 6).is_some());
        for (remote, length) in [(first + 4090, 7), (first - 1, 1), (u64::MAX, 2), (first, usize::MAX)] {
            assert_eq!(pointer.locate(remote, length), None);
        }
        drop((memory, pair));
        assert_eq!(word.load(Ordering::Acquire).to_ne_bytes(), [9; 8], "it is mapped still");
    }
}
