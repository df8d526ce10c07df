//! Initiators and targets (DC), and shared receive queues, on the software HCA.

use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::dc::{Initiator, InitiatorConfig, Peer, Target, TargetConfig};
use barewire_mlx5::layouts::cqe::Syndrome;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::{Destination, MAX_SEGMENTS};
use barewire_mlx5::queue::shared_receive::{Cyclic, List, SharedReceiveQueue, Topology};
use barewire_mlx5::request::{
    CompareSwap, FetchAdd, Inline, MaskedAdd, MaskedCompareSwap, MaskedFetchAdd, MaskedSwap,
    Prefixed, Read, Segments, Send, Word, Write,
};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, Context, ControlFlags,
    DataSegment, Error, PostError, ProtectionDomain, QpState, RemoteAddressSegment, Uar, hca,
};

const SIGNALED: ControlFlags = ControlFlags::COMPLETION;

struct Node {
    context: Context,
    domain: ProtectionDomain,
    uar: Uar,
    completions: CompletionQueue,
}

impl Node {
    fn new() -> Self {
        let device = hca::Device::open(hca::Config::default()).unwrap();
        let context = Context::open(Soft::new(device)).unwrap();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
        Self { context, domain, uar, completions }
    }

    fn target(&self, shared: &SharedReceiveQueue<impl Topology>, key: u64) -> Target {
        let config = TargetConfig::default().key(key).user_index(9);
        Target::create(&self.domain, &self.completions, shared, &config).unwrap()
    }

    fn initiator(&self, config: &InitiatorConfig) -> Initiator {
        Initiator::create(&self.domain, &self.uar, &self.completions, config).unwrap()
    }

    fn peer(&self, target: &Target) -> Peer {
        Peer::new(self.context.port_address(), target.number(), target.key())
    }

