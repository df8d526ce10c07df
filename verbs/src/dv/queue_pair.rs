//! Queue pairs whose rings a driver in this program writes.

use crate::queue_pair::Poster;
use crate::sys::Qp;
use crate::{Error, ProtectionDomain, QueuePairOptions};

use super::open::{QueuePair, QueuePairInfo, ScatterToEntry, library, open};
use super::thread::ThreadDomain;

impl crate::QueuePair<Poster> {
    /// Hands the queue pair's rings over to a driver in this program.
    ///
    /// # Errors
    /// If the device's driver is not libmlx5, or libmlx5 is not installed.
    pub fn open_direct(self) -> Result<QueuePair, Error> {
        let qp = self.handle();
        let info = open(qp.context(), "a queue pair", qp)?;
        let access = QueuePairInfo::new(self.number(), &info)
            .map_err(|source| self.error("open a queue pair", source))?;
        Ok(self.with_access(access))
    }
}

impl QueuePair {
    /// Creates a queue pair of an mlx5 device for direct access, in state RESET. Without a thread
    /// domain, other queue pairs may use the same register.
    ///
    /// # Errors
    /// Those of [`QueuePair::new`](crate::QueuePair::new) and
    /// [`open_direct`](crate::QueuePair::open_direct).
    pub fn create(
        domain: &ProtectionDomain,
        thread: Option<&ThreadDomain>,
        options: &QueuePairOptions,
        scatter: ScatterToEntry,
    ) -> Result<Self, Error> {
        let library = library(domain.device())?;
        crate::QueuePair::made(domain, options, |attributes, queues| {
            let thread = thread.map(ThreadDomain::handle);
            Qp::create_mlx5(library, domain.handle(), thread, queues, attributes, scatter.flags())
        })?
        .open_direct()
    }

    /// The addresses of the queue pair's rings, doorbell record and register.
    pub fn info(&self) -> &QueuePairInfo {
        self.access()
    }
}
