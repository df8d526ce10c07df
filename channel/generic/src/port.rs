//! Ports: a transport in use, its memory, and the connections of channels.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use barewire::{
    Access, Completion, DeviceId, Domain, Endpoint, Flags, FlushMode, Interface, InterfaceConfig,
    Memory, MemoryError, PeerAddress, PostError, RemoteKey, Worker,
};

use crate::error::{Error, Failure, SetupError};
use crate::message::Message;
use crate::receiver::Receiver;
use crate::sender::Sender;

/// The active message of channels.
const AM: u8 = 30;
/// Messages of a channel that its end has not handled. A receiver sends at most 256 lines and a
/// CLOSE, a sender no more, before it needs an answer.
const MOST_MESSAGES: usize = 512;
/// Rounds of progress in which a channel that is dropped tries to tell its peer.
const LAST_WORDS: usize = 64;

/// What a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Messages are sent from it.
    Send,
    /// Messages are received into it. It can be sent from as well.
    Receive,
}

/// A transport on a device, and what its channels share. Clones are handles to the same port.
///
/// It belongs to one thread, like the transports.
#[derive(Clone, Debug)]
pub struct Port(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    // Dropped first, before the interface and worker.
    closing: RefCell<Vec<(Endpoint, Completion)>>,
    inboxes: Rc<RefCell<Inboxes>>,
    interface: Interface,
    domain: Domain,
    worker: RefCell<Worker>,
}

type Inboxes = HashMap<u64, Weak<RefCell<Inbox>>>;

/// Messages for one end that it has not handled.
#[derive(Debug, Default)]
struct Inbox {
    messages: VecDeque<Message>,
    overflows: bool,
}

impl Port {
    /// Opens a device, such as `shm/memory`.
    ///
    /// # Errors
    /// [`SetupError::Open`], [`SetupError::Unsupported`].
    pub fn open(device: &DeviceId) -> Result<Self, SetupError> {
        let mut worker = Worker::new();
        let domain = Domain::open(device)?;
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
        if !interface.attributes().flags.contains(Flags::AM_BCOPY | Flags::PUT_ZCOPY) {
            return Err(SetupError::Unsupported(domain.transport().name()));
        }
        let inboxes: Rc<RefCell<Inboxes>> = Rc::default();
        let handler = {
            let inboxes = Rc::clone(&inboxes);
            move |message: barewire::Message<'_>| {
                // Strangers' messages, and those for channels that are closed, have no inbox.
                let Some((number, message)) = Message::parse(message.data()) else { return };
                let inbox = inboxes.borrow().get(&number).and_then(Weak::upgrade);
                let Some(inbox) = inbox else { return };
                let mut inbox = inbox.borrow_mut();
                if inbox.messages.len() < MOST_MESSAGES {
                    inbox.messages.push_back(message);
                } else {
                    inbox.overflows = true;
                }
            }
        };
        if interface.set_handler(AM, handler).is_err() {
            return Err(SetupError::Unsupported(domain.transport().name()));
        }
        let (closing, worker) = (RefCell::default(), RefCell::new(worker));
        Ok(Self(Rc::new(Inner { closing, inboxes, interface, domain, worker })))
    }

    /// Allocates `length` zeroed bytes.
    ///
    /// # Errors
    /// [`MemoryError`]
    pub fn allocate(&self, length: usize, usage: Usage) -> Result<Region, MemoryError> {
        let access = match usage {
            Usage::Send => Access::empty(),
            Usage::Receive => Access::REMOTE_WRITE,
        };
        let memory = self.0.domain.allocate(length, access)?;
        let key = memory.pack_key();
        let inner = RegionInner { memory, key, usage, port: self.clone() };
        Ok(Region(Rc::new(inner)))
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// [`SetupError::Open`], [`SetupError::Random`].
    pub fn offer(&self) -> Result<Offer, SetupError> {
        let to_interface =
            self.0.interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE);
        let endpoint = if to_interface { None } else { Some(Endpoint::new(&self.0.interface)?) };
        let (number, inbox) = (random_number().map_err(SetupError::Random)?, Rc::default());
        self.0.inboxes.borrow_mut().insert(number, Rc::downgrade(&inbox));
        let place = Place { port: self.clone(), number, inbox };
        Ok(Offer { place, endpoint })
    }

    /// Delivers messages and finishes operations. Calls of the channels that find nothing do so.
    pub fn progress(&self) {
        // A handler of the program may call this while progress runs.
        let Ok(mut worker) = self.0.worker.try_borrow_mut() else { return };
        worker.progress();
        drop(worker);
        let closing = &mut *self.0.closing.borrow_mut();
        closing.retain(|(_, flushed)| flushed.pending() > 0);
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn unpack(&self, key: &[u8]) -> Result<RemoteKey, Failure> {
        Ok(self.0.domain.unpack_key(key)?)
    }

    /// The longest piece of a message that is written at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.0.interface.attributes().put.max_zcopy
    }
}

/// The number of a channel at a port, and its inbox.
///
/// Messages name a channel by this number only. It is random, and known to the peer that has the
/// handle, so that no other peer of the port can send to the channel.
#[derive(Debug)]
struct Place {
    port: Port,
    number: u64,
    inbox: Rc<RefCell<Inbox>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.port.0.inboxes.borrow_mut().remove(&self.number);
    }
}

