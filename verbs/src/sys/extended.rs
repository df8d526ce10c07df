//! Functions that a provider may have and older ones have not.
//!
//! verbs.h calls them by inline functions, which rdma-sys has in Rust. Its own test for them compares a mark with 32 ones instead of as many
//! as a pointer has bits, so on 64-bit machines it finds none. Here they are looked up right.

use std::ffi::c_int;
use std::io;
use std::mem::offset_of;
use std::ptr;

use rdma_sys::{
    ibv_context, ibv_device_attr_ex, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_init_attr_ex, ibv_td, ibv_td_init_attr, verbs_context,
};

use super::{OpenContext, Plain, status};

/// What marks a context as one with such functions (verbs.h: `__VERBS_ABI_IS_EXTENDED`).
const EXTENDED: usize = usize::MAX;

// SAFETY: integers only.
unsafe impl Plain for ibv_port_attr {}
// SAFETY: integers only.
unsafe impl Plain for ibv_device_attr_ex {}

/// The provider's function of this name; `EOPNOTSUPP` if it has none. As `verbs_get_ctx_op` of verbs.h.
///
/// The argument must be a context that is open.
macro_rules! function {
    ($context:expr, $name:ident) => {{
        let context: *mut ibv_context = $context;
        if (*context).abi_compat.addr() != EXTENDED {
            Err(unsupported())
        } else {
            let whole = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            // The structure grew at its front: its size tells what is there.
            let needed = size_of::<verbs_context>() - offset_of!(verbs_context, $name);
            if (*whole).sz < needed { Err(unsupported()) } else { (*whole).$name.ok_or_else(unsupported) }
        }
    }};
}

const EOPNOTSUPP: c_int = 95;

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(EOPNOTSUPP)
}

impl OpenContext {
    /// What the device can do, with what came to verbs later. verbs.h: `ibv_query_device_ex`.
    pub(crate) fn extended_attributes(&self) -> io::Result<ibv_device_attr_ex> {
        let mut attributes = ibv_device_attr_ex::zeroed();
        let size = size_of::<ibv_device_attr_ex>();
        // SAFETY: the context is open, no input is a valid one, and the attributes are initialised and valid to write to.
        let asked = unsafe { function!(self.raw(), query_device_ex) }.and_then(|function| {
            // SAFETY: as above.
            status(unsafe { function(self.raw(), ptr::null(), &raw mut attributes, size) })
        });
        if asked.is_err() {
            attributes = ibv_device_attr_ex { orig_attr: self.device_attributes()?, ..Plain::zeroed() };
        }
        Ok(attributes)
    }

    /// The attributes of a port, the first being number 1.
    ///
    /// The symbol `ibv_query_port` fills an older, shorter structure; verbs.h redirects it to the provider's function, and bindings do not
    /// see that.
    pub(crate) fn query_port(&self, number: u8) -> io::Result<ibv_port_attr> {
        let mut attributes = ibv_port_attr::zeroed();
        // SAFETY: the context is open, and the attributes are initialised and valid to write to.
        status(unsafe {
            let function = function!(self.raw(), query_port)?;
            function(self.raw(), number, &raw mut attributes, size_of::<ibv_port_attr>())
        })?;
        Ok(attributes)
    }

    /// verbs.h: `ibv_alloc_td`.
    pub(super) fn alloc_td(&self, attributes: &mut ibv_td_init_attr) -> io::Result<*mut ibv_td> {
        // SAFETY: the context is open; the attributes are valid for the call.
        unsafe { Ok(function!(self.raw(), alloc_td)?(self.raw(), attributes)) }
    }

    /// verbs.h: `ibv_alloc_parent_domain`.
    ///
    /// # Safety
    /// What the attributes point to is alive, and stays so as long as the domain.
    pub(super) unsafe fn alloc_parent_domain(
        &self,
        attributes: &mut ibv_parent_domain_init_attr,
    ) -> io::Result<*mut ibv_pd> {
        // SAFETY: the context is open; the attributes are the caller's promise.
        unsafe { Ok(function!(self.raw(), alloc_parent_domain)?(self.raw(), attributes)) }
    }

    /// verbs.h: `ibv_create_qp_ex`.
    ///
    /// # Safety
    /// What the attributes point to is alive, and stays so as long as the queue pair.
    pub(super) unsafe fn create_qp_ex(
        &self,
        attributes: &mut ibv_qp_init_attr_ex,
    ) -> io::Result<*mut ibv_qp> {
        // SAFETY: the context is open; the attributes are the caller's promise.
        unsafe { Ok(function!(self.raw(), create_qp_ex)?(self.raw(), attributes)) }
    }
}

/// verbs.h: `ibv_dealloc_td`.
///
/// # Safety
/// The domain is alive, and nobody else uses it.
pub(super) unsafe extern "C" fn dealloc_td(domain: *mut ibv_td) -> c_int {
    // SAFETY: the domain is alive, and so is its context.
    unsafe { function!((*domain).context, dealloc_td).map_or(EOPNOTSUPP, |dealloc| dealloc(domain)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{ManuallyDrop, MaybeUninit};
    use std::ptr::NonNull;

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
        // SAFETY: the caller gives a valid place of the size that it names.
        unsafe {
            (*attributes).link_layer = 2;
            (*attributes).port_cap_flags2 = 0xbeef;
        }
        0
    }

    /// There is no device here to ask; a context made by hand shows that the provider's function is called.
    #[test]
    fn query_port_fills_the_long_structure() {
        // SAFETY: a structure of integers, pointers and optional functions: zero is valid for each.
        let mut fake: verbs_context = unsafe { MaybeUninit::zeroed().assume_init() };
        fake.sz = size_of::<verbs_context>();
        fake.query_port = Some(fake_query_port);
        fake.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
        // The pointer must reach the whole structure: the library goes from the member to what surrounds it.
        let whole = &raw mut fake;
        // SAFETY: `whole` is valid; only the member's address is taken.
        let context = NonNull::new(unsafe { &raw mut (*whole).context }).unwrap();
        // Never closed: libibverbs did not open it.
        let open = OpenContext { context, name: String::new(), ports: 1, vendor: 0, devx: None };
        let context = ManuallyDrop::new(open);
        let port = context.query_port(1).unwrap();
        assert_eq!((port.link_layer, port.port_cap_flags2), (2, 0xbeef));
        assert_eq!(context.query_port(2).map(|_| ()).unwrap_err().raw_os_error(), Some(22));
        // A provider whose structure ends before the function, one without the function, and one without any.
        let refused = || context.query_port(1).map(|_| ()).unwrap_err().kind();
        // SAFETY: nobody else looks at the structure now.
        unsafe { (*whole).sz -= offset_of!(verbs_context, query_port) + 1 };
        assert_eq!(refused(), io::ErrorKind::Unsupported);
        // SAFETY: as above.
        unsafe { (*whole).sz = size_of::<verbs_context>() };
        // SAFETY: as above.
        unsafe { (*whole).query_port = None };
        assert_eq!(refused(), io::ErrorKind::Unsupported);
        // SAFETY: as above.
        unsafe { (*whole).context.abi_compat = ptr::null_mut() };
        assert_eq!(refused(), io::ErrorKind::Unsupported);
    }
}
