//! Every operation at its sizes, over every transport that has it.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::{Access, FetchResult, FlushMode, Memory, PostError, Posted, RemoteKey, Unpack};
use support::{Pair, Watch, collect, contents, pattern};

/// Sizes around a limit; some, where there is none.
fn sizes(limit: usize) -> Vec<usize> {
    if limit > 1 << 24 {
        return vec![0, 1, 7, 8, 9, 4096, 8191, 8192, 8193, 100_003];
    }
    vec![0, 1, limit / 2, limit - 1, limit]
}

const AROUND: usize = 64;

/// Writes `data` by `put` at several offsets of fresh memory and checks every byte, also around it.
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

fn expect_too_long(pair: &Pair, what: &str, limit: usize, answer: Result<(), PostError>) {
    assert_eq!(
        answer,
        Err(PostError::TooLong { length: limit as u32 + 1, limit: limit as u32 }),
        "{}: {what}",
        pair.name
    );
}

#[test]
fn put_short() {
    for mut pair in Pair::all() {
        let limit = pair.client.interface.attributes().put.max_short;
        check_put(&mut pair, "put_short", limit, |pair, data, remote, key| {
            let posted = pair.post("put_short", |endpoint| endpoint.put_short(data, remote, key))?;
            assert_eq!(posted, Posted::Done);
            Ok(())
        });
        if limit < usize::MAX {
            let (memory, key) = pair.target(limit + 1, Access::REMOTE_WRITE);
            let answer = pair.client.endpoint.put_short(&vec![0; limit + 1], memory.address(), &key);
            expect_too_long(&pair, "put_short", limit, answer.map(drop));
        }
    }
}

