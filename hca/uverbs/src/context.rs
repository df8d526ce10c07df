//! An open uverbs device: the state of one open descriptor of `/dev/infiniband/uverbsN`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use barewire_hca::UarPage;

use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::clock;
use crate::errno::Errno;
use crate::event::Channel;
use crate::explain::{self, Verb};
use crate::method;
use crate::object::{DeviceMemory, Objects};

/// State of an open descriptor.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) adapter: Arc<Adapter>,
    state: Mutex<State>,
}

/// The mutable part of a context.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Whether the program requested DEVX when it opened the device, and may use it.
    pub(crate) devx: bool,
    pub(crate) objects: Objects,
    /// Channel of the context's asynchronous events.
    pub(crate) asynchronous: Option<Arc<Channel>>,
    /// Completion channels and DEVX event channels.
    channels: Vec<Arc<Channel>>,
}

impl State {
    /// Adds a channel and removes those that the program has closed.
    pub(crate) fn keep(&mut self, channel: &Arc<Channel>) {
        self.channels.retain(|channel| channel.is_open());
        self.channels.push(Arc::clone(channel));
    }

    /// Returns the channel of a descriptor.
    pub(crate) fn channel(&self, descriptor: i32) -> Result<&Arc<Channel>, Errno> {
        let newest = self.channels.iter().rev().find(|channel| channel.descriptor() == descriptor);
        newest.filter(|channel| channel.is_open()).ok_or(Errno::BAD_DESCRIPTOR)
    }

    /// Returns the channel for the asynchronous events of a new object.
    pub(crate) fn asynchronous(&self) -> Weak<Channel> {
        self.asynchronous.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }
}

impl Context {
    pub(crate) fn new(adapter: Arc<Adapter>) -> Self {
        Self { adapter, state: Mutex::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the context was opened without DEVX.
    pub(crate) fn needs_devx(&self) -> Result<(), Errno> {
        if self.state().devx { Ok(()) } else { Err(Errno::INVALID) }
    }

    /// Executes a call.
    pub(crate) fn call(&self, attributes: &Attributes) -> Result<(), Errno> {
        let verb = Verb(attributes);
        let execute = || method::call(self, attributes);
        explain::explained(&verb, |error| verb.is_probe(error), execute)
    }

    /// Returns the memory to map at an offset of the descriptor.
    pub(crate) fn map(&self, offset: u64, length: usize) -> Result<Mapping, Errno> {
        if let Some(memory) = self.state().objects.device_memory_at(offset, length) {
            return Ok(Mapping::Memory(Arc::clone(memory)));
        }
        if length > barewire_hca::host_page() {
            return Err(Errno::INVALID);
        }
        if offset == clock::offset() {
            return Ok(Mapping::Clock(Arc::clone(&self.adapter)));
        }
        let state = self.state();
        let uar = state.objects.uar_at(offset).ok_or(Errno::INVALID)?;
        Ok(Mapping::Uar(Arc::clone(&uar.page)))
    }
}

/// Device memory, kept alive while the program has it mapped.
#[derive(Debug)]
pub(crate) enum Mapping {
    Uar(Arc<UarPage>),
    Memory(Arc<DeviceMemory>),
    Clock(Arc<Adapter>),
}

impl Mapping {
    /// Returns its address.
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::Uar(page) => page.as_ptr().as_ptr().addr(),
            Self::Memory(memory) => memory.address(),
            Self::Clock(adapter) => adapter.clock.address(),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).objects.clear(&self.adapter);
    }
}
