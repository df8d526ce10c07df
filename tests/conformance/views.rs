//! Views, which put several ranges of memory under one key.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{
    Access, AtomicOp, ChangeError, FetchResult, FlushMode, Interleaved, MemoryError, Posted,
    RemoteKey, Unpack, View,
};

use crate::place::Place;
use crate::support::{Pair, Watch, collect, connect, contents, pattern, watch_errors};
use crate::windows::{changed, message_is_refused, put, put_is_refused};

const LENGTH: usize = 4096;

/// A peer puts to and gets from ranges of the server's memory under one key, and the client's view
/// is the source and the target of operations.
pub(crate) fn joined_ranges_are_used_like_memory(place: &Place) {
    let mut pair = place.pair();
    for count in [1_usize, 3, 4, 5, 24] {
        let data = pattern(count as u32, 16 * count);
        let (memory, key) = pair.target(LENGTH, Access::all());
        let mut view = match View::new(&pair.server.domain, count) {
            Ok(view) => view,
            // Objects of verbs have room for four ranges.
            Err(ChangeError::Key(error)) if count > 4 => {
                assert!(error.to_string().contains("set the device up by DEVX"), "{error}");
                continue;
            }
            Err(error) => panic!("{}: {count}: {error}", pair.name),
        };
        assert!(view.is_empty());
        let ranges: Vec<_> = (0..count).map(|at| (&memory, at * 160..at * 160 + 16)).collect();
        let (endpoint, watch) = (pair.server.endpoint.clone(), Watch::new(1));
        let posted = view.join(&endpoint, Access::all(), &ranges, Some(&watch.completion));
        changed(&mut pair, &watch, posted);
        assert_eq!(view.len(), data.len() as u64);
        let joined = pair.client.domain.unpack_key(&view.pack_key()).unwrap();
        pair.post("put", |e| {
            e.put_bcopy(
                |to| {
                    to[..data.len()].copy_from_slice(&data);
                    data.len()
                },
                0,
                &joined,
            )
        })
        .unwrap();
        pair.flush(FlushMode::Remote);
        let all = contents(&memory);
        let seen: Vec<u8> =
            ranges.iter().flat_map(|(_, range)| all[range.clone()].to_vec()).collect();
        assert_eq!(seen, data, "{}: {count}", pair.name);
        assert_eq!(
            all.iter().filter(|byte| **byte != 0).count(),
            data.iter().filter(|byte| **byte != 0).count()
        );

        // Here the view is local: the server sends from it.
        let target = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
        let theirs = pair.server.domain.unpack_key(&target.pack_key()).unwrap();
        let slice = [view.slice(1, data.len() - 1).unwrap()];
        let watch = Watch::new(1);
        watch.posted(endpoint.put_zcopy(
            &slice,
            target.address(),
            &theirs,
            Some(&watch.completion),
        ));
        pair.until("put from the view", || watch.is_done());
        assert!(watch.result().unwrap().is_ok());
        assert_eq!(contents(&target)[..data.len() - 1], data[1..], "{}: {count}", pair.name);
        assert!(view.slice(1, data.len()).is_err());
        drop(key);
    }
}

/// The column of a matrix is one key, and two columns are another.
pub(crate) fn columns_are_used_like_memory(place: &Place) {
    const ROW: usize = 40;
    const ROWS: usize = LENGTH / ROW;
    let mut pair = place.pair();
    let (memory, _key) = pair.target(LENGTH, Access::all());
    let data = pattern(5, LENGTH);
    memory.write(0, &data).unwrap();
    let endpoint = pair.server.endpoint.clone();
    let mut view = View::new(&pair.server.domain, 3).unwrap();
    let column = |offset, bytes| Interleaved { memory: &memory, offset, bytes, stride: ROW };
    for columns in [&[column(4, 8)][..], &[column(0, 4), column(20, 12)]] {
        let watch = Watch::new(1);
        let completion = Some(&watch.completion);
        let access = Access::REMOTE_READ;
        let posted = view.interleave(&endpoint, access, columns, ROWS as u32, completion);
        changed(&mut pair, &watch, posted);
        let key = pair.client.domain.unpack_key(&view.pack_key()).unwrap();
        let expected: Vec<u8> = (0..ROWS)
            .flat_map(|row| columns.iter().map(move |column| (row, *column)))
            .flat_map(|(row, column)| data[row * ROW + column.offset..][..column.bytes].to_vec())
            .collect();
        assert_eq!(view.len(), expected.len() as u64);
        let target = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
        let slice = [target.slice(0, expected.len()).unwrap()];
        let watch = Watch::new(1);
        let posted = pair.post("get", |e| e.get_zcopy(&slice, 0, &key, Some(&watch.completion)));
        watch.posted(posted);
        pair.until("get", || watch.is_done());
        assert!(watch.result().unwrap().is_ok());
        assert_eq!(contents(&target)[..expected.len()], expected, "{}", pair.name);
    }
    let refused = |columns: &[Interleaved<'_>], repeat| {
        // The view of another lifetime would have to borrow the columns.
        let mut view = View::new(&pair.server.domain, 3).unwrap();
        view.interleave(&endpoint, Access::REMOTE_READ, columns, repeat, None).unwrap_err()
    };
    let wide = Interleaved { stride: 65536, ..column(0, 4) };
    assert!(matches!(refused(&[wide], 1), ChangeError::Wide(65536)));
    let most = column(0, 4);
    assert!(matches!(refused(&[most], 1000), ChangeError::Memory(MemoryError::OutOfRange { .. })));
    assert!(matches!(refused(&[most; 4], 1), ChangeError::Entries { got: 5, room: 4 }));
}

