//! The command channel: how set-up reaches a device. The hot path does not use it.
//!
//! A channel carries PRM commands and provides the two resources that are not commands: a mapped
//! UAR page and registered memory. Object creation is separate from other commands because the
//! kernel (DEVX) binds the life of an object to a handle.

#[cfg(feature = "soft")]
mod event_queue;
#[cfg(feature = "verbs")]
pub mod mlx5dv;
pub(crate) mod owned;
pub(crate) mod queue_memory;
pub(crate) mod shared_memory;
#[cfg(feature = "soft")]
pub mod soft;

use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use barewire_layouts::command::{self, Request};
use barewire_layouts::eqe::EventType;
use barewire_layouts::prm::{Layout, View, ViewMut};

use crate::error::Error;
use crate::values::{Port, PortAddress, PortOptions};

/// A channel to a device.
///
/// # Safety
/// The memory safety of the crate rests on this trait. The device behind an implementation accesses
/// memory only through UMEMs that are registered by [`Self::register_umem`] and not yet
/// deregistered, and only as directed by commands that name them. Object numbers in its output name
/// objects that it created for that command. Memory that [`Self::map_device_memory`] returns has
/// `length` bytes, starts at a multiple of 8, is part of no other allocation, and is valid for reads
/// and writes until the owner is dropped. No method calls back into objects or queues of this crate.
///
/// ```compile_fail,E0133
/// use barewire_mlx5::channel::CommandChannel;
///
/// fn anyone(channel: &dyn CommandChannel, command: &[u8]) {
///     let _ = channel.execute(command, &mut [0; 16]);
/// }
/// ```
///
/// ```compile_fail,E0133
/// use barewire_mlx5::channel::CommandChannel;
///
/// fn anyone(channel: &dyn CommandChannel, command: &[u8]) {
///     let _ = channel.create(command, &mut [0; 16]);
/// }
/// ```
pub unsafe trait CommandChannel: fmt::Debug + Send + Sync {
    /// Runs a command that creates no object. On return, `output` holds the device's output,
    /// including its status.
    ///
    /// # Safety
    /// Commands name objects by number. The command names no object (UMEM, mkey, protection domain,
    /// queue or any other) that another user of the device created, unless that user permits what
    /// the command does.
    ///
    /// # Errors
    /// If the command did not reach the device. A status that reports a refusal is not an error
    /// here.
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error>;

    /// Runs a command that creates an object. On return, `output` holds the device's output,
    /// including its status.
    ///
    /// # Safety
    /// The contract of [`Self::execute`].
    ///
    /// # Errors
    /// If the device refused the command, or the command did not reach it.
    unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Box<dyn Object>, Error>;

    /// The kernel's name of the device, such as `mlx5_0`; `None` if the kernel has no such device.
    fn device_name(&self) -> Option<&str> {
        None
    }

    /// Allocates a BlueFlame register of a UAR page.
    ///
    /// # Errors
    /// If the device has none left, or the page could not be mapped.
    fn allocate_uar(&self) -> Result<Box<dyn Uar>, Error>;

    /// Returns `true` if a burst of stores to a UAR page reaches the device as one write.
    fn maps_write_combining(&self) -> bool;

    /// Returns the number of the event queue that new completion queues name. The kernel accepts
    /// only one of its own event queues; the software HCA accepts any number as long as no event is
    /// requested.
    ///
    /// # Errors
    /// If the kernel does not report it.
    fn event_queue(&self) -> Result<u32, Error> {
        Ok(0)
    }

    /// Returns a descriptor for the events of completion queues that are armed through `uar`, or
    /// `None` if the channel has no events.
    ///
    /// # Errors
    /// If the device or the kernel refused.
    fn completion_events(
        &self,
        uar: &Arc<dyn Uar>,
    ) -> Result<Option<Arc<dyn CompletionEvents>>, Error> {
        let _ = uar;
        Ok(None)
    }

    /// Returns the events of the device and its ports, or `None` if the channel has none.
    ///
    /// # Errors
    /// If the kernel refused.
    fn device_events(&self) -> Result<Option<Box<dyn DeviceEvents>>, Error> {
        Ok(None)
    }

