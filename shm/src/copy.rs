//! Copies between private memory and memory that other processes write to at the same time.
//!
//! A race with another process must yield old or new bytes and nothing worse. Plain copies do not
//! guarantee that: the compiler may read a source twice. Here every shared byte is accessed exactly
//! once, as if by a relaxed atomic access. The caller is responsible for ordering.
#![allow(unsafe_code, reason = "this module copies through raw pointers")]

/// Copies `length` bytes and accesses each shared byte once.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `length` bytes, and the two ranges must
/// not overlap. Other threads and processes may access the shared range meanwhile through this
/// function or by byte-wise atomic accesses; nothing else may access the private range.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: by the contract of this function `rsi` and `rdi` are valid for `rcx` bytes and do not
    // overlap, and the direction flag is clear on entry to an asm block, so the instruction
    // accesses these bytes only. The compiler cannot repeat or split the accesses of an asm block.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// One relaxed atomic access per byte. Words would be faster, but racing accesses of different
/// sizes to one byte are undefined behaviour.
///
/// # Safety
/// The same contract as on x86-64.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller guarantees that `from` and `to` are valid for `length` bytes and do not
    // overlap, which is the contract of `copy_bytewise`.
    unsafe { copy_bytewise(from, to, length) };
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
unsafe fn copy_bytewise(from: *const u8, to: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    for index in 0..length {
        // SAFETY: the caller guarantees that `from` and `to` are valid for `length` bytes, and `at`
        // is less than `length`. A byte is always aligned. `cast_mut` is sound because the pointer
        // is used for a relaxed load only.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(index).cast_mut()).load(Relaxed);
            AtomicU8::from_ptr(to.add(index)).store(byte, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_ways_copy_exactly_the_range() {
        for copy in [super::copy, super::copy_bytewise] {
            let from: Vec<u8> = (0..=255).collect();
            for length in [0, 1, 7, 8, 9, 64, 100, 250] {
                let mut to = vec![0xee; 256];
                // SAFETY: bytes 3 to 252 lie within both vectors, which are separate allocations of
                // this thread.
                unsafe { copy(from.as_ptr().add(3), to.as_mut_ptr().add(3), length) };
                assert_eq!(to[3..3 + length], from[3..3 + length]);
                assert!(
                    to[..3].iter().chain(&to[3 + length..]).all(|&byte| byte == 0xee),
                    "{length}"
                );
            }
        }
    }
}
