//! The process's devices, open files and mappings.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::adapter::Adapter;
use crate::config::Settings;
use crate::context::{Context, Mapping};
use crate::errno::Errno;
use crate::explain;
use crate::private;
use crate::rdma_cm::{Channel, Manager};

/// The process state. A forked child gets a new one, because threads, and with them the parent's
/// devices, are not inherited.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Descriptors below this number are classified without a lock.
const WITHOUT_LOCK: usize = 1 << 16;
/// One bit per descriptor, set if it is an open device.
static OURS: [AtomicU64; WITHOUT_LOCK / 64] = [const { AtomicU64::new(0) }; WITHOUT_LOCK / 64];
/// Lowest and highest address of device mappings, for a quick check of other addresses.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// In a forked child: the end of the parent's device mappings. The child never unmaps them, since
/// they are heap memory.
static INHERITED: AtomicUsize = AtomicUsize::new(0);
/// Whether the function for the end of the process is registered. A forked child inherits both.
static AT_EXIT: AtomicBool = AtomicBool::new(false);

/// State of the process.
#[derive(Debug)]
pub(crate) struct Process {
    settings: Settings,
    /// Pages of registered memory, if they count.
    pinned: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    adapters: HashMap<usize, Arc<Adapter>>,
    files: HashMap<RawFd, File>,
    /// The connection manager, once a program has opened its file.
    manager: Option<Arc<Manager>>,
    /// Device memory by address, with the number of mappings.
    mapped: HashMap<usize, (Mapping, usize)>,
}

/// An open file of this library.
#[derive(Clone, Debug)]
enum File {
    /// `/dev/infiniband/uverbsN`.
    Device(Arc<Context>),
    /// `/dev/infiniband/rdma_cm`.
    Connections(Arc<Channel>),
}

/// Returns the word and the mask of a descriptor's bit.
fn bit(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((OURS.get(number / 64)?, 1 << (number % 64)))
}

