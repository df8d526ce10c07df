//! Every operation that can be posted in a loop, through the dynamic API and through the driver.

use std::alloc::Layout;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use barewire::{
    Access, AtomicOp, Completion, Endpoint, FetchResult, InterfaceConfig, Memory, PostError,
    RemoteKey, Unpack,
};
use barewire_mlx5::layouts::wqe::{AddressVector, RepeatEntry};
use barewire_mlx5::queue::send::{MAX_WRITE_INLINE, SendParts};
use barewire_mlx5::request::{
    Bind, Binding, CompareSwap, FetchAdd, Inline, Interleave, Invalidate, Join, MaskedAdd,
    MaskedCompareSwap, MaskedFetchAdd, MaskedSwap, Nop, Prefixed, Read, Segments, Send,
    SendImmediate, SendInvalidate, Unbind, Word, Write, WriteImmediate,
};
use barewire_mlx5::{Access as Rights, ControlFlags, DataSegment, RemoteAddressSegment, SendQueue};

use crate::support::{DEADLINE, Pair};

/// How often each operation is posted.
pub(crate) const ROUNDS: u32 = 1000;
const ID: u8 = 3;

/// A connected pair over a device that is stepped, and the objects that operations need.
pub(crate) struct Sides {
    pub(crate) pair: Pair,
    target: Memory,
    key: RemoteKey,
    memory: Memory,
    /// Never reaches zero.
    completion: Completion,
    unpack: Unpack,
    result: FetchResult,
}

impl Sides {
    /// Has room for `rounds` posts of every operation before the device runs.
    pub(crate) fn with_room_for(rounds: u32) -> Self {
        let every = OPERATIONS.len() as u32 * rounds;
        let mut pair = Pair::stepped(
            &InterfaceConfig::default()
                .send_ring((2 * every).next_power_of_two())
                .receive_ring(every.next_power_of_two())
                .bcopy_buffers(every)
                .max_endpoints(1)
                // Time passes between the steps.
                .ack_timeout(0),
        );
        pair.server.interface.set_handler(ID, |_| ()).unwrap();
        let (target, key) = pair.target(4096, Access::all());
        let memory = pair.client.domain.allocate(4096, Access::all()).unwrap();
        pair.settle();
        Self {
            pair,
            target,
            key,
            memory,
            completion: Completion::counter(),
            unpack: Unpack::new(|_| ()),
            result: FetchResult::new(),
        }
    }

