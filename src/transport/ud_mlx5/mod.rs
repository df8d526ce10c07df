//! `ud_mlx5`: active messages over unreliable datagrams of mlx5 devices, through barewire's own
//! driver. What does not depend on it is in `transport::ud`.
//!
//! The transport is meant for many peers, and for devices where connections are expensive: an
//! interface is one queue pair, however many peers it has. There are no puts, gets or atomics, and
//! a message fits a packet of the port's MTU.
//!
//! Receive buffers start as those of one endpoint, [`InterfaceConfig::receive_ring`], and grow on
//! demand up to those of all, but at most to [`InterfaceConfig::max_receive_buffers`]; a message that
//! finds none is lost and sent again.
//!
//! Progress runs the timers. A peer whose process makes no progress acknowledges nothing: after
//! [`InterfaceConfig::peer_timeout`] of silence its endpoint fails.
//!
//! ```
//! use barewire::InterfaceConfig;
//! use barewire::capability::AmShort;
//! use barewire::transport::ud_mlx5::{Domain, Interface, SOFT_DEVICE};
//! use barewire::transport::Interface as _;
//! use std::{cell::Cell, rc::Rc};
//!
//! let domain = Domain::open(SOFT_DEVICE)?;
//! let (interface, mut progress) = Interface::open(&domain, &InterfaceConfig::default())?;
//! let sum = Rc::new(Cell::new(0));
//! let total = Rc::clone(&sum);
//! interface.set_handler(1, move |message| total.set(total.get() + message.data().len()))?;
//!
//! let endpoint = interface.connect(&interface.address())?;
//! while endpoint.am_short(1, 7, b"hello").is_err() {
//!     progress.progress();
//! }
//! while sum.get() == 0 {
//!     progress.progress();
//! }
//! assert_eq!(sum.get(), 8 + 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod driver;

pub use super::mlx5::{Domain, Memory, RemoteKey, SOFT_DEVICE};

use super::ud;
use crate::base::address::TransportId;
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;

/// The transport.
pub(crate) const ID: TransportId = TransportId::UdMlx5;

/// One end of a connection.
pub type Endpoint = ud::Endpoint<UdMlx5>;
/// A handle to an open interface.
pub type Interface = ud::Interface<UdMlx5>;
/// The progress of an interface.
pub type Progress = ud::Progress<UdMlx5>;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum UdMlx5 {}

super::object::objects!(Progress);
ud::methods!(UdMlx5);

/// Returns what an interface of this transport with these settings can do, on a port with the
/// largest MTU.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    ud::attributes(config)
}
