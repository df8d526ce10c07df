//! An open uverbs device: what one descriptor of `/dev/infiniband/uverbsN` stands for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use barewire_hca::UarPage;

use crate::adapter::Adapter;
use crate::attributes::Attributes;
use crate::clock;
use crate::errno::Errno;
use crate::event::Channel;
use crate::method;
use crate::object::Objects;

/// What is behind a descriptor.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) adapter: Arc<Adapter>,
    state: Mutex<State>,
}

/// What changes.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The program asked for DEVX when it opened the device, and may have it.
    pub(crate) devx: bool,
    pub(crate) objects: Objects,
    /// Where the context's asynchronous events go.
    pub(crate) asynchronous: Option<Arc<Channel>>,
    /// Completion channels and DEVX event channels.
    channels: Vec<Arc<Channel>>,
}

impl State {
    /// Keeps a channel, and forgets those that the program closed.
    pub(crate) fn keep(&mut self, channel: &Arc<Channel>) {
        self.channels.retain(|channel| channel.is_open());
        self.channels.push(Arc::clone(channel));
    }

    /// The channel of a descriptor.
    pub(crate) fn channel(&self, descriptor: i32) -> Result<&Arc<Channel>, Errno> {
        let newest = self.channels.iter().rev().find(|channel| channel.descriptor() == descriptor);
        newest.filter(|channel| channel.is_open()).ok_or(Errno::BAD_DESCRIPTOR)
    }

    /// Where asynchronous events of a new object go.
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

    /// Refuses what needs DEVX if the program has not got it.
    pub(crate) fn needs_devx(&self) -> Result<(), Errno> {
        if self.state().devx { Ok(()) } else { Err(Errno::INVALID) }
    }

    /// Carries out a call.
    pub(crate) fn call(&self, attributes: &Attributes) -> Result<(), Errno> {
        method::call(self, attributes)
    }

    /// What is to be mapped at an offset of the descriptor.
    pub(crate) fn map(&self, offset: u64) -> Result<Mapping, Errno> {
        if offset == clock::OFFSET {
            return Ok(Mapping::Clock(Arc::clone(&self.adapter)));
        }
        let state = self.state();
        let uar = state.objects.uar_at(offset).ok_or(Errno::INVALID)?;
        Ok(Mapping::Uar(Arc::clone(&uar.page)))
    }
}

/// Memory of the device's, for as long as the program has it mapped.
#[derive(Debug)]
pub(crate) enum Mapping {
    Uar(Arc<UarPage>),
    Clock(Arc<Adapter>),
}

impl Mapping {
    /// Where it is.
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::Uar(page) => page.as_ptr().as_ptr().addr(),
            Self::Clock(adapter) => adapter.clock.address(),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).objects.clear(&self.adapter);
    }
}
