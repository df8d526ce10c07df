//! Interfaces: the dynamic door.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::address::{DeviceAddress, InterfaceAddress};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::Counters;
use crate::domain::Domain;
use crate::error::{EndpointError, HandlerError, OpenError, PostError};
use crate::event::EventError;
use crate::message::Message;
use crate::status::Post;
use crate::transport::{cma, rc_mlx5, self_, shm, tcp};
#[cfg(feature = "verbs")]
use crate::transport::{rc_verbs, ud_verbs};
use crate::worker::{Progress, Worker};

/// A transport at work on a device: queues, buffers and handlers. Cloning gives another handle to the same
/// interface.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Interface {
    /// Of `self`.
    Self_(self_::Interface),
    /// Of `rc_mlx5`.
    RcMlx5(rc_mlx5::Interface),
    /// Of `shm`.
    Shm(shm::Interface),
    /// Of `cma`.
    Cma(cma::Interface),
    /// Of `rc_verbs`.
    #[cfg(feature = "verbs")]
    RcVerbs(rc_verbs::Interface),
    /// Of `ud_verbs`.
    #[cfg(feature = "verbs")]
    UdVerbs(ud_verbs::Interface),
    /// Of `tcp`.
    Tcp(tcp::Interface),
}

macro_rules! each {
    ($value:expr, $inner:ident => $body:expr) => {
        match $value {
            Self::Self_($inner) => $body,
            Self::RcMlx5($inner) => $body,
            Self::Shm($inner) => $body,
            Self::Cma($inner) => $body,
            #[cfg(feature = "verbs")]
            Self::RcVerbs($inner) => $body,
            #[cfg(feature = "verbs")]
            Self::UdVerbs($inner) => $body,
            Self::Tcp($inner) => $body,
        }
    };
}

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
        let (interface, progress) = Self::made(domain, config)?;
        worker.adopt(interface.clone(), progress, config.busy_poll);
        tracing::debug!(transport = interface.transport(), ?config, "interface opened");
        Ok(interface)
    }

    fn made(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        Ok(match domain {
            Domain::Self_(domain) => {
                let (interface, progress) = self_::Interface::open(domain, config)?;
                (Self::Self_(interface), Progress::Self_(progress))
            }
            Domain::RcMlx5(domain) => {
                let (interface, progress) = rc_mlx5::Interface::open(domain, config)?;
                (Self::RcMlx5(interface), Progress::RcMlx5(progress))
            }
            Domain::Shm(domain) => {
                let (interface, progress) = shm::Interface::open(domain, config)?;
                (Self::Shm(interface), Progress::Shm(Box::new(progress)))
            }
            Domain::Cma(domain) => {
                let (interface, progress) = cma::Interface::open(domain, config)?;
                (Self::Cma(interface), Progress::Cma(progress))
            }
            #[cfg(feature = "verbs")]
            Domain::RcVerbs(domain) => {
                let (interface, progress) = rc_verbs::Interface::open(domain, config)?;
                (Self::RcVerbs(interface), Progress::RcVerbs(progress))
            }
            #[cfg(feature = "verbs")]
            Domain::UdVerbs(domain) => {
                let (interface, progress) = ud_verbs::Interface::open(domain, config)?;
                (Self::UdVerbs(interface), Progress::UdVerbs(Box::new(progress)))
            }
            Domain::Tcp(domain) => {
                let (interface, progress) = tcp::Interface::open(domain, config)?;
                (Self::Tcp(interface), Progress::Tcp(Box::new(progress)))
            }
        })
    }

    /// The transport's name.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Self_(_) => self_::NAME,
            Self::RcMlx5(_) => rc_mlx5::NAME,
            Self::Shm(_) => shm::NAME,
            Self::Cma(_) => cma::NAME,
            #[cfg(feature = "verbs")]
            Self::RcVerbs(_) => rc_verbs::NAME,
            #[cfg(feature = "verbs")]
            Self::UdVerbs(_) => ud_verbs::NAME,
            Self::Tcp(_) => tcp::NAME,
        }
    }

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        each!(self, interface => interface.attributes())
    }

    /// Where peers find the device.
    pub fn device_address(&self) -> DeviceAddress {
        each!(self, interface => interface.device_address())
    }

    /// Where peers find the interface on its device.
    pub fn address(&self) -> InterfaceAddress {
        each!(self, interface => interface.address())
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
        each!(self, interface => interface.set_handler(id, handler))
    }

    /// Sets the handler that is called once for each endpoint that fails.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + 'static) {
        each!(self, interface => interface.set_error_handler(handler));
    }

    /// Messages that came for an id without handler, and were dropped.
    pub fn unhandled(&self) -> u64 {
        each!(self, interface => interface.unhandled())
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        each!(self, interface => interface.counters())
    }

    /// What becomes readable when something happens to an interface that is armed; `None` if nothing ever does without a call on this
    /// thread. Only for sleeping: nothing is to be read from it, and it may also be readable without a reason.
    ///
    /// # Errors
    /// [`EventError::Missing`], [`EventError::System`]
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        match self {
            Self::Self_(_) | Self::Cma(_) => Ok(None),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(interface) => Ok(Some(interface.event_fd())),
            #[cfg(feature = "verbs")]
            Self::UdVerbs(interface) => Ok(Some(interface.event_fd())),
            Self::Shm(interface) => Ok(Some(interface.event_fd())),
            Self::Tcp(interface) => Ok(Some(interface.event_fd())),
            Self::RcMlx5(interface) => interface.event_fd().map(Some),
        }
    }

    /// From now on the [descriptor](Self::event_fd) tells when something happens, until progress is called. Answers when progress is
    /// wanted at the latest, if it is.
    ///
    /// # Errors
    /// [`EventError::Busy`] if something is there to be done: call progress, and arm again. [`EventError::Missing`],
    /// [`EventError::System`]
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        match self {
            Self::Self_(interface) => interface.arm(),
            Self::Cma(interface) => interface.arm(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(interface) => interface.arm(),
            #[cfg(feature = "verbs")]
            Self::UdVerbs(interface) => interface.arm(),
            Self::Shm(interface) => interface.arm(),
            Self::Tcp(interface) => interface.arm(),
            Self::RcMlx5(interface) => interface.arm(),
        }
    }

    /// Waits, in the sense of [`FlushMode::Local`](crate::FlushMode::Local), for the operations of every endpoint.
    /// The completion is counted down once, when all are finished.
    ///
    /// # Errors
    /// [`PostError::NoResource`], [`PostError::Closed`]
    pub fn flush(&self, completion: Option<&Completion>) -> Post {
        each!(self, interface => interface.flush(completion))
    }

    /// On every endpoint, operations posted later take effect after those posted before.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        each!(self, interface => interface.fence())
    }
}
