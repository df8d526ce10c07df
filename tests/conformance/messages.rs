//! Active messages at their size limits, and operations inside handlers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::{
    Access, Endpoint, FlushMode, InterfaceConfig, MESSAGE_HEADROOM, PendingResult, PostError,
    TransportId,
};

use crate::place::Place;
use crate::support::{Watch, collect, expect_too_long, parts, pattern, sizes};

pub(crate) fn am_short(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().am.max_short;
    let inbox = collect(&pair.server.interface, 31);
    for size in sizes(limit) {
        let data = pattern(size as u32, size);
        let header = 0x0123_4567_89ab_cdef ^ size as u64;
        let posted = pair.post("am_short", |endpoint| endpoint.am_short(31, header, &data));
        assert_eq!(posted, Ok(()));
        pair.until("am_short", || inbox.borrow().len() == 1);
        let message = inbox.borrow_mut().pop().unwrap();
        assert_eq!(message, [&header.to_le_bytes()[..], &data].concat(), "{}: {size}", pair.name);
    }
    let endpoint = &pair.client.endpoint;
    expect_too_long(
        &pair,
        "am_short",
        limit,
        endpoint.am_short(0, 0, &vec![0; limit + 1]).map(drop),
    );
    assert_eq!(endpoint.am_short(32, 0, &[]), Err(PostError::UnknownHandlerId(32)));
    pair.flush(FlushMode::Local);
    assert!(inbox.borrow().is_empty());
}

pub(crate) fn am_short_iov(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().am.max_short;
    let inbox = collect(&pair.server.interface, 3);
    for size in sizes(limit) {
        let data = pattern(size as u32, size);
        let (front, back) = data.split_at(size / 3);
        for pieces in [
            &[&data[..]][..],
            &[&[], front, &[], back],
            &[front, &back[..back.len() / 2], &back[back.len() / 2..]],
        ] {
            let header = 0xfedc_ba98_7654_3210 ^ size as u64;
            let posted =
                pair.post("am_short_iov", |endpoint| endpoint.am_short_iov(3, header, pieces));
            assert_eq!(posted, Ok(()));
            pair.until("am_short_iov", || inbox.borrow().len() == 1);
            let message = inbox.borrow_mut().pop().unwrap();
            assert_eq!(
                message,
                [&header.to_le_bytes()[..], &data].concat(),
                "{}: {size}",
                pair.name
            );
        }
    }
    let posted = pair.post("nothing", |endpoint| endpoint.am_short_iov(3, 5, &[]));
    assert_eq!(posted, Ok(()));
    pair.until("nothing", || inbox.borrow().len() == 1);
    let endpoint = &pair.client.endpoint;
    let answer = endpoint.am_short_iov(3, 0, &[&vec![0; limit], &[0]]);
    expect_too_long(&pair, "am_short_iov", limit, answer);
    assert_eq!(endpoint.am_short_iov(32, 0, &[&[1]]), Err(PostError::UnknownHandlerId(32)));
}

pub(crate) fn am_bcopy(place: &Place) {
    let mut pair = place.pair();
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
    let answer = pair.post("am_bcopy", |endpoint| {
        endpoint.am_bcopy(0, |buffer| {
            assert_eq!(buffer.len(), limit);
            limit + 1
        })
    });
    let endpoint = &pair.client.endpoint;
    expect_too_long(&pair, "am_bcopy", limit, answer.map(drop));
    let never = |_: &mut [u8]| -> usize { panic!("nothing was posted") };
    assert_eq!(endpoint.am_bcopy(200, never), Err(PostError::UnknownHandlerId(200)));
}

