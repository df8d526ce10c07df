//! A device as its users hold it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command::{self, CommandSyndrome};
use crate::config::{Config, Mode, OpenError, WireKind};
use crate::counters::Counters;
use crate::engine::{Objects, Report, Strict};
use crate::key::{self, Key, KeyError};
use crate::memory::{UmemAccess, UmemError};
use crate::object::{EventChannel, ObjectCounts, UarPage};
use crate::state::{Fault, State};
use crate::thread::{self, DoorbellWake, Shared};
use crate::wake::Wake;
use crate::wire::fault::SplitMix;
use crate::wire::udp::Udp;
use crate::wire::{Decoration, Faults, PhysicalPort, Wire, assemble};

/// A software HCA. Clones are handles to the same device; it closes with the last of them, and its thread ends before that
/// handle's drop returns.
///
/// In a child by fork the device has stopped: commands are refused, and dropping the handle leaks it.
///
/// ```
/// use barewire_hca::{Config, Device, Fabric, WireKind};
/// use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
/// use barewire_layouts::command::{answer, request};
/// use barewire_layouts::prm::Layout;
///
/// let device = Device::open(Config { wire: WireKind::Fabric(Fabric::new()), ..Config::default() })?;
/// let (mut input, mut output) = ([0; AllocPdIn::BYTES], [0; AllocPdOut::BYTES]);
/// request::<AllocPdIn>(&mut input).expect("sized by the layout");
/// // SAFETY: the command names no object.
/// unsafe { device.execute(&input, &mut output) };
/// let pd = answer::<AllocPdIn>(&output)?.get(AllocPdOut::PD);
/// assert_ne!(pd, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
}

