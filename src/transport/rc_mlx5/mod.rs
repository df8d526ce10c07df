//! `rc_mlx5`: reliable connected queue pairs of mlx5 devices, through barewire's own driver.
//!
//! An interface has one UAR page. What it shares with `rc_verbs` is in `transport::rc`.
//!
//! ```
//! use barewire::capability::{Flush, PutShort};
//! use barewire::transport::rc_mlx5::{Domain, Endpoint, Interface, SOFT_DEVICE};
//! use barewire::transport::{Domain as _, Endpoint as _};
//! use barewire::{Access, FlushMode, InterfaceConfig, Posted};
//!
//! let domain = Domain::open(SOFT_DEVICE)?;
//! let (interface, mut progress) = Interface::open(&domain, &InterfaceConfig::default())?;
//! // Two ends, usually in two processes. Each gets the other's addresses.
//! let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
//! here.connect(&there.address())?;
//! there.connect(&here.address())?;
//!
//! let memory = domain.allocate(4096, Access::REMOTE_WRITE)?;
//! let key = domain.unpack_key(&memory.pack_key())?;
//! here.put_short(b"eight by", memory.address() + 64, &key)?;
//! while here.flush(FlushMode::Remote, None)? == Posted::InProgress {
//!     progress.progress();
//! }
//! let mut bytes = [0; 8];
//! memory.read(64, &mut bytes)?;
//! assert_eq!(&bytes, b"eight by");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod driver;
mod post;
mod probe;
mod progress;
mod queue;
mod receive;
mod stop;
pub(crate) mod tags;

pub use super::mlx5::{Domain, Memory, RemoteKey, SOFT_DEVICE, View, Window};
#[cfg(test)]
pub(in crate::transport) use tags::TagNumber;

use barewire_mlx5::Capabilities;

use super::{mlx5, rc};
use crate::base::address::TransportId;
use crate::base::attributes::{Attributes, Flags, TagLimits};
use crate::base::config::{Choice, InterfaceConfig};
use crate::base::error::OpenError;

/// The transport.
pub(crate) const ID: TransportId = TransportId::RcMlx5;

/// One end of a connection: a queue pair.
pub type Endpoint = rc::Endpoint<RcMlx5>;
/// A handle to an open interface.
pub type Interface = rc::Interface<RcMlx5>;
/// The progress of an interface.
pub type Progress = rc::Progress<RcMlx5>;

/// The transport as a type, for code that is generic over it.
#[derive(Debug)]
pub enum RcMlx5 {}

super::mlx5::message::messages!(RcMlx5);
super::object::objects!(Memory, Progress, RemoteKey);

impl Interface {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if the
    /// device refuses.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        Self::open_on(domain, config)
    }
}

/// Returns what an interface of this transport with these settings can do, on a device with common
/// limits and masked atomics.
pub fn attributes(config: &InterfaceConfig) -> Attributes {
    let connected = mlx5::attributes(config);
    let matches = config.tag_matching != Choice::No;
    Attributes {
        tag: if matches { tags::limits(config.tag_list_size) } else { TagLimits::default() },
        flags: connected.flags | if matches { Flags::TAGS } else { Flags::SEND_INVALIDATE },
        ..connected
    }
}

/// Returns what an interface can do on a device with these capabilities.
pub(crate) fn attributes_of(config: &InterfaceConfig, capabilities: &Capabilities) -> Attributes {
    let mut attributes = attributes(config);
    if capabilities.log_max_tags == 0 {
        match_no_tags(&mut attributes);
    }
    mlx5::restrict(&mut attributes, capabilities, capabilities.masked_atomics);
    attributes
}

/// Changes what an interface can do to what it can do without tag matching.
fn match_no_tags(attributes: &mut Attributes) {
    attributes.tag = TagLimits::default();
    attributes.flags.remove(Flags::TAGS);
    attributes.flags.insert(Flags::SEND_INVALIDATE);
}
