//! The channel to the software HCA: a call to its command processor.

use core::any::Any;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use barewire_hca::{
    CommandSyndrome, Device, EventChannel, EventWatch, ObjectWatch, UarPage, UmemAccess,
};
use barewire_layouts::command::{
    self, CommandOpcode, InHeader, StatusOut, cq::DestroyCqIn, eq::DestroyEqIn,
    mkey::DestroyMkeyIn, pd::DeallocPdIn, qp::DestroyQpIn, uar,
};
use barewire_layouts::doorbell::{BLUEFLAME_OFFSET, CQ_DOORBELL_OFFSET};
use barewire_layouts::eqe::{EventType, PortChange};
use barewire_layouts::prm::{Layout, View};

use super::event_queue::{EventQueue, create_eq};
use super::{
    CommandChannel, CompletionEvents, DeviceEvent, DeviceEvents, DeviceMapping, Object,
    ObjectEvents, Uar, Umem,
};
use crate::error::Error;
use crate::values::{Port, PortAddress};

/// A channel to a [`Device`] of this process.
#[derive(Clone, Debug)]
pub struct Soft(Device);

impl Soft {
    /// Creates the channel to `device`.
    pub fn new(device: Device) -> Self {
        Self(device)
    }

    /// The device at the other end of the channel.
    pub fn device(&self) -> &Device {
        &self.0
    }
}

// SAFETY: the software HCA accesses memory through mkeys and UMEMs only, and runs in its own thread
// or in `Device::step`, so no method calls back into this crate.
unsafe impl CommandChannel for Soft {
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        // SAFETY: this function has the contract of `Device::execute`.
        unsafe { self.0.execute(input, output) };
        Ok(())
    }

    unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Box<dyn Object>, Error> {
        // SAFETY: this function has the contract of `Device::execute`.
        unsafe { self.0.execute(input, output) };
        let destroy = destroy_command(input, output)?;
        Ok(Box::new(SoftObject { device: self.0.clone(), destroy: Some(destroy) }))
    }

    fn allocate_uar(&self) -> Result<Box<dyn Uar>, Error> {
        let allocate = super::Command::<uar::AllocUarIn>::new();
        let index = allocate.send(self)?.fields().get(uar::AllocUarOut::UAR);
        let page = self.0.uar_page(index).ok_or_else(|| Error::System {
            operation: "mapping a UAR page",
            source: io::Error::new(
                io::ErrorKind::NotFound,
                "the device does not know the page it just gave",
            ),
        })?;
        Ok(Box::new(SoftUar { channel: self.clone(), index, page }))
    }

    fn completion_events(
        &self,
        uar: &Arc<dyn Uar>,
    ) -> Result<Option<Arc<dyn CompletionEvents>>, Error> {
        let queue = create_eq(self, uar).map_err(|error| match error {
            Error::Command(refused) if refused.syndrome == CommandSyndrome::NoDescriptor as u32 => {
                Error::System {
                    operation: "opening an event queue's interrupt",
                    source: io::Error::from_raw_os_error(libc::EMFILE),
                }
            }
            other => other,
        })?;
        let channel = self.0.event_channel(queue.number).ok_or_else(|| Error::System {
            operation: "finding an event queue's interrupt",
            source: io::Error::new(
                io::ErrorKind::NotFound,
                "the device does not know the queue it just made",
            ),
        })?;
        Ok(Some(Arc::new(SoftEvents { queue, channel })))
    }

    fn device_events(&self) -> Result<Option<Box<dyn DeviceEvents>>, Error> {
        let watch = self
            .0
            .watch()
            .map_err(|source| Error::System { operation: "watching the device", source })?;
        Ok(Some(Box::new(SoftDeviceEvents { device: self.0.clone(), watch })))
    }

    fn object_events(&self) -> Result<Option<Box<dyn ObjectEvents>>, Error> {
        let watch = self.0.watch_objects();
        let failed = |source| Error::System { operation: "watching objects", source };
        Ok(Some(Box::new(SoftObjectEvents(watch.map_err(failed)?))))
    }

    fn maps_write_combining(&self) -> bool {
        // The registers are memory of this machine, and the software HCA waits for a burst to end.
        !self.0.requirements().no_write_combining
    }

    fn resumes_page_faults(&self) -> bool {
        true
    }

    // The kernel's part: a host that does not respond is searched for as long as one that does.
    fn next_hop(&self, port: &Port, remote: &PortAddress) -> Result<[u8; 6], Error> {
        std::thread::sleep(self.0.requirements().address_delay);
        let is_loopback = |gid: [u8; 16]| IpAddr::from(gid).to_canonical().is_loopback();
        if is_loopback(port.address.gid) && !is_loopback(remote.gid) {
            return Err(Error::System {
                operation: "resolving the peer's address",
                source: io::ErrorKind::HostUnreachable.into(),
            });
        }
        Ok(remote.mac)
    }

    fn pages_address_space(&self) -> bool {
        true
    }

    fn map_device_memory(&self, address: u64, length: usize) -> Result<DeviceMapping, Error> {
        let memory = self.0.device_memory();
        let mapped = memory.and_then(|memory| Some((memory.at(address, length)?, memory)));
        let (start, memory) = mapped.ok_or_else(|| Error::System {
            operation: "mapping memory on the device",
            source: io::Error::new(
                io::ErrorKind::NotFound,
                "the device does not know the memory it just gave",
            ),
        })?;
        Ok(DeviceMapping { start, owner: Box::new(memory) })
    }

    fn check_pin(&self, start: NonNull<u8>, length: usize) -> Result<(), Error> {
        barewire_hca::check_pin(start.addr().get(), length)
            .map_err(|error| system("registering memory", error))
    }

    unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
    ) -> Result<Box<dyn Umem>, Error> {
        // SAFETY: this function has the contract of `Device::register_umem`.
        let id = unsafe { self.0.register_umem(start, length, UmemAccess::all()) }
            .map_err(|error| system("registering memory", error))?;
        Ok(Box::new(SoftUmem { device: self.0.clone(), id, registered: true }))
    }

    unsafe fn register_address_space(&self) -> Result<(Box<dyn Umem>, Range<u64>), Error> {
        /// Bits of the addresses that the kernel hands out (Linux
        /// Documentation/arch/arm64/memory.rst and arch/x86/x86_64/mm.rst).
        const ADDRESS_BITS: u32 = if cfg!(target_arch = "aarch64") { 48 } else { 47 };
        const FIRST: NonNull<u8> = NonNull::without_provenance(NonZeroUsize::new(4096).unwrap());
        let first = FIRST.addr().get();
        let length = (1 << ADDRESS_BITS) - first;
        // SAFETY: this function has the contract of `Device::register_umem_on_demand`.
        let id = unsafe { self.0.register_umem_on_demand(FIRST, length, UmemAccess::all()) }
            .map_err(|error| system("registering the address space", error))?;
        let umem = SoftUmem { device: self.0.clone(), id, registered: true };
        Ok((Box::new(umem), first as u64..(first + length) as u64))
    }
}

