//! Receives of one interface whose device matches tags: in the device's list, and in software.
//!
//! [`DeviceTags`] has the receives of an interface that was opened with
//! [`tag_matching`](barewire::InterfaceConfig::tag_matching). The device gets the data of those
//! that fit its list; the others, and messages that match nothing, wait in software.
//! [`Offload`] keeps the order: a message goes to the receive that was
//! posted first. Peers send by `tag_short`, `tag_bcopy`, `tag_zcopy` and `tag_rendezvous` of
//! [`Endpoint`](barewire::Endpoint).
//!
//! ```
//! use std::rc::Rc;
//! use barewire::config::Choice;
//! use barewire::{Domain, Endpoint, Interface, InterfaceConfig, Worker};
//! use barewire_wireup::tag::device::DeviceTags;
//! use barewire_wireup::tag::{Buffer, FULL_MASK};
//!
//! let mut worker = Worker::new();
//! let domain = Rc::new(Domain::open(&"rc_mlx5/soft0:1".parse()?)?);
//! let config = InterfaceConfig::default().tag_matching(Choice::Yes);
//! let interface = Interface::open(&mut worker, &domain, &config)?;
//! let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
//! here.connect(&there.address())?;
//! there.connect(&here.address())?;
//!
//! let tags = DeviceTags::new(&interface, &domain, 0)?;
//! let buffer = Buffer::new(16384)?;
//! let receive = tags.receive(7, FULL_MASK, &buffer);
//! here.tag_short(7, b"hello")?;
//! let received = loop {
//!     worker.progress();
//!     if let Some(result) = receive.poll() {
//!         break result?;
//!     }
//! };
//! assert_eq!((received.tag, received.length), (7, 5));
//! assert_eq!(&buffer.to_vec()[..5], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fetch;
mod list;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use barewire::{Cause, Domain, HandlerError, Interface, OperationError, TagAnnouncement, TagEvent};

use super::buffer::Buffer;
use super::offload::{Cancel, Offload, Outcome, Posted};
use super::protocol::TagError;
use super::slab::Key;
pub(super) use fetch::finish;
pub(super) use list::{DeviceList, HasBuffer};

/// Most bytes of an announcement in a buffer.
const ANNOUNCEMENT: usize = 64;

/// A message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its tag.
    pub tag: u64,
    /// Its immediate; of a rendezvous, a number of the sender.
    pub immediate: u32,
    /// Its length in bytes.
    pub length: usize,
}

/// A receive that was posted.
struct Receive {
    buffer: Buffer,
    /// Its number while it waits.
    key: Cell<Option<Key>>,
    result: Cell<Option<Result<Received, TagError>>>,
}

/// A message that waits for a receive.
enum Message {
    Eager { tag: u64, immediate: u32, data: Vec<u8> },
    Announced(TagAnnouncement),
}

struct Inner {
    this: Weak<Self>,
    domain: Rc<Domain>,
    offload: RefCell<Offload<Rc<Receive>, Message>>,
    list: RefCell<DeviceList>,
}

/// The tagged messages that arrive at an interface. Cloning gives another handle.
///
/// Everything happens inside [`Worker::progress`](barewire::Worker::progress) and the calls of this
/// API, on one thread.
#[derive(Clone)]
pub struct DeviceTags(Rc<Inner>);

/// A handle to a receive. Dropping it does not cancel the receive.
#[must_use = "the result tells whether a message was received"]
pub struct Receipt {
    tags: Rc<Inner>,
    receive: Rc<Receive>,
}

impl DeviceTags {
    /// Matches the tagged messages of `interface`, which is open in `domain`, and becomes its
    /// handler of [`TagEvent`]s. Receives with buffers of fewer than `threshold` bytes stay in
    /// software, and so do those with fewer than the longest eager message: a message that is too
    /// long for the buffer in the list would fail its connection.
    ///
    /// # Errors
    /// [`HandlerError::NoTags`] if the device matches no tags, or the interface was opened without
    /// `tag_matching`; [`HandlerError::Closed`]
    pub fn new(
        interface: &Interface,
        domain: &Rc<Domain>,
        threshold: usize,
    ) -> Result<Self, HandlerError> {
        let inner = Rc::new_cyclic(|this| Inner {
            this: Weak::clone(this),
            domain: Rc::clone(domain),
            offload: RefCell::default(),
            list: RefCell::new(DeviceList::new(interface, domain, threshold)),
        });
        let tags = Rc::downgrade(&inner);
        interface.set_tag_handler(move |event| {
            if let Some(tags) = tags.upgrade() {
                tags.handle(event);
            }
        })?;
        Ok(Self(inner))
    }

    /// Receives a message whose tag equals `tag` in the bits of `mask`.
    ///
    /// A message goes to the receive that was posted first of those that match it, and a receive
    /// gets the first message of those that match it.
    pub fn receive(&self, tag: u64, mask: u64, buffer: &Buffer) -> Receipt {
        let inner = &self.0;
        let (key, result) = (Cell::new(None), Cell::new(None));
        let receive = Rc::new(Receive { buffer: buffer.clone(), key, result });
        let posted =
            inner.with(|offload, list| offload.receive(list, tag, mask, Rc::clone(&receive)));
        match posted {
            Posted::Matched(receive, message) => inner.give(&receive, message),
            Posted::Waiting(key) => receive.key.set(Some(key)),
        }
        Receipt { tags: Rc::clone(inner), receive }
    }

