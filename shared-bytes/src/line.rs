//! Ownership of cache lines.

/// Requests that this core owns the cache line of `address` soon, so that a store there need not
/// wait for the other core that reads the line. It accesses no memory: any address may be passed.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "the instruction is a hint: nothing is read")]
pub fn request_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint, which neither accesses memory nor faults. Every x86-64 CPU
    // that Linux runs on has it, or ignores it.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the instruction is a hint, which neither accesses memory nor faults.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{}]",
            in(reg) address,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_is_accepted() {
        let word = 7_u64;
        for address in [core::ptr::null(), (&raw const word).cast(), core::ptr::dangling()] {
            request_line(address);
        }
        request_line(core::ptr::without_provenance(usize::MAX));
        assert_eq!(word, 7);
    }
}
