//! Tests of the driver on the software HCA, or on a device of the machine: operations take effect,
//! invalid ones fail with the syndrome of the device, and rings wrap.

use crate::machine;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use barewire_layouts::cqe::Syndrome;
use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::queue::send::MAX_WRITE_INLINE;
use barewire_mlx5::request::{
    CompareSwap, FetchAdd, Inline, Line, MaskedAdd, MaskedFetchAdd, Nop, Prefixed, Read, Segments,
    Send, SendImmediate, Word, Write, WriteImmediate,
};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, Context, ControlFlags,
    Enhancements, Error, Notifier, Polled, PostError, ProtectionDomain, QpState, RcAddress,
    RcConfig, RcPath, RcQueuePair, Uar, hca,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_descriptors};

const DEADLINE: Duration = Duration::from_mins(1);
/// For a million messages: on busy cores, each wait may cost a time slice of another process.
const VOLUME_DEADLINE: Duration = Duration::from_secs(160);

/// Two connected queue pairs of one device.
struct Pair {
    ours: RcQueuePair,
    theirs: RcQueuePair,
    completions: CompletionQueue,
    notifier: Notifier,
    peer_completions: CompletionQueue,
    domain: ProtectionDomain,
    context: Context,
    /// The software HCA, if it runs in this process.
    device: Option<hca::Device>,
}

impl Pair {
    fn new(config: RcConfig) -> Self {
        match machine::context() {
            Some(context) => Self::on(context, None, config),
            None => Self::over(hca::Config::default().strict(hca::Strict::Panic), config),
        }
    }

    fn over(device: hca::Config, config: RcConfig) -> Self {
        let device = hca::Device::open(device).unwrap();
        let context = Context::open(Soft::new(device.clone())).unwrap();
        Self::on(context, Some(device), config)
    }

    fn on(context: Context, device: Option<hca::Device>, config: RcConfig) -> Self {
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let (completions, notifier) =
            CompletionQueue::create_with_notifier(&context, &uar, 2048).unwrap();
        let notifier = notifier.expect("every way to a device of this crate has one");
        let peer_completions = CompletionQueue::create(&context, &uar, 2048).unwrap();
        let ours = RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap();
        let theirs =
            RcQueuePair::create(&domain, &uar, &peer_completions, &peer_completions, &config)
                .unwrap();
        let mut pair =
            Self { ours, theirs, completions, notifier, peer_completions, domain, context, device };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        self.ours.connect(&RcPath::to(&self.theirs.address())).unwrap();
        self.theirs.connect(&RcPath::to(&self.ours.address())).unwrap();
    }

    fn buffer(&self, length: usize, access: Access) -> Buffer {
        Buffer::allocate(&self.domain, length, access).unwrap()
    }

    /// Waits for the next completion of `ours` and reaps it.
    fn wait(&mut self) -> Completion {
        let completion = poll(&mut self.completions);
        if matches!(completion.kind, CompletionKind::Send | CompletionKind::SendError(_)) {
            self.ours.send.reap(completion.wqe_counter);
        }
        completion
    }

    fn wait_peer(&mut self) -> Completion {
        poll(&mut self.peer_completions)
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

/// Returns whether the descriptor becomes readable within `time`.
fn readable(notifier: &Notifier, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() };
    poll_descriptors(&mut [PollFd::new(&notifier.as_fd(), PollFlags::IN)], Some(&time)).unwrap()
        == 1
}

fn syndrome(completion: Completion) -> Syndrome {
    match completion.kind {
        CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure) => {
            failure.syndrome().unwrap()
        }
        kind => panic!("an error was expected, not {kind:?}"),
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + 1) as u8).collect()
}

#[test]
fn exchanged_queues_outlive_their_pairs() {
    let mut pair = Pair::new(RcConfig::default());
    let target = pair.buffer(8, Access::all());
    std::mem::swap(&mut pair.ours.send, &mut pair.theirs.send);
    std::mem::swap(&mut pair.ours.receive, &mut pair.theirs.receive);
    // The queues of `theirs` were moved to `ours` and keep their device objects and rings.
    drop(pair.theirs);
    for round in 1..=600u64 {
        let payload = round.to_ne_bytes();
        pair.ours
            .send
            .post(
                Write { local: Inline(&payload), remote: target.region().remote(0) },
                ControlFlags::COMPLETION,
            )
            .unwrap();
        let completion = poll(&mut pair.peer_completions);
        assert_eq!(completion.kind, CompletionKind::Send);
        pair.ours.send.reap(completion.wqe_counter);
        assert_eq!(target.load_u64(0).unwrap(), round);
    }
}

