//! A BlueFlame register for queues of several threads.

use core::ptr::NonNull;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Doorbell, Register};

/// A register that several queues write in turns, under a lock: for more queues than the device has registers. Each of them rings by
/// [`super::BlueFlameShared`]; whichever half is next is the register's affair, not the queue's.
#[derive(Debug)]
pub struct SharedRegister {
    half: Mutex<Half>,
    _keep: Arc<dyn Any + Send + Sync>,
}

/// The half that is next.
#[derive(Clone, Copy, Debug)]
struct Half(NonNull<u8>);

// SAFETY: a place in a register, which is no thread's own.
unsafe impl Send for Half {}

impl SharedRegister {
    /// Shares a register.
    ///
    /// # Safety
    /// Until `keep` is dropped, `register` is valid for writes of 512 bytes and 512-byte aligned, and nothing else writes it.
    pub unsafe fn new(register: NonNull<u8>, keep: Arc<dyn Any + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { half: Mutex::new(Half(register)), _keep: keep })
    }

    /// Rings one doorbell.
    ///
    /// # Safety
    /// The CPU has the instructions of `D::Width`.
    #[inline]
    pub(crate) unsafe fn ring<D: Doorbell>(&self, ring: impl FnOnce(&mut Register<D>)) {
        // Whoever panicked did so outside of the few stores that the lock is for.
        let mut half = self.half.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the contracts of `new` and of this function.
        let mut register = unsafe { Register::at(half.0) };
        ring(&mut register);
        half.0 = register.half;
    }
}
