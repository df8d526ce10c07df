//! Thread domains, which give a thread its own doorbell register.

use std::fmt;
use std::sync::Arc;

use crate::sys::Td;
use crate::{Context, Error};

/// A thread domain. Its queue pairs share one register, which no other queue pair uses: libmlx5
/// assumes that one thread at a time uses them. Cloning returns another handle to the same domain.
/// verbs.h: `ibv_alloc_td`.
#[derive(Clone)]
pub struct ThreadDomain(Arc<Td>);

impl ThreadDomain {
    /// Creates a domain with its own register.
    ///
    /// # Errors
    /// If the device has no free register, or its driver does not support thread domains.
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