    /// Runs the device until it has nothing to do.
    pub(crate) fn let_the_device_work(&self) {
        let start = Instant::now();
        while self.pair.devices[0].step() {
            assert!(start.elapsed() < DEADLINE, "the device does not come to rest");
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.pair.client.endpoint
    }

    fn put_short(&self, payload: &[u8]) -> Result<(), PostError> {
        self.endpoint().put_short(payload, self.target.address(), &self.key).map(drop)
    }

    fn zcopy(
        &self,
        post: impl FnOnce(&[barewire::Slice<'_>], &Completion) -> barewire::Post,
    ) -> Result<(), PostError> {
        let slices = [0, 128, 256].map(|offset| self.memory.slice(offset, 64));
        let [Ok(a), Ok(b), Ok(c)] = slices else { return Err(PostError::ForeignMemory) };
        post(&[a, b, c], &self.completion).map(drop)
    }
}

/// Fills a buffer with a word.
fn pack(buffer: &mut [u8]) -> usize {
    match buffer.first_chunk_mut() {
        Some(word) => {
            *word = [7; 8];
            word.len()
        }
        None => 0,
    }
}

type Post = fn(&Sides) -> Result<(), PostError>;

/// The operations of the transport API.
pub(crate) const OPERATIONS: &[(&str, Post)] = &[
    ("put_short, 8 B", |sides| sides.put_short(&[7; 8])),
    ("put_short, 64 B", |sides| sides.put_short(&[7; 64])),
    ("put_short, 100 B", |sides| sides.put_short(&[7; 100])),
    ("put_bcopy", |sides| {
        sides.endpoint().put_bcopy(pack, sides.target.address(), &sides.key).map(drop)
    }),
    ("put_zcopy", |sides| {
        let remote = sides.target.address();
        sides.zcopy(|slices, done| {
            sides.endpoint().put_zcopy(slices, remote, &sides.key, Some(done))
        })
    }),
    ("put_zcopy, one region", |sides| {
        let remote = sides.target.address();
        sides.zcopy(|slices, _| sides.endpoint().put_zcopy(&slices[..1], remote, &sides.key, None))
    }),
    ("get_bcopy", |sides| {
        let Sides { unpack, target, key, completion, .. } = sides;
        sides.endpoint().get_bcopy(unpack, 8, target.address(), key, Some(completion)).map(drop)
    }),
    ("get_zcopy", |sides| {
        let remote = sides.target.address();
        sides.zcopy(|slices, done| {
            sides.endpoint().get_zcopy(slices, remote, &sides.key, Some(done))
        })
    }),
    ("am_short", |sides| sides.endpoint().am_short(ID, 1, &[7; 8]).map(drop)),
    ("am_short, 100 B", |sides| sides.endpoint().am_short(ID, 1, &[7; 100]).map(drop)),
    ("am_bcopy", |sides| sides.endpoint().am_bcopy(ID, pack).map(drop)),
    ("am_zcopy", |sides| {
        sides.zcopy(|slices, done| sides.endpoint().am_zcopy(ID, &[1; 8], slices, Some(done)))
    }),
    ("atomic_post", |sides| {
        sides
            .endpoint()
            .atomic_post(AtomicOp::Add(1_u64), sides.target.address(), &sides.key)
            .map(drop)
    }),
    ("atomic_fetch, add", |sides| {
        let Sides { target, key, result, completion, .. } = sides;
        sides
            .endpoint()
            .atomic_fetch(AtomicOp::Add(1_u64), target.address(), key, result, Some(completion))
            .map(drop)
    }),
    ("atomic_fetch, compare and swap", |sides| {
        let Sides { target, key, result, completion, .. } = sides;
        let remote = target.address();
        sides
            .endpoint()
            .atomic_fetch(
                AtomicOp::CompareSwap { compare: 0_u64, swap: 1 },
                remote,
                key,
                result,
                Some(completion),
            )
            .map(drop)
    }),
];

/// A send queue over plain memory, whose WQEs are reaped right after the post.
pub(crate) struct Driver {
    queue: SendQueue,
}

/// Zeroed, page-aligned memory.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is owned, and accessed through pointers only.
unsafe impl core::marker::Send for Block {}
// SAFETY: shared access only reads the address.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Self { start: NonNull::new(start).expect("memory"), layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl Driver {
    /// A queue of 64 blocks.
    pub(crate) fn new() -> Self {
        const RING: usize = 64 * 64;
        // Ring, register, doorbell record.
        let block = Arc::new(Block::new(RING + 512 + 64));
        let at = |offset| {
            // SAFETY: the offsets of the three parts lie in the block.
            unsafe { block.start.add(offset) }
        };
        let parts = SendParts {
            ring: at(0),
            blocks: 64,
            doorbell_record: at(RING + 512).cast(),
            register: at(RING),
            qpn: 72,
            signal_period: 8,
            keep: Arc::clone(&block) as Arc<dyn Any + core::marker::Send + Sync>,
        };
        // SAFETY: the parts have the required sizes and alignments, nothing else uses the memory,
        // and `keep` keeps it alive.
        Self { queue: unsafe { SendQueue::from_parts(parts) } }
    }

    /// Posts. Returns `false` if the post was refused.
    pub(crate) fn post(&mut self, post: DriverPost) -> bool {
        let posted = post(&mut self.queue);
        if let Some(index) = self.queue.last_index() {
            self.queue.reap(index.0);
        }
        posted
    }
}

type DriverPost = fn(&mut SendQueue) -> bool;

const REMOTE: RemoteAddressSegment = RemoteAddressSegment::new(0x1000, 7);
const LOCAL: DataSegment = DataSegment::new(0x2000, 64, 9);
const WORD: DataSegment = DataSegment::new(0x2000, 8, 9);
const HALF: DataSegment = DataSegment::new(0x2000, 4, 9);
const ADDRESS: AddressVector = AddressVector::roce(9, 0x1234, [2; 6], [3; 16], 49152, 0, 64);
const BINDING: Binding = Binding { range: LOCAL, start: 0x2000, access: Rights::REMOTE_READ };
const ENTRY: RepeatEntry = RepeatEntry::new(64, 32, 9, 0x2000);
const FLAGS: ControlFlags = ControlFlags::empty();
const LONG: &[u8] = &[7; MAX_WRITE_INLINE];

/// The posting functions of the driver.
pub(crate) const DRIVER: &[(&str, DriverPost)] = &[
    ("write_inline_8", |queue| {
        queue.post(Write { local: Word([7; 8]), remote: REMOTE }, FLAGS).is_ok()
    }),
    ("write_inline, every length", |queue| {
        (0..=LONG.len()).all(|length| {
            let posted =
                queue.post(Write { local: Inline(&LONG[..length]), remote: REMOTE }, FLAGS);
            posted.map(|index| queue.reap(index.0)).is_ok()
        })
    }),
    ("write_inline_immediate", |queue| {
        queue
            .post(WriteImmediate { local: Inline(&[7; 30]), remote: REMOTE, immediate: 5 }, FLAGS)
            .is_ok()
    }),
    ("write", |queue| queue.post(Write { local: LOCAL, remote: REMOTE }, FLAGS).is_ok()),
    ("write_gather", |queue| {
        queue.post(Write { local: Segments(&[LOCAL; 9]), remote: REMOTE }, FLAGS).is_ok()
    }),
    ("write_immediate", |queue| {
        queue
            .post(
                WriteImmediate { local: Segments(&[LOCAL; 2]), remote: REMOTE, immediate: 5 },
                FLAGS,
            )
            .is_ok()
    }),
    ("read", |queue| queue.post(Read { local: LOCAL, remote: REMOTE }, FLAGS).is_ok()),
    ("read_scatter", |queue| {
        queue.post(Read { local: Segments(&[LOCAL; 9]), remote: REMOTE }, FLAGS).is_ok()
    }),
    ("send_inline", |queue| queue.post(Send(Inline(&[7; 30])), FLAGS).is_ok()),
    ("send_inline_prefixed", |queue| {
        queue.post(Send(Prefixed { prefix: [1; 12], payload: Inline(&[7; 8]) }), FLAGS).is_ok()
    }),
    ("send_inline_prefixed, 30 B", |queue| {
        queue.post(Send(Prefixed { prefix: [1; 12], payload: Inline(&[7; 30]) }), FLAGS).is_ok()
    }),
    ("send_inline_immediate", |queue| {
        queue.post(SendImmediate { local: Inline(&[7; 30]), immediate: 5 }, FLAGS).is_ok()
    }),
    ("send", |queue| queue.post(Send(LOCAL), FLAGS).is_ok()),
    ("send_gather", |queue| queue.post(Send(Segments(&[LOCAL; 9])), FLAGS).is_ok()),
    ("send_immediate", |queue| {
        queue.post(SendImmediate { local: Segments(&[LOCAL; 2]), immediate: 5 }, FLAGS).is_ok()
    }),
    ("fetch_add", |queue| {
        queue.post(FetchAdd { local: WORD, remote: REMOTE, add: 1 }, FLAGS).is_ok()
    }),
    ("compare_swap", |queue| {
        queue.post(CompareSwap { local: WORD, remote: REMOTE, compare: 0, swap: 1 }, FLAGS).is_ok()
    }),
    ("masked_compare_swap_32", |queue| {
        queue
            .post(
                MaskedCompareSwap {
                    local: HALF,
                    remote: REMOTE,
                    operands: MaskedSwap::<u32>::default(),
                },
                FLAGS,
            )
            .is_ok()
    }),
    ("masked_compare_swap_64", |queue| {
        queue
            .post(
                MaskedCompareSwap {
                    local: WORD,
                    remote: REMOTE,
                    operands: MaskedSwap::<u64>::default(),
                },
                FLAGS,
            )
            .is_ok()
    }),
    ("masked_fetch_add_32", |queue| {
        queue
            .post(
                MaskedFetchAdd {
                    local: HALF,
                    remote: REMOTE,
                    operands: MaskedAdd::<u32>::default(),
                },
                FLAGS,
            )
            .is_ok()
    }),
    ("masked_fetch_add_64", |queue| {
        queue
            .post(
                MaskedFetchAdd {
                    local: WORD,
                    remote: REMOTE,
                    operands: MaskedAdd::<u64>::default(),
                },
                FLAGS,
            )
            .is_ok()
    }),
    ("send_to", |queue| queue.towards(&ADDRESS).post(Send(LOCAL), FLAGS).is_ok()),
    ("send_gather_to", |queue| {
        queue.towards(&ADDRESS.base).post(Send(Segments(&[LOCAL; 2])), FLAGS).is_ok()
    }),
    ("send_immediate_to", |queue| {
        queue
            .towards(&ADDRESS)
            .post(SendImmediate { local: Segments(&[LOCAL; 2]), immediate: 5 }, FLAGS)
            .is_ok()
    }),
    ("send_inline_to", |queue| queue.towards(&ADDRESS).post(Send(Inline(&[7; 30])), FLAGS).is_ok()),
    ("send_inline_immediate_to", |queue| {
        queue
            .towards(&ADDRESS.base)
            .post(SendImmediate { local: Inline(&[7; 30]), immediate: 5 }, FLAGS)
            .is_ok()
    }),
    ("send_invalidate", |queue| {
        queue.post(SendInvalidate { local: Segments(&[LOCAL; 2]), rkey: 9 }, FLAGS).is_ok()
    }),
    ("send_inline_invalidate", |queue| {
        queue.post(SendInvalidate { local: Inline(&[7; 30]), rkey: 9 }, FLAGS).is_ok()
    }),
    ("local_invalidate", |queue| queue.post(Invalidate { key: 9 }, FLAGS).is_ok()),
    ("bind_window", |queue| {
        queue.post(Bind { free: 9, key: 10, binding: BINDING, is_shared: false }, FLAGS).is_ok()
    }),
    ("unbind_window", |queue| queue.post(Unbind { key: 10, is_shared: false }, FLAGS).is_ok()),
    ("join", |queue| {
        queue.post(Join { key: 9, access: Rights::all(), ranges: &[LOCAL; 4] }, FLAGS).is_ok()
    }),
    ("join, 24", |queue| {
        queue.post(Join { key: 9, access: Rights::all(), ranges: &[LOCAL; 24] }, FLAGS).is_ok()
    }),
    ("interleave", |queue| {
        queue
            .post(
                Interleave { key: 9, access: Rights::all(), repeat: 5, entries: &[ENTRY; 3] },
                FLAGS,
            )
            .is_ok()
    }),
    ("interleave, 23", |queue| {
        queue
            .post(
                Interleave { key: 9, access: Rights::all(), repeat: 5, entries: &[ENTRY; 23] },
                FLAGS,
            )
            .is_ok()
    }),
    ("nop", |queue| queue.post(Nop, FLAGS).is_ok()),
    ("batch", |queue| {
        let mut batch = queue.batch();
        (0..16).all(|_| batch.post(Write { local: Word([7; 8]), remote: REMOTE }, FLAGS).is_ok())
    }),
    // A refusal is a result like any other.
    ("join, too long", |queue| {
        queue.post(Join { key: 9, access: Rights::all(), ranges: &[LOCAL; 25] }, FLAGS).is_err()
    }),
    ("write_inline, too long", |queue| {
        queue.post(Write { local: Inline(&[7; 4096]), remote: REMOTE }, FLAGS).is_err()
    }),
];
