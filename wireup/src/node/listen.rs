//! Links by a socket address, where the peer's worker address is not known: a client dials, and a
//! server accepts or rejects it.
//!
//! The connection is a control connection, whose ends have proved the job's key, and carries two
//! frames:
//!
//! | bytes | meaning |
//! |---|---|
//! | 2 | `b"bL"` |
//! | 1 | version, 2 |
//! | 1 | `H` from the client; `A` accepted, `R` rejected or `B` busy from the server |
//! | 2, .. | length and bytes of the sender's worker address; of `R` and `B` empty |
//! | .. | of `H` the ticket, 8 bytes; then private data; of `R` the reason in UTF-8 |
//!
//! A client that finds the server busy, or whose connection ends before the server has decided,
//! connects again until its deadline.
//!
//! The link is then connected as any other, between the two addresses. An address may be another
//! node's: the offer of the link states the ticket, and a node that has not sent or received this
//! ticket refuses the link. So no process gets another one connected.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use barewire_tcp::time::after;
use thiserror::Error;

use super::frame::Call;
use super::stream::{Ended, Name, Streams};
use super::{ConnectError, Node, Shared};
use crate::address::{Uuid, WorkerAddress};
use crate::link::{Link, Options};

/// Bytes of private data at most.
pub const MAX_DATA: usize = 2048;
/// Bytes of a reason for a rejection at most; the rest is cut off.
const MAX_REASON: usize = 512;
/// Clients that wait to be accepted, at most. A further one takes the place of one of the node that
/// has most, or finds the server busy.
const MAX_WAITING: usize = 1024;
/// Clients of one node that wait, at most.
const MAX_OF_ONE_NODE: usize = 256;
/// The first pause before a client connects again; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

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

/// A client that waits.
struct Knock {
    name: Name,
    address: WorkerAddress,
    ticket: u64,
    data: Vec<u8>,
}

impl Knock {
    /// `None` if the data has no ticket.
    fn new(name: Name, address: WorkerAddress, data: &[u8]) -> Option<Self> {
        let (ticket, data) = data.split_first_chunk()?;
        let (ticket, data) = (u64::from_le_bytes(*ticket), data.to_vec());
        Some(Self { name, address, ticket, data })
    }
}

/// The clients that wait at one listener.
#[derive(Default)]
pub(super) struct Waiting(RefCell<VecDeque<Knock>>);

impl Waiting {
    /// Returns the client whose place another one of `node` gets, if there is none left: the oldest
    /// of the node that has most, and at least two more than this one.
    ///
    /// # Errors
    /// No place is left for a client of this node.
    fn make_room(&self, node: Uuid) -> Result<Option<Knock>, ()> {
        let mut waiting = self.0.borrow_mut();
        let mut counts = std::collections::HashMap::<Uuid, usize>::new();
        for knock in &*waiting {
            *counts.entry(knock.address.uuid()).or_default() += 1;
        }
        let own = counts.get(&node).copied().unwrap_or(0);
        if own >= MAX_OF_ONE_NODE {
            return Err(());
        }
        if waiting.len() < MAX_WAITING {
            return Ok(None);
        }
        let (busiest, most) = counts.into_iter().max_by_key(|(_, count)| *count).ok_or(())?;
        let oldest = waiting.iter().position(|knock| knock.address.uuid() == busiest);
        let oldest = oldest.filter(|_| most > own + 1).ok_or(())?;
        Ok(waiting.remove(oldest))
    }
}

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

/// A call of [`Node::dial`].
pub(super) struct Dialing {
    address: SocketAddr,
    hello: Vec<u8>,
    ticket: u64,
    options: Options,
    /// Its deadline.
    until: Instant,
    /// When it connects again, while it has no connection.
    again: Option<Instant>,
    pause: Duration,
    outcome: Option<Result<Link, DialError>>,
}

impl Dialing {
    fn end(&mut self, error: DialError) {
        self.outcome.get_or_insert(Err(error));
    }
}

