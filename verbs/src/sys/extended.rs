//! Provider functions that older providers do not have.
//!
//! verbs.h calls them through inline functions, which rdma-sys translates to Rust. Its test for
//! extended contexts compares a marker with 32 one bits instead of as many as a pointer has, so it
//! fails on all 64-bit machines. This module performs the lookup correctly.

use std::ffi::c_int;
use std::io;
use std::ptr;

use rdma_sys::{
    ib_uverbs_advise_mr_advice, ibv_device_attr_ex, ibv_parent_domain_init_attr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_sge, ibv_td, ibv_td_init_attr,
};

use super::{OpenContext, Pd, Plain, status};

/// The marker of a context with extended functions (verbs.h: `__VERBS_ABI_IS_EXTENDED`).
pub(super) const EXTENDED: usize = usize::MAX;

// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_port_attr {}
// SAFETY: all fields are integers, for which zero is valid.
unsafe impl Plain for ibv_device_attr_ex {}

/// Looks up the provider's function of this name; `EOPNOTSUPP` if it has none. Equivalent to
/// `verbs_get_ctx_op` of verbs.h.
///
/// The argument must be a pointer to an open context.
macro_rules! function {
    ($context:expr, $name:ident) => {{
        let context: *mut ::rdma_sys::ibv_context = $context;
        if (*context).abi_compat.addr() != $crate::sys::extended::EXTENDED {
            Err($crate::sys::extended::unsupported())
        } else {
            let whole = context
                .byte_sub(::std::mem::offset_of!(::rdma_sys::verbs_context, context))
                .cast::<::rdma_sys::verbs_context>();
            // New members are added at the front of the structure; its size tells whether the
            // member exists.
            let needed = size_of::<::rdma_sys::verbs_context>()
                - ::std::mem::offset_of!(::rdma_sys::verbs_context, $name);
            if (*whole).sz < needed {
                Err($crate::sys::extended::unsupported())
            } else {
                (*whole).$name.ok_or_else($crate::sys::extended::unsupported)
            }
        }
    }};
}
pub(super) use function;

pub(super) const EOPNOTSUPP: c_int = 95;

pub(super) fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(EOPNOTSUPP)
}

impl OpenContext {
    /// Queries the limits of the device, including those of newer versions of verbs. verbs.h:
    /// `ibv_query_device_ex`.
    pub(crate) fn extended_attributes(&self) -> io::Result<ibv_device_attr_ex> {
        let mut attributes = ibv_device_attr_ex::zeroed();
        let size = size_of::<ibv_device_attr_ex>();
        // SAFETY: the context is open, a null input is valid, and `attributes` is initialised and
        // writable.
        let asked = unsafe { function!(self.raw(), query_device_ex) }.and_then(|function| {
            // SAFETY: the context is open as long as `self` is borrowed.
            status(unsafe { function(self.raw(), ptr::null(), &raw mut attributes, size) })
        });
        if asked.is_err() {
            attributes =
                ibv_device_attr_ex { orig_attr: self.device_attributes()?, ..Plain::zeroed() };
        }
        Ok(attributes)
    }

    /// Queries the attributes of a port. Ports are numbered from 1.
    ///
    /// The symbol `ibv_query_port` fills an older, shorter structure. verbs.h redirects callers to
    /// the provider's function by an inline function, which bindings do not contain.
    pub(crate) fn query_port(&self, number: u8) -> io::Result<ibv_port_attr> {
        let mut attributes = ibv_port_attr::zeroed();
        // SAFETY: the context is open, and `attributes` is initialised and writable.
        status(unsafe {
            let function = function!(self.raw(), query_port)?;
            function(self.raw(), number, &raw mut attributes, size_of::<ibv_port_attr>())
        })?;
        Ok(attributes)
    }

    /// verbs.h: `ibv_alloc_td`.
    pub(super) fn alloc_td(&self, attributes: &mut ibv_td_init_attr) -> io::Result<*mut ibv_td> {
        // SAFETY: the context is open, and the attributes are valid during the call.
        unsafe { Ok(function!(self.raw(), alloc_td)?(self.raw(), attributes)) }
    }

    /// verbs.h: `ibv_alloc_parent_domain`.
    ///
    /// # Safety
    /// The objects that the attributes point to must be alive, and must stay alive as long as the
    /// domain.
    pub(super) unsafe fn alloc_parent_domain(
        &self,
        attributes: &mut ibv_parent_domain_init_attr,
    ) -> io::Result<*mut ibv_pd> {
        // SAFETY: the context is open. The caller guarantees that the objects in the attributes are
        // alive and outlive the domain.
        unsafe { Ok(function!(self.raw(), alloc_parent_domain)?(self.raw(), attributes)) }
    }

