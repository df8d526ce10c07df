//! Loom models of the rings and the wake flag: `RUSTFLAGS="--cfg loom" cargo test -p barewire-shm
//! --release models`.

use std::io;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::fifo::{self, FifoReceiver, FifoSender, Head};
use crate::line::Lines;
use crate::reply::NextSlot;
use crate::spsc::{self, Label, MESSAGE_WORDS, SpscReceiver, SpscSender};
use crate::table::{RegionInfo, RegionKey, View};
use crate::wake::WakeFlag;

const LABEL: Label = Label { tag: 1, length: 8 };

fn send(sender: &mut SpscSender, label: Label, header: u64, payload: &[u8]) -> bool {
    sender.send(label, header, payload, &NextSlot::default())
}

fn bounded(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 10_000;
    model.check(run);
}

#[test]
fn an_spsc_ring_delivers_in_order() {
    bounded(|| {
        let lines = Lines::private(spsc::lines(4));
        let theirs = lines.clone();
        let sending = thread::spawn(move || {
            let mut sender = SpscSender::new(&theirs).unwrap();
            for header in 0..5 {
                while !send(&mut sender, LABEL, header, &(header * 3).to_ne_bytes()) {
                    if !sender.renew().unwrap() {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut receiver = SpscReceiver::new(&lines).unwrap();
        for header in 0..5 {
            let message = loop {
                if let Some(label) = receiver.peek() {
                    let mut message = [0; MESSAGE_WORDS];
                    receiver.take(label, &mut message).unwrap();
                    break message;
                }
                thread::yield_now();
            };
            assert_eq!((message[0], message[1]), (header, header * 3));
        }
        sending.join().unwrap();
    });
}

/// In the second lap, short messages take both halves of a slot that had a long one, whose payload
/// looks like the second of them.
#[test]
fn payload_of_a_long_message_is_not_received_as_a_short_one() {
    const MESSAGES: u64 = 5;
    bounded(|| {
        let lines = Lines::private(spsc::lines(2));
        let theirs = lines.clone();
        let sending = thread::spawn(move || {
            let mut sender = SpscSender::new(&theirs).unwrap();
            let second_lap = LABEL.pack() | 2;
            let long: Vec<u8> =
                std::iter::repeat_n(second_lap.to_ne_bytes(), 6).flatten().collect();
            for header in 0..MESSAGES {
                let payload = if header == 0 { &long[..] } else { &long[..8] };
                let label = Label { length: payload.len() as u16, ..LABEL };
                while !send(&mut sender, label, header, payload) {
                    if !sender.renew().unwrap() {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut receiver = SpscReceiver::new(&lines).unwrap();
        let mut message = [0; MESSAGE_WORDS];
        for header in 0..MESSAGES {
            let label = loop {
                match receiver.peek() {
                    Some(label) => break label,
                    None => thread::yield_now(),
                }
            };
            let (_, length) = receiver.take(label, &mut message).unwrap();
            assert_eq!((message[0], length), (header, if header == 0 { 48 } else { 8 }));
        }
        sending.join().unwrap();
    });
}

#[test]
fn a_fifo_delivers_every_message_of_two_senders_once() {
    bounded(|| {
        // Two slots, so that the second lap begins.
        let lines = Lines::private(fifo::lines(2));
        let senders: Vec<_> = (1..=2)
            .map(|number| {
                let lines = lines.clone();
                thread::spawn(move || {
                    let mut sender = FifoSender::new(&lines, number).unwrap();
                    // Returns how many of two messages were sent.
                    (0..2).filter(|header| sender.send(LABEL, *header, &[number as u8; 8])).count()
                        as u64
                })
            })
            .collect();
        let mut receiver = FifoReceiver::new(&lines).unwrap();
        let mut came = [0, 0];
        let mut take = |receiver: &mut FifoReceiver| match receiver.peek(|_| false) {
            Head::Message(sender, label) => {
                let mut message = [0; MESSAGE_WORDS];
                receiver.read(label.length, &mut message);
                receiver.advance();
                assert_eq!(message[1], u64::from_ne_bytes([sender as u8; 8]));
                came[usize::from(sender) - 1] += 1;
                true
            }
            Head::Empty | Head::Claimed(_) => false,
            Head::Corrupt => panic!("corrupt"),
        };
        take(&mut receiver);
        thread::yield_now();
        take(&mut receiver);
        let sent: Vec<u64> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        while take(&mut receiver) {}
        assert_eq!(came[..], sent[..]);
        assert!(sent.iter().sum::<u64>() >= 2, "at least two messages must have been sent");
    });
}

#[test]
fn a_slot_is_filled_or_set_aside() {
    bounded(|| {
        let lines = Lines::private(fifo::lines(2));
        let theirs = lines.clone();
        let sending = thread::spawn(move || {
            let mut sender = FifoSender::new(&theirs, 1).unwrap();
            let claim = sender.claim().unwrap();
            sender.fill(&claim, LABEL, 7, &[1; 8])
        });
        let mut receiver = FifoReceiver::new(&lines).unwrap();
        let aside = receiver.peek(|_| false) == Head::Claimed(1) && receiver.set_aside(1);
        let filled = sending.join().unwrap();
        assert_eq!(filled, !aside);
    });
}

#[test]
fn no_wake_up_is_lost() {
    bounded(|| {
        let (lines, wake_flag) =
            (Lines::private(spsc::lines(4)), WakeFlag::new(Lines::private(1)).unwrap());
        let (theirs, their_flag) = (lines.clone(), wake_flag.clone());
        let sending = thread::spawn(move || {
            let mut sender = SpscSender::new(&theirs).unwrap();
            assert!(sender.renew().unwrap() && send(&mut sender, LABEL, 1, &[0; 8]));
            their_flag.must_wake()
        });
        let mut receiver = SpscReceiver::new(&lines).unwrap();
        // The kernel's barrier on the sender's core is modelled by a fence on both sides.
        let barrier = || -> io::Result<()> {
            loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
            Ok(())
        };
        wake_flag.arm(barrier).unwrap();
        let seen = receiver.peek().is_some();
        let rang = sending.join().unwrap();
        assert!(seen || rang, "a message arrived that was neither seen nor followed by a wake-up");
    });
}

/// The receiver sets the wake flag, polls, and sleeps only if there was no message, until the
/// messages of two senders have arrived.
#[test]
fn a_receiver_that_sleeps_again_is_woken_again() {
    bounded(|| {
        let wake_flag = WakeFlag::new(Lines::private(1)).unwrap();
        let rung = Arc::new(AtomicU64::new(0));
        let rings: Vec<Lines> = (0..2).map(|_| Lines::private(spsc::lines(4))).collect();
        let mut senders: Vec<_> = rings
            .iter()
            .map(|lines| {
                let (lines, wake_flag, rung) =
                    (lines.clone(), wake_flag.clone(), Arc::clone(&rung));
                thread::spawn(move || {
                    let mut sender = SpscSender::new(&lines).unwrap();
                    assert!(sender.renew().unwrap() && send(&mut sender, LABEL, 1, &[0; 8]));
                    if wake_flag.must_wake() {
                        rung.store(1, Ordering::Release);
                    }
                })
            })
            .collect();
        let mut receivers: Vec<_> =
            rings.iter().map(|lines| SpscReceiver::new(lines).unwrap()).collect();
        let (mut came, mut quiet) = (0, false);
        while came < 2 {
            if !(wake_flag.is_armed() && quiet) {
                rung.store(0, Ordering::Release);
                wake_flag
                    .arm(|| {
                        loom::sync::atomic::fence(Ordering::SeqCst);
                        Ok(())
                    })
                    .unwrap();
                quiet = true;
                for receiver in &mut receivers {
                    if receiver.peek().is_some() {
                        receiver.advance(1);
                        came += 1;
                        quiet = false;
                    }
                }
                continue;
            }
            // The receiver sleeps while both senders run to their end.
            senders.drain(..).for_each(|sender| sender.join().unwrap());
            assert_eq!(rung.load(Ordering::Acquire), 1, "no wake-up after {came} of 2 messages");
        }
    });
}

/// The owner frees memory only when no pin is left, and reuses the entry.
#[test]
fn memory_is_pinned_or_given_back() {
    bounded(|| {
        let view = View::private(1);
        let publish = |view: &View, address: u64| {
            view.publish(0, address.into(), RegionInfo { address, length: 1, rights: 0 });
            RegionKey { index: 0, token: address.into() }
        };
        let (old, new) = (publish(&view, 7), Arc::new(AtomicU64::new(0)));
        let theirs = (view.clone(), Arc::clone(&new));
        let initiator = thread::spawn(move || {
            let (view, given_back) = theirs;
            if let Some((pin, info)) = view.pin(old) {
                assert_eq!(info.address, 7);
                assert_eq!(given_back.load(Ordering::Relaxed), 0);
                thread::yield_now();
                assert_eq!(given_back.load(Ordering::Relaxed), 0);
                drop(pin);
            }
        });
        let mut is_free = view.reclaim(0);
        for _ in 0..2 {
            if !is_free {
                thread::yield_now();
                is_free = view.reclaim(0);
            }
        }
        if is_free {
            new.store(1, Ordering::Relaxed);
            let again = publish(&view, 8);
            let (_pin, info) = view.pin(again).unwrap();
            assert_eq!(info.address, 8);
        }
        initiator.join().unwrap();
        assert!(is_free || view.reclaim(0));
    });
}