#[test]
fn inline_writes_of_every_length_arrive() {
    let mut pair = Pair::new(RcConfig::default());
    let target = pair.buffer(512, Access::all());
    for length in 0..=MAX_WRITE_INLINE {
        target.write(0, &[0; 512]).unwrap();
        let payload = bytes(length);
        let remote = target.region().remote(length % 5);
        pair.ours
            .send
            .post(Write { local: Inline(&payload), remote }, ControlFlags::COMPLETION)
            .unwrap();
        assert_eq!(pair.wait().kind, CompletionKind::Send);
        let mut got = vec![0; 512];
        target.read(0, &mut got).unwrap();
        let mut wanted = vec![0; 512];
        wanted[length % 5..length % 5 + length].copy_from_slice(&payload);
        assert_eq!(got, wanted, "{length} bytes");
    }
}

#[test]
fn reads_and_writes_by_reference_arrive() {
    let mut pair = Pair::new(RcConfig::default());
    let target = pair.buffer(1 << 20, Access::all());
    let source = pair.buffer(1 << 20, Access::LOCAL_WRITE);
    for length in [1, 4095, 4096, 4097, 100_000, 1 << 20] {
        let payload = bytes(length);
        source.write(0, &payload).unwrap();
        let local = source.region().segment(0, length).unwrap();
        pair.ours
            .send
            .post(Write { local, remote: target.region().remote(0) }, ControlFlags::COMPLETION)
            .unwrap();
        assert_eq!(pair.wait().kind, CompletionKind::Send);
        source.write(0, &vec![0; length]).unwrap();
        pair.ours
            .send
            .post(Read { local, remote: target.region().remote(0) }, ControlFlags::COMPLETION)
            .unwrap();
        assert_eq!(pair.wait().byte_count, length as u32);
        let mut got = vec![0; length];
        source.read(0, &mut got).unwrap();
        assert!(got == payload, "{length} bytes");
    }
    // Gathered from three segments, one of them empty, and scattered to two.
    let region = source.region();
    let parts = [
        region.segment(10, 5).unwrap(),
        region.segment(0, 0).unwrap(),
        region.segment(0, 3).unwrap(),
    ];
    pair.ours
        .send
        .post(
            Write { local: Segments(&parts), remote: target.region().remote(64) },
            ControlFlags::COMPLETION,
        )
        .unwrap();
    pair.wait();
    let parts = [region.segment(2000, 7).unwrap(), region.segment(3000, 1).unwrap()];
    pair.ours
        .send
        .post(
            Read { local: Segments(&parts), remote: target.region().remote(64) },
            ControlFlags::COMPLETION,
        )
        .unwrap();
    pair.wait();
    let payload = bytes(1 << 20);
    let mut got = [0; 8];
    source.read(2000, &mut got[..7]).unwrap();
    source.read(3000, &mut got[7..]).unwrap();
    assert_eq!(got[..5], payload[10..15]);
    assert_eq!(got[5..], payload[..3]);
}

#[test]
fn an_armed_queue_makes_its_descriptor_readable() {
    let mut pair = Pair::new(RcConfig::default());
    let target = pair.buffer(8, Access::all());
    let remote = target.region().remote(0);
    let write = |pair: &mut Pair| {
        pair.ours
            .send
            .post(Write { local: Inline(&[1; 8]), remote }, ControlFlags::COMPLETION)
            .unwrap();
    };
    write(&mut pair);
    pair.wait();
    assert!(!readable(&pair.notifier, Duration::from_millis(20)), "no event was requested");
    // More often than there are sequence numbers.
    for round in 0..9 {
        assert!(pair.notifier.arm(&mut pair.completions));
        assert!(
            !readable(&pair.notifier, Duration::from_millis(5)),
            "nothing came in round {round}"
        );
        write(&mut pair);
        assert!(readable(&pair.notifier, DEADLINE), "round {round}");
        pair.wait();
    }
    // Armed twice: the event of the completion, which was not polled, is discarded, and the second
    // request does not repeat it.
    assert!(pair.notifier.arm(&mut pair.completions));
    write(&mut pair);
    assert!(readable(&pair.notifier, DEADLINE));
    assert!(!pair.notifier.arm(&mut pair.completions), "it waits to be polled");
    assert!(!readable(&pair.notifier, Duration::from_millis(20)), "it had its event");
    pair.wait();
    write(&mut pair);
    assert!(readable(&pair.notifier, DEADLINE), "the second request is pending");
    pair.wait();
    assert!(pair.notifier.arm(&mut pair.completions));
    assert!(!readable(&pair.notifier, Duration::from_millis(20)), "it was taken");
}

