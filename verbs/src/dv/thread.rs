//! Registers of a thread's own.

use std::fmt;
use std::sync::Arc;

use crate::sys::Td;
use crate::{Context, Error};

/// Queue pairs of one thread domain have one register, and no queue pair of another has it: libmlx5 takes it for a promise that they are
/// used by one thread at a time. Clones are the same domain. verbs.h: `ibv_alloc_td`.
#[derive(Clone)]
pub struct ThreadDomain(Arc<Td>);

impl ThreadDomain {
    /// A new domain, with a register of its own.
    ///
    /// # Errors
    /// If the device has no register left, or is not one that has thread domains.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let domain = Td::allocate(context.open_context())
            .map_err(|source| Error::new(context.name(), "allocate a thread domain", source))?;
        Ok(Self(Arc::new(domain)))
    }

    pub(crate) fn handle(&self) -> &Arc<Td> {
        &self.0
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ThreadDomain").field(&self.0.parents().name()).finish()
    }
}
