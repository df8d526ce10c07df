//! Extended atomics: 4 and 8 bytes, under masks, atomic against the host's own.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Completion, Connection, Node, Pair, Region, Wqe};
use barewire_hca::Faults;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::{
    MaskedCompareSwap32, MaskedCompareSwap64, MaskedFetchAdd32, MaskedFetchAdd64, Opcode,
};
use zerocopy::IntoBytes;

/// Runs one operation on `memory`, and gives what it fetched.
fn run(
    pair: &mut Pair,
    memory: &Region,
    offset: u64,
    opcode: Opcode,
    log_bytes: u8,
    operands: &[u8],
) -> Vec<u8> {
    let result = pair.a.region(8);
    let wqe =
        Wqe::new(opcode).remote(memory.address() + offset, memory.key).masked(log_bytes, operands);
    pair.qa.post(&wqe.data(result.address(), 1 << log_bytes, result.key));
    pair.settle();
    let done = pair.qa.send_cq.poll().unwrap();
    assert!(done.is_ok(), "{done:?}");
    result.memory.read(0, 1 << log_bytes)
}

#[test]
fn four_bytes_are_four_bytes() {
    let mut pair = Pair::new(&Connection::default());
    let memory = pair.b.region(16);
    memory.memory.write(0, &[[0x11; 4], 0xffff_fffe_u32.to_ne_bytes(), [0x22; 4], [0; 4]].concat());
    let add = MaskedFetchAdd32 { add: 3.into(), ..MaskedFetchAdd32::default() };
    let fetched = run(&mut pair, &memory, 4, Opcode::MaskedFetchAdd, 2, add.as_bytes());
    // The result is big-endian in every endianness mode, the memory is not.
    assert_eq!(fetched, 0xffff_fffe_u32.to_be_bytes());
    assert_eq!(memory.memory.read(0, 12), [[0x11; 4], 1_u32.to_ne_bytes(), [0x22; 4]].concat());
    let swap = MaskedCompareSwap32 {
        swap: 0xaaaa_bbbb.into(),
        compare: 0x1234_0001.into(),
        swap_mask: 0xffff_0000.into(),
        compare_mask: 0xffff.into(),
    };
    let fetched = run(&mut pair, &memory, 4, Opcode::MaskedCompareSwap, 2, swap.as_bytes());
    assert_eq!(fetched, 1_u32.to_be_bytes());
    assert_eq!(memory.memory.read(4, 4), 0xaaaa_0001_u32.to_ne_bytes());
    let miss = MaskedCompareSwap32 { compare: 2.into(), compare_mask: 3.into(), ..swap };
    let fetched = run(&mut pair, &memory, 4, Opcode::MaskedCompareSwap, 2, miss.as_bytes());
    assert_eq!(fetched, 0xaaaa_0001_u32.to_be_bytes());
    assert_eq!(
        memory.memory.read(0, 12),
        [[0x11; 4], 0xaaaa_0001_u32.to_ne_bytes(), [0x22; 4]].concat()
    );
}

#[test]
fn eight_bytes_in_fields_and_under_masks() {
    let mut pair = Pair::new(&Connection::default());
    let memory = pair.b.region(8);
    memory.memory.write(0, &0x00ff_ffff_0000_ffff_u64.to_ne_bytes());
    let boundary = 1 << 15 | 1 << 31 | 1 << 47;
    let add =
        MaskedFetchAdd64 { add: 0x0001_0001_0001_0001.into(), field_boundary: boundary.into() };
    let fetched = run(&mut pair, &memory, 0, Opcode::MaskedFetchAdd, 3, add.as_bytes());
    assert_eq!(fetched, 0x00ff_ffff_0000_ffff_u64.to_ne_bytes());
    assert_eq!(memory.memory.read(0, 8), 0x0100_0000_0001_0000_u64.to_ne_bytes());
    let swap = MaskedCompareSwap64 {
        swap: u64::MAX.into(),
        compare: 0x0100_0000_0000_0000.into(),
        swap_mask: 0xf0.into(),
        compare_mask: (0xff << 56).into(),
    };
    run(&mut pair, &memory, 0, Opcode::MaskedCompareSwap, 3, swap.as_bytes());
    assert_eq!(memory.memory.read(0, 8), 0x0100_0000_0001_00f0_u64.to_ne_bytes());
    // Full masks make the standard operation, which goes over the wire as one.
    let plain = MaskedCompareSwap64 {
        swap: 5.into(),
        compare: 0x0100_0000_0001_00f0.into(),
        swap_mask: u64::MAX.into(),
        compare_mask: u64::MAX.into(),
    };
    run(&mut pair, &memory, 0, Opcode::MaskedCompareSwap, 3, plain.as_bytes());
    assert_eq!(memory.memory.read(0, 8), 5_u64.to_ne_bytes());
    assert_eq!(pair.b.device.counters().atomics, 3);
}

