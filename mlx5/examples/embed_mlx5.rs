//! Uses the driver without transports: connects two queue pairs of one software HCA, writes to the
//! memory of one through the other, and reads the bytes back.
//!
//! `cargo run -p barewire-mlx5 --example embed_mlx5`

use std::error::Error;
use std::time::{Duration, Instant};

use barewire_mlx5::request::{Read, Word, Write};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, ControlFlags, ProtectionDomain,
    RcConfig, RcPath, RcQueuePair, Uar, setup,
};

fn main() -> Result<(), Box<dyn Error>> {
    // Set-up: open a device and create its objects by PRM commands.
    let context = setup::open("soft0", 1, None)?.context;
    let domain = ProtectionDomain::allocate(&context)?;
    let uar = Uar::allocate(&context)?;
    let mut completions = CompletionQueue::create(&context, &uar, 1024)?;
    let config = RcConfig::default();
    let mut ours = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
    let mut theirs = RcQueuePair::create(&domain, &uar, &completions, &completions, &config)?;
    ours.connect(&RcPath::to(&theirs.address()))?;
    theirs.connect(&RcPath::to(&ours.address()))?;

    // Memory that the peer may access, and local memory for the read.
    let target = Buffer::allocate(&domain, 4096, Access::all())?;
    let local = Buffer::allocate(&domain, 4096, Access::LOCAL_WRITE)?;

    // The hot path: a WQE in the ring, the doorbell record, the BlueFlame register; then the CQE.
    let message = *b"barewire";
    ours.send.post(
        Write { local: Word(message), remote: target.region().remote(16) },
        ControlFlags::COMPLETION,
    )?;
    wait(&mut completions, &mut ours)?;

    let segment = local.region().segment(0, 8).ok_or("the segment lies outside its region")?;
    ours.send.post(
        Read { local: segment, remote: target.region().remote(16) },
        ControlFlags::COMPLETION,
    )?;
    let read = wait(&mut completions, &mut ours)?;

    let mut back = [0; 8];
    local.read(0, &mut back)?;
    assert_eq!(back, message);
    println!("wrote and read back {:?}, {} bytes", String::from_utf8_lossy(&back), read.byte_count);
    Ok(())
}

/// Polls for one completion of `pair`'s send queue.
fn wait(
    completions: &mut CompletionQueue,
    pair: &mut RcQueuePair,
) -> Result<Completion, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let Some(polled) = completions.poll() else {
            // The software HCA is a thread: yield to it.
            std::thread::yield_now();
            continue;
        };
        let completion = polled.completion();
        if let CompletionKind::SendError(failure) = completion.kind {
            return Err(failure.to_string().into());
        }
        pair.send.reap(completion.wqe_counter);
        return Ok(completion);
    }
    Err("no completion within 5 s".into())
}
