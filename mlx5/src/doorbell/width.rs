//! How wide the stores to a BlueFlame register are.
//!
//! A block leaves the write-combining buffer as one write on the bus if nothing comes between its stores. Wider stores leave less room
//! for that, and `movdir64b` none. The block is in registers; the count of instructions is about the same for all of them.

use core::ptr::NonNull;

use crate::wqe::Block;

pub(super) mod sealed {
    use super::{Block, NonNull};

    pub trait Sealed {
        /// Takes blocks only as a whole.
        const WHOLE_BLOCKS: bool = true;

        /// Stores a block to a register: nothing of it is left out or stored twice.
        ///
        /// # Safety
        /// `place` is valid for a write of 64 bytes and aligned to 64, and the CPU has the instructions.
        unsafe fn store(block: &Block, place: NonNull<Block>);
    }
}

/// A store width: [`Wide16`], and on x86-64 [`Wide32`], [`Wide64`] and [`Direct`]. Part of the doorbell's type; `is_available` says at
/// creation whether this CPU has it.
pub trait Width: sealed::Sealed + core::fmt::Debug + 'static {
    /// Bytes of a store.
    const BYTES: u32;

    /// This CPU has the instructions.
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
            // SAFETY: a unit of the block, by the caller's contract.
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

    /// 64 bytes as one write on the bus, whatever the mapping: `movdir64b`.
    #[derive(Debug)]
    pub enum Direct {}

    /// Checkers of data races do not see into assembly: they get [`super::Wide16`].
    const IN_ASSEMBLY: bool = cfg!(not(any(miri, barewire_sanitize)));

    // As assembly, so that they are inlined into code for CPUs without them. Where the rest of the program is SSE code, the upper halves are
    // left clean (Intel optimization manual, 15.3).
    impl sealed::Sealed for Wide32 {
        #[inline(always)]
        unsafe fn store(block: &Block, place: NonNull<Block>) {
            let [a, b, c, d] = block.map(Unit::vector);
            // SAFETY: 64 bytes at `place`, on a CPU with AVX, by the caller's contract.
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
            // SAFETY: 64 bytes at `place`, on a CPU with AVX-512, by the caller's contract.
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
            // SAFETY: 64 bytes at `place`, on a CPU with MOVDIR64B, by the caller's contract; it reads the block from memory.
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

    /// Not in programs built for AVX: their compiler sees to it, and may have something there.
    #[inline(always)]
    unsafe fn clean_upper_halves() {
        #[cfg(not(target_feature = "avx"))]
        // SAFETY: by the caller the CPU has AVX; code without it has nothing in the upper halves.
        unsafe {
            asm!("vzeroupper", options(nomem, nostack, preserves_flags));
        }
    }
}