#[test]
fn put_bcopy() {
    for mut pair in Pair::all() {
        let limit = pair.client.interface.attributes().put.max_bcopy;
        let pack = |data: &[u8]| {
            let data = data.to_vec();
            move |buffer: &mut [u8]| {
                buffer[..data.len()].copy_from_slice(&data);
                data.len()
            }
        };
        check_put(&mut pair, "put_bcopy", limit, |pair, data, remote, key| {
            let length = pair.post("put_bcopy", |endpoint| endpoint.put_bcopy(pack(data), remote, key))?;
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
}

/// Splits a range of memory into `parts` uneven slices.
fn parts(memory: &Memory, length: usize, parts: usize) -> Vec<barewire::Slice<'_>> {
    let mut at = 0;
    (0..parts)
        .map(|part| {
            let rest = length - at;
            let take = if part + 1 == parts { rest } else { (rest / 2).min(part * 1000 + 1) };
            at += take;
            memory.slice(at - take, take).unwrap()
        })
        .collect()
}

#[test]
fn put_zcopy() {
    for mut pair in Pair::all() {
        let limits = pair.client.interface.attributes().put;
        for count in [1, 2, limits.max_iov] {
            check_put(&mut pair, "put_zcopy", limits.max_zcopy, |pair, data, remote, key| {
                let source = pair.client.domain.allocate(data.len() + 1, Access::empty()).unwrap();
                source.write(0, data).unwrap();
                let slices = parts(&source, data.len(), count);
                let watch = Watch::new(1);
                let completion = Some(&watch.completion);
                let posted =
                    pair.post("put_zcopy", |endpoint| endpoint.put_zcopy(&slices, remote, key, completion));
                watch.posted(posted);
                pair.until("put_zcopy", || watch.is_done());
                assert_eq!((watch.result(), watch.calls()), (Some(Ok(())), 1));
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
}

#[test]
fn zcopy_beyond_the_longest_message() {
    for pair in Pair::rc(&Default::default()) {
        let limit = pair.client.interface.attributes().put.max_zcopy;
        let part = limit / 10 + 1;
        let (memory, key) = pair.target(64, Access::all());
        let source = pair.client.domain.allocate(part, Access::LOCAL_WRITE).unwrap();
        let slices = vec![source.slice(0, part).unwrap(); 10];
        let too_long = PostError::TooLong { length: 10 * part as u32, limit: limit as u32 };
        let endpoint = &pair.client.endpoint;
        assert_eq!(endpoint.put_zcopy(&slices, memory.address(), &key, None), Err(too_long));
        assert_eq!(endpoint.get_zcopy(&slices, memory.address(), &key, None), Err(too_long));
    }
}

#[test]
fn get_bcopy() {
    for mut pair in Pair::all() {
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
            watch.posted(
                pair.post("get_bcopy", |endpoint| {
                    endpoint.get_bcopy(&unpack, size, remote, &key, completion)
                }),
            );
            pair.until("get_bcopy", || watch.is_done());
            assert_eq!(watch.result(), Some(Ok(())));
            assert_eq!(seen.take().as_deref(), Some(&data[3..3 + size]), "{}: {size}", pair.name);
        }
        let (memory, key) = pair.target(limit + 1, Access::REMOTE_READ);
        let unpack = Unpack::new(|_| panic!("nothing was posted"));
        let answer = pair.client.endpoint.get_bcopy(&unpack, limit + 1, memory.address(), &key, None);
        expect_too_long(&pair, "get_bcopy", limit, answer.map(drop));
    }
}

#[test]
fn get_zcopy() {
    for mut pair in Pair::all() {
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
                watch.posted(
                    pair.post("get_zcopy", |endpoint| endpoint.get_zcopy(&slices, remote, &key, completion)),
                );
                pair.until("get_zcopy", || watch.is_done());
                assert_eq!(watch.result(), Some(Ok(())));
                let mut expected = data[1..=size].to_vec();
                expected.resize(size + AROUND, 0);
                assert_eq!(contents(&target), expected, "{}: {size} in {count}", pair.name);
            }
        }
    }
}

#[test]
fn am_short() {
    for mut pair in Pair::all() {
        let limit = pair.client.interface.attributes().am.max_short;
        let inbox = collect(&pair.server.interface, 31);
        for size in sizes(limit) {
            let data = pattern(size as u32, size);
            let header = 0x0123_4567_89ab_cdef ^ size as u64;
            let posted = pair.post("am_short", |endpoint| endpoint.am_short(31, header, &data));
            assert_eq!(posted, Ok(Posted::Done));
            pair.until("am_short", || inbox.borrow().len() == 1);
            let message = inbox.borrow_mut().pop().unwrap();
            assert_eq!(message, [&header.to_le_bytes()[..], &data].concat(), "{}: {size}", pair.name);
        }
        let endpoint = &pair.client.endpoint;
        expect_too_long(&pair, "am_short", limit, endpoint.am_short(0, 0, &vec![0; limit + 1]).map(drop));
        assert_eq!(endpoint.am_short(32, 0, &[]), Err(PostError::UnknownHandlerId(32)));
        pair.flush(FlushMode::Local);
        assert!(inbox.borrow().is_empty());
    }
}

#[test]
fn am_bcopy() {
    for mut pair in Pair::all() {
        let limit = pair.client.interface.attributes().am.max_bcopy;
        let inbox = collect(&pair.server.interface, 0);
        for size in sizes(limit) {
            let data = pattern(size as u32, size);
            let length = pair.post("am_bcopy", |endpoint| {
                endpoint.am_bcopy(0, |buffer| {
                    buffer[..size].copy_from_slice(&data);
                    size
                })
            });
            assert_eq!(length, Ok(size));
            pair.until("am_bcopy", || inbox.borrow().len() == 1);
            assert_eq!(inbox.borrow_mut().pop(), Some(data), "{}: {size}", pair.name);
        }
        let endpoint = &pair.client.endpoint;
        let answer = endpoint.am_bcopy(0, |buffer| {
            assert_eq!(buffer.len(), limit);
            limit + 1
        });
        expect_too_long(&pair, "am_bcopy", limit, answer.map(drop));
        let never = |_: &mut [u8]| -> usize { panic!("nothing was posted") };
        assert_eq!(endpoint.am_bcopy(200, never), Err(PostError::UnknownHandlerId(200)));
    }
}

#[test]
fn am_zcopy() {
    for mut pair in Pair::all() {
        let limits = pair.client.interface.attributes().am;
        let inbox = collect(&pair.server.interface, 5);
        for header_size in [0, 1, 8, limits.max_header] {
            let header = pattern(1, header_size);
            for size in sizes(limits.max_zcopy - header_size) {
                for count in [1, limits.max_iov] {
                    let data = pattern(size as u32, size);
                    let source = pair.client.domain.allocate(size + 1, Access::empty()).unwrap();
                    source.write(0, &data).unwrap();
                    let slices = parts(&source, size, count);
                    let watch = Watch::new(1);
                    let completion = Some(&watch.completion);
                    watch.posted(
                        pair.post("am_zcopy", |endpoint| endpoint.am_zcopy(5, &header, &slices, completion)),
                    );
                    pair.until("am_zcopy", || watch.is_done() && inbox.borrow().len() == 1);
                    assert_eq!(watch.result(), Some(Ok(())));
                    let message = inbox.borrow_mut().pop().unwrap();
                    assert_eq!(message, [&header[..], &data].concat(), "{}: {header_size}+{size}", pair.name);
                }
            }
        }
        let endpoint = &pair.client.endpoint;
        let source = pair.client.domain.allocate(limits.max_zcopy + 1, Access::empty()).unwrap();
        let all = source.slice(0, limits.max_zcopy + 1).unwrap();
        assert!(matches!(endpoint.am_zcopy(5, &[], &[all], None), Err(PostError::TooLong { .. })));
        let header = vec![0; limits.max_header + 1];
        expect_too_long(
            &pair,
            "am_zcopy header",
            limits.max_header,
            endpoint.am_zcopy(5, &header, &[], None).map(drop),
        );
        let many = vec![source.slice(0, 1).unwrap(); limits.max_iov + 1];
        assert!(matches!(endpoint.am_zcopy(5, &[], &many, None), Err(PostError::TooManySlices { .. })));
        assert_eq!(endpoint.am_zcopy(32, &[], &[], None), Err(PostError::UnknownHandlerId(32)));
    }
}

#[test]
fn messages_without_handler_are_counted() {
    for mut pair in Pair::all() {
        let _ = pair.post("am_short", |endpoint| endpoint.am_short(9, 1, &[])).unwrap();
        let interface = pair.server.interface.clone();
        pair.until("count", || interface.unhandled() == 1);
    }
}

#[test]
fn atomics() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(64, Access::REMOTE_ATOMIC);
        memory.store_u64(8, 40).unwrap();
        let remote = memory.address() + 8;
        let posted = pair.post("add", |endpoint| endpoint.atomic_add64(2, remote, &key));
        assert_eq!(posted, Ok(Posted::Done));
        let (result, watch) = (FetchResult::new(), Watch::new(1));
        watch.posted(pair.post("fetch_add", |endpoint| {
            endpoint.atomic_fetch_add64(u64::MAX, remote, &key, &result, Some(&watch.completion))
        }));
        pair.until("fetch_add", || watch.is_done());
        assert_eq!((result.get(), watch.result()), (42, Some(Ok(()))));
        for (compare, found, after) in [(7, 41, 41), (41, 41, 0xdead_beef_0bad_cafe)] {
            let watch = Watch::new(1);
            watch.posted(pair.post("compare_swap", |endpoint| {
                endpoint.atomic_compare_swap64(
                    compare,
                    0xdead_beef_0bad_cafe,
                    remote,
                    &key,
                    &result,
                    Some(&watch.completion),
                )
            }));
            pair.until("compare_swap", || watch.is_done());
            assert_eq!(result.get(), found, "{}", pair.name);
            assert_eq!(memory.load_u64(8).unwrap(), after, "{}", pair.name);
        }
        let endpoint = &pair.client.endpoint;
        assert_eq!(endpoint.atomic_add64(1, remote + 4, &key), Err(PostError::Unaligned));
        assert_eq!(
            endpoint.atomic_fetch_add64(1, remote + 1, &key, &result, None),
            Err(PostError::Unaligned)
        );
        assert_eq!(contents(&memory)[..8], [0; 8]);
        assert_eq!(contents(&memory)[16..], [0; 48]);
    }
}

/// Many fetches in flight: each gets its own result.
#[test]
fn fetches_in_flight_do_not_mix() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(8, Access::REMOTE_ATOMIC);
        let remote = memory.address();
        let watch = Watch::new(100);
        let results: Vec<_> = (0..100).map(|_| FetchResult::new()).collect();
        for result in &results {
            watch.posted(pair.post("fetch_add", |endpoint| {
                endpoint.atomic_fetch_add64(3, remote, &key, result, Some(&watch.completion))
            }));
        }
        pair.until("all", || watch.is_done());
        let values: Vec<_> = results.iter().map(FetchResult::get).collect();
        assert_eq!(values, (0..100).map(|i| 3 * i).collect::<Vec<_>>(), "{}", pair.name);
    }
}

