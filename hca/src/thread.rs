//! The thread that runs a device's engine.
//!
//! While there is work it polls. Without work it polls the doorbells for [`SPIN`], then sleeps
//! between polls for [`WATCHFUL`], and then sleeps until a doorbell, a packet, a command or a timer
//! wakes it: see [`Sentry`]. Without a userfaultfd it keeps polling, with growing sleeps in
//! between. While callers run the engine themselves ([`crate::Device::drive`]) it sleeps.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::limits;
use crate::sentry::Sentry;
use crate::state::State;
use crate::wake::Wake;

/// How long the thread polls after the last work before it sleeps. It yields in every poll, so that
/// two processes can share two processors.
const SPIN: Duration = Duration::from_micros(50);
/// After a yield that took so long, which gave the CPU to a program that polls memory, the thread
/// does not poll for [`CROWDED`]: the kernel runs a thread that wakes up sooner than one that
/// yields.
const LONG_YIELD: Duration = Duration::from_micros(200);
const CROWDED: Duration = Duration::from_millis(20);
/// How long it sleeps only briefly between polls, so that a device with occasional work takes no
/// faults.
const WATCHFUL: Duration = Duration::from_millis(1);
/// First and longest sleep between two polls. A doorbell is a store to memory, which wakes no
/// thread, so this bounds the latency.
const NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// After this long without work a thread without a userfaultfd sleeps longer: an idle device costs
/// next to nothing.
const DROWSY: Duration = Duration::from_secs(1);
const DEEP_NAP: Duration = Duration::from_millis(4);
/// Longest sleep if every event wakes the thread: commands, packets and doorbells.
const SLEEP: Duration = Duration::from_secs(1);
/// Longest sleep while there are queue pairs in error: receive WQEs posted to them ring no
/// doorbell.
const FLUSH_NAP: Duration = Duration::from_millis(10);
/// A caller that ran the engine so short a time ago goes on doing so.
const POLLING: Duration = Duration::from_micros(40);
/// How long the thread leaves the work to such a caller at first, and at most: it doubles.
const AWAY: Duration = Duration::from_micros(20);
const LONGEST_AWAY: Duration = Duration::from_micros(200);
/// Timer slack of the thread's sleeps, instead of the default 50 us.
const TIMER_SLACK_NS: libc::c_ulong = 1000;
/// The shortest slice of CPU time that a thread can ask for.
const SLICE_NS: u64 = 100_000;

/// How a sleeping device notices a doorbell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoorbellWake {
    /// The store itself wakes the device's thread, by a userfaultfd on the UAR page.
    Store,
    /// The thread polls, for this reason.
    Polling(String),
    /// There is no thread: see [`crate::Mode::Stepped`].
    Stepped,
}

/// State that callers and the thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Callers that wait for the lock. A standard mutex is not fair; the thread yields to them.
    waiting: AtomicUsize,
    stop: AtomicBool,
    wake: Option<Wake>,
    doorbell_wake: Mutex<DoorbellWake>,
    created: Instant,
    /// When a caller last ran the engine, in nanoseconds after `created`; 0 for never.
    driven: AtomicU64,
    /// Whether the thread sleeps.
    asleep: AtomicBool,
    /// Whether it may sleep for so long that it has to learn what a caller's pass has changed: new
    /// timers, and events that the pass took. Set with the state locked.
    sleeps_long: AtomicBool,
}