/// What all handles share and the thread does not: its drop ends the thread.
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that opened it. In a child by fork the device has stopped: there is no thread,
    /// which may have held the lock and been in the middle of a change.
    process: u32,
    address: IpAddr,
    strict: Strict,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenError`] if the address or its port cannot be had, or the thread cannot be started.
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
            dynamic_connections,
        } = config;
        let given = [address, second_address].into_iter().flatten();
        if let Some(address) = given.into_iter().find(|&address| !crate::address::is_host(address)) {
            return Err(OpenError::Address { address });
        }
        let stepped = mode == Mode::Stepped;
        let key = match (&wire, key) {
            (WireKind::Udp, None) => Some(Key::of_user()?),
            (WireKind::Udp, key) => key,
            (WireKind::Roce | WireKind::Fabric(_), _) => None,
        };
        let carrier = Carrier { wire, key, faults, pcap, stepped };
        let (first, last_connection) = carrier.attach(1, address)?;
        let mut all = vec![first];
        if ports > 1 {
            all.push(carrier.attach(2, second_address)?.0);
        }
        let ports = all;
        let (address, addresses) = (ports[0].address, ports.iter().map(|port| port.address));
        let mut numbers = Numbers::new(seed, stepped)?;
        let mut objects = Objects::new(addresses, dynamic_connections, || numbers.next());
        (objects.last_connection, objects.port_type) = (last_connection, port_type);
        let mut state = State::new(ports, strict, stepped, objects);
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
        Ok(Self { handle: Arc::new(Handle { shared, thread, process: std::process::id(), address, strict }) })
    }

    /// Carries out the PRM command in `input` and puts its answer into `output`, zeros behind it.
    ///
    /// What goes wrong is in the answer: `status`, and a [`CommandSyndrome`] as `syndrome`. If `output` is shorter than the
    /// 8-byte header, its first byte is the status BAD_OUTPUT_LEN. No bytes make the device panic.
    ///
    /// # Safety
    /// Commands name objects by number, and the device does not know who made them. The command names no
    /// object (registered memory, key, protection domain, queue or any other) that another user of the
    /// device made, unless that user allows what the command does. Otherwise the device could be made
    /// to write memory whose owner relies on nobody else having a key to it.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(device: &barewire_hca::Device, command: &[u8]) {
    ///     device.execute(command, &mut [0; 16]);
    /// }
    /// ```
    pub unsafe fn execute(&self, input: &[u8], output: &mut [u8]) {
        match self.handle.lock() {
            Ok(mut state) => state.execute(input, output),
            Err(_) => command::refuse(output, CommandSyndrome::Stopped),
        }
        self.handle.wake();
    }

    /// Lets the device access the `length` bytes at `start` and gives the registration's number for `..._umem_id` fields.
    ///
    /// The device accesses registered memory only, and checks every address of a command, a work request
    /// or a packet against it. It accesses this memory when a command of [`Device::execute`] has named it
    /// by its number: that command makes a queue in it, or a key to it. Whoever can post to a queue pair of
    /// the key's protection domain, and every peer that the key has rights for, can then name the key.
    ///
    /// # Errors
    /// [`UmemError`] if the range is empty or too long, or the device has no number left.
    ///
    /// # Safety
    /// Until [`Device::deregister_umem`] (or DESTROY_UMEM) returned success, or the last handle of the device is gone,
    /// - `[start, start + length)` is mapped and readable; it is writable if `access` is;
    /// - it is accessed only in ways that expect a device to read and write it at any time: through raw pointers or atomics,
    ///   never through references to plain data that the device may change at the moment.
    pub unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
        access: UmemAccess,
    ) -> Result<u32, UmemError> {
        let mut state = self.handle.lock().map_err(|_| UmemError::Stopped)?;
        // SAFETY: the caller's promise. The number is given back by deregistration only, and the table is dropped with the
        // device, after its thread ended (`Handle::drop`).
        unsafe { state.objects.memory.register(start, length, access, false) }
    }

    /// The same for memory that need not be there: it is brought in when who has a memory key accesses it, and an access to what is not
    /// there then is refused. No queue can lie in it.
    ///
    /// # Errors
    /// As [`Device::register_umem`].
    ///
    /// # Safety
    /// As for [`Device::register_umem`], but that the range is mapped need hold only while an atomic operation is carried out in it.
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

    /// Withdraws a registration: when this returns success the device does not touch the memory any more.
    ///
    /// # Errors
    /// [`UmemError::Busy`] while memory keys or queues use it, [`UmemError::Unknown`] for a number that is not registered.
    ///
    /// # Safety
    /// `id` names a registration that the caller made, or none. The number of a registration that another
    /// user lost would come to name other memory.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(device: &barewire_hca::Device) {
    ///     let _ = device.deregister_umem(1);
    /// }
    /// ```
    pub unsafe fn deregister_umem(&self, id: u32) -> Result<(), UmemError> {
        self.handle.lock().map_err(|_| UmemError::Stopped)?.objects.memory.deregister(id)
    }

    /// What two memory keys stand for changes places: memory, rights, protection domain. Their numbers stay. With it a region is
    /// registered anew under its old key, as a kernel's driver does by work requests of its own. False if one of them does not exist.
    ///
    /// # Safety
    /// The caller made both keys, or neither exists.
    ///
    /// ```compile_fail,E0133
    /// fn anyone(device: &barewire_hca::Device) {
    ///     let _ = device.exchange_mkeys(1, 2);
    /// }
    /// ```
    pub unsafe fn exchange_mkeys(&self, a: u32, b: u32) -> bool {
        self.handle.lock().is_ok_and(|mut state| state.objects.memory.exchange(a, b))
    }

    /// The UAR page that ALLOC_UAR named, if it is allocated. The page stays valid as long as the result is held, even when
    /// the device no longer looks at it.
    ///
    /// A store to the page rings queues, and one to a BlueFlame register is a work request. Whoever stores
    /// to it names only queues that are its own, as for [`Device::execute`].
    pub fn uar_page(&self, index: u32) -> Option<Arc<UarPage>> {
        let state = self.handle.lock().ok()?;
        state.objects.uars.get(index).map(|uar| Arc::clone(&uar.page))
    }

    /// The interrupt of event queue `eqn`, if there is one: what a program sleeps on until the device writes entries.
    pub fn event_channel(&self, eqn: u32) -> Option<Arc<EventChannel>> {
        let state = self.handle.lock().ok()?;
        state.objects.events.queues.get(eqn).map(|eq| Arc::clone(&eq.channel))
    }

    /// Tells that software consumed all entries of event queue `eqn` up to `consumer` (modulo 2^24). The same as the EQ doorbell of its
    /// UAR page; but there, of two event queues' doorbells, the later may overwrite the earlier.
    pub fn consume_events(&self, eqn: u32, consumer: u32) {
        if let Ok(mut state) = self.handle.lock()
            && let Some(eq) = state.objects.events.queues.get_mut(eqn)
        {
            eq.consumed(consumer, true);
        }
    }

    /// The IP address of the device's first port: where its packets come from and go to.
    pub fn address(&self) -> IpAddr {
        self.handle.address
    }

    /// The device's GID, its only one: its IPv6 address, or `::ffff:a.b.c.d`.
    pub fn gid(&self) -> [u8; 16] {
        crate::address::gid(self.handle.address)
    }

    /// Makes something go wrong, now. False if there is no such completion queue, or it is overrun already.
    pub fn inject(&self, fault: Fault) -> bool {
        let injected = self.handle.lock().is_ok_and(|mut state| state.inject(fault));
        self.handle.wake();
        injected
    }

    /// How the device notices a doorbell while its thread sleeps.
    pub fn doorbell_wake(&self) -> DoorbellWake {
        if self.handle.is_parents() {
            return DoorbellWake::Stepped;
        }
        self.handle.shared.doorbell_wake()
    }

    /// One pass of the engine: notices doorbells, takes packets, sends what is due. False if neither this pass nor, as far as
    /// timers go, a later one has anything to do unless something is posted or arrives.
    ///
    /// For [`Mode::Stepped`]. With a thread it does nothing and is false.
    pub fn step(&self) -> bool {
        if self.handle.thread.is_some() {
            return false;
        }
        self.handle.lock().is_ok_and(|mut state| state.step())
    }

    /// Takes the findings of the strict checks since the last call. With [`Strict::Report`] each was one line on standard error.
    pub fn take_reports(&self) -> Vec<Report> {
        self.handle.lock_any().map(|mut state| state.reports.take()).unwrap_or_default()
    }

    /// What the device counted since it was opened.
    pub fn counters(&self) -> Counters {
        self.handle.lock_any().map(|state| state.counters()).unwrap_or_default()
    }

    /// The device's clock, in nanoseconds from any start: what completions' time stamps are taken from.
    pub fn clock(&self) -> u64 {
        self.handle.lock_any().map_or(0, |state| state.clock())
    }

    /// How many objects the device holds: what a tidy user leaves at zero.
    pub fn objects(&self) -> ObjectCounts {
        self.handle.lock_any().map(|state| state.objects.count()).unwrap_or_default()
    }
}