/// Posts a layout of the server's view.
fn lay<'m>(
    pair: &mut Pair,
    view: &mut View<'m>,
    access: Access,
    ranges: &[Interleaved<'m>],
    repeat: u32,
) -> RemoteKey {
    let (endpoint, watch) = (pair.server.endpoint.clone(), Watch::new(1));
    let posted = view.interleave(&endpoint, access, ranges, repeat, Some(&watch.completion));
    changed(pair, &watch, posted);
    pair.client.domain.unpack_key(&view.pack_key()).unwrap()
}

/// Beyond its end, without the right, and once its layout has changed, a view gives no access.
pub(crate) fn a_view_gives_no_more_than_it_says(place: &Place) {
    for (what, access, remote, relaid, dropped) in [
        ("beyond the end", Access::REMOTE_WRITE, 76, false, false),
        ("far away", Access::REMOTE_WRITE, u64::MAX - 3, false, false),
        ("without the right", Access::REMOTE_READ, 0, false, false),
        ("by the key of an old layout", Access::REMOTE_WRITE, 0, true, false),
        ("after its end", Access::REMOTE_WRITE, 0, false, true),
    ] {
        let mut pair = place.pair();
        let errors = watch_errors(&pair.client.interface);
        let memory = pair.server.domain.allocate(LENGTH, Access::all()).unwrap();
        let ranges = [Interleaved { memory: &memory, offset: 8, bytes: 8, stride: 64 }];
        let mut view = View::new(&pair.server.domain, 4).unwrap();
        let key = lay(&mut pair, &mut view, access, &ranges, 10);
        if relaid {
            lay(&mut pair, &mut view, access, &ranges, 10);
        }
        if dropped {
            drop(view);
        }
        put_is_refused(&mut pair, &key, remote, &errors, what);
        assert_eq!(contents(&memory), [0; LENGTH], "{}: {what}", pair.name);
    }
}

/// The bytes of a layout in `memory`.
fn offsets(ranges: &[Interleaved<'_>], repeat: usize) -> Vec<usize> {
    let of = |n: usize, range: &Interleaved<'_>| {
        let first = range.offset + n * range.stride;
        first..first + range.bytes
    };
    (0..repeat).flat_map(|n| ranges.iter().flat_map(move |range| of(n, range))).collect()
}

/// Puts and gets between a view here and a view there, at any offset, move the bytes that a model
/// moves: short, buffered and zero-copy ones, below and above the sizes that transports copy.
pub(crate) fn transfers_between_views_equal_a_model(place: &Place) {
    const BIG: usize = 64 << 10;
    const ROWS: usize = 300;
    let mut pair = place.pair();
    let there = pair.server.domain.allocate(BIG, Access::all()).unwrap();
    let here = pair.client.domain.allocate(BIG, Access::all()).unwrap();
    there.write(0, &pattern(1, BIG)).unwrap();
    here.write(0, &pattern(2, BIG)).unwrap();
    let mut view = View::new(&pair.server.domain, 4).unwrap();
    let mut own = View::new(&pair.client.domain, 4).unwrap();
    let column = |memory, offset, bytes| Interleaved { memory, offset, bytes, stride: 200 };
    let theirs = [column(&there, 3, 17), column(&there, 160, 40), column(&there, 100, 1)];
    let ours = [column(&here, 8, 40), column(&here, 60, 30)];
    let key = lay(&mut pair, &mut view, Access::all(), &theirs, ROWS as u32);
    let (endpoint, watch) = (pair.client.endpoint.clone(), Watch::new(1));
    let posted =
        own.interleave(&endpoint, Access::all(), &ours, ROWS as u32, Some(&watch.completion));
    changed(&mut pair, &watch, posted);

    let (theirs, ours) = (offsets(&theirs, ROWS), offsets(&ours, ROWS));
    let (mut at_peer, mut at_home) = (contents(&there), contents(&here));
    for (put, length, from, to) in [
        (true, 1, 0, 57),
        (true, 100, 39, 16),
        (false, 100, 41, 333),
        (true, 5000, 7, 1),
        (false, 5000, 1001, 2002),
        (true, 17000, 70, 5),
        (false, 17000, 3, 71),
    ] {
        let (local, remote) = (&ours[from..from + length], &theirs[to..to + length]);
        let slice = [own.slice(from, length).unwrap()];
        let watch = Watch::new(1);
        let done = Some(&watch.completion);
        let posted = pair.post("transfer", |e| {
            if put {
                e.put_zcopy(&slice, to as u64, &key, done)
            } else {
                e.get_zcopy(&slice, to as u64, &key, done)
            }
        });
        if posted.unwrap() == Posted::InProgress {
            pair.until("the transfer", || watch.is_done());
            assert_eq!(watch.result(), Some(Ok(())), "{}", pair.name);
        }
        pair.flush(FlushMode::Remote);
        for (local, remote) in local.iter().zip(remote) {
            if put {
                at_peer[*remote] = at_home[*local];
            } else {
                at_home[*local] = at_peer[*remote];
            }
        }
        assert!(contents(&there) == at_peer, "{}: put {put} {length}", pair.name);
        assert!(contents(&here) == at_home, "{}: put {put} {length}", pair.name);
    }

    let data = pattern(3, 90);
    pair.post("put", |e| {
        e.put_bcopy(
            |to| {
                to[..90].copy_from_slice(&data);
                90
            },
            11,
            &key,
        )
    })
    .unwrap();
    pair.flush(FlushMode::Remote);
    for (byte, remote) in data.iter().zip(&theirs[11..]) {
        at_peer[*remote] = *byte;
    }
    assert!(contents(&there) == at_peer, "{}: put_bcopy", pair.name);
    let found = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&found);
    let unpack = Unpack::new(move |data| seen.borrow_mut().extend_from_slice(data));
    let watch = Watch::new(1);
    let done = Some(&watch.completion);
    let posted = pair.post("get", |e| e.get_bcopy(&unpack, 90, 11, &key, done)).unwrap();
    pair.until("the get", || posted == Posted::Done || watch.is_done());
    assert_eq!(*found.borrow(), data, "{}", pair.name);
}

