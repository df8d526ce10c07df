//! Connections: what NCCL calls comms.

use core::cell::{Cell, RefCell, UnsafeCell};
use core::ffi::c_int;
use core::ptr::NonNull;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_channel::{
    Config, Connector, Error, HANDLE_BYTES as CHANNEL_HANDLE, Handle, HandleError, HandshakeError,
    Key, Listener, MAX_GROUP, Rails, RailsError, Receiver, Region, Request, Sender, Target, Usage,
};

use crate::abi::{self, Any, Code};
use crate::devices::Device;
use crate::log;

/// Requests of a comm that may be outstanding: 32 groups of 8 sends.
const REQUESTS: usize = 256;
/// Bytes of a key in a handle.
const KEY_BYTES: usize = 32;

/// Why a function fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Channel(#[from] Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Handle(#[from] HandleError),
    #[error(transparent)]
    Rails(#[from] RailsError),
    #[error(transparent)]
    Devices(#[from] crate::devices::DeviceError),
    #[error("the job's key: {0}")]
    Key(#[from] barewire_tcp::key::KeyError),
    #[error("the kernel has no random bytes: {0}")]
    Random(rustix::io::Errno),
    #[error("{0}")]
    Argument(&'static str),
}

impl Failed {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Channel(Error::Overlong { .. } | Error::Refused { .. }) => abi::INVALID_USAGE,
            Self::Channel(Error::Failed(_)) | Self::Handshake(_) => abi::REMOTE_ERROR,
            Self::Channel(_) | Self::Argument(_) | Self::Handle(_) => abi::INVALID_ARGUMENT,
            Self::Rails(_) | Self::Devices(_) | Self::Key(_) | Self::Random(_) => abi::SYSTEM_ERROR,
        }
    }
}

/// The bytes of a handle as NCCL passes it: the channel's handle, then a key for this listener,
/// unless the job has one.
pub(crate) fn handle_bytes(
    handle: &Handle,
    key: Option<&[u8; KEY_BYTES]>,
) -> [u8; abi::HANDLE_BYTES] {
    let mut bytes = [0; abi::HANDLE_BYTES];
    bytes[..CHANNEL_HANDLE].copy_from_slice(&handle.to_bytes());
    if let Some(key) = key {
        bytes[CHANNEL_HANDLE..CHANNEL_HANDLE + KEY_BYTES].copy_from_slice(key);
    }
    bytes
}

/// The channel's handle and the key to prove.
pub(crate) fn parse_handle(bytes: &[u8; abi::HANDLE_BYTES]) -> Result<(Handle, Key), Failed> {
    let handle = Handle::from_bytes(bytes)?;
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&bytes[CHANNEL_HANDLE..CHANNEL_HANDLE + KEY_BYTES]);
    match (key == [0; KEY_BYTES]).then(Key::from_env).transpose()? {
        None => Ok((handle, Key::from_bytes(key))),
        Some(Some(key)) => Ok((handle, key)),
        Some(None) => Err(Failed::Argument(
            "the listener uses the job's key: set BAREWIRE_KEY_FILE here, too",
        )),
    }
}

/// A listening comm.
pub(crate) struct Listening {
    rails: Rails,
    listener: Mutex<Listener>,
}

impl Listening {
    /// Listens for a peer. Returns the bytes of the handle, too.
    pub(crate) fn new(device: &Device) -> Result<(Self, [u8; abi::HANDLE_BYTES]), Failed> {
        let (key, own) = if let Some(key) = Key::from_env()? {
            (key, None)
        } else {
            let mut bytes = [0; KEY_BYTES];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
                .map_err(Failed::Random)?;
            (Key::from_bytes(bytes), Some(bytes))
        };
        let rails = device.rails.clone();
        let listener = Listener::bind(&rails, device.socket(), &key, &Config::default())?;
        let bytes = handle_bytes(&listener.handle(), own.as_ref());
        Ok((Self { rails, listener: Mutex::new(listener) }, bytes))
    }

