//! The handle of a device.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use barewire_layouts::management::MAD_BYTES;
use barewire_layouts::page_fault::PageFault;

use crate::command::{self, CommandSyndrome, Sender};
use crate::config::{Config, Mode, OpenError, WireKind};
use crate::counters::Counters;
use crate::engine::{Objects, Report, Strict};
use crate::key::{self, Key, KeyError};
use crate::memory::{AbsentPages, DeviceMemory, PagingError, UmemAccess, UmemError};
use crate::object::{EventChannel, EventWatch, Management, ObjectCounts, ObjectWatch, UarPage};
use crate::requirements::Requirements;
use crate::state::{Fault, State};
use crate::thread::{self, DoorbellWake, Shared};
use crate::wake::Wake;
use crate::wire::fault::SplitMix;
use crate::wire::udp::Udp;
use crate::wire::{Decoration, Faults, PhysicalPort, Wire, assemble, interface};

/// A software HCA. Clones are handles of the same device. The device closes with its last handle,
/// whose drop waits for the thread to end.
///
/// In a forked child the device has stopped: commands are refused, and dropping the handle leaks
/// it.
///
/// ```
/// use barewire_hca::{Config, Device, Fabric, WireKind};
/// use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
/// use barewire_layouts::command::{answer, request};
/// use barewire_layouts::prm::Layout;
///
/// let device = Device::open(Config::default().wire(WireKind::Fabric(Fabric::new())))?;
/// let (mut input, mut output) = ([0; AllocPdIn::BYTES], [0; AllocPdOut::BYTES]);
/// request::<AllocPdIn>(&mut input).expect("sized by the layout");
/// // SAFETY: the command names no object.
/// unsafe { device.execute(&input, &mut output) };
/// let pd = answer::<AllocPdIn>(&output)?.get(AllocPdOut::PD);
/// assert_ne!(pd, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "dropping the last handle ends the device"]
pub struct Device {
    handle: Arc<Handle>,
}

