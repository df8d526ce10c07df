//! A thread that waits for the failure of a device and calls the attention of its interfaces, so
//! that progress needs no system call to notice it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

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
    watched: Arc<Watched>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// A forked child has no thread, and shares the descriptor that stops the parent's.
    process: u32,
}

#[derive(Debug, Default)]
struct Watched {
    failure: OnceLock<String>,
    flags: Mutex<Vec<Flag>>,
}

/// A flag of an interface, valid until it is removed from the list.
#[derive(Debug, PartialEq, Eq)]
struct Flag(NonNull<AtomicBool>);

// SAFETY: it is used under the lock of `Watched::flags` only, and atomics may be stored to from any
// thread.
unsafe impl Send for Flag {}

impl Watched {
    fn flags(&self) -> MutexGuard<'_, Vec<Flag>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel's, if a descriptor or a thread cannot be created.
    pub(crate) fn start(source: impl Source) -> io::Result<Self> {
        let watched = Arc::new(Watched::default());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (known, stopped) = (Arc::clone(&watched), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("barewire-watch".to_owned())
            .spawn(move || run(&source, &known, &stopped))?;
        Ok(Self { watched, stop, thread: Some(thread), process: std::process::id() })
    }

    /// Returns the event that reported the device's failure.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.watched.failure.get().map(String::as_str)
    }

    /// Sets `flag` when the device fails, until [`Self::forget`].
    ///
    /// # Safety
    /// `flag` is valid until `forget` has returned or the watch is dropped.
    pub(crate) unsafe fn notify(&self, flag: &AtomicBool) {
        self.watched.flags().push(Flag(NonNull::from(flag)));
        // The thread may have looked before.
        if self.failure().is_some() {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Ends [`Self::notify`].
    pub(crate) fn forget(&self, flag: &AtomicBool) {
        let flag = Flag(NonNull::from(flag));
        self.watched.flags().retain(|other| *other != flag);
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

fn run(source: &impl Source, watched: &Watched, stop: &OwnedFd) {
    loop {
        if let Some(failure) = source.failure() {
            tracing::warn!("the device failed: {failure}");
            let _ = watched.failure.set(failure);
            for Flag(flag) in &*watched.flags() {
                // SAFETY: flags in the list are valid by the contract of `notify`, and the lock
                // keeps them there.
                unsafe { flag.as_ref() }.store(true, Ordering::Relaxed);
            }
            return;
        }
        let Ok(events) = source.descriptor() else { return };
        let mut polled = [
            PollFd::from_borrowed_fd(events, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !polled[1].revents().is_empty() {
            return;
        }
    }
}
