//! What can go wrong with segments and connections.

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
    /// The machine has not so many huge pages to give.
    #[error(
        "no memory for a shared segment of {wanted} huge pages of {page} bytes: {free} are free; reserve more (sysctl vm.nr_hugepages)"
    )]
    NoHugePages {
        /// Pages asked for.
        wanted: usize,
        /// Bytes of one; 0 if the kernel has none.
        page: usize,
        /// Pages that are free, which others may have reserved.
        free: u64,
    },
    /// The process may not make files of this size, and shared memory counts as a file.
    #[error(
        "a shared segment of {wanted} bytes is more than the {limit} bytes that a file may have: raise the limit (ulimit -f)"
    )]
    FileLimit {
        /// Bytes asked for.
        wanted: usize,
        /// The limit in bytes (RLIMIT_FSIZE).
        limit: u64,
    },
    /// The peer's memory lies in huge pages, and this process did not agree to that.
    #[error(
        "descriptor refused: it lies in huge pages, and an access ends the process by SIGBUS once the peer gives one back; accept_huge_pages allows it"
    )]
    HugePages,
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

/// A peer broke the rules of the rings that it shares with this process: what it says cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the peer's word is impossible: {0}")]
pub struct Corrupt(pub &'static str);

/// Why a port could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PortError {
    /// A setting is outside what is possible.
    #[error("{setting} = {value} is not possible: it must be {possible}")]
    Setting {
        /// The field of [`PortConfig`](crate::PortConfig).
        setting: &'static str,
        /// Its value.
        value: usize,
        /// What is possible.
        possible: &'static str,
    },
    /// Its memory could not be had.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why there is no connection to a port, or none any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nobody listens at the address.
    #[error(
        "nobody is there: the process has ended, or it does not share the directory of its socket with this one (nor its network namespace): see BAREWIRE_SHM_DIR"
    )]
    Nobody,
    /// The queue of the peer's socket stayed full.
    #[error(
        "the queue of the peer's socket was full for {seconds} s: the peer does not call progress, or other processes flood it with connections"
    )]
    Busy {
        /// How long this process tried.
        seconds: u64,
    },
    /// This process has no descriptor free.
    #[error(
        "this process has no file descriptor free for the peer's memory or socket: {open} of {limit} are open; raise the limit (ulimit -n)"
    )]
    Descriptors {
        /// Descriptors that are open.
        open: usize,
        /// How many may be (RLIMIT_NOFILE).
        limit: u64,
    },
    /// The peer has no descriptor free.
    #[error(
        "the peer's process has no file descriptor free for this connection: raise its limit there (ulimit -n)"
    )]
    PeerDescriptors,
    /// The peer could not map this process's memory.
    #[error(
        "the peer's process failed to map the memory of this connection: its error handler has the reason"
    )]
    PeerMemory,
    /// The process at the other end is of a user that may not attach.
    #[error("the peer runs as user {peer}, this process as user {own}, and only the same user may attach")]
    User {
        /// The peer's user.
        peer: u32,
        /// This process's user.
        own: u32,
    },
    /// The port does not know the secret.
    #[error("the peer was given another address: it does not know this one's secret")]
    Secret,
    /// The port has no numbers left.
    #[error("the peer has as many senders as it can have")]
    Full,
    /// The process at the other end is gone.
    #[error("the peer's process has ended or closed its interface")]
    Ended,
    /// The process at the other end gave this one up.
    #[error("the peer found that this process breaks the rules of their shared memory, and gave it up")]
    GivenUp,
    /// What the peer wrote breaks the rules.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Memory for the connection could not be had, or what the peer handed over is not usable.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// There is no room now.
    #[error("no room: the peer has not taken the messages before")]
    Full,
    /// The connection is of no further use; [`Peer::error`](crate::Peer::error) has the reason.
    #[error("the connection is lost")]
    Lost,
}