    fn wait(&mut self) -> Completion {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(polled) = self.completions.poll() {
                return polled.completion();
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    fn buffer(&self, length: usize) -> Buffer {
        Buffer::allocate(&self.domain, length, Access::all()).unwrap()
    }
}

fn local(buffer: &Buffer, offset: usize, length: usize) -> DataSegment {
    buffer.region().segment(offset, length).unwrap()
}

fn bytes<const N: usize>(buffer: &Buffer, offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    buffer.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_operation_reaches_the_target() {
    let mut node = Node::new();
    let mut shared = SharedReceiveQueue::<List>::create(&node.domain, 4, 2).unwrap();
    let inbox = node.buffer(64);
    assert!(shared.push(&[local(&inbox, 0, 8), local(&inbox, 32, 12)]).is_some());
    shared.publish();
    let target = node.target(&shared, 7);
    let mut initiator = node.initiator(&InitiatorConfig::default().user_index(3));
    let to = initiator.destination(&node.peer(&target)).unwrap();
    let (here, there) = (node.buffer(64), node.buffer(256));
    let remote = |offset| there.region().remote(offset);
    there.write(128, &7_u64.to_ne_bytes()).unwrap();
    here.write(0, &[5; 16]).unwrap();

    let queue = &mut initiator.send;
    queue.towards(&to).post(Write { local: Word([1; 8]), remote: remote(0) }, SIGNALED).unwrap();
    queue
        .towards(&to)
        .post(Write { local: Inline(&[2; 100]), remote: remote(8) }, SIGNALED)
        .unwrap();
    let pieces = [local(&here, 0, 3), local(&here, 8, 0), local(&here, 8, 4)];
    queue
        .towards(&to)
        .post(Write { local: Segments(&pieces), remote: remote(108) }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(Read { local: Segments(&[local(&here, 16, 4)]), remote: remote(6) }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(FetchAdd { local: local(&here, 24, 8), remote: remote(128), add: 3 }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(
            CompareSwap { local: local(&here, 32, 8), remote: remote(128), compare: 10, swap: 20 },
            SIGNALED,
        )
        .unwrap();
    let swap = MaskedSwap { compare: 20, compare_mask: u64::MAX, swap: 9, swap_mask: u64::MAX };
    let result = local(&here, 40, 8);
    queue
        .towards(&to)
        .post(MaskedCompareSwap { local: result, remote: remote(128), operands: swap }, SIGNALED)
        .unwrap();
    let add = MaskedAdd { operand: 1_u64, field_boundary: 0 };
    let result = local(&here, 48, 8);
    queue
        .towards(&to)
        .post(MaskedFetchAdd { local: result, remote: remote(128), operands: add }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(Send(Prefixed { prefix: [8; 12], payload: Word([9; 8]) }), SIGNALED)
        .unwrap();
    let (mut sent, mut received) = (0, None);
    while sent < 9 || received.is_none() {
        let done = node.wait();
        match done.kind {
            CompletionKind::Send => {
                assert_eq!(done.user_index, 3);
                initiator.send.reap(done.wqe_counter);
                sent += 1;
            }
            CompletionKind::Receive => received = Some(done),
            other => panic!("{other:?}"),
        }
    }
    assert!(initiator.send.is_idle());
    let received = received.unwrap();
    assert_eq!((received.byte_count, received.user_index), (20, 9));
    assert_eq!(shared.release(received.wqe_counter), Some(0));
    assert_eq!(
        (bytes(&inbox, 0), bytes(&inbox, 32)),
        ([8; 8], [8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9])
    );
    assert_eq!((bytes(&there, 0), bytes(&there, 8)), ([1; 8], [2; 100]));
    assert_eq!((bytes(&there, 108), bytes(&here, 16)), ([5; 7], [1, 1, 2, 2]));
    let word = |buffer, offset| u64::from_ne_bytes(bytes(buffer, offset));
    assert_eq!([24, 32, 40, 48].map(|offset| word(&here, offset)), [7, 10, 20, 9]);
    assert_eq!(word(&there, 128), 10);
}

/// Of two targets the wrong key reaches neither, and the initiator works again after a reset.
#[test]
fn a_failed_initiator_is_reset() {
    let mut node = Node::new();
    let shared = SharedReceiveQueue::<Cyclic>::create(&node.domain, 4, 1).unwrap();
    let target = node.target(&shared, 7);
    let mut initiator = node.initiator(&InitiatorConfig::default());
    let there = node.buffer(64);
    let good = node.peer(&target);
    let wrong = initiator.destination(&Peer { key: 8, ..good }).unwrap();
    let good = initiator.destination(&good).unwrap();
    let remote = there.region().remote(0);
    for _ in 0..2 {
        initiator
            .send
            .towards(&wrong)
            .post(Write { local: Inline(b"wrong"), remote }, SIGNALED)
            .unwrap();
        initiator
            .send
            .towards(&good)
            .post(Write { local: Inline(b"flush"), remote }, SIGNALED)
            .unwrap();
        let codes: [_; 2] = core::array::from_fn(|_| match node.wait().kind {
            CompletionKind::SendError(failure) => failure.syndrome(),
            other => panic!("{other:?}"),
        });
        let wanted = [Syndrome::RemoteAccess, Syndrome::WorkRequestFlushed];
        assert_eq!(codes, wanted.map(Some));
        assert_eq!(initiator.state().unwrap(), QpState::Err);
        initiator.reset().unwrap();
        assert_eq!(initiator.state().unwrap(), QpState::Rts);
        initiator
            .send
            .towards(&good)
            .post(Write { local: Inline(b"right"), remote }, SIGNALED)
            .unwrap();
        let done = node.wait();
        assert_eq!(done.kind, CompletionKind::Send);
        initiator.send.reap(done.wqe_counter);
        assert_eq!(&bytes(&there, 0), b"right");
    }
    initiator.to_error().unwrap();
    assert_eq!(initiator.state().unwrap(), QpState::Err);
}

/// More messages than the counters of ring and doorbell record count, through few buffers.
#[test]
fn a_list_that_grows_posts_its_buffers_again() {
    const ENTRIES: u32 = 8;
    const MESSAGES: u32 = 66_000;
    let mut node = Node::new();
    let mut shared = SharedReceiveQueue::<List>::create(&node.domain, ENTRIES, 1).unwrap();
    let inbox = node.buffer(64 * ENTRIES as usize);
    let segment = |index: u16| local(&inbox, usize::from(index) * 64, 64);
    assert!(!shared.recycle(0) && !shared.recycle(u32::MAX), "no buffers");
    assert!(!shared.recycle_next(0) && !shared.recycle_next(u16::MAX), "no buffers");
    let empty = |index| if index == 2 { DataSegment::new(0, 0, 0) } else { segment(index) };
    assert!(!shared.extend(3, empty) && !shared.extend(1, segment) && !shared.extend(9, segment));
    assert!(shared.extend(3, segment) && !shared.extend(6, segment));
    assert_eq!((shared.push(&[segment(0)]), shared.room(), shared.posted()), (None, 0, 2));
    assert!(!shared.recycle(2), "the device does not own the last WQE");
    assert!(!shared.recycle(3), "it is not in the list");
    shared.publish();
    let target = node.target(&shared, 7);
    let mut initiator = node.initiator(&InitiatorConfig::default());
    let to = initiator.destination(&node.peer(&target)).unwrap();
    let (mut sent, mut received, mut kept) = (0_u32, 0_u32, Vec::new());
    while received < MESSAGES {
        while sent < MESSAGES && sent - received < 16 {
            let post =
                initiator.send.towards(&to).post(Send(Inline(&sent.to_le_bytes())), SIGNALED);
            if post.is_err() {
                break;
            }
            sent += 1;
        }
        let done = node.wait();
        match done.kind {
            CompletionKind::Send => initiator.send.reap(done.wqe_counter),
            CompletionKind::Receive => {
                let index = done.wqe_counter % ENTRIES as u16;
                assert_eq!(bytes(&inbox, usize::from(index) * 64), received.to_le_bytes());
                received += 1;
                if received == 100 || received == 200 {
                    // Also while WQEs are out of their order.
                    assert!(shared.extend(if received == 100 { 1 } else { 4 }, segment));
                }
                // Some stay out for a while, so that the order of the list changes.
                kept.push(index);
                if kept.len() as u32 > shared.filled() / 2 || received % 5 == 0 {
                    if received % 3 == 0 {
                        shared.doubt();
                        assert!(kept.iter().all(|&index| !shared.recycle_next(index)), "doubted");
                    }
                    for index in kept.drain(..).rev() {
                        assert!(shared.recycle_next(index) || shared.recycle(index.into()));
                        assert!(!shared.recycle_next(index), "it is not posted");
                    }
                    shared.publish();
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(shared.posted() > 1 << 16);
}

#[test]
fn wrong_arguments_are_refused() {
    let (node, other) = (Node::new(), Node::new());
    let domain = &node.domain;
    for entries in [0, 1, (1 << 15) + 1] {
        assert!(SharedReceiveQueue::<List>::create(domain, entries, 1).is_err(), "{entries}");
    }
    for segments in [0, 64] {
        assert!(SharedReceiveQueue::<List>::create(domain, 4, segments).is_err(), "{segments}");
    }
    let shared = SharedReceiveQueue::<List>::create(domain, 3, 1).unwrap();
    assert_eq!(shared.entries(), 4);
    assert!(shared.arm_limit(4).is_err());
    // Nobody would receive the event.
    assert!(matches!(shared.arm_limit(3), Err(Error::Unsupported { .. })));
    let create = |completions, shared: &SharedReceiveQueue, config: &TargetConfig| {
        Target::create(domain, completions, shared, config)
    };
    let config = TargetConfig::default();
    assert!(create(&other.completions, &shared, &config).is_err());
    let foreign = SharedReceiveQueue::create(&other.domain, 4, 1).unwrap();
    assert!(create(&node.completions, &foreign, &config).is_err());
    assert!(create(&node.completions, &shared, &config.user_index(1 << 24)).is_err());
    assert!(create(&node.completions, &shared, &config.min_rnr_nak(32)).is_err());
    let target = create(&node.completions, &shared, &config).unwrap();
    let initiator = node.initiator(&InitiatorConfig::default());
    let peer = node.peer(&target);
    assert!(initiator.destination(&Peer { target: 1 << 24, ..peer }).is_err());
    assert!(initiator.destination(&Peer { service_level: 16, ..peer }).is_err());
    let create = |config: InitiatorConfig| {
        Initiator::<barewire_mlx5::doorbell::BlueFlame>::create(
            domain,
            &node.uar,
            &node.completions,
            &config,
        )
    };
    assert!(create(InitiatorConfig::default().retry_count(8)).is_err());
    assert!(create(InitiatorConfig::default().user_index(1 << 24)).is_err());
    assert!(create(InitiatorConfig::default().send_blocks(0)).is_err());
}

/// The longest inline payloads, and posts to a full ring.
#[test]
fn limits_of_posts() {
    let mut node = Node::new();
    let shared = SharedReceiveQueue::<List>::create(&node.domain, 4, 1).unwrap();
    let target = node.target(&shared, 7);
    let mut initiator = node.initiator(&InitiatorConfig::default().send_blocks(16));
    let to = initiator.destination(&node.peer(&target)).unwrap();
    let there = node.buffer(256);
    let remote = there.region().remote(0);
    assert_eq!((AddressVector::MAX_INLINE, AddressVector::MAX_WRITE_INLINE), (188, 172));
    assert_eq!((AddressVector::MAX_SEND_SEGMENTS, AddressVector::MAX_RDMA_SEGMENTS), (12, 11));
    let queue = &mut initiator.send;
    let long = Err(PostError::TooLong);
    assert_eq!(queue.towards(&to).post(Write { local: Inline(&[0; 173]), remote }, SIGNALED), long);
    assert_eq!(queue.towards(&to).post(Send(Inline(&[0; 189])), SIGNALED), long);
    assert_eq!(
        queue
            .towards(&to)
            .post(Send(Prefixed { prefix: [0; 12], payload: Inline(&[0; 177]) }), SIGNALED),
        long
    );
    let many = [DataSegment::new(0, 1, 0); MAX_SEGMENTS + 1];
    assert_eq!(queue.towards(&to).post(Send(Segments(&many)), SIGNALED), long);
    assert_eq!(queue.room(), 16);
    for round in 0..20_u8 {
        let queue = &mut initiator.send;
        for _ in 0..4 {
            queue
                .towards(&to)
                .post(Write { local: Inline(&[round; 172]), remote }, SIGNALED)
                .unwrap();
        }
        let full = Err(PostError::QueueFull);
        assert_eq!(queue.towards(&to).post(Write { local: Word([0; 8]), remote }, SIGNALED), full);
        for _ in 0..4 {
            let done = node.wait();
            assert_eq!(done.kind, CompletionKind::Send);
            initiator.send.reap(done.wqe_counter);
        }
        assert_eq!(bytes(&there, 0), [round; 172]);
        // Moves the start by an odd number of blocks of two.
        initiator.send.towards(&to).post(Write { local: Word([0; 8]), remote }, SIGNALED).unwrap();
        let done = node.wait();
        initiator.send.reap(done.wqe_counter);
    }
}

/// A peer refuses requests of one stream, and the others arrive.
#[test]
fn a_stream_in_error_is_reset_alone() {
    let [mut a, b] = [Node::new(), Node::new()];
    let shared = SharedReceiveQueue::<List>::create(&b.domain, 16, 1).unwrap();
    let config = TargetConfig::default().full_handshake(true);
    let target = Target::create(&b.domain, &b.completions, &shared, &config).unwrap();
    let config =
        InitiatorConfig::default().log_streams(3).log_errored_streams(1).full_handshake(true);
    let mut initiator = a.initiator(&config);
    let to = initiator.destination(&b.peer(&target)).unwrap();
    let memory = b.buffer(4096);
    let good = memory.region().remote(0);
    let bad = RemoteAddressSegment::new(good.address.get(), good.rkey.get() ^ 0x100);
    let refused = Some(Syndrome::RemoteAccess);
    let flushed = Some(Syndrome::WorkRequestFlushed);
    for (stream, remote, wanted) in [
        (0x100, good, None),
        (7, bad, Some(refused)),
        (7, good, Some(flushed)),
        (0x107, good, Some(flushed)),
        (6, good, None),
    ] {
        let to = to.on_stream(stream);
        initiator
            .send
            .towards(&to)
            .post(Write { local: Inline(b"12345678"), remote }, SIGNALED)
            .unwrap();
        let done = a.wait();
        initiator.send.reap(done.wqe_counter);
        let found = match done.kind {
            CompletionKind::SendError(failure) => Some(failure.syndrome()),
            _ => None,
        };
        assert_eq!(found, wanted, "stream {stream}");
    }
    assert_eq!(initiator.state().unwrap(), QpState::Rts);
    initiator.reset_stream(6).expect_err("the stream is not in error");
    initiator.reset_stream(0x107).unwrap();
    for (stream, remote) in [(7, good), (7, bad), (5, bad)] {
        let to = to.on_stream(stream);
        initiator
            .send
            .towards(&to)
            .post(Write { local: Inline(b"12345678"), remote }, SIGNALED)
            .unwrap();
        initiator.send.reap(a.wait().wqe_counter);
    }
    // Two streams in error stop it.
    assert_eq!(initiator.state().unwrap(), QpState::Err);
}

#[test]
fn more_streams_than_the_device_has_are_refused() {
    let a = Node::new();
    let (most, errored) = a.context.capabilities().log_max_streams;
    for config in [
        InitiatorConfig::default().log_streams(most + 1),
        InitiatorConfig::default().log_errored_streams(errored + 1),
    ] {
        let error = Initiator::create(&a.domain, &a.uar, &a.completions, &config).unwrap_err();
        assert!(error.to_string().contains("at most 8"), "{error}");
    }
}
