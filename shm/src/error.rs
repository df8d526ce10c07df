//! Errors of segments and connections.

use std::io;

use thiserror::Error;

/// Why a segment could not be created or attached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The size is zero. A mapping has at least one byte.
    #[error("a shared memory segment needs at least one byte")]
    Empty,
    /// The machine does not have enough free memory.
    #[error(
        "not enough memory for a shared segment of {wanted} bytes: {available} bytes are available"
    )]
    NoMemory {
        /// Bytes requested.
        wanted: usize,
        /// Bytes that the kernel estimates to be available without swapping.
        available: u64,
    },
    /// The machine does not have enough free huge pages.
    #[error(
        "not enough huge pages for a shared segment: {wanted} pages of {page} bytes are needed, {free} are free; reserve more (sysctl vm.nr_hugepages)"
    )]
    NoHugePages {
        /// Huge pages requested.
        wanted: usize,
        /// Bytes of a huge page; 0 if the kernel does not support huge pages.
        page: usize,
        /// Huge pages that are free, including those that other processes have reserved.
        free: u64,
    },
    /// The size exceeds the process's file size limit, which applies to shared memory.
    #[error(
        "a shared segment of {wanted} bytes exceeds the file size limit of {limit} bytes: raise the limit (ulimit -f)"
    )]
    FileLimit {
        /// Bytes requested.
        wanted: usize,
        /// The limit in bytes (RLIMIT_FSIZE).
        limit: u64,
    },
    /// The peer's memory lies in huge pages, which this process's settings do not allow.
    #[error(
        "descriptor refused: the memory lies in huge pages, and an access raises SIGBUS if the peer has released a page; accept_huge_pages allows it"
    )]
    HugePages,
    /// A system call failed.
    #[error("shared memory: {call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The size of the file is not sealed: the peer could truncate it, and an access would raise
    /// SIGBUS.
    #[error("descriptor refused: not a memfd of sealed size (missing seals: {missing})")]
    Unsealed {
        /// The missing seals, by their names in fcntl.h.
        missing: String,
    },
    /// The descriptor is not that of the region, or not of memory at all.
    #[error("the descriptor is not that of the region any more: its owner has dropped the region")]
    OtherFile,
    /// The size of the file differs from the size that the peer announced.
    #[error("descriptor refused: the file has {actual} bytes, but {announced} were announced")]
    WrongSize {
        /// Bytes announced.
        announced: usize,
        /// Bytes of the file.
        actual: u64,
    },
}

/// Why there is no memory in huge pages.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HugeError {
    /// The length is zero, or exceeds the address space.
    #[error("no memory of {0} bytes in huge pages")]
    Length(usize),
    /// The kernel's pages are not of 4 KiB, so its huge pages are not of 2 MiB.
    #[error("the kernel has pages of {0} bytes: huge pages of 2 MiB need pages of 4096 bytes")]
    PageSize(usize),
    /// Another thread takes memory from the same pool.
    #[error("another thread takes memory from the pool at this moment")]
    Busy,
    /// A system call failed. madvise fails if the kernel has no transparent huge pages.
    #[error("memory in huge pages: {call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An access beyond the end of a segment; nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes at offset {offset} are outside a segment of {size} bytes")]
pub struct OutOfRange {
    /// Offset of the access in bytes.
    pub offset: usize,
    /// Length of the access in bytes.
    pub length: usize,
    /// Size of the segment in bytes.
    pub size: usize,
}

/// A peer violated the protocol: a value that it wrote is impossible. The field names the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("invalid data from the peer: {0}")]
pub struct Corrupt(pub &'static str);

/// Why a port could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PortError {
    /// A setting is out of range.
    #[error("{setting} = {value} is out of range: it must be {possible}")]
    Setting {
        /// The field of [`PortConfig`](crate::PortConfig).
        setting: &'static str,
        /// The value of the field.
        value: usize,
        /// The values that are allowed.
        possible: &'static str,
    },
    /// The port's memory could not be created.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Why a connection could not be made, or why it ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No port listens at the address.
    #[error(
        "no process listens at the peer's address: the peer has ended, or it does not share the directory of its socket (or its network namespace) with this process: see BAREWIRE_SHM_DIR"
    )]
    NotListening,
    /// The queue of the port's socket stayed full.
    #[error(
        "the connection queue of the peer was full for {seconds} s: the peer does not call progress, or other processes flood it with connections"
    )]
    Busy {
        /// Seconds after which this process gave up.
        seconds: u64,
    },
    /// This process has no free file descriptor.
    #[error(
        "this process has no free file descriptor for the peer's memory or socket: {open} of {limit} are open; raise the limit (ulimit -n)"
    )]
    Descriptors {
        /// Open descriptors of this process.
        open: usize,
        /// The limit of open descriptors (RLIMIT_NOFILE).
        limit: u64,
    },
    /// The peer has no free file descriptor.
    #[error(
        "the peer has no free file descriptor for this connection: raise the limit there (ulimit -n)"
    )]
    PeerDescriptors,
    /// The peer failed to map this process's memory.
    #[error(
        "the peer failed to map the memory of this connection: the reason is reported to its error handler"
    )]
    PeerMemory,
    /// The peer runs as a user that may not attach.
    #[error(
        "the peer runs as user {peer}, this process as user {own}, and only the same user may attach"
    )]
    User {
        /// The peer's user id.
        peer: u32,
        /// This process's user id.
        own: u32,
    },
    /// The port has a different secret.
    #[error(
        "the peer does not accept the secret of this address: the address is outdated or belongs to another process"
    )]
    Secret,
    /// The port has no free sender number.
    #[error("the peer has reached its maximum number of senders")]
    Full,
    /// The peer ended or closed the connection.
    #[error("the peer's process has ended or closed its interface")]
    Ended,
    /// The peer ended the connection because it found a protocol violation.
    #[error("the peer received invalid data from this process and ended the connection")]
    Rejected,
    /// The peer violated the protocol.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Memory for the connection could not be created, or a segment of the peer could not be
    /// attached.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// There is no room at present.
    #[error("no room: the peer has not received earlier messages")]
    Full,
    /// The connection has ended; [`Peer::error`](crate::Peer::error) returns the reason.
    #[error("the connection has ended")]
    Lost,
}
