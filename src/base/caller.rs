//! Completions, results and requests in memory of the caller: without allocations, for C interfaces
//! and for programs that embed them in structures of their own.
//!
//! The records are those of UCT's C interface, so that a pointer to one of UCT's can be converted
//! to a pointer to one of these.
//!
//! ```
//! use std::ptr::NonNull;
//!
//! use barewire::caller::CompletionRecord;
//! use barewire::{Access, Completion, Domain, Interface, InterfaceConfig, Worker};
//!
//! /// A request of the program, with its completion as the first field.
//! #[repr(C)]
//! struct Write {
//!     completion: CompletionRecord,
//!     is_done: std::cell::Cell<bool>,
//! }
//!
//! unsafe extern "C-unwind" fn written(record: NonNull<CompletionRecord>) {
//!     // SAFETY: only the record of a `Write` has this function, and it is the first field.
//!     unsafe { record.cast::<Write>().as_ref() }.is_done.set(true);
//! }
//!
//! let mut worker = Worker::new();
//! let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
//! let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
//! # use barewire::Endpoint;
//! # let (endpoint, peer) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
//! # endpoint.connect(&peer.address())?;
//! # peer.connect(&endpoint.address())?;
//! let memory = domain.allocate(4096, Access::all())?;
//! let key = domain.unpack_key(&memory.pack_key())?;
//!
//! let mut write =
//!     Write { completion: CompletionRecord::new(written), is_done: std::cell::Cell::new(false) };
//! let request = NonNull::from(&mut write);
//! // SAFETY: this thread alone uses the request, which stays where it is until it is done.
//! let completion = unsafe { Completion::from_record(request.cast()) };
//! let slices = [memory.slice(0, 1024)?];
//! let _ = endpoint.put_zcopy(&slices, memory.address() + 2048, &key, Some(&completion))?;
//! worker.wait_for(&completion)?;
//! // SAFETY: as above.
//! assert!(unsafe { request.as_ref() }.is_done.get());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use crate::base::error::{Cause, OperationError};
use crate::base::scoped;

/// The function of a [`CompletionRecord`], which gets the record.
pub type CompletionFunction = unsafe extern "C-unwind" fn(NonNull<CompletionRecord>);

thread_local! {
    static IS_ABANDONED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `close`, which drops a worker or an interface, without access to the records of operations
/// that this cancels: a C interface does not know whether its caller, which has not waited for the
/// operations, has freed their records.
pub fn abandon<R>(close: impl FnOnce() -> R) -> R {
    scoped::with(&IS_ABANDONED, close)
}

#[cold]
#[inline(never)]
pub(crate) fn is_abandoned() -> bool {
    IS_ABANDONED.get()
}

/// Counts operations in progress, in memory of the caller:
/// [`Completion::from_record`](crate::Completion::from_record) makes a completion of it. Its layout
/// is that of UCT's `uct_completion_t` (uct.h): the function, an `int`, and a `ucs_status_t` of one
/// byte.
///
/// The function is called each time that the count reaches zero, and thus also inside of itself if
/// it posts and the operation is finished before it returns. Unlike in UCT, a post counts an
/// operation itself: a C interface, whose callers have already counted it, subtracts one after a
/// post that returns [`Posted::InProgress`](crate::Posted::InProgress).
#[repr(C)]
pub struct CompletionRecord {
    /// `None` in the state of a completion that this library allocated.
    function: Option<CompletionFunction>,
    pub(crate) count: Cell<i32>,
    pub(crate) status: Cell<i8>,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<CompletionRecord>() == 16);
    assert!(offset_of!(CompletionRecord, count) == 8);
    assert!(offset_of!(CompletionRecord, status) == 12);
};

impl CompletionRecord {
    /// Creates a record with the count zero.
    pub const fn new(function: CompletionFunction) -> Self {
        Self { function: Some(function), ..Self::of_state() }
    }

