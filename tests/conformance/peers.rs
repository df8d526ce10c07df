//! Peers that have ended, are not ready, or are out of buffers.

use std::cell::RefCell;
use std::rc::Rc;

use std::time::{Duration, Instant};

use barewire::{InterfaceConfig, PostError};

use crate::place::Place;
use crate::support::{DEADLINE, collect, pattern, until};

pub(crate) fn a_receiver_that_becomes_ready_loses_nothing(place: &Place) {
    let config =
        InterfaceConfig::default().receive_ring(4).spare_receive_buffers(0).min_rnr_timer(1);
    let mut pair = place.pair_with(&config);
    let inbox = collect(&pair.server.interface, 1);
    let endpoint = pair.client.endpoint.clone();
    let sent = std::cell::Cell::new(0);
    let send = || {
        while sent.get() < 50 {
            match endpoint.am_short(1, sent.get(), &pattern(sent.get() as u32, 50)) {
                Ok(()) => sent.set(sent.get() + 1),
                Err(error) => return assert_eq!(error, PostError::NoResource),
            }
        }
    };
    // Time in which the server makes no progress.
    let start = std::time::Instant::now();
    until(&mut [&mut pair.worker], "a while", || {
        send();
        start.elapsed().as_millis() > 20
    });
    assert!(inbox.borrow().is_empty());
    pair.until("messages", || {
        send();
        inbox.borrow().len() == 50
    });
    for (i, message) in inbox.borrow().iter().enumerate() {
        assert_eq!(message[8..], pattern(i as u32, 50));
    }
}

/// A handler that keeps every buffer slows the sender down; after their release the sender
/// continues, and nothing is lost.
pub(crate) fn a_receiver_out_of_buffers_recovers(place: &Place) {
    let config =
        InterfaceConfig::default().receive_ring(4).spare_receive_buffers(2).min_rnr_timer(1);
    let mut pair = place.pair_with(&config);
    let start = Instant::now();
    let kept: Rc<RefCell<Vec<barewire::KeptMessage>>> = Rc::default();
    let inner = Rc::clone(&kept);
    pair.server
        .interface
        .set_handler(1, move |message| inner.borrow_mut().push(message.keep()))
        .unwrap();
    let endpoint = pair.client.endpoint.clone();
    let (mut sent, mut received) = (0u64, 0u64);
    while received < 300 {
        // Until no more messages arrive: the receiver lacks the kept buffers, or everything was
        // sent.
        let mut quiet = Instant::now();
        let mut before = (sent, kept.borrow().len());
        while quiet.elapsed() < Duration::from_millis(if sent == 300 { 2 } else { 5 }) {
            if sent < 300 && endpoint.am_short(1, sent, &[]).is_ok() {
                sent += 1;
            }
            pair.worker.progress();
            pair.server_worker.progress();
            std::thread::yield_now();
            let now = (sent, kept.borrow().len());
            if now != before {
                (quiet, before) = (Instant::now(), now);
            }
        }
        for message in kept.take() {
            assert_eq!(message[..8], received.to_le_bytes(), "{}", pair.name);
            received += 1;
        }
        assert!(start.elapsed() < DEADLINE, "{}: {received} of {sent}", pair.name);
    }
}
