//! Framed message streams over TCP.
//!
//! A [`Stream`] carries messages, each of a kind and a payload, between two processes. Every send and every
//! receive has a deadline, every error names the peer, and a frame that is foreign, of another version or
//! longer than the receiver's limit is refused before any memory is taken for it.
//!
//! What is *not* here yet: authentication, encryption and one-sided operations. A peer is whoever connected,
//! so a [`Listener`] listens on the loopback address unless it is given another one.
//!
//! ```
//! use barewire_tcp::{Listener, Stream};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (limit, soon) = (4096, Duration::from_secs(5));
//! let listener = Listener::bind(None, 0, limit)?;
//! let mut client = Stream::connect(listener.address(), limit, soon)?;
//! let mut server = listener.accept(soon)?;
//!
//! client.send(7, b"ping", soon)?;
//! let message = server.receive(soon)?;
//! assert_eq!((message.kind, message.payload.as_slice()), (7, b"ping".as_slice()));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod frame;
mod listener;
mod stream;

pub use frame::FrameError;
pub use listener::{Listener, ListenerError};
pub use stream::{Message, Stream, StreamCause, StreamError};
