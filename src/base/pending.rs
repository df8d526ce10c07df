//! Requests that wait on an endpoint for resources, as values.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::base::status::PendingResult;

/// A request that waits on an endpoint until resources are freed.
///
/// It takes the endpoint on which it runs as an argument, so that a request taken from one endpoint
/// by [`pending_take`](crate::Endpoint::pending_take) can be added to another one.
#[must_use = "a request that is not added never runs"]
pub struct PendingRequest<E>(Run<E>);

enum Run<E> {
    Owned(Box<dyn FnMut(&E) -> PendingResult>),
    Shared(Rc<dyn Fn(&E) -> PendingResult>),
    Raw {
        data: NonNull<()>,
        run: RawRun<E>,
    },
    /// A raw request that is done.
    Done,
}

type RawRun<E> = unsafe fn(NonNull<()>, &E) -> PendingResult;

impl<E> PendingRequest<E> {
    /// A request that runs this function.
    pub fn new(run: impl FnMut(&E) -> PendingResult + 'static) -> Self {
        Self(Run::Owned(Box::new(run)))
    }

    /// A request that the caller keeps, to add it again and again without an allocation for each
    /// time.
    pub fn shared(run: Rc<dyn Fn(&E) -> PendingResult>) -> Self {
        Self(Run::Shared(run))
    }

    /// A request in memory of the caller, without an allocation: a pointer and the function that
    /// runs it. A request that is dropped without having run leaves the memory alone;
    /// `pending_take` and [`into_raw`](Self::into_raw) return the pointer. For C interfaces, such
    /// as UCT's `uct_pending_req_t`.
    ///
    /// # Safety
    /// `run` may be called with `data` and any endpoint, on this thread, until it panics or returns
    /// [`PendingResult::Done`], or the request is dropped or converted back. A request that was
    /// added to an endpoint is dropped by a purge, or when the endpoint is closed.
    pub unsafe fn from_raw(data: NonNull<()>, run: RawRun<E>) -> Self {
        Self(Run::Raw { data, run })
    }

    /// Returns the pointer of a request that [`from_raw`](Self::from_raw) made.
    ///
    /// # Errors
    /// The request, if it is of another kind, or done.
    pub fn into_raw(self) -> Result<NonNull<()>, Self> {
        if let Run::Raw { data, .. } = self.0 { Ok(data) } else { Err(self) }
    }

    /// Runs the request on `endpoint`. After [`PendingResult::Again`] it can run again.
    pub fn run(&mut self, endpoint: &E) -> PendingResult {
        match &mut self.0 {
            Run::Owned(run) => run(endpoint),
            Run::Shared(run) => run(endpoint),
            &mut Run::Raw { data, run } => {
                self.0 = Run::Done;
                // SAFETY: the function has not returned `Done` and has not panicked yet, and the
                // request exists (contract of `from_raw`).
                let result = unsafe { run(data, endpoint) };
                if result == PendingResult::Again {
                    self.0 = Run::Raw { data, run };
                }
                result
            }
            Run::Done => PendingResult::Done,
        }
    }
}

impl<E> fmt::Debug for PendingRequest<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingRequest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_request_runs_until_it_is_done() {
        unsafe fn count_down(data: NonNull<()>, endpoint: &[u32; 4]) -> PendingResult {
            // SAFETY: the test's own integer, which it does not access meanwhile.
            let left = unsafe { data.cast::<u32>().as_mut() };
            *left -= endpoint[0];
            if *left == 0 { PendingResult::Done } else { PendingResult::Again }
        }
        let mut left = 4;
        let data = NonNull::from(&mut left).cast();
        // SAFETY: the integer lives until the end of this function.
        let mut request = unsafe { PendingRequest::from_raw(data, count_down) };
        assert_eq!(request.run(&[3; 4]), PendingResult::Again);
        assert_eq!(request.into_raw().unwrap(), data);
        // SAFETY: as above.
        let mut request = unsafe { PendingRequest::from_raw(data, count_down) };
        assert_eq!(request.run(&[1; 4]), PendingResult::Done);
        assert_eq!(request.run(&[1; 4]), PendingResult::Done, "without a call");
        assert!(request.into_raw().is_err());
        assert!(PendingRequest::<[u32; 4]>::new(|_| PendingResult::Done).into_raw().is_err());
    }
}
