//! Authenticated connections and one-sided operations over TCP.
//!
//! | module | contents |
//! |---|---|
//! | [`key`], [`handshake`] | the job's secret, and how two ends prove that they have it |
//! | [`listener`], [`connector`] | accepting and opening connections, up to the proof |
//! | [`socket`], [`outbox`] | a nonblocking connection, and the bytes that wait to be sent on it |
//! | [`frames`] | messages over a connection, each behind its length |
//! | [`seal`] | records, which protect the bytes after the handshake |
//! | [`stall_timer`] | timeouts that ignore time in which this process made no progress |
//! | [`HostAddress`] | an address with the scope that some need |
//! | [`interfaces`] | addresses of this host, and which of them leads to a peer |
//!
//! Messages and requests to a peer's memory are the protocol of `barewire`'s transport `tcp` alone:
//! their modules are hidden, and may change in any version.
//!
//! Nothing here waits, allocates per message, or calls back: a transport drives it. Guarantees:
//!
//! * No byte of a peer is parsed before the peer proved the key, and a peer accesses only memory
//!   that was opened to it.
//! * On a [protected](listener::Limits::protected) connection, the received bytes are those that
//!   the peer sent: unchanged, in order, once, and from this connection's peer and direction.
//!   Otherwise the connection ends with an error that says so. The bytes are encrypted as well. An
//!   attacker on the path can delay them or cut the connection, and sees when and how much is sent.
//!
//! There is no forward secrecy: an attacker that learns the job's key later can decrypt what was
//! recorded, since the keys of a connection are derived from the job's key and from bytes that are
//! sent in the clear. A connection that is not protected can be read and changed by an attacker
//! that can read and change its packets.
//!
//! Records are this crate's own, built from reviewed parts (HKDF and AES-256-GCM of `ring`),
//! instead of TLS or Noise: the handshake existed, and records add no state machine to it, so that
//! the nonblocking sockets, the thread that serves memory and the bounds on the cost of handshakes
//! stay as they are.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod address;
pub mod connector;
pub mod descriptors;
pub mod frames;
pub mod handshake;
#[doc(hidden)]
pub mod inbox;
pub mod interfaces;
pub mod key;
#[doc(hidden)]
pub mod leftover;
pub mod listener;
#[doc(hidden)]
pub mod message;
pub mod outbox;
pub mod ports;
#[doc(hidden)]
pub mod refusals;
#[doc(hidden)]
pub mod region;
#[doc(hidden)]
pub mod request;
pub mod seal;
#[doc(hidden)]
pub mod share;
pub mod socket;
pub mod stall_timer;
#[doc(hidden)]
pub mod target;
pub mod time;

pub use address::HostAddress;
pub use key::Key;