#[test]
fn a_misaligned_or_misnamed_one_fails() {
    for (offset, modifier, want) in
        [(2, 2, Syndrome::RemoteInvalidRequest), (4, 3, Syndrome::RemoteInvalidRequest)]
    {
        let mut pair = Pair::new(&Connection::default());
        let (memory, result) = (pair.b.region(16), pair.a.region(8));
        let wqe = Wqe::new(Opcode::MaskedFetchAdd).remote(memory.address() + offset, memory.key);
        pair.qa.post(
            &wqe.masked(modifier, &[0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 1]).data(
                result.address(),
                1 << modifier,
                result.key,
            ),
        );
        pair.settle();
        assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, Some(want));
    }
}

#[test]
fn lost_packets_do_not_add_twice() {
    for seed in 0..20 {
        let faults = Faults::default().drop(0.1).duplicate(0.1).reorder(0.1).seed(seed);
        let mut pair = Pair::with_faults(&Connection::default(), faults.clone(), faults);
        let (memory, result) = (pair.b.region(8), pair.a.region(8));
        let add = MaskedFetchAdd64 { add: 1.into(), field_boundary: 0x8000.into() };
        for _ in 0..50 {
            let wqe = Wqe::new(Opcode::MaskedFetchAdd).remote(memory.address(), memory.key);
            pair.qa.post(&wqe.masked(3, add.as_bytes()).data(result.address(), 8, result.key));
        }
        pair.settle();
        assert!(pair.qa.send_cq.drain().iter().all(Completion::is_ok));
        assert_eq!(memory.memory.read(0, 8), 50_u64.to_ne_bytes(), "seed {seed}");
    }
}

#[test]
fn the_host_adds_to_the_same_word_and_nothing_is_lost() {
    const EACH: u64 = 1000;
    let mut pair = Pair::over(
        Node::threaded(Faults::default()),
        Node::threaded(Faults::default()),
        &Connection::default(),
    );
    let (memory, result) = (pair.b.region(8), pair.a.region(8));
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (word, stop) = (memory.memory.word(0), &stop);
        scope.spawn(move || {
            // The upper field is the host's, the lower one the device's: every swap covers all
            // eight bytes.
            while stop.load(Ordering::Relaxed) == 0 {
                word.fetch_add(1 << 32, Ordering::Relaxed);
            }
        });
        let add = MaskedFetchAdd64 { add: 1.into(), field_boundary: (1 << 31).into() };
        let (mut posted, mut done) = (0, 0);
        while done < EACH {
            while posted < EACH && posted - done < 32 {
                let wqe = Wqe::new(Opcode::MaskedFetchAdd).remote(memory.address(), memory.key);
                pair.qa.post(&wqe.masked(3, add.as_bytes()).data(result.address(), 8, result.key));
                posted += 1;
            }
            assert!(pair.qa.send_cq.wait().is_ok());
            done += 1;
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert_eq!(memory.memory.word(0).load(Ordering::Relaxed) & 0xffff_ffff, EACH);
}