/// State of all handles that the thread does not share; its drop ends the thread.
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that opened the device. A forked child has no thread, and the thread may have
    /// held the lock during a change.
    process: u32,
    address: IpAddr,
    strict: Strict,
    requirements: Requirements,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenError`] if the address or its port is not available, or the thread cannot be started.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let Config {
            address,
            second_address,
            mode,
            wire,
            key,
            seed,
            port_type,
            ports,
            faults,
            pcap,
            strict,
            reserved_bits,
            requirements,
            dynamic_connections,
        } = config;
        let given = [address, second_address].into_iter().flatten();
        if let Some(address) = given.into_iter().find(|&address| !crate::address::is_host(address))
        {
            return Err(OpenError::Address { address });
        }
        let stepped = mode == Mode::Stepped;
        let key = match (&wire, key) {
            (WireKind::Auto | WireKind::Udp, None) => Some(Key::of_user()?),
            (WireKind::Auto | WireKind::Udp, key) => key,
            (WireKind::Roce | WireKind::Fabric(_), _) => None,
        };
        let carrier = Carrier { wire, key, faults, pcap, stepped };
        let (first, last_connection) = carrier.attach(1, address)?;
        let mut all = vec![first];
        if ports > 1 {
            all.push(carrier.attach(2, second_address)?.0);
        }
        let ports = all;
        let requirements = match carrier.wire {
            WireKind::Auto | WireKind::Udp | WireKind::Roce => {
                requirements.within(ports.iter().filter_map(|port| interface::mtu(port.address)))
            }
            WireKind::Fabric(_) => requirements,
        };
        let (address, addresses) = (ports[0].address, ports.iter().map(|port| port.address));
        let mut numbers = Numbers::new(seed, stepped)?;
        let mut objects = Objects::new(addresses, dynamic_connections, || numbers.next());
        (objects.last_connection, objects.port_type) = (last_connection, port_type);
        objects.requirements = requirements;
        let mut state = State::new(ports, (strict, reserved_bits), stepped, objects);
        state.set_faults(&carrier.faults);
        let (shared, thread) = match mode {
            Mode::Stepped => (Shared::new(state, None), None),
            Mode::Thread | Mode::PollingThread => {
                let wake = Wake::new().map_err(|source| OpenError::Thread { source })?;
                let shared = Shared::new(state, Some(wake));
                let thread = thread::spawn(Arc::clone(&shared), mode == Mode::Thread)
                    .map_err(|source| OpenError::Thread { source })?;
                (shared, Some(thread))
            }
        };
        Ok(Self {
            handle: Arc::new(Handle {
                shared,
                thread,
                process: std::process::id(),
                address,
                strict,
                requirements,
            }),
        })
    }

    /// Executes the PRM command in `input` and writes its output to `output`, followed by zeros.
    ///
    /// Errors are in the output: `status`, and a [`CommandSyndrome`] as `syndrome`. If `output` is
    /// shorter than the 8-byte header, its first byte is the status BAD_OUTPUT_LEN. No input makes
    /// the device panic.
    ///
    /// # Safety
    /// Commands name objects by number, and the device does not know which user created them. The
    /// command must not name an object (registered memory, key, protection domain, queue or any
    /// other) of another user of the device, unless that user allows the command. Otherwise the
    /// device could write to memory whose owner relies on there being no other key to it.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(device: &barewire_hca::Device, command: &[u8]) {
    ///     device.execute(command, &mut [0; 16]);
    /// }
    /// ```
    pub unsafe fn execute(&self, input: &[u8], output: &mut [u8]) {
        self.execute_for(Sender::Program, input, output);
    }

    /// As [`Self::execute`], of a command that the kernel sends for an object of verbs.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn execute_for_kernel(&self, input: &[u8], output: &mut [u8]) {
        self.execute_for(Sender::Kernel, input, output);
    }

    fn execute_for(&self, sender: Sender, input: &[u8], output: &mut [u8]) {
        let delay = self.handle.requirements.command_delay;
        if self.handle.thread.is_some() && !delay.is_zero() {
            std::thread::sleep(delay);
        }
        match self.handle.lock() {
            Ok(mut state) => state.execute(sender, input, output),
            Err(_) => command::refuse(output, CommandSyndrome::Stopped),
        }
        self.handle.wake();
    }

    /// Lets the device access the `length` bytes at `start`. Returns the UMEM number, for
    /// `..._umem_id` fields.
    ///
    /// The device accesses registered memory only, and checks every address of a command, a WQE or
    /// a packet against it. It accesses this memory after a command of [`Device::execute`] has
    /// named its number to create a queue in it or a key to it. Any queue pair of the key's
    /// protection domain can then use the key, and so can every peer that the key grants rights to.
    ///
    /// # Errors
    /// [`UmemError`] if the range is empty or too long, or the device has no number left.
    ///
    /// # Safety
    /// Until [`Device::deregister_umem`] (or DESTROY_UMEM) returns success, or the last handle of
    /// the device is dropped,
    /// - `[start, start + length)` is mapped and readable, and writable if `access` is;
    /// - it is accessed only in ways that allow a device to read and write it at any time: through
    ///   raw pointers or atomics, not through references to plain data that the device may change
    ///   meanwhile.
    pub unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: UmemAccess,
    ) -> Result<u32, UmemError> {
        let mut state = self.handle.lock().map_err(|_| UmemError::Stopped)?;
        // SAFETY: the caller's contract. Only deregistration returns the number, and the table is
        // dropped with the device, after its thread ended (`Handle::drop`).
        unsafe { state.objects.memory.register(start, length, access, false) }
    }

    /// Sets the size of the pages of a registration, a power of two, as a kernel chooses it by the
    /// addresses for DMA. Memory keys whose first address has another offset in a page are refused
    /// ([`CommandSyndrome::MkeyPageOffset`]). By default, keys may start at any address.
    pub fn set_umem_page(&self, id: u32, page: u64) {
        if let Ok(mut state) = self.handle.lock() {
            state.objects.memory.set_page(id, page.next_power_of_two());
        }
    }

    /// Returns the events of the device, its ports and its queues from now on, as the kernel reports
    /// them to each program.
    ///
    /// # Errors
    /// The kernel's error, if no descriptor is left.
    pub fn watch(&self) -> io::Result<Arc<EventWatch>> {
        let stopped = |_| io::Error::other("the device has stopped");
        self.handle.lock().map_err(stopped)?.watch()
    }

    /// Returns a watch for events of queues, to which its owner then subscribes.
    ///
    /// # Errors
    /// The kernel's error, if no descriptor is left.
    pub fn watch_objects(&self) -> io::Result<Arc<ObjectWatch>> {
        let stopped = |_| io::Error::other("the device has stopped");
        self.handle.lock().map_err(stopped)?.objects.events.watch_objects()
    }

    /// Returns the management datagrams that arrive at queue pair 1 of the ports from now on. All
    /// callers get the same ones.
    ///
    /// # Errors
    /// The kernel's error, if no descriptor is left.
    pub fn management(&self) -> io::Result<Arc<Management>> {
        let stopped = |_| io::Error::other("the device has stopped");
        self.handle.lock().map_err(stopped)?.management()
    }

    /// Sends a management datagram from queue pair 1 of `port` (from 1) to queue pair 1 of the port
    /// with address `to`. It may be lost. Returns false if there is no such port, or the device has
    /// stopped.
    pub fn send_management(&self, port: u8, to: IpAddr, bytes: &[u8; MAD_BYTES]) -> bool {
        let sent = self.handle.lock().is_ok_and(|mut state| state.send_management(port, to, bytes));
        self.handle.wake();
        sent
    }

    /// Returns whether the device broke down: see [`Fault::Fatal`].
    pub fn is_broken(&self) -> bool {
        self.handle.lock_any().is_some_and(|state| state.is_broken())
    }

    /// Returns whether the device was removed: see [`Fault::Unplug`].
    pub fn is_unplugged(&self) -> bool {
        self.handle.lock_any().is_some_and(|state| state.is_unplugged())
    }

    /// Returns what the device requires.
    pub fn requirements(&self) -> Requirements {
        self.handle.requirements
    }

    /// Registers memory that need not be mapped (on-demand paging). It is paged in when it is
    /// accessed through a memory key, by the device or by a kernel that gets page faults
    /// ([`Requirements::page_faults`]); an access to unmapped memory is refused. No queue can lie
    /// in it.
    ///
    /// # Errors
    /// As [`Device::register_umem`].
    ///
    /// # Safety
    /// As for [`Device::register_umem`], but the range must be mapped only while an atomic
    /// operation executes in it.
    pub unsafe fn register_umem_on_demand(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: UmemAccess,
    ) -> Result<u32, UmemError> {
        let mut state = self.handle.lock().map_err(|_| UmemError::Stopped)?;
        // SAFETY: as in `register_umem`.
        unsafe { state.objects.memory.register(start, length, access, true) }
    }

    /// Makes `pages` of memory that is registered on demand present for the device, as the kernel's
    /// driver does for a page fault ([`Requirements::page_faults`]) or a prefetch. Afterwards the
    /// kernel answers the fault by PAGE_FAULT_RESUME.
    ///
    /// # Errors
    /// [`PagingError`] if the registration or the range does not exist, has fixed pages, or is not
    /// mapped for this access. The kernel then resumes with an error.
    pub fn page_in(&self, pages: AbsentPages) -> Result<(), PagingError> {
        let mut state = self.handle.lock().map_err(|_| PagingError::Stopped)?;
        state.objects.memory.page_in(pages)
    }

    /// Takes `pages` away from the device, as the kernel's driver does before the program's memory
    /// is unmapped or moved. After the return the device does not access them until they are paged
    /// in again: if it reports page faults, by [`Device::page_in`]. `write` is ignored.
    ///
    /// # Errors
    /// [`PagingError`] if the registration or the range does not exist, or has fixed pages.
    pub fn page_out(&self, pages: AbsentPages) -> Result<(), PagingError> {
        let mut state = self.handle.lock().map_err(|_| PagingError::Stopped)?;
        state.objects.memory.page_out(pages)
    }

    /// Returns the absent pages that the work of a page fault waits for, up to 1 MiB of its memory.
    /// A kernel finds them by the WQE or the key that the event names. None if the work is gone.
    pub fn absent_pages(&self, fault: &PageFault) -> Vec<AbsentPages> {
        self.handle.lock().map(|mut state| state.absent_pages(fault)).unwrap_or_default()
    }

    /// Ends a registration. After success the device does not access the memory any more.
    ///
    /// # Errors
    /// [`UmemError::Busy`] while memory keys or queues use it, [`UmemError::Unknown`] for a number
    /// that is not registered.
    ///
    /// # Safety
    /// `id` is a registration of the caller, or of no one. Otherwise the number of a registration
    /// that another user lost could later name other memory.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(device: &barewire_hca::Device) {
    ///     let _ = device.deregister_umem(1);
    /// }
    /// ```
    pub unsafe fn deregister_umem(&self, id: u32) -> Result<(), UmemError> {
        self.handle.lock().map_err(|_| UmemError::Stopped)?.objects.memory.deregister(id)
    }

    /// Swaps the contexts of two memory keys: memory, rights and protection domain; their numbers
    /// stay. A region can thereby be registered again under its old key, as the kernel's driver
    /// does with internal work requests. Returns false if one of them does not exist.
    ///
    /// # Safety
    /// The caller created both keys, or neither exists.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(device: &barewire_hca::Device) {
    ///     let _ = device.exchange_mkeys(1, 2);
    /// }
    /// ```
    pub unsafe fn exchange_mkeys(&self, a: u32, b: u32) -> bool {
        self.handle.lock().is_ok_and(|mut state| state.objects.memory.exchange(a, b))
    }

    /// Returns the UAR page of that number, if it is allocated. The page stays valid while the
    /// result is held, even when the device no longer watches it.
    ///
    /// A store to the page rings queues, and a store to a BlueFlame register is a WQE. A caller
    /// that stores to it must name only its own queues, as for [`Device::execute`].
    pub fn uar_page(&self, index: u32) -> Option<Arc<UarPage>> {
        let state = self.handle.lock().ok()?;
        state.objects.uars.get(index).map(|uar| Arc::clone(&uar.page))
    }

    /// Returns the memory on the device, in which ALLOC_MEMIC allocates; `None` before the first such
    /// command. It stays valid while the result is held. As with [`Device::execute`], a caller
    /// accesses only what it allocated.
    pub fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        self.handle.lock().ok()?.objects.memory.device_memory().cloned()
    }

    /// Returns the interrupt of event queue `eqn`, which a program sleeps on until the device
    /// writes entries.
    pub fn event_channel(&self, eqn: u32) -> Option<Arc<EventChannel>> {
        let state = self.handle.lock().ok()?;
        state.objects.events.queues.get(eqn).map(|eq| Arc::clone(&eq.channel))
    }

    /// Reports that software consumed all entries of event queue `eqn` up to `consumer` (modulo
    /// 2^24), as the EQ doorbell of the UAR page does. On the page, the later of two event queues'
    /// doorbells may overwrite the earlier.
    pub fn consume_events(&self, eqn: u32, consumer: u32) {
        if let Ok(mut state) = self.handle.lock()
            && let Some(eq) = state.objects.events.queues.get_mut(eqn)
        {
            eq.consumed(consumer, true);
        }
    }

    /// Returns the IP address of the device's first port.
    pub fn address(&self) -> IpAddr {
        self.handle.address
    }

    /// Returns the GID of the first port: its IPv6 address, or `::ffff:a.b.c.d`.
    pub fn gid(&self) -> [u8; 16] {
        crate::address::gid(self.handle.address)
    }

    /// Injects a fault. Returns false if the completion queue does not exist, or has overrun
    /// already.
    #[must_use = "a fault of a missing queue is not injected"]
    pub fn inject(&self, fault: Fault) -> bool {
        let injected = self.handle.lock().is_ok_and(|mut state| state.inject(fault));
        self.handle.wake();
        injected
    }

    /// Returns how the device notices a doorbell while its thread sleeps.
    pub fn doorbell_wake(&self) -> DoorbellWake {
        if self.handle.is_parents() {
            return DoorbellWake::Stepped;
        }
        self.handle.shared.doorbell_wake()
    }

    /// Runs one pass of the engine: polls doorbells, receives packets, sends what is due. Returns
    /// false if neither this pass nor a later timer has work before something is posted or arrives.
    ///
    /// For [`Mode::Stepped`]. With a thread it does nothing and returns false.
    pub fn step(&self) -> bool {
        if self.handle.thread.is_some() {
            return false;
        }
        self.handle.lock().is_ok_and(|mut state| state.step())
    }

    /// Runs one pass of the engine on the calling thread, for a program that polls: without it, the
    /// program and the device's thread compete for CPUs. The thread leaves the work to such
    /// callers, and goes on within 250 microseconds of the last call. Returns false if the pass
    /// found no work, or another thread uses the device.
    ///
    /// # Panics
    /// With [`Strict::Panic`], at a mistake of the program.
    pub fn drive(&self) -> bool {
        self.handle.thread.is_some() && !self.handle.is_parents() && self.handle.shared.drive()
    }

    /// Runs one pass of the engine on the calling thread if the device's thread sleeps, for a
    /// program that has rung a doorbell: a store to memory does not wake the thread at once.
    ///
    /// # Panics
    /// With [`Strict::Panic`], at a mistake of the program.
    pub fn drive_asleep(&self) {
        if self.handle.thread.is_some() && !self.handle.is_parents() {
            self.handle.shared.drive_asleep();
        }
    }

    /// Returns the findings of the strict checks since the last call. With [`Strict::Report`] each
    /// was also a line on standard error.
    #[must_use = "the findings are not returned again"]
    pub fn take_reports(&self) -> Vec<Report> {
        self.handle.lock_any().map(|mut state| state.reports.take()).unwrap_or_default()
    }

    /// Returns the counters of the device since it was opened.
    pub fn counters(&self) -> Counters {
        self.handle.lock_any().map(|state| state.counters()).unwrap_or_default()
    }

    /// Returns the device's clock, in nanoseconds from an arbitrary start, which time stamps of
    /// completions are taken from.
    pub fn clock(&self) -> u64 {
        self.handle.lock_any().map_or(0, |state| state.clock())
    }

    /// Returns how many objects the device holds.
    pub fn objects(&self) -> ObjectCounts {
        self.handle.lock_any().map(|state| state.objects.count()).unwrap_or_default()
    }
}

