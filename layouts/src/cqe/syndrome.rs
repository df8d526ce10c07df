//! Why a WQE failed.

use core::fmt;

use crate::codes::codes;

codes! {
    /// Why a WQE failed, as the device reports it (mlx5dv.h: `MLX5_CQE_SYNDROME_*`).
    Syndrome {
        /// A received message was longer than the receive WQE's buffers, or a send longer than the
        /// port's maximum.
        LocalLength = 0x01,
        /// The WQE itself was malformed or not allowed on this queue.
        LocalQpOperation = 0x02,
        /// A local key did not cover the address, or lacked the right.
        LocalProtection = 0x04,
        /// The queue was in error before this WQE was executed.
        WorkRequestFlushed = 0x05,
        /// A memory window could not be bound.
        MemoryWindowBind = 0x06,
        /// The peer's response was not what was asked for.
        BadResponse = 0x10,
        /// The responder hit a protection error in its own receive buffers.
        LocalAccess = 0x11,
        /// The peer rejected the request as invalid.
        RemoteInvalidRequest = 0x12,
        /// The remote key did not cover the address, or lacked the right.
        RemoteAccess = 0x13,
        /// The peer could not complete the operation.
        RemoteOperation = 0x14,
        /// No acknowledgement came within timeout and retry count.
        TransportRetryExceeded = 0x15,
        /// The peer had no receive WQE for longer than the RNR retry count allows.
        RnrRetryExceeded = 0x16,
        /// The peer aborted the operation.
        RemoteAborted = 0x22,
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::WorkRequestFlushed => "work request flushed",
            Self::MemoryWindowBind => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::TransportRetryExceeded => "transport retry count exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retry count exceeded",
            Self::RemoteAborted => "remote aborted",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_code_decodes_to_itself() {
        let known = (0..=u8::MAX).filter_map(Syndrome::from_bits).map(|syndrome| syndrome as u8);
        assert!(
            known
                .eq([0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22])
        );
    }
}
