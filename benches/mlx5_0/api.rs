//! The operations of the transport API over any connected transport.
#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::slice::from_ref;

use barewire::capability::{AmShort, Flush as _, PutShort, PutZcopy, RemoteMemory};
use barewire::transport::{
    Domain as _, Endpoint as _, Interface as _, Memory as _, Progress as _, Transport,
};
use barewire::{
    Access, Completion, ConnectError, FlushMode, InterfaceConfig, OpenError, Posted, Slice,
};

use crate::stopwatch::Stopwatch;
use crate::{ID, Outcome, settle, wait};

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

/// Operations that are posted before they are completed. The first call after a turn of the device
/// takes as long as about ten others, because the device uses the same caches.
const TURN: u32 = 64;

/// Two connected interfaces.
struct Api<T: Transport> {
    client: Side<T>,
    server: Side<T>,
    memory: T::Memory,
    target: T::Memory,
    key: T::RemoteKey,
    completion: Completion,
    received: Rc<Cell<u32>>,
}

/// An operation of the transport API.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    PutShort8,
    PutZcopy,
    AmShort8,
    /// Progress with nothing to do, with completions of puts, and with messages.
    Progress,
    Finish,
    Receive,
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
        let received = Rc::new(Cell::new(0));
        let count = Rc::clone(&received);
        server.interface.set_handler(ID, move |_| count.set(count.get() + 1))?;
        let memory = client.domain.allocate(4096, Access::all())?;
        let target = server.domain.allocate(4096, Access::all())?;
        let key = client.domain.unpack_key(&target.pack_key())?;
        let completion = Completion::counter();
        Ok(Self { client, server, memory, target, key, completion, received })
    }

    fn run(mut self, operation: &str, count: u32) -> Outcome {
        let call = match operation {
            "put_short_8" => Call::PutShort8,
            "put_zcopy" => Call::PutZcopy,
            "am_short_8" => Call::AmShort8,
            "progress" => Call::Progress,
            "finish" => Call::Finish,
            "receive" => Call::Receive,
            _ => return Err(format!("no operation {operation}").into()),
        };
        self.settle()?;
        let mut watch = Stopwatch::new(count, TURN);
        for _ in 0..count / TURN {
            // What progress finds.
            let found = match call {
                Call::Finish => Some(Call::PutZcopy),
                Call::Receive => Some(Call::AmShort8),
                _ => None,
            };
            if let Some(post) = found {
                if !(0..TURN).all(|_| self.call(post)) {
                    return Err("refused".into());
                }
                settle();
            }
            let received = self.received.get();
            watch.start();
            let called = if call == Call::Receive {
                // A call takes one message or several.
                (0..TURN).any(|_| {
                    self.call(call);
                    self.received.get() - received == TURN
                })
            } else {
                (0..TURN).all(|_| self.call(call))
            };
            watch.stop();
            if !called {
                if found.is_none() {
                    return Err("refused".into());
                }
                // The device was late.
                watch.discard();
            }
            if call != Call::Progress {
                self.drain()?;
            }
        }
        if let Some(error) = self.client.endpoint.error() {
            return Err(error.into());
        }
        watch.print();
        Ok(())
    }

    #[inline(always)]
    fn call(&mut self, call: Call) -> bool {
        let endpoint = &self.client.endpoint;
        let (remote, key) = (self.target.address(), &self.key);
        match call {
            Call::PutShort8 => measured_put_short_8(endpoint, black_box(7), remote, key),
            Call::PutZcopy => match self.memory.slice(0, 4096) {
                Ok(slice) => measured_put_zcopy(endpoint, &slice, remote, key, &self.completion),
                Err(_) => false,
            },
            Call::AmShort8 => measured_am_short_8(endpoint, black_box(ID), black_box(7), 5),
            Call::Progress => measured_progress::<T>(&mut self.client.progress) == 0,
            Call::Finish => measured_progress::<T>(&mut self.client.progress) == 1,
            Call::Receive => measured_progress::<T>(&mut self.server.progress) <= 16,
        }
    }

    /// Makes progress until everything that was posted is done.
    fn drain(&mut self) -> Outcome {
        let Self { client, server, .. } = self;
        wait("posts", || {
            let events = client.progress.progress() + server.progress.progress();
            let flush = client.endpoint.flush(FlushMode::Local, None);
            events == 0 && flush == Ok(Posted::Done)
        })
    }

    /// Makes progress until neither side has work left.
    fn settle(&mut self) -> Outcome {
        wait("settling", || self.client.progress.progress() + self.server.progress.progress() == 0)
    }
}
