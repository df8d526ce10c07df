//! Tagged messages: a send names a tag, a receive a tag and a mask, and the two are matched where
//! the message arrives.
//!
//! [`Tags`] has the API. Its parts can be used alone: [`matcher`] decides which receive gets which
//! message, [`offload`] does so together with a device, [`device`] for the messages of an
//! interface, [`message`] has the bytes, [`protocol`] the rules of eager messages, credit and
//! rendezvous.
//!
//! ```
//! use std::rc::Rc;
//! use barewire::{Domain, Interface, InterfaceConfig, Worker};
//! use barewire_wireup::tag::{Buffer, FULL_MASK, Lane, Lanes, Limits, Mode, Tags};
//!
//! let mut worker = Worker::new();
//! let domain = Rc::new(Domain::open(&"self/memory".parse()?)?);
//! let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
//! let endpoint = interface.connect(&interface.address())?;
//! let tags = Tags::new(Limits::default());
//! tags.serve(&interface)?;
//!
//! // A link to this process itself: its peer is the same link.
//! let lane = Lane::new(endpoint, &interface, &domain);
//! let link = tags.attach(Lanes::new(lane.clone(), vec![lane]))?;
//! tags.connect(&link, link.opening());
//!
//! let buffer = Buffer::new(16)?;
//! let receive = tags.receive(7, FULL_MASK, &buffer);
//! let send = tags.send(&link, 7, b"hello", Mode::Auto);
//! let envelope = loop {
//!     worker.progress();
//!     if let Some(result) = receive.poll() {
//!         break result?;
//!     }
//! };
//! assert_eq!((envelope.tag, envelope.length), (7, 5));
//! assert_eq!(&buffer.to_vec()[..5], b"hello");
//! assert!(send.poll().is_some_and(|result| result.is_ok()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
pub mod device;
mod lanes;
mod links;
mod matched;
pub mod matcher;
pub mod message;
pub mod offload;
pub mod protocol;
mod request;
mod slab;
mod tags;
mod transfer;

pub use crate::plan::{Costs, Line};
pub use buffer::{Buffer, Grant};
pub use lanes::{Lane, Lanes};
pub use matcher::FULL_MASK;
pub use protocol::{Envelope, Limits, Mode, Opening, TagCounters, TagError, TagResult, Window};
pub use request::{Found, Request};
pub use slab::Key;
pub use tags::{Data, HANDLER, TagLink, Tags, TooManyLinks};