/// What carries the packets of ports.
struct Carrier {
    wire: WireKind,
    key: Option<Key>,
    faults: Faults,
    pcap: Option<PathBuf>,
    stepped: bool,
}

/// Chooses where the numbers of objects begin: see [`Config::seed`].
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
    /// Attaches port `number` at `address` or a free one, and gives a number that connections begin with: it is higher than those of
    /// whatever device had the address before.
    fn attach(&self, number: u8, address: Option<IpAddr>) -> Result<(PhysicalPort, u64), OpenError> {
        let Self { wire, key, faults, pcap, stepped } = self;
        let stepped = *stepped;
        // Two ports do not write one file.
        let pcap = pcap.as_ref().map(|path| {
            let own = number == 1 || path.to_string_lossy().contains("%a");
            if own { path.clone() } else { path.with_extension("2.pcap") }
        });
        let decoration = Decoration { faults, pcap: pcap.as_deref(), stepped };
        let (address, last_connection, wire): (_, _, io::Result<Box<dyn Wire>>) = match wire {
            WireKind::Udp | WireKind::Roce => {
                let udp = Udp::bind(address, *key).map_err(|source| match address {
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
        let capture = |source| OpenError::Capture { path: pcap.clone().unwrap_or_default(), source };
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

    /// Also of a device that has stopped, but not of the parent's.
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
            // Neither may be dropped: the state may be half changed, and the thread is not there.
            std::mem::forget((Arc::clone(&self.shared), self.thread.take()));
            return;
        }
        let Some(thread) = self.thread.take() else { return };
        self.shared.stop();
        // A test that asked for panics shall fail even if nobody looked at the device again.
        if let Err(panic) = thread.join()
            && self.strict == Strict::Panic
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