/// A link that is requested from a server.
pub struct Dial {
    dialing: Rc<RefCell<Dialing>>,
}

impl Node {
    /// Listens on a socket address; port 0 is a free one. Clients need the job's key. What
    /// strangers cost is bounded, and a client that sends nothing is dropped at the deadline of the
    /// rules.
    pub fn listen(&mut self, address: SocketAddr) -> Result<Listener, ListenError> {
        let waiting = Rc::new(Waiting::default());
        let address = self
            .with_streams(address, |streams| streams.listen(address, Some(Rc::clone(&waiting))))?;
        Ok(Listener { node: Rc::downgrade(&self.shared), waiting, address })
    }

    /// Asks a [`Listener`] for a link. The server gets `data` with the request. If the server is
    /// busy, asks again until the deadline.
    pub fn dial(
        &mut self,
        address: SocketAddr,
        data: &[u8],
        options: Options,
    ) -> Result<Dial, ListenError> {
        if data.len() > MAX_DATA {
            return Err(ListenError::TooLong(data.len()));
        }
        let ticket = self.shared.secret.borrow_mut().number();
        let own = self.shared.address.as_bytes();
        let data = [&ticket.to_le_bytes(), data].concat();
        let hello = Call { kind: b'H', address: own, data: &data }.to_bytes();
        let name = self.with_streams(address, |streams| {
            let name = streams.connect(address)?;
            streams.send(name, &hello);
            Ok(name)
        })?;
        let patience = options.deadline.unwrap_or(self.shared.rules.deadline);
        let until = after(Instant::now(), patience);
        let (again, pause, outcome) = (None, PAUSE, None);
        let dialing = Dialing { address, hello, ticket, options, until, again, pause, outcome };
        let dialing = Rc::new(RefCell::new(dialing));
        self.shared.dials.borrow_mut().push((name, Rc::clone(&dialing)));
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
        node.done_with(knock.name);
        match node.connect_with(&knock.address, options, knock.ticket) {
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
            streams.send(name, &Call { kind, address, data }.to_bytes());
        }
    }

    fn reject(&self, name: Name, reason: &str) {
        let end = reason.floor_char_boundary(MAX_REASON);
        self.say(name, b'R', &[], &reason.as_bytes()[..end]);
        self.close_stream(name);
    }

    /// Rejects a client that connects again.
    fn defer(&self, name: Name) {
        self.say(name, b'B', &[], &[]);
        self.close_stream(name);
    }