/// Returns whether a descriptor is an open device of this process or of its parent. Costs one load.
pub(crate) fn is_ours(descriptor: RawFd) -> bool {
    bit(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Returns whether an address may be in device memory. Costs two loads.
pub(crate) fn may_be_mapped(address: usize) -> bool {
    address >= LOWEST.load(Ordering::Relaxed) && address <= HIGHEST.load(Ordering::Relaxed)
}

/// Starts a forked child with empty state. The parent's state is leaked, because its locks may be
/// held.
///
/// # Safety
/// None; the function only stores a pointer and an address, and closes sockets of the parent.
pub(crate) unsafe extern "C" fn forget_parent_at_fork() {
    INHERITED.store(HIGHEST.load(Ordering::Relaxed), Ordering::Relaxed);
    private::close_in_child();
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
}

extern "C" fn at_exit() {
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: the pointer comes from a box that is never freed. In a forked child it is null, or of
    // the child's own state.
    if let Some(process) = unsafe { process.as_ref() } {
        // A panic must not reach the C library.
        let _ = std::panic::catch_unwind(|| process.tell_faults());
    }
}

/// Returns the process state.
pub(crate) fn get() -> &'static Process {
    let mut process = PROCESS.load(Ordering::Acquire);
    if process.is_null() {
        let new = Box::into_raw(Box::new(Process {
            settings: Settings::from_env(),
            pinned: AtomicU64::new(0),
            state: Mutex::default(),
        }));
        process = match PROCESS.compare_exchange(process, new, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: the pointer comes from the box above and was not shared.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: the pointer comes from a box that is never freed.
    unsafe { &*process }
}

impl Process {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> usize {
        self.settings.devices
    }

    /// Returns whether polls without a completion yield the CPU.
    pub(crate) fn yields(&self) -> bool {
        self.settings.yields
    }

    /// Returns the count of pages of registered memory, if they count against RLIMIT_MEMLOCK.
    pub(crate) fn pinned(&'static self) -> Option<&'static AtomicU64> {
        self.settings.memlock.then_some(&self.pinned)
    }

    /// Makes `descriptor` an open descriptor of device `number`.
    pub(crate) fn open(&self, number: usize, descriptor: RawFd) -> Result<(), Errno> {
        let adapter = self.adapter_or_open(number)?;
        self.enter(descriptor, File::Device(Arc::new(Context::new(adapter))))
    }

    /// Opens the file of the connection manager and returns its descriptor.
    pub(crate) fn open_connections(&self, flags: i32) -> Result<RawFd, Errno> {
        let mut state = self.state();
        let manager = match &state.manager {
            Some(manager) => Arc::clone(manager),
            None => Arc::clone(state.manager.insert(Manager::start()?)),
        };
        drop(state);
        let (descriptor, channel) = manager.open(flags)?;
        self.enter(descriptor.as_raw_fd(), File::Connections(Arc::new(channel)))?;
        Ok(descriptor.into_raw_fd())
    }

    /// Makes `descriptor` one of `file`.
    fn enter(&self, descriptor: RawFd, file: File) -> Result<(), Errno> {
        let (word, bit) = bit(descriptor).ok_or(Errno(libc::EMFILE))?;
        let mut state = self.state();
        let before = state.files.insert(descriptor, file);
        word.fetch_or(bit, Ordering::AcqRel);
        drop(state);
        // The descriptor was closed by a call that is not intercepted, such as a raw system call.
        drop(before);
        Ok(())
    }

    /// Returns device `number`, which stays open from then on.
    pub(crate) fn adapter_or_open(&self, number: usize) -> Result<Arc<Adapter>, Errno> {
        let mut state = self.state();
        let (adapter, is_new) = match state.adapters.entry(number) {
            Entry::Occupied(adapter) => (Arc::clone(adapter.get()), false),
            Entry::Vacant(place) => {
                (Arc::clone(place.insert(Adapter::open(number, self.settings)?)), true)
            }
        };
        drop(state);
        if is_new {
            adapter.explain_wake(number);
        }
        let has_counts = is_new && self.settings.faults && explain::is_on();
        if has_counts && !AT_EXIT.swap(true, Ordering::Relaxed) {
            // SAFETY: the function may be called at any time. Without room for it, it is not
            // called.
            unsafe { libc::atexit(at_exit) };
        }
        Ok(adapter)
    }

    /// Prints how many packets of each device met an injected fault, if calls are explained.
    fn tell_faults(&self) {
        // A program may end within a call that holds the lock.
        let Ok(state) = self.state.try_lock() else { return };
        let adapters: BTreeMap<_, _> =
            state.adapters.iter().map(|(&number, adapter)| (number, Arc::clone(adapter))).collect();
        drop(state);
        for (number, adapter) in adapters {
            let it = adapter.device.counters();
            explain::tell(format_args!(
                "mlx5_{number} handed {} packets to the wire: {} dropped, {} duplicated, {} \
                 reordered, {} corrupted, {} delayed; the link flapped {} times, and {} packets were \
                 lost while it was down",
                it.packets_sent,
                it.fault_dropped,
                it.fault_duplicated,
                it.fault_reordered,
                it.fault_corrupted,
                it.fault_delayed,
                it.fault_flaps,
                it.link_dropped,
            ));
        }
    }

    /// Returns device `number` if it was opened.
    pub(crate) fn adapter(&self, number: usize) -> Option<Arc<Adapter>> {
        self.state().adapters.get(&number).cloned()
    }

    /// Returns the context of a descriptor. A descriptor that the parent opened is an I/O error, as
    /// for a removed device.
    pub(crate) fn context(&self, descriptor: RawFd) -> Result<Arc<Context>, Errno> {
        match self.state().files.get(&descriptor) {
            Some(File::Device(context)) => Ok(Arc::clone(context)),
            Some(File::Connections(_)) => Err(Errno(libc::ENOTTY)),
            None => Err(Errno::IO),
        }
    }

    /// Returns the open file of the connection manager. One that the parent opened is an I/O error.
    pub(crate) fn channel(&self, descriptor: RawFd) -> Result<Arc<Channel>, Errno> {
        match self.state().files.get(&descriptor) {
            Some(File::Connections(channel)) => Ok(Arc::clone(channel)),
            Some(File::Device(_)) => Err(Errno::INVALID),
            None => Err(Errno::IO),
        }
    }

    /// Makes `copy` another descriptor of the file of `descriptor`.
    pub(crate) fn copy(&self, descriptor: RawFd, copy: RawFd) -> Result<(), Errno> {
        let file = self.state().files.get(&descriptor).cloned().ok_or(Errno::IO)?;
        self.enter(copy, file)
    }

    /// Closes a descriptor's file.
    pub(crate) fn close(&self, descriptor: RawFd) {
        if let Some((word, bit)) = bit(descriptor) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
        let file = self.state().files.remove(&descriptor);
        // Destroy the objects without the lock.
        drop(file);
    }

    /// Maps device memory at an offset of a descriptor and returns its address.
    pub(crate) fn map(
        &self,
        descriptor: RawFd,
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let mapping = self.context(descriptor)?.map(offset, length)?;
        let address = mapping.address();
        LOWEST.fetch_min(address, Ordering::Relaxed);
        HIGHEST.fetch_max(address, Ordering::Relaxed);
        self.state().mapped.entry(address).or_insert((mapping, 0)).1 += 1;
        Ok(address)
    }

    /// Removes a mapping. Returns `false` if the address is not in device memory.
    pub(crate) fn unmap(&self, address: usize, length: usize) -> bool {
        let mut state = self.state();
        let Some((_, count)) = state.mapped.get_mut(&address) else {
            return address <= INHERITED.load(Ordering::Relaxed)
                && length <= barewire_hca::host_page();
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
