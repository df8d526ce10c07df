//! Completions of work requests.
#![allow(unsafe_code, reason = "casts a slice of wrappers to a slice of the library's structures")]

use std::fmt;

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use thiserror::Error;

use crate::sys::Plain;

/// The completion of a request. verbs.h: `struct ibv_wc`.
#[repr(transparent)]
pub struct WorkCompletion(ibv_wc);

/// The kind of request that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A send.
    Send,
    /// An RDMA write.
    Write,
    /// An RDMA read.
    Read,
    /// A compare and swap.
    CompareSwap,
    /// A fetch and add.
    FetchAdd,
    /// A receive request, consumed by a send of the peer.
    Receive,
    /// A receive request, consumed by a write with immediate of the peer.
    ReceiveWrite,
    /// A kind that this crate does not post.
    Other(u32),
}

/// A request that failed. The queue pair is in the error state, and all later requests are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{status} (vendor error {vendor:#x})")]
pub struct Failure {
    /// The reason.
    pub status: FailureStatus,
    /// The vendor's error code.
    pub vendor: u32,
}

/// Why a request failed. verbs.h: `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureStatus(u32);

impl FailureStatus {
    /// The request was flushed because the queue pair was in the error state.
    pub const FLUSHED: Self = Self(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    /// The peer did not acknowledge within the timeout and the number of retries.
    pub const RETRY_EXCEEDED: Self = Self(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    /// The peer had no receive request within the number of retries.
    pub const RNR_RETRY_EXCEEDED: Self = Self(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
    /// The remote key does not cover the address, or does not permit the access.
    pub const REMOTE_ACCESS: Self = Self(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    /// A local key does not cover the address, or does not permit the access.
    pub const LOCAL_PROTECTION: Self = Self(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    /// A request is malformed, or not allowed on this queue pair.
    pub const LOCAL_OPERATION: Self = Self(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
    /// A memory window could not be bound.
    pub const WINDOW_BIND: Self = Self(ibv_wc_status::IBV_WC_MW_BIND_ERR);
    /// The peer sent an unexpected response.
    pub const BAD_RESPONSE: Self = Self(ibv_wc_status::IBV_WC_BAD_RESP_ERR);
    /// The peer's write exceeds the region.
    pub const LOCAL_ACCESS: Self = Self(ibv_wc_status::IBV_WC_LOC_ACCESS_ERR);
    /// The peer rejected the request as invalid.
    pub const REMOTE_REQUEST: Self = Self(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
    /// The peer could not complete the request.
    pub const REMOTE_OPERATION: Self = Self(ibv_wc_status::IBV_WC_REM_OP_ERR);
    /// The peer aborted the request.
    pub const REMOTE_ABORT: Self = Self(ibv_wc_status::IBV_WC_REM_ABORT_ERR);
    /// A message exceeds the buffers of the receive request.
    pub const LOCAL_LENGTH: Self = Self(ibv_wc_status::IBV_WC_LOC_LEN_ERR);

    /// The value in `enum ibv_wc_status`.
    pub fn code(self) -> u32 {
        self.0
    }
}

impl fmt::Display for FailureStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => "local length error: a message exceeds the buffers of its receive request",
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => "local queue pair operation error: the request is not allowed or malformed",
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => "local protection error: a local key does not cover the address or does not permit the access",
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "flushed: the queue pair was in the error state",
            ibv_wc_status::IBV_WC_MW_BIND_ERR => "memory window bind error",
            ibv_wc_status::IBV_WC_BAD_RESP_ERR => "bad response: the peer sent an unexpected response",
            ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => "local access error: the peer's write exceeds the region",
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => "remote invalid request: the peer rejected the request",
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => "remote access error: the remote key does not cover the address or does not permit the access",
            ibv_wc_status::IBV_WC_REM_OP_ERR => "remote operation error: the peer could not complete the request",
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => {
                "transport retry count exceeded: the peer does not respond (it has ended, its queue pair is in error, or the network loses packets)"
            }
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "receiver not ready: the peer has no receive request",
            ibv_wc_status::IBV_WC_REM_ABORT_ERR => "the peer aborted the request",
            ibv_wc_status::IBV_WC_FATAL_ERR => "fatal error of the device",
            ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => "response timeout",
            ibv_wc_status::IBV_WC_GENERAL_ERR => "general error",
            other => return write!(f, "work completion status {other}"),
        })
    }
}

impl WorkCompletion {
    /// An empty completion, for arrays that are passed to poll.
    pub fn empty() -> Self {
        Self(ibv_wc::zeroed())
    }

    pub(crate) fn as_verbs(completions: &mut [Self]) -> &mut [ibv_wc] {
        let (start, count) = (completions.as_mut_ptr().cast::<ibv_wc>(), completions.len());
        // SAFETY: `WorkCompletion` is a transparent wrapper of `ibv_wc`, so both slices have the
        // same layout and valid values; the result has the lifetime of the argument.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }

    /// The number of the request, as it was posted.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns an error if the request failed.
    ///
    /// # Errors
    /// The reason of the failure. All other methods except [`Self::id`] and [`Self::queue_pair`]
    /// are meaningless then.
    #[inline]
    pub fn outcome(&self) -> Result<(), Failure> {
        if self.0.status == ibv_wc_status::IBV_WC_SUCCESS {
            return Ok(());
        }
        Err(Failure { status: FailureStatus(self.0.status), vendor: self.0.vendor_err })
    }

    /// The kind of request that completed.
    #[inline]
    pub fn kind(&self) -> CompletionKind {
        match self.0.opcode {
            ibv_wc_opcode::IBV_WC_SEND => CompletionKind::Send,
            ibv_wc_opcode::IBV_WC_RDMA_WRITE => CompletionKind::Write,
            ibv_wc_opcode::IBV_WC_RDMA_READ => CompletionKind::Read,
            ibv_wc_opcode::IBV_WC_COMP_SWAP => CompletionKind::CompareSwap,
            ibv_wc_opcode::IBV_WC_FETCH_ADD => CompletionKind::FetchAdd,
            ibv_wc_opcode::IBV_WC_RECV => CompletionKind::Receive,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => CompletionKind::ReceiveWrite,
            other => CompletionKind::Other(other),
        }
    }

    /// The number of bytes received or read. For datagrams this includes the 40 bytes of the global
    /// routing header.
    #[inline]
    pub fn length(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate of the message, if it has one.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        // SAFETY: both members of the union are 32-bit integers, so each is always initialised and
        // valid.
        let immediate = unsafe { self.0.imm_data_invalidated_rkey_union.imm_data };
        self.has(ibv_wc_flags::IBV_WC_WITH_IMM).then(|| u32::from_be(immediate))
    }

    /// The number of the local queue pair.
    #[inline]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The number of the sender's queue pair. Datagrams only.
    #[inline]
    pub fn source_queue_pair(&self) -> u32 {
        self.0.src_qp
    }

    /// The LID of the sender. Datagrams on InfiniBand only.
    #[inline]
    pub fn source_lid(&self) -> u16 {
        self.0.slid
    }

    /// Returns true if the first 40 bytes of a datagram's buffer are a global routing header;
    /// otherwise they are undefined.
    #[inline]
    pub fn has_global_route(&self) -> bool {
        self.has(ibv_wc_flags::IBV_WC_GRH)
    }

    #[inline]
    fn has(&self, flag: ibv_wc_flags) -> bool {
        self.0.wc_flags & flag.0 != 0
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("id", &self.id())
            .field("outcome", &self.outcome())
            .field("kind", &self.kind())
            .field("length", &self.length())
            .field("immediate", &self.immediate())
            .field("queue_pair", &self.queue_pair())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_read() {
        let mut completions = [WorkCompletion::empty(), WorkCompletion::empty()];
        let raw = WorkCompletion::as_verbs(&mut completions);
        raw[1] = ibv_wc { wr_id: 7, status: 12, vendor_err: 0x81, ..ibv_wc::zeroed() };
        raw[0] = ibv_wc { opcode: 129, byte_len: 5, wc_flags: 2, ..ibv_wc::zeroed() };
        raw[0].imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
        let [received, failed] = &completions;
        assert_eq!((received.kind(), received.length()), (CompletionKind::ReceiveWrite, 5));
        assert_eq!((received.immediate(), received.has_global_route()), (Some(0x0102_0304), false));
        assert_eq!((failed.id(), failed.immediate()), (7, None));
        let failure = failed.outcome().unwrap_err();
        assert_eq!(failure, Failure { status: FailureStatus::RETRY_EXCEEDED, vendor: 0x81 });
        assert!(failure.to_string().starts_with("transport retry count exceeded: "), "{failure}");
        assert!(failure.to_string().ends_with("(vendor error 0x81)"), "{failure}");
        assert_eq!(FailureStatus(99).to_string(), "work completion status 99");
    }
}