    /// The record in the state of a completion that this library allocated.
    pub(crate) const fn of_state() -> Self {
        Self { function: None, count: Cell::new(0), status: Cell::new(0) }
    }

    #[inline(always)]
    pub(crate) fn is_of_state(&self) -> bool {
        self.function.is_none()
    }

    #[inline(always)]
    pub(crate) fn function(&self) -> Option<CompletionFunction> {
        self.function
    }

    /// Returns the number of operations in progress and of holds.
    pub fn pending(&self) -> i32 {
        self.count.get()
    }

    /// Returns the status as a `ucs_status_t` (ucs/type/status.h): 0, or the [code](status_of) of
    /// the first error since [`reset`](Self::reset).
    pub fn status(&self) -> i8 {
        self.status.get()
    }

    /// Sets the status to 0. Unlike that of other completions, it is not reset by itself.
    pub fn reset(&self) {
        self.status.set(0);
    }

    /// Stores the code of an error, and returns whether it is the first.
    pub(crate) fn fail(&self, error: OperationError) -> bool {
        let is_first = self.status.get() == 0;
        if is_first {
            self.status.set(status_of(error.cause));
        }
        is_first
    }

    /// Returns the status as an error, as far as its code tells.
    pub(crate) fn result(&self) -> Result<(), OperationError> {
        match self.status.get() {
            0 => Ok(()),
            code => Err(OperationError { cause: cause(code), syndrome: None }),
        }
    }
}

impl fmt::Debug for CompletionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionRecord")
            .field("count", &self.count.get())
            .field("status", &self.status.get())
            .finish_non_exhaustive()
    }
}

const CANCELED: i8 = -16;
const REJECTED: i8 = -23;
const CONNECTION_RESET: i8 = -25;
const ENDPOINT_TIMEOUT: i8 = -80;
const IO_ERROR: i8 = -3;

/// Returns the `ucs_status_t` of a cause.
///
/// | code | causes |
/// |---|---|
/// | -16, `UCS_ERR_CANCELED` | [`Canceled`](Cause::Canceled), [`Flushed`](Cause::Flushed) |
/// | -23, `UCS_ERR_REJECTED` | [`Unauthenticated`](Cause::Unauthenticated) |
/// | -25, `UCS_ERR_CONNECTION_RESET` | [`Disconnected`](Cause::Disconnected), [`RemoteAccess`](Cause::RemoteAccess), [`RemoteOperation`](Cause::RemoteOperation) |
/// | -80, `UCS_ERR_ENDPOINT_TIMEOUT` | [`PeerUnreachable`](Cause::PeerUnreachable), [`ReceiverNotReady`](Cause::ReceiverNotReady) |
/// | -3, `UCS_ERR_IO_ERROR` | every other |
pub fn status_of(cause: Cause) -> i8 {
    match cause {
        Cause::Canceled | Cause::Flushed => CANCELED,
        Cause::Unauthenticated => REJECTED,
        // UCX's own transports report these two so, too.
        Cause::Disconnected | Cause::RemoteAccess | Cause::RemoteOperation => CONNECTION_RESET,
        Cause::PeerUnreachable | Cause::ReceiverNotReady => ENDPOINT_TIMEOUT,
        _ => IO_ERROR,
    }
}