#[test]
fn one_completion_serves_many_operations() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(4096, Access::REMOTE_WRITE);
        let source = pair.client.domain.allocate(4096, Access::empty()).unwrap();
        source.write(0, &pattern(3, 4096)).unwrap();
        let watch = Watch::new(64);
        for i in 0..64 {
            let slice = [source.slice(i * 64, 64).unwrap()];
            let remote = memory.address() + i as u64 * 64;
            watch.posted(
                pair.post("put", |endpoint| {
                    endpoint.put_zcopy(&slice, remote, &key, Some(&watch.completion))
                }),
            );
        }
        pair.until("all", || watch.is_done());
        pair.flush(FlushMode::Remote);
        assert_eq!((watch.calls(), contents(&memory)), (1, pattern(3, 4096)));
    }
}

/// A fence makes a fetch see the put before it, and a put not overtake a get.
#[test]
fn fence_orders() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(8, Access::all());
        let target = pair.client.domain.allocate(8, Access::LOCAL_WRITE).unwrap();
        let remote = memory.address();
        for round in 1..50u64 {
            let (result, watch) = (FetchResult::new(), Watch::new(1));
            let _ = pair.post("put", |e| e.put_short(&round.to_ne_bytes(), remote, &key)).unwrap();
            pair.client.endpoint.fence().unwrap();
            watch.posted(pair.post("fetch", |endpoint| {
                endpoint.atomic_fetch_add64(1000, remote, &key, &result, Some(&watch.completion))
            }));
            let got = Watch::new(1);
            let slice = [target.slice(0, 8).unwrap()];
            got.posted(
                pair.post("get", |endpoint| endpoint.get_zcopy(&slice, remote, &key, Some(&got.completion))),
            );
            pair.client.interface.fence().unwrap();
            let _ = pair.post("put", |e| e.put_short(&[0; 8], remote, &key)).unwrap();
            pair.until("fetch and get", || watch.is_done() && got.is_done());
            assert_eq!(result.get(), round, "{}", pair.name);
            assert_eq!(target.load_u64(0).unwrap(), round + 1000, "{}", pair.name);
        }
    }
}

