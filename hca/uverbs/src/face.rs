//! The process's devices and open descriptors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::adapter::Adapter;
use crate::config::Settings;
use crate::context::{Context, Mapping};
use crate::errno::Errno;

/// The process's face. A child made by fork gets one of its own: threads, and with them the parent's devices, are not inherited.
static FACE: AtomicPtr<Face> = AtomicPtr::new(std::ptr::null_mut());

/// Descriptors below this number are told apart without a lock.
const QUICK: usize = 1 << 16;
/// One bit for each descriptor that is an open device.
static OURS: [AtomicU64; QUICK / 64] = [const { AtomicU64::new(0) }; QUICK / 64];
/// What devices have mapped has one page.
pub(crate) const PAGE: usize = 4096;
/// Lowest and highest address of what was mapped of devices: to see quickly that other memory is meant.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// In a child by fork: up to where its parent had mapped something. The child never gives it back: it is memory of the allocator's.
static INHERITED: AtomicUsize = AtomicUsize::new(0);

/// What there is.
#[derive(Debug)]
pub(crate) struct Face {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    adapters: HashMap<usize, Arc<Adapter>>,
    contexts: HashMap<RawFd, Arc<Context>>,
    /// Memory of devices by address, with how many times it is mapped.
    mapped: HashMap<usize, (Mapping, usize)>,
}

/// The bit of a descriptor that could be a device's.
fn bit(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((OURS.get(number / 64)?, 1 << (number % 64)))
}

/// Whether a descriptor is an open device, of this process or inherited from its parent. Costs one load.
pub(crate) fn is_ours(descriptor: RawFd) -> bool {
    bit(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Whether memory at this address could be a device's. Costs two loads.
pub(crate) fn may_be_mapped(address: usize) -> bool {
    address >= LOWEST.load(Ordering::Relaxed) && address <= HIGHEST.load(Ordering::Relaxed)
}

/// A child by fork begins with nothing. What the parent had stays where it is, for the child's copy of its locks may be taken.
///
/// # Safety
/// There is nothing to keep: it stores a pointer and an address.
pub(crate) unsafe extern "C" fn forget_parent_at_fork() {
    INHERITED.store(HIGHEST.load(Ordering::Relaxed), Ordering::Relaxed);
    FACE.store(std::ptr::null_mut(), Ordering::Release);
}

/// The process's face.
pub(crate) fn get() -> &'static Face {
    let mut face = FACE.load(Ordering::Acquire);
    if face.is_null() {
        let new = Box::into_raw(Box::new(Face { settings: Settings::from_env(), state: Mutex::default() }));
        face = match FACE.compare_exchange(face, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: from a box just above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: from a box that is never freed.
    unsafe { &*face }
}

impl Face {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many devices there are.
    pub(crate) fn devices(&self) -> usize {
        self.settings.devices
    }

    /// `descriptor` is device `number` from now on.
    pub(crate) fn open(&self, number: usize, descriptor: RawFd) -> Result<(), Errno> {
        let (word, bit) = bit(descriptor).ok_or(Errno(libc::EMFILE))?;
        let mut state = self.state();
        let adapter = match state.adapters.entry(number) {
            Entry::Occupied(adapter) => Arc::clone(adapter.get()),
            Entry::Vacant(place) => Arc::clone(place.insert(Adapter::open(number, self.settings)?)),
        };
        let before = state.contexts.insert(descriptor, Arc::new(Context::new(adapter)));
        word.fetch_or(bit, Ordering::AcqRel);
        drop(state);
        // A descriptor that was closed behind our back.
        drop(before);
        Ok(())
    }

    /// What is behind a descriptor; an I/O error for what a parent opened, as for a device that was taken away.
    pub(crate) fn context(&self, descriptor: RawFd) -> Result<Arc<Context>, Errno> {
        self.state().contexts.get(&descriptor).cloned().ok_or(Errno::IO)
    }

    /// `copy` is another descriptor of what is behind `descriptor`.
    pub(crate) fn copy(&self, descriptor: RawFd, copy: RawFd) -> Result<(), Errno> {
        let (word, bit) = bit(copy).ok_or(Errno(libc::EMFILE))?;
        let mut state = self.state();
        let context = state.contexts.get(&descriptor).cloned().ok_or(Errno::IO)?;
        let before = state.contexts.insert(copy, context);
        word.fetch_or(bit, Ordering::AcqRel);
        drop(state);
        drop(before);
        Ok(())
    }

    /// A descriptor is about to be closed.
    pub(crate) fn close(&self, descriptor: RawFd) {
        if let Some((word, bit)) = bit(descriptor) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
        let context = self.state().contexts.remove(&descriptor);
        // Objects are destroyed without the lock.
        drop(context);
    }

    /// The address of what is to be mapped at an offset of a descriptor.
    pub(crate) fn map(&self, descriptor: RawFd, offset: u64) -> Result<usize, Errno> {
        let mapping = self.context(descriptor)?.map(offset)?;
        let address = mapping.address();
        LOWEST.fetch_min(address, Ordering::Relaxed);
        HIGHEST.fetch_max(address, Ordering::Relaxed);
        self.state().mapped.entry(address).or_insert((mapping, 0)).1 += 1;
        Ok(address)
    }

    /// Ends a mapping; false if the memory is no device's.
    pub(crate) fn unmap(&self, address: usize, length: usize) -> bool {
        let mut state = self.state();
        let Some((_, count)) = state.mapped.get_mut(&address) else {
            return address <= INHERITED.load(Ordering::Relaxed) && length <= PAGE;
        };
        *count -= 1;
        if *count == 0 {
            let mapping = state.mapped.remove(&address);
            drop(state);
            drop(mapping);
        }
        true
    }
}