pub(crate) fn am_zcopy(place: &Place) {
    let mut pair = place.pair();
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
                watch.posted(pair.post("am_zcopy", |endpoint| {
                    endpoint.am_zcopy(5, &header, &slices, completion)
                }));
                pair.until("am_zcopy", || watch.is_done() && inbox.borrow().len() == 1);
                assert_eq!(watch.result(), Some(Ok(())));
                let message = inbox.borrow_mut().pop().unwrap();
                assert_eq!(
                    message,
                    [&header[..], &data].concat(),
                    "{}: {header_size}+{size}",
                    pair.name
                );
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

pub(crate) fn messages_without_handler_are_counted(place: &Place) {
    let mut pair = place.pair();
    pair.post("am_short", |endpoint| endpoint.am_short(9, 1, &[])).unwrap();
    let interface = pair.server.interface.clone();
    pair.until("count", || interface.unhandled() == 1);
}

/// Inside the handler: replies, and the order of the replies.
pub(crate) fn handlers_post(place: &Place) {
    let mut pair = place.pair();
    let (requests, replies) = (1, 2);
    let answer = pair.server.endpoint.clone();
    pair.server
        .interface
        .set_handler(requests, move |message| {
            let (header, payload) = message.split_short().unwrap();
            assert_eq!(payload, header.to_le_bytes());
            // Over datagrams the window may be full.
            match answer.am_short(replies, header * 2, &[]) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, PostError::NoResource);
                    let later =
                        move |answer: &Endpoint| match answer.am_short(replies, header * 2, &[]) {
                            Ok(()) => PendingResult::Done,
                            Err(_) => PendingResult::Again,
                        };
                    answer.pending_add(later).unwrap();
                }
            }
        })
        .unwrap();
    let inbox = collect(&pair.client.interface, replies);
    for i in 0..100u64 {
        pair.post("request", |e| e.am_short(requests, i, &i.to_le_bytes())).unwrap();
    }
    pair.until("replies", || inbox.borrow().len() == 100);
    let got: Vec<_> =
        inbox.borrow().iter().map(|m| u64::from_le_bytes(m[..].try_into().unwrap())).collect();
    assert_eq!(got, (0..100).map(|i| 2 * i).collect::<Vec<_>>(), "{}", pair.name);
}

/// A message sent inside a handler is delivered after the handler has returned, in order.
pub(crate) fn handlers_do_not_nest(place: &Place) {
    let mut pair = place.pair();
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
                        assert_eq!(endpoint.am_short(3, i, &[]), Ok(()));
                    }
                }
                depth.set(0);
            })
            .unwrap();
    }
    pair.post("first", |e| e.am_short(3, 0, &[])).unwrap();
    pair.until("all", || order.borrow().len() == 4);
    assert_eq!(*order.borrow(), [0, 1, 2, 3], "{}", pair.name);
}

pub(crate) fn handlers_keep_messages(place: &Place) {
    let mut pair = place.pair();
    let kept: Rc<RefCell<Vec<barewire::KeptMessage>>> = Rc::default();
    let inner = Rc::clone(&kept);
    pair.server
        .interface
        .set_handler(7, move |message| inner.borrow_mut().push(message.keep()))
        .unwrap();
    // Around 20 bytes, the longest payload that fits in a CQE behind headers of 4 and 8 bytes.
    let payload = |i: u64| pattern(i as u32, [100, 0, 1, 19, 20, 21][i as usize % 6]);
    for round in 0..3u64 {
        for i in 0..20u64 {
            pair.post("send", |e| e.am_short(7, round * 20 + i, &payload(i))).unwrap();
        }
        pair.until("kept", || kept.borrow().len() == 20);
        for (i, message) in (0..).zip(kept.borrow().iter()) {
            assert_eq!(message[..8], (round * 20 + i).to_le_bytes());
            assert_eq!(message[8..], payload(i));
        }
        // A handler gets the kept messages later, and keeps copies of them.
        let later = kept.take();
        let copies: Vec<_> = later
            .iter()
            .map(|kept| kept.handle(|message| (message.data().to_vec(), message.keep())))
            .collect();
        for (kept, (data, copy)) in later.iter().zip(&copies) {
            assert_eq!((&data[..], &copy[..]), (&kept[..], &kept[..]));
        }
        drop(later);
        for (data, copy) in &copies {
            assert_eq!(copy[..], data[..]);
        }
    }
}

