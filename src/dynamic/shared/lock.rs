//! The lock of a shared worker: reentrant, so that handlers and callbacks can post.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ticket::Tickets;
use super::wait::Wakeup;
use crate::base::fork::Maker;
use crate::dynamic::worker::Worker;

thread_local! {
    /// Number of locks that this thread holds. Its address identifies the thread.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether this thread holds the lock of any shared worker: it runs a handler or a
/// callback.
pub(super) fn is_held() -> bool {
    HELD.with(|held| held.get() > 0)
}

/// A worker, its lock, and what all handles share.
pub(super) struct Shared {
    mutex: Mutex<()>,
    /// Notified when events were processed, and when the sleeper's seat is free.
    condition: Condvar,
    /// The address of `HELD` of the thread that holds the mutex; 0 if none does.
    owner: AtomicUsize,
    /// A forked child does not take the lock: a thread that exists only in the parent may hold it.
    maker: Maker,
    state: UnsafeCell<ManuallyDrop<State>>,
}

/// What only the holder of the lock accesses.
#[derive(Default)]
pub(super) struct State {
    /// `None` after the last `SharedWorker` was dropped.
    pub(super) worker: RefCell<Option<Worker>>,
    pub(super) tickets: Rc<Tickets>,
    /// The longest `busy_poll` of the interfaces.
    pub(super) busy_poll: Cell<Duration>,
    /// Number of events since the worker was created.
    pub(super) events: Cell<usize>,
    /// A thread is asleep on the worker's descriptors.
    pub(super) seat_taken: Cell<bool>,
    /// That thread has to be woken after the next change, to arm the worker again.
    pub(super) armed: Cell<bool>,
    /// Number of threads that wait for the condition.
    pub(super) followers: Cell<usize>,
    pub(super) wakeup: OnceCell<Arc<Wakeup>>,
}

// SAFETY: `State` and the objects in `Handle`s have reference counts and cells that are not atomic.
// All of these are created, accessed and dropped only by a thread that holds the mutex:
// - `state` is private to this file, and `Guard` alone derives a reference from it. A `Guard`
//   exists while its thread holds the mutex, and is not `Send`.
// - A `Handle` gives its object only to a caller with a `Guard`, and its drop takes the lock.
// - User code never gets an object of the worker: handlers get a `SharedMessage`, pending requests
//   a `SharedEndpoint`, other callbacks plain values. So it cannot clone or keep one. The public
//   functions return plain values or handles.
// - The closures that the objects store and the worker may run or drop on any thread are `Send`
//   (`SharedInterface::set_handler`, `SharedEndpoint::pending_add`) or `Send + Sync`
//   (`SharedCompletion`, `SharedUnpack`).
// - `Domain`, `Memory` and `RemoteKey`, which users pass in, are `Send + Sync` and thus share
//   nothing with the worker that is not atomic.
// - Interfaces are not registered with the fork handler of their thread (`fork::unwatched`), which
//   would access their reference counts without the lock.
// - The last handle drops the state. `Arc` orders this after all other accesses.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        let state = State { worker: RefCell::new(Some(Worker::new())), ..State::default() };
        Arc::new(Self {
            mutex: Mutex::new(()),
            condition: Condvar::new(),
            owner: AtomicUsize::new(0),
            maker: Maker::this_process(),
            state: UnsafeCell::new(ManuallyDrop::new(state)),
        })
    }

    /// Takes the lock, for any change of the state. `None` in a forked child.
    #[inline]
    pub(super) fn enter(&self) -> Option<Guard<'_>> {
        self.lock(true)
    }

    /// Takes the lock for a caller that changes nothing for which the sleeper must wake up.
    pub(super) fn enter_quietly(&self) -> Option<Guard<'_>> {
        self.lock(false)
    }

    #[inline]
    fn lock(&self, wakes: bool) -> Option<Guard<'_>> {
        if self.maker.is_parent() {
            return None;
        }
        let this_thread = HELD.with(|held| std::ptr::from_ref(held).addr());
        // Only this thread stores its own address, so a relaxed load cannot mistake another's.
        if self.owner.load(Ordering::Relaxed) == this_thread {
            return Some(Guard { shared: self, mutex: None, wakes });
        }
        // A panic of user code leaves the objects consistent, as without a lock.
        let mutex = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.own(mutex, wakes))
    }

    #[inline]
    fn own<'a>(&'a self, mutex: MutexGuard<'a, ()>, wakes: bool) -> Guard<'a> {
        let this_thread = HELD.with(|held| {
            held.set(held.get() + 1);
            std::ptr::from_ref(held).addr()
        });
        self.owner.store(this_thread, Ordering::Relaxed);
        Guard { shared: self, mutex: Some(mutex), wakes }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.maker.is_parent() {
            // SAFETY: it is dropped once, here, and `&mut self` is the only reference.
            unsafe { ManuallyDrop::drop(self.state.get_mut()) };
        }
    }
}

