//! Unreliable datagrams on the software HCA, or on a device of the machine: what is sent arrives
//! with its sender's number, what nobody may take is dropped, and rings wrap.

use crate::machine;

use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::layouts::wqe::AddressVector;
use barewire_mlx5::queue::send::Destination;
use barewire_mlx5::request::{Inline, Segments, Send, SendImmediate};
use barewire_mlx5::ud::{RECEIVE_PREFIX, UdPeer};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, Context, ControlFlags, Error,
    Polled, PostError, ProtectionDomain, QpState, Uar, UdConfig, UdQueuePair, hca,
};

const DEADLINE: Duration = Duration::from_mins(1);
/// Bytes of a receive buffer: a datagram of the longest packet.
const SLOT: usize = RECEIVE_PREFIX + 4096;

/// A queue pair, with a buffer for each receive WQE.
struct End {
    pair: UdQueuePair,
    sent: CompletionQueue,
    received: CompletionQueue,
    inbox: Buffer,
    /// The receive WQE that is posted next.
    next: usize,
    domain: ProtectionDomain,
    context: Context,
}

/// The device that the environment names, or a software HCA in this process.
fn context() -> Context {
    machine::context().unwrap_or_else(|| {
        let config = hca::Config::default().strict(hca::Strict::Panic);
        Context::open(Soft::new(hca::Device::open(config).unwrap())).unwrap()
    })
}

impl End {
    fn new(context: &Context, config: UdConfig) -> Self {
        let domain = ProtectionDomain::allocate(context).unwrap();
        let uar = Uar::allocate(context).unwrap();
        let sent = CompletionQueue::create(context, &uar, 1024).unwrap();
        let received = CompletionQueue::create(context, &uar, 1024).unwrap();
        let pair = UdQueuePair::create(&domain, &uar, &sent, &received, &config).unwrap();
        let slots = pair.receive.entries() as usize;
        let inbox = Buffer::allocate(&domain, slots * SLOT, Access::LOCAL_WRITE).unwrap();
        Self { pair, sent, received, inbox, next: 0, domain, context: context.clone() }
    }

    fn post_receives(&mut self, count: usize) {
        for _ in 0..count {
            let slot = self.next % self.pair.receive.entries() as usize;
            let segment = self.inbox.region().segment(slot * SLOT, SLOT).unwrap();
            assert!(self.pair.receive.push(segment));
            self.next += 1;
        }
        self.pair.receive.publish();
    }

    fn to(&self, other: &Self) -> AddressVector {
        let peer = UdPeer::new(other.context.port_address(), other.pair.number());
        self.pair.destination(&peer).unwrap()
    }

    fn wait_sent(&mut self) -> Completion {
        let completion = poll(&mut self.sent);
        self.pair.send.reap(completion.wqe_counter);
        completion
    }

    /// The next datagram: how it completed, its sender, and its payload.
    fn receive(&mut self) -> (CompletionKind, u32, Vec<u8>) {
        let completion = poll(&mut self.received);
        let source = self.received.last_cqe().packet().source_qpn();
        self.pair.receive.reap();
        let slots = self.pair.receive.entries() as usize;
        let slot = usize::from(completion.wqe_counter) % slots;
        let length = (completion.byte_count as usize).checked_sub(RECEIVE_PREFIX).unwrap();
        let mut payload = vec![0; length];
        self.inbox.read(slot * SLOT + RECEIVE_PREFIX, &mut payload).unwrap();
        (completion.kind, source, payload)
    }
}

fn poll(completions: &mut CompletionQueue) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(completion) = completions.poll().map(Polled::completion) {
            return completion;
        }
        assert!(start.elapsed() < DEADLINE, "no completion");
        std::thread::yield_now();
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + length) as u8).collect()
}

#[test]
fn datagrams_of_every_kind_arrive_with_their_sender() {
    let context = context();
    let [mut ours, mut theirs] = [(); 2].map(|()| End::new(&context, UdConfig::default()));
    theirs.post_receives(8);
    let (to, number) = (ours.to(&theirs), ours.pair.number());
    let longest = ours.pair.max_payload();
    let outbox = Buffer::allocate(&ours.domain, longest, Access::LOCAL_WRITE).unwrap();
    outbox.write(0, &bytes(longest)).unwrap();
    let whole = outbox.region().segment(0, longest).unwrap();
    let parts = [(0, 5), (100, 7)];
    let parts = parts.map(|(at, length)| outbox.region().segment(at, length).unwrap());
    let inline = bytes(AddressVector::MAX_INLINE);

    let send = &mut ours.pair.send;
    let none = ControlFlags::empty();
    send.towards(&to).post(Send(Inline(&[])), none).unwrap();
    send.towards(&to).post(Send(Inline(&inline)), none).unwrap();
    send.towards(&to)
        .post(SendImmediate { local: Inline(b"x"), immediate: 0x0102_0304 }, none)
        .unwrap();
    send.towards(&to).post(Send(whole), none).unwrap();
    send.towards(&to).post(Send(Segments(&parts)), none).unwrap();
    send.towards(&to)
        .post(SendImmediate { local: Segments(&[whole]), immediate: 7 }, ControlFlags::COMPLETION)
        .unwrap();
    let too_long = send.towards(&to).post(Send(Inline(&bytes(inline.len() + 1))), none);
    assert_eq!(too_long, Err(PostError::TooLong));

    let pieces = [&bytes(longest)[..5], &bytes(longest)[100..107]].concat();
    let wanted = [
        (CompletionKind::Receive, vec![]),
        (CompletionKind::Receive, inline),
        (CompletionKind::ReceiveImmediate(0x0102_0304), b"x".to_vec()),
        (CompletionKind::Receive, bytes(longest)),
        (CompletionKind::Receive, pieces),
        (CompletionKind::ReceiveImmediate(7), bytes(longest)),
    ];
    for (kind, payload) in wanted {
        assert_eq!(theirs.receive(), (kind, number, payload));
    }
    assert_eq!(ours.wait_sent().kind, CompletionKind::Send);
    assert!(ours.pair.send.is_idle());
}

