//! Behaviours specific to `rc_verbs`: the receive queue that endpoints share. On the machine's
//! devices, if `BAREWIRE_TEST_TRANSPORT` names it.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::config::Choice;
use barewire::{Endpoint, InterfaceConfig, KeptMessage};

use crate::support::{Pair, Side, collect, connect, headers};

const ENDPOINTS: u32 = 8;
const RING: u32 = 4;

/// Two interfaces whose endpoints share a receive queue, if the transport is to be tested.
fn shared() -> Vec<Pair> {
    if std::env::var("BAREWIRE_TEST_TRANSPORT").ok().as_deref() != Some("rc_verbs") {
        return vec![];
    }
    Pair::rc(
        &InterfaceConfig::default()
            .shared_receive_queue(Choice::Yes)
            .receive_ring(RING)
            .spare_receive_buffers(1)
            .max_endpoints(ENDPOINTS)
            .send_ring(16)
            .min_rnr_timer(1),
    )
}

fn more(pair: &Pair, count: u32) -> Vec<[Side; 2]> {
    let sides = (0..count).map(|_| {
        let (client, server) = (pair.client.another(), pair.server.another());
        connect(&client, &server);
        [client, server]
    });
    sides.collect()
}

#[test]
fn all_endpoints_receive_from_one_queue() {
    for mut pair in shared() {
        let inbox = collect(&pair.server.interface, 1);
        let others = more(&pair, ENDPOINTS - 1);
        // More messages than the queue has buffers at first, without releasing any.
        for (place, [client, _]) in (0..).zip(&others) {
            for header in 0..10 {
                client.endpoint.am_short(1, place * 10 + header, &[7; 100]).unwrap();
            }
        }
        pair.until("messages", || inbox.borrow().len() == 10 * others.len());
        let mut got = headers(&inbox);
        // The messages of one endpoint are in order.
        got.sort_by_key(|header| header / 10);
        assert_eq!(got, (0..10 * others.len() as u64).collect::<Vec<_>>(), "{}", pair.name);
    }
}

/// The buffers of all endpoints, and no more, can be kept at the same time.
#[test]
fn buffers_grow_up_to_those_of_all_endpoints() {
    const ALL: usize = ((RING + 1) * ENDPOINTS) as usize;
    for mut pair in shared() {
        let kept: Rc<RefCell<Vec<KeptMessage>>> = Rc::default();
        let inner = Rc::clone(&kept);
        pair.server
            .interface
            .set_handler(1, move |message| inner.borrow_mut().push(message.keep()))
            .unwrap();
        let endpoint = pair.client.endpoint.clone();
        let (mut sent, mut received) = (0_u64, 0_u64);
        while received < 2 * ALL as u64 {
            pair.until("all buffers are kept", || {
                while sent < 2 * ALL as u64 && endpoint.am_short(1, sent, &[]).is_ok() {
                    sent += 1;
                }
                kept.borrow().len() == ALL
            });
            for message in kept.take() {
                assert_eq!(message[..8], received.to_le_bytes(), "{}", pair.name);
                received += 1;
            }
        }
    }
}

/// Endpoints are created and dropped during messages, more often than there are buffers: no buffer
/// is lost.
#[test]
fn endpoints_that_go_leave_their_buffers() {
    for mut pair in shared() {
        let inbox = collect(&pair.server.interface, 1);
        let interfaces = [pair.client.interface.clone(), pair.server.interface.clone()];
        for round in 0..40 {
            let [client, server] = interfaces.clone().map(|interface| {
                // Earlier endpoints may not be closed yet.
                let mut endpoint = None;
                pair.until("room", || {
                    endpoint = Endpoint::new(&interface).ok();
                    endpoint.is_some()
                });
                Side { domain: pair.client.domain.clone(), interface, endpoint: endpoint.unwrap() }
            });
            connect(&client, &server);
            while client.endpoint.am_bcopy(2, |data| data.len().min(8000)).is_ok() {}
            if round % 2 == 0 {
                // There is no handler for it.
                let before = pair.server.interface.unhandled();
                pair.until("one of them", || server.interface.unhandled() > before);
            }
            drop((client, server));
            pair.post("message", |endpoint| endpoint.am_short(1, round, &[])).unwrap();
            pair.until("message", || inbox.borrow().len() as u64 == round + 1);
        }
    }
}