fn system(operation: &'static str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::System { operation, source: io::Error::other(error) }
}

#[derive(Debug)]
struct SoftObject {
    device: Device,
    /// The command that destroys it; `None` once it is destroyed.
    destroy: Option<Vec<u8>>,
}

impl Object for SoftObject {
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        // SAFETY: this function has the contract of `Device::execute`.
        unsafe { self.device.execute(input, output) };
        Ok(())
    }

    fn destroy(mut self: Box<Self>) -> Result<(), Error> {
        self.destroy_now()
    }
}

impl SoftObject {
    /// The number of a queue pair or completion queue.
    fn queue_number(&self) -> Option<u32> {
        let destroy = self.destroy.as_deref()?;
        match View::<InHeader>::new(destroy)?.get(InHeader::OPCODE).ok()? {
            CommandOpcode::DestroyQp => {
                Some(View::<DestroyQpIn>::new(destroy)?.get(DestroyQpIn::QPN))
            }
            CommandOpcode::DestroyCq => {
                Some(View::<DestroyCqIn>::new(destroy)?.get(DestroyCqIn::CQN))
            }
            _ => None,
        }
    }

    fn destroy_now(&mut self) -> Result<(), Error> {
        let Some(command) = self.destroy.take() else { return Ok(()) };
        let mut output = [0; StatusOut::BYTES];
        // SAFETY: the command names the object that was created for this handle, which is its only
        // one, and it was not destroyed yet.
        unsafe { self.device.execute(&command, &mut output) };
        // All such commands respond with a status only.
        if let Err(error) = command::answer::<DestroyCqIn>(&output) {
            self.destroy = Some(command);
            return Err(error.into());
        }
        Ok(())
    }
}