    /// Opens a channel for the events of objects. `None` if the device has no such channel: then
    /// [`DeviceEvents`] reports these events, if anything does.
    ///
    /// # Errors
    /// If the kernel refused.
    fn object_events(&self) -> Result<Option<Box<dyn ObjectEvents>>, Error> {
        Ok(None)
    }

    /// Allocates a protection domain of the kernel, which then registers the domain's memory.
    /// `None` if the channel allocates domains and registers memory by commands.
    ///
    /// # Errors
    /// If the kernel refused.
    #[cfg(feature = "verbs")]
    #[doc(hidden)]
    fn kernel_domain(&self) -> Result<Option<barewire_verbs::ProtectionDomain>, Error> {
        Ok(None)
    }

    /// Returns the port to use, with the entries of its tables that `options` names, or `None` if
    /// it is port 1 and commands query it.
    ///
    /// # Errors
    /// If an entry does not exist.
    fn port(&self, options: PortOptions) -> Result<Option<Port>, Error> {
        let _ = options;
        Ok(None)
    }

    /// Returns whether queue pairs name the port of a bonded card that sends their packets, as those
    /// of the kernel do.
    fn spreads_queue_pairs(&self) -> bool {
        true
    }

    /// Returns the Ethernet address of the next hop from `port` towards `remote`: its own, or that
    /// of a router.
    ///
    /// # Errors
    /// If the kernel has no route to `remote`.
    fn next_hop(&self, port: &Port, remote: &PortAddress) -> Result<[u8; 6], Error> {
        let _ = port;
        Ok(remote.mac)
    }

    /// Returns whether page faults of WQEs are resumed in queues that commands create.
    fn resumes_page_faults(&self) -> bool {
        false
    }

    /// Returns whether a memory key may cover the whole address space, on demand.
    fn pages_address_space(&self) -> bool {
        false
    }

    /// Maps memory on the device: the `length` bytes at the address that ALLOC_MEMIC returned. The
    /// `# Safety` section of this trait states what the mapping is valid for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if another interface than commands allocates and maps such memory, or
    /// if the device has no such memory.
    fn map_device_memory(&self, address: u64, length: usize) -> Result<DeviceMapping, Error> {
        let _ = (address, length);
        let reason = "this channel does not map it";
        Err(Error::Unsupported { what: "memory on the device", reason })
    }

    /// Checks that memory to which the device is to write can be pinned, before it is registered by
    /// [`Self::register_umem`]. A kernel checks that itself.
    ///
    /// # Errors
    /// If a kernel would refuse to pin the pages.
    fn check_pin(&self, start: NonNull<u8>, length: usize) -> Result<(), Error> {
        let _ = (start, length);
        Ok(())
    }

    /// Gives the device access to memory.
    ///
    /// # Safety
    /// Until [`Umem::deregister`] has returned `Ok`, `start .. start + length` stays mapped, and
    /// this process accesses it only in ways that tolerate concurrent reads and writes of a device.
    /// Every command and WQE that names the memory relies on this.
    ///
    /// # Errors
    /// If the kernel or the device refused.
    unsafe fn register_umem(
        &self,
        start: NonNull<u8>,
        length: usize,
    ) -> Result<Box<dyn Umem>, Error>;

    /// Gives the device access to all memory that the process has or will have, on demand. Also
    /// returns the addresses.
    ///
    /// # Safety
    /// As [`Self::register_umem`], for all memory that commands and WQEs name by it; other memory
    /// may be unmapped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not request pages of UMEMs, or as
    /// [`Self::register_umem`].
    unsafe fn register_address_space(&self) -> Result<(Box<dyn Umem>, Range<u64>), Error> {
        let reason = "UMEMs are pinned: the kernel pages memory in for regions of verbs only";
        Err(Error::Unsupported { what: "UMEM of the whole address space", reason })
    }
}

/// A mapping of memory on the device.
#[derive(Debug)]
pub struct DeviceMapping {
    /// The first byte.
    pub start: NonNull<u8>,
    /// Unmaps the memory when it is dropped.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// An object of the device. Dropping it destroys it; an object that is still in use is destroyed
/// when its last user is dropped.
pub trait Object: Any + fmt::Debug + Send + Sync {
    /// Runs a command that changes or queries the object.
    ///
    /// # Safety
    /// The contract of [`CommandChannel::execute`].
    ///
    /// # Errors
    /// Those of [`CommandChannel::execute`].
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error>;