/// Returns a cause with a code.
fn cause(code: i8) -> Cause {
    match code {
        CANCELED => Cause::Canceled,
        REJECTED => Cause::Unauthenticated,
        // The peer of a refused access lives: a cause that is right for both.
        CONNECTION_RESET => Cause::RemoteOperation,
        ENDPOINT_TIMEOUT => Cause::PeerUnreachable,
        _ => Cause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::completion::Completion;

    /// A request as C would allocate it, which its function frees.
    #[repr(C)]
    struct Request {
        completion: CompletionRecord,
        seen: std::rc::Rc<Cell<Option<i8>>>,
    }

    unsafe extern "C-unwind" fn free(record: NonNull<CompletionRecord>) {
        // SAFETY: only requests from `request` have this function; it is called once.
        let request = unsafe { Box::from_raw(record.cast::<Request>().as_ptr()) };
        request.seen.set(Some(request.completion.status()));
    }

    fn request() -> (NonNull<CompletionRecord>, std::rc::Rc<Cell<Option<i8>>>) {
        let seen = std::rc::Rc::default();
        let completion = CompletionRecord::new(free);
        let request = Request { completion, seen: std::rc::Rc::clone(&seen) };
        (NonNull::from(Box::leak(Box::new(request))).cast(), seen)
    }

    #[test]
    fn the_function_may_free_the_record() {
        let (record, seen) = request();
        // SAFETY: the record lives until its function is called, by the last operation.
        let completion = unsafe { Completion::from_record(record) };
        let (first, second) = (completion.begin(), completion.clone().begin());
        assert_eq!((completion.pending(), completion.status()), (2, Ok(())));
        drop(completion);
        first.finish(Err(OperationError::CANCELED));
        assert_eq!(seen.get(), None);
        second.finish(Ok(()));
        assert_eq!(seen.get(), Some(CANCELED));
    }

    #[test]
    fn a_hold_counts_and_runs_the_function() {
        let (record, seen) = request();
        // SAFETY: as above.
        let completion = unsafe { Completion::from_record(record) };
        let hold = completion.hold();
        drop(completion);
        assert_eq!(seen.get(), None);
        drop(hold);
        assert_eq!(seen.get(), Some(0));
    }

    #[test]
    fn an_operation_that_is_dropped_leaves_the_record_alone() {
        let (record, seen) = request();
        // SAFETY: as above; it is freed below.
        let completion = unsafe { Completion::from_record(record) };
        drop(completion.begin());
        assert_eq!((completion.pending(), completion.status(), seen.get()), (1, Ok(()), None));
        drop(completion);
        // SAFETY: nothing uses the record any more.
        unsafe { free(record) };
    }

    #[test]
    fn reports_the_first_error_until_it_is_reset() {
        unsafe extern "C-unwind" fn nothing(_: NonNull<CompletionRecord>) {}
        let mut record = CompletionRecord::new(nothing);
        let record = NonNull::from(&mut record);
        // SAFETY: the record lives until the end of this function.
        let completion = unsafe { Completion::from_record(record) };
        let error = |cause| OperationError { cause, syndrome: None };
        let (first, second) = (completion.begin(), completion.begin());
        first.finish(Err(error(Cause::ReceiverNotReady)));
        second.finish(Err(error(Cause::RemoteAccess)));
        assert_eq!(completion.status(), Err(error(Cause::PeerUnreachable)));
        completion.begin().finish(Ok(()));
        // SAFETY: as above.
        let record = unsafe { record.as_ref() };
        assert_eq!((record.pending(), record.status()), (0, ENDPOINT_TIMEOUT));
        record.reset();
        assert_eq!(completion.status(), Ok(()));
        // The peer of a refused access is not reported as dead.
        completion.begin().finish(Err(error(Cause::RemoteAccess)));
        assert_eq!(completion.status(), Err(error(Cause::RemoteOperation)));
        record.reset();
        completion.begin().finish(Err(error(Cause::RemoteRequest)));
        assert_eq!(completion.status(), Err(error(Cause::Unknown)));
    }

    #[test]
    fn codes_lead_back_to_a_cause_with_the_same_code() {
        for known in [CANCELED, REJECTED, CONNECTION_RESET, ENDPOINT_TIMEOUT, IO_ERROR] {
            assert_eq!(status_of(cause(known)), known);
        }
        for of_ucx in [Cause::RemoteAccess, Cause::RemoteOperation] {
            assert_eq!(status_of(of_ucx), CONNECTION_RESET);
        }
    }
}
