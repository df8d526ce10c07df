//! Message passing and shared memory between processes of one machine.
//!
//! A [`Port`] receives messages from every process that has its address. A [`Peer`] is a connection
//! to a port. Rings, buffers and regions lie in [`Segment`]s: anonymous files in memory (memfd) of
//! sealed size, whose descriptors are passed over a unix socket. The memory has no name, so the
//! kernel frees it when the last process ends, however it ends. The socket of a killed process is
//! removed by the next port of the same user.
//!
//! Another process may write to a segment at any time. Therefore no reference to its bytes is ever
//! created; data is copied in and out.
//!
//! ```
//! use barewire_shm::{
//!     BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Peer, Port, PortAddress, PortConfig,
//!     RegionSet,
//! };
//! use std::{ptr::NonNull, rc::Rc};
//!
//! #[derive(Default)]
//! struct Inbox {
//!     scratch: [u64; MESSAGE_WORDS],
//!     headers: Vec<u64>,
//! }
//!
//! impl Deliver for Inbox {
//!     fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
//!         &mut self.scratch
//!     }
//!     fn wants_more(&self) -> bool {
//!         true
//!     }
//!     fn short(&mut self, _id: u8, _length: usize) {
//!         self.headers.push(self.scratch[0]);
//!     }
//!     fn buffered(
//!         &mut self,
//!         _id: u8,
//!         buffers: &Rc<BulkReceiver>,
//!         number: u8,
//!         _data: NonNull<u8>,
//!         _length: usize,
//!     ) {
//!         buffers.give(number);
//!     }
//!     fn broken(&mut self, process: i32, why: LinkError) {
//!         eprintln!("process {process}: {why}");
//!     }
//!     fn peer(&mut self, _name: u32) {}
//! }
//!
//! // The two ends would be two processes.
//! let address = PortAddress { number: std::process::id().into(), secret: 42 };
//! let (config, mut inbox) = (PortConfig::default(), Inbox::default());
//! let mut port = Port::open(address, &config, &RegionSet::new(1))?;
//! let mut peer = Peer::connect(address, &config)?;
//! while peer.send(3, 77, b"hello").is_err() {
//!     port.progress(&mut inbox);
//!     peer.tend()?;
//! }
//! while inbox.headers.is_empty() {
//!     port.progress(&mut inbox);
//! }
//! assert_eq!(inbox.headers, [77]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod address;
mod atomic;
mod bulk;
mod control;
mod copy;
mod credentials;
mod descriptor;
mod entrance;
mod error;
mod fifo;
#[cfg(all(test, not(loom)))]
mod hostile;
mod huge;
mod line;
mod link;
#[cfg(all(test, loom))]
mod models;
mod peer;
mod place;
mod poll;
mod port;
mod process;
mod region;
mod reply;
mod segment;
mod senders;
mod spsc;
mod table;
mod wake;

pub use address::{Place, PortAddress, PortConfig, Users};
pub use bulk::{BUFFER, BulkReceiver, MAX_BUFFERS};
pub use credentials::Credentials;
pub use descriptor::RegionPlace;
pub use error::{Corrupt, HugeError, LinkError, OutOfRange, PortError, SegmentError, SendError};
pub use huge::{HugeMemory, HugePool};
#[doc(hidden)]
pub use peer::FastSend;
pub use peer::{MAX_IDS, Peer};
pub use port::{Deliver, Port, Watcher};
pub use process::{
    Admission, MAX_RANGES, PinError, Pinned, Process, ProcessError, Range, admit_peers,
    pid_namespace,
};
#[doc(hidden)]
pub use region::LIVE;
pub use region::{Mapped, Region, RegionSet};
pub use segment::Segment;
pub use spsc::INLINE;
#[doc(hidden)]
pub use spsc::MESSAGE_WORDS;
pub use table::{Entry, Pin, RegionKey, Table, TableAddress, TableError};
