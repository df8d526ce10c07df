//! Completions, fetch results and unpackers: how an operation in progress reports its end.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use crate::error::OperationError;
use crate::panics::Panics;

type Callback = Box<dyn FnMut(Result<(), OperationError>)>;

struct State {
    pending: Cell<u32>,
    status: Cell<Result<(), OperationError>>,
    callback: Cell<Option<Callback>>,
    /// The count reached zero again while the callback was running.
    again: Cell<bool>,
    /// The task that awaits the completion.
    waker: Cell<Option<Waker>>,
    /// Whether the callback is a [`Waking`].
    wakes: Cell<bool>,
}

impl State {
    fn new(count: u32, callback: Option<Callback>) -> Rc<Self> {
        Rc::new(Self {
            pending: Cell::new(count),
            status: Cell::new(Ok(())),
            callback: Cell::new(callback),
            again: Cell::new(false),
            waker: Cell::new(None),
            wakes: Cell::new(false),
        })
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A counter of operations with a callback that runs when the last of them is finished.
///
/// The caller sets the count; every operation that was posted with this completion and returned
/// [`Posted::InProgress`](crate::Posted::InProgress) counts it down by one. The callback runs
/// inside progress and may post. A completion can be used again: [`add`](Self::add) arms it anew,
/// so no allocation is needed per operation.
///
/// ```
/// use std::{cell::Cell, rc::Rc};
/// let done = Rc::new(Cell::new(false));
/// let seen = Rc::clone(&done);
/// let completion = barewire::Completion::new(1, move |result| seen.set(result.is_ok()));
/// assert_eq!(completion.pending(), 1);
/// # drop((completion, done));
/// ```
///
/// A reference to a completion can be awaited: the future is ready when no operation is awaited any
/// more, and returns the [`status`](Self::status). It needs no particular executor, but something
/// must drive the worker on this thread. One task at a time can await a completion.
///
/// ```
/// # use barewire::{Completion, OperationError};
/// async fn both(completion: &Completion) -> Result<(), OperationError> {
///     completion.add(2);
///     // Post two operations with the completion here.
///     completion.await
/// }
/// ```
#[derive(Clone)]
#[must_use = "a completion that no operation gets is never counted down"]
pub struct Completion(Rc<State>);

impl Completion {
    /// A completion that waits for `count` operations. The callback gets the first error, if any
    /// operation failed.
    pub fn new(count: u32, callback: impl FnMut(Result<(), OperationError>) + 'static) -> Self {
        Self(State::new(count, Some(Box::new(callback))))
    }

    /// Creates a completion without a callback, to be polled or awaited.
    pub fn counter(count: u32) -> Self {
        Self(State::new(count, None))
    }

    /// Returns the number of operations still awaited.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.0.pending.get()
    }

    /// Awaits `n` more operations. From zero, this rearms the completion and clears an old error.
    #[inline]
    pub fn add(&self, n: u32) {
        let pending = self.0.pending.get();
        if pending == 0 {
            self.0.status.set(Ok(()));
        }
        self.0.pending.set(pending.saturating_add(n));
    }

    /// Returns the first error so far.
    ///
    /// # Errors
    /// The first [`OperationError`] of an operation counted by this completion.
    #[inline]
    pub fn status(&self) -> Result<(), OperationError> {
        self.0.status.get()
    }

    /// One awaited operation is finished. Also for callers that fold work of their own into the
    /// count, for example a post that returned [`Posted::Done`](crate::Posted::Done).
    #[inline]
    pub fn count_down(&self, result: Result<(), OperationError>) {
        if let Err(error) = result {
            self.fail(error);
        }
        // More operations than awaited: the callback has already run.
        let Some(pending) = self.0.pending.get().checked_sub(1) else { return };
        self.0.pending.set(pending);
        if pending == 0 {
            self.run();
        }
    }

    fn run(&self) {
        let Some(callback) = self.0.callback.take() else {
            // There is no callback, or it is running further up the stack.
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

/// A running callback, taken from its completion. The drop puts it back, also after a panic.
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

    /// Runs the callback again, if the count reached zero again while it was running and it then
    /// panicked.
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

/// The future of a [`Completion`].
#[derive(Debug)]
pub struct Completed<'a>(&'a Completion);

impl<'a> IntoFuture for &'a Completion {
    type Output = Result<(), OperationError>;
    type IntoFuture = Completed<'a>;

    fn into_future(self) -> Completed<'a> {
        Completed(self)
    }
}

impl Future for Completed<'_> {
    type Output = Result<(), OperationError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &self.0.0;
        if state.pending.get() == 0 {
            return Poll::Ready(state.status.get());
        }
        state.waker.set(Some(context.waker().clone()));
        // Part of the callback, so that completions that are never awaited pay nothing for it.
        if !state.wakes.replace(true) {
            let waking = Waking { state: Rc::downgrade(state), callback: state.callback.take() };
            state.callback.set(Some(waking.into_callback()));
        }
        Poll::Pending
    }
}

