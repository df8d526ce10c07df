//! Components: each transport of this build, with its devices as memory domains.

use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use barewire::{Domain, KeyError, RemoteKey, TransportId, components};

use crate::abi::{ComponentAttr, INVALID_RKEY, MdResourceDesc, Rkey, RkeyBundle};
use crate::log::Level;
use crate::rkey::Pointer;
use crate::status::{INVALID_PARAM, NO_MEMORY, Status, UNSUPPORTED, guard, of_key};
use crate::text;
use crate::ucs::{self, Version};

/// A transport, which lives as long as the process.
pub(crate) struct Component {
    pub(crate) transport: TransportId,
    devices: OnceLock<Vec<String>>,
    /// The open domains, to whose memory keys belong.
    domains: Mutex<Vec<(u64, Domain)>>,
}

impl Component {
    fn open_domains(&self) -> MutexGuard<'_, Vec<(u64, Domain)>> {
        // Every change is one operation of the vector, so a poisoned one is consistent.
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an open domain under a number. Returns the domain to use instead: memory of `self` is
    /// that of the process, so all domains are the first one and each of its keys is valid for each
    /// of its interfaces.
    pub(crate) fn add(&self, number: u64, domain: Domain) -> Domain {
        let mut domains = self.open_domains();
        let first = domains.first().filter(|_| self.transport == TransportId::Self_);
        let domain = first.map_or(domain, |(_, domain)| domain.clone());
        domains.push((number, domain.clone()));
        domain
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut domains = self.open_domains();
        let at = domains.iter().position(|(other, _)| *other == number);
        let removed = at.map(|at| domains.swap_remove(at));
        drop(domains);
        drop(removed);
    }

    /// Returns the devices whose names UCT can store. The list stays the same, as callers query
    /// its length first.
    fn devices(&self) -> &[String] {
        self.devices.get_or_init(|| {
            let all = components();
            let devices = all.iter().flat_map(|component| &component.devices);
            let over = devices.flat_map(|device| &device.transports);
            over.filter(|over| over.transport() == self.transport)
                .map(|over| over.device.name().to_owned())
                .filter(|name| text::fits::<16>(name))
                .collect()
        })
    }

    /// Returns whether it has connection management: as UCX's own `tcp` does.
    pub(crate) fn manages_connections(&self) -> bool {
        self.transport == TransportId::Tcp
    }

    fn flags(&self) -> u64 {
        match self.transport {
            _ if self.manages_connections() => ComponentAttr::CM,
            // Programs of UCX 1.13 look for this flag in the attributes of domains.
            TransportId::Shm if ucs::version() >= Version::V1_14 => ComponentAttr::RKEY_PTR,
            _ => 0,
        }
    }

    /// Creates a key, which can be used with each domain.
    fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, Status> {
        let domains = self.open_domains();
        let mut refused = INVALID_PARAM;
        for (_, domain) in &*domains {
            match domain.unpack_key(bytes) {
                Ok(key) => return Ok(key),
                Err(KeyError::ForeignDomain) => {}
                Err(error) => {
                    crate::log::diag(&error);
                    refused = of_key(&error);
                }
            }
        }
        Err(refused)
    }
}

fn all() -> &'static [Component] {
    static ALL: OnceLock<Vec<Component>> = OnceLock::new();
    ALL.get_or_init(|| {
        let of = |&transport| Component {
            transport,
            devices: OnceLock::new(),
            domains: Mutex::default(),
        };
        // UCX 1.13 cannot name the endpoint whose connection another one of `xrc_mlx5` shares.
        let built = TransportId::BUILT.iter().filter(|id| **id != TransportId::XrcMlx5);
        built.map(of).collect()
    })
}

/// Returns the component behind a handle.
///
/// # Safety
/// `component` is null or a handle of [`uct_query_components`].
pub(crate) unsafe fn of_handle(component: *const Component) -> Result<&'static Component, Status> {
    // SAFETY: a component lives as long as the process.
    unsafe { component.as_ref() }.ok_or(INVALID_PARAM)
}

/// Copies items into an array for C, to be freed by `libc::free`.
pub(crate) fn to_array<T: Copy>(items: &[T]) -> Result<*mut T, Status> {
    // SAFETY: the size is not zero. The array has room for the items.
    unsafe {
        let array = libc::calloc(items.len().max(1), size_of::<T>()).cast::<T>();
        if array.is_null() {
            return Err(NO_MEMORY);
        }
        std::ptr::copy_nonoverlapping(items.as_ptr(), array, items.len());
        Ok(array)
    }
}

