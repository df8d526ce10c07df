//! The data path of a comm: its requests, and how arguments of NCCL become those of channels.

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::ops::Deref;
use core::ptr::NonNull;

use barewire_channel::{Error, Rails, Receiver, Request, Sender, Target, Usage};

use crate::abi::Any;
use crate::comm::{Failed, Memory};

/// Requests of a comm that may be outstanding: 32 groups of 8 sends.
const REQUESTS: usize = 256;

/// Why a call on the data path fails. It fits a register.
#[derive(Debug)]
pub(crate) struct Refused(Box<Failed>);

impl Deref for Refused {
    type Target = Failed;

    fn deref(&self) -> &Failed {
        &self.0
    }
}

impl Refused {
    #[cold]
    #[inline(never)]
    fn argument(what: &'static str) -> Self {
        Self(Box::new(Failed::Argument(what)))
    }

    #[cold]
    #[inline(never)]
    fn channel(error: Error) -> Self {
        Self(Box::new(Failed::Channel(error)))
    }

    /// The number of buffers is wrong.
    pub(crate) fn group() -> Self {
        Self::argument("a group has 1 to 8 buffers")
    }

    /// Some data is not in the memory that was registered for it.
    fn memory() -> Self {
        Self::argument("the data does not lie in the registered memory, or has none")
    }
}

/// One end of a channel.
pub(crate) enum End {
    Sends(Sender),
    Receives(Receiver),
}

/// A connected comm. NCCL calls its data path from one thread at a time, and registers memory on
/// another at the same time.
pub(crate) struct Comm {
    rails: Rails,
    usage: Usage,
    /// For messages of no bytes without memory.
    empty: Memory,
    /// Only the data path accesses what follows.
    end: UnsafeCell<End>,
    slots: Box<[Slot; REQUESTS]>,
}

/// A request, as NCCL gets it.
pub(crate) struct Slot {
    comm: Cell<*const Comm>,
    request: Cell<Option<Request>>,
}

impl Comm {
    pub(crate) fn new(rails: &Rails, end: End) -> Result<Box<Self>, Failed> {
        let usage = match end {
            End::Sends(_) => Usage::Send,
            End::Receives(_) => Usage::Receive,
        };
        let region = rails.allocate(1, usage)?;
        let slot = |_| Slot { comm: Cell::new(core::ptr::null()), request: Cell::new(None) };
        let comm = Box::new(Self {
            rails: rails.clone(),
            usage,
            empty: Memory { region, start: 0, length: 0 },
            end: UnsafeCell::new(end),
            slots: Box::new(core::array::from_fn(slot)),
        });
        let place: *const Self = &raw const *comm;
        comm.slots.iter().for_each(|slot| slot.comm.set(place));
        Ok(comm)
    }

    /// Registers `length` bytes at `data`.
    ///
    /// # Safety
    /// The contract of [`Region::register`](barewire_channel::Region::register).
    pub(crate) unsafe fn register(&self, data: Any, length: usize) -> Result<Box<Memory>, Failed> {
        let start = NonNull::new(data.cast::<u8>()).filter(|_| length > 0);
        let start = start.ok_or(Failed::Argument("memory to register has at least one byte"))?;
        // SAFETY: this function has the contract of `Region::register`.
        unsafe { Memory::register(&self.rails, start, length, self.usage) }
    }

    /// Sends. Returns the request, or `None` if it is to be called again.
    ///
    /// # Safety
    /// No other function of the data path of this comm runs.
    #[inline(always)]
    pub(crate) unsafe fn send(
        &self,
        data: usize,
        length: usize,
        tag: c_int,
        memory: Option<&Memory>,
    ) -> Result<Option<&Slot>, Refused> {
        // SAFETY: the caller guarantees that no other reference is in use.
        let End::Sends(sender) = (unsafe { &mut *self.end.get() }) else {
            return Err(Refused::argument("this comm receives"));
        };
        let Some(Target { region, offset, .. }) = self.target(data, length, tag, memory) else {
            return Err(Refused::memory());
        };
        self.posted(sender.send(region, offset, length, tag as u32))
    }

