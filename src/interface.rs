//! Interfaces: the dynamic API.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::Counters;
use crate::domain::{Domain, Kind as DomainKind};
use crate::error::{EndpointError, HandlerError, OpenError, PostError};
use crate::event::EventError;
use crate::message::Message;
use crate::status::Post;
use crate::transport::Transport;
use crate::transport::sealed::Conversions;
use crate::transport::table::transports;
use crate::worker::Worker;

/// A transport at work on a device: queues, buffers and handlers. Cloning gives another handle to the same
/// interface.
#[derive(Debug, Clone)]
pub struct Interface(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum Kind of Interface
);

impl Interface {
    /// Opens an interface and gives its progress to `worker`.
    ///
    /// ```
    /// use barewire::{Domain, Endpoint, Interface, InterfaceConfig, Worker};
    /// use std::{cell::Cell, rc::Rc};
    ///
    /// let mut worker = Worker::new();
    /// let domain = Domain::open("self", "memory")?;
    /// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    /// let sum = Rc::new(Cell::new(0));
    /// let total = Rc::clone(&sum);
    /// interface.set_handler(3, move |message| total.set(total.get() + message.data().len()))?;
    ///
    /// let endpoint = Endpoint::connect_to_interface(&interface, &interface.device_address(), &interface.address())?;
    /// endpoint.am_short(3, 0, b"twelve bytes")?;
    /// worker.progress();
    /// // The header of a short message is part of its data.
    /// assert_eq!(sum.get(), 8 + 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting that cannot be, [`OpenError::Device`] if the device refuses.
    pub fn open(worker: &mut Worker, domain: &Domain, config: &InterfaceConfig) -> Result<Self, OpenError> {
        let (interface, progress) = transports!(each_of! DomainKind, &domain.0, domain => {
            let (interface, progress) = T::open_interface(domain, config)?;
            (Self::from_static::<T>(interface), T::into_progress(progress))
        });
        worker.adopt(interface.clone(), progress, config.busy_poll);
        tracing::debug!(transport = interface.transport(), ?config, "interface opened");
        Ok(interface)
    }

    /// The interface of a transport's own type. Its progress remains the caller's.
    pub fn from_static<T: Transport>(interface: T::Interface) -> Self {
        T::into_interface(interface)
    }

    /// The interface as the transport's own type; `None` if it is another transport's.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Interface> {
        T::from_interface(self)
    }

    /// The transport's name.
    pub fn transport(&self) -> &'static str {
        transports!(each! &self.0, _interface => T::ID.name())
    }

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        transports!(each! &self.0, interface => interface.attributes())
    }

    /// Where peers find the device.
    pub fn device_address(&self) -> DeviceAddress {
        transports!(each! &self.0, interface => interface.device_address())
    }

    /// Where peers find the interface on its device.
    pub fn address(&self) -> InterfaceAddress {
        transports!(each! &self.0, interface => interface.address())
    }

    /// Sets the handler of active messages `id` (0 to 31), replacing an older one. Handlers may post.
    ///
    /// # Errors
    /// [`HandlerError::UnknownHandlerId`], [`HandlerError::Closed`]
    pub fn set_handler(
        &self,
        id: u8,
        handler: impl FnMut(Message<'_>) + 'static,
    ) -> Result<(), HandlerError> {
        transports!(each! &self.0, interface => interface.set_handler(id, handler))
    }

    /// Sets the handler that is called once for each endpoint that fails.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        transports!(each! &self.0, interface => interface.set_error_handler(handler));
    }

    /// Messages that came for an id without handler, and were dropped.
    pub fn unhandled(&self) -> u64 {
        transports!(each! &self.0, interface => interface.unhandled())
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        transports!(each! &self.0, interface => interface.counters())
    }

    /// What becomes readable when something happens to an interface that is armed; `None` if nothing ever does without a call on this
    /// thread. Only for sleeping: nothing is to be read from it, and it may also be readable without a reason.
    ///
    /// # Errors
    /// [`EventError::Missing`], [`EventError::System`]
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        transports!(each! &self.0, interface => interface.event_fd())
    }

    /// From now on the [descriptor](Self::event_fd) tells when something happens, until progress is called. Answers when progress is
    /// wanted at the latest, if it is.
    ///
    /// # Errors
    /// [`EventError::Busy`] if something is there to be done: call progress, and arm again. [`EventError::Missing`],
    /// [`EventError::System`]
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        transports!(each! &self.0, interface => interface.arm())
    }

    /// Waits, in the sense of [`FlushMode::Local`](crate::FlushMode::Local), for the operations of every endpoint.
    /// The completion is counted down once, when all are finished.
    ///
    /// # Errors
    /// [`PostError::NoResource`], [`PostError::Closed`]
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        transports!(each! &self.0, interface => interface.flush(completion))
    }

    /// On every endpoint, operations posted later take effect after those posted before.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        transports!(each! &self.0, interface => interface.fence())
    }
}