    fn close_stream(&self, name: Name) {
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.close(name);
        }
    }

    /// A client's request waits no more.
    fn done_with(&self, name: Name) {
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.end_request(name);
        }
    }

    /// Takes what a client or a server sent. Returns false if the connection has to end: no node
    /// sends this.
    pub(super) fn on_call(
        self: &Rc<Self>,
        name: Name,
        waiting: Option<Rc<Waiting>>,
        call: &Call<'_>,
    ) -> bool {
        if let Some(waiting) = waiting {
            return call.kind == b'H' && self.on_request(name, &waiting, call);
        }
        let Some(dialing) = self.dialing(name) else { return false };
        let address = WorkerAddress::from_bytes(call.address);
        match (call.kind, address) {
            (b'A', Ok(address)) if address.is_certified() => {
                let (options, ticket) = (dialing.borrow().options, dialing.borrow().ticket);
                let link = self
                    .connect_with(&address, options, ticket)
                    .map_err(|error| DialError::NoLane(error.to_string()));
                dialing.borrow_mut().outcome = Some(link);
            }
            (b'R', _) => {
                let reason = String::from_utf8_lossy(call.data).into_owned();
                dialing.borrow_mut().end(DialError::Rejected(reason));
            }
            (b'B', _) => dial_later(&dialing),
            _ => {
                let error = "the server sent an impossible message".to_owned();
                dialing.borrow_mut().end(DialError::Connection(error));
            }
        }
        // The connection has served its purpose.
        self.close_stream(name);
        true
    }

    /// A client asks for a link, once on a connection.
    fn on_request(&self, name: Name, waiting: &Waiting, call: &Call<'_>) -> bool {
        let Ok(address) = WorkerAddress::from_bytes(call.address) else { return false };
        let node = address.uuid();
        let mut streams = self.streams.borrow_mut();
        let is_first = streams.as_mut().is_some_and(|streams| {
            streams.is_of(name, node) && address.is_certified() && streams.begin_request(name)
        });
        drop(streams);
        let Some(knock) = Knock::new(name, address, call.data).filter(|_| is_first) else {
            return false;
        };
        match waiting.make_room(node) {
            Ok(evicted) => {
                waiting.0.borrow_mut().push_back(knock);
                self.requests.set(self.requests.get() + 1);
                if let Some(evicted) = evicted {
                    self.defer(evicted.name);
                }
            }
            Err(()) => self.defer(name),
        }
        true
    }

    /// The call that uses a connection.
    pub(super) fn dialing(&self, name: Name) -> Option<Rc<RefCell<Dialing>>> {
        let dials = self.dials.borrow();
        dials.iter().find(|(known, _)| *known == name).map(|(_, dialing)| Rc::clone(dialing))
    }

    /// Whether a call of this node has this ticket.
    pub(super) fn has_ticket(&self, ticket: u64) -> bool {
        self.dials.borrow().iter().any(|(_, dialing)| dialing.borrow().ticket == ticket)
    }

    /// A connection ended, and with it the request that it carried. A call connects again if it had
    /// a connection.
    pub(super) fn end_dial(&self, ended: &Ended) {
        if let Some(waiting) = &ended.listener {
            waiting.0.borrow_mut().retain(|knock| knock.name != ended.name);
        }
        let Some(dialing) = self.dialing(ended.name) else { return };
        if ended.was_open {
            dial_later(&dialing);
        } else {
            dialing.borrow_mut().end(DialError::Connection(ended.reason.clone()));
        }
    }

    /// Ends the calls whose deadline has passed, and connects others again. Returns how many have been
    /// decided.
    pub(super) fn attend_to_dials(&self) -> usize {
        let now = Instant::now();
        let mut streams = self.streams.borrow_mut();
        let mut dials = self.dials.borrow_mut();
        let before = dials.len();
        dials.retain_mut(|(name, dialing)| {
            let mut dialing = dialing.borrow_mut();
            if dialing.outcome.is_none() && now >= dialing.until {
                dialing.end(DialError::Deadline);
                if let Some(streams) = &mut *streams {
                    streams.close(*name);
                }
            }
            if dialing.outcome.is_some() {
                return false;
            }
            if dialing.again.is_some_and(|again| now >= again)
                && let Some(streams) = &mut *streams
            {
                dialing.again = None;
                match streams.connect(dialing.address) {
                    Ok(next) => {
                        *name = next;
                        streams.send(next, &dialing.hello);
                    }
                    Err(error) => dialing.end(DialError::Connection(error.to_string())),
                }
            }
            dialing.outcome.is_none()
        });
        before - dials.len()
    }

    /// When the next call ends or connects again.
    pub(super) fn dial_deadline(&self) -> Option<Instant> {
        let dials = self.dials.borrow();
        let times = dials.iter().flat_map(|(_, dialing)| {
            let dialing = dialing.borrow();
            [Some(dialing.until), dialing.again]
        });
        times.flatten().min()
    }
}

/// Has a call connect again after a pause.
fn dial_later(dialing: &RefCell<Dialing>) {
    let mut dialing = dialing.borrow_mut();
    if dialing.outcome.is_none() {
        dialing.again = Some(after(Instant::now(), dialing.pause));
        dialing.pause = (dialing.pause * 2).min(LONGEST_PAUSE);
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
