//! Threads of ours take no signals of the program's.

use std::mem::MaybeUninit;

/// No signal reaches the calling thread, nor those that it starts, until this is dropped.
#[derive(Debug)]
pub(crate) struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub(crate) fn all() -> Self {
        let mut every = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are live; all-zero bytes are a set, too, in case the calls fail, which they do not with these arguments.
        unsafe {
            libc::sigfillset(every.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is live.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
