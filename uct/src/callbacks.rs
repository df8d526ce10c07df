//! The callback queue of a worker (ucs/datastruct/callbackq.h), which programs dispatch by an
//! inline function. Elements begin with the callback and its argument in every version of UCX.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::CallbackQueue;
use crate::status::Status;
use crate::ucs::{Library, Version};

/// A callback of a worker. Returns the number of events.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void) -> c_uint;

/// No callback.
pub(crate) const ID_NULL: c_int = -1;
/// A callback that every dispatch calls.
const FLAG_FAST: c_uint = 1;
/// A callback that the next dispatch calls, once.
pub(crate) const FLAG_ONESHOT: c_uint = 2;

type Queue = *mut CallbackQueue;
type Add = unsafe extern "C" fn(Queue, Callback, *mut c_void, c_uint) -> c_int;
type Remove = unsafe extern "C" fn(Queue, c_int);
type Predicate = unsafe extern "C" fn(*const Element, *mut c_void) -> c_int;
type RemoveIf = unsafe extern "C" fn(Queue, Predicate, *mut c_void);

/// What every version of `ucs_callbackq_elem_t` begins with.
#[repr(C)]
struct Element {
    callback: Option<Callback>,
    argument: *mut c_void,
}

/// The functions. Those that end with `safe` may run beside a dispatch.
pub(crate) struct Callbacks {
    init: unsafe extern "C" fn(Queue) -> Status,
    cleanup: unsafe extern "C" fn(Queue),
    kind: Kind,
}

enum Kind {
    /// UCX 1.13 to 1.15.
    Flags { add: Add, add_safe: Add, remove: Remove, remove_safe: Remove, remove_if: RemoveIf },
    #[cfg(feature = "ucx-head")]
    Keys(keys::Functions),
}

impl Callbacks {
    pub(crate) fn load(library: &Library, version: Version) -> Option<Self> {
        // SAFETY: the functions of these names have these types in this version.
        unsafe {
            let kind = match version {
                Version::V1_13 | Version::V1_14 | Version::V1_15 => Kind::Flags {
                    add: library.find(c"ucs_callbackq_add")?,
                    add_safe: library.find(c"ucs_callbackq_add_safe")?,
                    remove: library.find(c"ucs_callbackq_remove")?,
                    remove_safe: library.find(c"ucs_callbackq_remove_safe")?,
                    remove_if: library.find(c"ucs_callbackq_remove_if")?,
                },
                #[cfg(feature = "ucx-head")]
                _ => Kind::Keys(keys::Functions::load(library)?),
                // `Version::of` returns no such version.
                #[cfg(not(feature = "ucx-head"))]
                _ => return None,
            };
            Some(Self {
                init: library.find(c"ucs_callbackq_init")?,
                cleanup: library.find(c"ucs_callbackq_cleanup")?,
                kind,
            })
        }
    }

    /// # Safety
    /// The queue stays where it is until [`Self::cleanup`].
    pub(crate) unsafe fn init(&self, queue: Queue) -> Status {
        // SAFETY: contract of this function.
        unsafe { (self.init)(queue) }
    }

    /// # Safety
    /// The queue was initialized and is not used any more.
    pub(crate) unsafe fn cleanup(&self, queue: Queue) {
        // SAFETY: contract of this function.
        unsafe { (self.cleanup)(queue) }
    }

    /// Adds a callback that every dispatch calls. Returns its number.
    ///
    /// # Safety
    /// The queue is initialized. The argument is valid until the callback is removed. Unless
    /// `beside`, no other thread dispatches the queue now.
    pub(crate) unsafe fn add(
        &self,
        queue: Queue,
        callback: Callback,
        argument: *mut c_void,
        beside: bool,
    ) -> c_int {
        match &self.kind {
            Kind::Flags { add, add_safe, .. } => {
                let add = if beside { add_safe } else { add };
                // SAFETY: contract of this function.
                unsafe { add(queue, callback, argument, FLAG_FAST) }
            }
            #[cfg(feature = "ucx-head")]
            Kind::Keys(keys) => {
                let add = if beside { keys.add_safe } else { keys.add };
                // SAFETY: contract of this function.
                unsafe { add(queue, callback, argument) }
            }
        }
    }