impl Drop for SoftObject {
    fn drop(&mut self) {
        // An object that is still in use stays, and the device then refuses to release its memory.
        let _ = self.destroy_now();
    }
}

#[derive(Debug)]
struct SoftUar {
    channel: Soft,
    index: u32,
    page: Arc<UarPage>,
}

// SAFETY: the page lives as long as the `Arc`. The device takes doorbells by atomic exchange and
// writes nothing else to it.
unsafe impl Uar for SoftUar {
    fn index(&self) -> u32 {
        self.index
    }

    fn register(&self) -> NonNull<u8> {
        // SAFETY: the registers of the page start at this offset, inside the page.
        unsafe { self.page.as_ptr().add(BLUEFLAME_OFFSET) }
    }

    fn completion_doorbell(&self) -> Option<NonNull<u64>> {
        // SAFETY: the offset lies inside the page, which is aligned.
        Some(unsafe { self.page.as_ptr().add(CQ_DOORBELL_OFFSET) }.cast())
    }
}

/// An event queue and its interrupt.
#[derive(Debug)]
struct SoftEvents {
    queue: EventQueue,
    channel: Arc<EventChannel>,
}

impl CompletionEvents for SoftEvents {
    fn event_queue(&self) -> u32 {
        self.queue.number
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn take(&self) -> bool {
        self.channel.take() > 0
    }
}

/// The event that reports the failure of a device, as libibverbs names it.
const FATAL: &str = "DEVICE_FATAL";

/// The events of the device.
#[derive(Debug)]
struct SoftDeviceEvents {
    device: Device,
    watch: Arc<EventWatch>,
}

impl DeviceEvents for SoftDeviceEvents {
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.watch.as_fd())
    }

    // Those of objects are delivered to subscribers only, as by the kernel.
    fn next_event(&self) -> Option<DeviceEvent> {
        loop {
            let event = self.watch.next_event()?;
            return Some(match EventType::from_bits(event.event_type) {
                Some(EventType::InternalError) => DeviceEvent::Fatal(FATAL.to_owned()),
                Some(EventType::PortChange) if event.sub_type == PortChange::Active as u8 => {
                    DeviceEvent::PortUp(event.port_number())
                }
                Some(EventType::PortChange) => DeviceEvent::PortDown(event.port_number()),
                _ => continue,
            });
        }
    }

    // A device that is broken already reports it also after its event was read.
    fn failure(&self) -> Option<String> {
        while self.next_event().is_some() {}
        self.device.is_broken().then(|| FATAL.to_owned())
    }
}

/// The events of subscribed queues.
#[derive(Debug)]
struct SoftObjectEvents(Arc<ObjectWatch>);

impl ObjectEvents for SoftObjectEvents {
    fn subscribe(&self, object: &dyn Object, event: EventType, cookie: u64) -> Result<(), Error> {
        let foreign = || Error::parameter("subscribed object", 0u32, "a queue of this device");
        let object: &SoftObject = (object as &dyn Any).downcast_ref().ok_or_else(foreign)?;
        self.0.subscribe(event, object.queue_number().ok_or_else(foreign)?, cookie);
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn next_event(&self) -> Option<u64> {
        self.0.next_event()
    }
}

impl Drop for SoftUar {
    fn drop(&mut self) {
        let mut release = super::Command::<uar::DeallocUarIn>::new();
        release.fields().set(uar::DeallocUarIn::UAR, self.index);
        // A page that is still in use stays with the device; only this mapping is released.
        let _ = release.send(&self.channel);
    }
}

#[derive(Debug)]
struct SoftUmem {
    device: Device,
    id: u32,
    registered: bool,
}

// SAFETY: the software HCA finishes its accesses to the memory before `deregister_umem` returns
// `Ok`.
unsafe impl Umem for SoftUmem {
    fn id(&self) -> u32 {
        self.id
    }