#[test]
fn atomics_return_what_was_there() {
    let mut pair = Pair::new(RcConfig::default());
    let target = pair.buffer(64, Access::all());
    let result = pair.buffer(64, Access::LOCAL_WRITE);
    target.store_u64(8, 40).unwrap();
    let local = result.region().segment(0, 8).unwrap();
    let remote = target.region().remote(8);
    pair.ours.send.post(FetchAdd { local, remote, add: 2 }, ControlFlags::COMPLETION).unwrap();
    pair.wait();
    assert_eq!((result.load_u64(0).unwrap(), target.load_u64(8).unwrap()), (40, 42));
    pair.ours
        .send
        .post(CompareSwap { local, remote, compare: 42, swap: 7 }, ControlFlags::COMPLETION)
        .unwrap();
    pair.wait();
    assert_eq!((result.load_u64(0).unwrap(), target.load_u64(8).unwrap()), (42, 7));
    pair.ours
        .send
        .post(CompareSwap { local, remote, compare: 42, swap: 9 }, ControlFlags::COMPLETION)
        .unwrap();
    pair.wait();
    assert_eq!((result.load_u64(0).unwrap(), target.load_u64(8).unwrap()), (7, 7));
    // Masked atomics of 4 bytes, if the device has them: no carry reaches the next word.
    assert!(pair.device.is_none() || pair.context.capabilities().masked_atomics);
    if pair.context.capabilities().masked_atomics {
        target.store_u64(8, 0x1_ffff_fffe).unwrap();
        result.store_u64(0, 0).unwrap();
        let local = result.region().segment(0, 4).unwrap();
        let add = MaskedAdd { operand: 3_u32, field_boundary: 0 };
        pair.ours
            .send
            .post(MaskedFetchAdd { local, remote, operands: add }, ControlFlags::COMPLETION)
            .unwrap();
        pair.wait();
        let [a, b, c, d, ..] = result.load_u64(0).unwrap().to_ne_bytes();
        assert_eq!(
            (u32::from_be_bytes([a, b, c, d]), target.load_u64(8).unwrap()),
            (0xffff_fffe, 0x1_0000_0001)
        );
    }
}

#[test]
fn sends_and_immediates_find_their_receive_wqe() {
    let mut pair = Pair::new(RcConfig::default());
    let inbox = pair.buffer(4 * 4096, Access::LOCAL_WRITE);
    let target = pair.buffer(4096, Access::all());
    for slot in 0..4 {
        assert!(pair.theirs.receive.push(inbox.region().segment(slot * 4096, 4096).unwrap()));
    }
    pair.theirs.receive.publish();
    let send = &mut pair.ours.send;
    send.post(Send(Inline(b"plain")), ControlFlags::empty()).unwrap();
    send.post(
        SendImmediate { local: Inline(b"with immediate"), immediate: 0x0102_0304 },
        ControlFlags::empty(),
    )
    .unwrap();
    send.post(
        WriteImmediate {
            local: Inline(b"written"),
            remote: target.region().remote(0),
            immediate: 77,
        },
        ControlFlags::empty(),
    )
    .unwrap();
    send.post(
        Send(Prefixed { prefix: [9; 12], payload: Inline(b"prefixed") }),
        ControlFlags::COMPLETION,
    )
    .unwrap();

    let wanted: [(CompletionKind, &[u8]); 4] = [
        (CompletionKind::Receive, b"plain"),
        (CompletionKind::ReceiveImmediate(0x0102_0304), b"with immediate"),
        (CompletionKind::WriteImmediate(77), b"written"),
        (CompletionKind::Receive, b"\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09prefixed"),
    ];
    for (slot, (kind, data)) in wanted.into_iter().enumerate() {
        let completion = pair.wait_peer();
        assert_eq!((completion.kind, completion.wqe_counter), (kind, slot as u16));
        assert_eq!(completion.byte_count as usize, data.len());
        let (place, offset) = if slot == 2 { (&target, 0) } else { (&inbox, slot * 4096) };
        let mut got = vec![0; data.len()];
        place.read(offset, &mut got).unwrap();
        assert_eq!(got, data);
    }
    assert_eq!(pair.wait().kind, CompletionKind::Send);
    assert!(pair.ours.send.is_idle());
}