    /// Removes a callback.
    ///
    /// # Safety
    /// As for [`Self::add`], of which the number is a result.
    pub(crate) unsafe fn remove(&self, queue: Queue, id: c_int, beside: bool) {
        match &self.kind {
            Kind::Flags { remove, remove_safe, .. } => {
                let remove = if beside { remove_safe } else { remove };
                // SAFETY: contract of this function.
                unsafe { remove(queue, id) }
            }
            #[cfg(feature = "ucx-head")]
            Kind::Keys(keys) => {
                let remove = if beside { keys.remove_safe } else { keys.remove };
                // SAFETY: contract of this function.
                unsafe { remove(queue, id) };
            }
        }
    }

    /// Adds a callback that one dispatch calls. May be called on any thread.
    ///
    /// # Safety
    /// The queue is initialized. The argument is valid until the callback was called or removed.
    pub(crate) unsafe fn add_once(&self, queue: Queue, callback: Callback, argument: *mut c_void) {
        match &self.kind {
            Kind::Flags { add_safe, .. } => {
                // SAFETY: contract of this function.
                unsafe { add_safe(queue, callback, argument, FLAG_ONESHOT) };
            }
            #[cfg(feature = "ucx-head")]
            // SAFETY: contract of this function. The argument is the key, too.
            Kind::Keys(keys) => unsafe { (keys.add_once)(queue, argument, callback, argument) },
        }
    }

    /// Removes the callbacks of [`Self::add_once`] with this argument.
    ///
    /// # Safety
    /// The queue is initialized, and no other thread dispatches it now.
    pub(crate) unsafe fn remove_once(&self, queue: Queue, argument: *mut c_void) {
        match &self.kind {
            // SAFETY: contract of this function.
            Kind::Flags { remove_if, .. } => unsafe { remove_if(queue, is_of, argument) },
            #[cfg(feature = "ucx-head")]
            // SAFETY: contract of this function.
            Kind::Keys(keys) => unsafe { (keys.remove_once)(queue, argument, is_of, argument) },
        }
    }

    /// Adds a callback of a program with its flags. Returns its number.
    ///
    /// # Safety
    /// As for [`Self::add`], beside a dispatch.
    pub(crate) unsafe fn register(
        &self,
        queue: Queue,
        callback: Callback,
        argument: *mut c_void,
        flags: c_uint,
    ) -> c_int {
        match &self.kind {
            // SAFETY: contract of this function.
            Kind::Flags { add_safe, .. } => unsafe { add_safe(queue, callback, argument, flags) },
            #[cfg(feature = "ucx-head")]
            // SAFETY: contract of this function.
            Kind::Keys(keys) => unsafe { keys.register(queue, callback, argument, flags) },
        }
    }

    /// Removes a callback of a program.
    ///
    /// # Safety
    /// As for [`Self::register`], of which the number is a result.
    pub(crate) unsafe fn unregister(&self, queue: Queue, id: c_int) {
        match &self.kind {
            // SAFETY: contract of this function.
            Kind::Flags { remove_safe, .. } => unsafe { remove_safe(queue, id) },
            #[cfg(feature = "ucx-head")]
            // SAFETY: contract of this function.
            Kind::Keys(keys) => unsafe { keys.unregister(queue, id) },
        }
    }
}

unsafe extern "C" fn is_of(element: *const Element, argument: *mut c_void) -> c_int {
    // SAFETY: libucs passes its own elements.
    unsafe { ((*element).argument == argument).into() }
}

