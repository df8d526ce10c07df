//! The command channel: how set-up reaches a device. The hot path never comes here.
//!
//! A channel carries PRM commands and gives the two things that are not commands: a mapped UAR page and registered memory. Object
//! creation is apart from other commands because a kernel (DEVX) ties an object's life to a handle.

#[cfg(feature = "soft")]
mod event_queue;
#[cfg(feature = "verbs")]
pub mod mlx5dv;
pub(crate) mod queue_memory;
#[cfg(feature = "soft")]
pub mod soft;

use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use barewire_layouts::command::{self, Request};
use barewire_layouts::prm::{Layout, View, ViewMut};

use crate::error::Error;
use crate::values::{Port, PortAddress};

/// A way to a device.
///
/// # Safety
/// The crate's memory safety rests on it. The device behind an implementation touches memory only through umems that were registered with
/// [`Self::register_umem`] and not deregistered since, and only as commands say that named them. Numbers in its answers name objects
/// that it made for that command. No method calls back into objects or queues of this crate.
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
    /// Runs a command that makes no object. `output` holds the device's answer, its status included.
    ///
    /// # Safety
    /// Commands name objects by number. The command names no object (umem, key, protection domain, queue or
    /// any other) that another user of the device made, unless that user allows what the command does.
    ///
    /// # Errors
    /// If the command did not reach the device. A refusal is an answer, not an error.
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error>;

    /// Runs a command that makes an object. `output` holds the device's answer, its status included.
    ///
    /// # Safety
    /// As for [`Self::execute`].
    ///
    /// # Errors
    /// If the device refused, or the command did not reach it.
    unsafe fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Box<dyn Object>, Error>;

    /// Takes a BlueFlame register of a UAR page.
    ///
    /// # Errors
    /// If the device has none left, or it could not be mapped.
    fn allocate_uar(&self) -> Result<Box<dyn Uar>, Error>;

    /// `true` if a burst of stores to a UAR page reaches the device in one piece: who maps the pages knows.
    fn maps_write_combining(&self) -> bool;

    /// The event queue that completion queues name. A kernel lets none be made that names another than one of its own; a device alone takes
    /// any, as long as no event is asked for.
    ///
    /// # Errors
    /// If the system does not tell.
    fn event_queue(&self) -> Result<u32, Error> {
        Ok(0)
    }

    /// A descriptor for completion queues that are armed by doorbells of `uar`; `None` where there is no way to have one.
    ///
    /// # Errors
    /// If the device or the system refused.
    fn completion_events(&self, uar: &Arc<dyn Uar>) -> Result<Option<Arc<dyn CompletionEvents>>, Error> {
        let _ = uar;
        Ok(None)
    }

    /// The port and the address to use, where the system knows better than the device's first entry.
    fn port(&self) -> Option<Port> {
        None
    }

    /// The Ethernet address to send to in order to reach `remote`: its own, or that of a router.
    ///
    /// # Errors
    /// If the system knows no way there.
    fn next_hop(&self, remote: &PortAddress) -> Result<[u8; 6], Error> {
        Ok(remote.mac)
    }

    /// Gives the device access to memory.
    ///
    /// # Safety
    /// Until [`Umem::deregister`] has returned `Ok`, `start .. start + length` stays mapped and is accessed by this process only in ways that
    /// tolerate a device which reads and writes it at the same time. Every command and WQE that names the memory relies on this.
    ///
    /// # Errors
    /// If the system or the device refused.
    unsafe fn register_umem(&self, start: NonNull<u8>, length: usize) -> Result<Box<dyn Umem>, Error>;
}

/// An object of the device. Dropping it destroys it; one that is still in use stays until its user is gone.
pub trait Object: Any + fmt::Debug + Send + Sync {
    /// Runs a command that changes or queries the object.
    ///
    /// # Safety
    /// As for [`CommandChannel::execute`].
    ///
    /// # Errors
    /// As [`CommandChannel::execute`].
    unsafe fn execute(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error>;
}

/// A mapped BlueFlame register. Dropping it gives it back.
///
/// # Safety
/// [`Self::completion_doorbell`] is as it says. [`Self::register`] gives the same address every time: 512 bytes, aligned to as much, valid for writes until `self` is dropped, and no
/// other part of the program writes to them. Where the page is not mapped write-combining, others may ring it too, by single stores.
pub unsafe trait Uar: fmt::Debug + Send + Sync {
    /// The number in contexts of the page that the register is in.
    fn index(&self) -> u32;