/// Messages of up to 32 bytes arrive in the completion, longer ones in the buffer. The queue pair of
/// the sender decides nothing. A device may write the short ones to the buffer as well, which is a
/// requirement of the software HCA.
#[test]
fn short_messages_arrive_in_the_completion() {
    let requirements = std::env::var("BAREWIRE_HCA_REQUIRE").unwrap_or_default();
    let ignores = requirements.contains("all") || requirements.contains("ignore-cs-res");
    for inline_receive in [false, true] {
        let mut config = RcConfig::default();
        config.inline_receive = inline_receive;
        let mut pair = Pair::new(config);
        let inbox = pair.buffer(64, Access::LOCAL_WRITE);
        for length in [0, 1, 31, 32, 33, 64].repeat(50) {
            inbox.write(0, &[0xee; 64]).unwrap();
            assert!(pair.theirs.receive.push(inbox.region().segment(0, 64).unwrap()));
            pair.theirs.receive.publish();
            let payload = bytes(length);
            pair.ours.send.post(Send(Inline(&payload)), ControlFlags::COMPLETION).unwrap();
            let completion = pair.wait_peer();
            pair.theirs.receive.reap();
            assert_eq!(
                (completion.kind, completion.byte_count as usize),
                (CompletionKind::Receive, length)
            );
            let inline = pair.peer_completions.inline_data();
            let mut buffer = [0; 64];
            inbox.read(0, &mut buffer).unwrap();
            if inline_receive && !ignores && (1..=32).contains(&length) {
                assert_eq!(inline.as_deref(), Some(&payload[..]));
                assert_eq!(buffer, [0xee; 64]);
            } else {
                assert!(inline.is_none_or(|data| data.is_empty()), "{length} bytes");
                assert_eq!(buffer[..length], payload);
            }
            assert_eq!(pair.wait().kind, CompletionKind::Send);
        }
    }
}

#[test]
fn writes_with_immediates_take_receive_wqes_without_buffers() {
    let mut pair = Pair::new(RcConfig::default().receive_entries(4));
    let source = pair.buffer(4096, Access::LOCAL_WRITE);
    let target = pair.buffer(4096, Access::all());
    let payload = bytes(300);
    source.write(0, &payload).unwrap();
    while pair.theirs.receive.push_empty() {}
    assert_eq!(pair.theirs.receive.room(), 0);
    pair.theirs.receive.publish();
    for (round, length) in [300, 0, 1, 299, 128, 0, 300].into_iter().enumerate() {
        let (flags, immediate) = (ControlFlags::COMPLETION, 0x8000_0001 + round as u32);
        let local = source.region().segment(0, length).unwrap();
        let remote = target.region().remote(0);
        pair.ours.send.post(WriteImmediate { local, remote, immediate }, flags).unwrap();
        let got = pair.wait_peer();
        assert_eq!(got.kind, CompletionKind::WriteImmediate(immediate));
        assert_eq!(got.byte_count as usize, length);
        assert!(pair.theirs.receive.push_again(got.wqe_counter.into()));
        pair.theirs.receive.publish();
        assert_eq!(pair.wait().kind, CompletionKind::Send);
        let mut written = vec![0; length];
        target.read(0, &mut written).unwrap();
        assert_eq!(written, payload[..length]);
    }
}

/// Over a device of the machine, libmlx5 and the kernel pass them on.
#[test]
fn a_connection_uses_the_enhancements_that_both_ends_support() {
    let mut pair = Pair::new(RcConfig::default());
    let supported = pair.ours.enhancements();
    assert_eq!(pair.theirs.enhancements(), supported);
    assert!(!supported.is_none() && pair.context.capabilities().enhancements);
    // Connected without them.
    assert!(pair.ours.accepted_enhancements().is_none());
    pair.ours.reset().unwrap();
    pair.theirs.reset().unwrap();
    let all = Enhancements::from_bits(u32::MAX);
    pair.theirs.connect(&RcPath::to(&pair.ours.address()).enhancements(all)).unwrap();
    let accepted = pair.theirs.accepted_enhancements();
    assert_eq!(accepted, supported);
    pair.ours.connect(&RcPath::to(&pair.theirs.address()).enhancements(accepted)).unwrap();
    assert_eq!(pair.ours.accepted_enhancements(), accepted);
    assert_eq!(pair.ours.enhancements(), supported);
    let target = pair.buffer(8, Access::all());
    let remote = target.region().remote(0);
    pair.ours
        .send
        .post(Write { local: Inline(&[7; 8]), remote }, ControlFlags::COMPLETION)
        .unwrap();
    assert_eq!(pair.wait().kind, CompletionKind::Send);
    assert_eq!(target.load_u64(0).unwrap(), u64::from_ne_bytes([7; 8]));
    pair.ours.reset().unwrap();
    assert!(pair.ours.accepted_enhancements().is_none());
}

#[test]
fn a_sender_waits_for_a_receive_wqe() {
    // Also the smallest receive ring, which the send ring follows.
    let mut pair = Pair::new(RcConfig::default().receive_entries(1));
    pair.ours.send.post(Send(Inline(b"early")), ControlFlags::COMPLETION).unwrap();
    if let Some(device) = &pair.device {
        let start = Instant::now();
        while device.counters().rnr_naks_sent == 0 {
            assert!(start.elapsed() < DEADLINE, "{:?}", device.counters());
            std::thread::yield_now();
        }
    }
    assert!(pair.completions.poll().map(Polled::completion).is_none(), "there is no receive WQE");
    let inbox = pair.buffer(64, Access::LOCAL_WRITE);
    assert!(pair.theirs.receive.push(inbox.region().segment(0, 64).unwrap()));
    pair.theirs.receive.publish();
    assert_eq!(pair.wait().kind, CompletionKind::Send);
    assert_eq!(pair.wait_peer().byte_count, 5);
}