#[test]
fn flush_counts_its_completion_down_after_the_operations() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(64, Access::REMOTE_WRITE);
        for mode in [FlushMode::Local, FlushMode::Remote] {
            for _ in 0..20 {
                let flushed = Watch::new(1);
                for i in 0..5u8 {
                    let _ = pair.post("put", |e| e.put_short(&[i; 64], memory.address(), &key)).unwrap();
                }
                flushed.posted(pair.post("flush", |e| e.flush(mode, Some(&flushed.completion))));
                pair.until("flush", || flushed.is_done());
                assert_eq!((flushed.calls(), flushed.result()), (1, Some(Ok(()))));
                if mode == FlushMode::Remote {
                    assert_eq!(contents(&memory), [4; 64], "{}", pair.name);
                }
                // Nothing is left to wait for.
                assert_eq!(pair.client.endpoint.flush(mode, None), Ok(Posted::Done), "{}", pair.name);
            }
        }
    }
}

#[test]
fn flush_of_an_interface() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(64, Access::REMOTE_WRITE);
        let interface = pair.client.interface.clone();
        assert_eq!(interface.flush(None), Ok(Posted::Done));
        for _ in 0..10 {
            let _ = pair.post("put", |e| e.put_short(&[1; 8], memory.address(), &key)).unwrap();
            let flushed = Watch::new(1);
            flushed.posted(pair.post("flush", |_| interface.flush(Some(&flushed.completion))));
            pair.until("flush", || flushed.is_done());
            assert_eq!((flushed.calls(), flushed.result()), (1, Some(Ok(()))));
            assert_eq!(interface.flush(None), Ok(Posted::Done));
        }
    }
}

/// From inside the handler: reply, and keep the order of the replies.
#[test]
fn handlers_post() {
    for mut pair in Pair::all() {
        let (requests, replies) = (1, 2);
        let answer = pair.server.endpoint.clone();
        pair.server
            .interface
            .set_handler(requests, move |message| {
                let (header, payload) = message.split_short().unwrap();
                assert_eq!(payload, header.to_le_bytes());
                assert_eq!(answer.am_short(replies, header * 2, &[]), Ok(Posted::Done));
            })
            .unwrap();
        let inbox = collect(&pair.client.interface, replies);
        for i in 0..100u64 {
            let _ = pair.post("request", |e| e.am_short(requests, i, &i.to_le_bytes())).unwrap();
        }
        pair.until("replies", || inbox.borrow().len() == 100);
        let got: Vec<_> =
            inbox.borrow().iter().map(|m| u64::from_le_bytes(m[..].try_into().unwrap())).collect();
        assert_eq!(got, (0..100).map(|i| 2 * i).collect::<Vec<_>>(), "{}", pair.name);
    }
}

