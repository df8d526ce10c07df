//! Queue pairs that are reset, moved to error or dropped while packets of their connection are
//! under way.

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::request::{Read, Word, Write};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, Polled,
    ProtectionDomain, RcConfig, RcPath, RcQueuePair, Uar, hca,
};

const WRITES: usize = 32;
/// More passes than both devices need, whose clocks a pass or a timer moves on.
const PASSES: usize = 100_000;

/// A device that its owner steps, and a queue pair.
struct Side {
    device: hca::Device,
    completions: CompletionQueue,
    pair: RcQueuePair,
    domain: ProtectionDomain,
}

impl Side {
    fn new(fabric: &hca::Fabric, faults: &str) -> Self {
        let config = hca::Config::default()
            .mode(hca::Mode::Stepped)
            .wire(hca::WireKind::Fabric(fabric.clone()))
            .strict(hca::Strict::Panic)
            .faults(faults.parse().unwrap());
        let device = hca::Device::open(config).unwrap();
        let context = Context::open(Soft::new(device.clone())).unwrap();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let completions = CompletionQueue::create(&context, &uar, 512).unwrap();
        let config = RcConfig::default();
        let pair = RcQueuePair::create(&domain, &uar, &completions, &completions, &config).unwrap();
        Self { device, completions, pair, domain }
    }

    /// Takes all completions. Returns whether every WQE is complete.
    fn reap(&mut self) -> bool {
        while let Some(completion) = self.completions.poll().map(Polled::completion) {
            match completion.kind {
                CompletionKind::SendError(_) => self.pair.send.fail(completion.wqe_counter),
                _ => self.pair.send.reap(completion.wqe_counter),
            }
        }
        self.pair.send.is_idle()
    }
}

fn connect(ours: &mut Side, theirs: &mut Side) {
    ours.pair.connect(&RcPath::to(&theirs.pair.address())).unwrap();
    theirs.pair.connect(&RcPath::to(&ours.pair.address())).unwrap();
}

/// Each packet of the writer arrives 20 ms late, so that those of the first connection arrive
/// during the second, and before its own.
#[test]
fn late_packets_of_the_connection_before_a_reset_write_nothing() {
    let fabric = hca::Fabric::new();
    let mut ours = Side::new(&fabric, "delay=1,delay_us=20000,seed=3");
    let mut theirs = Side::new(&fabric, "");
    let memory = Buffer::allocate(&theirs.domain, WRITES * 8, Access::all()).unwrap();
    connect(&mut ours, &mut theirs);
    let post = |ours: &mut Side, first: u64| {
        let values = (first..).take(WRITES);
        let mut one = |(slot, value): (usize, u64)| {
            let remote = memory.region().remote(8 * slot);
            ours.pair
                .send
                .post(Write { local: Word(value.to_ne_bytes()), remote }, ControlFlags::COMPLETION)
        };
        values.enumerate().map(|pair| one(pair).unwrap()).collect::<Vec<_>>()
    };

    let old = post(&mut ours, 1000);
    let mut passes = 0..PASSES;
    while ours.device.counters().fault_delayed < WRITES as u64 {
        passes.next().expect("the old writes are sent");
        ours.device.step();
    }
    ours.pair.to_error().unwrap();
    while !ours.reap() {
        passes.next().expect("the old writes are flushed");
        ours.device.step();
    }
    assert!(old.iter().all(|write| !ours.pair.send.is_executed(*write)));
    let before = [ours.pair.address(), theirs.pair.address()];
    ours.pair.reset().unwrap();
    theirs.pair.reset().unwrap();
    let after = [ours.pair.address(), theirs.pair.address()];
    assert!(before[0] != after[0] && before[1] != after[1], "{after:?}");
    connect(&mut ours, &mut theirs);

    let new = post(&mut ours, 2000);
    while !ours.reap() {
        passes.next().expect("the new writes complete");
        ours.device.step();
        theirs.device.step();
    }
    assert!(new.iter().all(|write| ours.pair.send.is_executed(*write)));
    let found: Vec<u64> = (0..WRITES).map(|slot| memory.load_u64(8 * slot).unwrap()).collect();
    assert_eq!(found, (2000..).take(WRITES).collect::<Vec<_>>());
    // Those of the first connection have arrived: their delay was over before that of the second.
    assert!(theirs.device.counters().packets_received >= 2 * WRITES as u64);
}

