//! Operations on `mlx5_0`, each as N calls of one function, for comparison with `peers/libmlx5.c`
//! and `peers/uct.c`. Callgrind counts the calls, or they are timed in batches.
//!
//! usage: `mlx5_0 devx|init_obj|verbs OPERATION N`, under `barewire hca run`

mod api;
mod directed;
mod stopwatch;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use stopwatch::Stopwatch;

use barewire::transport::{rc_mlx5, rc_verbs};
use barewire_mlx5::request::{Inline, Send, Word, Write};
use barewire_mlx5::setup::{self, SetupWay};
use barewire_mlx5::{
    Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, DataSegment, Polled,
    ProtectionDomain, RcConfig, RcPath, RcQueuePair, RemoteAddressSegment, SendQueue, Uar,
};

const DEVICE: &str = "mlx5_0";
const DEADLINE: Duration = Duration::from_mins(1);
/// The id of the active messages.
const ID: u8 = 1;
/// Operations of the driver that are posted before they are completed, or by one doorbell.
const BATCH: u32 = 16;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [way, operation, count] = &arguments[..] else {
        // `cargo bench` runs every bench; `cargo xtask bench` runs this one with arguments.
        println!("usage: mlx5_0 devx|init_obj|verbs OPERATION N");
        return ExitCode::SUCCESS;
    };
    match run(way, operation, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mlx5_0: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(way: &str, operation: &str, count: &str) -> Outcome {
    let count = count.parse()?;
    let operation = operation.split_once('.');
    if let ("verbs", Some(("api", operation))) = (way, operation) {
        return api::run::<rc_verbs::RcVerbs>(|| rc_verbs::Domain::open(DEVICE), operation, count);
    }
    let context = setup::open(DEVICE, 1, Some(way.parse::<SetupWay>()?))?.context;
    match operation {
        Some(("directed", operation)) => directed::run(&context, operation, count),
        Some(("driver", operation)) => Driver::new(&context)?.run(operation, count),
        Some(("api", operation)) => {
            api::run::<rc_mlx5::RcMlx5>(|| rc_mlx5::Domain::new(&context, DEVICE), operation, count)
        }
        _ => Err(format!("no operation {operation:?}").into()),
    }
}

fn wait(what: &str, mut is_done: impl FnMut() -> bool) -> Outcome {
    let start = Instant::now();
    while !is_done() {
        if start.elapsed() > DEADLINE {
            return Err(format!("{what}: not done after {DEADLINE:?}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Lets the device carry out what was posted, without polling. On this CPU, it needs a few turns.
fn settle() {
    (0..300).for_each(|_| std::thread::yield_now());
}

/// An operation of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Write8,
    Write64,
    WriteSge,
    Send16,
    Batch,
    Poll,
    Reap,
}

/// Two queue pairs of the driver.
struct Driver {
    ours: RcQueuePair,
    theirs: RcQueuePair,
    completions: CompletionQueue,
    peer_completions: CompletionQueue,
    local: Buffer,
    remote: Buffer,
}

#[inline(never)]
fn measured_write_8(queue: &mut SendQueue, payload: u64, remote: RemoteAddressSegment) -> bool {
    queue.post(Write { local: Word(payload.to_ne_bytes()), remote }, ControlFlags::empty()).is_ok()
}

#[inline(never)]
fn measured_write_64(
    queue: &mut SendQueue,
    payload: &[u8; 64],
    remote: RemoteAddressSegment,
) -> bool {
    queue.post(Write { local: Inline(payload), remote }, ControlFlags::empty()).is_ok()
}

#[inline(never)]
fn measured_write_sge(
    queue: &mut SendQueue,
    local: (u64, u32, u32),
    remote: RemoteAddressSegment,
) -> bool {
    let (address, length, key) = local;
    queue
        .post(
            Write { local: DataSegment::new(address, length, key), remote },
            ControlFlags::empty(),
        )
        .is_ok()
}

#[inline(never)]
fn measured_send_16(queue: &mut SendQueue, payload: &[u8; 16]) -> bool {
    queue.post(Send(Inline(payload)), ControlFlags::empty()).is_ok()
}

/// Posts 16 writes by one doorbell.
#[inline(never)]
fn measured_batch(queue: &mut SendQueue, payload: u64, remote: RemoteAddressSegment) -> bool {
    let mut batch = queue.batch();
    (0..BATCH).all(|_| {
        batch
            .post(Write { local: Word(payload.to_ne_bytes()), remote }, ControlFlags::empty())
            .is_ok()
    })
}

/// Polls a completion and returns the room of what it completes.
#[inline(never)]
fn measured_reap(completions: &mut CompletionQueue, queue: &mut SendQueue) -> bool {
    let Some(completion) = completions.poll() else { return false };
    let index = completion.wqe_counter();
    queue.reap(index);
    true
}

#[inline(never)]
fn measured_poll(queue: &mut CompletionQueue) -> bool {
    queue.poll().is_some()
}

impl Driver {
    fn new(context: &Context) -> Result<Self, barewire_mlx5::Error> {
        let domain = ProtectionDomain::allocate(context)?;
        let uar = Uar::allocate(context)?;
        let completions = CompletionQueue::create(context, &uar, 1024)?;
        let peer_completions = CompletionQueue::create(context, &uar, 1024)?;
        let config = RcConfig::default().signal_period(BATCH);
        let pair = |queue| RcQueuePair::create(&domain, &uar, queue, queue, &config);
        let (mut ours, mut theirs) = (pair(&completions)?, pair(&peer_completions)?);
        // Valgrind is slow: no acknowledgment timeout.
        ours.connect(&RcPath::to(&theirs.address()).ack_timeout(0))?;
        theirs.connect(&RcPath::to(&ours.address()).ack_timeout(0))?;
        let buffer = || Buffer::allocate(&domain, 4096, barewire_mlx5::Access::all());
        Ok(Self {
            ours,
            theirs,
            completions,
            peer_completions,
            local: buffer()?,
            remote: buffer()?,
        })
    }

    fn run(mut self, operation: &str, count: u32) -> Outcome {
        let call = match operation {
            "write_8" => Call::Write8,
            "write_64" => Call::Write64,
            "write_sge" => Call::WriteSge,
            "send_16" => Call::Send16,
            "batch" => Call::Batch,
            "poll" => Call::Poll,
            "reap" => Call::Reap,
            _ => return Err(format!("no operation {operation}").into()),
        };
        let (rounds, each) = if call == Call::Batch { (count, 1) } else { (count / BATCH, BATCH) };
        let mut watch = Stopwatch::new(rounds * BATCH, BATCH);
        for _ in 0..rounds {
            if call == Call::Reap {
                self.post_for_reap()?;
            }
            watch.start();
            let called = (0..each).all(|_| self.call(call));
            watch.stop();
            if !called {
                if call != Call::Reap {
                    return Err("refused".into());
                }
                // The device was late.
                watch.discard();
            }
            if call != Call::Poll {
                self.drain()?;
            }
        }
        watch.print();
        Ok(())
    }

    #[inline(always)]
    fn call(&mut self, call: Call) -> bool {
        let remote = self.remote.region().remote(0);
        let region = self.local.region();
        let local = black_box((region.address(), 4096, region.lkey()));
        match call {
            Call::Write8 => measured_write_8(&mut self.ours.send, black_box(7), remote),
            Call::Write64 => measured_write_64(&mut self.ours.send, black_box(&[7; 64]), remote),
            Call::WriteSge => measured_write_sge(&mut self.ours.send, local, remote),
            Call::Send16 => measured_send_16(&mut self.ours.send, black_box(&[7; 16])),
            Call::Batch => measured_batch(&mut self.ours.send, black_box(7), remote),
            Call::Poll => !measured_poll(&mut self.completions),
            Call::Reap => measured_reap(&mut self.completions, &mut self.ours.send),
        }
    }

    /// Posts writes with a completion each, and lets the device carry them out.
    fn post_for_reap(&mut self) -> Outcome {
        let remote = self.remote.region().remote(0);
        for _ in 0..BATCH {
            self.ours.send.request_completion();
            if !measured_write_8(&mut self.ours.send, 7, remote) {
                return Err("refused".into());
            }
        }
        settle();
        Ok(())
    }

    /// Polls completions until the ring has room for the next batch, and posts receive buffers
    /// again.
    fn drain(&mut self) -> Outcome {
        let segment = self.remote.region().segment(0, 64).ok_or("a segment")?;
        let half = self.ours.send.blocks() / 2;
        wait("posts", || {
            while self.theirs.receive.push(segment) {}
            self.theirs.receive.publish();
            while let Some(completion) = self.peer_completions.poll().map(Polled::completion) {
                assert_eq!(completion.kind, CompletionKind::Receive);
                self.theirs.receive.reap();
            }
            while let Some(completion) = self.completions.poll().map(Polled::completion) {
                assert_eq!(completion.kind, CompletionKind::Send);
                self.ours.send.reap(completion.wqe_counter);
            }
            self.ours.send.room() >= half
        })
    }
}
