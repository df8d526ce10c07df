//! Conversion of the device's syndromes to the API's causes.

use barewire_mlx5::Failure;
use barewire_mlx5::layouts::cqe::Syndrome as Code;
use barewire_mlx5::layouts::wqe::Opcode;

use crate::base::error::{Cause, Operation, OperationError, Syndrome};

fn cause(failure: Failure) -> Cause {
    match failure.syndrome() {
        Some(Code::LocalLength) => Cause::LocalLength,
        Some(Code::LocalQpOperation | Code::MemoryWindowBind | Code::BadResponse) => {
            Cause::LocalOperation
        }
        Some(Code::LocalProtection | Code::LocalAccess) => Cause::LocalAccess,
        Some(Code::WorkRequestFlushed) => Cause::Flushed,
        Some(Code::RemoteInvalidRequest) => Cause::RemoteRequest,
        Some(Code::RemoteAccess) => Cause::RemoteAccess,
        Some(Code::RemoteOperation | Code::RemoteAborted) => Cause::RemoteOperation,
        Some(Code::TransportRetryExceeded) => Cause::PeerUnreachable,
        Some(Code::RnrRetryExceeded) => Cause::ReceiverNotReady,
        None => Cause::Unknown,
    }
}

/// Converts a failure to the error of one operation.
pub(in crate::transport) fn error(failure: Failure) -> OperationError {
    OperationError {
        cause: cause(failure),
        syndrome: Some(Syndrome { code: failure.code, vendor: failure.vendor_code }),
    }
}

/// Returns the operation of a failed send WQE.
pub(in crate::transport) fn operation(failure: Failure) -> Operation {
    match Opcode::from_bits(failure.opcode) {
        Some(Opcode::RdmaWrite | Opcode::RdmaWriteImmediate) => Operation::Put,
        Some(Opcode::RdmaRead) => Operation::Get,
        Some(Opcode::Send | Opcode::SendImmediate) => Operation::ActiveMessage,
        Some(Opcode::AtomicFetchAdd | Opcode::AtomicCompareSwap) => Operation::Atomic,
        Some(Opcode::Nop) => Operation::Flush,
        _ => Operation::Unnamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::address::TransportId;
    use crate::base::error::EndpointError;

    #[test]
    fn every_code_has_a_cause() {
        for code in 0..=u8::MAX {
            let failure = Failure::new(code, 7, code);
            let _ = operation(failure);
            let error = error(failure);
            assert_eq!(error.cause == Cause::Unknown, failure.syndrome().is_none());
            assert_eq!(error.syndrome, Some(Syndrome { code, vendor: 7 }));
        }
    }

    #[test]
    fn a_failure_of_dma_is_not_taken_for_one_of_registration() {
        let text = |transport, vendor| {
            let OperationError { cause, syndrome, .. } = error(Failure::new(0x04, vendor, 0x0a));
            let (peer, operation) = ("peer".to_owned(), Operation::ActiveMessage);
            EndpointError { transport, peer, operation, cause, syndrome, detail: None }.to_string()
        };
        let dma = text(TransportId::RcMlx5, 0x51);
        assert!(dma.contains("IOMMU") && !dma.contains("LOCAL_WRITE"), "{dma}");
        let key = text(TransportId::DcMlx5, 0x52);
        assert!(key.contains("does not exist any more"), "{key}");
        // A code of which nothing is known, and one of another vendor's device.
        for (transport, vendor) in [(TransportId::RcMlx5, 0x7f), (TransportId::RcVerbs, 0x51)] {
            let text = text(transport, vendor);
            assert!(text.contains("LOCAL_WRITE") && !text.contains('['), "{text}");
        }
    }
}
