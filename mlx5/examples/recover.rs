//! Recovers from an error: finds out which writes have arrived, and repeats the others over the
//! same queue pair.
//!
//! `cargo run -p barewire-mlx5 --example recover`
//!
//! Both queue pairs are in this process, as are both sides of the recovery. Two processes take the
//! same steps, and send each other the address of the queue pair after its reset.

use std::error::Error;
use std::time::{Duration, Instant};

use barewire_mlx5::request::{Nop, Write};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, ControlFlags, Polled, ProtectionDomain,
    RcConfig, RcPath, RcQueuePair, RemoteMemory, Uar, WqeIndex, setup,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PAGE: usize = 4096;
const PAGES: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A queue pair with its own completion queue.
struct Side {
    pair: RcQueuePair,
    completions: CompletionQueue,
}

impl Side {
    fn new(domain: &ProtectionDomain, uar: &Uar) -> Result<Self> {
        let completions = CompletionQueue::create(domain.context(), uar, 512)?;
        let config = RcConfig::default();
        let pair = RcQueuePair::create(domain, uar, &completions, &completions, &config)?;
        Ok(Self { pair, completions })
    }
}

fn main() -> Result<()> {
    let context = setup::open("soft0", 1, None)?.context;
    let domain = ProtectionDomain::allocate(&context)?;
    let uar = Uar::allocate(&context)?;
    let (mut writer, mut target) = (Side::new(&domain, &uar)?, Side::new(&domain, &uar)?);
    connect(&mut writer, &mut target)?;

    let pages: Vec<u8> = (0..PAGES * PAGE).map(|at| (at / PAGE) as u8).collect();
    let source = Buffer::register(&domain, pages, Access::empty())?;
    // The target has two regions of half of the pages, and deregisters one while it is in use.
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = || Buffer::allocate(&domain, PAGES / 2 * PAGE, access);
    let (low, high) = (region()?, region()?);
    let mut there = [low.region().to_remote(), high.region().to_remote()];
    high.deregister()?;

    // Which pages are under way, and in which WQEs. A page leaves the list when it has arrived.
    let mut journal = Vec::new();
    for page in 0..PAGES {
        journal.push((page, write(&mut writer, &source, &there, page)?));
    }
    let cause = wait(&mut writer)?.ok_or("no WQE has failed")?;

    // Both sides: wait for all completions. Then each WQE is known to be executed or not.
    writer.pair.drain(&mut writer.completions, TIMEOUT, |_| {})?;
    target.pair.drain(&mut target.completions, TIMEOUT, |_| {})?;
    journal.retain(|(_, index)| !writer.pair.send.is_executed(*index));
    println!("{} of {PAGES} pages have arrived", PAGES - journal.len());
    println!("the next one failed: {cause}");

    // Both sides: reset, which changes the address, and connect when the other has done so as well.
    writer.pair.reset()?;
    target.pair.reset()?;
    connect(&mut writer, &mut target)?;
    let high = region()?;
    there[1] = high.region().to_remote();
    // Pages that have arrived in part are written again as a whole.
    for (page, index) in &mut journal {
        *index = write(&mut writer, &source, &there, *page)?;
    }
    if let Some(cause) = wait(&mut writer)? {
        return Err(cause.into());
    }
    journal.retain(|(_, index)| !writer.pair.send.is_executed(*index));
    assert!(journal.is_empty(), "{journal:?}");

    for page in 0..PAGES {
        let memory = [&low, &high][page / (PAGES / 2)];
        let mut bytes = [0; PAGE];
        memory.read(page % (PAGES / 2) * PAGE, &mut bytes)?;
        assert_eq!(bytes, [page as u8; PAGE]);
    }
    println!("the others arrived after the reset");
    Ok(())
}

fn connect(writer: &mut Side, target: &mut Side) -> Result<()> {
    writer.pair.connect(&RcPath::to(&target.pair.address()))?;
    Ok(target.pair.connect(&RcPath::to(&writer.pair.address()))?)
}

/// Posts the write of a page.
fn write(
    writer: &mut Side,
    source: &Buffer<Vec<u8>>,
    there: &[RemoteMemory; 2],
    page: usize,
) -> Result<WqeIndex> {
    let local = source.region().segment(page * PAGE, PAGE).ok_or("outside the source")?;
    let (half, offset) = (page / (PAGES / 2), page % (PAGES / 2) * PAGE);
    let remote = there[half].segment(offset as u64, PAGE as u64).ok_or("outside the target")?;
    Ok(writer.pair.send.post(Write { local, remote }, ControlFlags::empty())?)
}

/// Polls until all writes are complete. Returns the cause of the first failure as soon as there is
/// one.
fn wait(writer: &mut Side) -> Result<Option<String>> {
    let send = &mut writer.pair.send;
    // The last write has not requested a completion.
    send.post(Nop, ControlFlags::COMPLETION)?;
    let deadline = Instant::now() + TIMEOUT;
    while !send.is_idle() {
        let Some(completion) = writer.completions.poll().map(Polled::completion) else {
            if Instant::now() > deadline {
                return Err("no completion within 10 s".into());
            }
            std::thread::yield_now(); // the software HCA is a thread
            continue;
        };
        match completion.kind {
            CompletionKind::SendError(failure) => {
                // Later, `is_executed` is right only because of this.
                send.fail(completion.wqe_counter);
                return Ok(Some(failure.to_string()));
            }
            _ => send.reap(completion.wqe_counter),
        }
    }
    Ok(None)
}
