//! Links by a socket address, where the peer's worker address is not known: a client dials, and a
//! server accepts or rejects it.
//!
//! The connection is a control connection, whose ends have proved the job's key. It carries two
//! frames, and then the protocol of the link:
//!
//! | bytes | meaning |
//! |---|---|
//! | 2 | `b"bL"` |
//! | 1 | version, 1 |
//! | 1 | `H` from the client; `A` accepted or `R` rejected from the server |
//! | 2, .. | length and bytes of the sender's worker address; of `R` empty |
//! | .. | private data; of `R` the reason in UTF-8 |

use barewire_tcp::time::after;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Instant;

use thiserror::Error;

use super::stream::{Name, Streams};
use super::{ConnectError, Node, Shared};
use crate::address::{Uuid, WorkerAddress};
use crate::link::{Link, Options};

/// Bytes of private data at most.
pub const MAX_DATA: usize = 2048;
/// Bytes of a reason for a rejection at most; the rest is cut off.
const MAX_REASON: usize = 512;
/// Clients that wait to be accepted, at most; further ones are rejected.
const MAX_WAITING: usize = 1024;
const MAGIC: [u8; 2] = *b"bL";
const VERSION: u8 = 1;

/// Why a node cannot listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// There is no job key, with which clients prove that they belong to the job.
    #[error("there is no job key: see BAREWIRE_KEY_FILE, or Rules::key")]
    NoKey,
    /// The address cannot be listened on or connected to.
    #[error("{address}: {source}")]
    System {
        /// The address.
        address: SocketAddr,
        /// The error.
        source: std::io::Error,
    },
    /// More private data than the first message holds.
    #[error("{0} bytes of private data; at most {MAX_DATA}")]
    TooLong(usize),
}

/// Why a client was not connected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DialError {
    /// The server rejected it, with this reason.
    #[error("the server rejected the connection: {0}")]
    Rejected(String),
    /// The connection ended, or could not be made.
    #[error("could not connect: {0}")]
    Connection(String),
    /// The server did not decide before the deadline.
    #[error("the server did not decide before the deadline")]
    Deadline,
    /// The server accepted, but there is no lane to it.
    #[error("{0}")]
    NoLane(String),
}

/// A frame of this file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    kind: u8,
    address: &'a [u8],
    data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame, if the bytes are one: control messages begin with other bytes.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<6>()?;
        let [magic_0, magic_1, version, kind, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (address, data) = rest.split_at_checked(length)?;
        let valid = [magic_0, magic_1] == MAGIC
            && version == VERSION
            && matches!(kind, b'H' | b'A' | b'R')
            && data.len() <= MAX_DATA;
        valid.then_some(Self { kind, address, data })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let length = (self.address.len() as u16).to_be_bytes();
        [&MAGIC[..], &[VERSION, self.kind], &length, self.address, self.data].concat()
    }
}

/// A client that waits.
struct Knock {
    name: Name,
    address: WorkerAddress,
    data: Vec<u8>,
}

/// The clients that wait at one listener.
#[derive(Default)]
pub(super) struct Waiting(RefCell<VecDeque<Knock>>);

/// Accepts clients of this job on one socket address.
pub struct Listener {
    node: Weak<Shared>,
    waiting: Rc<Waiting>,
    address: SocketAddr,
}

/// A client that asks for a link. If it is dropped, the client is rejected.
pub struct Request {
    node: Weak<Shared>,
    knock: Option<Knock>,
}

/// The outcome of a call of [`Node::dial`].
pub(super) struct Dialing {
    options: Options,
    until: Instant,
    outcome: Option<Result<Link, DialError>>,
}

/// A link that is requested from a server.
pub struct Dial {
    dialing: Rc<RefCell<Dialing>>,
}

