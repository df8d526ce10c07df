//! `ud_verbs`: active messages over unreliable datagrams of any RDMA device, through libibverbs.
//! What does not depend on libibverbs is in `transport::ud`.
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
//! The operations that the transport has compile, and others do not:
//!
//! ```
//! use barewire::capability::AmShort;
//!
//! fn send(endpoint: &barewire::transport::ud_verbs::Endpoint) {
//!     let _ = endpoint.am_short(1, 0, &[7; 8]);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! use barewire::capability::PutShort;
//! use barewire::transport::{rc_verbs::RemoteKey, ud_verbs::Endpoint};
//!
//! fn put(endpoint: &Endpoint, key: &RemoteKey) {
//!     let _ = endpoint.put_short(&[7; 8], 0x1000, key);
//! }
//! ```

mod driver;

pub use super::rdma::{Domain, Memory, RemoteKey};

use super::ud;
use crate::base::address::TransportId;
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;

/// The transport.
pub(crate) const ID: TransportId = TransportId::UdVerbs;

/// One end of a connection.
pub type Endpoint = ud::Endpoint<UdVerbs>;
/// A handle to an open interface.
pub type Interface = ud::Interface<UdVerbs>;
/// The progress of an interface.
pub type Progress = ud::Progress<UdVerbs>;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum UdVerbs {}

super::object::objects!(Progress);
ud::methods!(UdVerbs);

/// Returns what an interface of this transport with these settings can do, on a port with the
/// largest MTU.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    ud::attributes(config)
}
