//! Thread domains, and protection domains that are bound to one.

use std::io;
use std::sync::Arc;

use rdma_sys::{ibv_dealloc_pd, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use super::extended::dealloc_td;
use super::handle::Handle;
use super::{OpenContext, Pd, Plain};

/// A promise that what is made with it is used by one thread at a time.
pub(crate) type Td = Handle<ibv_td, Arc<OpenContext>>;
/// A protection domain and a thread domain in one.
pub(crate) type ThreadedPd = Handle<ibv_pd, (Arc<Pd>, Arc<Td>)>;

// SAFETY: an integer.
unsafe impl Plain for ibv_td_init_attr {}
// SAFETY: pointers, integers and optional functions.
unsafe impl Plain for ibv_parent_domain_init_attr {}

impl Td {
    pub(crate) fn allocate(context: &Arc<OpenContext>) -> io::Result<Self> {
        let domain = context.alloc_td(&mut ibv_td_init_attr::zeroed())?;
        // SAFETY: new, and the handle keeps the context open.
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
        // SAFETY: both domains are alive, and the handle keeps them so.
        unsafe {
            let both = domain.context().alloc_parent_domain(&mut attributes)?;
            Self::take(both, ibv_dealloc_pd, (Arc::clone(domain), Arc::clone(thread)))
        }
    }
}
