//! The operations that the script requires of a side.

use crate::Result;

/// Most outstanding operations.
pub(crate) const WINDOW: usize = 16;
/// Size of the memory of one operation: more than the longest message, so that bytes after it can
/// be checked.
pub(crate) const SLOT: usize = 16 << 10;
/// Start of the memory for operations of this side.
pub(crate) const LOCAL: usize = 0;
/// Start of the memory for operations of the peer.
pub(crate) const TARGET: usize = WINDOW * SLOT;
/// Size of a side's registered memory in bytes.
pub(crate) const MEMORY: usize = 2 * TARGET;

/// Retries of a side, for a machine that may pause for a second: 268 ms each, seven times.
pub(crate) const ACK_TIMEOUT: u8 = 16;
pub(crate) const RETRIES: u8 = 7;
/// Reads and atomics outstanding, as log2: fewer than [`WINDOW`].
pub(crate) const LOG_READS: u8 = 2;
/// How long a sender waits without a receive WQE: 0.64 ms (IBTA table 45).
pub(crate) const MIN_RNR_NAK: u8 = 12;

/// The information that the peer needs about a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    /// Sequence number of the first packet that this side sends.
    pub(crate) psn: u32,
    pub(crate) gid: [u8; 16],
    /// Start of its memory.
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// A range of a side's own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// A work request. `remote` is an offset into the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send { local: Place, immediate: Option<u32> },
    Write { local: Place, remote: usize, immediate: Option<u32> },
    Read { local: Place, remote: usize },
    FetchAdd { local: Place, remote: usize, operand: u64 },
    CompareSwap { local: Place, remote: usize, compare: u64, swap: u64 },
}

/// A successful completion. Sends and receives each complete in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// An operation of this side.
    Posted,
    /// A message of the peer, or its write with an immediate.
    Received { length: u32, immediate: Option<u32> },
}

/// A connected queue pair with its memory.
pub(crate) trait Side {
    fn endpoint(&self) -> Endpoint;

    /// Connects to `peer`, the target of all operations.
    fn connect(&mut self, peer: &Endpoint) -> Result<()>;

    fn post(&mut self, operation: &Operation) -> Result<()>;

    fn post_receive(&mut self, place: Place) -> Result<()>;

    /// The next completion; an unsuccessful one is an error.
    fn poll(&mut self) -> Result<Option<Done>>;

    /// Copies to this side's memory.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Copies from this side's memory.
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// Checks the device at the end.
    fn finish(&mut self) -> Result<()>;
}
