//! Completions, fetch results and unpackers: how an operation in progress reports its end.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::base::caller::{self, CompletionRecord};
use crate::base::error::OperationError;
use crate::base::panics::Panics;

type Callback = Box<dyn FnMut(Result<(), OperationError>)>;

/// Whether the callback of a completion is running.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Absent,
    Idle,
    Running,
    /// It is running, and the count reached zero again meanwhile.
    Again,
}

/// The state of a completion that this library allocated. It exists while something is awaited, a
/// handle refers to it, or its callback is running.
#[repr(C)]
struct State {
    /// Counts the operations and holds that are awaited. Its status is that of the current count.
    record: CompletionRecord,
    /// Number of [`Completion`]s that refer to this state.
    handles: Cell<usize>,
    /// The last error: of the current count, if its record has a status, else of the one before.
    status: Cell<Result<(), OperationError>>,
    phase: Cell<Phase>,
    /// Accessed by [`Running`] only, of which there is at most one.
    callback: UnsafeCell<Option<Callback>>,
    /// The task that awaits the completion.
    waker: Cell<Option<Waker>>,
}

impl State {
    /// Returns whether nothing is awaited.
    fn is_idle(&self) -> bool {
        self.record.count.get() == 0
    }

    /// Returns the first error since the count was last zero.
    fn status(&self) -> Result<(), OperationError> {
        if self.is_idle() || self.record.status.get() != 0 { self.status.get() } else { Ok(()) }
    }

    /// Returns the awaiting task, if nothing is awaited any more.
    fn take_waker(&self) -> Option<Waker> {
        if self.is_idle() { self.waker.take() } else { None }
    }

    /// More operations are in progress than the count can hold: it is no longer a proof that the
    /// state is unused, so that the state is never freed.
    #[cold]
    fn keep_forever(&self) {
        self.handles.set(usize::MAX);
    }

