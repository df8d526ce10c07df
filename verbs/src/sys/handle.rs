//! Owned pointers to objects of libibverbs and libmlx5.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use super::status;

/// An object of libibverbs or libmlx5. Dropping it first destroys the object and then releases the
/// objects from which it was created.
pub(crate) struct Handle<T, P> {
    raw: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
    alive: bool,
    /// The process that created the object. The kernel would also let a forked child destroy it.
    process: u32,
    parents: P,
}

// SAFETY: both libraries are thread-safe: any thread may use an object and may destroy it. `P` may
// be sent to another thread.
unsafe impl<T, P: Send> Send for Handle<T, P> {}
// SAFETY: calls with the same object from several threads are serialised by locks in the library.
// `P` may be shared between threads.
unsafe impl<T, P: Sync> Sync for Handle<T, P> {}

impl<T, P> Handle<T, P> {
    /// Takes ownership of the object. If `raw` is null, returns the error in errno.
    ///
    /// # Safety
    /// `raw` must be null, or an object that no other code destroys and for which `destroy` is the
    /// destructor. `parents` must keep the objects alive from which it was created.
    pub(super) unsafe fn take(
        raw: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
        parents: P,
    ) -> io::Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, destroy, alive: true, process: std::process::id(), parents })
    }

    /// The pointer to the object. It is valid unless [`Self::destroy`] has succeeded.
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// The objects from which this one was created.
    pub(crate) fn parents(&self) -> &P {
        &self.parents
    }

    /// Destroys the object now. After an error it still exists. After success the object must not
    /// be used any more; further calls do nothing. Fails in a forked child, whose parent owns the
    /// object.
    pub(super) fn destroy(&mut self) -> io::Result<()> {
        if self.process != std::process::id() {
            return Err(io::Error::other("the object belongs to the parent process"));
        }
        if self.alive {
            // SAFETY: `alive` shows that the object was not destroyed yet, and by the contract of
            // `take` no other code destroys it and `destroy` is its destructor.
            status(unsafe { (self.destroy)(self.raw.as_ptr()) })?;
            self.alive = false;
        }
        Ok(())
    }
}

impl<T, P> Drop for Handle<T, P> {
    fn drop(&mut self) {
        // After an error the object is leaked; the kernel destroys it when the process ends.
        let _ = self.destroy();
    }
}