/// Half of a write of two packets has arrived when the target's owner gives up its queue pair.
#[test]
fn a_peer_writes_nothing_after_its_queue_pair_is_reset_failed_or_dropped() {
    let endings: [fn(RcQueuePair) -> Option<RcQueuePair>; 3] = [
        |mut pair| pair.reset().map(|()| Some(pair)).unwrap(),
        |mut pair| pair.to_error().map(|()| Some(pair)).unwrap(),
        |pair| {
            drop(pair);
            None
        },
    ];
    for end in endings {
        let fabric = hca::Fabric::new();
        let mut ours = Side::new(&fabric, "");
        let mut theirs = Side::new(&fabric, "");
        let length = 2 * ours.pair.address().mtu.bytes();
        let source = Buffer::register(&ours.domain, vec![7; length], Access::empty()).unwrap();
        let memory = Buffer::allocate(&theirs.domain, length, Access::all()).unwrap();
        connect(&mut ours, &mut theirs);
        let local = source.region().segment(0, length).unwrap();
        let mut posted = Vec::new();
        for _ in 0..WRITES {
            let remote = memory.region().remote(0);
            posted.push(
                ours.pair.send.post(Write { local, remote }, ControlFlags::COMPLETION).unwrap(),
            );
        }
        let mut passes = 0..PASSES;
        while memory.load_u8(0).unwrap() != 7 {
            passes.next().expect("the first write arrives");
            ours.device.step();
            theirs.device.step();
        }
        let Side { device, completions: _completions, pair, domain: _domain } = theirs;
        let _pair = end(pair);
        memory.write(0, &vec![0; length]).unwrap();
        while !ours.reap() {
            passes.next().expect("the writes fail");
            ours.device.step();
            device.step();
        }
        assert!(!ours.pair.send.is_executed(posted[WRITES - 1]));
        let mut found = vec![1; length];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found, vec![0; length]);
    }
}

/// The responses to reads are under way when the reads are flushed.
#[test]
fn late_responses_do_not_write_to_the_buffers_of_flushed_reads() {
    let fabric = hca::Fabric::new();
    let mut ours = Side::new(&fabric, "");
    let mut theirs = Side::new(&fabric, "delay=1,delay_us=20000,seed=3");
    let sink = Buffer::allocate(&ours.domain, WRITES * 8, Access::LOCAL_WRITE).unwrap();
    let memory = Buffer::register(&theirs.domain, vec![7; 8], Access::REMOTE_READ).unwrap();
    connect(&mut ours, &mut theirs);
    for slot in 0..WRITES {
        let local = sink.region().segment(8 * slot, 8).unwrap();
        ours.pair
            .send
            .post(Read { local, remote: memory.region().remote(0) }, ControlFlags::COMPLETION)
            .unwrap();
    }
    let mut passes = 0..PASSES;
    while theirs.device.counters().fault_delayed == 0 {
        passes.next().expect("the responses are sent");
        ours.device.step();
        theirs.device.step();
    }
    let received = ours.device.counters().packets_received;
    ours.pair.to_error().unwrap();
    while !ours.reap() {
        passes.next().expect("the reads are flushed");
        ours.device.step();
    }
    while ours.device.counters().packets_received == received {
        passes.next().expect("a response arrives");
        ours.device.step();
        theirs.device.step();
    }
    for slot in 0..WRITES {
        assert_eq!(sink.load_u64(8 * slot).unwrap(), 0, "{slot}");
    }
}