    fn deregister(&mut self) -> Result<(), Error> {
        if self.registered {
            // SAFETY: the UMEM was registered for this handle and is not deregistered yet.
            let released = unsafe { self.device.deregister_umem(self.id) };
            released.map_err(|error| system("deregistering memory", error))?;
            self.registered = false;
        }
        Ok(())
    }
}

/// The command that destroys the object that `input` created, with its number from `output`.
fn destroy_command(input: &[u8], output: &[u8]) -> Result<Vec<u8>, Error> {
    macro_rules! destroy {
        ($answered:ty, $field:path, $request:ty, $target:path) => {{
            let id = command::answer::<$answered>(output)?.get($field);
            let mut destroy = super::Command::<$request>::new();
            destroy.fields().set($target, id);
            Ok(destroy.0)
        }};
    }
    let opcode = View::<InHeader>::new(input).map(|header| header.get(InHeader::OPCODE));
    match opcode {
        Some(Ok(CommandOpcode::CreateCq)) => {
            destroy!(
                command::cq::CreateCqIn,
                command::cq::CreateCqOut::CQN,
                DestroyCqIn,
                DestroyCqIn::CQN
            )
        }
        Some(Ok(CommandOpcode::CreateEq)) => {
            destroy!(
                command::eq::CreateEqIn,
                command::eq::CreateEqOut::EQ_NUMBER,
                DestroyEqIn,
                DestroyEqIn::EQ_NUMBER
            )
        }
        Some(Ok(CommandOpcode::CreateQp)) => {
            destroy!(
                command::qp::CreateQpIn,
                command::qp::CreateQpOut::QPN,
                DestroyQpIn,
                DestroyQpIn::QPN
            )
        }
        Some(Ok(CommandOpcode::CreateMkey)) => destroy!(
            command::mkey::CreateMkeyIn,
            command::mkey::CreateMkeyOut::MKEY_INDEX,
            DestroyMkeyIn,
            DestroyMkeyIn::MKEY_INDEX
        ),
        Some(Ok(CommandOpcode::AllocMemic)) => {
            use command::memic::{AllocMemicIn, AllocMemicOut, DeallocMemicIn};
            let address =
                command::answer::<AllocMemicIn>(output)?.get(AllocMemicOut::MEMIC_START_ADDR);
            let length = View::<AllocMemicIn>::new(input)
                .map_or(0, |input| input.get(AllocMemicIn::MEMIC_SIZE));
            let mut free = super::Command::<DeallocMemicIn>::new();
            free.fields()
                .set(DeallocMemicIn::MEMIC_START_ADDR, address)
                .set(DeallocMemicIn::MEMIC_SIZE, length);
            Ok(free.0)
        }
        Some(Ok(CommandOpcode::CreateRmp)) => {
            destroy!(
                command::rmp::CreateRmpIn,
                command::rmp::CreateRmpOut::RMPN,
                command::rmp::DestroyRmpIn,
                command::rmp::DestroyRmpIn::RMPN
            )
        }
        Some(Ok(CommandOpcode::CreateXrcSrq)) => {
            destroy!(
                command::xrc::CreateXrcSrqIn,
                command::xrc::CreateXrcSrqOut::XRC_SRQN,
                command::xrc::DestroyXrcSrqIn,
                command::xrc::DestroyXrcSrqIn::XRC_SRQN
            )
        }
        Some(Ok(CommandOpcode::CreateXrq)) => {
            destroy!(
                command::xrq::CreateXrqIn,
                command::xrq::CreateXrqOut::XRQN,
                command::xrq::DestroyXrqIn,
                command::xrq::DestroyXrqIn::XRQN
            )
        }
        Some(Ok(CommandOpcode::AllocXrcd)) => {
            destroy!(
                command::xrc::AllocXrcdIn,
                command::xrc::AllocXrcdOut::XRCD,
                command::xrc::DeallocXrcdIn,
                command::xrc::DeallocXrcdIn::XRCD
            )
        }
        Some(Ok(CommandOpcode::CreateDct)) => {
            destroy!(
                command::dct::CreateDctIn,
                command::dct::CreateDctOut::DCTN,
                command::dct::DestroyDctIn,
                command::dct::DestroyDctIn::DCTN
            )
        }
        Some(Ok(CommandOpcode::AllocPd)) => {
            destroy!(
                command::pd::AllocPdIn,
                command::pd::AllocPdOut::PD,
                DeallocPdIn,
                DeallocPdIn::PD
            )
        }
        _ => Err(Error::System {
            operation: "creating an object",
            source: io::Error::new(
                io::ErrorKind::Unsupported,
                "not a command that makes an object",
            ),
        }),
    }
}