    /// verbs.h: `ibv_create_qp_ex`.
    ///
    /// # Safety
    /// The objects that the attributes point to must be alive, and must stay alive as long as the
    /// queue pair.
    pub(super) unsafe fn create_qp_ex(
        &self,
        attributes: &mut ibv_qp_init_attr_ex,
    ) -> io::Result<*mut ibv_qp> {
        // SAFETY: the context is open. The caller guarantees that the objects in the attributes are
        // alive and outlive the queue pair.
        unsafe { Ok(function!(self.raw(), create_qp_ex)?(self.raw(), attributes)) }
    }
}

/// verbs.h: `ibv_dealloc_td`.
///
/// # Safety
/// The domain must be alive and must not be used by other code during the call or afterwards.
pub(super) unsafe extern "C" fn dealloc_td(domain: *mut ibv_td) -> c_int {
    // SAFETY: the caller guarantees that the domain is alive, and a domain contains a pointer to
    // its context, which outlives it.
    unsafe {
        function!((*domain).context, dealloc_td).map_or(EOPNOTSUPP, |dealloc| dealloc(domain))
    }
}

impl Pd {
    /// verbs.h: `ibv_advise_mr`, for one range. The kernel checks its key and bounds.
    pub(super) fn advise(
        &self,
        advice: ib_uverbs_advise_mr_advice::Type,
        flags: u32,
        range: &mut ibv_sge,
    ) -> io::Result<()> {
        // SAFETY: the domain is open as long as `self` is borrowed, and its context with it;
        // libibverbs reads the one entry during the call.
        status(unsafe {
            let domain = self.raw();
            function!((*domain).context, advise_mr)?(domain, advice, flags, range, 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
    use std::ptr::NonNull;

    use rdma_sys::{ibv_context, verbs_context};

    unsafe extern "C" fn fake_query_port(
        _: *mut ibv_context,
        number: u8,
        attributes: *mut ibv_port_attr,
        size: usize,
    ) -> i32 {
        if number != 1 {
            return 22;
        }
        assert_eq!(size, size_of::<ibv_port_attr>(), "the whole structure, not the old short one");
        // SAFETY: the caller passes a pointer to a writable structure of the size that it passes.
        unsafe {
            (*attributes).link_layer = 2;
            (*attributes).port_cap_flags2 = 0xbeef;
        }
        0
    }

    /// Builds a context by hand, since there is no device, and checks that the provider's function
    /// is called.
    #[test]
    fn query_port_fills_the_long_structure() {
        // SAFETY: the structure consists of integers, pointers and optional functions, for which
        // zero is valid.
        let mut fake: verbs_context = unsafe { MaybeUninit::zeroed().assume_init() };
        fake.sz = size_of::<verbs_context>();
        fake.query_port = Some(fake_query_port);
        fake.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
        // The pointer must have provenance over the whole structure, since the lookup computes the
        // address of the surrounding structure from that of the member.
        let whole = &raw mut fake;
        // SAFETY: `whole` points to a live structure, and only the address of a member is computed.
        let context = NonNull::new(unsafe { &raw mut (*whole).context }).unwrap();
        // Never dropped, because libibverbs did not open this context.
        let open = OpenContext {
            context,
            name: String::new(),
            ports: 1,
            vendor: 0,
            devx: None,
            relaxed: OnceLock::new(),
        };
        let context = ManuallyDrop::new(open);
        let port = context.query_port(1).unwrap();
        assert_eq!((port.link_layer, port.port_cap_flags2), (2, 0xbeef));
        assert_eq!(context.query_port(2).map(|_| ()).unwrap_err().raw_os_error(), Some(22));
        // A provider whose structure is too short for the function, one without the function, and
        // one without extended functions.
        let refused = || context.query_port(1).map(|_| ()).unwrap_err().kind();
        // SAFETY: `whole` points to a live structure, and no other reference to it exists here.
        unsafe { (*whole).sz -= offset_of!(verbs_context, query_port) + 1 };
        assert_eq!(refused(), io::ErrorKind::Unsupported);
        // SAFETY: `whole` points to a live structure, and no other reference to it exists here.
        unsafe { (*whole).sz = size_of::<verbs_context>() };
        // SAFETY: `whole` points to a live structure, and no other reference to it exists here.
        unsafe { (*whole).query_port = None };
        assert_eq!(refused(), io::ErrorKind::Unsupported);
        // SAFETY: `whole` points to a live structure, and no other reference to it exists here.
        unsafe { (*whole).context.abi_compat = ptr::null_mut() };
        assert_eq!(refused(), io::ErrorKind::Unsupported);
    }
}
