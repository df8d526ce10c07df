//! The channel to a device of this machine: DEVX, through libmlx5 and the kernel.

use core::any::Any;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use barewire_layouts::doorbell::CQ_DOORBELL_OFFSET;
use barewire_layouts::eqe::EventType;
use barewire_verbs::dv::{self, Devx, EventChannel, UarKind};

use super::{CommandChannel, CompletionEvents, DeviceEvents, Object, ObjectEvents, Uar, Umem};
use crate::error::Error;
use crate::route::Route;
use crate::values::{Port, PortAddress, PortOptions};

/// A channel to a device that supports DEVX.
#[derive(Debug)]
pub struct Mlx5dv {
    devx: Devx,
    route: Route,
    /// Whether UAR pages can be mapped write-combining.
    combines: bool,
    /// The set in which the kernel counts events of the port's queue pairs, or 0.
    counter_set: u8,
    /// The kernel spreads queue pairs over the ports of a bonded card.
    spreads: bool,
}

impl Mlx5dv {
    /// Opens the channel.
    ///
    /// # Errors
    /// If no UAR page is left.
    pub(crate) fn new(devx: Devx, route: Route) -> Result<Self, Error> {
        let combines = match devx.allocate_uar(UarKind::BlueFlame) {
            Ok(_) => true,
            // The kernel found write-combining not to work, as in many virtual machines.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => false,
            Err(error) => return Err(system("mapping a UAR page", error)),
        };
        let kernel = route.kernel_pair(&devx).and_then(|pair| pair.read_back());
        let kernel = kernel.unwrap_or_else(|error| {
            tracing::debug!(%error, "counters of the port may not count these queue pairs");
            Vec::new()
        });
        let chosen = |field| kernel.iter().find(|(name, _)| *name == field).map_or(0, |at| at.1);
        let counter_set = chosen("counter_set_id") as u8;
        let spreads = chosen("lag_tx_port_affinity") > 0;
        Ok(Self { devx, route, combines, counter_set, spreads })
    }
}

// SAFETY: the kernel limits the device to registered memory, and DEVX binds every object to this
// process. libmlx5 does not call back into this crate.
unsafe impl CommandChannel for Mlx5dv {
    fn device_name(&self) -> Option<&str> {
        Some(self.route.device_name())
    }

    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        // SAFETY: this function has the contract of `general`: the command names only objects of
        // its caller.
        unsafe { self.devx.general(input, output) }
            .map_err(|source| system("sending a command", source))
    }

    unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Box<dyn Object>, Error> {
        // SAFETY: this function has the contract of `create`: the command names only objects of its
        // caller.
        let made = unsafe { self.devx.create(input, output) };
        match made.map_err(|source| system("creating an object", source))? {
            Some(object) => Ok(Box::new(DevxObject(object))),
            None => Err(super::refusal(input, output)),
        }
    }

    fn allocate_uar(&self) -> Result<Box<dyn Uar>, Error> {
        let kind = if self.combines { UarKind::BlueFlame } else { UarKind::NonCached };
        let uar =
            self.devx.allocate_uar(kind).map_err(|source| system("mapping a UAR page", source))?;
        Ok(Box::new(DevxUar(uar)))
    }

    fn maps_write_combining(&self) -> bool {
        self.combines
    }

    fn event_queue(&self) -> Result<u32, Error> {
        let vector = self.devx.completion_vector();
        self.devx.event_queue(vector).map_err(|source| system("querying the event queue", source))
    }

    fn completion_events(
        &self,
        _: &Arc<dyn Uar>,
    ) -> Result<Option<Arc<dyn CompletionEvents>>, Error> {
        let channel = EventChannel::new(&self.devx)
            .map_err(|source| system("creating an event channel", source))?;
        Ok(Some(Arc::new(DevxEvents { event_queue: self.event_queue()?, channel })))
    }

    fn device_events(&self) -> Result<Option<Box<dyn DeviceEvents>>, Error> {
        Ok(Some(self.route.events()))
    }

    fn object_events(&self) -> Result<Option<Box<dyn ObjectEvents>>, Error> {
        let channel = EventChannel::new(&self.devx)
            .map_err(|source| system("creating an event channel", source))?;
        Ok(Some(Box::new(DevxObjectEvents(channel))))
    }

    fn kernel_domain(&self) -> Result<Option<barewire_verbs::ProtectionDomain>, Error> {
        self.route.allocate_domain().map(Some)
    }

    fn port(&self, options: PortOptions) -> Result<Option<Port>, Error> {
        let port = match options {
            options if options == PortOptions::default() => *self.route.port(),
            options => self.route.choose(options)?,
        };
        Ok(Some(Port { counter_set: self.counter_set, ..port }))
    }

    fn pages_address_space(&self) -> bool {
        self.route.pages_address_space()
    }

    fn spreads_queue_pairs(&self) -> bool {
        self.spreads
    }

    fn next_hop(&self, port: &Port, remote: &PortAddress) -> Result<[u8; 6], Error> {
        self.route.next_hop(port, remote)
    }

    unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
    ) -> Result<Box<dyn Umem>, Error> {
        let access = barewire_verbs::Access::LOCAL_WRITE;
        // SAFETY: this function has the contract of `Devx::register_umem`.
        let umem = unsafe { self.devx.register_umem(start, length, access) };
        Ok(Box::new(DevxUmem(umem.map_err(|source| system("registering memory", source))?)))
    }
}

