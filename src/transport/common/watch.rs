//! A thread that waits for the failure of a device, so that its interfaces need no system call to
//! notice it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::attention::Attention;

/// The time between two ticks.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The events of a device.
pub(crate) trait Source: Send + 'static {
    /// Readable while there are events.
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>>;

    /// Reads the events, without waiting. Returns the one after which the device must be closed.
    fn failure(&self) -> Option<String>;
}

/// The watch of one device. The thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    known: Arc<Known>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// A forked child has no thread, and shares the descriptor that stops the parent's.
    process: u32,
}

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's, if a descriptor or a thread cannot be created.
    pub(crate) fn start(source: impl Source) -> io::Result<Self> {
        let known = Arc::new(Known::default());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (shared, stopped) = (Arc::clone(&known), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("barewire-watch".to_owned())
            .spawn(move || run(&source, &shared, &stopped))?;
        Ok(Self { known, stop, thread: Some(thread), process: std::process::id() })
    }

    /// Returns the event that reported the device's failure.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.known.failure.get().map(String::as_str)
    }

    /// Returns the number of the tick. A tick takes [`TICK`], or longer if the machine is loaded.
    pub(crate) fn tick(&self) -> u32 {
        self.known.ticks.load(Ordering::Relaxed)
    }

    /// Calls for `attention` when the device fails, or now if it has failed, and again and again
    /// until the result is dropped. If `ticks`, calls at each [tick](Self::tick) as well.
    ///
    /// # Safety
    /// The value stays valid until the result has been dropped.
    pub(crate) unsafe fn alarm(&self, attention: NonNull<Attention>, ticks: bool) -> Alarm {
        let flag = Flag { attention, ticks };
        let mut flags = self.known.flags();
        flags.push(flag);
        if self.failure().is_some() {
            flag.set();
        }
        Alarm { known: Arc::clone(&self.known), flag }
    }
}

/// What the thread and the users of a watch share.
#[derive(Debug, Default)]
struct Known {
    failure: OnceLock<String>,
    ticks: AtomicU32,
    flags: Mutex<Vec<Flag>>,
}

impl Known {
    fn flags(&self) -> MutexGuard<'_, Vec<Flag>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the next tick, if a flag is set by it.
    fn tick(&self) {
        let flags = self.flags();
        self.ticks.fetch_add(1, Ordering::Relaxed);
        flags.iter().filter(|flag| flag.ticks).for_each(|flag| flag.set());
    }

    fn fail(&self, failure: String) {
        let _ = self.failure.set(failure);
        self.repeat();
    }

    /// Sets all flags, which progress may have lost the last time.
    fn repeat(&self) {
        self.flags().iter().for_each(|flag| flag.set());
    }
}

/// A flag that is valid while it is in [`Known::flags`], or belongs to an [`Alarm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flag {
    attention: NonNull<Attention>,
    /// Whether it is set at every tick.
    ticks: bool,
}

// SAFETY: any thread may call.
unsafe impl Send for Flag {}
// SAFETY: as for `Send`.
unsafe impl Sync for Flag {}

impl Flag {
    fn set(self) {
        // SAFETY: the flag is valid while an `Alarm` has it, by the contract of `Watch::alarm`.
        // Callers hold the lock on the list, which `Alarm::drop` takes before the flag may become
        // invalid.
        unsafe { self.attention.as_ref() }.call();
    }
}

/// The right of a watch to set a flag. See [`Watch::alarm`].
#[derive(Debug)]
pub(crate) struct Alarm {
    known: Arc<Known>,
    flag: Flag,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut flags = self.known.flags();
        if let Some(at) = flags.iter().position(|flag| *flag == self.flag) {
            flags.swap_remove(at);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.process != std::process::id() {
            return std::mem::forget(thread);
        }
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn run(source: &impl Source, known: &Known, stop: &OwnedFd) {
    loop {
        if let Some(failure) = source.failure() {
            tracing::warn!("the device failed: {failure}");
            known.fail(failure);
            return while sleeps(stop) {
                known.repeat();
            };
        }
        let Ok(events) = source.descriptor() else { return };
        let mut polled = [
            PollFd::from_borrowed_fd(events, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, Some(&TICK)) {
            Ok(0) => known.tick(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !polled[1].revents().is_empty() {
            return;
        }
    }
}

/// Waits for [`TICK`]. Returns `false` when the thread is to stop.
fn sleeps(stop: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
    matches!(poll(&mut polled, Some(&TICK)), Ok(0) | Err(rustix::io::Errno::INTR))
}
