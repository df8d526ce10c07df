//! Protection domains, and domains of extended reliable connections.

/// A protection domain: its queue pairs can use its memory keys.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    /// Queue pairs and memory keys in it.
    pub(crate) users: u32,
}

/// An XRC domain: its queue pairs deliver to its shared receive queues.
#[derive(Debug, Default)]
pub(crate) struct Xrcd {
    /// Queue pairs and shared receive queues in it.
    pub(crate) users: u32,
}