impl Shared {
    pub(crate) fn new(state: State, wake: Option<Wake>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake,
            doorbell_wake: Mutex::new(DoorbellWake::Stepped),
            created: Instant::now(),
            driven: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            sleeps_long: AtomicBool::new(false),
        })
    }

    /// Locks the state before the thread can lock it again.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, State>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Runs a pass on the calling thread, and leaves the next passes to such callers while they go
    /// on. Returns false if the pass had no work, or another thread uses the state.
    pub(crate) fn drive(&self) -> bool {
        self.driven.store(self.age().max(1), Ordering::Relaxed);
        self.try_pass()
    }

    /// Runs a pass on the calling thread if the device's thread sleeps: it does not see a doorbell
    /// at once.
    pub(crate) fn drive_asleep(&self) {
        if self.asleep.load(Ordering::Relaxed) {
            self.try_pass();
        }
    }

    fn try_pass(&self) -> bool {
        // Callers that wait for the lock go first.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let Ok(mut state) = self.state.try_lock() else { return false };
        let busy = state.pass().0;
        if self.sleeps_long.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        busy
    }

    /// Returns the nanoseconds since this was created.
    fn age(&self) -> u64 {
        self.created.elapsed().as_nanos() as u64
    }

    /// Returns the time since a caller ran the engine.
    fn since_driven(&self) -> Duration {
        match self.driven.load(Ordering::Relaxed) {
            0 => Duration::MAX,
            last => Duration::from_nanos(self.age().saturating_sub(last)),
        }
    }

    /// As [`sleep`], for the thread.
    fn sleep(
        &self,
        wires: [Option<RawFd>; limits::PORTS],
        sentry: Option<RawFd>,
        time: Duration,
    ) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        let woken = sleep(self.wake.as_ref(), wires, sentry, time);
        self.asleep.store(false, Ordering::Relaxed);
        self.sleeps_long.store(false, Ordering::SeqCst);
        woken
    }

    /// Returns how a doorbell ends the thread's sleep.
    pub(crate) fn doorbell_wake(&self) -> DoorbellWake {
        self.doorbell_wake.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_doorbell_wake(&self, to: DoorbellWake) {
        *self.doorbell_wake.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Ends the thread's sleep.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.ring();
        }
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// Starts the thread. If `woken` is set and the kernel provides a userfaultfd, doorbells wake it.
pub(crate) fn spawn(shared: Arc<Shared>, woken: bool) -> io::Result<JoinHandle<()>> {
    let sentry = if woken { Sentry::new() } else { Err(io::Error::other("not asked for")) };
    let sentry = match sentry {
        Ok(sentry) => {
            shared.set_doorbell_wake(DoorbellWake::Store);
            Some(sentry)
        }
        Err(error) => {
            shared.set_doorbell_wake(DoorbellWake::Polling(format!("userfaultfd: {error}")));
            None
        }
    };
    thread::Builder::new().name("barewire-hca".to_owned()).spawn(move || run(&shared, sentry))
}

/// Asks the kernel to run this thread soon after it wakes up, although programs poll on every CPU: a
/// thread with a short slice preempts those with longer ones. Linux before 6.12 ignores it.
fn ask_for_short_slices() {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: `sched_attr` consists of numbers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: sched_getattr(2) writes at most `size` bytes to `attributes`, which nobody else uses.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: sched_setattr(2) reads `attributes`, whose size is in its first field.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

fn run(shared: &Shared, mut sentry: Option<Sentry>) {
    // SAFETY: no pointers. If it fails, sleeps last longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
    ask_for_short_slices();
    let mut last_work = Instant::now();
    let mut nap = NAP;
    let mut away = AWAY;
    // When another thread last kept the CPU that this one yielded.
    let mut crowded: Option<Instant> = None;
    while !shared.stop.load(Ordering::SeqCst) {
        while shared.waiting.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        if shared.since_driven() < POLLING {
            // This thread would only take the caller's CPU.
            shared.sleep([None; limits::PORTS], None, away);
            away = (away * 2).min(LONGEST_AWAY);
            (last_work, nap) = (Instant::now(), NAP);
            continue;
        }
        away = AWAY;
        // A poisoned lock means that a caller panicked while it changed the state: the device has
        // stopped.
        let Ok(mut state) = shared.state.lock() else { return };
        let (busy, due) = state.pass();
        // Without queue pairs only commands can bring work, and they wake the thread.
        let idle = sentry.is_none() && state.is_idle();
        if busy {
            last_work = Instant::now();
            nap = NAP;
            continue;
        }
        let rest = last_work.elapsed();
        if !idle && rest < SPIN && crowded.is_none_or(|since| since.elapsed() > CROWDED) {
            drop(state);
            let yielded = Instant::now();
            thread::yield_now();
            crowded = (yielded.elapsed() > LONG_YIELD).then(Instant::now);
            continue;
        }
        let mut broken = false;
        let until =
            |longest: Duration| due.map_or(longest, |due| longest.min(Duration::from_nanos(due)));
        let woken = if let Some(sentry) = sentry.as_mut().filter(|_| rest >= WATCHFUL) {
            let armed = state.arm(sentry).map(|quiet| quiet && state.rest());
            let longest = if state.has_failed() { FLUSH_NAP } else { SLEEP };
            let wires = state.descriptors();
            shared.sleeps_long.store(true, Ordering::SeqCst);
            drop(state);
            let slept = if matches!(armed, Ok(true)) {
                shared.sleep(wires, Some(sentry.descriptor()), until(longest))
            } else {
                false
            };
            // Before anything else: a thread that stores to a page is blocked until then.
            match armed.and(sentry.open()) {
                Ok(true) => {
                    shared
                        .state
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .count_doorbell_wake();
                    true
                }
                Ok(false) => slept,
                Err(error) => {
                    shared
                        .set_doorbell_wake(DoorbellWake::Polling(format!("userfaultfd: {error}")));
                    broken = true;
                    false
                }
            }
        } else {
            let (rests, wires) = (state.rest(), state.descriptors());
            shared.sleeps_long.store(idle, Ordering::SeqCst);
            drop(state);
            rests && shared.sleep(wires, None, until(if idle { SLEEP } else { nap }))
        };
        if woken {
            last_work = Instant::now();
            nap = NAP;
        } else {
            nap = if rest > DROWSY { DEEP_NAP } else { (nap * 2).min(LONGEST_NAP) };
        }
        if broken {
            // Closing the descriptor makes all pages writable.
            sentry = None;
        }
    }
}

/// Sleeps until `wake` is rung, another descriptor is readable or `time` has passed. Returns false
/// for the last.
fn sleep(
    wake: Option<&Wake>,
    wires: [Option<RawFd>; limits::PORTS],
    sentry: Option<RawFd>,
    time: Duration,
) -> bool {
    let [first, second] = wires;
    // ppoll ignores negative descriptors.
    let descriptors = [wake.map(Wake::descriptor), first, second, sentry];
    let mut polled = descriptors.map(|fd| libc::pollfd {
        fd: fd.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    });
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the array and the time live until the call returns; no signal mask is passed.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &raw const time,
            std::ptr::null(),
        )
    };
    if polled[0].revents != 0
        && let Some(wake) = wake
    {
        wake.drain();
    }
    ready > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_ends_a_sleep_once() {
        let wake = Wake::new().unwrap();
        wake.ring();
        wake.ring();
        let start = Instant::now();
        assert!(sleep(Some(&wake), [None; limits::PORTS], None, Duration::from_mins(1)));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(!sleep(Some(&wake), [None; limits::PORTS], None, Duration::from_millis(1)));
    }
}