fn system(operation: &'static str, source: io::Error) -> Error {
    Error::System { operation, source }
}

#[derive(Debug)]
struct DevxObject(dv::Object);

impl Object for DevxObject {
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        // SAFETY: this function has the contract of the object's `execute`.
        unsafe { self.0.execute(input, output) }
            .map_err(|source| system("sending a command", source))
    }

    fn destroy(self: Box<Self>) -> Result<(), Error> {
        self.0.destroy().map_err(|source| system("destroying an object", source))
    }
}

/// Completion events that the kernel reads from its event queue.
#[derive(Debug)]
struct DevxEvents {
    event_queue: u32,
    channel: EventChannel,
}

impl CompletionEvents for DevxEvents {
    fn event_queue(&self) -> u32 {
        self.event_queue
    }

    fn watch(&self, queue: &dyn Object) -> Result<(), Error> {
        let watched = self.channel.subscribe_completions(devx(queue)?, 0);
        watched.map_err(|source| system("subscribing to completions", source))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn take(&self) -> bool {
        let mut any = false;
        while let Ok(Some(_)) = self.channel.next_event() {
            any = true;
        }
        any
    }
}

/// The object of `object`, if it was created by DEVX.
fn devx(object: &dyn Object) -> Result<&dv::Object, Error> {
    let foreign = || Error::parameter("object", 0u32, "an object of this device");
    let DevxObject(object) = (object as &dyn Any).downcast_ref().ok_or_else(foreign)?;
    Ok(object)
}

/// Events of objects that the kernel reads from its event queues. The destruction of an object ends
/// its subscriptions.
#[derive(Debug)]
struct DevxObjectEvents(EventChannel);

impl ObjectEvents for DevxObjectEvents {
    fn subscribe(&self, object: &dyn Object, event: EventType, cookie: u64) -> Result<(), Error> {
        let subscribed = self.0.subscribe(devx(object)?, event as u16, cookie);
        subscribed.map_err(|source| system("subscribing to events", source))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn next_event(&self) -> Option<u64> {
        self.0.next_event().ok().flatten()
    }
}

#[derive(Debug)]
struct DevxUar(dv::Uar);

// SAFETY: the register stays mapped until the allocation is dropped. A BlueFlame register belongs
// to this allocation alone. Others share one, to which queues write 8 bytes at a time, which the
// CPU does at once.
unsafe impl Uar for DevxUar {
    fn index(&self) -> u32 {
        self.0.page()
    }

    fn register(&self) -> NonNull<u8> {
        self.0.register()
    }

    fn completion_doorbell(&self) -> Option<NonNull<u64>> {
        // SAFETY: the offset lies inside the page, which is aligned, and mapped for writes until
        // the allocation is dropped.
        Some(unsafe { self.0.base().add(CQ_DOORBELL_OFFSET) }.cast())
    }
}

#[derive(Debug)]
struct DevxUmem(dv::Umem);

// SAFETY: the kernel revokes the device's access to the memory before `deregister` returns `Ok`.
unsafe impl Umem for DevxUmem {
    fn id(&self) -> u32 {
        self.0.id()
    }

    fn deregister(&mut self) -> Result<(), Error> {
        self.0.deregister().map_err(|source| system("deregistering memory", source))
    }
}
