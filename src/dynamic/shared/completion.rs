//! Completions, results and unpackers that threads share.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::lock;
use super::wait::SharedWaitError;
use crate::base::error::OperationError;
use crate::base::panics::Panics;

type Callback = dyn Fn(Result<(), OperationError>) + Send + Sync;

struct Core {
    count: Mutex<Count>,
    /// Notified when nothing is in progress any more.
    zero: Condvar,
    callback: Option<Box<Callback>>,
}

struct Count {
    pending: usize,
    status: Result<(), OperationError>,
    /// An operation has finished since the count was last zero.
    finished: bool,
    /// Those of the futures that were polled, by the number of the future.
    wakers: BTreeMap<u64, Waker>,
    /// Numbers given to futures.
    futures: u64,
}

/// Counts operations in progress of shared workers. Cloning gives another handle to the same
/// completion; any thread may poll it, wait for it, or await it.
///
/// A post that is given a completion counts it up if the operation is in progress, and the end of
/// the operation counts it down. The callback runs on the thread that makes progress, with the
/// worker's lock held: it may post, but it cannot wait. A completion can be used again.
///
/// ```
/// # use barewire::*;
/// # use barewire::shared::*;
/// # let worker = SharedWorker::new();
/// # let domain = Domain::open(&"self/memory".parse()?)?;
/// # let interface = SharedInterface::open(&worker, &domain, &InterfaceConfig::default())?;
/// # let endpoint = interface.connect(&interface.address())?;
/// # let memory = domain.allocate(4096, Access::all())?;
/// # let key = domain.unpack_key(&memory.pack_key())?;
/// let completion = SharedCompletion::counter();
/// let slices = [memory.slice(0, 1024)?];
/// let _ = endpoint.put_zcopy(&slices, memory.address() + 2048, &key, Some(&completion))?;
/// worker.wait_for(&completion, None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a completion that no operation gets counts nothing"]
pub struct SharedCompletion(Arc<Core>);

impl SharedCompletion {
    /// Creates a completion. The callback gets the first error, if any operation failed. It may run
    /// on two threads at the same time if operations of two workers have the same completion.
    pub fn new(callback: impl Fn(Result<(), OperationError>) + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(callback)))
    }

    /// Creates a completion without a callback, to be polled, waited for or awaited.
    pub fn counter() -> Self {
        Self::with(None)
    }

    fn with(callback: Option<Box<Callback>>) -> Self {
        let count = Count {
            pending: 0,
            status: Ok(()),
            finished: false,
            wakers: BTreeMap::new(),
            futures: 0,
        };
        Self(Arc::new(Core { count: Mutex::new(count), zero: Condvar::new(), callback }))
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        // No user code runs under this lock.
        self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of operations in progress.
    pub fn pending(&self) -> usize {
        self.count().pending
    }

    /// Returns the first error since the completion last began to count from zero.
    ///
    /// # Errors
    /// The first [`OperationError`] of an operation counted by this completion.
    pub fn status(&self) -> Result<(), OperationError> {
        self.count().status
    }

    /// Sleeps until no operation is in progress. It makes no progress: other threads must do so.
    /// [`SharedWorker::wait_for`](super::SharedWorker::wait_for) makes progress itself.
    ///
    /// # Errors
    /// [`SharedWaitError::TimedOut`], [`SharedWaitError::Operation`] if an operation failed,
    /// [`SharedWaitError::InCallback`]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), SharedWaitError> {
        if lock::is_held() {
            return Err(SharedWaitError::InCallback);
        }
        let count = self.count();
        let is_pending = |count: &mut Count| count.pending > 0;
        let count = if let Some(timeout) = timeout {
            let waited = self.0.zero.wait_timeout_while(count, timeout, is_pending);
            waited.unwrap_or_else(PoisonError::into_inner).0
        } else {
            let waited = self.0.zero.wait_while(count, is_pending);
            waited.unwrap_or_else(PoisonError::into_inner)
        };
        if count.pending > 0 { Err(SharedWaitError::TimedOut) } else { Ok(count.status?) }
    }

    /// Counts an operation that is about to be posted.
    pub(super) fn begin(&self) {
        let mut count = self.count();
        if count.pending == 0 {
            count.status = Ok(());
            count.finished = false;
        }
        count.pending += 1;
    }

    /// The operation was done at once, or refused.
    pub(super) fn undo(&self) {
        self.end(None);
    }

    /// The operation is finished.
    pub(super) fn finish(&self, result: Result<(), OperationError>) {
        self.end(Some(result));
    }

    fn end(&self, result: Option<Result<(), OperationError>>) {
        let mut count = self.count();
        count.pending = count.pending.saturating_sub(1);
        count.finished |= result.is_some();
        if let (Some(Err(error)), Ok(())) = (result, count.status) {
            count.status = Err(error);
        }
        if count.pending > 0 {
            return;
        }
        let (status, finished) = (count.status, count.finished);
        let wakers = std::mem::take(&mut count.wakers);
        drop(count);
        self.0.zero.notify_all();
        let mut panics = Panics::default();
        for waker in wakers.into_values() {
            panics.catch(|| waker.wake());
        }
        if let Some(callback) = &self.0.callback
            && finished
        {
            panics.catch(|| callback(status));
        }
    }
}

