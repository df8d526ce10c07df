//! Widths of stores to a BlueFlame register.
//!
//! A block leaves the write-combining buffer as one bus write if nothing comes between its stores.
//! Wider stores make an interruption less likely, and `movdir64b` excludes it. The block is in CPU
//! registers; all widths need about the same number of instructions.

use core::ptr::NonNull;

use crate::wqe::Block;

pub(super) mod sealed {
    use super::{Block, NonNull};

    pub trait Sealed {
        /// Stores whole blocks only.
        const WHOLE_BLOCKS: bool = true;

        /// Stores a block to a register without leaving out or repeating any part.
        ///
        /// # Safety
        /// `place` is valid for a write of 64 bytes and aligned to 64, and the CPU supports the
        /// instructions.
        unsafe fn store(block: &Block, place: NonNull<Block>);
    }
}

/// A store width: [`Wide16`], and on x86-64 [`Wide32`], [`Wide64`] and [`Direct`]. It is part of
/// the doorbell's type; `is_available` is checked when a queue is created.
pub trait Width: sealed::Sealed + core::fmt::Debug + 'static {
    /// Bytes per store.
    const BYTES: u32;

    /// Returns whether the CPU supports the instructions.
    fn is_available() -> bool;
}

/// 16 bytes: SSE2 and NEON, which are part of x86-64 and aarch64.
#[derive(Debug)]
pub enum Wide16 {}

impl sealed::Sealed for Wide16 {
    const WHOLE_BLOCKS: bool = false;

    #[inline(always)]
    unsafe fn store(block: &Block, place: NonNull<Block>) {
        for (at, unit) in block.iter().enumerate() {
            // SAFETY: the unit lies in the 64 bytes at `place`, valid and aligned by the caller's
            // contract.
            unsafe { unit.store(place.cast().add(at)) };
        }
    }
}

impl Width for Wide16 {
    const BYTES: u32 = 16;

    fn is_available() -> bool {
        true
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Direct, Wide32, Wide64};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::asm;
    use core::ptr::NonNull;

    use super::{Width, sealed};
    use crate::wqe::{Block, Unit};

    /// 32 bytes: AVX.
    #[derive(Debug)]
    pub enum Wide32 {}

    /// 64 bytes: AVX-512.
    #[derive(Debug)]
    pub enum Wide64 {}

    /// 64 bytes as one bus write, regardless of the mapping: `movdir64b`.
    #[derive(Debug)]
    pub enum Direct {}

    /// Data race detectors do not analyse assembly, so they get [`super::Wide16`].
    const IN_ASSEMBLY: bool = cfg!(not(any(miri, barewire_sanitize)));

    // Assembly can be inlined into code for CPUs without the instructions. The upper halves are
    // cleared for the SSE code around it (Intel optimization manual, 15.3).
    impl sealed::Sealed for Wide32 {
        #[inline(always)]
        unsafe fn store(block: &Block, place: NonNull<Block>) {
            let [a, b, c, d] = block.map(Unit::vector);
            // SAFETY: `place` is valid for 64 bytes, and the CPU supports AVX, by the caller's
            // contract.
            unsafe {
                asm!(
                    "vinsertf128 {a:y}, {a:y}, {b:x}, 1",
                    "vinsertf128 {c:y}, {c:y}, {d:x}, 1",
                    "vmovaps [{place}], {a:y}",
                    "vmovaps [{place} + 32], {c:y}",
                    a = inout(xmm_reg) a => _,
                    b = in(xmm_reg) b,
                    c = inout(xmm_reg) c => _,
                    d = in(xmm_reg) d,
                    place = in(reg) place.as_ptr(),
                    options(nostack, preserves_flags),
                );
                clean_upper_halves();
            }
        }
    }

    impl Width for Wide32 {
        const BYTES: u32 = 32;

        fn is_available() -> bool {
            IN_ASSEMBLY && std::arch::is_x86_feature_detected!("avx")
        }
    }

    impl sealed::Sealed for Wide64 {
        #[inline(always)]
        unsafe fn store(block: &Block, place: NonNull<Block>) {
            let [a, b, c, d] = block.map(Unit::vector);
            // SAFETY: `place` is valid for 64 bytes, and the CPU supports AVX-512, by the caller's
            // contract.
            unsafe {
                asm!(
                    "vinserti128 {a:y}, {a:y}, {b:x}, 1",
                    "vinserti128 {c:y}, {c:y}, {d:x}, 1",
                    "vinserti64x4 {a:z}, {a:z}, {c:y}, 1",
                    "vmovdqa64 [{place}], {a:z}",
                    a = inout(xmm_reg) a => _,
                    b = in(xmm_reg) b,
                    c = inout(xmm_reg) c => _,
                    d = in(xmm_reg) d,
                    place = in(reg) place.as_ptr(),
                    options(nostack, preserves_flags),
                );
                clean_upper_halves();
            }
        }
    }

    impl Width for Wide64 {
        const BYTES: u32 = 64;

        fn is_available() -> bool {
            IN_ASSEMBLY && std::arch::is_x86_feature_detected!("avx512f")
        }
    }

    impl sealed::Sealed for Direct {
        #[inline(always)]
        unsafe fn store(block: &Block, place: NonNull<Block>) {
            // SAFETY: `place` is valid for 64 bytes, and the CPU supports MOVDIR64B, by the
            // caller's contract; the source is a reference.
            unsafe {
                asm!(
                    "movdir64b {place}, [{block}]",
                    place = in(reg) place.as_ptr(),
                    block = in(reg) block.as_ptr(),
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    impl Width for Direct {
        const BYTES: u32 = 64;

        fn is_available() -> bool {
            // CPUID leaf 7: ECX bit 28 (Intel SDM vol. 2A, CPUID).
            IN_ASSEMBLY
                && core::arch::x86_64::__cpuid_count(0, 0).eax >= 7
                && core::arch::x86_64::__cpuid_count(7, 0).ecx & 1 << 28 != 0
        }
    }

    /// Not for programs built for AVX: there the compiler emits `vzeroupper` and may keep values in
    /// the upper halves.
    #[inline(always)]
    unsafe fn clean_upper_halves() {
        #[cfg(not(target_feature = "avx"))]
        // SAFETY: the CPU supports AVX by the caller's contract, and code built without AVX keeps
        // nothing in the upper halves.
        unsafe {
            asm!("vzeroupper", options(nomem, nostack, preserves_flags));
        }
    }
}