/// 64 bits that no other process can guess.
fn random_number() -> std::io::Result<u64> {
    let mut bytes = [0; size_of::<u64>()];
    // getrandom(2) returns up to 256 bytes in one call.
    rustix::io::retry_on_intr(|| {
        rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// An end that is not connected. The two ends exchange their handles by any means.
#[derive(Debug)]
#[must_use = "it becomes a sender or a receiver"]
pub struct Offer {
    place: Place,
    endpoint: Option<Endpoint>,
}

impl Offer {
    /// The bytes that the peer needs. They are a secret of the two ends: a process that has them
    /// can send messages to this end.
    pub fn handle(&self) -> Vec<u8> {
        let address = match &self.endpoint {
            Some(endpoint) => endpoint.address(),
            None => self.place.port.0.interface.address(),
        };
        let mut handle = self.place.number.to_le_bytes().to_vec();
        handle.extend(address.to_bytes());
        handle
    }

    /// Connects the sending end to the peer with this handle, which becomes the receiver.
    ///
    /// # Errors
    /// [`SetupError::Handle`], [`SetupError::Connect`].
    pub fn sender(self, peer: &[u8]) -> Result<Sender, SetupError> {
        Ok(Sender::new(self.connect(peer)?))
    }

    /// Connects the receiving end to the peer with this handle, which becomes the sender.
    ///
    /// # Errors
    /// [`SetupError::Handle`], [`SetupError::Connect`].
    pub fn receiver(self, peer: &[u8]) -> Result<Receiver, SetupError> {
        Ok(Receiver::new(self.connect(peer)?))
    }

    fn connect(self, peer: &[u8]) -> Result<Connection, SetupError> {
        let (number, address) = peer.split_first_chunk().ok_or(SetupError::Handle)?;
        let address = PeerAddress::from_bytes(address).map_err(|_| SetupError::Handle)?;
        let endpoint = match self.endpoint {
            Some(endpoint) => {
                endpoint.connect(&address)?;
                endpoint
            }
            None => self.place.port.0.interface.connect(&address)?,
        };
        let peer = u64::from_le_bytes(*number);
        Ok(Connection { place: self.place, endpoint, peer, outbox: VecDeque::new() })
    }
}

/// A connected end.
#[derive(Debug)]
pub(crate) struct Connection {
    place: Place,
    pub(crate) endpoint: Endpoint,
    /// The number that the peer has given the channel.
    peer: u64,
    /// Messages that have to be sent.
    outbox: VecDeque<Message>,
}

impl Connection {
    pub(crate) fn port(&self) -> &Port {
        &self.place.port
    }

    /// The next message of the peer.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, Failure> {
        let mut inbox = self.place.inbox.borrow_mut();
        if inbox.overflows {
            return Err(Failure::Protocol("more messages than it may send at once"));
        }
        Ok(inbox.messages.pop_front())
    }

    /// Sends a message after those that wait.
    pub(crate) fn send(&mut self, message: Message) -> Result<(), Failure> {
        self.outbox.push_back(message);
        self.flush().map(drop)
    }

    /// Sends what waits, as far as there is room. Returns whether everything is sent.
    pub(crate) fn flush(&mut self) -> Result<bool, Failure> {
        while let Some(message) = self.outbox.front() {
            let bytes = message.to_bytes(self.peer);
            let pack = |room: &mut [u8]| match room.get_mut(..bytes.len()) {
                Some(room) => {
                    room.copy_from_slice(&bytes);
                    bytes.len()
                }
                None => 0,
            };
            match self.endpoint.am_bcopy(AM, pack) {
                Ok(_) => drop(self.outbox.pop_front()),
                Err(PostError::NoResource) => return Ok(false),
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(true)
    }

    /// Why a post has failed: the failure of the endpoint, if that is the reason.
    pub(crate) fn failure(&self, error: PostError) -> Failure {
        match self.endpoint.error() {
            Some(failure) => Failure::Lost(failure.to_string()),
            None => error.into(),
        }
    }

    /// Fails if the endpoint has failed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.endpoint.error() {
            Some(failure) => Err(Failure::Lost(failure.to_string())),
            None => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.outbox.push_back(Message::Close);
        for _ in 0..LAST_WORDS {
            if self.flush() != Ok(false) {
                break;
            }
            self.place.port.progress();
        }
        // The endpoint lives until what it has posted is done: dropping it cancels that.
        let flushed = Completion::counter();
        if self.endpoint.flush(FlushMode::Local, Some(&flushed)).is_ok() {
            let mut closing = self.place.port.0.closing.borrow_mut();
            closing.push((self.endpoint.clone(), flushed));
        }
    }
}

/// Memory of a port. Clones are handles to the same memory, which is freed when the last of them
/// and of the requests that use it is gone.
#[derive(Clone, Debug)]
pub struct Region(Rc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    // Before the port, whose domain it belongs to.
    memory: Memory,
    key: Vec<u8>,
    usage: Usage,
    port: Port,
}

impl Region {
    /// Its bytes, with functions to read and write them.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.0.key
    }

    pub(crate) fn receives(&self) -> bool {
        self.0.usage == Usage::Receive
    }

    /// Fails if the region cannot be used for `length` bytes at `offset` on a channel of `port`.
    pub(crate) fn admit(&self, port: &Port, offset: usize, length: usize) -> Result<(), Error> {
        let size = self.0.memory.len();
        if !self.0.port.is(port) {
            return Err(Error::Foreign);
        }
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfBounds { offset, length, size }),
        }
    }
}
