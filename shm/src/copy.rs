//! Copies between memory of our own and memory that others write to at the same time.
//!
//! A race with another process must yield some bytes, old or new, and nothing worse. Plain copies do not
//! promise that: the compiler may read a source twice. Here every shared byte is accessed exactly once, as
//! if by a relaxed atomic access. Ordering is the caller's affair.
#![allow(unsafe_code, reason = "raw copies are this module's purpose")]

/// Copies `length` bytes, each accessed once.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, and they do not overlap. Other threads and
/// processes may access the shared side meanwhile through this function or byte-wise atomically; the private
/// side is not accessed by anyone else.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise is what the instruction needs; the direction flag is clear on entry to
    // any asm block. The compiler sees an opaque access, which cannot be repeated or split.
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

/// As on x86-64, one relaxed atomic access per byte: slow and right. Words would be faster, but racing
/// accesses of different sizes to one byte are undefined.
///
/// # Safety
/// As on x86-64.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: handed on.
    unsafe { by_bytes(from, to, length) };
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
unsafe fn by_bytes(from: *const u8, to: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    for index in 0..length {
        // SAFETY: both bytes are valid by the caller's promise, and a byte is aligned anywhere. A relaxed
        // load never writes, so `cast_mut` does not either.
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
        for copy in [super::copy, super::by_bytes] {
            let from: Vec<u8> = (0..=255).collect();
            for length in [0, 1, 7, 8, 9, 64, 100, 250] {
                let mut to = vec![0xee; 256];
                // SAFETY: 3 + 250 bytes are within both vectors, which are two.
                unsafe { copy(from.as_ptr().add(3), to.as_mut_ptr().add(3), length) };
                assert_eq!(to[3..3 + length], from[3..3 + length]);
                assert!(to[..3].iter().chain(&to[3 + length..]).all(|&byte| byte == 0xee), "{length}");
            }
        }
    }
}