/// A send from inside a handler is delivered after the handler returned, in order.
#[test]
fn handlers_do_not_nest() {
    for mut pair in Pair::all() {
        let depth = Rc::new(Cell::new(0));
        let order: Rc<RefCell<Vec<u64>>> = Rc::default();
        let endpoint =
            if pair.is_self() { pair.client.endpoint.clone() } else { pair.server.endpoint.clone() };
        for interface in [&pair.server.interface, &pair.client.interface] {
            let (depth, order, endpoint) = (Rc::clone(&depth), Rc::clone(&order), endpoint.clone());
            interface
                .set_handler(3, move |message| {
                    assert_eq!(depth.replace(1), 0, "a handler ran inside another");
                    let (header, _) = message.split_short().unwrap();
                    order.borrow_mut().push(header);
                    if header == 0 {
                        for i in 1..4 {
                            assert_eq!(endpoint.am_short(3, i, &[]), Ok(Posted::Done));
                        }
                    }
                    depth.set(0);
                })
                .unwrap();
        }
        let _ = pair.post("first", |e| e.am_short(3, 0, &[])).unwrap();
        pair.until("all", || order.borrow().len() == 4);
        assert_eq!(*order.borrow(), [0, 1, 2, 3], "{}", pair.name);
    }
}

/// Sends from inside completion callbacks keep order.
#[test]
fn completions_post() {
    for mut pair in Pair::all() {
        let inbox = collect(&pair.server.interface, 4);
        let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
        let endpoint = pair.client.endpoint.clone();
        let next = Rc::new(Cell::new(0u64));

        for i in 0..20u64 {
            let (endpoint, next) = (endpoint.clone(), Rc::clone(&next));
            let done = barewire::Completion::new(1, move |result| {
                assert_eq!(result, Ok(()));
                let header = next.replace(next.get() + 1);
                assert_eq!(endpoint.am_short(4, header, &[]), Ok(Posted::Done));
            });
            let slice = [source.slice(0, 8).unwrap()];
            let posted = pair.post("am_zcopy", |e| e.am_zcopy(6, &i.to_le_bytes(), &slice, Some(&done)));
            if posted == Ok(Posted::Done) {
                done.count_down(Ok(()));
            }
        }
        pair.until("all", || inbox.borrow().len() == 20);
        let got: Vec<_> = inbox.borrow().iter().map(|m| m[0]).collect();
        assert_eq!(got, (0..20).collect::<Vec<u8>>(), "{}", pair.name);
    }
}

#[test]
fn handlers_keep_messages() {
    for mut pair in Pair::all() {
        let kept: Rc<RefCell<Vec<barewire::KeptMessage>>> = Rc::default();
        let inner = Rc::clone(&kept);
        pair.server.interface.set_handler(7, move |message| inner.borrow_mut().push(message.keep())).unwrap();
        for round in 0..3u64 {
            for i in 0..20u64 {
                let payload = pattern(i as u32, 100);
                let _ = pair.post("send", |e| e.am_short(7, round * 20 + i, &payload)).unwrap();
            }
            pair.until("kept", || kept.borrow().len() == 20);
            for (i, message) in kept.borrow().iter().enumerate() {
                assert_eq!(message[..8], (round * 20 + i as u64).to_le_bytes());
                assert_eq!(message[8..], pattern(i as u32, 100));
            }
            kept.borrow_mut().clear();
        }
    }
}

/// A handler may replace itself while it runs.
#[test]
fn a_handler_replaces_itself() {
    for mut pair in Pair::all() {
        let inbox = Rc::new(RefCell::new(Vec::new()));
        let (seen, interface) = (Rc::clone(&inbox), pair.server.interface.clone());
        pair.server
            .interface
            .set_handler(8, move |_| {
                seen.borrow_mut().push("first");
                let seen = Rc::clone(&seen);
                interface.set_handler(8, move |_| seen.borrow_mut().push("second")).unwrap();
            })
            .unwrap();
        for _ in 0..3 {
            let _ = pair.post("send", |e| e.am_short(8, 0, &[])).unwrap();
        }
        pair.until("all", || inbox.borrow().len() == 3);
        assert_eq!(*inbox.borrow(), ["first", "second", "second"], "{}", pair.name);
    }
}
