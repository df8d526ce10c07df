//! A device as its users hold it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command::{self, CommandSyndrome};
use crate::config::{Config, Mode, OpenError, WireKind};
use crate::engine::{Counters, Report, Strict};
use crate::memory::{UmemAccess, UmemError};
use crate::object::{EventChannel, ObjectCounts, Objects, UarPage};
use crate::state::{Fault, State};
use crate::thread::{self, DoorbellWake, Shared, Wake};
use crate::wire::udp::Udp;
use crate::wire::{Decoration, Faults, PhysicalPort, Wire, assemble};

/// A software HCA. Clones are handles to the same device; it closes with the last of them, and its thread ends before that
/// handle's drop returns.
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
/// device.execute(&input, &mut output);
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
            port_type,
            ports,
            faults,
            pcap,
            strict,
            dynamic_connections,
        } = config;
        let given = [address, second_address].into_iter().flatten();
        if let Some(address) = given.into_iter().find(|&address| !crate::wire::is_host(address)) {
            return Err(OpenError::Address { address });
        }
        let stepped = mode == Mode::Stepped;
        let carrier = Carrier { wire, faults, pcap, stepped };
        let (first, last_connection) = carrier.attach(1, address)?;
        let mut all = vec![first];
        if ports > 1 {
            all.push(carrier.attach(2, second_address)?.0);
        }
        let ports = all;
        let (address, addresses) = (ports[0].address, ports.iter().map(|port| port.address));
        let mut objects = Objects::new(addresses, dynamic_connections);
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
        Ok(Self { handle: Arc::new(Handle { shared, thread, address, strict }) })
    }

    /// Carries out the PRM command in `input` and puts its answer into `output`, zeros behind it.
    ///
    /// What goes wrong is in the answer: `status`, and a [`CommandSyndrome`] as `syndrome`. If `output` is shorter than the
    /// 8-byte header, its first byte is the status BAD_OUTPUT_LEN. Any bytes are allowed; none makes the device panic.
    pub fn execute(&self, input: &[u8], output: &mut [u8]) {
        match self.handle.shared.lock() {
            Ok(mut state) => state.execute(input, output),
            Err(_) => command::refuse(output, CommandSyndrome::Stopped),
        }
        self.handle.shared.wake();
    }

    /// Lets the device access the `length` bytes at `start` and gives the registration's number for `..._umem_id` fields.
    ///
    /// This is the one place where memory safety is promised. The device touches registered memory only, and checks every
    /// address of a command, a work request or a packet against it: after this, no bytes given to the device can do harm.
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
        let mut state = self.handle.shared.lock().map_err(|_| UmemError::Stopped)?;
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
        let mut state = self.handle.shared.lock().map_err(|_| UmemError::Stopped)?;
        // SAFETY: as in `register_umem`.
        unsafe { state.objects.memory.register(start, length, access, true) }
    }

    /// Withdraws a registration: when this returns success the device does not touch the memory any more.
    ///
    /// # Errors
    /// [`UmemError::Busy`] while memory keys or queues use it, [`UmemError::Unknown`] for a number that is not registered.
    pub fn deregister_umem(&self, id: u32) -> Result<(), UmemError> {
        self.handle.shared.lock().map_err(|_| UmemError::Stopped)?.objects.memory.deregister(id)
    }

    /// What two memory keys stand for changes places: memory, rights, protection domain. Their numbers stay. With it a region is
    /// registered anew under its old key, as a kernel's driver does by work requests of its own. False if one of them does not exist.
    pub fn exchange_mkeys(&self, a: u32, b: u32) -> bool {
        self.handle.shared.lock().is_ok_and(|mut state| state.objects.memory.exchange(a, b))
    }

    /// The UAR page that ALLOC_UAR named, if it is allocated. The page stays valid as long as the result is held, even when
    /// the device no longer looks at it.
    pub fn uar_page(&self, index: u32) -> Option<Arc<UarPage>> {
        let state = self.handle.shared.lock().ok()?;
        state.objects.uars.get(index).map(|uar| Arc::clone(&uar.page))
    }

    /// The interrupt of event queue `eqn`, if there is one: what a program sleeps on until the device writes entries.
    pub fn event_channel(&self, eqn: u32) -> Option<Arc<EventChannel>> {
        let state = self.handle.shared.lock().ok()?;
        state.objects.events.queues.get(eqn).map(|eq| Arc::clone(&eq.channel))
    }

    /// Tells that software consumed all entries of event queue `eqn` up to `consumer` (modulo 2^24). The same as the EQ doorbell of its
    /// UAR page; but there, of two event queues' doorbells, the later may overwrite the earlier.
    pub fn consume_events(&self, eqn: u32, consumer: u32) {
        if let Ok(mut state) = self.handle.shared.lock()
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
        command::gid(self.handle.address)
    }

    /// Makes something go wrong, now. False if there is no such completion queue, or it is overrun already.
    pub fn inject(&self, fault: Fault) -> bool {
        let injected = self.handle.shared.lock().is_ok_and(|mut state| state.inject(fault));
        self.handle.shared.wake();
        injected
    }

    /// How the device notices a doorbell while its thread sleeps.
    pub fn doorbell_wake(&self) -> DoorbellWake {
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
        self.handle.shared.lock().is_ok_and(|mut state| state.step())
    }

    /// Takes the findings of the strict checks since the last call. With [`Strict::Report`] each was one line on standard error.
    pub fn take_reports(&self) -> Vec<Report> {
        self.handle.shared.lock().unwrap_or_else(PoisonError::into_inner).reports.take()
    }

    /// What the device counted since it was opened.
    pub fn counters(&self) -> Counters {
        self.handle.shared.lock().unwrap_or_else(PoisonError::into_inner).counters()
    }

    /// The device's clock, in nanoseconds from any start: what completions' time stamps are taken from.
    pub fn clock(&self) -> u64 {
        self.handle.shared.lock().unwrap_or_else(PoisonError::into_inner).clock()
    }

    /// How many objects the device holds: what a tidy user leaves at zero.
    pub fn objects(&self) -> ObjectCounts {
        self.handle.shared.lock().unwrap_or_else(PoisonError::into_inner).objects.count()
    }
}

/// What carries the packets of ports.
struct Carrier {
    wire: WireKind,
    faults: Faults,
    pcap: Option<PathBuf>,
    stepped: bool,
}

impl Carrier {
    /// Attaches port `number` at `address` or a free one, and gives a number that connections begin with: it is higher than those of
    /// whatever device had the address before.
    fn attach(&self, number: u8, address: Option<IpAddr>) -> Result<(PhysicalPort, u64), OpenError> {
        let Self { wire, faults, pcap, stepped } = self;
        let stepped = *stepped;
        // Two ports do not write one file.
        let pcap = pcap.as_ref().map(|path| {
            let own = number == 1 || path.to_string_lossy().contains("%a");
            if own { path.clone() } else { path.with_extension("2.pcap") }
        });
        let decoration = Decoration { faults, pcap: pcap.as_deref(), stepped };
        let (address, last_connection, wire): (_, _, io::Result<Box<dyn Wire>>) = match wire {
            WireKind::Udp => {
                let udp = Udp::bind(address).map_err(|source| match address {
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

impl Drop for Handle {
    fn drop(&mut self) {
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
