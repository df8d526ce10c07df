//! Conversion of the statuses of libibverbs to the API's causes.

use barewire_verbs::{Failure, FailureStatus as Status};

use crate::base::error::{Cause, OperationError, Syndrome};

fn cause(status: Status) -> Cause {
    match status {
        Status::LOCAL_LENGTH => Cause::LocalLength,
        Status::LOCAL_OPERATION | Status::WINDOW_BIND | Status::BAD_RESPONSE => {
            Cause::LocalOperation
        }
        Status::LOCAL_PROTECTION | Status::LOCAL_ACCESS => Cause::LocalAccess,
        Status::FLUSHED => Cause::Flushed,
        Status::REMOTE_REQUEST => Cause::RemoteRequest,
        Status::REMOTE_ACCESS => Cause::RemoteAccess,
        Status::REMOTE_OPERATION | Status::REMOTE_ABORT => Cause::RemoteOperation,
        Status::RETRY_EXCEEDED => Cause::PeerUnreachable,
        Status::RNR_RETRY_EXCEEDED => Cause::ReceiverNotReady,
        _ => Cause::Unknown,
    }
}

/// Converts a failure to the error of one operation. The syndrome is the number of the status.
pub(crate) fn error(failure: Failure) -> OperationError {
    let syndrome = Syndrome { code: failure.status.code() as u8, vendor: failure.vendor as u8 };
    OperationError { cause: cause(failure.status), syndrome: Some(syndrome) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_meet_has_a_cause() {
        let error = error(Failure { status: Status::RETRY_EXCEEDED, vendor: 0x81 });
        assert_eq!(error.cause, Cause::PeerUnreachable);
        assert_eq!(error.syndrome, Some(Syndrome { code: 12, vendor: 0x81 }));
        assert_eq!(cause(Status::REMOTE_ACCESS), Cause::RemoteAccess);
    }
}
