//! A list that keeps its buffers, followed by a device that reads a link as soon as it owns the
//! WQE.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const ENTRIES: u32 = 16;
const WQE: usize = wqe_bytes(1);

/// Ring and doorbell record.
#[repr(align(64))]
struct Memory([u64; (ENTRIES as usize * WQE) / 8 + 1]);

/// What the device knows.
struct Device {
    memory: NonNull<u8>,
    /// The WQE that it owns after those that it owns already.
    next: u16,
    /// WQEs that were published, modulo 2^16.
    counter: u16,
    owned: VecDeque<u16>,
}

impl Device {
    /// Reads the doorbell record, and the links of the WQEs that it owns from now on.
    fn read(&mut self) {
        // SAFETY: the record and the links are in the memory of the test, which outlives the
        // device, and which nothing accesses meanwhile.
        unsafe {
            let record = self.memory.add(ENTRIES as usize * WQE).cast::<u32>().read();
            while self.counter != u32::from_be(record) as u16 {
                self.owned.push_back(self.next);
                let header = self.memory.add(usize::from(self.next) * WQE);
                let header = header.cast::<SharedReceiveHeader>().read();
                self.next = header.next_wqe_index.get();
                self.counter = self.counter.wrapping_add(1);
            }
        }
    }
}

/// What a receiver does while it handles a message.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Nothing.
    Read,
    /// Keeps the message.
    Keep,
    /// Keeps the message and drops it.
    KeepAndDrop,
    /// Drops a kept message.
    Drop(usize),
    /// Gives the list so many more buffers before the message is handled, if it has room for them.
    Grow(u32),
    /// Is not the next message: it is one from further back.
    Jump(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Read),
        2 => Just(Step::Keep),
        1 => Just(Step::KeepAndDrop),
        2 => (0..8_usize).prop_map(Step::Drop),
        1 => (0..3_u32).prop_map(Step::Grow),
        1 => (0..4_usize).prop_map(Step::Jump),
    ];
    proptest::collection::vec(step, 1..300)
}

/// The receiver, with what it has to do right.
struct Receiver {
    queue: SharedReceiveQueue,
    device: Device,
    kept: Vec<u16>,
    /// The WQE whose message is handled.
    current: Option<u16>,
    waiting: u32,
}

impl Receiver {
    fn publish(&mut self) {
        self.queue.publish();
        self.waiting = 0;
        assert!(self.queue.is_published());
        self.device.read();
        let owned = &self.device.owned;
        for index in self.kept.iter().chain(&self.current) {
            assert!(!owned.contains(index), "the device owns {index}, which is in use");
        }
        let mut distinct: Vec<_> = owned.iter().chain(&self.kept).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), owned.len() + self.kept.len(), "a WQE is in the list twice");
    }

    /// Posts the buffer of a kept message.
    fn give_back(&mut self, index: u16) {
        if self.queue.is_published() {
            assert!(!self.queue.recycle_before(index.into()), "nothing waits");
            assert!(self.queue.recycle(index.into()));
            self.publish();
        } else {
            assert!(self.queue.recycle_before(index.into()));
        }
    }

    /// Keeps the message of the WQE, which was posted before it was handled if `early`.
    fn keep(&mut self, index: u16, early: bool) {
        assert_eq!(self.queue.take_back(index), early);
        assert!(!self.queue.take_back(index), "it is taken back");
        self.kept.push(index);
        self.current = None;
        self.publish();
    }

    /// Handles a message, if there is one.
    fn handle(&mut self, step: Step, batch: u32) {
        if let Step::Grow(count) = step
            && self.queue.extend(count, segment)
        {
            self.publish();
        }
        let jump = if let Step::Jump(by) = step { by } else { 0 };
        let at = jump.min(self.device.owned.len().saturating_sub(1));
        let Some(index) = self.device.owned.remove(at) else {
            // All buffers are kept or wait.
            self.publish();
            while let Some(index) = self.kept.pop() {
                self.give_back(index);
            }
            return;
        };
        self.waiting += 1;
        if self.waiting == batch {
            self.publish();
        }
        self.current = Some(index);
        let early = self.queue.recycle_next(index);
        match step {
            Step::Keep => self.keep(index, early),
            Step::KeepAndDrop => {
                self.keep(index, early);
                self.kept.pop();
                self.give_back(index);
            }
            Step::Drop(at) if !self.kept.is_empty() => {
                let other = self.kept.remove(at % self.kept.len());
                self.give_back(other);
            }
            _ => {}
        }
        if self.current.take().is_some() && !early {
            assert!(self.queue.recycle(index.into()));
        }
        if batch == 1 {
            self.publish();
            self.queue.doubt();
        }
    }
}