    /// Destroys the object. After success the device does not use its memory any more.
    ///
    /// # Errors
    /// If the device refused, or the object belongs to the parent process. The device may still use
    /// its memory.
    fn destroy(self: Box<Self>) -> Result<(), Error>;
}

/// A mapped BlueFlame register. Dropping it releases it.
///
/// # Safety
/// [`Self::register`] returns the same address every time: 512 bytes, aligned to 512, valid for
/// writes until `self` is dropped, and written by no other part of the program. If the page is not
/// mapped write-combining, others may write single words there as well.
/// [`Self::completion_doorbell`] returns an address that is valid as its documentation states.
pub unsafe trait Uar: fmt::Debug + Send + Sync {
    /// The UAR number of the page, as object contexts name it.
    fn index(&self) -> u32;

    /// The address of the register's first byte.
    fn register(&self) -> NonNull<u8>;

    /// The address at which completion queues of the page are armed, if this process has access:
    /// valid for stores of 8 bytes until `self` is dropped.
    fn completion_doorbell(&self) -> Option<NonNull<u64>> {
        None
    }
}

/// Events of completion queues, reported through a descriptor.
pub trait CompletionEvents: fmt::Debug + Send + Sync {
    /// The number of the event queue that completion queues created by commands name.
    fn event_queue(&self) -> u32 {
        0
    }

    /// Delivers the events of a completion queue to this descriptor. The queue was created over the
    /// same channel and names [`Self::event_queue`].
    ///
    /// # Errors
    /// If the kernel refused.
    fn watch(&self, queue: &dyn Object) -> Result<(), Error> {
        let _ = queue;
        Ok(())
    }

    /// Readable from the event of an armed queue until [`Self::take`].
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Discards the pending events. Returns `true` if there were any.
    fn take(&self) -> bool;
}

/// Events of the objects that were subscribed. The destruction of an object ends its subscriptions.
pub trait ObjectEvents: fmt::Debug + Send + Sync {
    /// Subscribes to events of a type of `object`, which are reported with `cookie`.
    ///
    /// # Errors
    /// If the object is of another channel, or the kernel refused.
    fn subscribe(&self, object: &dyn Object, event: EventType, cookie: u64) -> Result<(), Error>;

    /// A descriptor that is readable while there are events.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Takes the cookie of the oldest event, without waiting.
    fn next_event(&self) -> Option<u64>;
}

/// Events of a device and its ports, reported through a descriptor.
pub trait DeviceEvents: fmt::Debug + Send {
    /// Readable while there are events.
    ///
    /// # Errors
    /// If the descriptor cannot be waited on.
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>>;

    /// Takes the oldest event, without waiting.
    fn next_event(&self) -> Option<DeviceEvent>;

    /// Reads the events, without waiting, and logs them. Returns the one that reports the failure
    /// of the device, which must then be closed.
    fn failure(&self) -> Option<String> {
        loop {
            match self.next_event()? {
                DeviceEvent::Fatal(event) => return Some(event),
                // Connections survive it, or fail by their retries.
                event => tracing::warn!(?event, "an event of the device"),
            }
        }
    }
}

/// An event of a device, a port or a queue. Queues are named by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The device failed or was removed, and must be closed. The text is for reports, and need not
    /// say which: the kernel has one event for both, `DEVICE_FATAL`.
    Fatal(String),
    /// The link of this port came up.
    PortUp(u8),
    /// The link of this port went down.
    PortDown(u8),
    /// The peer sent a request that the queue pair does not permit, for example with a wrong key.
    /// The queue pair is in error. Without posted receives nothing else reports it on this side.
    QueuePairAccess(u32),
    /// The peer sent an invalid request. The queue pair is in error.
    QueuePairRequest(u32),
    /// The queue pair is in error, and no completion can report it.
    QueuePairFatal(u32),
    /// The queue pair is in error and has completed its last WQE of a shared receive queue.
    LastRequestReached(u32),
    /// The completion queue lost an entry, or the device cannot write to it. `None` if the kernel
    /// does not report its number.
    CompletionQueueError(Option<u32>),
    /// Another event, as text.
    Other(String),
}

