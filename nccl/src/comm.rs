//! Connections: how what NCCL calls comms is made.

use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barewire_channel::{
    Config, Connector, Error, HANDLE_BYTES as CHANNEL_HANDLE, Handle, HandleError, HandshakeError,
    Key, Listener, Rails, RailsError, Region, Usage,
};

use crate::abi::{self, Code};
use crate::data::{Comm, End};
use crate::devices::Device;
use crate::log;

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

/// Names a connection that is being made. NCCL calls `connect` with the same handle memory until it
/// is there, so the memory's address is part of its name; the handle alone may be used twice.
type Name = (usize, [u8; CHANNEL_HANDLE]);

/// Connections that are being made. NCCL does not report that it gives one up: it does not call
/// `connect` again.
struct Connecting<C>(BTreeMap<Name, (C, Instant)>);

impl<C> Connecting<C> {
    /// Time without a call after which a connection is given up.
    const ABANDONED: Duration = Duration::from_mins(5);

    /// Removes a connection, and those that NCCL has given up.
    fn take(&mut self, name: &Name, now: Instant) -> Option<C> {
        let found = self.0.remove(name).map(|(connector, _)| connector);
        self.0.retain(|_, (_, called)| now.saturating_duration_since(*called) < Self::ABANDONED);
        found
    }
}

static CONNECTING: Mutex<Connecting<Connector>> = Mutex::new(Connecting(BTreeMap::new()));

fn connecting() -> MutexGuard<'static, Connecting<Connector>> {
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
    let known = connecting().take(&name, Instant::now());
    let mut connector = match known {
        Some(connector) => connector,
        None => Connector::start(&device.rails, &handle, &key, &Config::default())?,
    };
    if let Some(sender) = connector.poll()? {
        return Comm::new(&device.rails, End::Sends(sender)).map(Some);
    }
    connecting().0.insert(name, (connector, Instant::now()));
    Ok(None)
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) region: Region,
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl Memory {
    /// Registers `length` bytes at `start`.
    ///
    /// # Safety
    /// The contract of [`Region::register`].
    pub(crate) unsafe fn register(
        rails: &Rails,
        start: NonNull<u8>,
        length: usize,
        usage: Usage,
    ) -> Result<Box<Self>, Failed> {
        // SAFETY: this function has the contract of `Region::register`.
        let region = unsafe { Region::register(rails, start, length, usage) }?;
        Ok(Box::new(Self { region, start: start.addr().get(), length }))
    }
}

/// Reports an error, and returns its code.
#[cold]
#[inline(never)]
pub(crate) fn report(what: &str, failed: &Failed) -> Code {
    log::warn(format_args!("{what}: {failed}"));
    failed.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_nccl_gives_up_are_dropped() {
        let now = Instant::now();
        let abandoned = now + Connecting::<()>::ABANDONED;
        let [first, second] = [1, 2].map(|place| (place, [0; CHANNEL_HANDLE]));
        let mut connecting = Connecting(BTreeMap::from([
            (first, ("first", now)),
            (second, ("second", now + Duration::from_secs(1))),
        ]));
        assert_eq!(connecting.take(&second, abandoned), Some("second"));
        assert_eq!(connecting.take(&first, abandoned), None, "no call for too long");
        connecting.0.insert(first, ("again", abandoned));
        assert_eq!(connecting.take(&second, abandoned), None);
        assert_eq!(connecting.take(&first, abandoned), Some("again"));
    }
}