/// An empty queue over `memory`, with a ring of [`ENTRIES`] and the doorbell record behind it.
///
/// # Safety
/// `memory` is a [`Memory`] that nothing else accesses until the queue is dropped.
unsafe fn queue_over(memory: NonNull<u8>) -> SharedReceiveQueue {
    // SAFETY: ring and record lie in the memory, which is valid by the contract of this function.
    unsafe {
        SharedReceiveQueue::from_parts(SharedReceiveParts {
            ring: memory,
            entries: ENTRIES,
            segments: 1,
            doorbell_record: memory.add(ENTRIES as usize * WQE).cast(),
            keep: Arc::new(()),
        })
    }
}

/// A list without WQEs behind the last one would get a link to one that does not exist.
#[test]
fn an_extension_by_no_wqe_is_refused_without_effect() {
    let mut memory = Box::new(Memory([0; _]));
    // SAFETY: only the queue accesses the memory, which is dropped after it.
    let mut queue = unsafe { queue_over(NonNull::from(&mut memory.0).cast()) };
    assert!(!queue.extend(0, segment), "an empty queue");
    assert!(queue.extend(4, segment));
    assert!(queue.recycle_next(0));
    assert!(!queue.extend(0, segment), "a list that was posted again");
    // WQE 1 is posted and 0 is the last one: the list is as before.
    assert!(!queue.recycle(0), "the list keeps it back");
    assert_eq!((queue.filled(), queue.posted()), (4, 4));
    assert!([1, 2, 3, 0, 1].into_iter().all(|index| queue.recycle_next(index)));
    // A full ring: behind its last WQE there is no memory.
    assert!(queue.extend(ENTRIES - 4, segment));
    assert!(!queue.extend(0, segment) && !queue.extend(1, segment));
    assert!([2, 3, 0, 1].into_iter().chain(4..16).all(|index| queue.recycle_next(index)));
}

fn segment(index: u16) -> DataSegment {
    DataSegment::new(u64::from(index) << 12, 64, 1)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The device owns no WQE twice, and none whose message is handled or kept, whether buffers are
    /// posted before their messages are handled or after that.
    #[test]
    fn buffers_in_use_are_not_posted(
        steps in steps(),
        first in 2..=ENTRIES,
        batch in 1..5_u32,
    ) {
        let mut memory = Box::new(Memory([0; _]));
        let ring = NonNull::from(&mut memory.0).cast::<u8>();
        // SAFETY: queue and device access the memory on this thread, and it is dropped after them.
        let queue = unsafe { queue_over(ring) };
        let device = Device { memory: ring, next: 0, counter: 0, owned: VecDeque::new() };
        let mut receiver =
            Receiver { queue, device, kept: Vec::new(), current: None, waiting: 0 };
        assert!(receiver.queue.extend(first, segment));
        receiver.publish();
        for step in steps {
            receiver.handle(step, batch);
        }
        receiver.publish();
        while let Some(index) = receiver.kept.pop() {
            receiver.give_back(index);
        }
        receiver.publish();
        // One stays behind.
        prop_assert_eq!(receiver.device.owned.len() as u32, receiver.queue.filled() - 1);
    }
}
