//! A BlueFlame register for queues of several threads.

use core::ptr::NonNull;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Doorbell, Register};

/// A register that several queues write in turn under a lock, for programs with more queues than
/// the device has registers. The queues use [`super::BlueFlameShared`]. The register, not the
/// queue, tracks which half is next.
#[derive(Debug)]
pub struct SharedRegister {
    half: Mutex<Half>,
    _keep: Arc<dyn Any + Send + Sync>,
}

/// The half to write next.
#[derive(Clone, Copy, Debug)]
struct Half(NonNull<u8>);

// SAFETY: the pointer refers to a mapped register, which is not tied to a thread.
unsafe impl Send for Half {}

impl SharedRegister {
    /// Shares a register.
    ///
    /// # Safety
    /// Until `keep` is dropped, `register` is valid for writes of 512 bytes and 512-byte aligned,
    /// and nothing else writes it.
    pub unsafe fn new(register: NonNull<u8>, keep: Arc<dyn Any + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { half: Mutex::new(Half(register)), _keep: keep })
    }

    /// Rings the doorbell once.
    ///
    /// # Safety
    /// The CPU supports the instructions of `D::Width`.
    #[inline]
    pub(crate) unsafe fn ring<D: Doorbell>(&self, ring: impl FnOnce(&mut Register<D>)) {
        // A panic outside the few stores under the lock leaves the half valid.
        let mut half = self.half.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the register is valid by the contract of `new`, and the CPU supports the width by
        // that of this function.
        let mut register = unsafe { Register::at(half.0) };
        ring(&mut register);
        half.0 = register.half;
    }
}
