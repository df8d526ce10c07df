//! Posting by verbs, with builder functions and with lists.

use crate::support;

use barewire_verbs::{
    Access, AddressHandle, CompletionKind, CompletionQueue, Context, Data, Element, FailureStatus,
    Initialize, Operation, PostBy, PostError, ProtectionDomain, QueuePair, QueuePairKind,
    ReadyToSend, Remote, Request, SendFlags,
};
use support::{Buffer, completion, connect, device, options, to_itself, wait_for};

/// Two queue pairs of one device that are connected to each other.
struct Pair {
    domain: ProtectionDomain,
    context: Context,
    queue: CompletionQueue,
    near: QueuePair,
    far: QueuePair,
}

impl Pair {
    fn new(by: PostBy) -> Self {
        let context = Context::open(&device()).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 128).unwrap();
        let make = || {
            let options = options(QueuePairKind::ReliableConnection, &queue);
            let qp = match by {
                PostBy::Builder => QueuePair::new(&domain, &options),
                PostBy::List => QueuePair::by_list(&domain, &options),
            };
            let qp = qp.unwrap();
            // The builder functions of Soft-RoCE are not used.
            assert!(qp.post_by() == by || device().starts_with("rxe"), "{by:?}");
            qp
        };
        let (near, far) = (make(), make());
        let route = to_itself(&context, &domain);
        connect(&near, far.number(), route);
        connect(&far, near.number(), route);
        Self { domain, context, queue, near, far }
    }

    /// Posts a signalled request to the near queue pair, and waits for its successful completion.
    fn run(&self, operation: Operation<'_>, data: Data<'_>) {
        self.near.post(&request(7, operation, data)).unwrap();
        let ended = completion(&self.queue);
        ended.outcome().unwrap();
        assert_eq!((ended.id(), ended.queue_pair()), (7, self.near.number()));
    }
}

fn request<'a>(id: u64, operation: Operation<'a>, data: Data<'a>) -> Request<'a> {
    Request { id, operation, data, flags: SendFlags::SIGNALED }
}

const BOTH: [PostBy; 2] = [PostBy::Builder, PostBy::List];

#[test]
#[ignore = "needs a device"]
fn memory_is_written_and_read() {
    for by in BOTH {
        let pair = Pair::new(by);
        let (here, there) = (Buffer::new(&pair.domain), Buffer::new(&pair.domain));
        let write = |offset| Operation::Write { remote: there.remote(offset), immediate: None };
        pair.run(write(0), Data::Inline(b"inline"));
        pair.run(write(6), Data::Inline2(b", in ", b"two"));
        here.pages.write(100, b" and by element");
        pair.run(write(14), Data::Elements(&[here.element(100, 4), here.element(104, 11)]));
        assert_eq!(&there.pages.read::<29>(0), b"inline, in two and by element");
        let read = Operation::Read { remote: there.remote(0) };
        pair.run(read, Data::Elements(&[here.element(4096, 29)]));
        assert_eq!(&here.pages.read::<29>(4096), b"inline, in two and by element");
        // A write of zero bytes is valid.
        pair.run(write(0), Data::Inline(b""));
    }
}

#[test]
#[ignore = "needs a device"]
fn atomics_fetch_what_was_there() {
    for by in BOTH {
        let pair = Pair::new(by);
        let (here, there) = (Buffer::new(&pair.domain), Buffer::new(&pair.domain));
        there.pages.write(8, &40_u64.to_ne_bytes());
        let remote = there.remote(8);
        let result = [here.element(16, 8)];
        let fetched = || u64::from_ne_bytes(here.pages.read(16));
        pair.run(Operation::FetchAdd { remote, add: 2 }, Data::Elements(&result));
        assert_eq!(fetched(), 40);
        pair.run(Operation::CompareSwap { remote, compare: 42, swap: 99 }, Data::Elements(&result));
        assert_eq!(fetched(), 42);
        pair.run(Operation::CompareSwap { remote, compare: 42, swap: 1 }, Data::Elements(&result));
        assert_eq!((fetched(), u64::from_ne_bytes(there.pages.read(8))), (99, 99));
    }
}

#[test]
#[ignore = "needs a device"]
fn messages_arrive_with_their_immediate() {
    for by in BOTH {
        let pair = Pair::new(by);
        let there = Buffer::new(&pair.domain);
        let mut seen = Vec::new();
        for id in 0..3 {
            pair.far.post_receive(id, &[there.element(64 * id, 64)]).unwrap();
        }
        let remote = there.remote(4096);
        for operation in [
            Operation::Send { immediate: None },
            Operation::Send { immediate: Some(0x0102_0304) },
            Operation::Write { remote, immediate: Some(5) },
        ] {
            pair.near.post(&request(7, operation, Data::Inline(b"message"))).unwrap();
            for _ in 0..2 {
                let ended = completion(&pair.queue);
                ended.outcome().unwrap();
                if ended.queue_pair() == pair.far.number() {
                    seen.push((ended.id(), ended.kind(), ended.length(), ended.immediate()));
                }
            }
        }
        let wanted = [
            (0, CompletionKind::Receive, 7, None),
            (1, CompletionKind::Receive, 7, Some(0x0102_0304)),
            (2, CompletionKind::ReceiveWrite, 7, Some(5)),
        ];
        assert_eq!(seen, wanted);
        for offset in [0, 64, 4096] {
            assert_eq!(&there.pages.read::<7>(offset), b"message");
        }
    }
}

