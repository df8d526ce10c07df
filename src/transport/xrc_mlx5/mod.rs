//! `xrc_mlx5`: extended reliable connections (XRC) of mlx5 devices, through barewire's own driver.
//!
//! One connection serves all interfaces of the peer's node. Each message names the receive queue of
//! the interface for which it is, so an endpoint to one more interface of a connected node is a
//! number, without a queue pair. A node is a [`Domain`] and its clones: the interfaces of a process
//! on one device.
//!
//! The first endpoint to a node connects to an endpoint there, as over
//! [`rc_mlx5`](crate::transport::rc_mlx5). [`Interface::connect`] then opens further endpoints, to
//! this or any other interface of the node, which post to the same send queue:
//!
//! ```
//! use barewire::capability::AmShort;
//! use barewire::transport::xrc_mlx5::{Domain, Endpoint, Interface, SOFT_DEVICE};
//! use barewire::transport::{Endpoint as _, Interface as _};
//! use barewire::InterfaceConfig;
//! use std::{cell::Cell, rc::Rc};
//!
//! let (node, config) = (Domain::open(SOFT_DEVICE)?, InterfaceConfig::default());
//! let (here, mut progress) = Interface::open(&node, &config)?;
//! // Two interfaces of a node; usually they are in another process, and have a thread each.
//! let (first, _first_progress) = Interface::open(&node, &config)?;
//! let (second, mut second_progress) = Interface::open(&node, &config)?;
//!
//! let (to_first, from_here) = (Endpoint::new(&here)?, Endpoint::new(&first)?);
//! to_first.connect(&from_here.address())?;
//! from_here.connect(&to_first.address())?;
//! let to_second = here.connect(&second.address())?;
//!
//! let received = Rc::new(Cell::new(0));
//! let count = Rc::clone(&received);
//! second.set_handler(3, move |message| count.set(message.data().len()))?;
//! to_second.am_short(3, 0, b"for the second")?;
//! while received.get() == 0 {
//!     progress.progress();
//!     second_progress.progress();
//! }
//! assert_eq!(received.get(), 8 + 14);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Endpoints that share a connection
//!
//! The operations of all endpoints on a connection are executed in the order in which they were
//! posted. A flush of one of them waits at most for what was posted before it. If an operation fails,
//! all endpoints on the connection fail. A cancelling flush waits for the outstanding operations
//! while other endpoints of the connection may post; so does closing. The last endpoint to be
//! cancelled or closed ends the connection.
//!
//! The connection lasts until its last endpoint here is closed, or the last one at the peer.
//!
//! XRC needs a device that is set up by PRM commands.

mod address;
mod connect;
mod driver;
mod progress;
mod queue;

pub use super::mlx5::{Domain, Memory, RemoteKey, SOFT_DEVICE, View, Window};

use barewire_mlx5::Capabilities;
use barewire_mlx5::layouts::wqe::XrcSegment;
use barewire_mlx5::queue::send::Destination as _;

use super::mlx5;
use super::rc::{self, AM_HEADER};
use crate::base::address::TransportId;
use crate::base::attributes::{AmLimits, Attributes, RmaLimits};
use crate::base::config::InterfaceConfig;
use crate::base::error::OpenError;
use crate::transport::common::message::SHORT_HEADER;

/// The transport.
pub(crate) const ID: TransportId = TransportId::XrcMlx5;

/// One end of a connection, or the address of an interface of a connected node. A clone is another
/// handle to the same one.
pub type Endpoint = rc::Endpoint<XrcMlx5>;
/// A handle to an open interface. A clone is another handle to the same one.
pub type Interface = rc::Interface<XrcMlx5>;
/// The progress of an interface.
pub type Progress = rc::Progress<XrcMlx5>;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum XrcMlx5 {}

super::mlx5::message::messages!(XrcMlx5);
super::object::objects!(Progress, RemoteKey);

impl Interface {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// device has no XRC or was not set up by PRM commands, or refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        Self::open_on(domain, config)
    }
}

/// Returns what an interface of this transport with these settings can do, on a device with common
/// limits and masked atomics.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    of_connection(&mlx5::attributes(config))
}

/// Returns what an interface can do on a device with these capabilities.
fn attributes_of(config: &InterfaceConfig, capabilities: &Capabilities) -> Attributes {
    let mut attributes = attributes(config);
    mlx5::restrict(&mut attributes, capabilities, capabilities.masked_atomics);
    attributes
}

/// Returns the attributes `rc` for WQEs with one more segment.
fn of_connection(rc: &Attributes) -> Attributes {
    let max_iov = XrcSegment::MAX_RDMA_SEGMENTS;
    let max_short = XrcSegment::MAX_INLINE - AM_HEADER - SHORT_HEADER;
    Attributes {
        put: RmaLimits { max_short: XrcSegment::MAX_WRITE_INLINE, max_iov, ..rc.put },
        get: RmaLimits { max_iov, ..rc.get },
        // The header takes one segment.
        am: AmLimits { max_short, max_iov: XrcSegment::MAX_SEND_SEGMENTS - 1, ..rc.am },
        latency_per_endpoint_ns: 0.0,
        priority: rc.priority - 10,
        ..rc.clone()
    }
}