/// The right to access the state. Further guards of the same thread nest inside.
pub(super) struct Guard<'a> {
    shared: &'a Shared,
    /// `None` if the guard is nested.
    mutex: Option<MutexGuard<'a, ()>>,
    wakes: bool,
}

impl Guard<'_> {
    /// Makes progress; does nothing inside of progress.
    #[inline(always)]
    pub(super) fn progress(&self) -> usize {
        let Ok(mut worker) = self.worker.try_borrow_mut() else { return 0 };
        let Some(worker) = worker.as_mut() else { return 0 };
        let events = worker.progress();
        if events > 0 {
            self.events.set(self.events.get().wrapping_add(events));
            self.tickets.news.set(true);
        }
        events
    }

    /// Releases the lock until the condition is notified, or `timeout` has passed. `None` if the
    /// guard is nested.
    pub(super) fn sleep(mut self, timeout: Option<Duration>) -> Option<Self> {
        let (shared, mutex) = (self.shared, self.mutex.take()?);
        self.followers.set(self.followers.get() + 1);
        self.release();
        let mutex = match timeout {
            Some(timeout) => {
                let woken = shared.condition.wait_timeout(mutex, timeout);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.condition.wait(mutex).unwrap_or_else(PoisonError::into_inner),
        };
        // It has changed nothing since.
        let guard = shared.own(mutex, false);
        guard.followers.set(guard.followers.get() - 1);
        Some(guard)
    }

    /// What precedes the release of the mutex.
    #[inline]
    fn release(&self) {
        if self.wakes && self.armed.get() {
            self.wake_sleeper();
        }
        if self.tickets.news.replace(false) && self.followers.get() > 0 {
            self.shared.condition.notify_all();
        }
        self.shared.owner.store(0, Ordering::Relaxed);
        HELD.with(|held| held.set(held.get() - 1));
    }

    #[cold]
    fn wake_sleeper(&self) {
        self.armed.set(false);
        if let Some(wakeup) = self.wakeup.get() {
            wakeup.wake();
        }
    }
}

impl Deref for Guard<'_> {
    type Target = State;

    #[inline(always)]
    fn deref(&self) -> &State {
        // SAFETY: this thread holds the mutex: by `self.mutex`, or, if it is nested, by a guard
        // further up the stack. All references to the state are shared, and die with a guard.
        unsafe { &*self.shared.state.get() }
    }
}

impl Drop for Guard<'_> {
    /// The store that releases the mutex also drains the write-combining buffers of an x86 CPU (a
    /// locked instruction), so that doorbells of two threads reach the device in order.
    #[inline]
    fn drop(&mut self) {
        if self.mutex.is_some() {
            self.release();
        }
    }
}

/// An object of a worker. Only a holder of the lock accesses it; its drop takes the lock.
pub(super) struct Handle<T> {
    pub(super) shared: Arc<Shared>,
    object: ManuallyDrop<T>,
}

// SAFETY: the object is accessed and dropped only with the lock, see `Shared`. The exception is the
// data of kept messages (`SharedKeptMessage::deref`), which nobody writes.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Wraps an object of the worker of `guard`, which `shared` must be, too.
    pub(super) fn new(shared: &Arc<Shared>, guard: &Guard<'_>, object: T) -> Self {
        debug_assert!(std::ptr::eq(&raw const **shared, guard.shared));
        Self { shared: Arc::clone(shared), object: ManuallyDrop::new(object) }
    }

    /// Takes the lock. `None` in a forked child.
    #[inline(always)]
    pub(super) fn lock(&self) -> Option<Guard<'_>> {
        self.shared.enter()
    }

    /// Returns the object. A post calls its methods in this way instead of by [`Self::with`], whose
    /// closure the compiler might not inline. The object is not passed to user code.
    ///
    /// # Safety
    /// `guard` was returned by [`Self::lock`] of this handle.
    #[inline(always)]
    pub(super) unsafe fn locked<'a>(&'a self, guard: &'a Guard<'_>) -> &'a T {
        debug_assert!(std::ptr::eq(&raw const *self.shared, guard.shared));
        &self.object
    }

    /// Runs `call` with the object and the lock. `None` in a forked child. `call` does not pass the
    /// object to user code.
    #[inline]
    pub(super) fn with<R>(&self, call: impl FnOnce(&Guard<'_>, &T) -> R) -> Option<R> {
        let guard = self.shared.enter()?;
        Some(call(&guard, &self.object))
    }

    /// Returns the object without the lock.
    ///
    /// # Safety
    /// The caller accesses nothing of it that anyone writes, and no reference count.
    pub(super) unsafe fn unlocked(&self) -> &T {
        &self.object
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Some(_guard) = self.shared.enter() {
            // SAFETY: it is dropped once, here, and not accessed later.
            unsafe { ManuallyDrop::drop(&mut self.object) };
        }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