pub(crate) fn messages_are_gathered_from_views(place: &Place) {
    let mut pair = place.pair();
    let memory = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
    let data = pattern(9, LENGTH);
    memory.write(0, &data).unwrap();
    let mut view = View::new(&pair.client.domain, 4).unwrap();
    let (endpoint, watch) = (pair.client.endpoint.clone(), Watch::new(1));
    let ranges = [(&memory, 7..107), (&memory, 1000..1300), (&memory, 0..5)];
    let posted = view.join(&endpoint, Access::all(), &ranges, Some(&watch.completion));
    changed(&mut pair, &watch, posted);
    let messages = collect(&pair.server.interface, 1);
    let expected: Vec<u8> =
        [&data[107 - 6..107], &data[1000..1300], &data[0..3], &data[0..50]].concat();
    let slices = [view.slice(94, 309).unwrap(), memory.slice(0, 50).unwrap()];
    let watch = Watch::new(1);
    let done = Some(&watch.completion);
    let posted = pair.post("message", |e| e.am_zcopy(1, b"head", &slices, done)).unwrap();
    pair.until("the message", || !messages.borrow().is_empty());
    pair.until("the end", || posted == Posted::Done || watch.is_done());
    assert_eq!(*messages.borrow(), [[&b"head"[..], &expected].concat()], "{}", pair.name);
}

pub(crate) fn words_of_views_are_changed_atomically(place: &Place) {
    let mut pair = place.pair();
    let memory = pair.server.domain.allocate(LENGTH, Access::all()).unwrap();
    let ranges = [Interleaved { memory: &memory, offset: 64, bytes: 8, stride: 128 }];
    let mut view = View::new(&pair.server.domain, 4).unwrap();
    let key = lay(&mut pair, &mut view, Access::all(), &ranges, 3);
    memory.store_u64(64 + 128, 40).unwrap();
    let result = FetchResult::new();
    let watch = Watch::new(1);
    let done = Some(&watch.completion);
    let posted =
        pair.post("add", |e| e.atomic_fetch(AtomicOp::Add(2_u64), 8, &key, &result, done)).unwrap();
    pair.until("the addition", || posted == Posted::Done || watch.is_done());
    assert_eq!((result.get(), memory.load_u64(64 + 128).unwrap()), (40, 42), "{}", pair.name);
}

/// The message is refused, and the view gives the access that it gave before.
pub(crate) fn a_message_ends_no_access_to_a_view(place: &Place) {
    let mut pair = place.pair();
    let memory = pair.server.domain.allocate(LENGTH, Access::all()).unwrap();
    let ranges = [Interleaved { memory: &memory, offset: 8, bytes: 8, stride: 64 }];
    let mut view = View::new(&pair.server.domain, 4).unwrap();
    let key = lay(&mut pair, &mut view, Access::all(), &ranges, 10);
    message_is_refused(&mut pair, &key);
    if pair.client.endpoint.error().is_some() {
        let (one, other) = (pair.server.another(), pair.client.another());
        connect(&other, &one);
        (pair.server.endpoint, pair.client.endpoint) = (one.endpoint, other.endpoint);
    }
    let _ = put(&mut pair, &key, 0).unwrap();
    pair.flush(FlushMode::Remote);
    assert_eq!(contents(&memory)[8..16], [9; 8], "{}", pair.name);
}