    /// Receives into a buffer. Returns what [`Self::send`] returns.
    ///
    /// # Safety
    /// That of [`Self::send`].
    #[inline(always)]
    pub(crate) unsafe fn receive(
        &self,
        data: usize,
        length: usize,
        tag: c_int,
        memory: Option<&Memory>,
    ) -> Result<Option<&Slot>, Refused> {
        // SAFETY: the caller guarantees that no other reference is in use.
        let End::Receives(receiver) = (unsafe { &mut *self.end.get() }) else {
            return Err(Refused::argument("this comm sends"));
        };
        let Some(Target { region, offset, .. }) = self.target(data, length, tag, memory) else {
            return Err(Refused::memory());
        };
        self.posted(receiver.receive(region, offset, length, tag as u32))
    }

    /// Receives into a group of buffers; none if one of them is no [`Self::target`].
    ///
    /// # Safety
    /// That of [`Self::send`].
    #[inline(always)]
    pub(crate) unsafe fn receive_group(
        &self,
        targets: &[Target<'_>],
    ) -> Result<Option<&Slot>, Refused> {
        // SAFETY: the caller guarantees that no other reference is in use.
        let End::Receives(receiver) = (unsafe { &mut *self.end.get() }) else {
            return Err(Refused::argument("this comm sends"));
        };
        if targets.is_empty() {
            return Err(Refused::memory());
        }
        self.posted(receiver.receive_group(targets))
    }

    /// A buffer in registered memory; in the comm's own if it has no bytes and no memory. `None` if
    /// it does not lie in the memory.
    #[inline(always)]
    pub(crate) fn target<'m>(
        &'m self,
        data: usize,
        length: usize,
        tag: c_int,
        memory: Option<&'m Memory>,
    ) -> Option<Target<'m>> {
        let Some(memory) = memory else {
            return (length == 0).then_some(Target { tag: tag as u32, ..self.no_target() });
        };
        let offset = data.wrapping_sub(memory.start);
        let is_inside = memory.length.checked_sub(length).is_some_and(|last| offset <= last);
        is_inside.then_some(Target { region: &memory.region, offset, length, tag: tag as u32 })
    }

    /// A buffer without bytes.
    #[inline(always)]
    pub(crate) fn no_target(&self) -> Target<'_> {
        Target { region: &self.empty.region, offset: 0, length: 0, tag: 0 }
    }

    /// Gives a request the slot of its number, which no other outstanding request of the end has.
    #[inline(always)]
    fn posted(&self, posted: Result<Option<Request>, Error>) -> Result<Option<&Slot>, Refused> {
        match posted {
            Ok(Some(request)) => {
                let slot = &self.slots[usize::from(request.to_bits() as u8)];
                slot.request.set(Some(request));
                Ok(Some(slot))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(Refused::channel(error)),
        }
    }
}

impl Slot {
    /// Returns whether the request is complete, and stores the sizes of its messages.
    ///
    /// # Safety
    /// The comm exists, and that of [`Comm::send`].
    #[inline(always)]
    pub(crate) unsafe fn test(&self, mut sizes: impl FnMut(usize, usize)) -> Result<bool, Refused> {
        let Some(request) = self.request.get() else {
            return Err(Refused::argument("no such request"));
        };
        // SAFETY: the caller guarantees that the comm exists.
        let comm = unsafe { &*self.comm.get() };
        // SAFETY: the caller guarantees that no other reference is in use.
        match unsafe { &mut *comm.end.get() } {
            End::Sends(sender) => match sender.test(request) {
                Ok(None) => return Ok(false),
                Ok(Some(length)) => sizes(0, length),
                Err(error) => return Err(self.refused(error)),
            },
            End::Receives(receiver) => match receiver.test(request) {
                Ok(None) => return Ok(false),
                Ok(Some(received)) => {
                    let lengths = received.sizes().iter().enumerate();
                    lengths.for_each(|(at, length)| sizes(at, *length));
                }
                Err(error) => return Err(self.refused(error)),
            },
        }
        self.request.set(None);
        Ok(true)
    }

    /// The error of a test. It ends the request, unless the channel has failed: then further tests
    /// fail alike.
    #[cold]
    #[inline(never)]
    fn refused(&self, error: Error) -> Refused {
        if !matches!(error, Error::Failed(_)) {
            self.request.set(None);
        }
        Refused::channel(error)
    }
}