/// Memory that the device can access.
///
/// # Safety
/// After [`Self::deregister`] has returned `Ok` the device does not access the memory.
pub unsafe trait Umem: fmt::Debug + Send + Sync {
    /// The number by which object contexts name the UMEM.
    fn id(&self) -> u32;

    /// Revokes the device's access to the memory. Further calls after success have no effect.
    ///
    /// # Errors
    /// If an object still uses the memory, which must then stay mapped.
    fn deregister(&mut self) -> Result<(), Error>;
}

/// A request of layout `R` that is being built.
///
/// Code that fills its fields names only objects that this crate created over the same channel and
/// holds handles to. The methods that send the request rely on this.
pub(crate) struct Command<R>(Vec<u8>, PhantomData<fn() -> R>);

/// The error for `input` that the status in `output` reports.
#[cfg(feature = "verbs")]
fn refusal(input: &[u8], output: &[u8]) -> Error {
    let opcode =
        View::<command::InHeader>::new(input).map(|header| header.get(command::InHeader::OPCODE));
    let header = View::<command::OutHeader>::new(output);
    match (opcode, header) {
        (Some(Ok(opcode)), Some(header)) => Error::Command(command::CommandError {
            opcode,
            status: header.get(command::OutHeader::STATUS).map_err(|unknown| unknown.bits as u8),
            syndrome: header.get(command::OutHeader::SYNDROME),
        }),
        _ => Error::System {
            operation: "sending a command",
            source: std::io::ErrorKind::InvalidInput.into(),
        },
    }
}

/// The output for a request of layout `R`, with its status checked.
pub(crate) struct Answer<R>(Vec<u8>, PhantomData<fn() -> R>);

impl<R: Request> Command<R> {
    /// A request with its opcode set and all other fields zero.
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; R::BYTES];
        let _ = command::request::<R>(&mut bytes);
        Self(bytes, PhantomData)
    }

    /// The request's fields.
    pub(crate) fn fields(&mut self) -> ViewMut<'_, R> {
        ViewMut::new(&mut self.0).expect("sized by its layout")
    }

    /// Adds a structure of zeros after the request, and returns its fields.
    pub(crate) fn extension<E: Layout>(&mut self) -> ViewMut<'_, E> {
        let start = self.0.len();
        self.0.resize(start + E::BYTES, 0);
        ViewMut::new(&mut self.0[start..]).expect("sized by its layout")
    }

    /// Sends the request.
    pub(crate) fn send(&self, channel: &dyn CommandChannel) -> Result<Answer<R>, Error> {
        // SAFETY: the request names only objects that this crate created and holds, by the rule on
        // the type.
        self.exchange(|input, output| unsafe { channel.execute(input, output) })
            .map(|((), answer)| answer)
    }

    /// Sends the request to change or query `object`.
    pub(crate) fn send_to(&self, object: &dyn Object) -> Result<Answer<R>, Error> {
        // SAFETY: the request names only objects that this crate created and holds, by the rule on
        // the type.
        self.exchange(|input, output| unsafe { object.execute(input, output) })
            .map(|((), answer)| answer)
    }

    /// Sends the request to create an object.
    pub(crate) fn create(
        &self,
        channel: &dyn CommandChannel,
    ) -> Result<(Box<dyn Object>, Answer<R>), Error> {
        // SAFETY: the request names only objects that this crate created and holds, by the rule on
        // the type.
        self.exchange(|input, output| unsafe { channel.create(input, output) })
    }

    /// Runs the request, checks the status in the output, and returns what `run` returned as well.
    fn exchange<T>(
        &self,
        run: impl FnOnce(&[u8], &mut [u8]) -> Result<T, Error>,
    ) -> Result<(T, Answer<R>), Error> {
        let mut output = vec![0; R::Answer::BYTES];
        let made = run(&self.0, &mut output)?;
        command::answer::<R>(&output)?;
        Ok((made, Answer(output, PhantomData)))
    }
}

impl<R: Request> Answer<R> {
    /// The fields of the output.
    pub(crate) fn fields(&self) -> View<'_, R::Answer> {
        View::new(&self.0).expect("checked when it was received")
    }
}