    /// Returns a comm once a peer has connected.
    pub(crate) fn accept(&self) -> Result<Option<Box<Comm>>, Failed> {
        let accepted = self.listener.lock().unwrap_or_else(PoisonError::into_inner).accept()?;
        accepted.map(|receiver| Comm::new(&self.rails, End::Receives(receiver))).transpose()
    }
}

/// A connection that is being made. NCCL calls `connect` with the same handle memory until it is
/// there, so the memory's address is part of its name; the handle alone may be used twice.
type Connecting = HashMap<(usize, [u8; CHANNEL_HANDLE]), Connector>;

static CONNECTING: Mutex<Option<Connecting>> = Mutex::new(None);

fn connecting() -> MutexGuard<'static, Option<Connecting>> {
    CONNECTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a comm once the listener of the handle at `place` has accepted.
pub(crate) fn connect(
    device: &Device,
    place: usize,
    bytes: &[u8; abi::HANDLE_BYTES],
) -> Result<Option<Box<Comm>>, Failed> {
    let (handle, key) = parse_handle(bytes)?;
    let name = (place, handle.to_bytes());
    let known = connecting().get_or_insert_default().remove(&name);
    let mut connector = match known {
        Some(connector) => connector,
        None => Connector::start(&device.rails, &handle, &key, &Config::default())?,
    };
    if let Some(sender) = connector.poll()? {
        return Comm::new(&device.rails, End::Sends(sender)).map(Some);
    }
    connecting().get_or_insert_default().insert(name, connector);
    Ok(None)
}

enum End {
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
    slots: Box<[Slot]>,
    free: RefCell<Vec<u16>>,
}

/// A request, as NCCL gets it.
pub(crate) struct Slot {
    comm: Cell<*const Comm>,
    number: u16,
    request: Cell<Option<Request>>,
}

/// Registered memory.
pub(crate) struct Memory {
    region: Region,
    start: usize,
    length: usize,
}

impl Memory {
    fn offset(&self, data: usize, length: usize) -> Result<usize, Failed> {
        let offset = data.wrapping_sub(self.start);
        if offset > self.length || length > self.length - offset {
            return Err(Failed::Argument("the data does not lie in the registered memory"));
        }
        Ok(offset)
    }
}

/// A buffer of a receive.
#[derive(Clone, Copy)]
pub(crate) struct Buffer<'m> {
    pub(crate) data: usize,
    pub(crate) length: usize,
    pub(crate) tag: c_int,
    pub(crate) memory: Option<&'m Memory>,
}

impl Comm {
    fn new(rails: &Rails, end: End) -> Result<Box<Self>, Failed> {
        let usage = match end {
            End::Sends(_) => Usage::Send,
            End::Receives(_) => Usage::Receive,
        };
        let region = rails.allocate(1, usage)?;
        let slot =
            |number| Slot { comm: Cell::new(core::ptr::null()), number, request: Cell::new(None) };
        let comm = Box::new(Self {
            rails: rails.clone(),
            usage,
            empty: Memory { region, start: 0, length: 0 },
            end: UnsafeCell::new(end),
            slots: (0..REQUESTS as u16).map(slot).collect(),
            free: RefCell::new((0..REQUESTS as u16).rev().collect()),
        });
        let place: *const Self = &raw const *comm;
        comm.slots.iter().for_each(|slot| slot.comm.set(place));
        Ok(comm)
    }

    /// Registers `length` bytes at `data`.
    ///
    /// # Safety
    /// The contract of [`Region::register`].
    pub(crate) unsafe fn register(&self, data: Any, length: usize) -> Result<Box<Memory>, Failed> {
        let start = NonNull::new(data.cast::<u8>()).filter(|_| length > 0);
        let start = start.ok_or(Failed::Argument("memory to register has at least one byte"))?;
        // SAFETY: this function has the contract of `Region::register`.
        let region = unsafe { Region::register(&self.rails, start, length, self.usage) }?;
        Ok(Box::new(Memory { region, start: data as usize, length }))
    }

