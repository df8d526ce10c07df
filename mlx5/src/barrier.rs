//! The order in which a device must see our stores, and we its stores. One named function per rule.
//!
//! x86-64 keeps normal stores in order and normal loads in order (Intel SDM vol. 3, 9.2), so towards host memory the compiler is all
//! that must be held back. A UAR page is mapped write-combining, and write-combining stores are ordered by `sfence` only.
//! aarch64 orders nothing by itself; the device is in the outer shareable domain, so these are the strong forms that
//! rdma-core uses (`dmb oshst`, `dsb st`, `dmb oshld`).

use core::sync::atomic::{Ordering, fence};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("barewire-mlx5 knows the barriers of x86-64 and aarch64 only");

#[cfg(target_arch = "aarch64")]
macro_rules! barrier {
    ($instruction:literal) => {
        #[cfg(not(miri))]
        // SAFETY: a barrier reads and writes nothing; without `nomem` the compiler moves no access over it.
        unsafe {
            core::arch::asm!($instruction, options(nostack, preserves_flags))
        }
    };
}

/// WQE bytes before the doorbell record: the device may fetch the WQE as soon as it sees the record.
#[inline(always)]
pub fn wqe_before_doorbell_record() {
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb oshst");
}

/// Doorbell record before the write to the UAR: the device must not find an older record than the doorbell it was rung for.
#[inline(always)]
pub fn doorbell_record_before_doorbell() {
    store_fence();
}

/// Sends what sits in the write-combining buffer on its way. Needed before the same BlueFlame register is written by another
/// core, and where latency of the last store matters.
#[inline(always)]
pub fn flush_write_combining() {
    store_fence();
}

/// Owner byte of a CQE before the rest of the CQE and the data that it announces.
#[inline(always)]
pub fn owner_before_completion() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb oshld");
}

#[inline(always)]
fn store_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `sfence` is part of SSE, which every x86-64 CPU has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    barrier!("dsb st");
    // Miri knows no instructions; its registers are plain memory.
    #[cfg(miri)]
    fence(Ordering::Release);
}
