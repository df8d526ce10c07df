//! Fixed-size buffers cut from one block of memory, taken and returned in constant time.

use std::cell::Cell;
use std::hint::cold_path;
use std::ptr::NonNull;

/// Memory that a [`Pool`] divides into buffers.
///
/// # Safety
/// `start()` points to `len()` initialised bytes that stay valid and unmoved while the value lives.
/// Only the pool writes them, or, while a buffer is taken, its holder.
pub(crate) unsafe trait Block {
    fn start(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
}

/// A pool of buffers of `SIZE` bytes. A taken buffer is a [`Buffer`] or a [`Lease`] until it is
/// returned.
pub(crate) struct Pool<M, const SIZE: usize> {
    /// First byte of the block.
    start: NonNull<u8>,
    /// Index of the first free buffer, or `count` if there is none.
    head: Cell<u32>,
    /// For each free buffer, the index of the next one, or `count`; and `count` once more.
    next: Box<[Cell<u32>]>,
    /// Number of buffers.
    count: u32,
    _block: M,
}

impl<M: Block, const SIZE: usize> Pool<M, SIZE> {
    /// Divides `block` into as many buffers as it holds.
    pub(crate) fn new(block: M) -> Self {
        const { assert!(SIZE > 0) };
        let count = (block.len() / SIZE) as u32;
        let next = (1..=count).chain([count]).map(Cell::new).collect();
        Self { start: block.start(), head: Cell::new(0), next, count, _block: block }
    }

    /// Returns whether no buffer is free.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.get() == self.count
    }

    /// Returns the number of buffers.
    #[cfg(any(feature = "mlx5", feature = "verbs"))]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Takes a buffer.
    #[inline]
    pub(crate) fn take(&self) -> Option<Buffer<'_, M, SIZE>> {
        self.take_and(|| ())
    }

    /// As [`Self::take`]. Calls `run` if it was the last free buffer.
    #[inline(always)]
    pub(crate) fn take_and(&self, run: impl FnOnce()) -> Option<Buffer<'_, M, SIZE>> {
        let index = self.head.get();
        // SAFETY: `head` is the index of a buffer or `count`, and there is an element for each.
        let next = unsafe { self.next.get_unchecked(index as usize) }.get();
        self.head.set(next);
        // One test for both: without a free buffer, the next one is `count` as well.
        if next == self.count {
            cold_path();
            if index == self.count {
                return None;
            }
            run();
        }
        Some(Buffer { pool: self, index })
    }

    /// Returns the guard of a buffer that was taken from this pool.
    #[expect(clippy::needless_pass_by_value, reason = "a lease is used up")]
    pub(crate) fn adopt(&self, lease: Lease) -> Buffer<'_, M, SIZE> {
        let Lease(index) = lease;
        Buffer { pool: self, index }
    }

    /// Returns a buffer to this pool, from which it was taken.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a lease is used up")]
    pub(crate) fn give(&self, lease: Lease) {
        let Lease(index) = lease;
        if index < self.count
            && let Some(next) = self.next.get(index as usize)
        {
            next.set(self.head.get());
            self.head.set(index);
        }
    }

    /// Returns the address of a buffer that was taken from this pool.
    #[inline]
    pub(crate) fn start_of(&self, lease: &Lease) -> NonNull<u8> {
        self.pointer(lease.0)
    }

    /// Returns the lease of the buffer at `start`, an address that [`Self::start_of`] returned for
    /// a lease which was then forgotten.
    pub(crate) fn lease_of(&self, start: NonNull<u8>) -> Lease {
        Lease(((start.addr().get() - self.start.addr().get()) / SIZE) as u32)
    }

    #[inline]
    fn pointer(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index < self.count);
        // SAFETY: the index comes from `take`, which returns indices of whole buffers inside the
        // block.
        unsafe { self.start.add(index as usize * SIZE) }
    }
}

/// A taken buffer without a reference to its pool, so that it can be stored. It is unique like a
/// [`Buffer`]. Dropping it leaks the buffer; [`Pool::give`] returns it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Lease(u32);

impl Lease {
    /// Creates the lease of a buffer that belongs to no [`Pool`].
    pub(crate) fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Index of the buffer in its pool.
    pub(crate) fn index(&self) -> usize {
        self.0 as usize
    }
}

/// A buffer taken from a pool; the drop returns it.
pub(crate) struct Buffer<'p, M: Block, const SIZE: usize> {
    pool: &'p Pool<M, SIZE>,
    index: u32,
}

impl<M: Block, const SIZE: usize> Buffer<'_, M, SIZE> {
    /// Returns the bytes of the buffer.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8; SIZE] {
        // SAFETY: the buffer lies inside the block, is initialised, and only this guard, borrowed
        // mutably, accesses it until it is returned.
        unsafe { self.pool.pointer(self.index).cast().as_mut() }
    }

    /// Address of the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.pool.pointer(self.index).addr().get() as u64
    }

    /// Converts the guard into a lease; nothing is returned to the pool.
    #[inline]
    pub(crate) fn into_lease(self) -> Lease {
        let index = self.index;
        std::mem::forget(self);
        Lease(index)
    }
}

impl<M: Block, const SIZE: usize> Drop for Buffer<'_, M, SIZE> {
    #[inline]
    fn drop(&mut self) {
        self.pool.give(Lease(self.index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::common::allocation::Allocation;

    #[test]
    fn hands_each_buffer_out_once() {
        let pool = Pool::<_, 32>::new(Allocation::new(100).unwrap());
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), 3);
        assert!(pool.is_empty());
        for (i, buffer) in taken.iter_mut().enumerate() {
            *buffer.bytes() = [i as u8; 32];
        }
        for (i, buffer) in taken.iter_mut().enumerate() {
            assert_eq!(*buffer.bytes(), [i as u8; 32]);
        }
        let lease = taken.pop().unwrap().into_lease();
        assert!(pool.is_empty());
        drop(pool.adopt(lease));
        assert!(!pool.is_empty());
        drop(taken);
        assert_eq!(std::iter::from_fn(|| pool.take()).map(Buffer::into_lease).count(), 3);
    }
}
