//! A BlueFlame register for queues of several threads.

use core::ptr::NonNull;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Doorbell, Half, Register};

/// A register that several queues write in turn under a lock, for programs with more queues than
/// the device has registers. The queues use [`super::BlueFlameShared`].
#[derive(Debug)]
pub struct SharedRegister {
    half: Mutex<Half>,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl SharedRegister {
    /// Shares a register.
    ///
    /// # Safety
    /// Until `keep` is dropped, `register` is valid for writes of 512 bytes and 512-byte aligned,
    /// and nothing else writes it.
    pub unsafe fn new(register: NonNull<u8>, keep: Arc<dyn Any + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { half: Mutex::new(Half::new(register)), _keep: keep })
    }

    /// Rings the doorbell once.
    ///
    /// # Safety
    /// The CPU supports the instructions of `D::Width`.
    #[inline]
    pub(crate) unsafe fn ring<D: Doorbell>(&self, ring: impl FnOnce(&mut Register<D>)) {
        // A panic outside the few stores under the lock leaves the half valid.
        let mut half = self.half.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the register is valid by the contract of `new`, and the lock is held. The CPU
        // supports the width by the contract of this function.
        ring(unsafe { Register::of(&mut half) });
    }
}
