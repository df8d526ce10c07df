//! The thread that runs a device's engine: busy while there is work, asleep soon after there is none.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::state::State;

/// How long the thread looks at doorbells after the last work before it starts to sleep. Every look gives the processor away
/// once, so that two processes share two processors well.
const SPIN: Duration = Duration::from_micros(50);
/// First and longest sleep between two looks. A doorbell is a store to memory and wakes nobody, so this bounds how late it is seen.
const NAP: Duration = Duration::from_micros(100);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// After so long without work the thread sleeps deeper: an idle device costs next to nothing.
const DROWSY: Duration = Duration::from_secs(1);
const DEEP_NAP: Duration = Duration::from_millis(4);
/// Sleep while the device has no queue pair: a command wakes the thread.
const IDLE_NAP: Duration = Duration::from_secs(1);

/// What callers and thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Callers that wait for the lock. The standard mutex lets the thread have it again and again; it steps back for them.
    waiting: AtomicUsize,
    stop: AtomicBool,
    wake: Option<Wake>,
}

impl Shared {
    pub(crate) fn new(state: State, wake: Option<Wake>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake,
        })
    }

    /// Takes the lock before the thread can have it again.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, State>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Ends the thread's sleep.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.ring();
        }
    }

    /// Tells the thread to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// Starts the thread.
pub(crate) fn spawn(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("barewire-hca".to_owned()).spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    let mut last_work = Instant::now();
    let mut nap = NAP;
    while !shared.stop.load(Ordering::SeqCst) {
        while shared.waiting.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        // A poisoned lock is a panic of a caller inside the state: the device is over.
        let Ok(mut state) = shared.state.lock() else { return };
        let (busy, due) = state.pass();
        let (descriptor, idle) = (state.descriptor(), state.is_idle());
        drop(state);
        if busy {
            last_work = Instant::now();
            nap = NAP;
        } else if !idle && last_work.elapsed() < SPIN {
            thread::yield_now();
        } else {
            let longest = if idle { IDLE_NAP } else { nap };
            let time = due.map_or(longest, |due| longest.min(Duration::from_nanos(due)));
            if sleep(shared.wake.as_ref().map(Wake::descriptor), descriptor, time) {
                last_work = Instant::now();
                nap = NAP;
            } else {
                nap = if last_work.elapsed() > DROWSY { DEEP_NAP } else { (nap * 2).min(LONGEST_NAP) };
            }
        }
    }
}

/// Sleeps until one of the descriptors can be read or the time is over; true if one can.
fn sleep(wake: Option<RawFd>, wire: Option<RawFd>, time: Duration) -> bool {
    // ppoll ignores negative descriptors.
    let mut descriptors =
        [wake, wire].map(|fd| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 });
    let time = libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the array and the time live until the call returns; no signal mask is given.
    let ready = unsafe {
        libc::ppoll(
            descriptors.as_mut_ptr(),
            descriptors.len() as libc::nfds_t,
            &raw const time,
            std::ptr::null(),
        )
    };
    if descriptors[0].revents != 0
        && let Some(fd) = wake
    {
        Wake::drain(fd);
    }
    ready > 0
}

/// An eventfd that ends a sleep.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just opened and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes from a live number. It fails only if the counter is full, and then the thread is awake.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), size_of_val(&one)) };
    }

    fn drain(fd: RawFd) {
        let mut count = 0_u64;
        // SAFETY: eight bytes to a live number. It fails only if the counter is zero, which is what is wanted.
        unsafe { libc::read(fd, (&raw mut count).cast(), size_of_val(&count)) };
    }
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
        assert!(sleep(Some(wake.descriptor()), None, Duration::from_mins(1)));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(!sleep(Some(wake.descriptor()), None, Duration::from_millis(1)));
    }
}