/// While a handler has a message, other messages arrive, and it posts as many as it can. Neither
/// changes the message.
pub(crate) fn a_message_stays_while_its_handler_posts(place: &Place) {
    const COUNT: u64 = 300;
    let config = InterfaceConfig::default()
        .receive_ring(16)
        .spare_receive_buffers(4)
        .max_receive_buffers(16)
        .send_ring(32)
        .bcopy_buffers(32);
    let mut pair = place.pair_with(&config);
    let endpoint =
        if pair.is_self() { pair.client.endpoint.clone() } else { pair.server.endpoint.clone() };
    let payload = |number: u64| pattern(number as u32, number as usize % 48);
    let handled = Rc::new(Cell::new(0_u64));
    let inner = Rc::clone(&handled);
    let handler = move |message: barewire::Message<'_>| {
        let number = inner.get();
        if number.is_multiple_of(8) {
            while endpoint.am_short(5, u64::MAX, &[0xff; 40]).is_ok() {}
            // The device completes them meanwhile.
            (0..100).for_each(|_| std::thread::yield_now());
        }
        let (header, data) = message.split_short().unwrap();
        assert_eq!((header, data), (number, &payload(number)[..]));
        inner.set(number + 1);
    };
    pair.server.interface.set_handler(4, handler).unwrap();
    for interface in [&pair.server.interface, &pair.client.interface] {
        interface.set_handler(5, |_| {}).unwrap();
    }
    for number in 0..COUNT {
        pair.post("send", |e| e.am_short(4, number, &payload(number))).unwrap();
    }
    pair.until("all", || handled.get() == COUNT);
}

/// A handler keeps the messages whose headroom is lent, with a number in it, and copies the others.
/// It releases none, and yet receives all.
pub(crate) fn a_handler_that_hoards_copies(place: &Place) {
    const COUNT: u64 = 300;
    enum Held {
        Kept(barewire::KeptMessage),
        Copied(Vec<u8>),
    }
    let config = InterfaceConfig::default()
        .receive_ring(16)
        .spare_receive_buffers(4)
        .max_receive_buffers(48)
        .bcopy_buffers(32);
    let mut pair = place.pair_with(&config);
    let held: Rc<RefCell<Vec<Held>>> = Rc::default();
    let inner = Rc::clone(&held);
    let handler = move |message: barewire::Message<'_>| {
        let number = inner.borrow().len() as u64;
        let mut copy = Vec::new();
        let kept = message.keep_if(|headroom, data| {
            headroom.fill(number as u8);
            if let Some(end) = headroom.last_chunk_mut() {
                *end = number.to_le_bytes();
                return true;
            }
            copy = data.to_vec();
            false
        });
        inner.borrow_mut().push(kept.map_or(Held::Copied(copy), Held::Kept));
    };
    pair.server.interface.set_handler(7, handler).unwrap();
    for round in 0..2 {
        for i in 0..COUNT {
            let payload = pattern(i as u32, 100);
            pair.post("send", |e| e.am_short(7, i, &payload)).unwrap();
        }
        pair.until("all", || held.borrow().len() == COUNT as usize);
        let mut kept = 0;
        for (i, held) in held.borrow_mut().iter_mut().enumerate() {
            let message = match held {
                Held::Kept(message) => {
                    let headroom = message.headroom();
                    let (rest, end) = headroom.split_last_chunk().unwrap();
                    assert_eq!(u64::from_le_bytes(*end), i as u64, "{}", pair.name);
                    assert_eq!(rest, [i as u8; MESSAGE_HEADROOM - 8], "{}", pair.name);
                    kept += 1;
                    &message[..]
                }
                Held::Copied(message) => message,
            };
            assert_eq!(message[..8], (i as u64).to_le_bytes(), "{}", pair.name);
            assert_eq!(message[8..], pattern(i as u32, 100), "{}", pair.name);
        }
        let transport = pair.server.interface.transport();
        let lends = !matches!(transport, TransportId::Shm | TransportId::Tcp);
        assert_eq!(kept > 0, lends, "{} {round}: {kept} kept", pair.name);
        assert!(kept < COUNT as usize, "{}", pair.name);
        held.borrow_mut().clear();
    }
}

/// A handler may replace itself while it runs.
pub(crate) fn a_handler_replaces_itself(place: &Place) {
    let mut pair = place.pair();
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
        pair.post("send", |e| e.am_short(8, 0, &[])).unwrap();
    }
    pair.until("all", || inbox.borrow().len() == 3);
    assert_eq!(*inbox.borrow(), ["first", "second", "second"], "{}", pair.name);
}