    /// Receives that wait for messages.
    pub fn waiting(&self) -> usize {
        self.0.offload.borrow().waiting()
    }

    /// Messages that wait for receives.
    pub fn kept(&self) -> usize {
        self.0.offload.borrow().kept()
    }
}

impl fmt::Debug for DeviceTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTags")
            .field("waiting", &self.waiting())
            .field("kept", &self.kept())
            .finish_non_exhaustive()
    }
}

impl Receipt {
    /// The result, once the receive has ended.
    pub fn poll(&self) -> Option<Result<Received, TagError>> {
        self.receive.result.get()
    }

    /// Asks for the cancellation of the receive. Returns whether it may end as
    /// [`TagError::Canceled`]; the result tells.
    pub fn cancel(&self) -> bool {
        let Some(key) = self.receive.key.get().filter(|_| self.poll().is_none()) else {
            return false;
        };
        let inner = &self.tags;
        let cancelled = inner.with(|offload, list| offload.cancel(list, key));
        match cancelled {
            Cancel::Done(receive) => {
                receive.result.set(Some(Err(TagError::Canceled)));
                true
            }
            Cancel::Asked => true,
            Cancel::TooLate => false,
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receipt").field(&self.poll()).finish()
    }
}

impl HasBuffer for Rc<Receive> {
    fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Inner {
    /// Matches, and passes messages to the receives that have got them.
    fn with<T>(
        &self,
        run: impl FnOnce(&mut Offload<Rc<Receive>, Message>, &mut DeviceList) -> T,
    ) -> T {
        let result = run(&mut self.offload.borrow_mut(), &mut self.list.borrow_mut());
        while let Some(outcome) = self.outcome() {
            match outcome {
                Outcome::Matched(receive, message) => self.give(&receive, message),
                Outcome::Canceled(receive) => receive.result.set(Some(Err(TagError::Canceled))),
                Outcome::Kept(_) => {}
            }
        }
        result
    }

    fn outcome(&self) -> Option<Outcome<Rc<Receive>, Message>> {
        self.offload.borrow_mut().outcome()
    }

    fn handle(&self, event: TagEvent<'_>) {
        match event {
            TagEvent::Matched { context, .. } => {
                self.with(|offload, list| offload.matched(list, context as u16).is_some());
            }
            TagEvent::Received { context, tag, immediate, length, .. } => {
                if let Some(receive) = self.end(context as u16) {
                    let received = Received { tag, immediate, length };
                    receive.result.set(Some(Ok(received)));
                }
                self.fill();
            }
            TagEvent::NotRead { context, announcement, length } => {
                if let Some(receive) = self.end(context as u16) {
                    let mut bytes = [0; ANNOUNCEMENT];
                    let bytes = &mut bytes[..length.min(ANNOUNCEMENT)];
                    let read = receive.buffer.read(0, bytes).is_ok();
                    match announcement.read(bytes).filter(|_| read) {
                        Some((announcement, _)) => {
                            self.give(&receive, Message::Announced(announcement));
                        }
                        None => receive.result.set(Some(Err(TagError::Protocol))),
                    }
                }
                self.fill();
            }
            TagEvent::Ended { context, error } => {
                self.ended(context as u16, error);
                self.fill();
            }
            TagEvent::Unexpected { tag, immediate, message, .. } => {
                let data = message.data().to_vec();
                self.arrived(tag, Message::Eager { tag, immediate, data });
            }
            TagEvent::Announced { announcement, .. } => {
                self.arrived(announcement.tag(), Message::Announced(announcement));
            }
            _ => {}
        }
    }

    /// A message that matched nothing in the list.
    fn arrived(&self, tag: u64, message: Message) {
        self.with(|offload, list| offload.unexpected(list, tag, message));
    }

    /// The entry has left the list with a message. Returns its receive.
    fn end(&self, index: u16) -> Option<Rc<Receive>> {
        self.with(|offload, list| offload.end(list, index))
    }

    /// The entry has left the list without a message.
    fn ended(&self, index: u16, error: OperationError) {
        // A receive that is still there: its message failed, or the interface was closed.
        let (receive, failed) = match error.cause {
            Cause::Canceled => {
                (self.with(|offload, list| offload.removed(list, index)), TagError::Closed)
            }
            cause => (self.end(index), TagError::LinkFailed(cause)),
        };
        if let Some(receive) = receive {
            receive.result.set(Some(Err(failed)));
        }
    }

    /// Moves receives of software to the list, which has room again.
    fn fill(&self) {
        self.with(Offload::fill);
    }

    /// Passes a message to its receive.
    fn give(&self, receive: &Rc<Receive>, message: Message) {
        let most = receive.buffer.len();
        match message {
            Message::Eager { tag, immediate, data } => {
                let length = data.len();
                let written = length <= most && receive.buffer.write(0, &data).is_ok();
                let received = Received { tag, immediate, length };
                let result =
                    if written { Ok(received) } else { Err(TagError::Truncated { length }) };
                receive.result.set(Some(result));
            }
            Message::Announced(announcement) if announcement.len() > most => {
                let length = announcement.len();
                receive.result.set(Some(Err(TagError::Truncated { length })));
                finish(announcement);
            }
            Message::Announced(announcement) => self.fetch(Rc::clone(receive), announcement),
        }
    }
}
