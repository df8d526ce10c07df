//! The channel to a device of this machine: DEVX, by way of libmlx5 and the kernel.

use core::any::Any;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use barewire_layouts::doorbell::CQ_DOORBELL_OFFSET;
use barewire_verbs::dv::{self, Devx, EventChannel, UarKind};

use super::{CommandChannel, CompletionEvents, Object, Uar, Umem};
use crate::error::Error;
use crate::route::Route;
use crate::values::{Port, PortAddress};

/// A channel to a device that takes commands of programs.
#[derive(Debug)]
pub struct Mlx5dv {
    devx: Devx,
    route: Route,
    /// Pages can be mapped write-combining.
    combines: bool,
}

impl Mlx5dv {
    pub(crate) fn new(devx: Devx, route: Route) -> Self {
        // libmlx5 refuses such a page where the kernel found that bursts do not arrive whole.
        let combines = devx.allocate_uar(UarKind::BlueFlame).is_ok();
        Self { devx, route, combines }
    }
}

// SAFETY: the kernel lets the device at registered memory only, and DEVX ties every object to this process. libmlx5 calls nothing of ours.
unsafe impl CommandChannel for Mlx5dv {
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.devx.general(input, output) }.map_err(|source| system("sending a command", source))
    }

    unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Box<dyn Object>, Error> {
        // SAFETY: as above.
        let made = unsafe { self.devx.create(input, output) };
        match made.map_err(|source| system("creating an object", source))? {
            Some(object) => Ok(Box::new(DevxObject(object))),
            None => Err(super::refusal(input, output)),
        }
    }

    fn allocate_uar(&self) -> Result<Box<dyn Uar>, Error> {
        let kind = if self.combines { UarKind::BlueFlame } else { UarKind::NonCached };
        let uar = self.devx.allocate_uar(kind).map_err(|source| system("mapping a UAR page", source))?;
        Ok(Box::new(DevxUar(uar)))
    }

    fn maps_write_combining(&self) -> bool {
        self.combines
    }

    fn event_queue(&self) -> Result<u32, Error> {
        self.devx.event_queue(0).map_err(|source| system("asking for an event queue", source))
    }

    fn completion_events(&self, _: &Arc<dyn Uar>) -> Result<Option<Arc<dyn CompletionEvents>>, Error> {
        let channel =
            EventChannel::new(&self.devx).map_err(|source| system("making an event channel", source))?;
        Ok(Some(Arc::new(DevxEvents { event_queue: self.event_queue()?, channel })))
    }

    fn port(&self) -> Option<Port> {
        Some(*self.route.port())
    }

    fn next_hop(&self, remote: &PortAddress) -> Result<[u8; 6], Error> {
        self.route.next_hop(remote)
    }

    unsafe fn register_umem(&self, start: NonNull<u8>, length: usize) -> Result<Box<dyn Umem>, Error> {
        let access = barewire_verbs::Access::LOCAL_WRITE;
        // SAFETY: the caller's contract is the same.
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
        // SAFETY: the caller's contract is the same.
        unsafe { self.0.execute(input, output) }.map_err(|source| system("sending a command", source))
    }
}

/// What the kernel reads from its event queue for us.
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
        let foreign = || Error::parameter("completion queue", 0u32, "one of this device");
        let DevxObject(queue) = (queue as &dyn Any).downcast_ref().ok_or_else(foreign)?;
        let watched = self.channel.subscribe_completions(queue, 0);
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

#[derive(Debug)]
struct DevxUar(dv::Uar);

// SAFETY: the register is this allocation's alone and stays mapped as long as it.
unsafe impl Uar for DevxUar {
    fn index(&self) -> u32 {
        self.0.page()
    }

    fn register(&self) -> NonNull<u8> {
        self.0.register()
    }

    fn completion_doorbell(&self) -> Option<NonNull<u64>> {
        // SAFETY: inside the page, which is aligned and mapped for writes as long as the allocation lives.
        Some(unsafe { self.0.base().add(CQ_DOORBELL_OFFSET) }.cast())
    }
}

#[derive(Debug)]
struct DevxUmem(dv::Umem);

// SAFETY: the kernel takes the memory from the device before it answers.
unsafe impl Umem for DevxUmem {
    fn id(&self) -> u32 {
        self.0.id()
    }

    fn deregister(&mut self) -> Result<(), Error> {
        self.0.deregister().map_err(|source| system("deregistering memory", source))
    }
}
