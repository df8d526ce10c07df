//! Memory that processes of one machine share.
//!
//! A [`Segment`] is an anonymous file in memory (memfd) of a sealed size, mapped by every process that holds
//! its descriptor. [`send`] hands the descriptor to another process over a unix socket and [`receive`] takes
//! and checks it. No name is left anywhere, so nothing remains when all its processes are gone, however they
//! ended.
//!
//! What is in a segment can change at any moment: another process writes to it. So no reference to its
//! bytes is ever made; they are copied in and out.
//!
//! ```
//! use barewire_shm::{Segment, receive, send};
//! use std::os::unix::net::UnixStream;
//!
//! // The two ends would be two processes.
//! let (here, there) = UnixStream::pair()?;
//! let segment = Segment::create("example", 4096)?;
//! send(&here, &segment)?;
//! let theirs = receive(&there, 1 << 20)?;
//! segment.write(100, b"hello")?;
//! let mut word = [0; 5];
//! theirs.read(100, &mut word)?;
//! assert_eq!(&word, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod address;
mod atomic;
mod bulk;
mod control;
mod copy;
mod error;
mod fifo;
mod handover;
#[cfg(all(test, not(loom)))]
mod hostile;
mod hot;
mod lane;
mod line;
mod link;
#[cfg(all(test, loom))]
mod models;
mod peer;
mod port;
mod process;
mod region;
mod segment;
mod senders;
mod wake;

pub use address::{PortAddress, PortConfig, Users};
pub use bulk::{BUFFER, BulkReceiver, MAX_BUFFERS};
pub use error::{Corrupt, HandoverError, LinkError, OutOfRange, PortError, SegmentError, SendError};
pub use handover::{receive, send};
pub use lane::{INLINE, MESSAGE_WORDS};
pub use peer::{MAX_IDS, Now, Peer};
pub use port::{Deliver, Port, Watcher};
pub use process::{MAX_RANGES, Process, ProcessError, Range, admit_peers, pid_namespace};
pub use region::{LIVE, Mapped, Region, Shelf};
pub use segment::Segment;
