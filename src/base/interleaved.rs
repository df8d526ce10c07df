//! The ranges of a view that repeat.

/// The most ranges of a view.
pub(crate) const MAX_ENTRIES: usize = 24;

/// A range of an interleaved view. `M` is the type of the memory.
#[derive(Debug)]
pub struct Interleaved<'m, M> {
    /// The memory.
    pub memory: &'m M,
    /// Where the range of the first repetition starts.
    pub offset: usize,
    /// Bytes of each repetition, at most 65535.
    pub bytes: usize,
    /// Bytes from one repetition to the next, at most 65535.
    pub stride: usize,
}

impl<M> Clone for Interleaved<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Interleaved<'_, M> {}
