//! Protection domains.

/// A protection domain: queue pairs and memory keys of one work together.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    /// Queue pairs and memory keys in it.
    pub(crate) users: u32,
}
