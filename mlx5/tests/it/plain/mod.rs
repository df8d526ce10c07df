//! Completion and receive rings in plain memory, and a device that writes CQEs like a ConnectX.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_mlx5::layouts::be::{Be16, Be32};
use barewire_mlx5::layouts::cqe::compressed::{MAX_ENHANCED, MINI_ARRAY, MiniCqe};
use barewire_mlx5::layouts::cqe::{Cqe64, Cqe128, CqeFormat, CqeOpcode};
use barewire_mlx5::queue::completion::{CompletionParts, Slot};

#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "reached by pointers")] [u8; 64]);

/// Memory that a queue and a test access.
#[repr(C, align(64))]
pub(crate) struct Shared<T> {
    /// `count` cells, padded with zeros. The type `Line` provides the alignment.
    lines: Box<[UnsafeCell<Line>]>,
    count: usize,
    cell: PhantomData<T>,
    record: UnsafeCell<[u32; 2]>,
}

// SAFETY: a test accesses the memory from one thread.
unsafe impl<T> Sync for Shared<T> {}
// SAFETY: a test accesses the memory from one thread.
unsafe impl<T> Send for Shared<T> {}

impl<T: Copy + 'static> Shared<T> {
    pub(crate) fn new(cell: T, count: usize) -> Arc<Self> {
        let bytes = count * size_of::<T>();
        let lines = (0..bytes.div_ceil(64)).map(|_| UnsafeCell::new(Line([0; 64]))).collect();
        let shared = Self { lines, count, cell: PhantomData, record: UnsafeCell::new([0; 2]) };
        (0..count).for_each(|at| shared.set(at, cell));
        Arc::new(shared)
    }

    pub(crate) fn start(&self) -> NonNull<T> {
        const { assert!(align_of::<T>() <= 64) };
        NonNull::from(&*self.lines).cast()
    }

    fn cell(&self, at: usize) -> NonNull<T> {
        assert!(at < self.count);
        // SAFETY: `at` is less than `count`.
        unsafe { self.start().add(at) }
    }

    pub(crate) fn record(&self) -> NonNull<u32> {
        NonNull::new(self.record.get()).expect("a reference is not null").cast()
    }

    /// The receive word of the doorbell record.
    pub(crate) fn published(&self) -> u32 {
        // SAFETY: nothing writes the record during the call: the test has one thread.
        u32::from_be(unsafe { (*self.record.get())[0] })
    }

    pub(crate) fn get(&self, at: usize) -> T {
        // SAFETY: nothing writes the cell during the call: the test has one thread. `new`
        // initialised it.
        unsafe { self.cell(at).read() }
    }

    pub(crate) fn set(&self, at: usize, cell: T) {
        // SAFETY: nothing else accesses the cell during the call: the test has one thread.
        unsafe { self.cell(at).write(cell) };
    }
}

/// An entry to which a device can write a CQE.
pub(crate) trait Entry: Slot {
    fn with(data: [u8; 64], cqe: Cqe64) -> Self;
}

impl Entry for Cqe64 {
    fn with(_data: [u8; 64], cqe: Cqe64) -> Self {
        cqe
    }
}

impl Entry for Cqe128 {
    fn with(data: [u8; 64], cqe: Cqe64) -> Self {
        Self { data, cqe }
    }
}

/// The device's side of a completion ring.
pub(crate) struct Device<S: Entry> {
    pub(crate) ring: Arc<Shared<S>>,
    entries: u32,
    producer: u32,
}

impl<S: Entry> Device<S> {
    /// A ring that the device owns.
    pub(crate) fn new(entries: u32) -> Self {
        Self { ring: Shared::new(S::INITIAL, entries as usize), entries, producer: 0 }
    }

    pub(crate) fn parts(&self) -> CompletionParts<S> {
        CompletionParts {
            ring: self.ring.start(),
            entries: self.entries,
            doorbell_record: self.ring.record(),
            keep: self.ring.clone(),
        }
    }

    fn lap(&self, index: u32) -> u8 {
        (index / self.entries) as u8
    }

    fn put(&mut self, index: u32, data: [u8; 64], cqe: Cqe64) {
        self.ring.set((index % self.entries) as usize, S::with(data, cqe));
    }

    /// Writes a CQE with the owner bit and lap of the device, so that it is valid in every layout.
    pub(crate) fn complete(&mut self, cqe: Cqe64) {
        self.complete_with([0; 64], cqe);
    }

    /// Writes a CQE and the bytes before it.
    pub(crate) fn complete_with(&mut self, data: [u8; 64], cqe: Cqe64) {
        let lap = self.lap(self.producer);
        let cqe = Cqe64 { op_own: cqe.op_own & !1 | lap & 1, signature: lap, ..cqe };
        self.put(self.producer, data, cqe);
        self.producer = self.producer.wrapping_add(1);
    }

    /// Writes a block of the basic layout: title, and arrays at the positions where linux en_rx.c
    /// reads them.
    pub(crate) fn compress(&mut self, title: Cqe64, minis: &[MiniCqe]) {
        for (number, array) in minis.chunks(MINI_ARRAY).enumerate() {
            let place = if number == 0 { 1 } else { (number * MINI_ARRAY) as u32 };
            self.put(self.producer.wrapping_add(place), [0; 64], slot_of(array));
        }
        let op_own =
            title.op_own & !0xd | CqeFormat::Compressed.bits() | self.lap(self.producer) & 1;
        let title = Cqe64 { op_own, byte_count: Be32::new(minis.len() as u32), ..title };
        self.put(self.producer, [0; 64], title);
        self.producer = self.producer.wrapping_add(minis.len() as u32);
    }

    /// Writes a block of the enhanced layout.
    pub(crate) fn compress_enhanced(&mut self, minis: &[MiniCqe]) {
        assert!((1..=MAX_ENHANCED as usize).contains(&minis.len()));
        let op_own = (minis.len() as u8 - 1) << 4 | CqeFormat::Compressed.bits();
        let block = Cqe64 { op_own, signature: self.lap(self.producer), ..slot_of(minis) };
        self.put(self.producer, [0; 64], block);
        self.producer = self.producer.wrapping_add(minis.len() as u32);
    }
}

fn slot_of(minis: &[MiniCqe]) -> Cqe64 {
    // Bytes after the last mini CQE have no meaning: garbage, to check that they are ignored.
    let mut bytes = [0xa5; 64];
    for (place, mini) in bytes.chunks_mut(8).zip(minis) {
        place[..4].copy_from_slice(&mini.fields);
        place[4..].copy_from_slice(&mini.byte_count.get().to_be_bytes());
    }
    zerocopy::transmute!(bytes)
}

/// A CQE of `opcode` on queue pair `qpn`.
pub(crate) fn cqe(opcode: CqeOpcode, qpn: u32, wqe_counter: u16, byte_count: u32) -> Cqe64 {
    Cqe64 {
        opcode_qpn: Be32::new(qpn),
        wqe_counter: Be16::new(wqe_counter),
        byte_count: Be32::new(byte_count),
        op_own: (opcode as u8) << 4,
        ..Cqe64::INITIAL
    }
}

/// A mini CQE.
pub(crate) fn mini(fields: [u8; 4], byte_count: u32) -> MiniCqe {
    MiniCqe { fields, byte_count: Be32::new(byte_count) }
}