    /// The register's first byte.
    fn register(&self) -> NonNull<u8>;

    /// Where completion queues of the page are armed, if this process may: valid for stores of 8 bytes until `self` is dropped.
    fn completion_doorbell(&self) -> Option<NonNull<u64>> {
        None
    }
}

/// Events of completion queues, by a descriptor.
pub trait CompletionEvents: fmt::Debug + Send + Sync {
    /// The event queue that completion queues name which commands make.
    fn event_queue(&self) -> u32 {
        0
    }

    /// Has events of a completion queue, made over the same channel and naming [`Self::event_queue`], come here.
    ///
    /// # Errors
    /// If the system refused.
    fn watch(&self, queue: &dyn Object) -> Result<(), Error> {
        let _ = queue;
        Ok(())
    }

    /// Readable when an armed queue has completions, until [`Self::take`].
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Forgets the events that came; whether there were any.
    fn take(&self) -> bool;
}

/// Memory that the device can reach.
///
/// # Safety
/// After [`Self::deregister`] has returned `Ok` the device does not touch the memory any more.
pub unsafe trait Umem: fmt::Debug + Send + Sync {
    /// The number that contexts name it by.
    fn id(&self) -> u32;

    /// Takes the memory from the device. Once it has, it does no more.
    ///
    /// # Errors
    /// If an object still uses it: the memory must then stay as it is.
    fn deregister(&mut self) -> Result<(), Error>;
}

/// A request of layout `R` in the making.
///
/// Whoever fills its fields names only objects that this crate made over the same channel for handles which
/// it holds. That is what sending relies on.
pub(crate) struct Command<R>(Vec<u8>, PhantomData<fn() -> R>);

/// The device refused `input`, as `output` says.
#[cfg(feature = "verbs")]
fn refusal(input: &[u8], output: &[u8]) -> Error {
    let opcode = View::<command::InHeader>::new(input).map(|header| header.get(command::InHeader::OPCODE));
    let header = View::<command::OutHeader>::new(output);
    match (opcode, header) {
        (Some(Ok(opcode)), Some(header)) => Error::Command(command::CommandError {
            opcode,
            status: header.get(command::OutHeader::STATUS).map_err(|unknown| unknown.bits as u8),
            syndrome: header.get(command::OutHeader::SYNDROME),
        }),
        _ => {
            Error::System { operation: "sending a command", source: std::io::ErrorKind::InvalidInput.into() }
        }
    }
}

/// The answer to a request of layout `R`, its status checked.
pub(crate) struct Answer<R>(Vec<u8>, PhantomData<fn() -> R>);

impl<R: Request> Command<R> {
    /// A request with nothing but its opcode.
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; R::BYTES];
        let _ = command::request::<R>(&mut bytes);
        Self(bytes, PhantomData)
    }

    /// The request's fields.
    pub(crate) fn fields(&mut self) -> ViewMut<'_, R> {
        ViewMut::new(&mut self.0).expect("sized by its layout")
    }

    /// Sends it.
    pub(crate) fn send(&self, channel: &dyn CommandChannel) -> Result<Answer<R>, Error> {
        // SAFETY: it names objects of this crate's only, as the type says.
        self.exchange(|input, output| unsafe { channel.execute(input, output) }).map(|((), answer)| answer)
    }

    /// Sends it to change or query `object`.
    pub(crate) fn send_to(&self, object: &dyn Object) -> Result<Answer<R>, Error> {
        // SAFETY: as in `send`.
        self.exchange(|input, output| unsafe { object.execute(input, output) }).map(|((), answer)| answer)
    }

    /// Sends it to make an object.
    pub(crate) fn create(&self, channel: &dyn CommandChannel) -> Result<(Box<dyn Object>, Answer<R>), Error> {
        // SAFETY: as in `send`.
        self.exchange(|input, output| unsafe { channel.create(input, output) })
    }

    /// Runs the request and checks the answer's status. Gives what `run` gave, too.
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
    /// The answer's fields.
    pub(crate) fn fields(&self) -> View<'_, R::Answer> {
        View::new(&self.0).expect("checked when it was received")
    }
}