/// The future of a [`SharedCompletion`]. It is ready when no operation is in progress, and returns
/// the status. It makes no progress: a thread or a task must.
#[derive(Debug)]
pub struct SharedCompleted<'a> {
    completion: &'a SharedCompletion,
    /// The number of its waker, once it was polled.
    number: Option<u64>,
}

impl<'a> IntoFuture for &'a SharedCompletion {
    type Output = Result<(), OperationError>;
    type IntoFuture = SharedCompleted<'a>;

    fn into_future(self) -> SharedCompleted<'a> {
        SharedCompleted { completion: self, number: None }
    }
}

impl Future for SharedCompleted<'_> {
    type Output = Result<(), OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Wakers are cloned and dropped without the lock: they run code of the executor.
        let waker = context.waker().clone();
        let mut count = self.completion.count();
        if count.pending == 0 {
            return Poll::Ready(count.status);
        }
        let number = *self.number.get_or_insert_with(|| {
            count.futures += 1;
            count.futures
        });
        let old = count.wakers.insert(number, waker);
        drop(count);
        drop(old);
        Poll::Pending
    }
}

impl Drop for SharedCompleted<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.completion.count().wakers.remove(&number);
            drop(waker);
        }
    }
}

impl fmt::Debug for SharedCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        f.debug_struct("SharedCompletion")
            .field("pending", &count.pending)
            .field("status", &count.status)
            .finish_non_exhaustive()
    }
}

/// Where a fetching atomic of a shared worker stores the old value. Valid once the operation is
/// complete.
#[derive(Clone, Debug, Default)]
#[must_use = "the result of the operation is read from it"]
pub struct SharedFetchResult(Arc<AtomicU64>);

impl SharedFetchResult {
    /// Creates a result that reads zero until an operation fills it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the fetched value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// A function that receives the bytes of a buffered get of a shared worker.
#[derive(Clone)]
pub struct SharedUnpack(Arc<UnpackFn>);

type UnpackFn = dyn Fn(&[u8]) + Send + Sync;

impl SharedUnpack {
    /// Wraps a function; it runs inside the post (`self`) or inside progress on any thread, before
    /// the completion.
    pub fn new(unpack: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(unpack))
    }

    pub(super) fn call(&self, bytes: &[u8]) {
        (self.0)(bytes);
    }
}

impl fmt::Debug for SharedUnpack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedUnpack")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Task {
        woken: AtomicUsize,
        panics: bool,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics, "expected by the test");
        }
    }

    fn poll(future: Pin<&mut SharedCompleted<'_>>, task: &Arc<Task>) -> Poll<()> {
        let waker = Waker::from(Arc::clone(task));
        future.poll(&mut Context::from_waker(&waker)).map(drop)
    }

    #[test]
    fn a_future_that_is_dropped_leaves_no_waker() {
        let completion = SharedCompletion::counter();
        completion.begin();
        let task = Arc::new(Task::default());
        let mut kept = pin!((&completion).into_future());
        assert!(poll(kept.as_mut(), &task).is_pending());
        for _ in 0..10 {
            let other = Arc::new(Task::default());
            let mut future = pin!((&completion).into_future());
            assert!(poll(future.as_mut(), &other).is_pending());
            assert!(poll(future.as_mut(), &other).is_pending());
            assert_eq!(completion.count().wakers.len(), 2, "one for each future");
        }
        assert_eq!(completion.count().wakers.len(), 1);
        completion.finish(Ok(()));
        assert_eq!(task.woken.load(Ordering::Relaxed), 1);
        assert!(poll(kept, &task).is_ready());
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_others_from_running() {
        let called = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&called);
        let completion = SharedCompletion::new(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        completion.begin();
        let tasks = [true, false].map(|panics| Arc::new(Task { panics, ..Task::default() }));
        let [mut first, mut second] =
            [pin!((&completion).into_future()), pin!((&completion).into_future())];
        assert!(poll(first.as_mut(), &tasks[0]).is_pending());
        assert!(poll(second.as_mut(), &tasks[1]).is_pending());
        let finish = AssertUnwindSafe(|| completion.finish(Ok(())));
        assert!(std::panic::catch_unwind(finish).is_err());
        assert!(tasks.iter().all(|task| task.woken.load(Ordering::Relaxed) == 1));
        assert_eq!(called.load(Ordering::Relaxed), 1);
    }
}
