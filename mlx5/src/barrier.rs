//! Memory barriers between this process and the device: one named function per ordering rule.
//!
//! x86-64 keeps the order of normal stores and of normal loads (Intel SDM vol. 3, 9.2), so for host
//! memory only the compiler must be restrained. A UAR page is mapped write-combining; only `sfence`
//! orders write-combining stores. aarch64 orders nothing by itself, and the device is in the outer
//! shareable domain, so these are the strong forms that rdma-core uses (`dmb oshst`, `dsb st`, `dmb
//! oshld`).

use core::sync::atomic::Ordering;
#[cfg(not(loom))]
use core::sync::atomic::fence;
#[cfg(loom)]
use loom::sync::atomic::fence;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("barewire-mlx5 knows the barriers of x86-64 and aarch64 only");

#[cfg(target_arch = "aarch64")]
macro_rules! barrier {
    ($instruction:literal) => {
        #[cfg(not(miri))]
        // SAFETY: a barrier accesses no memory. Without `nomem` the compiler moves no access across
        // it.
        unsafe {
            core::arch::asm!($instruction, options(nostack, preserves_flags))
        }
    };
}

/// Orders the bytes of a WQE before the doorbell record: the device may fetch the WQE as soon as it
/// reads the record.
#[inline(always)]
pub fn wqe_before_doorbell_record() {
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb oshst");
}

/// Orders the doorbell record before the doorbell: the device must not read an older record than
/// the one that the doorbell announces.
#[inline(always)]
pub fn doorbell_record_before_doorbell() {
    store_fence();
}

/// Flushes the write-combining buffer. Needed before another core writes the same BlueFlame
/// register, and where the latency of the last store matters.
#[inline(always)]
pub fn flush_write_combining() {
    #[cfg(test)]
    tests::FLUSHES.set(tests::FLUSHES.get() + 1);
    store_fence();
}

/// Ends a burst of whole blocks, without waiting for it. An x86-64 core sends full buffers at once;
/// an aarch64 core may gather further stores unless it is told not to (`dgh`, a hint).
#[inline(always)]
pub fn end_write_combining() {
    #[cfg(target_arch = "aarch64")]
    barrier!("hint #6");
}

/// Orders the load of a CQE's owner byte before the loads of the CQE and of the data that it
/// announces.
#[inline(always)]
pub fn owner_before_completion() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb oshld");
}

#[inline(always)]
fn store_fence() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: `sfence` is part of SSE, which every x86-64 CPU has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    barrier!("dsb st");
    // Miri and loom know no assembly; there the registers are plain memory.
    #[cfg(any(miri, loom))]
    fence(Ordering::Release);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// How often this thread flushed the write-combining buffer.
        pub(crate) static FLUSHES: Cell<u32> = const { Cell::new(0) };
    }
}