/// Each invalid operation completes with the syndrome of the device, later ones are flushed once,
/// and the queue pair is in error.
#[test]
fn mistakes_give_the_devices_own_syndrome() {
    type Post = fn(&mut Pair, &Buffer, &Buffer) -> Result<(), PostError>;
    let signaled = ControlFlags::COMPLETION;
    let mistakes: [(&str, Syndrome, Post); 5] = [
        ("a wrong remote key", Syndrome::RemoteAccess, |pair, target, _| {
            let mut remote = target.region().remote(0);
            remote.rkey = (remote.rkey.get() ^ 1).into();
            pair.ours
                .send
                .post(Write { local: Word([0; 8]), remote }, ControlFlags::empty())
                .map(drop)
        }),
        ("one byte past the end", Syndrome::RemoteAccess, |pair, target, _| {
            let remote = target.region().remote(target.region().len() - 7);
            pair.ours
                .send
                .post(Write { local: Word([0; 8]), remote }, ControlFlags::empty())
                .map(drop)
        }),
        ("no right to write", Syndrome::RemoteAccess, |pair, _, source| {
            pair.ours
                .send
                .post(
                    Write { local: Word([0; 8]), remote: source.region().remote(0) },
                    ControlFlags::empty(),
                )
                .map(drop)
        }),
        ("a freed region", Syndrome::RemoteAccess, |pair, _, _| {
            let gone = pair.buffer(64, Access::all()).region().remote(0);
            pair.ours
                .send
                .post(Write { local: Word([0; 8]), remote: gone }, ControlFlags::empty())
                .map(drop)
        }),
        ("a wrong local key", Syndrome::LocalProtection, |pair, target, source| {
            let mut local = source.region().segment(0, 8).unwrap();
            local.lkey = (local.lkey.get() ^ 1).into();
            pair.ours
                .send
                .post(Write { local, remote: target.region().remote(0) }, ControlFlags::empty())
                .map(drop)
        }),
    ];
    let mut pair = Pair::new(RcConfig::default());
    let target = pair.buffer(100, Access::all());
    let source = pair.buffer(100, Access::LOCAL_WRITE);
    for (what, wanted, post) in mistakes {
        post(&mut pair, &target, &source).unwrap();
        for _ in 0..3 {
            pair.ours.send.post(Nop, signaled).unwrap();
        }
        assert_eq!(syndrome(pair.wait()), wanted, "{what}");
        for _ in 0..3 {
            assert_eq!(syndrome(pair.wait()), Syndrome::WorkRequestFlushed, "{what}");
        }
        assert!(pair.ours.send.is_idle());
        assert_eq!(pair.ours.state().unwrap(), QpState::Err, "{what}");
        std::thread::sleep(Duration::from_millis(2));
        assert!(
            pair.completions.poll().map(Polled::completion).is_none(),
            "{what}: one completion each"
        );

        // The same queue pairs work again after a reset.
        pair.ours.reset().unwrap();
        pair.theirs.reset().unwrap();
        while pair.peer_completions.poll().map(Polled::completion).is_some() {}
        pair.connect();
        pair.ours
            .send
            .post(Write { local: Word(*b"works on"), remote: target.region().remote(0) }, signaled)
            .unwrap();
        assert_eq!(pair.wait().kind, CompletionKind::Send, "{what}");
        let mut got = [0; 8];
        target.read(0, &mut got).unwrap();
        assert_eq!(&got, b"works on", "{what}");
    }
}

#[test]
fn an_error_state_flushes_both_queues() {
    let mut pair = Pair::new(RcConfig::default());
    let inbox = pair.buffer(64, Access::LOCAL_WRITE);
    for _ in 0..5 {
        assert!(pair.ours.receive.push(inbox.region().segment(0, 64).unwrap()));
    }
    pair.ours.receive.publish();
    pair.ours.to_error().unwrap();
    for _ in 0..7 {
        pair.ours.send.post(Nop, ControlFlags::empty()).unwrap();
    }
    let (mut sent, mut received) = (0, 0);
    for _ in 0..12 {
        let completion = pair.wait();
        assert_eq!(syndrome(completion), Syndrome::WorkRequestFlushed);
        match completion.kind {
            CompletionKind::SendError(_) => sent += 1,
            _ => received += 1,
        }
    }
    assert_eq!((sent, received), (7, 5));
}

