//! Puts, gets, atomics, flush and fence of a link.

use std::cell::Cell;
use std::rc::Rc;

use barewire::{Access, AtomicOp, Completion, FetchResult, FlushMode, PostError, Posted};
use barewire_wireup::link::{Link, LinkMemory, LinkRegion, Options};
use barewire_wireup::plan::Kind;

use crate::support::{SETS, Side, linked, pair, until, until_connected};

/// Posts, with progress while there is no room.
fn post<T>(sides: &mut [Side], mut post: impl FnMut() -> Result<T, PostError>) -> T {
    let mut result = None;
    until(sides, "room", |_| match post() {
        Ok(posted) => {
            result = Some(posted);
            true
        }
        Err(PostError::NoResource) => false,
        Err(error) => panic!("{error}"),
    });
    result.unwrap()
}

fn flush(sides: &mut [Side], link: &Link) {
    let done = Rc::new(Cell::new(0));
    let count = Rc::clone(&done);
    let completion = Completion::new(move |result| {
        result.unwrap();
        count.set(count.get() + 1);
    });
    if post(sides, || link.flush(FlushMode::Remote, Some(&completion))) == Posted::InProgress {
        until(sides, "flushed", |_| done.get() > 0);
        assert_eq!(done.get(), 1);
    }
}

#[test]
fn memory_of_each_kind_of_lane() {
    for names in SETS {
        let (mut sides, link, back) = linked(names);
        for kind in [Kind::Memory, Kind::Bulk, Kind::Atomics] {
            let theirs = back.domain(kind).unwrap().allocate(1 << 16, Access::all()).unwrap();
            let domain = link.domain(kind).unwrap();
            let (key, mine) = (
                domain.unpack_key(&theirs.pack_key()).unwrap(),
                domain.allocate(1 << 16, Access::all()).unwrap(),
            );
            match kind {
                Kind::Memory => {
                    post(&mut sides, || link.put_short(b"12345678", theirs.address(), &key));
                    post(&mut sides, || link.fence());
                    flush(&mut sides, &link);
                    assert_eq!(
                        theirs.load_u64(0).unwrap(),
                        u64::from_ne_bytes(*b"12345678"),
                        "{names:?}"
                    );
                }
                Kind::Bulk => {
                    mine.write(0, &vec![7; 1 << 16]).unwrap();
                    let slice = [mine.slice(0, 1 << 16).unwrap()];
                    let lane = link.lane(Kind::Bulk).unwrap();
                    let _ =
                        post(&mut sides, || lane.put_zcopy(&slice, theirs.address(), &key, None));
                    flush(&mut sides, &link);
                    let mut bytes = vec![0; 1 << 16];
                    theirs.read(0, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == 7), "{names:?}");
                }
                _ => {
                    let result = FetchResult::new();
                    let add = || {
                        link.atomic_fetch(
                            AtomicOp::Add(5u64),
                            theirs.address(),
                            &key,
                            &result,
                            None,
                        )
                    };
                    let _ = post(&mut sides, add);
                    flush(&mut sides, &link);
                    assert_eq!((result.get(), theirs.load_u64(0).unwrap()), (0, 5), "{names:?}");
                }
            }
        }
        assert!(link.counters().posted > 0);
    }
}

struct Bulk {
    sides: [Side; 2],
    link: Link,
    mine: LinkMemory,
    theirs: LinkMemory,
    region: LinkRegion,
}

const LENGTH: usize = 1 << 20;

fn bulk(names: &[&str]) -> Bulk {
    let mut sides = pair(names);
    let address = sides[1].node.address();
    let link = sides[0].node.connect(&address, Options::default()).unwrap();
    assert!(link.allocate(1, Access::all()).is_err(), "not connected yet");
    until_connected(&mut sides, &[&link]);
    until(&mut sides, "announced", |sides| sides[1].incoming.borrow().len() == 1);
    let back = sides[1].incoming.borrow()[0].clone();
    let [mine, theirs] = [&link, &back].map(|link| link.allocate(LENGTH, Access::all()).unwrap());
    let region = link.unpack(&theirs.pack()).unwrap();
    assert_eq!((region.len(), theirs.len()), (LENGTH, LENGTH));
    for length in [1 << 50, 1 << 62, usize::MAX] {
        assert!(link.allocate(length, Access::all()).is_err(), "{length:#x} bytes");
    }
    Bulk { sides, link, mine, theirs, region }
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at.wrapping_mul(31) >> 3).wrapping_add(seed) as u8).collect()
}

#[test]
fn a_transfer_has_one_completion_over_any_lane() {
    for names in SETS {
        let Bulk { mut sides, link, mine, theirs, region } = bulk(names);
        let done = Rc::new(Cell::new(0));
        let count = Rc::clone(&done);
        let completion = Completion::new(move |result| {
            result.unwrap();
            count.set(count.get() + 1);
        });
        let mut bytes = vec![0; LENGTH];
        mine.write(0, &pattern(1)).unwrap();
        // From and to different offsets, so that parts are not mixed up.
        let length = LENGTH - 4096;
        let put = || link.put_zcopy(&mine, 4096..LENGTH, &region, 0, Some(&completion));
        if post(&mut sides, put) == Posted::InProgress {
            until(&mut sides, "the put", |_| completion.pending() == 0);
            assert_eq!(done.take(), 1, "{names:?}: one completion");
        }
        flush(&mut sides, &link);
        theirs.read(0, &mut bytes).unwrap();
        assert!(bytes[..length] == pattern(1)[4096..], "{names:?}");
        assert!(bytes[length..].iter().all(|byte| *byte == 0), "{names:?}");

        theirs.write(0, &pattern(2)).unwrap();
        let get = || link.get_zcopy(&mine, 0..LENGTH, &region, 0, Some(&completion));
        if post(&mut sides, get) == Posted::InProgress {
            until(&mut sides, "the get", |_| completion.pending() == 0);
            assert_eq!(done.take(), 1, "{names:?}: one completion");
        }
        mine.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(2), "{names:?}");
    }
}

#[test]
fn what_is_outside_or_foreign_is_refused_before_a_post() {
    for names in SETS {
        let Bulk { link, mine, region, .. } = bulk(names);
        for (range, offset) in
            [(0..LENGTH + 1, 0), (0..LENGTH, 1), (0..1, usize::MAX), (LENGTH..LENGTH + 1, 0)]
        {
            let put = link.put_zcopy(&mine, range.clone(), &region, offset, None);
            assert_eq!(put, Err(PostError::OutOfRange), "{names:?} {range:?} {offset}");
        }
        assert!(link.unpack(&[]).is_err() && link.unpack(&[0, 9]).is_err());
        let packed = mine.pack();
        for length in 0..packed.len() {
            // A rail less is still a region; a rail in part is not.
            if let Ok(region) = link.unpack(&packed[..length]) {
                assert_eq!(region.len(), LENGTH);
            }
        }
    }
}
