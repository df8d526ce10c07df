//! Two processes, the driver alone: one writes batches of 4 KiB pages to the memory of the other,
//! with one completion per batch.
//!
//! `cargo run -p barewire-mlx5 --example batch_writer`
//!
//! The processes exchange addresses as bytes, here over a pipe.

use std::error::Error;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use barewire_mlx5::request::Write;
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, ControlFlags, ProtectionDomain, RcAddress,
    RcConfig, RcPath, RcQueuePair, RemoteMemory, Uar, setup,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PAGE: usize = 4096;
const PAGES: usize = 32;
const BATCHES: usize = 8;

/// A device, and a queue pair that is not connected.
struct Node {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    pair: RcQueuePair,
}

impl Node {
    fn open() -> Result<Self> {
        // The software HCA. For a device of the machine, such as `mlx5_0`: the feature `verbs`.
        let context = setup::open("soft0", 1, None)?.context;
        let domain = ProtectionDomain::allocate(&context)?;
        let uar = Uar::allocate(&context)?;
        // Room for a completion of each block of the send ring and of each receive.
        let completions = CompletionQueue::create(&context, &uar, 512)?;
        let config = RcConfig::default();
        let pair = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
        Ok(Self { domain, completions, pair })
    }
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("target") { target() } else { writer() }
}

/// Owns the memory. Its processor does nothing while the pages arrive.
fn target() -> Result<()> {
    let mut node = Node::open()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = Buffer::allocate(&node.domain, PAGES * PAGE, access)?;
    let mut out = std::io::stdout();
    out.write_all(&node.pair.address().to_bytes())?;
    out.write_all(&memory.region().to_remote().to_bytes())?;
    out.flush()?;
    let mut peer = [0; RcAddress::BYTES];
    std::io::stdin().read_exact(&mut peer)?;
    node.pair.connect(&RcPath::to(&RcAddress::from_bytes(&peer)?))?;
    out.write_all(b"r")?;
    out.flush()?;
    // The writer reports the end.
    std::io::stdin().read_exact(&mut [0])?;
    let last = |page| memory.load_u8(page * PAGE);
    let sum = (0..PAGES).try_fold(0, |sum, page| last(page).map(|byte| sum + u32::from(byte)))?;
    out.write_all(&sum.to_be_bytes())?;
    Ok(out.flush()?)
}

fn writer() -> Result<()> {
    let mut node = Node::open()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("target")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = child.stdout.take().ok_or("no output of the target")?;
    let mut output = child.stdin.take().ok_or("no input of the target")?;
    output.write_all(&node.pair.address().to_bytes())?;
    let (mut peer, mut memory) = ([0; RcAddress::BYTES], [0; RemoteMemory::BYTES]);
    input.read_exact(&mut peer)?;
    input.read_exact(&mut memory)?;
    let memory = RemoteMemory::from_bytes(&memory)?;
    node.pair.connect(&RcPath::to(&RcAddress::from_bytes(&peer)?))?;
    input.read_exact(&mut [0])?;

    let pages: Vec<u8> = (0..PAGES * PAGE).map(|at| (at / PAGE) as u8).collect();
    let source = Buffer::register(&node.domain, pages, Access::empty())?;
    for _ in 0..BATCHES {
        let mut batch = node.pair.send.batch();
        for page in 0..PAGES {
            let local = source.region().segment(page * PAGE, PAGE).ok_or("outside the source")?;
            let there = memory.segment((page * PAGE) as u64, PAGE as u64).ok_or("outside")?;
            let is_last = page == PAGES - 1;
            let flags = if is_last { ControlFlags::COMPLETION } else { ControlFlags::empty() };
            batch.post(Write { local, remote: there }, flags)?;
        }
        let last = batch.last_index().ok_or("nothing was posted")?;
        drop(batch); // rings the doorbell
        wait(&mut node, |queue| queue.is_done(last))?;
    }
    output.write_all(b"e")?;
    let mut sum = [0; 4];
    input.read_exact(&mut sum)?;
    println!("wrote {} pages, sum {}", BATCHES * PAGES, u32::from_be_bytes(sum));
    Ok(child.wait()?.success().then_some(()).ok_or("the target failed")?)
}

/// Polls for completions until `done`.
fn wait(node: &mut Node, done: impl Fn(&barewire_mlx5::SendQueue) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done(&node.pair.send) {
        let Some(polled) = node.completions.poll() else {
            if Instant::now() > deadline {
                return Err("no completion within 10 s".into());
            }
            std::thread::yield_now(); // the software HCA is a thread
            continue;
        };
        let completion = polled.completion();
        if let CompletionKind::SendError(failure) = completion.kind {
            node.pair.send.fail(completion.wqe_counter);
            return Err(failure.to_string().into());
        }
        node.pair.send.reap(completion.wqe_counter);
    }
    Ok(())
}
