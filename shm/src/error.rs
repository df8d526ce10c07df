//! What can go wrong with segments and their hand-over.

use std::io;

use thiserror::Error;

/// Why a segment could not be made or attached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// A segment of no bytes cannot be mapped.
    #[error("a shared memory segment needs at least one byte")]
    Empty,
    /// The machine does not have this much memory to give.
    #[error("no memory for a shared segment of {wanted} bytes: {available} bytes are available")]
    NoMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that the kernel thinks can be had without swapping, or were left when it gave up.
        available: u64,
    },
    /// A system call failed.
    #[error("shared memory: {call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The descriptor does not promise that the size stays: mapping it would risk a SIGBUS.
    #[error("descriptor refused: not a memfd whose size is sealed (it lacks {missing})")]
    Unsealed {
        /// The seals that are missing, by their names in fcntl.h.
        missing: String,
    },
    /// The file behind the descriptor has another size than its sender said.
    #[error("descriptor refused: {actual} bytes long, announced as {announced}")]
    WrongSize {
        /// Bytes announced.
        announced: usize,
        /// Bytes found.
        actual: u64,
    },
}

/// An access beyond the end of a segment; nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes at offset {offset} are outside of a segment of {size} bytes")]
pub struct OutOfRange {
    /// Where the access would have begun.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
    /// The size of the segment in bytes.
    pub size: usize,
}

/// Why a segment did not come over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The socket failed, or its timeout ran out.
    #[error("shared memory hand-over: {0}")]
    Socket(#[source] io::Error),
    /// The peer closed the socket.
    #[error("shared memory hand-over: the peer closed the socket after {received} of {wanted} bytes")]
    Closed {
        /// Bytes that came.
        received: usize,
        /// Bytes of a hand-over message.
        wanted: usize,
    },
    /// The bytes that came are not a hand-over message.
    #[error("shared memory hand-over: what came is not a hand-over message (first bytes {head:02x?})")]
    Foreign {
        /// Its first bytes.
        head: [u8; 4],
    },
    /// The peer speaks another version.
    #[error("shared memory hand-over: the peer speaks version {peer}, this is version {own}")]
    Version {
        /// The peer's version.
        peer: u8,
        /// This build's version.
        own: u8,
    },
    /// A message must carry exactly one descriptor.
    #[error("shared memory hand-over: {count} descriptors came with the message, one was due")]
    Descriptors {
        /// How many came; what the kernel cut off is not counted.
        count: usize,
    },
    /// The peer offers more memory than the receiver takes.
    #[error("shared memory hand-over: a segment of {length} bytes is offered, at most {limit} are taken")]
    TooLarge {
        /// Bytes offered.
        length: u64,
        /// The receiver's limit in bytes.
        limit: usize,
    },
    /// The descriptor that came is not a segment that can be attached.
    #[error("shared memory hand-over: {0}")]
    Segment(#[from] SegmentError),
}
