//! Panics in user code: the remaining work is done before the panic continues.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs several pieces of user code. If one panics, the others still run, and the panic continues
/// when this is dropped. Only the first panic continues; none does if the thread is already
/// unwinding.
#[derive(Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    pub(crate) fn catch(&mut self, user: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(user))
            && let Some(later) = self.0.replace(panic)
        {
            // Not dropped, because the drop of a panic's payload may panic, too.
            std::mem::forget(self.0.replace(later));
        }
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if let Some(panic) = self.0.take()
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

/// Runs `user`; if it panics, runs `rest` before the panic continues. Costs nothing otherwise.
#[inline(always)]
pub(crate) fn or_else<R>(user: impl FnOnce() -> R, rest: impl FnMut()) -> R {
    struct Rest<F: FnMut()>(F);

    impl<F: FnMut()> Drop for Rest<F> {
        #[cold]
        fn drop(&mut self) {
            // A second panic that leaves a drop would abort the process.
            Panics::default().catch(&mut self.0);
        }
    }

    let rest = Rest(rest);
    let result = user();
    std::mem::forget(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_runs_and_the_first_panic_continues() {
        let mut runs = 0;
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let mut panics = Panics::default();
            for number in 0..3 {
                panics.catch(|| {
                    runs += 1;
                    resume_unwind(Box::new(number));
                });
            }
        }));
        assert_eq!(runs, 3);
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&0));
    }

    #[test]
    fn the_rest_runs_only_after_a_panic() {
        let mut runs = 0;
        assert_eq!(or_else(|| 5, || runs += 1), 5);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            or_else(
                || resume_unwind(Box::new("first")),
                || {
                    runs += 1;
                    resume_unwind(Box::new("second"));
                },
            )
        }));
        assert_eq!(runs, 1);
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"first"));
    }
}
