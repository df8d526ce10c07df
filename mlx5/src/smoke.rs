//! A test of a device that was just opened: a queue pair, connected to itself, writes to memory.
//!
//! A device can refuse the objects of one backend and accept those of another, so opening it is not
//! enough to choose.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use barewire_layouts::wqe::ControlFlags;

use crate::context::{Context, ProtectionDomain, Uar};
use crate::doorbell::Adaptive;
use crate::error::{Error, system};
use crate::memory::Buffer;
use crate::queue::completion::{CompletionKind, CompletionQueue, Polled};
use crate::rc::{RcConfig, RcPath, RcQueuePair};
use crate::setup::SetupWay;
use crate::values::Access;

/// The most time for a write: more than all retries take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a write that takes several packets.
const LENGTH: usize = 3 * 4096;

/// Tests the port once for each backend of a process.
///
/// # Errors
/// Why the port does not work with this backend.
pub(crate) fn test(
    (device, port, way): (&str, u8, SetupWay),
    context: &Context,
) -> Result<(), Error> {
    type Known = BTreeMap<(String, u8, SetupWay), Result<(), String>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let name = (device.to_owned(), port, way);
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
    let result = known.unwrap_or_else(|| {
        let result = run(context).map_err(|error| error.to_string());
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(name, result.clone());
        result
    });
    result.map_err(|reason| system("testing the device", reason))
}

/// Writes a short and a long message to memory, and compares them.
fn run(context: &Context) -> Result<(), Error> {
    let domain = ProtectionDomain::allocate(context)?;
    let [source, target] = [
        Buffer::allocate(&domain, LENGTH, Access::all()),
        Buffer::allocate(&domain, LENGTH, Access::all()),
    ];
    let (source, target) = (source?, target?);
    let uar = Uar::allocate(context)?;
    let mut completions = CompletionQueue::create(context, &uar, 256)?;
    let config = RcConfig::default().send_blocks(64);
    let mut pair =
        RcQueuePair::<Adaptive>::create_with(&domain, &uar, &completions, &completions, &config)?;
    pair.connect(&RcPath::new(context.port_address(), pair.number()))?;
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    let failed = |reason: &str| system("writing to the device's own memory", reason);
    let whole = source
        .write(0, &bytes)
        .ok()
        .and_then(|()| source.region().segment(0, LENGTH))
        .ok_or_else(|| failed("the buffer is too short"))?;
    let remote = |offset| target.region().remote(offset);
    let full = |_| failed("the queue is full");
    pair.send.write(whole, remote(0), ControlFlags::COMPLETION).map_err(full)?;
    wait(&mut pair, &mut completions)?;
    pair.send.write_inline(b"barewire", remote(0), ControlFlags::COMPLETION).map_err(full)?;
    wait(&mut pair, &mut completions)?;
    let mut got = vec![0; LENGTH];
    target.read(0, &mut got).map_err(|_| failed("the buffer is too short"))?;
    if got[..8] == *b"barewire" && got[8..] == bytes[8..] {
        Ok(())
    } else {
        Err(failed("other bytes arrived"))
    }
}

fn wait(pair: &mut RcQueuePair<Adaptive>, completions: &mut CompletionQueue) -> Result<(), Error> {
    let start = Instant::now();
    while !pair.send.is_idle() {
        match completions.poll().map(Polled::completion) {
            Some(completion) if completion.kind == CompletionKind::Send => {
                pair.send.reap(completion.wqe_counter);
            }
            Some(completion) => {
                let reason = format!("it completed with {:?}", completion.kind);
                return Err(system("writing to the device's own memory", reason));
            }
            None if start.elapsed() > TIMEOUT => {
                return Err(system("writing to the device's own memory", "it did not complete"));
            }
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}
