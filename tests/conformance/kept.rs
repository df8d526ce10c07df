//! Kept messages: each buffer belongs to one message at a time, whenever it is returned.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::config::Choice;
use barewire::{InterfaceConfig, KeptMessage, Message, PostError, TransportId};

use crate::panics::{both, until_through_panics, user_panics};
use crate::place::Place;
use crate::support::{Pair, pattern};

/// Keeps its message.
const KEEP: u8 = 7;
/// Keeps its message and drops it together with those that were kept before: see [`drop_all`].
const DROP: u8 = 8;
/// Keeps nothing.
const READ: u8 = 9;
/// The ways to drop them.
const WAYS: u64 = 6;

type Kept = Rc<RefCell<Vec<KeptMessage>>>;

/// Returns the number in a message whose bytes are those that were sent with that number.
fn number_of(data: &[u8]) -> u64 {
    let (number, payload) = data.split_first_chunk().unwrap();
    let number = u64::from_le_bytes(*number);
    assert_eq!(payload, pattern(number as u32, 100), "message {number}");
    number
}

/// Drops the message and the `older` ones in one of [`WAYS`] orders, two of which end in a panic.
fn drop_all(way: u64, message: KeptMessage, mut older: Vec<KeptMessage>, kept: &Kept) {
    match way {
        0 => {
            drop(message);
            drop(older);
        }
        1 => {
            drop(older);
            drop(message);
        }
        2 => {
            let last = older.pop();
            drop((older, message, last));
        }
        3 => {
            drop(message);
            drop(older);
            user_panics();
        }
        4 => {
            drop(older);
            let _unwound = message;
            user_panics();
        }
        _ => {
            drop(older);
            kept.borrow_mut().push(message);
        }
    }
}

/// Every message arrives once, in order and intact, when handlers return buffers of older messages
/// and of their own.
pub(crate) fn handlers_drop_kept_messages_in_any_order(place: &Place) {
    let config = InterfaceConfig::default()
        .receive_ring(4)
        .spare_receive_buffers(1)
        .max_receive_buffers(4)
        .bcopy_buffers(32);
    drop_in_any_order(place.pair_with(&config));
    if matches!(place.transport(), Some(TransportId::RcMlx5 | TransportId::RcVerbs)) {
        // With a receive queue for each endpoint.
        drop_in_any_order(place.pair_with(&config.shared_receive_queue(Choice::No)));
    }
}

/// Of 64 buffers, or the 32 of a connection of `shm`, messages that are kept leave 4. The receiver
/// uses these again and again, and its sender never finds it without one.
pub(crate) fn kept_messages_leave_the_other_buffers_in_use(place: &Place) {
    let buffers = if place.name == "shm" { 32 } else { 64 };
    let config = InterfaceConfig::default()
        .receive_ring(buffers)
        .spare_receive_buffers(0)
        .max_receive_buffers(buffers)
        .rnr_retry(0);
    use_what_is_left(place.pair_with(&config), buffers - 4);
    if matches!(place.transport(), Some(TransportId::RcMlx5 | TransportId::RcVerbs)) {
        use_what_is_left(place.pair_with(&config.shared_receive_queue(Choice::No)), buffers - 4);
    }
}

fn use_what_is_left(mut pair: Pair, keep: u32) {
    let (kept, seen) = (Kept::default(), Rc::new(Cell::new(0)));
    for id in [KEEP, READ] {
        let (kept, seen) = (Rc::clone(&kept), Rc::clone(&seen));
        let handler = move |message: Message<'_>| {
            assert_eq!(number_of(message.data()), seen.get(), "the next message");
            seen.set(seen.get() + 1);
            if id == KEEP {
                kept.borrow_mut().push(message.keep());
            }
        };
        pair.server.interface.set_handler(id, handler).unwrap();
    }
    let mut sent = 0;
    let mut send = |pair: &mut Pair, id: u8, count: u32| {
        for _ in 0..count {
            let payload = pattern(sent as u32, 100);
            pair.post("send", |endpoint| endpoint.am_short(id, sent, &payload)).unwrap();
            sent += 1;
            pair.until("the message", || seen.get() == sent);
        }
    };
    for round in 0..3 {
        send(&mut pair, KEEP, keep);
        send(&mut pair, READ, 40);
        let half = keep as usize / 2;
        kept.borrow_mut().drain(..half * (round % 2));
        send(&mut pair, READ, 40);
        kept.borrow_mut().clear();
        send(&mut pair, READ, 20);
    }
    assert!(pair.client.endpoint.error().is_none(), "{}", pair.name);
}

fn drop_in_any_order(mut pair: Pair) {
    let (kept, seen, way) = (Kept::default(), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for id in [KEEP, DROP, READ] {
        let (kept, seen, way) = (Rc::clone(&kept), Rc::clone(&seen), Rc::clone(&way));
        let handler = move |message: Message<'_>| {
            assert_eq!(number_of(message.data()), seen.get(), "the next message");
            seen.set(seen.get() + 1);
            match id {
                KEEP => kept.borrow_mut().push(message.keep()),
                DROP => {
                    let older = kept.take();
                    drop_all(way.get(), message.keep(), older, &kept);
                }
                _ => {}
            }
        };
        pair.server.interface.set_handler(id, handler).unwrap();
    }
    let (endpoint, mut sent, mut panics) = (pair.client.endpoint.clone(), 0, 0);
    let mut send = |pair: &mut Pair, id: u8, count: u64| {
        let (end, (name, mut workers)) = (sent + count, both(pair));
        panics += until_through_panics(&mut workers, &name, || {
            while sent < end {
                // Over `self` the handler runs, and may panic, inside the post.
                sent += 1;
                let posted = endpoint.am_short(id, sent - 1, &pattern(sent as u32 - 1, 100));
                if posted == Err(PostError::NoResource) {
                    sent -= 1;
                    break;
                }
                assert_eq!(posted, Ok(()), "{name}");
            }
            seen.get() == end
        });
    };
    for round in 0..8 * WAYS {
        way.set(round % WAYS);
        send(&mut pair, KEEP, 1 + round % 2);
        send(&mut pair, DROP, 1);
        kept.borrow_mut().clear();
        // More than the ring has.
        send(&mut pair, READ, 11);
        // As many buffers as may be in use at a time.
        send(&mut pair, KEEP, 3);
        let end = seen.get();
        assert!(kept.borrow().iter().map(|data| number_of(data)).eq(end - 3..end));
        kept.borrow_mut().clear();
    }
    assert_eq!(panics, 2 * 8, "{}", pair.name);
    assert_eq!(pair.server.interface.unhandled(), 0, "{}", pair.name);
}
