//! Fixed-size buffers cut from one block of memory, handed out and taken back in constant time.

use std::cell::Cell;
use std::ptr::NonNull;

/// Memory that a [`Pool`] may cut up.
///
/// # Safety
/// `start()` points to `len()` initialised bytes that stay valid and unmoved while the value lives, that
/// nobody writes except through the pool, or, while a buffer is handed out, its holder.
pub(crate) unsafe trait Block {
    fn start(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
}

/// The pool of buffers of `SIZE` bytes. A buffer is named by its index and belongs to whoever took it until it is
/// given back.
pub(crate) struct Pool<M, const SIZE: usize> {
    block: M,
    /// Index of the first free buffer; out of range when there is none.
    head: Cell<u32>,
    /// For each free buffer the next one.
    next: Box<[Cell<u32>]>,
}

const NONE: u32 = u32::MAX;

impl<M: Block, const SIZE: usize> Pool<M, SIZE> {
    /// Cuts `block` into as many buffers as it holds.
    pub(crate) fn new(block: M) -> Self {
        const { assert!(SIZE > 0) };
        let count = (block.len() / SIZE) as u32;
        let next = (1..count).chain([NONE]).take(count as usize).map(Cell::new).collect();
        Self { block, head: Cell::new(if count == 0 { NONE } else { 0 }), next }
    }

    /// True if nothing can be taken.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.get() as usize >= self.next.len()
    }

    /// Takes a buffer.
    #[inline]
    pub(crate) fn take(&self) -> Option<Buffer<'_, M, SIZE>> {
        let index = self.head.get();
        let next = self.next.get(index as usize)?;
        self.head.set(next.get());
        Some(Buffer { pool: self, index })
    }

    /// The guard of a buffer whose guard was dissolved by [`Buffer::into_index`].
    pub(crate) fn adopt(&self, index: u32) -> Buffer<'_, M, SIZE> {
        Buffer { pool: self, index }
    }

    /// Gives a buffer back whose guard was dissolved by [`Buffer::into_index`]. Giving one back twice, or
    /// one that was never taken, hands it out twice: callers keep each index in exactly one place.
    #[inline]
    pub(crate) fn give(&self, index: u32) {
        if let Some(next) = self.next.get(index as usize) {
            next.set(self.head.get());
            self.head.set(index);
        }
    }

    /// First byte of a buffer.
    #[inline]
    pub(crate) fn pointer(&self, index: u32) -> NonNull<u8> {
        debug_assert!((index as usize) < self.next.len());
        // SAFETY: indices come from `take`, so the buffer lies inside the block.
        unsafe { self.block.start().add(index as usize * SIZE) }
    }
}

/// A buffer taken from a pool; dropping it gives it back.
pub(crate) struct Buffer<'p, M: Block, const SIZE: usize> {
    pool: &'p Pool<M, SIZE>,
    index: u32,
}

impl<M: Block, const SIZE: usize> Buffer<'_, M, SIZE> {
    /// All bytes of the buffer.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8; SIZE] {
        // SAFETY: the buffer lies inside the block, is initialised, and belongs to this guard alone.
        unsafe { self.pool.pointer(self.index).cast().as_mut() }
    }

    /// Address of the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.pool.pointer(self.index).addr().get() as u64
    }

    /// Dissolves the guard; the index must come back through [`Pool::give`].
    #[inline]
    pub(crate) fn into_index(self) -> u32 {
        let index = self.index;
        std::mem::forget(self);
        index
    }
}

impl<M: Block, const SIZE: usize> Drop for Buffer<'_, M, SIZE> {
    #[inline]
    fn drop(&mut self) {
        self.pool.give(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::Allocation;

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
        let index = taken.pop().unwrap().into_index();
        assert!(pool.is_empty());
        pool.give(index);
        assert!(!pool.is_empty());
        drop(taken);
        assert_eq!(std::iter::from_fn(|| pool.take()).map(Buffer::into_index).count(), 3);
    }
}
