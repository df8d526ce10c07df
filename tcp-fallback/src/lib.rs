//! Messages and one-sided operations over TCP, closed to strangers.
//!
//! | module | what it has |
//! |---|---|
//! | [`key`], [`handshake`] | the job's secret, and how two ends prove that they know it |
//! | [`door`], [`connector`] | connections from either side, which are no connections before that |
//! | [`socket`], [`outbox`] | a connection that never waits, and what waits on it |
//! | [`seal`] | records, which protect what follows |
//! | [`patience`] | how long a peer may take |
//! | [`message`], [`request`] | what is said on it |
//! | [`region`], [`target`] | memory that peers may reach, and the thread that serves them |
//! | [`interfaces`] | the addresses of this host, and which of them leads to a peer |
//!
//! Nothing of these waits, allocates per message, or calls back: a transport drives them. What they promise:
//!
//! * No byte of a peer is looked at before it proved that it knows the key, and it reaches no memory but what
//!   was opened to it.
//! * On a [protected](door::Limits::protected) connection, what is handed on is what the peer sent: unchanged,
//!   in order, once, and from this connection's peer and direction. Otherwise the connection ends with an
//!   error that says so. The bytes are encrypted as well. Whoever is on the way can delay them or cut the
//!   connection, and sees when and how much is sent.
//!
//! What they do not promise: forward secrecy. Who learns the job's key later can decrypt what was recorded,
//! since the keys of a connection are derived from it and from what is sent in the clear. A connection that
//! is not protected can be read and changed by whoever can read and change the packets.
//!
//! Records are this crate's own, from reviewed parts (HKDF and AES-256-GCM of `ring`), in place of TLS or
//! Noise: the handshake was there, and records need no state machine beside it, so that sockets that never
//! wait, the thread that serves memory and every bound on what a stranger costs stay as they are.
//!
//! Beside them stands a plain [`Stream`] of framed messages with deadlines, for conversations that need no speed. Of a [`Listener`] it
//! proves nothing about its peer; a [`KeyedListener`] lets in who knows the key.
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

#![deny(unsafe_code)]

pub mod connector;
pub mod door;
pub mod frame;
pub mod handshake;
pub mod interfaces;
pub mod key;
mod keyed;
mod listener;
pub mod message;
pub mod outbox;
pub mod patience;
pub mod region;
pub mod request;
pub mod seal;
pub mod socket;
mod stream;
pub mod target;

pub use frame::FrameError;
pub use key::Key;
pub use keyed::KeyedListener;
pub use listener::{Listener, ListenerError};
pub use stream::{Message, Stream, StreamCause, StreamError};
