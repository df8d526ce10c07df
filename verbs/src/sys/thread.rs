//! Thread domains, and protection domains that are bound to one.

use std::io;
use std::sync::Arc;

use rdma_sys::{ibv_dealloc_pd, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use super::extended::dealloc_td;
use super::handle::Handle;
use super::{OpenContext, Pd, Plain};

/// A thread domain: the caller guarantees that one thread at a time uses the objects created in it.
pub(crate) type Td = Handle<ibv_td, Arc<OpenContext>>;
/// A protection domain that is bound to a thread domain.
pub(crate) type ThreadedPd = Handle<ibv_pd, (Arc<Pd>, Arc<Td>)>;

// SAFETY: the only field is an integer, for which zero is valid.
unsafe impl Plain for ibv_td_init_attr {}
// SAFETY: all fields are pointers, integers or optional functions, for which zero is valid.
unsafe impl Plain for ibv_parent_domain_init_attr {}

impl Td {
    pub(crate) fn allocate(context: &Arc<OpenContext>) -> io::Result<Self> {
        let domain = context.alloc_td(&mut ibv_td_init_attr::zeroed())?;
        // SAFETY: the domain was just created, so no other code destroys it; the handle keeps a
        // reference to the context.
        unsafe { Self::take(domain, dealloc_td, Arc::clone(context)) }
    }
}

impl ThreadedPd {
    pub(crate) fn allocate(domain: &Arc<Pd>, thread: &Arc<Td>) -> io::Result<Self> {
        let mut attributes = ibv_parent_domain_init_attr {
            pd: domain.raw(),
            td: thread.raw(),
            ..ibv_parent_domain_init_attr::zeroed()
        };
        // SAFETY: both domains are alive, and the handle keeps references to them. No other code
        // destroys the new domain.
        unsafe {
            let both = domain.context().alloc_parent_domain(&mut attributes)?;
            Self::take(both, ibv_dealloc_pd, (Arc::clone(domain), Arc::clone(thread)))
        }
    }
}
