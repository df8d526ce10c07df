//! Completions, results and unpackers: what an operation in progress gives back.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use crate::error::OperationError;
use crate::panics::Panics;

type Callback = Box<dyn FnMut(Result<(), OperationError>)>;

struct State {
    pending: Cell<u32>,
    status: Cell<Result<(), OperationError>>,
    callback: Cell<Option<Callback>>,
    /// Zero was reached again while the callback ran.
    again: Cell<bool>,
}

/// A counter of operations with a callback that runs when the last of them finished.
///
/// The caller sets the count; every operation that was posted with this completion and answered
/// [`Posted::InProgress`](crate::Posted::InProgress) counts it down by one. The callback runs inside
/// progress and may post. A completion can be used again: [`add`](Self::add) arms it anew, so no
/// allocation is needed per operation.
///
/// ```
/// use std::{cell::Cell, rc::Rc};
/// let done = Rc::new(Cell::new(false));
/// let seen = Rc::clone(&done);
/// let completion = barewire::Completion::new(1, move |result| seen.set(result.is_ok()));
/// assert_eq!(completion.pending(), 1);
/// # drop((completion, done));
/// ```
#[derive(Clone)]
pub struct Completion(Rc<State>);

impl Completion {
    /// A completion that waits for `count` operations. The callback gets the first error, if any
    /// operation failed.
    pub fn new(count: u32, callback: impl FnMut(Result<(), OperationError>) + 'static) -> Self {
        Self(Rc::new(State {
            pending: Cell::new(count),
            status: Cell::new(Ok(())),
            callback: Cell::new(Some(Box::new(callback))),
            again: Cell::new(false),
        }))
    }

    /// A completion without a callback, to be looked at.
    pub fn counter(count: u32) -> Self {
        Self(Rc::new(State {
            pending: Cell::new(count),
            status: Cell::new(Ok(())),
            callback: Cell::new(None),
            again: Cell::new(false),
        }))
    }

    /// Operations still awaited.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.0.pending.get()
    }

    /// Awaits `n` more operations. From zero, this arms the completion anew and forgets an old error.
    #[inline]
    pub fn add(&self, n: u32) {
        let pending = self.0.pending.get();
        if pending == 0 {
            self.0.status.set(Ok(()));
        }
        self.0.pending.set(pending.saturating_add(n));
    }

    /// The first error so far.
    ///
    /// # Errors
    /// The first [`OperationError`] of an operation counted by this completion.
    #[inline]
    pub fn status(&self) -> Result<(), OperationError> {
        self.0.status.get()
    }

    /// One awaited operation is finished. Also for callers that fold work of their own into the count,
    /// for example a post that answered [`Posted::Done`](crate::Posted::Done).
    #[inline]
    pub fn count_down(&self, result: Result<(), OperationError>) {
        if let Err(error) = result {
            self.fail(error);
        }
        // More operations than awaited: the callback ran already.
        let Some(pending) = self.0.pending.get().checked_sub(1) else { return };
        self.0.pending.set(pending);
        if pending == 0 {
            self.run();
        }
    }

    fn run(&self) {
        let Some(callback) = self.0.callback.take() else {
            // None was given, or it is running further down this stack.
            self.0.again.set(true);
            return;
        };
        Running { state: &self.0, callback: Some(callback) }.run();
    }

    #[cold]
    fn fail(&self, error: OperationError) {
        if self.0.status.get().is_ok() {
            self.0.status.set(Err(error));
        }
    }
}

/// A callback that runs, taken from its completion. It goes back also when it panics.
struct Running<'a> {
    state: &'a State,
    callback: Option<Callback>,
}

impl Running<'_> {
    fn run(&mut self) {
        let Some(callback) = &mut self.callback else { return };
        loop {
            self.state.again.set(false);
            callback(self.state.status.get());
            if !self.state.again.get() {
                break;
            }
        }
    }

    /// Runs the callback again, after it panicked when zero was reached again meanwhile.
    #[cold]
    #[inline(never)]
    fn run_after_panic(&mut self) {
        while self.state.again.get() {
            Panics::default().catch(|| self.run());
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.state.again.get() {
            self.run_after_panic();
        }
        self.state.callback.set(self.callback.take());
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("pending", &self.pending())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Where a fetching atomic puts the value that it found. Valid once the operation is complete.
#[derive(Clone, Debug, Default)]
pub struct FetchResult(Rc<Cell<u64>>);

impl FetchResult {
    /// A result that reads zero until an operation fills it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value fetched.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.set(value);
    }
}

/// A function that takes the bytes which a buffered get fetched. Make it once and use it for many gets.
#[derive(Clone)]
pub struct Unpack(Rc<UnpackFn>);

type UnpackFn = dyn Fn(&[u8]);

impl Unpack {
    /// Wraps a function; it runs inside the post (`self`) or inside progress, before the completion.
    pub fn new(unpack: impl Fn(&[u8]) + 'static) -> Self {
        Self(Rc::new(unpack))
    }

    #[inline]
    pub(crate) fn call(&self, bytes: &[u8]) {
        (self.0)(bytes);
    }
}

impl fmt::Debug for Unpack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unpack")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_once_at_zero_with_the_first_error() {
        let seen = Rc::new(Cell::new(0));
        let calls = Rc::clone(&seen);
        let completion = Completion::new(2, move |result| {
            assert_eq!(result, Err(OperationError::CANCELED));
            calls.set(calls.get() + 1);
        });
        completion.count_down(Err(OperationError::CANCELED));
        assert_eq!((completion.pending(), seen.get()), (1, 0));
        completion.count_down(Ok(()));
        completion.count_down(Ok(()));
        assert_eq!((completion.pending(), seen.get()), (0, 1));
        completion.add(1);
        assert_eq!(completion.status(), Ok(()));
    }

    #[test]
    fn callback_may_arm_it_again() {
        let cell: Rc<Cell<Option<Completion>>> = Rc::default();
        let inner = Rc::clone(&cell);
        let completion = Completion::new(1, move |_| {
            if let Some(completion) = inner.take() {
                completion.add(1);
            }
        });
        cell.set(Some(completion.clone()));
        completion.count_down(Ok(()));
        assert_eq!(completion.pending(), 1);
        completion.count_down(Ok(()));
        assert_eq!(completion.pending(), 0);
    }

    #[test]
    fn a_callback_that_panics_runs_again() {
        let seen = Rc::new(Cell::new(0));
        let calls = Rc::clone(&seen);
        let cell: Rc<Cell<Option<Completion>>> = Rc::default();
        let inner = Rc::clone(&cell);
        let completion = Completion::new(1, move |_| {
            calls.set(calls.get() + 1);
            if let Some(completion) = inner.take() {
                completion.add(1);
                completion.count_down(Ok(()));
            }
            assert!(calls.get() > 2, "expected by the test");
        });
        cell.set(Some(completion.clone()));
        let count_down = std::panic::AssertUnwindSafe(|| completion.count_down(Ok(())));
        assert!(std::panic::catch_unwind(count_down).is_err());
        assert_eq!(seen.get(), 2, "it was done twice");
        completion.add(1);
        completion.count_down(Ok(()));
        assert_eq!(seen.get(), 3);
    }
}
