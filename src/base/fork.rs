//! Fork: inherited objects do nothing in a child process.
//!
//! The kernel copies the process, but not the objects that it shares: rings, sockets, event sets
//! and devices still belong to the parent, and the device's threads do not exist in the child. A
//! handler that runs in every child closes the interfaces of the thread that called fork. Posts are
//! then refused by the post state and progress by a flag, both of which are tested anyway, so fork
//! support costs other calls nothing.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::scoped;

/// Number of forks between the first process that opened an interface and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The interfaces of this thread.
    static INTERFACES: RefCell<Vec<Weak<dyn Inherited>>> = const { RefCell::new(Vec::new()) };
    /// Whether [`watch`] does nothing.
    static UNWATCHED: Cell<bool> = const { Cell::new(false) };
}

/// An interface of any transport, together with its endpoints.
pub(crate) trait Inherited {
    /// Called in a child: closes the interface and its endpoints in this process only. Allocates
    /// nothing, takes no lock and makes no system call.
    fn close_in_child(&self);
}

/// Registers `interface` to be closed in children of this process.
pub(crate) fn watch<T: Inherited + 'static>(interface: &Rc<T>) {
    set_handler();
    if UNWATCHED.get() {
        return;
    }
    let interface: Weak<dyn Inherited> = Rc::downgrade(interface) as Weak<T>;
    INTERFACES.with_borrow_mut(|interfaces| {
        interfaces.retain(|interface| interface.strong_count() > 0);
        interfaces.push(interface);
    });
}

/// Opens an interface that is not closed in children. A shared worker refuses every call in a child
/// by itself, and its interfaces may be dropped on another thread.
pub(crate) fn unwatched<R>(open: impl FnOnce() -> R) -> R {
    scoped::with(&UNWATCHED, open)
}

fn set_handler() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // Miri runs one process and lacks the function.
        if cfg!(miri) {
            return;
        }
        // SAFETY: the handler has the right type and lives as long as the program: libc removes it
        // when the library is unloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            tracing::warn!(
                "could not register a fork handler: children must not use inherited objects"
            );
        }
    });
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // On an error the thread is ending, and its interfaces with it.
    let _ = INTERFACES.try_with(|interfaces| {
        let Ok(interfaces) = interfaces.try_borrow() else { return };
        for interface in interfaces.iter().filter_map(Weak::upgrade) {
            interface.close_in_child();
        }
    });
}

/// The process that created an object. The default is this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker(u32);

impl Default for Maker {
    fn default() -> Self {
        Self::this_process()
    }
}

impl Maker {
    /// Returns this process.
    pub(crate) fn this_process() -> Self {
        set_handler();
        Self::current()
    }

    /// As [`Self::this_process`], for callers with an open interface.
    #[inline]
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether it is the parent of this process, or an older ancestor.
    #[inline]
    pub(crate) fn is_parent(self) -> bool {
        self != Self::current()
    }
}
