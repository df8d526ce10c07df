//! A pointer that a library gave, with what destroys it.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use super::status;

/// An object of libibverbs or libmlx5. Dropping it destroys it, and lets go of what it was made from afterwards.
pub(crate) struct Handle<T, P> {
    raw: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
    alive: bool,
    /// The process that made it. The kernel would let a child by fork destroy it, too.
    process: u32,
    parents: P,
}

// SAFETY: both libraries are thread-safe: an object may be used, and destroyed once, by any thread.
unsafe impl<T, P: Send> Send for Handle<T, P> {}
// SAFETY: as above; calls with the same object lock inside the library.
unsafe impl<T, P: Sync> Sync for Handle<T, P> {}

impl<T, P> Handle<T, P> {
    /// Takes the object over. If there is none, the error that the library left.
    ///
    /// # Safety
    /// `raw` is null, or an object that nobody else destroys and that `destroy` is for. What it was made from is kept by `parents`.
    pub(super) unsafe fn take(
        raw: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
        parents: P,
    ) -> io::Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, destroy, alive: true, process: std::process::id(), parents })
    }

    /// The object. It is there unless [`Self::destroy`] was called.
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// What it was made from.
    pub(crate) fn parents(&self) -> &P {
        &self.parents
    }

    /// Destroys it now. After an error it is still there. Nothing else of it may be used afterwards.
    /// A child by fork cannot destroy what its parent made.
    pub(super) fn destroy(&mut self) -> io::Result<()> {
        if self.process != std::process::id() {
            return Err(io::Error::other("it belongs to the parent process"));
        }
        if self.alive {
            // SAFETY: alive, and destroyed by nobody else.
            status(unsafe { (self.destroy)(self.raw.as_ptr()) })?;
            self.alive = false;
        }
        Ok(())
    }
}

impl<T, P> Drop for Handle<T, P> {
    fn drop(&mut self) {
        // A refusal leaves nothing that could be done here; the kernel destroys what is left with the process.
        let _ = self.destroy();
    }
}
