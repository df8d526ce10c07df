//! A cable that loses and delays frames, for kernels without netem: frames pass through this process.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Updater, ioctl};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bench::Bench;

/// Of linux/if_tun.h.
const TUNSETIFF: u32 = 0x4004_54ca;
const IFF_TAP: i16 = 2;
const IFF_NO_PI: i16 = 0x1000;
/// `struct ifreq`: a name of 16 bytes, the flags, and the rest of a union.
const IFREQ: usize = 40;
/// The switch has only so many frames of a direction under way.
const QUEUE: usize = 1000;
const NAMES: [&str; 2] = ["relay0", "relay1"];

/// What happens to each frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// Of a thousand frames, so many are lost.
    pub(crate) loss: u32,
    pub(crate) delay: Duration,
}

/// The cable ends when it is dropped.
pub(crate) struct Relay {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Puts the relay into the cable of a host's `eth0`. The error is why this machine does not allow
    /// it.
    pub(crate) fn new(bench: &Bench, host: usize, faults: Faults) -> Result<Self, String> {
        let ends = Arc::new(AtomicBool::new(false));
        let network = bench.split(host, NAMES)?;
        let open_both = || {
            let network = File::open(&network)?;
            // Of this thread only.
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok([open(NAMES[0])?, open(NAMES[1])?])
        };
        let taps: std::io::Result<_> =
            thread::scope(|scope| scope.spawn(open_both).join().expect("no panic"));
        let taps = taps.map_err(|error| format!("a tap: {error}"))?;
        let [one, other] = taps.map(Arc::new);
        let threads = [(&one, &other, 1), (&other, &one, 2)].map(|(from, to, seed)| {
            let (from, to, ends) = (Arc::clone(from), Arc::clone(to), Arc::clone(&ends));
            let random = fastrand::Rng::with_seed(seed);
            thread::spawn(move || carry(&from, &to, faults, random, &ends))
        });
        Ok(Self { ends, threads: threads.into() })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens the frames of an interface of this thread's network namespace.
fn open(name: &str) -> std::io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let tap =
        OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open("/dev/net/tun")?;
    let mut request = [0_u8; IFREQ];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&(IFF_TAP | IFF_NO_PI).to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which has 40 bytes on 64-bit Linux, at the
    // address of `request`, which is borrowed mutably during the call.
    unsafe { ioctl(&tap, Updater::<TUNSETIFF, [u8; IFREQ]>::new(&mut request)) }?;
    Ok(tap)
}

fn carry(
    mut from: &File,
    mut to: &File,
    faults: Faults,
    mut random: fastrand::Rng,
    ends: &AtomicBool,
) {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut frame = vec![0; 1 << 16];
    while !ends.load(Ordering::Relaxed) {
        let now = Instant::now();
        while queue.front().is_some_and(|(due, _)| *due <= now) {
            // An interface that is down, or has no room, loses the frame.
            let _ = queue.pop_front().map(|(_, frame)| to.write(&frame));
        }
        let due = queue.front().map(|(due, _)| due.saturating_duration_since(now));
        let wait = due.unwrap_or(Duration::from_millis(100));
        let timeout = Timespec::try_from(wait).ok();
        if !poll(&mut [PollFd::new(from, PollFlags::IN)], timeout.as_ref())
            .is_ok_and(|ready| ready > 0)
        {
            continue;
        }
        match from.read(&mut frame) {
            Ok(length) => {
                if random.u32(..1000) >= faults.loss && queue.len() < QUEUE {
                    queue.push_back((Instant::now() + faults.delay, frame[..length].to_vec()));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The interface has been removed.
            Err(_) => return,
        }
    }
}