impl Node {
    /// Listens on a socket address; port 0 is a free one. Clients need the job's key. What
    /// strangers cost is bounded, and a client that sends nothing is dropped at the deadline of the
    /// rules.
    ///
    /// # Errors
    /// [`ListenError`]
    pub fn listen(&mut self, address: SocketAddr) -> Result<Listener, ListenError> {
        let waiting = Rc::new(Waiting::default());
        let address = self
            .with_streams(address, |streams| streams.listen(address, Some(Rc::clone(&waiting))))?;
        Ok(Listener { node: Rc::downgrade(&self.shared), waiting, address })
    }

    /// Asks a [`Listener`] for a link. The server gets `data` with the request.
    ///
    /// # Errors
    /// [`ListenError`]
    pub fn dial(
        &mut self,
        address: SocketAddr,
        data: &[u8],
        options: Options,
    ) -> Result<Dial, ListenError> {
        if data.len() > MAX_DATA {
            return Err(ListenError::TooLong(data.len()));
        }
        let hello = Frame { kind: b'H', address: self.shared.address.as_bytes(), data }.to_bytes();
        let name = self.with_streams(address, |streams| {
            let name = streams.connect(address, None)?;
            streams.send(name, &hello);
            Ok(name)
        })?;
        let patience = options.deadline.unwrap_or(self.shared.rules.deadline);
        let until = after(Instant::now(), patience);
        let dialing = Dialing { options, until, outcome: None };
        let dialing = Rc::new(RefCell::new(dialing));
        self.shared.dials.borrow_mut().insert(name, Rc::clone(&dialing));
        Ok(Dial { dialing })
    }

    fn with_streams<R>(
        &mut self,
        address: SocketAddr,
        run: impl FnOnce(&mut Streams) -> std::io::Result<R>,
    ) -> Result<R, ListenError> {
        let mut streams = self.shared.streams.borrow_mut();
        let streams = streams.as_mut().ok_or(ListenError::NoKey)?;
        run(streams).map_err(|source| ListenError::System { address, source })
    }
}

impl Listener {
    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next client that waits, if there is one. The node has to make progress.
    pub fn next(&self) -> Option<Request> {
        let knock = self.waiting.0.borrow_mut().pop_front()?;
        Some(Request { node: Weak::clone(&self.node), knock: Some(knock) })
    }
}

impl Request {
    /// The client's node.
    pub fn peer(&self) -> Option<Uuid> {
        self.knock.as_ref().map(|knock| knock.address.uuid())
    }

    /// What the client sent along.
    pub fn data(&self) -> &[u8] {
        self.knock.as_ref().map_or(&[], |knock| &knock.data)
    }

    /// Accepts the client, and connects a link to it.
    ///
    /// # Errors
    /// [`ConnectError::NoLane`]; the client is rejected with the same reason.
    /// [`ConnectError::Gone`] if the client's connection has ended.
    pub fn accept(mut self, options: Options) -> Result<Link, ConnectError> {
        let (Some(node), Some(knock)) = (self.node.upgrade(), self.knock.take()) else {
            return Err(ConnectError::Gone);
        };
        if !node.streams.borrow().as_ref().is_some_and(|streams| streams.is_open(knock.name)) {
            return Err(ConnectError::Gone);
        }
        match node.connect(&knock.address, options) {
            Ok(link) => {
                node.say(knock.name, b'A', node.address.as_bytes(), &[]);
                Ok(link)
            }
            Err(error) => {
                node.reject(knock.name, &error.to_string());
                Err(error)
            }
        }
    }

    /// Rejects the client, with a reason of at most 512 bytes.
    pub fn reject(mut self, reason: &str) {
        if let (Some(node), Some(knock)) = (self.node.upgrade(), self.knock.take()) {
            node.reject(knock.name, reason);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let (Some(node), Some(knock)) = (self.node.upgrade(), self.knock.take()) {
            node.reject(knock.name, "the server dropped the request");
        }
    }
}

impl Dial {
    /// The link once the server has accepted, or why there is none; `None` until then. The node has
    /// to make progress. The link may not be connected yet.
    pub fn poll(&self) -> Option<Result<Link, DialError>> {
        self.dialing.borrow().outcome.clone()
    }
}

impl Shared {
    fn say(&self, name: Name, kind: u8, address: &[u8], data: &[u8]) {
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.send(name, &Frame { kind, address, data }.to_bytes());
        }
    }

