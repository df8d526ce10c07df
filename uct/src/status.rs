//! Status codes (ucs/type/status.h), and the errors of this library as such.

use std::panic::{AssertUnwindSafe, catch_unwind};

use barewire::{
    ConnectError, HandlerError, KeyError, MemoryError, OpenError, Post, PostError, Posted,
};

/// `ucs_status_t`: an enum of one byte.
pub(crate) type Status = i8;

pub(crate) const OK: Status = 0;
pub(crate) const INPROGRESS: Status = 1;
pub(crate) const NO_RESOURCE: Status = -2;
pub(crate) const IO_ERROR: Status = -3;
pub(crate) const NO_MEMORY: Status = -4;
pub(crate) const INVALID_PARAM: Status = -5;
pub(crate) const UNREACHABLE: Status = -6;
pub(crate) const INVALID_ADDR: Status = -7;
pub(crate) const BUFFER_TOO_SMALL: Status = -11;
pub(crate) const NO_ELEM: Status = -12;
pub(crate) const NO_DEVICE: Status = -14;
pub(crate) const BUSY: Status = -15;
#[cfg(test)]
pub(crate) const CANCELED: Status = -16;
pub(crate) const EXCEEDS_LIMIT: Status = -21;
pub(crate) const UNSUPPORTED: Status = -22;
pub(crate) const REJECTED: Status = -23;
pub(crate) const NOT_CONNECTED: Status = -24;
pub(crate) const CONNECTION_RESET: Status = -25;
#[cfg(test)]
pub(crate) const ENDPOINT_TIMEOUT: Status = -80;

/// Runs a function of set-up; a panic becomes an I/O error.
pub(crate) fn guard(run: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => OK,
        Ok(Err(status)) => status,
        Err(_) => {
            crate::log::error(&"a function of set-up panicked: please report this");
            IO_ERROR
        }
    }
}

/// Returns the status of a post.
#[inline(always)]
pub(crate) fn of_result(result: Result<(), PostError>) -> Status {
    match result {
        Ok(()) => OK,
        Err(error) => of_post(error),
    }
}

/// Returns the status of a post that may stay in progress.
#[inline(always)]
pub(crate) fn of_posted(post: Post) -> Status {
    match post {
        Ok(Posted::Done) => OK,
        Ok(Posted::InProgress) => INPROGRESS,
        Err(error) => of_post(error),
    }
}

/// Returns the length of a buffered post, or its status.
#[inline(always)]
pub(crate) fn of_packed(result: Result<usize, PostError>) -> isize {
    match result {
        Ok(length) => length as isize,
        Err(error) => of_post(error).into(),
    }
}

#[inline(always)]
pub(crate) fn of_post(error: PostError) -> Status {
    if error == PostError::NoResource { NO_RESOURCE } else { of_refusal(error) }
}

#[cold]
#[inline(never)]
fn of_refusal(error: PostError) -> Status {
    match error {
        PostError::TooLong { .. } => crate::log::error(&format_args!("wrong length: {error}")),
        PostError::UnknownHandlerId(_) => {
            crate::log::error(&format_args!("wrong active message id: {error}"));
        }
        PostError::OutOfRange | PostError::AccessDenied | PostError::KeyExpired => {
            crate::log::error(&error);
        }
        PostError::NotConnected => {}
        _ => crate::log::diag(&error),
    }
    match error {
        PostError::EndpointFailed => CONNECTION_RESET,
        // A pending request runs once the endpoint is connected.
        PostError::NotConnected => NO_RESOURCE,
        PostError::OutOfRange | PostError::AccessDenied | PostError::KeyExpired => INVALID_ADDR,
        PostError::Unsupported => UNSUPPORTED,
        PostError::Closed | PostError::Forked => IO_ERROR,
        _ => INVALID_PARAM,
    }
}

pub(crate) fn of_open(error: &OpenError) -> Status {
    match error {
        OpenError::NotBuilt { .. } | OpenError::UnknownDevice { .. } => NO_DEVICE,
        OpenError::Setting { .. } => INVALID_PARAM,
        OpenError::TooManyEndpoints { .. } => EXCEEDS_LIMIT,
        OpenError::Unsupported { .. } => UNSUPPORTED,
        _ => IO_ERROR,
    }
}

pub(crate) fn of_connect(error: &ConnectError) -> Status {
    match error {
        ConnectError::ForeignTransport { .. } | ConnectError::Address { .. } => INVALID_ADDR,
        ConnectError::Unreachable { .. } => UNREACHABLE,
        ConnectError::Connected { .. } => INVALID_PARAM,
        ConnectError::Unsupported { .. } | ConnectError::NoEndpoint { .. } => UNSUPPORTED,
        ConnectError::Open(error) => of_open(error),
        _ => IO_ERROR,
    }
}

pub(crate) fn of_memory(error: &MemoryError) -> Status {
    match error {
        MemoryError::NoMemory { .. } => NO_MEMORY,
        MemoryError::Device { .. } | MemoryError::Deregister { .. } => IO_ERROR,
        _ => INVALID_PARAM,
    }
}

pub(crate) fn of_key(error: &KeyError) -> Status {
    match error {
        KeyError::Expired => INVALID_ADDR,
        KeyError::NotShared { .. } => UNSUPPORTED,
        _ => INVALID_PARAM,
    }
}

pub(crate) fn of_handler(error: HandlerError) -> Status {
    match error {
        HandlerError::UnknownHandlerId(_) => INVALID_PARAM,
        _ => IO_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use barewire::Cause;
    use barewire::caller::status_of;

    use super::*;

    #[test]
    fn posts_have_a_status_each() {
        assert_eq!(of_result(Ok(())), OK);
        assert_eq!(of_result(Err(PostError::NoResource)), NO_RESOURCE);
        assert_eq!(of_posted(Ok(Posted::InProgress)), INPROGRESS);
        assert_eq!(of_packed(Ok(7)), 7);
        assert_eq!(of_packed(Err(PostError::UnknownHandlerId(32))), -5);
        assert_eq!(of_packed(Err(PostError::OutOfRange)), -7);
    }

    /// Those of UCX's own transports, which programs expect when a peer ends.
    #[test]
    fn failures_have_a_status_each() {
        assert_eq!(status_of(Cause::RemoteOperation), CONNECTION_RESET);
        assert_eq!(status_of(Cause::RemoteAccess), CONNECTION_RESET);
        assert_eq!(status_of(Cause::PeerUnreachable), ENDPOINT_TIMEOUT);
        assert_eq!(status_of(Cause::Flushed), CANCELED);
        assert_eq!(status_of(Cause::RemoteRequest), IO_ERROR);
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guard(|| panic!("expected by the test")), IO_ERROR);
        assert_eq!(guard(|| Err(BUSY)), BUSY);
    }
}
