//! Completion rings with any contents, in every form that the driver reads.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::cqe::compressed::MiniFormat;
use barewire_layouts::cqe::{Cqe64, Cqe128};
use barewire_mlx5::queue::completion::{
    CompletionKind, CompletionParts, CompletionQueue, Compressed, Enhanced, Layout, Plain, Polled,
    Slot,
};
use bolero::check;
use zerocopy::{FromBytes, FromZeros};

use crate::script::{Script, bytes_to};

pub(crate) const ENTRIES: u32 = 8;
const FORMATS: [MiniFormat; 3] =
    [MiniFormat::Hash, MiniFormat::Checksum, MiniFormat::ChecksumStride];

/// A ring and its doorbell record, accessed through pointers only.
#[repr(C, align(64))]
pub(crate) struct Ring<S> {
    entries: [UnsafeCell<S>; ENTRIES as usize],
    record: UnsafeCell<u32>,
}

// SAFETY: only the thread of the test uses it.
unsafe impl<S: Send> Send for Ring<S> {}
// SAFETY: only the thread of the test uses it.
unsafe impl<S: Send> Sync for Ring<S> {}

impl<S: Slot + FromZeros + Send + Sync> Ring<S> {
    pub(crate) fn new() -> Arc<Self> {
        let ring = Self {
            entries: std::array::from_fn(|_| UnsafeCell::new(S::new_zeroed())),
            record: UnsafeCell::new(0),
        };
        let ring = Arc::new(ring);
        // SAFETY: the ring has `ENTRIES` entries, and nothing else uses it yet.
        unsafe { CompletionQueue::initialise(ring.first(), ENTRIES) };
        ring
    }

    fn first(&self) -> NonNull<S> {
        NonNull::from(&self.entries).cast()
    }

    pub(crate) fn parts(self: &Arc<Self>) -> CompletionParts<S> {
        let doorbell_record = NonNull::from(&self.record).cast();
        CompletionParts {
            ring: self.first(),
            entries: ENTRIES,
            doorbell_record,
            keep: self.clone(),
        }
    }

    /// Writes any bytes, in place of the device.
    pub(crate) fn write(&self, index: u8, bytes: &[u8])
    where
        S: FromBytes,
    {
        let mut padded = vec![0; size_of::<S>()];
        padded[size_of::<S>() - bytes.len()..].copy_from_slice(bytes);
        let entry = S::read_from_bytes(&padded).expect("the size of an entry");
        // SAFETY: the index is in the ring, and there are no references to the entry.
        unsafe { self.entries[usize::from(index) % ENTRIES as usize].get().write_volatile(entry) };
    }
}

/// Writes entries and polls, as the script says. A queue never returns more completions than the
/// device could have written.
fn poll<S, L>(ring: &Ring<S>, mut queue: CompletionQueue<S, L>, mut script: Script<'_>)
where
    S: Slot + FromBytes + Send + Sync,
    L: Layout,
{
    while !script.is_over() {
        let [index, polls] = script.array();
        let length = if index & 0x80 == 0 { 64 } else { size_of::<S>() };
        ring.write(index, script.bytes(length));
        for _ in 0..polls % 32 {
            let empty = queue.is_empty();
            let completion = queue.poll().map(Polled::completion);
            // An empty queue returns nothing, even if a block that the device still owns is next.
            assert!(!empty || completion.is_none());
            let Some(completion) = completion else { break };
            assert!(completion.qpn <= 0xff_ffff && completion.user_index <= 0xff_ffff);
            if let CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure) =
                completion.kind
            {
                assert!(!failure.to_string().is_empty());
            }
            assert!(queue.inline_data().is_none_or(|data| data.len() <= 64));
            assert_eq!(queue.last_cqe().qpn(), completion.qpn);
        }
        queue.publish_consumer();
    }
}

fn any<S: Slot + FromBytes + Send + Sync>(mut script: Script<'_>) {
    let ring = Ring::<S>::new();
    let [layout, format] = script.array();
    let format = FORMATS[usize::from(format) % FORMATS.len()];
    // SAFETY: the ring is initialised, lives as long as the queue, and only this thread writes it.
    unsafe {
        match layout % 3 {
            0 => poll::<S, Plain>(&ring, CompletionQueue::from_parts(ring.parts()), script),
            1 => poll::<S, Compressed>(
                &ring,
                CompletionQueue::from_parts_compressed(ring.parts(), format),
                script,
            ),
            _ => {
                poll::<S, Enhanced>(
                    &ring,
                    CompletionQueue::from_parts_enhanced(ring.parts(), format),
                    script,
                );
            }
        }
    }
}

#[test]
fn any_completions_of_64_bytes() {
    check!().with_generator(bytes_to(2048)).for_each(|bytes| any::<Cqe64>(Script::new(bytes)));
}

#[test]
fn any_completions_of_128_bytes() {
    check!().with_generator(bytes_to(4096)).for_each(|bytes| any::<Cqe128>(Script::new(bytes)));
}
