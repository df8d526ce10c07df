//! Bytes that a device, a peer or another thread may write at any time: [`Bytes`] as the driver has them, and
//! the atomic operations on them.

use std::sync::atomic::Ordering;

pub(crate) use barewire_mlx5::bytes::Bytes;

use crate::atomic::Change;

const WORD: usize = size_of::<u64>();
const HALF: usize = size_of::<u32>();

/// Changes the word of 4 or 8 bytes at `offset` at once. Returns what was there; `None` where the address
/// is not a multiple of the word's size, or the 8 bytes around it are not inside.
///
/// # Safety
/// The memory is alive.
pub(crate) unsafe fn update(bytes: &Bytes, offset: usize, change: Change) -> Option<u64> {
    // SAFETY: the caller's contract.
    let whole = |offset| unsafe { bytes.atomic(offset) };
    let at = bytes.start().addr().get().checked_add(offset)?;
    if change.width == WORD {
        let old =
            whole(offset)?.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(change.apply(old)));
        return old.ok();
    }
    if at % HALF != 0 {
        return None;
    }
    // The word around it, so that all accesses are of one size.
    let skip = at % WORD;
    let half = |whole: u64| {
        let word = whole.to_ne_bytes();
        u32::from_ne_bytes(std::array::from_fn(|i| word[skip + i])).into()
    };
    let merge = |whole: u64| {
        let mut word = whole.to_ne_bytes();
        word[skip..skip + HALF].copy_from_slice(&(change.apply(half(whole)) as u32).to_ne_bytes());
        Some(u64::from_ne_bytes(word))
    };
    let word = whole(offset.checked_sub(skip)?)?;
    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, merge).ok().map(half)
}
