//! A thread that waits for the failure of a device, so that its interfaces need no system call to
//! notice it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
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
    failure: Arc<OnceLock<String>>,
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
        let failure = Arc::new(OnceLock::new());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (known, stopped) = (Arc::clone(&failure), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("barewire-watch".to_owned())
            .spawn(move || run(&source, &known, &stopped))?;
        Ok(Self { failure, stop, thread: Some(thread), process: std::process::id() })
    }

    /// Returns the event that reported the device's failure.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
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

fn run(source: &impl Source, known: &OnceLock<String>, stop: &OwnedFd) {
    loop {
        if let Some(failure) = source.failure() {
            tracing::warn!("the device failed: {failure}");
            let _ = known.set(failure);
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
