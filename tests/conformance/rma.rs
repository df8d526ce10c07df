//! Puts and gets at their size limits and offsets, byte by byte.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{Access, FlushMode, PostError, RemoteKey, Unpack};

use crate::place::Place;
use crate::support::{Pair, Watch, contents, expect_too_long, parts, pattern, sizes};

const AROUND: usize = 64;

/// Writes `data` by `put` at several offsets of new memory and checks every byte, including
/// adjacent ones.
fn check_put(
    pair: &mut Pair,
    what: &str,
    limit: usize,
    mut put: impl FnMut(&mut Pair, &[u8], u64, &RemoteKey) -> Result<(), PostError>,
) {
    for size in sizes(limit) {
        for offset in [AROUND, AROUND + 3] {
            let (memory, key) = pair.target(size + 2 * AROUND, Access::REMOTE_WRITE);
            memory.write(0, &vec![0xee; memory.len()]).unwrap();
            let data = pattern(size as u32, size);
            let remote = memory.address() + offset as u64;
            put(pair, &data, remote, &key)
                .unwrap_or_else(|error| panic!("{}: {what} of {size}: {error}", pair.name));
            pair.flush(FlushMode::Remote);
            let mut expected = vec![0xee; memory.len()];
            expected[offset..offset + size].copy_from_slice(&data);
            assert_eq!(contents(&memory), expected, "{}: {what} of {size} at {offset}", pair.name);
        }
    }
}

pub(crate) fn put_short(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().put.max_short;
    check_put(&mut pair, "put_short", limit, |pair, data, remote, key| {
        pair.post("put_short", |endpoint| endpoint.put_short(data, remote, key))
    });
    if limit < usize::MAX {
        let (memory, key) = pair.target(limit + 1, Access::REMOTE_WRITE);
        let answer = pair.client.endpoint.put_short(&vec![0; limit + 1], memory.address(), &key);
        expect_too_long(&pair, "put_short", limit, answer);
    }
}

pub(crate) fn put_bcopy(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().put.max_bcopy;
    let pack = |data: &[u8]| {
        let data = data.to_vec();
        move |buffer: &mut [u8]| {
            buffer[..data.len()].copy_from_slice(&data);
            data.len()
        }
    };
    check_put(&mut pair, "put_bcopy", limit, |pair, data, remote, key| {
        let length =
            pair.post("put_bcopy", |endpoint| endpoint.put_bcopy(pack(data), remote, key))?;
        assert_eq!(length, data.len());
        Ok(())
    });
    let (memory, key) = pair.target(limit + 1, Access::REMOTE_WRITE);
    let answer = pair.client.endpoint.put_bcopy(
        |buffer| {
            assert_eq!(buffer.len(), limit);
            limit + 1
        },
        memory.address(),
        &key,
    );
    expect_too_long(&pair, "put_bcopy", limit, answer.map(drop));
}

pub(crate) fn put_zcopy(place: &Place) {
    let mut pair = place.pair();
    let limits = pair.client.interface.attributes().put;
    for count in [1, 2, limits.max_iov] {
        check_put(&mut pair, "put_zcopy", limits.max_zcopy, |pair, data, remote, key| {
            let source = pair.client.domain.allocate(data.len() + 1, Access::empty()).unwrap();
            source.write(0, data).unwrap();
            let slices = parts(&source, data.len(), count);
            let watch = Watch::new(1);
            let completion = Some(&watch.completion);
            let posted = pair
                .post("put_zcopy", |endpoint| endpoint.put_zcopy(&slices, remote, key, completion));
            watch.posted(posted);
            pair.until("put_zcopy", || watch.is_done());
            assert_eq!((watch.result(), watch.calls()), (Some(Ok(())), 1), "{}", pair.name);
            Ok(())
        });
    }
    let (memory, key) = pair.target(64, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let slices = vec![source.slice(0, 1).unwrap(); limits.max_iov + 1];
    assert_eq!(
        pair.client.endpoint.put_zcopy(&slices, memory.address(), &key, None),
        Err(PostError::TooManySlices { limit: limits.max_iov as u32 })
    );
}

pub(crate) fn zcopy_beyond_the_longest_message(place: &Place) {
    let pair = place.pair();
    let limit = pair.client.interface.attributes().put.max_zcopy;
    if limit == usize::MAX {
        return;
    }
    let part = limit / 10 + 1;
    let (memory, key) = pair.target(64, Access::all());
    let source = pair.client.domain.allocate(part, Access::LOCAL_WRITE).unwrap();
    let slices = vec![source.slice(0, part).unwrap(); 10];
    let too_long = PostError::TooLong { length: 10 * part as u32, limit: limit as u32 };
    let endpoint = &pair.client.endpoint;
    assert_eq!(endpoint.put_zcopy(&slices, memory.address(), &key, None), Err(too_long));
    assert_eq!(endpoint.get_zcopy(&slices, memory.address(), &key, None), Err(too_long));
}

pub(crate) fn get_bcopy(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().get.max_bcopy;
    for size in sizes(limit) {
        let (memory, key) = pair.target(size + AROUND, Access::REMOTE_READ);
        let data = pattern(size as u32, memory.len());
        memory.write(0, &data).unwrap();
        let seen: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
        let inner = Rc::clone(&seen);
        let unpack = Unpack::new(move |bytes| {
            assert!(inner.replace(Some(bytes.to_vec())).is_none());
        });
        let watch = Watch::new(1);
        let completion = Some(&watch.completion);
        let remote = memory.address() + 3;
        watch.posted(pair.post("get_bcopy", |endpoint| {
            endpoint.get_bcopy(&unpack, size, remote, &key, completion)
        }));
        pair.until("get_bcopy", || watch.is_done());
        assert_eq!(watch.result(), Some(Ok(())));
        assert_eq!(seen.take().as_deref(), Some(&data[3..3 + size]), "{}: {size}", pair.name);
    }
    let (memory, key) = pair.target(limit + 1, Access::REMOTE_READ);
    let unpack = Unpack::new(|_| panic!("nothing was posted"));
    let answer = pair.client.endpoint.get_bcopy(&unpack, limit + 1, memory.address(), &key, None);
    expect_too_long(&pair, "get_bcopy", limit, answer.map(drop));
}

pub(crate) fn get_zcopy(place: &Place) {
    let mut pair = place.pair();
    let limits = pair.client.interface.attributes().get;
    for size in sizes(limits.max_zcopy) {
        for count in [1, 3, limits.max_iov] {
            let (memory, key) = pair.target(size + AROUND, Access::REMOTE_READ);
            let data = pattern(size as u32, memory.len());
            memory.write(0, &data).unwrap();
            let target = pair.client.domain.allocate(size + AROUND, Access::LOCAL_WRITE).unwrap();
            let slices = parts(&target, size, count);
            let watch = Watch::new(1);
            let completion = Some(&watch.completion);
            let remote = memory.address() + 1;
            watch.posted(pair.post("get_zcopy", |endpoint| {
                endpoint.get_zcopy(&slices, remote, &key, completion)
            }));
            pair.until("get_zcopy", || watch.is_done());
            assert_eq!(watch.result(), Some(Ok(())));
            let mut expected = data[1..=size].to_vec();
            expected.resize(size + AROUND, 0);
            assert_eq!(contents(&target), expected, "{}: {size} in {count}", pair.name);
        }
    }
}