/// Reports once that the process has this library, and not UCX's own, whose transports have the
/// same names.
fn introduce() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let version = env!("CARGO_PKG_VERSION");
        let names: Vec<_> = all().iter().map(|component| component.transport.name()).collect();
        let line = format!("the transports are those of barewire {version}: {}", names.join(" "));
        crate::log::report(Level::INFO, &line);
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_query_components(
    components: *mut *mut *const Component,
    count: *mut c_uint,
) -> Status {
    guard(|| {
        if components.is_null() || count.is_null() {
            return Err(INVALID_PARAM);
        }
        // Structures of an unknown version must not be written.
        ucs::functions().ok_or(UNSUPPORTED)?;
        introduce();
        let handles: Vec<*const Component> = all().iter().map(std::ptr::from_ref).collect();
        // SAFETY: the caller's pointers are valid for writes.
        unsafe {
            *components = to_array(&handles)?;
            *count = handles.len() as c_uint;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_release_component_list(components: *mut *const Component) {
    // SAFETY: the array is one of `uct_query_components`, or null.
    unsafe { libc::free(components.cast()) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_component_query(
    component: *const Component,
    attr: *mut ComponentAttr,
) -> Status {
    guard(|| {
        // SAFETY: contract of the handle; `attr` is null or valid for this call.
        let (component, attr) = unsafe { (of_handle(component)?, attr.as_mut()) };
        let attr = attr.ok_or(INVALID_PARAM)?;
        if attr.field_mask & ComponentAttr::NAME != 0 {
            attr.name = text::field(component.transport.name());
        }
        if attr.field_mask & ComponentAttr::MD_RESOURCE_COUNT != 0 {
            attr.md_resource_count = component.devices().len() as c_uint;
        }
        if attr.field_mask & ComponentAttr::MD_RESOURCES != 0 {
            // Of no devices, a program may pass an empty array.
            if attr.md_resources.is_null() && !component.devices().is_empty() {
                return Err(INVALID_PARAM);
            }
            for (at, name) in component.devices().iter().enumerate() {
                // SAFETY: the array has room for as many as an earlier query counted (uct.h).
                unsafe {
                    *attr.md_resources.add(at) = MdResourceDesc { md_name: text::field(name) };
                }
            }
        }
        if attr.field_mask & ComponentAttr::FLAGS != 0 {
            attr.flags = component.flags();
        }
        Ok(())
    })
}

/// What a bundle refers to. The key comes first: its address is the `uct_rkey_t`.
#[repr(C)]
pub(crate) struct Unpacked {
    pub(crate) key: RemoteKey,
    /// The bytes that it was created from, by which keys are compared.
    pub(crate) bytes: Box<[u8]>,
    pub(crate) pointer: Pointer,
}

impl Unpacked {
    fn new(key: RemoteKey, bytes: &[u8]) -> Self {
        Self { key, bytes: bytes.into(), pointer: Pointer::default() }
    }

    /// Returns what a `uct_rkey_t` refers to.
    ///
    /// # Safety
    /// `rkey` is null, `UCT_INVALID_RKEY`, or one of `uct_rkey_unpack` that is not released during
    /// `'a`.
    pub(crate) unsafe fn of_rkey<'a>(rkey: Rkey) -> Result<&'a Self, Status> {
        if rkey == INVALID_RKEY {
            return Err(INVALID_PARAM);
        }
        // SAFETY: contract of this function.
        unsafe { std::ptr::with_exposed_provenance::<Self>(rkey).as_ref() }.ok_or(INVALID_PARAM)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_rkey_unpack(
    component: *const Component,
    buffer: *const u8,
    bundle: *mut RkeyBundle,
) -> Status {
    guard(|| {
        if buffer.is_null() || bundle.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: contract of the handle. The buffer has `rkey_packed_size` bytes (uct.h), which
        // is this length.
        let (component, bytes) = unsafe {
            let component = of_handle(component)?;
            let length = RemoteKey::packed_length(component.transport);
            (component, std::slice::from_raw_parts(buffer, length))
        };
        let unpacked = Unpacked::new(component.unpack_key(bytes)?, bytes);
        let unpacked = Box::into_raw(Box::new(unpacked));
        // SAFETY: the bundle is valid for writes.
        unsafe {
            *bundle = RkeyBundle {
                rkey: unpacked.expose_provenance(),
                handle: unpacked.cast(),
                kind: std::ptr::null_mut(),
            };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_rkey_release(
    _component: *const Component,
    bundle: *const RkeyBundle,
) -> Status {
    guard(|| {
        // SAFETY: the bundle is null or one that `uct_rkey_unpack` filled, whose handle is the key.
        let handle = unsafe { bundle.as_ref() }.ok_or(INVALID_PARAM)?.handle;
        if handle.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: as above; it is released once.
        drop(unsafe { Box::from_raw(handle.cast::<Unpacked>()) });
        Ok(())
    })
}