#[test]
fn a_datagram_that_nobody_may_take_is_dropped_and_the_next_one_arrives() {
    let context = context();
    let [mut ours, mut theirs] = [(); 2].map(|()| End::new(&context, UdConfig::default()));
    let to = ours.to(&theirs);
    // Without a receive WQE.
    ours.pair.send.towards(&to).post(Send(Inline(b"early")), ControlFlags::COMPLETION).unwrap();
    assert_eq!(ours.wait_sent().kind, CompletionKind::Send);
    // With another key, and to a queue pair that does not exist.
    let peer = UdPeer::new(context.port_address(), theirs.pair.number());
    let foreign = ours.pair.destination(&UdPeer { queue_key: 5, ..peer }).unwrap();
    let nobody = ours.pair.destination(&UdPeer { qpn: 0x00ff_fff0, ..peer }).unwrap();
    for destination in [foreign, nobody] {
        ours.pair
            .send
            .towards(&destination)
            .post(Send(Inline(b"lost")), ControlFlags::COMPLETION)
            .unwrap();
        assert_eq!(ours.wait_sent().kind, CompletionKind::Send);
    }
    // The early one is dropped when it arrives, which may be after the post of a receive WQE, but
    // not after the datagrams behind it.
    theirs.post_receives(2);
    ours.pair.send.towards(&to).post(Send(Inline(b"last")), ControlFlags::COMPLETION).unwrap();
    let (_, number, mut payload) = theirs.receive();
    if payload == b"early" {
        payload = theirs.receive().2;
    }
    assert_eq!((number, &payload[..]), (ours.pair.number(), &b"last"[..]));
}

#[test]
fn thousands_of_datagrams_through_small_rings() {
    const COUNT: u32 = 20_000;
    let context = context();
    let small = UdConfig::default().send_blocks(1).receive_entries(1).signal_period(4);
    let [mut ours, mut theirs] = [(); 2].map(|()| End::new(&context, small));
    let to = ours.to(&theirs);
    // One at a time: two would need room in the receive ring for both.
    theirs.post_receives(2);
    for number in 0..COUNT {
        let payload = &number.to_le_bytes()[..=number as usize % 4];
        while ours
            .pair
            .send
            .towards(&to)
            .post(Send(Inline(payload)), ControlFlags::empty())
            .is_err()
        {
            ours.wait_sent();
        }
        let (kind, _, got) = theirs.receive();
        assert_eq!((kind, &got[..]), (CompletionKind::Receive, payload), "datagram {number}");
        theirs.post_receives(1);
    }
}

#[test]
fn a_reset_empties_the_queues_and_wrong_values_say_what_is_wanted() {
    let context = context();
    let [mut ours, mut theirs] = [(); 2].map(|()| End::new(&context, UdConfig::default()));
    theirs.post_receives(3);
    theirs.pair.to_error().unwrap();
    assert_eq!(theirs.pair.state().unwrap(), QpState::Err);
    for _ in 0..3 {
        let CompletionKind::ReceiveError(failure) = poll(&mut theirs.received).kind else {
            panic!("a receive WQE of a failed queue pair is flushed")
        };
        assert!(failure.is_flush());
    }
    theirs.pair.reset().unwrap();
    theirs.next = 0;
    assert_eq!(theirs.pair.state().unwrap(), QpState::Rts);
    theirs.post_receives(1);
    let to = ours.to(&theirs);
    ours.pair.send.towards(&to).post(Send(Inline(b"again")), ControlFlags::COMPLETION).unwrap();
    assert_eq!(theirs.receive().2, b"again");
    assert_eq!(ours.wait_sent().kind, CompletionKind::Send);

    let peer = UdPeer::new(context.port_address(), 1 << 24);
    let wrong = [peer, UdPeer { qpn: 1, service_level: 16, ..peer }];
    for peer in wrong {
        let refused = ours.pair.destination(&peer);
        assert!(matches!(refused, Err(Error::Parameter { .. })), "{refused:?}");
    }
    let uar = Uar::allocate(&context).unwrap();
    let config = UdConfig::default().queue_key(1 << 31);
    let refused: Result<UdQueuePair, _> =
        UdQueuePair::create(&ours.domain, &uar, &ours.sent, &ours.received, &config);
    assert!(refused.unwrap_err().to_string().contains("queue key"));
}
