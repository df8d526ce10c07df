//! Operations that are complete need no further progress of the process that posted them.

use barewire::{Access, FlushMode, Posted};

use crate::place::Place;
use crate::support::{Pair, collect, contents, pattern, until};

/// Around the limits of short and copied messages, and of bytes that are sent together.
const SIZES: [usize; 7] = [0, 1, 2049, 4096, 8192, 8193, 40_000];

/// Makes progress until everything that was posted is complete, and then at the server only.
fn until_without_client(pair: &mut Pair, what: &str, mut done: impl FnMut() -> bool) {
    let endpoint = pair.client.endpoint.clone();
    pair.until("the flush", || endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done));
    let name = format!("{}: {what}", pair.name);
    if pair.is_self() {
        // Both ends have one worker.
        return pair.until(what, done);
    }
    until(&mut [&mut pair.server_worker], &name, &mut done);
}

pub(crate) fn completed_messages_arrive_while_the_sender_sleeps(place: &Place) {
    // The first round comes right after the connection.
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().am.max_short;
    let inbox = collect(&pair.server.interface, 3);
    for size in SIZES.into_iter().filter(|size| *size <= limit) {
        let data = pattern(size as u32, size);
        for header in 0..3 {
            pair.post("message", |e| e.am_short(3, header, &data)).unwrap();
        }
        until_without_client(&mut pair, "the messages", || inbox.borrow().len() == 3);
        for (header, message) in inbox.take().into_iter().enumerate() {
            assert!(message[..8] == (header as u64).to_le_bytes() && message[8..] == data);
        }
    }
}

pub(crate) fn completed_messages_from_memory_arrive_while_the_sender_sleeps(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().am.max_zcopy;
    let inbox = collect(&pair.server.interface, 3);
    let memory = pair.client.domain.allocate(40_000, Access::LOCAL_WRITE).unwrap();
    memory.write(0, &pattern(1, 40_000)).unwrap();
    for size in SIZES.into_iter().filter(|size| *size <= limit) {
        let slice = [memory.slice(0, size).unwrap()];
        for _ in 0..3 {
            let _ = pair.post("message", |e| e.am_zcopy(3, &[], &slice, None)).unwrap();
        }
        until_without_client(&mut pair, "the messages", || inbox.borrow().len() == 3);
        assert!(inbox.take().iter().all(|message| *message == contents(&memory)[..size]));
    }
}
