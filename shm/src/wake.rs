//! The wake flag: a sender wakes a sleeping receiver, and otherwise pays only for a load.
//!
//! The receiver sets the flag, makes the store visible to every sender, and polls for messages once
//! more before it sleeps. A sender stores its message and then loads the flag. This would require a
//! fence between the store and the load of every message. Instead the receiver makes the kernel
//! execute a fence on every core that runs a sender (membarrier(2)), and only when it is about to
//! sleep.
//!
//! The sender that clears the flag sends a message over its own socket, on which the receiver
//! sleeps. Each end of a socket has its own file flags, so a peer can make neither the send nor the
//! receive block.
//!
//! The flag lies in memory that every sender writes. A misbehaving sender can clear it without
//! waking the receiver; the messages of other senders then wait until the receiver polls by itself.
//! Receivers therefore sleep with a timeout.

use std::io;
use std::sync::OnceLock;

use rustix::thread::MembarrierCommand;

use crate::atomic::{AtomicU64, Ordering};
use crate::line::{Lines, Ring};

const ARMED: u64 = 1;

/// The wake flag in the receiver's memory.
#[derive(Debug, Clone)]
pub(crate) struct WakeFlag(Ring);

impl WakeFlag {
    /// The flag in the first word of `line`. Returns `None` unless there is exactly one line.
    pub(crate) fn new(line: Lines) -> Option<Self> {
        Ring::new(line).filter(|ring| ring.slots() == 1).map(Self)
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        self.0.slot(0).word(0)
    }

    /// Called by the receiver: requests a wake-up. The receiver must poll for earlier messages
    /// afterwards.
    pub(crate) fn arm(&self, barrier: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        // A swap instead of a store, so that it is ordered after the last clear in every memory
        // model.
        self.word().swap(ARMED, Ordering::SeqCst);
        barrier().inspect_err(|_| self.disarm())
    }

    /// Called by the receiver: returns true if no sender has cleared the flag.
    pub(crate) fn is_armed(&self) -> bool {
        self.word().load(Ordering::Acquire) == ARMED
    }

    /// Called by the receiver: cancels the request.
    fn disarm(&self) {
        self.word().store(0, Ordering::Relaxed);
    }

    /// Called by a sender after it wrote a message: returns true if this sender must wake the
    /// receiver.
    #[inline(always)]
    pub(crate) fn must_wake(&self) -> bool {
        // The receiver's barrier orders the accesses of the processor; this fence orders those of
        // the compiler.
        #[cfg(not(loom))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        #[cfg(loom)]
        loom::sync::atomic::fence(Ordering::SeqCst);
        self.word().load(Ordering::Relaxed) == ARMED && self.clear()
    }

    #[cold]
    fn clear(&self) -> bool {
        self.word().compare_exchange(ARMED, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Executes a fence on every core that runs a process which called [`register`].
pub(crate) fn barrier() -> io::Result<()> {
    register()?;
    Ok(rustix::thread::membarrier(MembarrierCommand::GlobalExpedited)?)
}

/// Registers this process for the [`barrier`]s of other processes.
pub(crate) fn register() -> io::Result<()> {
    static DONE: OnceLock<Result<(), rustix::io::Errno>> = OnceLock::new();
    let register = || rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited);
    Ok((*DONE.get_or_init(register))?)
}
