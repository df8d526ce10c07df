//! Loom models of the order between the driver and the device, through the barriers of
//! [`crate::barrier`]: `RUSTFLAGS="--cfg loom" cargo test -p barewire-mlx5 --release --lib models`.
//!
//! The device orders its own accesses: it reads what a doorbell announces after the doorbell, and
//! writes the owner bit of a completion last.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed, fence};
use loom::thread;

use crate::barrier;

fn none() {}

/// A queue of one WQE: its bytes, the doorbell record and the register.
fn doorbell(before_record: fn(), before_doorbell: fn()) {
    loom::model(move || {
        let words: Arc<[AtomicU64; 4]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let device = Arc::clone(&words);
        let device = thread::spawn(move || {
            let [first, last, record, register] = &*device;
            let rung = register.load(Relaxed);
            fence(loom::sync::atomic::Ordering::Acquire);
            let recorded = record.load(Relaxed);
            fence(loom::sync::atomic::Ordering::Acquire);
            let wqe = (first.load(Relaxed), last.load(Relaxed));
            assert!(recorded >= rung, "the record is older than the doorbell");
            assert!(
                recorded == 0 || wqe == (7, 8),
                "the record announces bytes that are not there"
            );
        });
        let [first, last, record, register] = &*words;
        first.store(7, Relaxed);
        last.store(8, Relaxed);
        before_record();
        record.store(1, Relaxed);
        before_doorbell();
        register.store(1, Relaxed);
        device.join().unwrap();
    });
}

#[test]
fn the_device_reads_what_a_doorbell_announces() {
    doorbell(barrier::wqe_before_doorbell_record, barrier::doorbell_record_before_doorbell);
}

#[test]
#[should_panic(expected = "the record announces bytes that are not there")]
fn without_the_first_barrier_it_reads_older_bytes() {
    doorbell(none, barrier::doorbell_record_before_doorbell);
}

#[test]
#[should_panic(expected = "the record is older than the doorbell")]
fn without_the_second_barrier_it_reads_an_older_record() {
    doorbell(barrier::wqe_before_doorbell_record, none);
}

/// A completion: data of the message, a word of the CQE, and the owner.
fn completion(before_completion: fn()) {
    loom::model(move || {
        let words: Arc<[AtomicU64; 3]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let device = Arc::clone(&words);
        let device = thread::spawn(move || {
            let [data, entry, owner] = &*device;
            data.store(7, Relaxed);
            entry.store(8, Relaxed);
            fence(loom::sync::atomic::Ordering::Release);
            owner.store(1, Relaxed);
        });
        let [data, entry, owner] = &*words;
        if owner.load(Relaxed) == 1 {
            before_completion();
            assert_eq!((data.load(Relaxed), entry.load(Relaxed)), (7, 8), "an older completion");
        }
        device.join().unwrap();
    });
}

#[test]
fn a_completion_is_read_after_its_owner_bit() {
    completion(barrier::owner_before_completion);
}

#[test]
#[should_panic(expected = "an older completion")]
fn without_the_barrier_an_older_completion_is_read() {
    completion(none);
}
