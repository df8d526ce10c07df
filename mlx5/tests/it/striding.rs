//! Shared receive queues with strides: their bytes, accounting under any completion, and messages
//! over a device.

use crate::machine;
use crate::plain;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::doorbell::BlueFlame;
use barewire_mlx5::layouts::be::{Be16, Be32};
use barewire_mlx5::layouts::cqe::{Cqe64, CqeOpcode, PacketFields, StrideCount, Syndrome};
use barewire_mlx5::queue::shared_receive::{
    List, SharedReceiveParts, SharedReceiveQueue, Strides, StridingReceiveQueue, wqe_bytes,
};
use barewire_mlx5::request::Send;
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, DataSegment, Mtu,
    ProtectionDomain, RcConfig, RcPath, RcQueuePair, ReceiveQueue, Uar, hca,
};
use plain::{Device, Shared, cqe};
use zerocopy::{FromZeros, transmute};

type Unit = [u8; 16];

const ENTRIES: u32 = 4;
/// 8 strides of 256 bytes.
const COUNT: u16 = 8;
const BYTES: u32 = 256;

fn strides() -> Strides {
    Strides::new(3, 8).unwrap()
}

/// An unfilled queue in plain memory.
fn list(segments: usize) -> (SharedReceiveQueue<List>, Arc<Shared<Unit>>) {
    let ring = Shared::new([0xee; 16], ENTRIES as usize * wqe_bytes(segments) / 16);
    // SAFETY: the ring has the required size, `keep` keeps it alive, and only the queue writes it.
    let queue = unsafe {
        SharedReceiveQueue::from_parts(SharedReceiveParts {
            ring: ring.start().cast(),
            entries: ENTRIES,
            segments,
            doorbell_record: ring.record(),
            keep: ring.clone(),
        })
    };
    (queue, ring)
}

fn plain_queue() -> (StridingReceiveQueue, Arc<Shared<Unit>>) {
    let (queue, ring) = list(COUNT.into());
    let mut queue = StridingReceiveQueue::new(queue, strides()).unwrap();
    assert!(queue.fill(|index| DataSegment::new(u64::from(index) << 16, 2048, 3)));
    (queue, ring)
}

/// A completion of a packet.
fn packet(wqe: u16, stride: u16, count: StrideCount) -> Cqe64 {
    let fields = PacketFields { checksum: Be16::new(stride), ..PacketFields::new_zeroed() };
    Cqe64 {
        metadata: transmute!(fields),
        byte_count: Be32::new(count.0),
        ..cqe(CqeOpcode::ResponderSend, 9, wqe, 0)
    }
}

/// A completion queue, and the device that writes it.
fn completions() -> (CompletionQueue, Device<Cqe64>) {
    let device = Device::<Cqe64>::new(64);
    // SAFETY: `parts` describe the ring of `device`, which they keep alive, and the test has one
    // thread.
    (unsafe { CompletionQueue::from_parts(device.parts()) }, device)
}

