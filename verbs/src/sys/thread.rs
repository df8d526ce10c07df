//! Thread domains, and protection domains that are bound to one.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use rdma_sys::{ibv_dealloc_pd, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use super::extended::operation;
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

/// verbs.h: `ibv_dealloc_td`, which is inline there.
unsafe extern "C" fn dealloc_td(domain: *mut ibv_td) -> c_int {
    // SAFETY: the caller's domain is alive, and so is its context.
    unsafe {
        match operation!((*domain).context, dealloc_td) {
            Some(dealloc) => dealloc(domain),
            None => libc::EOPNOTSUPP,
        }
    }
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

impl Td {
    pub(crate) fn allocate(context: &Arc<OpenContext>) -> io::Result<Self> {
        let mut attributes = ibv_td_init_attr::zeroed();
        // SAFETY: the context is open, and the handle keeps it so; the attributes are valid for the call.
        unsafe {
            let allocate = operation!(context.raw(), alloc_td).ok_or_else(unsupported)?;
            Self::take(allocate(context.raw(), &raw mut attributes), dealloc_td, Arc::clone(context))
        }
    }
}

impl ThreadedPd {
    pub(crate) fn allocate(domain: &Arc<Pd>, thread: &Arc<Td>) -> io::Result<Self> {
        let mut attributes = ibv_parent_domain_init_attr {
            pd: domain.raw(),
            td: thread.raw(),
            ..ibv_parent_domain_init_attr::zeroed()
        };
        // SAFETY: both domains are alive, and the handle keeps them so; the attributes are valid for the call.
        unsafe {
            let context = domain.context().raw();
            let allocate = operation!(context, alloc_parent_domain).ok_or_else(unsupported)?;
            Self::take(
                allocate(context, &raw mut attributes),
                ibv_dealloc_pd,
                (Arc::clone(domain), Arc::clone(thread)),
            )
        }
    }
}