/// A callback that wakes the awaiting task, after the callback that it replaces.
struct Waking {
    state: Weak<State>,
    callback: Option<Callback>,
}

impl Waking {
    fn into_callback(mut self) -> Callback {
        Box::new(move |result| {
            if let Some(callback) = &mut self.callback {
                callback(result);
            }
            if let Some(state) = self.state.upgrade()
                && state.pending.get() == 0
            {
                state.wake();
            }
        })
    }
}

impl Drop for Waking {
    /// If the task polled while the callback was running, the callback was replaced already; the
    /// next poll tries again.
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            state.wakes.set(false);
            state.wake();
        }
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

/// Where a fetching atomic stores the old value. Valid once the operation is complete.
#[derive(Clone, Debug, Default)]
pub struct FetchResult(Rc<Cell<u64>>);

impl FetchResult {
    /// Creates a result that reads zero until an operation fills it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the fetched value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.set(value);
    }
}

/// A function that receives the bytes of a buffered get. Create it once and use it for many gets.
#[derive(Clone)]
pub struct Unpack(Rc<UnpackFn>);

type UnpackFn = dyn Fn(&[u8]);

impl Unpack {
    /// Wraps a function; it runs inside the post (`self`) or inside progress, before the
    /// completion.
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
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

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

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn can_be_awaited_again_and_again() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let poll = |completion: &Completion| {
            pin!(IntoFuture::into_future(completion)).poll(&mut Context::from_waker(&waker))
        };
        let calls = Rc::new(Cell::new(0));
        let seen = Rc::clone(&calls);
        let counter = Completion::counter(0);
        let with_callback = Completion::new(0, move |_| seen.set(seen.get() + 1));
        for completion in [&counter, &with_callback] {
            assert_eq!(poll(completion), Poll::Ready(Ok(())));
            for round in 1..=3 {
                completion.add(2);
                assert_eq!(poll(completion), Poll::Pending);
                assert_eq!(poll(completion), Poll::Pending);
                completion.count_down(Err(OperationError::CANCELED));
                assert_eq!(poll(completion), Poll::Pending);
                assert_eq!(woken.0.load(Ordering::Relaxed), round - 1);
                completion.count_down(Ok(()));
                assert_eq!(woken.0.load(Ordering::Relaxed), round);
                assert_eq!(poll(completion), Poll::Ready(Err(OperationError::CANCELED)));
            }
            woken.0.store(0, Ordering::Relaxed);
        }
        assert_eq!(calls.get(), 3);
    }

    #[test]
    fn a_task_that_polls_inside_of_the_callback_is_woken() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let poll = move |completion: &Completion| {
            pin!(IntoFuture::into_future(completion)).poll(&mut Context::from_waker(&waker))
        };
        let inside = poll.clone();
        let cell: Rc<Cell<Option<Completion>>> = Rc::default();
        let inner = Rc::clone(&cell);
        let completion = Completion::new(1, move |_| {
            if let Some(completion) = inner.take() {
                completion.add(1);
                assert_eq!(inside(&completion), Poll::Pending);
            }
        });
        cell.set(Some(completion.clone()));
        completion.count_down(Ok(()));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "to poll again");
        assert_eq!(poll(&completion), Poll::Pending);
        completion.count_down(Ok(()));
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!(poll(&completion), Poll::Ready(Ok(())));
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
