//! Extended reliable connections: one connection to several shared receive queues, on the software
//! HCA or on a device of the machine that was set up by DEVX.

use crate::machine;

use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::layouts::cqe::Syndrome;
use barewire_mlx5::layouts::wqe::XrcSegment;
use barewire_mlx5::queue::send::Destination;
use barewire_mlx5::request::{
    CompareSwap, FetchAdd, Inline, MaskedAdd, MaskedFetchAdd, Read, Segments, Send, Word, Write,
};
use barewire_mlx5::xrc::{Domain, Initiator, Receiver, Target};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, Context, ControlFlags,
    DataSegment, Error, ProtectionDomain, QpState, RcConfig, RcPath, RcQueuePair, Uar, hca,
};

const SIGNALED: ControlFlags = ControlFlags::COMPLETION;

struct Node {
    domain: ProtectionDomain,
    uar: Uar,
    xrc: Domain,
    completions: CompletionQueue,
    initiator: Initiator,
    target: Target,
}

impl Node {
    /// A node that is connected with itself. `None` on a device that was set up by verbs objects.
    fn connected() -> Option<Self> {
        let context = machine::context().unwrap_or_else(|| {
            let config = hca::Config::default().strict(hca::Strict::Panic);
            Context::open(Soft::new(hca::Device::open(config).unwrap())).unwrap()
        });
        let xrc = match Domain::allocate(&context) {
            Ok(xrc) => xrc,
            Err(Error::Unsupported { what, .. }) => {
                assert_eq!(what, "XRC");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 2048).unwrap();
        let config = RcConfig::default().user_index(3);
        let Receiver { name, .. } = Receiver::create(&domain, &xrc, &completions, 8, 1, 0).unwrap();
        let mut target = Target::create_target(&domain, &name, &completions, &config).unwrap();
        let mut initiator: Initiator =
            Initiator::create_initiator(&domain, &uar, &name, &completions, &config).unwrap();
        initiator.connect(&RcPath::to(&target.address())).unwrap();
        target.connect(&RcPath::to(&initiator.address())).unwrap();
        Some(Self { domain, uar, xrc, completions, initiator, target })
    }

    fn receiver(&self, user_index: u32) -> Receiver {
        Receiver::create(&self.domain, &self.xrc, &self.completions, 8, 2, user_index).unwrap()
    }

    fn buffer(&self, length: usize) -> Buffer {
        Buffer::allocate(&self.domain, length, Access::all()).unwrap()
    }

    fn wait(&mut self) -> Completion {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(polled) = self.completions.poll() {
                let completion = polled.completion();
                if matches!(completion.kind, CompletionKind::Send | CompletionKind::SendError(_)) {
                    self.initiator.send.reap(completion.wqe_counter);
                }
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }
}

fn local(buffer: &Buffer, offset: usize, length: usize) -> DataSegment {
    buffer.region().segment(offset, length).unwrap()
}

fn bytes(buffer: &Buffer, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    buffer.read(offset, &mut bytes).unwrap();
    bytes
}

/// Messages of one connection arrive at the receivers that they name, across the wrap of both rings.
#[test]
fn messages_arrive_at_the_receiver_that_they_name() {
    let Some(mut node) = Node::connected() else { return };
    let mut receivers = [node.receiver(11), node.receiver(12)];
    let (inbox, outbox) = (node.buffer(2 * 256), node.buffer(256));
    let most = <XrcSegment as Destination>::MAX_INLINE;
    for round in 0..600_usize {
        let length = [1, 8, 44, most, 200][round % 5];
        let payload: Vec<u8> = (0..length).map(|at| (at * 3 + round) as u8).collect();
        let at = round % 2;
        let buffer = [local(&inbox, at * 256, 100), local(&inbox, at * 256 + 100, 156)];
        let receiver = &mut receivers[at];
        let posted = receiver.queue.push(&buffer);
        receiver.queue.publish();
        let to = receiver.destination();
        assert!(posted.is_some());
        let mut send = node.initiator.send.towards(&to);
        if length <= most {
            send.post(Send(Inline(&payload)), SIGNALED).unwrap();
        } else {
            outbox.write(0, &payload).unwrap();
            let pieces = [local(&outbox, 0, 50), local(&outbox, 50, length - 50)];
            send.post(Send(Segments(&pieces)), SIGNALED).unwrap();
        }
        let mut received = None;
        for _ in 0..2 {
            let completion = node.wait();
            match completion.kind {
                CompletionKind::Send => assert_eq!(completion.user_index, 3),
                CompletionKind::Receive => received = Some(completion),
                other => panic!("{other:?}"),
            }
        }
        let received = received.unwrap();
        assert_eq!(received.byte_count as usize, length);
        assert_eq!(received.user_index, 11 + at as u32);
        assert_eq!(bytes(&inbox, at * 256, length), payload, "round {round}");
        let released = receivers[at].queue.release(received.wqe_counter);
        assert!(released.is_some());
    }
}

#[test]
fn one_sided_operations_work() {
    let Some(mut node) = Node::connected() else { return };
    let receiver = node.receiver(0);
    let to = receiver.destination();
    let (here, there) = (node.buffer(64), node.buffer(512));
    let remote = |offset| there.region().remote(offset);
    there.write(256, &7_u64.to_ne_bytes()).unwrap();
    here.write(0, &[5; 16]).unwrap();
    let queue = &mut node.initiator.send;
    queue.towards(&to).post(Write { local: Word([1; 8]), remote: remote(0) }, SIGNALED).unwrap();
    queue
        .towards(&to)
        .post(Write { local: Inline(&[2; 150]), remote: remote(8) }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(Write { local: Segments(&[local(&here, 0, 16)]), remote: remote(158) }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(Read { local: Segments(&[local(&here, 16, 4)]), remote: remote(6) }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(FetchAdd { local: local(&here, 24, 8), remote: remote(256), add: 3 }, SIGNALED)
        .unwrap();
    queue
        .towards(&to)
        .post(
            CompareSwap { local: local(&here, 32, 8), remote: remote(256), compare: 10, swap: 20 },
            SIGNALED,
        )
        .unwrap();
    let add = MaskedAdd { operand: 1_u64, field_boundary: 0 };
    queue
        .towards(&to)
        .post(
            MaskedFetchAdd { local: local(&here, 40, 8), remote: remote(256), operands: add },
            SIGNALED,
        )
        .unwrap();
    for _ in 0..7 {
        assert_eq!(node.wait().kind, CompletionKind::Send);
    }
    assert_eq!(bytes(&there, 0, 8), [1; 8]);
    assert_eq!(bytes(&there, 8, 150), [2; 150]);
    assert_eq!(bytes(&there, 158, 16), [5; 16]);
    assert_eq!(bytes(&here, 16, 4), [1, 1, 2, 2]);
    let words = [(24, 7_u64), (32, 10), (40, 20)];
    for (offset, wanted) in words {
        assert_eq!(bytes(&here, offset, 8), wanted.to_ne_bytes());
    }
    assert_eq!(bytes(&there, 256, 8), 21_u64.to_ne_bytes());
}

/// A number that names no receiver fails the connection, and both ends work again after a reset.
#[test]
fn an_unknown_receiver_is_an_error() {
    let Some(mut node) = Node::connected() else { return };
    let mut receiver = node.receiver(1);
    let unknown = XrcSegment::new(receiver.number() ^ 0x00ff_0000);
    node.initiator.send.towards(&unknown).post(Send(Inline(b"lost")), SIGNALED).unwrap();
    let CompletionKind::SendError(failure) = node.wait().kind else { panic!("no error") };
    assert_eq!(failure.syndrome(), Some(Syndrome::RemoteInvalidRequest));
    assert_eq!(node.initiator.state().unwrap(), QpState::Err);
    node.initiator.reset().unwrap();
    node.target.reset().unwrap();
    node.initiator.connect(&RcPath::to(&node.target.address())).unwrap();
    node.target.connect(&RcPath::to(&node.initiator.address())).unwrap();
    let inbox = node.buffer(64);
    assert!(receiver.queue.push(&[local(&inbox, 0, 64)]).is_some());
    receiver.queue.publish();
    let to = receiver.destination();
    node.initiator.send.towards(&to).post(Send(Inline(b"found")), SIGNALED).unwrap();
    let kinds = [node.wait().kind, node.wait().kind];
    assert!(kinds.contains(&CompletionKind::Receive) && kinds.contains(&CompletionKind::Send));
    assert_eq!(bytes(&inbox, 0, 5), b"found");
}

#[test]
fn objects_are_kept_and_foreign_ones_refused() {
    let Some(node) = Node::connected() else { return };
    let receiver = node.receiver(1);
    // Queue pairs of another service cannot receive from it.
    let pair = RcQueuePair::<barewire_mlx5::doorbell::BlueFlame, _>::create_sharing(
        &node.domain,
        &node.uar,
        &node.completions,
        &node.completions,
        Some(&receiver.queue),
        &RcConfig::default(),
    );
    assert!(pair.unwrap_err().to_string().contains("shared receive queue"));
    let create = |entries, segments, index| {
        let Node { domain, xrc, completions, .. } = &node;
        Receiver::create(domain, xrc, completions, entries, segments, index)
            .unwrap_err()
            .to_string()
    };
    assert!(create(1, 1, 0).contains("shared receive WQEs"));
    assert!(create(8, 64, 0).contains("segments"));
    assert!(create(8, 1, 1 << 24).contains("user index"));
    // The domain goes first.
    let Node { domain, xrc, completions, initiator, target, .. } = node;
    drop((domain, xrc, completions));
    drop((receiver, target, initiator));
}