#[test]
#[ignore = "needs a device"]
fn what_cannot_be_posted_is_not() {
    for by in BOTH {
        let pair = Pair::new(by);
        let there = Buffer::new(&pair.domain);
        let write = Operation::Write { remote: there.remote(0), immediate: None };
        let capacity = pair.near.capacity();
        let long = vec![1; capacity.inline as usize + 1];
        let error = pair.near.post(&request(1, write, Data::Inline(&long))).unwrap_err();
        assert_eq!(error, PostError::TooLong { length: long.len(), most: capacity.inline });
        let many = vec![there.element(0, 1); capacity.send_elements as usize + 1];
        let error = pair.near.post(&request(1, write, Data::Elements(&many))).unwrap_err();
        assert_eq!(
            error,
            PostError::TooManyElements { count: many.len(), most: capacity.send_elements }
        );
        let many = vec![there.element(0, 1); capacity.receive_elements as usize + 1];
        assert!(matches!(pair.far.post_receive(1, &many), Err(PostError::TooManyElements { .. })));
        let handle =
            AddressHandle::new(&pair.domain, &to_itself(&pair.context, &pair.domain)).unwrap();
        let datagram =
            Operation::SendTo { handle: &handle, queue_pair: 1, queue_key: 1, immediate: None };
        let error = pair.near.post(&request(1, datagram, Data::Inline(b""))).unwrap_err();
        assert_eq!(error, PostError::Unsupported);
        // None of these requests was posted, and the queue pair still works.
        pair.run(write, Data::Inline(b"x"));
        let posted = (0..100_000).take_while(|&id| {
            let unsignalled =
                Request { flags: SendFlags::empty(), ..request(id, write, Data::Inline(b"x")) };
            match pair.near.post(&unsignalled) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    false
                }
            }
        });
        assert!(posted.count() >= 15, "{by:?}");
    }
}

#[test]
#[ignore = "needs a device"]
fn a_failure_is_told_and_the_rest_is_flushed() {
    for by in BOTH {
        let pair = Pair::new(by);
        let there = Buffer::new(&pair.domain);
        let remote = Remote { key: there.region.remote_key() ^ 0x00f0_0000, ..there.remote(0) };
        let write = Operation::Write { remote, immediate: None };
        pair.near.post(&request(1, write, Data::Inline(b"x"))).unwrap();
        let failure = loop {
            let ended = completion(&pair.queue);
            if ended.id() == 1 {
                break ended.outcome().unwrap_err();
            }
        };
        assert_eq!(failure.status, FailureStatus::REMOTE_ACCESS, "{failure}");
        pair.near.post(&request(2, write, Data::Inline(b"x"))).unwrap();
        let flushed = completion(&pair.queue).outcome().unwrap_err();
        assert_eq!(flushed.status, FailureStatus::FLUSHED, "{flushed}");
    }
}

#[test]
#[ignore = "needs a device"]
fn datagrams_go_where_their_handle_points() {
    const KEY: u32 = 0x1234;
    /// Size of the global routing header that precedes a datagram in the buffer.
    const ROUTE: usize = 40;
    for by in BOTH {
        let context = Context::open(&device()).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 16).unwrap();
        let options = options(QueuePairKind::UnreliableDatagram, &queue);
        let qp = match by {
            PostBy::Builder => QueuePair::new(&domain, &options),
            PostBy::List => QueuePair::by_list(&domain, &options),
        }
        .unwrap();
        let values =
            Initialize { port: 1, partition_index: 0, access: Access::empty(), queue_key: KEY };
        qp.initialize(&values).unwrap();
        qp.ready_to_receive(None).unwrap();
        let first = 0;
        qp.ready_to_send(&ReadyToSend {
            packet_sequence_number: first,
            timeout: 0,
            retries: 0,
            rnr_retries: 0,
            initiator_depth: 0,
        })
        .unwrap();
        let buffer = Buffer::new(&domain);
        qp.post_receive(1, &[buffer.element(0, 256)]).unwrap();
        let handle = AddressHandle::new(&domain, &to_itself(&context, &domain)).unwrap();
        let operation = Operation::SendTo {
            handle: &handle,
            queue_pair: qp.number(),
            queue_key: KEY,
            immediate: Some(9),
        };
        qp.post(&request(2, operation, Data::Inline(b"datagram"))).unwrap();
        let mut received = false;
        wait_for("the datagram", || {
            let ended = completion(&queue);
            ended.outcome().unwrap();
            if ended.id() == 1 {
                assert_eq!(ended.length() as usize, ROUTE + 8);
                assert_eq!((ended.source_queue_pair(), ended.immediate()), (qp.number(), Some(9)));
                received = true;
            }
            received
        });
        assert_eq!(&buffer.pages.read::<8>(ROUTE), b"datagram");
        let error = qp
            .post(&request(3, Operation::Send { immediate: None }, Data::Inline(b"")))
            .unwrap_err();
        assert_eq!(error, PostError::Unsupported);
    }
}

#[test]
fn elements_name_a_part_of_memory() {
    let element = Element::new(0x1000, 16, 0xab);
    assert_eq!(format!("{element:?}"), "Element { address: 0x1000, length: 16, local_key: 0xab }");
}
