//! Protection domains, and domains of extended reliable connections.

/// A protection domain: queue pairs and memory keys of one work together.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    /// Queue pairs and memory keys in it.
    pub(crate) users: u32,
}

/// An XRC domain: queue pairs of one deliver to the shared receive queues of the same.
#[derive(Debug, Default)]
pub(crate) struct Xrcd {
    /// Queue pairs and shared receive queues in it.
    pub(crate) users: u32,
}