    /// Sends. Returns the request, or `None` if it is to be called again.
    ///
    /// # Safety
    /// No other function of the data path of this comm runs.
    pub(crate) unsafe fn send(
        &self,
        data: usize,
        length: usize,
        tag: c_int,
        memory: Option<&Memory>,
    ) -> Result<Option<&Slot>, Failed> {
        // SAFETY: the caller guarantees that no other reference is in use.
        let End::Sends(sender) = (unsafe { &mut *self.end.get() }) else {
            return Err(Failed::Argument("this comm receives"));
        };
        let (memory, data) = self.of(memory, data, length)?;
        let offset = memory.offset(data, length)?;
        if self.free.borrow().is_empty() {
            return Ok(None);
        }
        let sent = sender.send(&memory.region, offset, length, tag as u32)?;
        Ok(sent.and_then(|request| self.note(request)))
    }

    /// Receives into a group of buffers.
    ///
    /// # Safety
    /// That of [`Self::send`].
    pub(crate) unsafe fn receive(&self, buffers: &[Buffer<'_>]) -> Result<Option<&Slot>, Failed> {
        // SAFETY: the caller guarantees that no other reference is in use.
        let End::Receives(receiver) = (unsafe { &mut *self.end.get() }) else {
            return Err(Failed::Argument("this comm sends"));
        };
        let mut targets =
            [Target { region: &self.empty.region, offset: 0, length: 0, tag: 0 }; MAX_GROUP];
        let Some(targets) = targets.get_mut(..buffers.len()) else {
            return Err(Failed::Argument("a group has 1 to 8 buffers"));
        };
        for (target, buffer) in targets.iter_mut().zip(buffers) {
            let (memory, data) = self.of(buffer.memory, buffer.data, buffer.length)?;
            target.region = &memory.region;
            target.offset = memory.offset(data, buffer.length)?;
            target.length = buffer.length;
            target.tag = buffer.tag as u32;
        }
        if self.free.borrow().is_empty() {
            return Ok(None);
        }
        let posted = receiver.receive_group(targets)?;
        Ok(posted.and_then(|request| self.note(request)))
    }

    /// The memory of a message; the comm's own if it has no bytes and no memory.
    fn of<'m>(
        &'m self,
        memory: Option<&'m Memory>,
        data: usize,
        length: usize,
    ) -> Result<(&'m Memory, usize), Failed> {
        match memory {
            Some(memory) => Ok((memory, data)),
            None if length == 0 => Ok((&self.empty, 0)),
            None => Err(Failed::Argument("the data has no registered memory")),
        }
    }

    /// Gives a request a slot. There is one, as was checked.
    fn note(&self, request: Request) -> Option<&Slot> {
        let slot = self.slots.get(usize::from(self.free.borrow_mut().pop()?))?;
        slot.request.set(Some(request));
        Some(slot)
    }
}

impl Slot {
    /// Returns whether the request is complete, and stores the sizes of its messages.
    ///
    /// # Safety
    /// The comm exists, and that of [`Comm::send`].
    pub(crate) unsafe fn test(&self, mut sizes: impl FnMut(usize, usize)) -> Result<bool, Failed> {
        let request = self.request.get().ok_or(Failed::Argument("no such request"))?;
        // SAFETY: the caller guarantees that the comm exists.
        let comm = unsafe { &*self.comm.get() };
        // SAFETY: the caller guarantees that no other reference is in use.
        let tested = match unsafe { &mut *comm.end.get() } {
            End::Sends(sender) => {
                sender.test(request).map(|sent| sent.map(|length| sizes(0, length)))
            }
            End::Receives(receiver) => receiver.test(request).map(|received| {
                received.map(|received| {
                    let lengths = received.sizes().iter().enumerate();
                    lengths.for_each(|(at, length)| sizes(at, *length));
                })
            }),
        };
        if let Ok(None) = tested {
            return Ok(false);
        }
        // Complete or failed: NCCL does not use it again.
        if !matches!(tested, Err(Error::Failed(_))) {
            self.request.set(None);
            comm.free.borrow_mut().push(self.number);
        }
        tested?;
        Ok(true)
    }
}

/// Reports an error, and returns its code.
pub(crate) fn report(what: &str, failed: &Failed) -> Code {
    log::warn(format_args!("{what}: {failed}"));
    failed.code()
}
