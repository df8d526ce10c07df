//! The bell: how a sender wakes a receiver that sleeps, at the price of a load while it does not.
//!
//! The receiver arms the bell, makes sure that every sender sees it from now on, and looks for messages once more before it sleeps.
//! A sender stores its message and then loads the bell. Between this store and this load a fence would be needed for every message;
//! instead the receiver has the kernel run one on every core where a sender runs (membarrier(2)), and only when it goes to sleep.
//!
//! Whoever takes the bell sends a message over its own socket, which the receiver sleeps on. Each end of a
//! socket has file flags of its own, so a peer can make neither the sending nor the taking block.
//!
//! The bell lies in memory that every sender writes: one that breaks the rules can take it and not ring. Then the others' messages lie
//! there until the receiver looks by itself, so whoever sleeps sets a limit to it.

use std::io;
use std::sync::OnceLock;

use rustix::thread::MembarrierCommand;

use crate::atomic::{AtomicU64, Ordering};
use crate::line::{Lines, Ring};

const ARMED: u64 = 1;

/// The bell's word in the receiver's memory.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Ring);

impl Bell {
    /// In the first word of the one line; `None` if there is not one.
    pub(crate) fn new(line: Lines) -> Option<Self> {
        Ring::new(line).filter(|ring| ring.slots() == 1).map(Self)
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        self.0.slot(0).word(0)
    }

    /// Receiver: from now on a message rings. What was sent before must be looked for after this.
    pub(crate) fn arm(&self, barrier: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        // Not a store: after whoever took it last, in every model of memory.
        self.word().swap(ARMED, Ordering::SeqCst);
        barrier().inspect_err(|_| self.disarm())
    }

    /// Receiver: nobody rang since it was armed.
    pub(crate) fn is_armed(&self) -> bool {
        self.word().load(Ordering::Acquire) == ARMED
    }

    /// Receiver: messages do not ring any more.
    fn disarm(&self) {
        self.word().store(0, Ordering::Relaxed);
    }

    /// Sender, after the message: true for the one that must wake the receiver.
    #[inline(always)]
    pub(crate) fn must_ring(&self) -> bool {
        // The receiver's barrier orders the processor's accesses, this the compiler's.
        #[cfg(not(loom))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        #[cfg(loom)]
        loom::sync::atomic::fence(Ordering::SeqCst);
        self.word().load(Ordering::Relaxed) == ARMED && self.take()
    }

    #[cold]
    fn take(&self) -> bool {
        self.word().compare_exchange(ARMED, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A fence on every core that runs a process which called [`register`].
pub(crate) fn barrier() -> io::Result<()> {
    register()?;
    Ok(rustix::thread::membarrier(MembarrierCommand::GlobalExpedited)?)
}

/// Lets [`barrier`]s of other processes reach this one.
pub(crate) fn register() -> io::Result<()> {
    static DONE: OnceLock<Result<(), rustix::io::Errno>> = OnceLock::new();
    let register = || rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited);
    Ok((*DONE.get_or_init(register))?)
}