/// The functions of UCX 1.16 and later: callbacks have no flags, and those that are called once
/// have a key instead of a number.
#[cfg(feature = "ucx-head")]
mod keys {
    use std::ffi::{c_int, c_uint, c_void};
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::{Callback, FLAG_ONESHOT, ID_NULL, Predicate, Queue};
    use crate::ucs::Library;

    type Add = unsafe extern "C" fn(Queue, Callback, *mut c_void) -> c_int;
    /// Returns the argument of the callback.
    type Remove = unsafe extern "C" fn(Queue, c_int) -> *mut c_void;

    pub(super) struct Functions {
        pub(super) add: Add,
        pub(super) add_safe: Add,
        pub(super) remove: Remove,
        pub(super) remove_safe: Remove,
        pub(super) add_once: unsafe extern "C" fn(Queue, *mut c_void, Callback, *mut c_void),
        pub(super) remove_once: unsafe extern "C" fn(Queue, *mut c_void, Predicate, *mut c_void),
    }

    /// Added to the numbers of [`Once`], which are distinguished from others by it.
    const ONCE: c_int = 1 << 30;

    /// A callback that removes itself: a program that asks for [`FLAG_ONESHOT`] expects a number.
    struct Once {
        callback: Callback,
        argument: *mut c_void,
        queue: Queue,
        remove: Remove,
        /// [`ID_NULL`] until the callback is in the queue.
        id: AtomicI32,
    }

    unsafe extern "C" fn run_once(once: *mut c_void) -> c_uint {
        let once = once.cast::<Once>();
        // SAFETY: the argument of `register`, which nothing else frees while the callback is in the
        // queue. The callback and its argument are the caller's.
        unsafe {
            let events = ((*once).callback)((*once).argument);
            let mut id = (*once).id.load(Ordering::Acquire);
            while id == ID_NULL {
                // Another thread is about to store the number that it just received.
                std::hint::spin_loop();
                id = (*once).id.load(Ordering::Acquire);
            }
            let Once { queue, remove, .. } = *Box::from_raw(once);
            remove(queue, id);
            events
        }
    }

    impl Functions {
        pub(super) fn load(library: &Library) -> Option<Self> {
            // SAFETY: the functions of these names have these types.
            unsafe {
                Some(Self {
                    add: library.find(c"ucs_callbackq_add")?,
                    add_safe: library.find(c"ucs_callbackq_add_safe")?,
                    remove: library.find(c"ucs_callbackq_remove")?,
                    remove_safe: library.find(c"ucs_callbackq_remove_safe")?,
                    add_once: library.find(c"ucs_callbackq_add_oneshot")?,
                    remove_once: library.find(c"ucs_callbackq_remove_oneshot")?,
                })
            }
        }

        /// # Safety
        /// As for [`super::Callbacks::register`].
        pub(super) unsafe fn register(
            &self,
            queue: Queue,
            callback: Callback,
            argument: *mut c_void,
            flags: c_uint,
        ) -> c_int {
            if flags & FLAG_ONESHOT == 0 {
                // SAFETY: contract of this function.
                return unsafe { (self.add_safe)(queue, callback, argument) };
            }
            let id = AtomicI32::new(ID_NULL);
            let remove = self.remove_safe;
            let once = Box::into_raw(Box::new(Once { callback, argument, queue, remove, id }));
            // SAFETY: contract of this function. `run_once` frees the record only after the store
            // of its number, and is called once.
            unsafe {
                let id = (self.add_safe)(queue, run_once, once.cast());
                (*once).id.store(id, Ordering::Release);
                id | ONCE
            }
        }

        /// # Safety
        /// As for [`super::Callbacks::unregister`].
        pub(super) unsafe fn unregister(&self, queue: Queue, id: c_int) {
            // SAFETY: contract of this function. A callback that is still in the queue was not
            // called and has its record.
            unsafe {
                let argument = (self.remove_safe)(queue, id & !ONCE);
                if id & ONCE != 0 && !argument.is_null() {
                    drop(Box::from_raw(argument.cast::<Once>()));
                }
            }
        }
    }
}