    fn reject(&self, name: Name, reason: &str) {
        let end = reason.floor_char_boundary(MAX_REASON);
        self.say(name, b'R', &[], &reason.as_bytes()[..end]);
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.close(name);
        }
    }

    /// Takes a frame of this file.
    pub(super) fn on_frame(
        self: &Rc<Self>,
        name: Name,
        waiting: Option<Rc<Waiting>>,
        frame: &Frame<'_>,
    ) {
        let dialing = self.dials.borrow_mut().remove(&name);
        let address = WorkerAddress::from_bytes(frame.address);
        match (frame.kind, waiting, dialing, address) {
            (b'H', Some(waiting), _, Ok(address)) => {
                if waiting.0.borrow().len() >= MAX_WAITING {
                    return self.reject(name, "too many clients wait");
                }
                if let Some(streams) = &mut *self.streams.borrow_mut() {
                    streams.identify(name, address.uuid());
                }
                waiting.0.borrow_mut().push_back(Knock {
                    name,
                    address,
                    data: frame.data.to_vec(),
                });
            }
            (b'A', _, Some(dialing), Ok(address)) => {
                if let Some(streams) = &mut *self.streams.borrow_mut() {
                    streams.identify(name, address.uuid());
                }
                let options = dialing.borrow().options;
                let link = self
                    .connect(&address, options)
                    .map_err(|error| DialError::NoLane(error.to_string()));
                dialing.borrow_mut().outcome = Some(link);
            }
            (b'R', _, Some(dialing), _) => {
                let reason = String::from_utf8_lossy(frame.data).into_owned();
                dialing.borrow_mut().outcome = Some(Err(DialError::Rejected(reason)));
            }
            (_, _, dialing, _) => {
                if let Some(dialing) = dialing {
                    let error =
                        DialError::Connection("the server sent an impossible message".to_owned());
                    dialing.borrow_mut().outcome = Some(Err(error));
                }
                if let Some(streams) = &mut *self.streams.borrow_mut() {
                    streams.close(name);
                }
            }
        }
    }

    /// A connection ended, and with it the request or the call that it carried.
    pub(super) fn end_dial(&self, name: Name, waiting: Option<&Waiting>, reason: &str) {
        if let Some(waiting) = waiting {
            waiting.0.borrow_mut().retain(|knock| knock.name != name);
        }
        if let Some(dialing) = self.dials.borrow_mut().remove(&name) {
            dialing.borrow_mut().outcome = Some(Err(DialError::Connection(reason.to_owned())));
        }
    }

    /// Ends the calls whose deadline has passed.
    pub(super) fn expire_dials(&self) {
        let now = Instant::now();
        self.dials.borrow_mut().retain(|_, dialing| {
            let mut dialing = dialing.borrow_mut();
            if now >= dialing.until {
                dialing.outcome = Some(Err(DialError::Deadline));
            }
            dialing.outcome.is_none()
        });
    }

    /// When the next call ends.
    pub(super) fn dial_deadline(&self) -> Option<Instant> {
        self.dials.borrow().values().map(|dialing| dialing.borrow().until).min()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").field("outcome", &self.poll()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let frame = Frame { kind: b'H', address: b"addr", data: b"data" };
        assert_eq!(frame.to_bytes(), b"bL\x01H\x00\x04addrdata");
        assert_eq!(Frame::parse(b"bL\x01H\x00\x04addrdata"), Some(frame));
        assert_eq!(Frame::parse(b"bL\x02H\x00\x00"), None);
        assert_eq!(Frame::parse(b"bL\x01X\x00\x00"), None);
        assert_eq!(Frame::parse(b"bL\x01H\x00\x05addr"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for bytes in [bytes.clone(), [b"bL\x01H", &bytes[..]].concat()] {
                if let Some(frame) = Frame::parse(&bytes) {
                    prop_assert_eq!(frame.to_bytes(), bytes);
                }
            }
        }
    }
}
