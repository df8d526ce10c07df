//! The worker: the one owner of the progress of every interface opened through it.

use std::fmt;

#[cfg(feature = "verbs")]
use crate::transport::rc_verbs;
use crate::transport::{cma, rc_mlx5, self_, shm, tcp};

pub(crate) enum Progress {
    Self_(self_::Progress),
    RcMlx5(rc_mlx5::Progress),
    Shm(Box<shm::Progress>),
    Cma(cma::Progress),
    #[cfg(feature = "verbs")]
    RcVerbs(rc_verbs::Progress),
    Tcp(Box<tcp::Progress>),
}

impl Progress {
    /// Nothing is there to be done.
    fn is_idle(&self) -> bool {
        match self {
            Self::Self_(progress) => progress.is_idle(),
            Self::RcMlx5(progress) => progress.is_idle(),
            Self::Shm(progress) => progress.is_idle(),
            Self::Cma(progress) => progress.is_idle(),
            // Only the library knows.
            #[cfg(feature = "verbs")]
            Self::RcVerbs(_) => false,
            Self::Tcp(progress) => progress.is_idle(),
        }
    }

    fn progress(&mut self) -> usize {
        match self {
            Self::Self_(progress) => progress.progress(),
            Self::RcMlx5(progress) => progress.progress(),
            // A look was taken.
            Self::Shm(progress) => progress.turn_unasked(),
            Self::Cma(progress) => progress.progress(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(progress) => progress.progress(),
            Self::Tcp(progress) => progress.progress(),
        }
    }
}

/// Drives the interfaces opened through it, on one thread.
///
/// Handlers and completion callbacks run inside [`progress`](Self::progress). They may post, but they cannot
/// reach the worker, which is borrowed meanwhile. Dropping the worker closes its interfaces: outstanding
/// operations complete as cancelled, handlers are dropped, and later posts answer
/// [`PostError::Closed`](crate::PostError::Closed).
///
/// A worker stays on its thread:
///
/// ```compile_fail
/// fn send<T: Send>(_: T) {}
/// send(barewire::Worker::new());
/// ```
#[derive(Default)]
pub struct Worker {
    progress: Vec<Progress>,
}

impl Worker {
    /// A worker without interfaces.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn adopt(&mut self, progress: Progress) {
        self.progress.push(progress);
    }

    /// Delivers what arrived, finishes what is done and gives pending requests their turn. Never blocks.
    /// Answers how many events there were; zero says that nothing happened.
    #[inline]
    pub fn progress(&mut self) -> usize {
        // One device as a rule; what the others need costs it nothing.
        if let [Progress::RcMlx5(only)] = &*self.progress
            && only.is_idle()
        {
            return 0;
        }
        self.progress_all()
    }

    #[inline(never)]
    fn progress_all(&mut self) -> usize {
        self.progress.iter_mut().map(|one| if one.is_idle() { 0 } else { one.progress() }).sum()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("interfaces", &self.progress.len()).finish()
    }
}