/// The transport of the ports' packets.
struct Carrier {
    wire: WireKind,
    key: Option<Key>,
    faults: Faults,
    pcap: Option<PathBuf>,
    stepped: bool,
}

/// Chooses the first numbers of objects: see [`Config::seed`].
enum Numbers {
    Lowest,
    Drawn(SplitMix),
}

impl Numbers {
    fn new(seed: Option<u64>, stepped: bool) -> Result<Self, KeyError> {
        let mut bytes = [0; 8];
        let seed = match seed {
            Some(seed) => seed,
            None if stepped => return Ok(Self::Lowest),
            None => {
                key::fill(&mut bytes).map_err(|source| KeyError::Random { source })?;
                u64::from_ne_bytes(bytes)
            }
        };
        Ok(Self::Drawn(SplitMix::new(seed)))
    }

    fn next(&mut self) -> u64 {
        match self {
            Self::Lowest => 0,
            Self::Drawn(random) => random.next(),
        }
    }
}

impl Carrier {
    /// Attaches port `number` at `address` or a free one. Returns the first number of connections,
    /// which is higher than those of an earlier device at the address.
    fn attach(
        &self,
        number: u8,
        address: Option<IpAddr>,
    ) -> Result<(PhysicalPort, u64), OpenError> {
        let Self { wire, key, faults, pcap, stepped } = self;
        let stepped = *stepped;
        // Two ports must not write to one file.
        let pcap = pcap.as_ref().map(|path| {
            let own = number == 1 || path.to_string_lossy().contains("%a");
            if own { path.clone() } else { path.with_extension("2.pcap") }
        });
        let decoration = Decoration { faults, pcap: pcap.as_deref(), stepped };
        let (address, last_connection, wire): (_, _, io::Result<Box<dyn Wire>>) = match wire {
            WireKind::Auto | WireKind::Udp | WireKind::Roce => {
                let near = matches!(wire, WireKind::Auto);
                let udp = Udp::bind(address, *key, near).map_err(|source| match address {
                    Some(address) => OpenError::Bind { address, source },
                    None => OpenError::NoAddress { source },
                })?;
                let address = udp.address();
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                (address, since.as_nanos() as u64, assemble(udp, address, decoration))
            }
            WireKind::Fabric(fabric) => {
                let port = fabric.attach(address).ok_or(match address {
                    Some(address) => OpenError::AddressTaken { address },
                    None => OpenError::FabricFull,
                })?;
                let address = port.address();
                let last_connection = port.number() << 32;
                let port = if stepped {
                    port
                } else {
                    port.with_wake(Wake::new().map_err(|source| OpenError::Thread { source })?)
                };
                (address, last_connection, assemble(port, address, decoration))
            }
        };
        let capture =
            |source| OpenError::Capture { path: pcap.clone().unwrap_or_default(), source };
        Ok((PhysicalPort { address, wire: wire.map_err(capture)? }, last_connection))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.handle.thread.is_some() { Mode::Thread } else { Mode::Stepped };
        f.debug_struct("Device")
            .field("address", &self.handle.address)
            .field("mode", &mode)
            .finish_non_exhaustive()
    }
}

/// The device has stopped: its state is poisoned, or it belongs to the parent process.
struct Stopped;

impl Handle {
    fn is_parents(&self) -> bool {
        self.process != std::process::id()
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Stopped> {
        if self.is_parents() {
            return Err(Stopped);
        }
        self.shared.lock().map_err(|_| Stopped)
    }

    /// Locks the state, also of a device that has stopped, but not of the parent's.
    fn lock_any(&self) -> Option<MutexGuard<'_, State>> {
        (!self.is_parents()).then(|| self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake(&self) {
        if !self.is_parents() {
            self.shared.wake();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_parents() {
            // Neither may be dropped: the state may be inconsistent, and the thread does not exist.
            std::mem::forget((Arc::clone(&self.shared), self.thread.take()));
            return;
        }
        let Some(thread) = self.thread.take() else { return };
        self.shared.stop();
        // A test that asked for panics must fail even if it does not use the device again.
        if let Err(panic) = thread.join()
            && self.strict == Strict::Panic
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