#[test]
fn a_drained_queue_pair_knows_what_was_executed_and_connects_again() {
    let config = RcConfig::default().send_blocks(64).signal_period(8);
    let mut pair = Pair::new(config);
    let target = pair.buffer(512, Access::all());
    let mut value = 0_u64;
    for posted in [0, 1, 7, 63, 64] {
        for is_broken in [false, true] {
            // Writes without completions of their own, and in the middle one that the peer refuses.
            let refused = if is_broken { posted / 2 } else { posted };
            let mut writes = Vec::new();
            for number in 0..posted {
                value += 1;
                let at = target.region().remote(if number == refused { 510 } else { 8 * number });
                let data = value.to_ne_bytes();
                let index = pair
                    .ours
                    .send
                    .post(Write { local: Word(data), remote: at }, ControlFlags::empty())
                    .unwrap();
                writes.push((index, value));
            }
            let mut completions = Vec::new();
            let each = |completion: &Completion| completions.push(*completion);
            pair.ours.drain(&mut pair.completions, DEADLINE, each).unwrap();
            let send = &pair.ours.send;
            assert!(send.is_idle() && writes.iter().all(|(index, _)| send.is_done(*index)));
            // In order, and each is in memory. The one that was refused is not, nor those behind
            // it.
            let executed = writes.iter().take_while(|(index, _)| send.is_executed(*index)).count();
            assert!(writes[executed..].iter().all(|(index, _)| !send.is_executed(*index)));
            assert!(executed <= refused, "{executed} of {posted} executed, {refused} refused");
            for (number, (_, value)) in writes[..executed].iter().enumerate() {
                assert_eq!(target.load_u64(8 * number).unwrap(), *value, "{number} of {posted}");
            }
            // The caller gets no completion of a WQE that it has not posted.
            let known = |completion: &Completion| {
                writes.iter().any(|(index, _)| index.0 == completion.wqe_counter)
            };
            assert!(completions.iter().all(known), "{completions:?}");
            let is_failure = |completion: &&Completion| {
                matches!(completion.kind, CompletionKind::SendError(_))
                    && syndrome(**completion) != Syndrome::WorkRequestFlushed
            };
            let failed = completions.iter().filter(is_failure).count();
            assert!(failed <= usize::from(refused < posted), "{failed} of {posted} failed");
            pair.theirs.drain(&mut pair.peer_completions, DEADLINE, |_| {}).unwrap();
            pair.ours.reset().unwrap();
            let send = &pair.ours.send;
            assert!(writes.iter().all(|(index, _)| !send.is_executed(*index)), "forgotten");
            // Nothing is there to drain.
            pair.ours.drain(&mut pair.completions, Duration::ZERO, |_| {}).unwrap();
            pair.theirs.reset().unwrap();
            pair.connect();
        }
    }
    // A ring full of WQEs whose doorbell is deferred.
    let segment = target.region().segment(0, 8).unwrap();
    let remote = target.region().remote(8);
    while pair
        .ours
        .send
        .post_deferred(Write { local: segment, remote }, ControlFlags::empty())
        .is_ok()
    {}
    pair.ours.drain(&mut pair.completions, DEADLINE, |_| {}).unwrap();
    pair.theirs.drain(&mut pair.peer_completions, DEADLINE, |_| {}).unwrap();
    for end in [&mut pair.ours, &mut pair.theirs] {
        end.reset().unwrap();
    }
    pair.connect();
    let other = &mut pair.peer_completions;
    pair.ours.send.post(Nop, ControlFlags::COMPLETION).unwrap();
    let error = pair.ours.drain(other, Duration::from_millis(50), |_| {}).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "the wrong completion queue: {error}");
}

#[test]
fn a_drain_behind_completions_that_were_only_polled_says_what_is_missing() {
    let mut pair = Pair::new(RcConfig::default().send_blocks(16));
    let nowhere = pair.buffer(8, Access::all()).region().remote(0);
    let mut first = None;
    while let Ok(index) =
        pair.ours.send.post(Write { local: Word([1; 8]), remote: nowhere }, ControlFlags::empty())
    {
        first.get_or_insert(index);
    }
    let completions: Vec<Completion> = (0..16).map(|_| poll(&mut pair.completions)).collect();
    let drain = |pair: &mut Pair, time| pair.ours.drain(&mut pair.completions, time, |_| {});
    let error = drain(&mut pair, Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains("polled before need a call of SendQueue::reap or fail"));
    for completion in completions {
        pair.ours.send.fail(completion.wqe_counter);
    }
    drain(&mut pair, DEADLINE).unwrap();
    assert!(!pair.ours.send.is_executed(first.unwrap()));
}

