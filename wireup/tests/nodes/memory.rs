//! Puts, gets, atomics, flush and fence of a link.

use std::cell::Cell;
use std::rc::Rc;

use barewire::{Access, AtomicOp, Completion, FetchResult, FlushMode, PostError, Posted};
use barewire_wireup::link::{Link, Options};
use barewire_wireup::plan::Kind;

use crate::support::{SETS, Side, pair, until, until_connected};

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
        let mut sides = pair(names);
        let address = sides[1].node.address();
        let link = sides[0].node.connect(&address, Options::default()).unwrap();
        until_connected(&mut sides, &[&link]);
        until(&mut sides, "announced", |sides| sides[1].incoming.borrow().len() == 1);
        let back = sides[1].incoming.borrow()[0].clone();
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
                    let _ =
                        post(&mut sides, || link.put_zcopy(&slice, theirs.address(), &key, None));
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
