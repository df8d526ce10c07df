//! The operations of the transport API over any connected transport.
#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

use std::hint::black_box;
use std::slice::from_ref;

use barewire::capability::{AmShort, Flush as _, PutShort, PutZcopy, RemoteMemory};
use barewire::transport::{
    Domain as _, Endpoint as _, Interface as _, Memory as _, Progress as _, Transport,
};
use barewire::{
    Access, Completion, ConnectError, FlushMode, InterfaceConfig, OpenError, Posted, Slice,
};

use crate::{BATCH, ID, Outcome, wait};

/// The operations that are measured.
pub(crate) trait Measured<Key>:
    PutShort + PutZcopy + AmShort + RemoteMemory<Key = Key>
{
}

impl<Key, E: PutShort + PutZcopy + AmShort + RemoteMemory<Key = Key>> Measured<Key> for E {}

/// Calls `operation` `count` times, between two domains.
pub(crate) fn run<T: Transport>(
    open: impl Fn() -> Result<T::Domain, OpenError>,
    operation: &str,
    count: u32,
) -> Outcome
where
    T::Endpoint: Measured<T::RemoteKey>,
{
    Api::<T>::new(open)?.run(operation, count)
}

/// Two connected interfaces.
struct Api<T: Transport> {
    client: Side<T>,
    server: Side<T>,
    memory: T::Memory,
    target: T::Memory,
    key: T::RemoteKey,
    completion: Completion,
}

struct Side<T: Transport> {
    domain: T::Domain,
    interface: T::Interface,
    endpoint: T::Endpoint,
    progress: T::Progress,
}

impl<T: Transport> Side<T> {
    fn open(domain: T::Domain) -> Result<Self, OpenError> {
        let config = InterfaceConfig::default().ack_timeout(0);
        let (interface, progress) = T::open_interface(&domain, &config)?;
        let endpoint = T::open_endpoint(&interface)?;
        Ok(Self { domain, interface, endpoint, progress })
    }

    fn connect(&self, peer: &Self) -> Result<(), ConnectError> {
        T::connect(&self.endpoint, &peer.endpoint.address())
    }
}

#[inline(never)]
fn measured_put_short_8<E: PutShort>(
    endpoint: &E,
    payload: u64,
    remote: u64,
    key: &E::Key,
) -> bool {
    endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
}

#[inline(never)]
fn measured_put_zcopy<E: PutZcopy>(
    endpoint: &E,
    slice: &Slice<'_>,
    remote: u64,
    key: &E::Key,
    completion: &Completion,
) -> bool {
    endpoint.put_zcopy(from_ref(slice), remote, key, Some(completion)).is_ok()
}

#[inline(never)]
fn measured_am_short_8<E: AmShort>(endpoint: &E, id: u8, header: u64, payload: u64) -> bool {
    endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
}

#[inline(never)]
fn measured_progress<T: Transport>(progress: &mut T::Progress) -> usize {
    progress.progress()
}

impl<T: Transport> Api<T>
where
    T::Endpoint: Measured<T::RemoteKey>,
{
    fn new(
        open: impl Fn() -> Result<T::Domain, OpenError>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let (client, server) = (Side::<T>::open(open()?)?, Side::<T>::open(open()?)?);
        client.connect(&server)?;
        server.connect(&client)?;
        server.interface.set_handler(ID, |_| ())?;
        let memory = client.domain.allocate(4096, Access::all())?;
        let target = server.domain.allocate(4096, Access::all())?;
        let key = client.domain.unpack_key(&target.pack_key())?;
        Ok(Self { client, server, memory, target, key, completion: Completion::counter() })
    }

    fn run(mut self, operation: &str, count: u32) -> Outcome {
        self.settle()?;
        let slice = self.memory.slice(0, 4096)?;
        let (remote, key) = (self.target.address(), &self.key);
        for round in 0..u64::from(count) {
            let endpoint = &self.client.endpoint;
            let posted = match operation {
                "put_short_8" => measured_put_short_8(endpoint, round, remote, key),
                "put_zcopy" => measured_put_zcopy(endpoint, &slice, remote, key, &self.completion),
                "am_short_8" => measured_am_short_8(endpoint, black_box(ID), round, 5),
                "progress" => measured_progress::<T>(&mut self.client.progress) == 0,
                _ => return Err(format!("no operation {operation}").into()),
            };
            if !posted {
                return Err("refused".into());
            }
            if operation != "progress" && (round + 1).is_multiple_of(BATCH.into()) {
                let (client, server) = (&mut self.client.progress, &mut self.server.progress);
                wait("posts", || {
                    let events = client.progress() + server.progress();
                    let flush = endpoint.flush(FlushMode::Local, None);
                    events == 0 && flush == Ok(Posted::Done)
                })?;
            }
        }
        match self.client.endpoint.error() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Makes progress until neither side has work left.
    fn settle(&mut self) -> Outcome {
        wait("settling", || self.client.progress.progress() + self.server.progress.progress() == 0)
    }
}