/// What the page of the crate says about threads.
#[test]
fn objects_move_to_other_threads_and_errors_print_their_text() {
    fn moves<T: core::marker::Send>() {}
    fn is_shared<T: core::marker::Send + Sync>() {}
    is_shared::<Context>();
    is_shared::<ProtectionDomain>();
    is_shared::<barewire_mlx5::MemoryRegion>();
    is_shared::<Buffer>();
    is_shared::<Buffer<Vec<u8>>>();
    moves::<CompletionQueue>();
    moves::<Notifier>();
    moves::<barewire_mlx5::ReceiveQueue>();
    moves::<RcQueuePair<barewire_mlx5::doorbell::BlueFlameShared>>();
    let error = Error::Connected;
    assert_eq!(format!("{error:?}"), error.to_string());
}

/// A ring of 64 WQEBBs with WQEs of one to four blocks: it is often full, loses no WQE, and wraps
/// thousands of times.
#[test]
#[cfg_attr(barewire_emulated, ignore = "a minute in qemu")]
fn a_million_messages_through_a_small_ring() {
    let messages: u64 = 1_000_000;
    let config = RcConfig::default().send_blocks(64).signal_period(8);
    let mut pair = Pair::new(config);
    let target = pair.buffer(4096, Access::all());
    let long = bytes(MAX_WRITE_INLINE);
    let start = Instant::now();
    let mut full = 0;
    let mut posted = 0;
    while posted < messages {
        // Every 17th message is long, so that long WQEs occur at every position of the ring.
        let result = if posted % 17 == 0 {
            pair.ours.send.post(
                Write { local: Inline(&long), remote: target.region().remote(64) },
                ControlFlags::empty(),
            )
        } else {
            pair.ours.send.post(
                Write { local: Word(posted.to_ne_bytes()), remote: target.region().remote(8) },
                ControlFlags::empty(),
            )
        };
        match result {
            Ok(_) => posted += 1,
            Err(PostError::QueueFull) => {
                full += 1;
                pair.wait();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < VOLUME_DEADLINE, "{posted} messages posted");
    }
    while pair.ours.send.post(Nop, ControlFlags::COMPLETION).is_err() {
        pair.wait();
    }
    while !pair.ours.send.is_idle() {
        assert_eq!(pair.wait().kind, CompletionKind::Send);
    }
    assert_eq!(target.load_u64(8).unwrap(), messages - 1);
    let mut got = vec![0; long.len()];
    target.read(64, &mut got).unwrap();
    assert_eq!(got, long);
    assert!(full > 1000, "the ring was full {full} times");
    assert_eq!(pair.device.map_or(0, |device| device.take_reports().len()), 0);
}

/// Otherwise nothing would free the WQEs of a sender that requests no completions.
#[test]
fn a_signal_period_beyond_the_ring_is_an_eighth_of_it() {
    for period in [64, 1 << 31, u32::MAX] {
        let config = RcConfig::default().send_blocks(64).signal_period(period);
        let mut pair = Pair::new(config);
        for index in 0..200 {
            while let Err(error) = pair.ours.send.post(Nop, ControlFlags::empty()) {
                assert_eq!(error, PostError::QueueFull);
                assert_eq!(pair.wait().wqe_counter % 8, 7, "{period}: {index}");
            }
        }
    }
}

#[test]
fn bad_sizes_and_rights_say_what_is_wanted() {
    let mut pair = Pair::new(RcConfig::default());
    let uar = Uar::allocate(&pair.context).unwrap();
    let message = |error: Error| error.to_string();
    let error = CompletionQueue::create(&pair.context, &uar, 1 << 30).unwrap_err();
    assert!(
        message(error).starts_with("completion queue entries is 1073741824, but must be 1 to ")
    );
    let config = RcConfig::default().send_blocks(1 << 16);
    let created =
        RcQueuePair::create(&pair.domain, &uar, &pair.completions, &pair.completions, &config);
    assert!(message(created.unwrap_err()).starts_with("send WQEBBs is 65536, but must be 1 to "));
    let error = Buffer::allocate(&pair.domain, 64, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(
        message(error),
        "the rights REMOTE_WRITE lack LOCAL_WRITE, which REMOTE_WRITE and REMOTE_ATOMIC require"
    );
    let path = RcPath::to(&pair.theirs.address()).remote_qpn(1 << 24);
    let error = pair.ours.connect(&path).unwrap_err();
    assert_eq!(message(error), "remote queue pair number is 16777216, but must be 0 to 16777215");
    let error = pair.ours.connect(&RcPath::to(&pair.theirs.address())).unwrap_err();
    assert_eq!(message(error), "the queue pair is connected: reset it first");
    assert!(matches!(
        Buffer::allocate(&pair.domain, usize::MAX, Access::all()),
        Err(Error::OutOfMemory { .. })
    ));
    let buffer = pair.buffer(100, Access::all());
    assert!(
        buffer.write(99, &[0; 2]).is_err()
            && buffer.read(101, &mut []).is_err()
            && buffer.load_u64(4).is_err()
    );
    assert!(
        buffer.region().segment(100, 1).is_none()
            && buffer.region().segment(usize::MAX, 2).is_none()
    );
}

/// A completion queue has room for every WQE of its queue pairs, or the caller knows better.
#[test]
fn a_completion_queue_that_is_too_small_is_refused() {
    let pair = Pair::new(RcConfig::default());
    let (context, domain) = (&pair.context, &pair.domain);
    let uar = Uar::allocate(context).unwrap();
    let completions = CompletionQueue::create(context, &uar, 128).unwrap();
    let create =
        |config: RcConfig| RcQueuePair::create(domain, &uar, &completions, &completions, &config);
    let config = RcConfig::default().send_blocks(64).receive_entries(32);
    let first = create(config).unwrap();
    let error = create(config).unwrap_err().to_string();
    assert!(error.contains("completion queue entries is 128, but must be at least 192"), "{error}");
    let _third = create(config.overcommit(true)).unwrap();
    drop(first);
    let _fourth = create(config.send_blocks(16).receive_entries(4)).unwrap();
}

#[test]
fn posts_need_a_connection() {
    let mut pair = Pair::new(RcConfig::default());
    let there = pair.buffer(64, Access::all());
    let remote = there.region().to_remote().segment(0, 8).unwrap();
    let post = |pair: &mut Pair| {
        pair.ours.send.post(Write { local: Word([7; 8]), remote }, ControlFlags::COMPLETION)
    };
    pair.ours.reset().unwrap();
    pair.theirs.reset().unwrap();
    assert_eq!(post(&mut pair), Err(PostError::QueueFull));
    let line = [0; 64];
    let long = pair.ours.send.post(Write { local: Line(&line), remote }, ControlFlags::COMPLETION);
    assert_eq!(long, Err(PostError::QueueFull));
    let send = &pair.ours.send;
    assert!(send.is_idle() && send.room() == 0 && !send.is_open());
    // The addresses travel as bytes.
    let [ours, theirs] = [&pair.ours, &pair.theirs].map(|pair| pair.address().to_bytes());
    pair.ours.connect(&RcPath::to(&RcAddress::from_bytes(&theirs).unwrap())).unwrap();
    pair.theirs.connect(&RcPath::to(&RcAddress::from_bytes(&ours).unwrap())).unwrap();
    post(&mut pair).unwrap();
    let done = pair.wait();
    assert_eq!(done.kind, CompletionKind::Send);
    pair.ours.send.reap(done.wqe_counter);
    assert_eq!((pair.ours.send.room(), there.load_u64(0)), (256, Ok(u64::from_ne_bytes([7; 8]))));
}

#[test]
fn memory_of_the_caller_is_returned() {
    let mut pair = Pair::new(RcConfig::default());
    let there = Buffer::register(&pair.domain, vec![1; 100], Access::all()).unwrap();
    let remote = there.region().to_remote().segment(90, 8).unwrap();
    pair.ours.send.post(Write { local: Word([7; 8]), remote }, ControlFlags::COMPLETION).unwrap();
    assert_eq!(pair.wait().kind, CompletionKind::Send);
    assert_eq!(there.load_u8(90), Ok(7));
    let memory: Vec<u8> = there.into_inner().unwrap();
    assert_eq!((memory[89], &memory[90..98], memory[98]), (1, &[7; 8][..], 1));
    assert!(Buffer::register(&pair.domain, Vec::new(), Access::all()).is_err());
}

/// The device has no objects left whatever the order of drops.
#[test]
fn objects_may_be_dropped_in_any_order() {
    for order in 0..4 {
        let pair = Pair::new(RcConfig::default());
        let buffer = pair.buffer(64, Access::all());
        let Pair { ours, theirs, completions, notifier, peer_completions, domain, context, device } =
            pair;
        match order {
            0 => drop((
                notifier,
                context,
                domain,
                completions,
                peer_completions,
                ours,
                theirs,
                buffer,
            )),
            1 => drop((
                buffer,
                theirs,
                ours,
                peer_completions,
                completions,
                domain,
                context,
                notifier,
            )),
            2 => {
                // The send queue of one pair in the other: each keeps its own resources.
                let (mut ours, mut theirs) = (ours, theirs);
                std::mem::swap(&mut ours.send, &mut theirs.send);
                drop((theirs, completions, notifier, peer_completions, domain, buffer, context));
                ours.send.post(Nop, ControlFlags::empty()).unwrap();
            }
            _ => drop((
                peer_completions,
                notifier,
                ours,
                domain,
                context,
                theirs,
                completions,
                buffer,
            )),
        }
        if let Some(device) = device {
            assert_eq!(device.objects(), hca::ObjectCounts::default(), "order {order}");
        }
    }
}