#[test]
fn a_wqe_has_a_segment_for_each_stride() {
    let (queue, ring) = plain_queue();
    assert_eq!((queue.buffer_bytes(), queue.strides()), (2048, strides()));
    // A WQE of 256 bytes: header, 8 segments, and the end of the list.
    assert_eq!(ring.get(16), [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for stride in 0..8 {
        let segment = [0, 0, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 1, stride, 0];
        assert_eq!(ring.get(17 + usize::from(stride)), segment);
    }
    assert_eq!(ring.get(25), [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ring.published(), 3, "one stays behind");
}

#[test]
fn unfit_queues_and_buffers_are_refused() {
    assert!(StridingReceiveQueue::new(list(4).0, strides()).is_none(), "no room");
    assert!(StridingReceiveQueue::new(list(63).0, Strides::new(5, 8).unwrap()).is_none());
    let (mut used, _ring) = list(8);
    assert!(used.push_one(DataSegment::new(1, 1, 1)).is_some());
    assert!(StridingReceiveQueue::new(used, strides()).is_none(), "posted");
    let mut queue = StridingReceiveQueue::new(list(8).0, strides()).unwrap();
    assert!(!queue.fill(|index| DataSegment::new(0, 2048 - u32::from(index == 3), 3)));
    assert!(queue.fill(|_| DataSegment::new(0, 4096, 3)));
    assert!(!queue.fill(|_| DataSegment::new(0, 4096, 3)), "twice");
}

#[test]
fn a_wqe_is_posted_again_when_all_its_packets_are_released() {
    let (mut queue, ring) = plain_queue();
    let (mut completions, mut device) = completions();
    let mut take = |queue: &mut StridingReceiveQueue, cqe| {
        device.complete(cqe);
        queue.take(completions.poll().unwrap())
    };
    let whole = |length| StrideCount::new(length, true, true);
    let mut packets = Vec::new();
    for stride in 0..COUNT - 1 {
        let taken = take(&mut queue, packet(0, stride, whole(7 + stride))).unwrap();
        assert_eq!((taken.wqe(), taken.offset()), (0, u32::from(stride) * BYTES));
        assert_eq!((taken.length(), taken.is_first(), taken.is_last()), (7 + stride, true, true));
        packets.push(taken);
    }
    let last = packets.pop().unwrap();
    assert!(packets.into_iter().all(|packet| !queue.release(packet)), "a stride is not taken");
    // The last stride fails, and then nothing but one packet is held.
    assert!(!queue.fail(0));
    assert!(!queue.fail(0), "the device has no more of its strides");
    assert!(take(&mut queue, packet(0, 7, whole(1))).is_none());
    assert!(queue.release(last));
    queue.publish();
    assert_eq!(ring.published(), 4);

    // A write with an immediate takes a stride, and its length is not that of the packet.
    let write = Cqe64 {
        byte_count: Be32::new(1 << 30),
        op_own: (CqeOpcode::ResponderWriteImmediate as u8) << 4,
        ..packet(1, 0, whole(0))
    };
    let taken = take(&mut queue, write).unwrap();
    assert_eq!((taken.length(), taken.is_first(), taken.is_last()), (0, true, true));
    assert!(!queue.release(taken));
    // A filler gives one back.
    assert!(take(&mut queue, packet(1, 1, StrideCount(1 << 31))).is_none());
    for stride in 2..COUNT {
        let taken = take(&mut queue, packet(1, stride, whole(256))).unwrap();
        assert_eq!(queue.release(taken), stride == COUNT - 1);
    }
}

/// Otherwise a WQE would be posted again while the device fills it.
#[test]
fn a_stride_counts_once() {
    let (mut queue, ring) = plain_queue();
    let (mut completions, mut device) = completions();
    let mut take = |queue: &mut StridingReceiveQueue, stride| {
        device.complete(packet(0, stride, StrideCount::new(1, true, true)));
        queue.take(completions.poll().unwrap())
    };
    for stride in 0..COUNT {
        let taken = take(&mut queue, stride).unwrap();
        assert_eq!(queue.release(taken), stride == COUNT - 1);
        if stride < COUNT - 1 {
            assert!(take(&mut queue, stride).is_none(), "released, and completed again");
        }
    }
    queue.publish();
    assert_eq!(ring.published(), 4);
}

/// Random completions, most of them of no stride that the device owns, against a model.
#[test]
fn any_completion_is_safe() {
    let (mut queue, _ring) = plain_queue();
    let (mut completions, mut device) = completions();
    let mut random = fastrand::Rng::with_seed(7);
    let mut left = [COUNT; ENTRIES as usize];
    let mut held = HashMap::new();
    // The strides that were taken since their WQE was posted.
    let mut used = HashSet::new();
    for _ in 0..if cfg!(miri) { 500 } else { 200_000 } {
        let (wqe, stride) = (random.u16(..) % 6, random.u16(..12));
        let count = StrideCount(random.u32(..400) | random.u32(..) & 0x6000_0000);
        if random.u8(..3) > 0 {
            device.complete(packet(wqe, stride, count));
            let taken = queue.take(completions.poll().unwrap());
            let index = wqe % ENTRIES as u16;
            let fits = stride < COUNT && u32::from(count.length()) <= BYTES;
            let owned = left[usize::from(index)] > 0 && !used.contains(&(index, stride));
            assert_eq!(taken.is_some(), fits && owned);
            if let Some(taken) = taken {
                left[usize::from(index)] -= 1;
                held.insert((index, stride), taken);
                used.insert((index, stride));
            }
        } else if let Some(&(index, stride)) = held.keys().min() {
            let taken = held.remove(&(index, stride)).unwrap();
            let posted = queue.release(taken);
            let free = left[usize::from(index)] == 0 && held.keys().all(|key| key.0 != index);
            assert!(free || !posted);
            if posted {
                left[usize::from(index)] = COUNT;
                used.retain(|key| key.0 != index);
            }
        }
        if random.u8(..20) == 0 {
            let posted = queue.fail(wqe);
            let index = wqe % ENTRIES as u16;
            let owned = left[usize::from(index)] > 0;
            left[usize::from(index)] -= u16::from(owned);
            let free = left[usize::from(index)] == 0 && held.keys().all(|key| key.0 != index);
            assert!(owned && free || !posted);
            if posted {
                left[usize::from(index)] = COUNT;
                used.retain(|key| key.0 != index);
            }
        }
    }
}

type Receiver = RcQueuePair<BlueFlame, Option<ReceiveQueue>>;

/// A device, its objects, and a striding queue.
struct Node {
    context: Context,
    domain: ProtectionDomain,
    uar: Uar,
    completions: CompletionQueue,
    queue: StridingReceiveQueue,
    memory: Buffer,
}

/// More than the packets that a test keeps, each of which may hold a WQE back.
const WQES: u16 = 16;

impl Node {
    /// The device that the environment names, or the software HCA; `None` if it has no such queues.
    fn new(strides: Strides) -> Option<Self> {
        let soft = || {
            let device = hca::Device::open(hca::Config::default()).unwrap();
            Context::open(Soft::new(device)).unwrap()
        };
        let context = machine::context().unwrap_or_else(soft);
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 2048).unwrap();
        let queue = StridingReceiveQueue::create(&domain, u32::from(WQES), strides);
        if !context.capabilities().striding {
            assert!(queue.unwrap_err().to_string().contains("striding"));
            return None;
        }
        let mut queue = queue.unwrap();
        let bytes = queue.buffer_bytes() as usize;
        let memory = Buffer::allocate(&domain, bytes * usize::from(WQES), Access::all()).unwrap();
        let segment = |index| memory.region().segment(usize::from(index) * bytes, bytes).unwrap();
        assert!(queue.fill(segment));
        Some(Self { context, domain, uar, completions, queue, memory })
    }

    /// A sender, connected to a queue pair that receives from the queue.
    fn pair(&self) -> (RcQueuePair, Receiver) {
        let config = RcConfig::default();
        let Self { domain, uar, completions, queue, .. } = self;
        let mut sender =
            RcQueuePair::create(domain, uar, completions, completions, &config).unwrap();
        let shared = Some(queue.queue());
        let mut receiver =
            RcQueuePair::create_sharing(domain, uar, completions, completions, shared, &config)
                .unwrap();
        let path = |address| RcPath::to(&address).mtu(Mtu::Bytes1024);
        sender.connect(&path(receiver.address())).unwrap();
        receiver.connect(&path(sender.address())).unwrap();
        (sender, receiver)
    }
}

#[test]
#[cfg_attr(miri, ignore = "a device has a thread")]
fn messages_of_two_senders_share_buffers() {
    for strides in [Strides::new(3, 10).unwrap(), Strides::new(4, 12).unwrap()] {
        let Some(mut node) = Node::new(strides) else { return };
        let mut pairs = [node.pair(), node.pair()];
        let source = Buffer::allocate(&node.domain, 1 << 16, Access::all()).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let contents: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 16).collect();
        source.write(0, &contents).unwrap();
        // By receiver: what was sent, and what has arrived.
        let mut sent = [Vec::new(), Vec::new()];
        let mut arrived = [vec![Vec::new()], vec![Vec::new()]];
        let mut kept = Vec::new();
        let deadline = Instant::now() + Duration::from_mins(1);
        let total = 200;
        let mut posted = 0;
        let mut done = 0;
        while done < total {
            if posted < total && posted - done < 8 {
                let pair = posted % 2;
                let (at, length) = (random.usize(..1 << 15), 1 + random.usize(..6000));
                let segment = source.region().segment(at, length).unwrap();
                pairs[pair].0.send.post(Send(segment), ControlFlags::COMPLETION).unwrap();
                sent[pair].push(contents[at..at + length].to_vec());
                posted += 1;
            }
            let Some(polled) = node.completions.poll() else {
                assert!(Instant::now() < deadline, "messages are lost");
                std::thread::yield_now();
                continue;
            };
            let completion = polled.completion();
            if completion.kind == CompletionKind::Send {
                let sender = pairs.iter_mut().find(|pair| pair.0.number() == completion.qpn);
                sender.unwrap().0.send.reap(completion.wqe_counter);
                continue;
            }
            assert_eq!(completion.kind, CompletionKind::Receive);
            let receiver = pairs.iter().position(|pair| pair.1.number() == completion.qpn).unwrap();
            let packet = node.queue.take(polled).expect("a packet in a stride");
            let mut bytes = vec![0; packet.length().into()];
            let start = usize::from(packet.wqe()) * node.queue.buffer_bytes() as usize;
            node.memory.read(start + packet.offset() as usize, &mut bytes).unwrap();
            let messages = &mut arrived[receiver];
            assert_eq!(packet.is_first(), messages.last().unwrap().is_empty());
            messages.last_mut().unwrap().extend(bytes);
            if packet.is_last() {
                messages.push(Vec::new());
                done += 1;
            }
            // Packets are released in another order.
            kept.push(packet);
            if kept.len() > 9 {
                let packet = kept.swap_remove(random.usize(..kept.len()));
                if node.queue.release(packet) {
                    node.queue.publish();
                }
            }
        }
        for (messages, sent) in arrived.iter_mut().zip(&sent) {
            messages.pop();
            assert!(messages == sent);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a device has a thread")]
fn a_packet_that_exceeds_a_stride_fails_its_queue_pair() {
    let Some(mut node) = Node::new(Strides::new(3, 8).unwrap()) else { return };
    let (mut sender, receiver) = node.pair();
    let source = Buffer::allocate(&node.domain, 1024, Access::all()).unwrap();
    let segment = source.region().segment(0, 257).unwrap();
    sender.send.post(Send(segment), ControlFlags::COMPLETION).unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    let failed = loop {
        assert!(Instant::now() < deadline, "no error");
        let Some(polled) = node.completions.poll() else { continue };
        let completion = polled.completion();
        if let CompletionKind::ReceiveError(failure) = completion.kind {
            assert_eq!(failure.syndrome(), Some(Syndrome::LocalLength));
            break completion;
        }
    };
    assert_eq!(failed.qpn, receiver.number());
    assert!(!node.queue.fail(failed.wqe_counter), "seven strides are left");
    let inline = RcConfig::default().inline_receive(true);
    let Node { domain, uar, completions, queue, .. } = &node;
    let shared = Some(queue.queue());
    let refused = Receiver::create_sharing(domain, uar, completions, completions, shared, &inline);
    assert!(refused.unwrap_err().to_string().contains("stride"));
    assert!(node.context.capabilities().striding);
}
