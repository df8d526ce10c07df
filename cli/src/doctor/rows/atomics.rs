//! Atomics, with the fetched and the stored values compared.

use barewire::{
    AtomicOp, AtomicOperations as Has, AtomicWord, Completion, FetchResult, Memory, Posted,
};

use super::super::outcome::{Checked, Halt, ensure};
use super::super::target::Target;
use super::session;
use crate::session::{Remote, Session};

/// The first value of every word. No two bytes are equal, so swapped ones are found.
const START: u64 = 0x0123_4567_89ab_cdef;
const OPERAND: u64 = 0xf0e1_d2c3_b4a5_9687;

/// Every atomic that the transport has, on words of 4 and 8 bytes.
pub(in super::super) fn atomics(target: &Target) -> Checked {
    let mut session = session(target)?;
    let attributes = session.attributes().clone();
    if attributes.atomic32.is_empty() && attributes.atomic64.is_empty() {
        return Err(Halt::Skipped("the transport or the device has none".to_owned()));
    }
    let memory = session.allocate(64)?;
    let remote = session.exchange(&memory, 64)?;
    let of_32 = words(&mut session, &memory, &remote, attributes.atomic32, |word| word as u32)?;
    let of_64 = words(&mut session, &memory, &remote, attributes.atomic64, |word| word)?;
    Ok(format!("{of_32} operations on 4 bytes, {of_64} on 8 bytes: values right"))
}

/// Tests the operations on words of one size, and returns their number.
fn words<W: AtomicWord + std::fmt::Debug>(
    session: &mut Session<'_>,
    memory: &Memory,
    remote: &Remote,
    has: Has,
    word: fn(u64) -> W,
) -> Checked<usize> {
    let (old, operand) = (word(START), word(OPERAND));
    let (a, b): (u64, u64) = (old.into(), operand.into());
    let all: u64 = word(u64::MAX).into();
    let hit = AtomicOp::CompareSwap { compare: old, swap: operand };
    let miss = AtomicOp::CompareSwap { compare: operand, swap: operand };
    let cases = [
        (AtomicOp::Add(operand), Has::ADD, Has::FETCH_ADD, a.wrapping_add(b) & all),
        (AtomicOp::And(operand), Has::AND, Has::FETCH_AND, a & b),
        (AtomicOp::Or(operand), Has::OR, Has::FETCH_OR, a | b),
        (AtomicOp::Xor(operand), Has::XOR, Has::FETCH_XOR, a ^ b),
        (AtomicOp::Swap(operand), Has::empty(), Has::SWAP, b),
        (hit, Has::empty(), Has::COMPARE_SWAP, b),
        (miss, Has::empty(), Has::COMPARE_SWAP, a),
    ];
    let mut count = 0;
    for (op, posts, fetches, after) in cases {
        for (need, fetch) in [(posts, false), (fetches, true)] {
            if need.is_empty() || !has.contains(need) {
                continue;
            }
            let during = format!("{op:?} on {} bytes", size_of::<W>());
            memory.write(0, &[0x5a; 24])?;
            memory.write(8, &START.to_ne_bytes()[..size_of::<W>()])?;
            let (result, completion) = (FetchResult::new(), Completion::counter());
            let endpoint = session.endpoint.clone();
            let posted = session.wait.post(&during, || {
                let address = remote.address + 8;
                if fetch {
                    endpoint.atomic_fetch(op, address, &remote.key, &result, Some(&completion))
                } else {
                    endpoint.atomic_post(op, address, &remote.key).map(|()| Posted::Done)
                }
            })?;
            if posted == Posted::InProgress {
                session.wait.complete(&during, &completion, 8)?;
            }
            session.flush(&during, 8)?;
            let fetched = result.get() & all;
            ensure(!fetch || fetched == a, || {
                format!("{during}: fetched {fetched:#x} instead of {a:#x}")
            })?;
            let mut bytes = [0; 24];
            memory.read(0, &mut bytes)?;
            let mut expected = [0x5a; 24];
            expected[8..8 + size_of::<W>()].copy_from_slice(&after.to_ne_bytes()[..size_of::<W>()]);
            ensure(bytes == expected, || {
                format!("{during}: memory is {bytes:02x?} instead of {expected:02x?}")
            })?;
            count += 1;
        }
    }
    Ok(count)
}