    /// The count reached zero.
    ///
    /// # Safety
    /// `this` is a state that exists.
    unsafe fn run(this: NonNull<Self>) {
        // SAFETY: contract of this function.
        let state = unsafe { this.as_ref() };
        if state.record.status.replace(0) == 0 {
            state.status.set(Ok(()));
        }
        match state.phase.get() {
            Phase::Absent => {
                let waker = state.waker.take();
                // SAFETY: the state exists until here, and is not accessed any more.
                unsafe { Self::free_unused(this) };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Phase::Idle => {
                state.phase.set(Phase::Running);
                Running(this).run();
            }
            Phase::Running | Phase::Again => {
                state.phase.set(Phase::Again);
                if let Some(waker) = state.waker.take() {
                    waker.wake();
                }
            }
        }
    }

    /// Frees the state if nothing is awaited, no handle refers to it, and its callback is not
    /// running.
    ///
    /// # Safety
    /// `this` is a state that exists, and the caller does not access it any more.
    #[inline(always)]
    unsafe fn free_unused(this: NonNull<Self>) {
        // SAFETY: contract of this function.
        let state = unsafe { this.as_ref() };
        let is_running = matches!(state.phase.get(), Phase::Running | Phase::Again);
        if state.handles.get() == 0 && state.is_idle() && !is_running {
            // SAFETY: the pointer comes from `Box::leak`. No handle refers to the state, no
            // `Counted`, since nothing is awaited and the count has never overflowed, and no
            // `Running`.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }
}

/// Counts operations in progress, and runs a callback when the last of them is finished.
///
/// A post that is given a completion counts it up if, and only if, the operation is in progress:
/// it returns [`Posted::InProgress`](crate::Posted::InProgress). The end of the operation counts it
/// down. The callback runs inside progress and may post. A completion can be used again and again,
/// so no allocation is needed per operation.
///
/// ```
/// # use barewire::*;
/// use std::{cell::Cell, rc::Rc};
/// # let mut worker = Worker::new();
/// # let domain = Domain::open(&"self/memory".parse()?)?;
/// # let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// # let endpoint = interface.connect(&interface.address())?;
/// # let memory = domain.allocate(4096, Access::all())?;
/// # let (key, remote) = (domain.unpack_key(&memory.pack_key())?, memory.address() + 2048);
/// let done = Rc::new(Cell::new(false));
/// let seen = Rc::clone(&done);
/// let completion = Completion::new(move |result| seen.set(result.is_ok()));
///
/// // Without the hold, the callback would not run if both puts were done at once.
/// let hold = completion.hold();
/// for part in [0, 1024] {
///     let slice = [memory.slice(part, 1024)?];
///     let _ = endpoint.put_zcopy(&slice, remote + part as u64, &key, Some(&completion))?;
/// }
/// drop(hold);
/// worker.wait_for(&completion)?;
/// assert!(done.get());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A reference to a completion can be awaited: the future is ready when no operation is in
/// progress, and returns the [`status`](Self::status). It needs no particular executor, but
/// something must drive the worker on this thread. One task at a time can await a completion.
///
/// ```
/// # use barewire::{Completion, OperationError};
/// async fn both(completion: &Completion) -> Result<(), OperationError> {
///     // Post two operations with the completion here.
///     completion.await
/// }
/// ```
#[must_use = "a completion that no operation gets counts nothing"]
pub struct Completion(NonNull<CompletionRecord>);

impl Completion {
    /// Creates a completion. The callback gets the first error, if any operation failed.
    pub fn new(callback: impl FnMut(Result<(), OperationError>) + 'static) -> Self {
        Self::with(Some(Box::new(callback)))
    }

    /// Creates a completion without a callback, to be polled or awaited.
    pub fn counter() -> Self {
        Self::with(None)
    }

    fn with(callback: Option<Callback>) -> Self {
        let state = Box::new(State {
            record: CompletionRecord::of_state(),
            handles: Cell::new(1),
            status: Cell::new(Ok(())),
            phase: Cell::new(if callback.is_none() { Phase::Absent } else { Phase::Idle }),
            callback: UnsafeCell::new(callback),
            waker: Cell::new(None),
        });
        Self(NonNull::from(Box::leak(state)).cast())
    }

    /// Creates a completion whose count is in memory of the caller: no allocation, and freeing it
    /// is the caller's task. A task that awaits it is woken, and polls it, again and again.
    ///
    /// # Safety
    /// Until no operation or [`Hold`] that the record counts is left, and while the result or a
    /// clone of it exists:
    /// - `record` is valid for reads and writes, is not moved, and is accessed by this thread only;
    /// - its function is not null, and may be called with `record` from every function of this
    ///   library that finishes operations: progress, posts and drops;
    /// - it counts at most `i32::MAX` operations.
    ///
    /// The function may free the record when it is called, unless the result or a clone of it still
    /// exists.
    #[inline(always)]
    pub unsafe fn from_record(record: NonNull<CompletionRecord>) -> Self {
        Self(record)
    }

    #[inline(always)]
    fn record(&self) -> &CompletionRecord {
        // SAFETY: a state is freed by the drop of the last handle, or later, and only accessed by
        // shared reference before. A record of the caller is valid while this handle exists
        // (contract of `from_record`).
        unsafe { self.0.as_ref() }
    }

    /// Returns the state, unless the record is the caller's.
    #[inline(always)]
    fn state(&self) -> Option<&State> {
        // SAFETY: only the record of a state has no function (contract of `from_record`). It is the
        // first field of the state, and the pointer is one to the whole state, which `with` made.
        self.record().is_of_state().then(|| unsafe { self.0.cast().as_ref() })
    }

    /// Returns the number of operations in progress and of holds.
    #[inline]
    pub fn pending(&self) -> usize {
        self.record().count.get() as u32 as usize
    }

    /// Returns the first error since the completion last began to count from zero. For a
    /// [`CompletionRecord`], it is the first error since its status was reset, as far as the status
    /// code tells.
    ///
    /// # Errors
    /// The first [`OperationError`] of an operation counted by this completion.
    #[inline]
    pub fn status(&self) -> Result<(), OperationError> {
        self.state().map_or_else(|| self.record().result(), State::status)
    }

    /// Keeps the completion pending until the hold is dropped. While several operations are posted,
    /// progress then runs the callback only after the last one; and the callback runs also if every
    /// operation was done at once.
    ///
    /// # Panics
    /// If there are more holds than a program can store.
    pub fn hold(&self) -> Hold {
        assert!(self.pending() < i32::MAX as usize / 2, "too many holds of one completion");
        Hold { counted: Some(self.begin()), thread: PhantomData }
    }

    /// Counts an operation that is in progress now.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Counted {
        let (count, overflows) = self.record().count.get().overflowing_add(1);
        self.record().count.set(count);
        if overflows && let Some(state) = self.state() {
            state.keep_forever();
        }
        Counted(self.0)
    }
}

impl Clone for Completion {
    fn clone(&self) -> Self {
        if let Some(state) = self.state() {
            // A count that reaches the maximum stays there, and the state is never freed.
            state.handles.set(state.handles.get().saturating_add(1));
        }
        Self(self.0)
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(state) = self.state() else { return };
        let handles = state.handles.get();
        if handles < usize::MAX {
            state.handles.set(handles - 1);
            // SAFETY: the state exists, since this handle referred to it until here.
            unsafe { State::free_unused(self.0.cast()) };
        }
    }
}

/// One operation in progress that a [`Completion`] counts. It keeps the completion's state alive.
/// Dropped instead of finished, as in a forked child or in [`caller::abandon`], it ends as
/// cancelled, and the callback does not run. A record of the caller is then not accessed.
#[must_use]
pub(crate) struct Counted(NonNull<CompletionRecord>);

impl Counted {
    /// The operation is finished.
    #[inline]
    pub(crate) fn finish(self, result: Result<(), OperationError>) {
        let this = ManuallyDrop::new(self);
        if result.is_err() && caller::is_abandoned() {
            return drop(ManuallyDrop::into_inner(this));
        }
        if this.end(result) {
            // SAFETY: nothing has run since the count reached zero, so that the record exists.
            unsafe { reached_zero(this.0) };
        }
    }

    /// The cancelling flush is finished, which is no error.
    pub(crate) fn finish_canceled(self) {
        if !caller::is_abandoned() {
            self.finish(Ok(()));
        }
    }

    /// Counts down, once, and returns whether this was the last.
    #[inline(always)]
    fn end(&self, result: Result<(), OperationError>) -> bool {
        // SAFETY: the state is not freed while something is awaited, and this is awaited until
        // here: `finish` and the drop call this once. No reference to the state is exclusive. A
        // record of the caller is valid as long (contract of `from_record`).
        let record = unsafe { self.0.as_ref() };
        if let Err(error) = result {
            self.fail(error);
        }
        let count = record.count.get().wrapping_sub(1);
        record.count.set(count);
        count == 0
    }

    #[cold]
    fn fail(&self, error: OperationError) {
        // SAFETY: as in `end`.
        let record = unsafe { self.0.as_ref() };
        if record.fail(error) && record.is_of_state() {
            // SAFETY: as in `Completion::state`.
            unsafe { self.0.cast::<State>().as_ref() }.status.set(Err(error));
        }
    }
}

/// The last operation or hold of a count is finished. A separate function, so that the callers need
/// fewer registers.
///
/// # Safety
/// `record` is the record of a [`Completion`]. Its state has not been freed since it was awaited.
#[inline(never)]
unsafe fn reached_zero(record: NonNull<CompletionRecord>) {
    // SAFETY: contract of this function. A function may be called with its record (contract of
    // `Completion::from_record`), to which no reference exists then; a record without a function is
    // that of a state.
    unsafe {
        match record.as_ref().function() {
            Some(function) => function(record),
            None => State::run(record.cast()),
        }
    }
}

impl Drop for Counted {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: the state is not freed while this is awaited; of a record of the caller, only
        // the function is read.
        if unsafe { self.0.as_ref() }.is_of_state() && self.end(Err(OperationError::CANCELED)) {
            // SAFETY: as in `finish`.
            unsafe {
                // The next count begins without an error.
                self.0.as_ref().status.set(0);
                State::free_unused(self.0.cast());
            }
        }
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

/// Keeps a [`Completion`] pending; see [`Completion::hold`]. Dropping it counts the completion
/// down.
#[must_use = "dropping the hold ends it"]
pub struct Hold {
    counted: Option<Counted>,
    /// It belongs to its thread.
    thread: PhantomData<Rc<()>>,
}

impl Hold {
    /// Ends the hold with a result, as if it were an operation: for callers that add work of their
    /// own to a completion.
    pub fn finish(mut self, result: Result<(), OperationError>) {
        if let Some(counted) = self.counted.take() {
            counted.finish(result);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            counted.finish(Ok(()));
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

/// A running callback. The drop ends it, also after a panic.
struct Running(NonNull<State>);

impl Running {
    #[inline(always)]
    fn state(&self) -> &State {
        // SAFETY: the state exists while its callback is running.
        unsafe { self.0.as_ref() }
    }

    fn run(&self) {
        // SAFETY: the callback is accessed here only, and not twice at the same time: `State::run`
        // makes no other `Running` before the drop of this one, which calls this only after a panic
        // has left this function.
        let Some(callback) = (unsafe { &mut *self.state().callback.get() }) else { return };
        loop {
            callback(self.state().status.get());
            if self.state().phase.get() == Phase::Running {
                break;
            }
            self.state().phase.set(Phase::Running);
        }
    }

    /// Runs the callback again, if the count reached zero again while it was running and it then
    /// panicked.
    #[cold]
    #[inline(never)]
    fn run_after_panic(&self) {
        while self.state().phase.get() == Phase::Again {
            self.state().phase.set(Phase::Running);
            Panics::default().catch(|| self.run());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.state().phase.get() == Phase::Again {
            self.run_after_panic();
        }
        self.state().phase.set(Phase::Idle);
        let waker = self.state().take_waker();
        // SAFETY: the state exists until here, and is not accessed any more.
        unsafe { State::free_unused(self.0) };
        if let Some(waker) = waker {
            waker.wake();
        }
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
        if self.0.pending() == 0 {
            return Poll::Ready(self.0.status());
        }
        match self.0.state() {
            Some(state) => state.waker.set(Some(context.waker().clone())),
            None => context.waker().wake_by_ref(),
        }
        Poll::Pending
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
#[must_use = "the result of the operation is read from it"]
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
        let completion = Completion::new(move |result| {
            assert_eq!(result, Err(OperationError::CANCELED));
            calls.set(calls.get() + 1);
        });
        let (first, second) = (completion.begin(), completion.begin());
        first.finish(Err(OperationError::CANCELED));
        assert_eq!((completion.pending(), seen.get()), (1, 0));
        second.finish(Ok(()));
        assert_eq!((completion.pending(), seen.get()), (0, 1));
        assert_eq!(completion.status(), Err(OperationError::CANCELED));
        let third = completion.begin();
        assert_eq!(completion.status(), Ok(()));
        third.finish(Err(OperationError::CANCELED));
    }

    #[test]
    fn a_hold_delays_the_callback_and_alone_makes_it_run() {
        let seen = Rc::new(Cell::new(0));
        let calls = Rc::clone(&seen);
        let completion = Completion::new(move |_| calls.set(calls.get() + 1));
        drop(completion.hold());
        assert_eq!(seen.get(), 1);
        let hold = completion.hold();
        completion.begin().finish(Ok(()));
        assert_eq!((completion.pending(), seen.get()), (1, 1));
        hold.finish(Err(OperationError::CANCELED));
        assert_eq!((completion.pending(), seen.get()), (0, 2));
        assert_eq!(completion.status(), Err(OperationError::CANCELED));
    }

    #[test]
    fn lives_as_long_as_it_is_awaited_or_has_a_handle() {
        let dropped = Rc::new(());
        let with = |dropped: &Rc<()>| {
            let inside = Rc::clone(dropped);
            Completion::new(move |_| assert_eq!(Rc::strong_count(&inside), 2))
        };
        let completion = with(&dropped);
        let operation = completion.begin();
        drop(completion.clone());
        drop(completion);
        assert_eq!(Rc::strong_count(&dropped), 2);
        operation.finish(Ok(()));
        assert_eq!(Rc::strong_count(&dropped), 1, "by the last operation");
        let completion = with(&dropped);
        completion.begin().finish(Ok(()));
        assert_eq!(Rc::strong_count(&dropped), 2);
        let hold = completion.hold();
        drop(completion);
        drop(hold);
        assert_eq!(Rc::strong_count(&dropped), 1, "by the hold");
    }

    #[test]
    fn an_operation_that_is_dropped_is_cancelled_without_a_callback() {
        let completion = Completion::new(|_| panic!("nothing has finished"));
        drop(completion.begin());
        assert_eq!((completion.pending(), completion.status()), (0, Err(OperationError::CANCELED)));
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
        let counter = Completion::counter();
        let with_callback = Completion::new(move |_| seen.set(seen.get() + 1));
        for completion in [&counter, &with_callback] {
            assert_eq!(poll(completion), Poll::Ready(Ok(())), "nothing is in progress");
            for round in 1..=3 {
                let (first, second) = (completion.begin(), completion.begin());
                assert_eq!(poll(completion), Poll::Pending);
                assert_eq!(poll(completion), Poll::Pending);
                first.finish(Err(OperationError::CANCELED));
                assert_eq!(poll(completion), Poll::Pending);
                assert_eq!(woken.0.load(Ordering::Relaxed), round - 1);
                second.finish(Ok(()));
                assert_eq!(woken.0.load(Ordering::Relaxed), round);
                assert_eq!(poll(completion), Poll::Ready(Err(OperationError::CANCELED)));
            }
            woken.0.store(0, Ordering::Relaxed);
        }
        assert_eq!(calls.get(), 3);
    }

    /// A completion whose callback gets the completion the first time that it runs.
    fn with_itself(first: impl Fn(&Completion) + 'static) -> Completion {
        let cell: Rc<Cell<Option<Completion>>> = Rc::default();
        let inner = Rc::clone(&cell);
        let completion = Completion::new(move |_| {
            if let Some(completion) = inner.take() {
                first(&completion);
            }
        });
        cell.set(Some(completion.clone()));
        completion
    }

    #[test]
    fn a_task_that_polls_inside_of_the_callback_is_woken_at_the_end() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let poll = move |completion: &Completion| {
            pin!(IntoFuture::into_future(completion)).poll(&mut Context::from_waker(&waker))
        };
        let (inside, held) = (poll.clone(), Rc::new(Cell::new(None)));
        let hold = Rc::clone(&held);
        let completion = with_itself(move |completion| {
            hold.set(Some(completion.hold()));
            assert_eq!(inside(completion), Poll::Pending);
        });
        completion.begin().finish(Ok(()));
        assert_eq!((completion.pending(), woken.0.load(Ordering::Relaxed)), (1, 0));
        drop(held.take());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(&completion), Poll::Ready(Ok(())));
    }

    #[test]
    fn callback_may_drop_the_last_handle() {
        let completion = with_itself(|_| ());
        let operation = completion.begin();
        drop(completion);
        operation.finish(Ok(()));
    }

    #[test]
    fn a_callback_that_panics_runs_again() {
        let seen = Rc::new(Cell::new(0));
        let calls = Rc::clone(&seen);
        let cell: Rc<Cell<Option<Completion>>> = Rc::default();
        let inner = Rc::clone(&cell);
        let completion = Completion::new(move |_| {
            calls.set(calls.get() + 1);
            if let Some(completion) = inner.take() {
                drop(completion.hold());
            }
            assert!(calls.get() > 2, "expected by the test");
        });
        cell.set(Some(completion.clone()));
        let hold = std::panic::AssertUnwindSafe(|| drop(completion.hold()));
        assert!(std::panic::catch_unwind(hold).is_err());
        assert_eq!(seen.get(), 2, "it was done twice");
        drop(completion.hold());
        assert_eq!(seen.get(), 3);
    }
}
