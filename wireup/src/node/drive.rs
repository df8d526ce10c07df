//! Carries out what the protocol asks for, and brings its messages to peers.

use std::cell::Cell;
use std::collections::hash_map::Entry as MapEntry;
use std::rc::Rc;
use std::time::Instant;

use barewire::{Endpoint, FlushMode, PendingResult, PostError, Posted};

use super::listen::Frame;
use super::stream::{Ended, Event, Name};
use super::{CONTROL, Incoming, Shared};
use crate::address::{Entry, Uuid, WorkerAddress};
use crate::link::{CloseMode, Inner, Link, LinkError, State};
use crate::plan::{Connects, Kind, Needs};
use crate::protocol::{Action, Cause, Kind as MessageKind, LinkId, Message, Reason};

/// Control messages to one peer that wait for its lane; the protocol sends again what is dropped.
const WAITING: u32 = 64;
/// Peers without a link whose addresses are kept.
const STRANGERS: usize = 64;
/// Actions of one call: with a peer that answers at once, there is always another.
const ACTIONS: usize = 1024;

/// What a node keeps of a peer.
pub(super) struct Peer {
    address: WorkerAddress,
    control: Option<Control>,
    /// Why its last control connection ended.
    trouble: Option<String>,
}

/// How control messages reach a peer.
#[derive(Clone)]
enum Control {
    /// An endpoint to its interface, and how many messages wait there.
    Endpoint(Endpoint, Rc<Cell<u32>>),
    Stream(Name),
}

impl Shared {
    /// Receives control messages on every interface, and notes endpoints that fail.
    pub(super) fn set_handlers(self: &Rc<Self>) {
        for one in &self.interfaces {
            let node = Rc::downgrade(self);
            // Handler ids are less than 32, and the interface was opened just now.
            let _ = one.interface.set_handler(CONTROL, move |message| {
                if let Some(node) = node.upgrade() {
                    node.receive(message.data());
                }
            });
            let node = Rc::downgrade(self);
            one.interface.set_error_handler(move |_| {
                if let Some(node) = node.upgrade() {
                    node.failed.set(true);
                    node.busy.set(true);
                }
            });
        }
    }

    fn receive(&self, message: &[u8]) {
        self.busy.set(true);
        // Bytes that are not a message have no effect.
        let _ = self.machine.borrow_mut().receive(message, self.now());
    }

    pub(super) fn link(&self, id: LinkId) -> Option<Rc<Inner>> {
        self.links.borrow().get(&id).cloned()
    }

    pub(super) fn link_or_new(self: &Rc<Self>, id: LinkId, peer: Uuid, needs: Needs) -> Rc<Inner> {
        let mut links = self.links.borrow_mut();
        Rc::clone(links.entry(id).or_insert_with(|| {
            let node = Rc::downgrade(self);
            Rc::new(Inner::new(node, id, peer, needs))
        }))
    }

    /// Keeps a peer's address.
    pub(super) fn remember(&self, address: &WorkerAddress) {
        match self.peers.borrow_mut().entry(address.uuid()) {
            MapEntry::Vacant(entry) => {
                entry.insert(Peer { address: address.clone(), control: None, trouble: None });
            }
            // The shorter address of a peer, for other nodes, does not replace the whole one.
            MapEntry::Occupied(mut entry)
                if entry.get().address.as_bytes().len() < address.as_bytes().len() =>
            {
                entry.get_mut().address = address.clone();
            }
            MapEntry::Occupied(_) => {}
        }
    }

    pub(super) fn address_of(&self, peer: &Uuid) -> Option<WorkerAddress> {
        if *peer == self.uuid {
            return Some(self.address.clone());
        }
        self.peers.borrow().get(peer).map(|peer| peer.address.clone())
    }

    /// Does everything that can be done now. Returns the number of events.
    pub(super) fn attend(self: &Rc<Self>) -> usize {
        self.busy.set(false);
        let now = self.now();
        self.serve_streams();
        self.expire_dials();
        self.flush_closing();
        self.resume_waiting();
        let mut machine = self.machine.borrow_mut();
        if machine.next_timer().is_some_and(|time| time <= now) {
            machine.tick(now);
        }
        drop(machine);
        let events = self.act_all();
        // A lane may end because the peer closed the link, so its CLOSE comes first.
        if self.failed.take() {
            self.fail_links();
            self.busy.set(true);
        }
        events
    }

    fn act_all(self: &Rc<Self>) -> usize {
        let mut events = 0;
        for _ in 0..ACTIONS {
            let action = self.machine.borrow_mut().poll();
            let Some(action) = action else {
                let message = self.inbox.borrow_mut().pop_front();
                let Some(message) = message else { return events };
                self.receive(&message);
                continue;
            };
            events += 1;
            self.act(action);
        }
        self.busy.set(true);
        events
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Send { to, link, address, message } => {
                self.send(Uuid(to), link, &address, &message);
            }
            Action::Prepare { link, turn, refused, .. } => self.prepare(link, turn, &refused),
            Action::Answer { link, turn, peer, address, offer } => {
                self.respond(link, turn, peer, &address, &offer);
            }
            Action::Complete { link, turn, answer } => self.complete(link, turn, &answer),
            Action::Connected { link, requested, .. } => self.connected(link, requested),
            Action::Drain { link, .. } => {
                // CLOSE came on the messages lane behind all messages, and the sender had flushed
                // the other lanes.
                if let Some(inner) = self.link(link) {
                    inner.state.set(State::Closing);
                }
                let _ = self.machine.borrow_mut().drained(link, self.now());
            }
            Action::Ended { link, state } => self.ended(link, state),
            Action::Discard { .. } => self.discard(&action),
        }
    }

    fn connected(self: &Rc<Self>, id: LinkId, requested: bool) {
        let Some(inner) = self.link(id) else { return };
        if !self.settle(&inner) {
            let _ = self.machine.borrow_mut().fail(id, Reason::NoResources);
            return;
        }
        inner.state.set(State::Connected);
        let link = Link(Rc::clone(&inner));
        link.hand_over();
        if !inner.queue.is_empty() {
            self.waiting.borrow_mut().push(inner);
        }
        if !requested {
            // The handler may do anything, so it is not borrowed meanwhile.
            let handler = self.on_peer.borrow_mut().take();
            if let (Some(mut handler), Some(address)) = (handler, self.address_of(&link.peer())) {
                handler(Incoming { link, address });
                self.on_peer.borrow_mut().get_or_insert(handler);
            }
        }
    }

    fn ended(&self, id: LinkId, state: State) {
        self.making.borrow_mut().remove(&id);
        let Some(inner) = self.links.borrow_mut().remove(&id) else { return };
        inner.state.set(state);
        self.endings.set(self.endings.get() + 1);
        if let State::Failed(cause) = state {
            let peer = inner.peer;
            let trouble = self.peers.borrow().get(&peer).and_then(|peer| peer.trouble.clone());
            let error = match (cause, trouble) {
                (Cause::Deadline(_), Some(trouble)) => LinkError::Connect {
                    peer,
                    reason: format!("{cause}; its control connection: {trouble}"),
                },
                _ => LinkError::Protocol { peer, cause },
            };
            inner.error.borrow_mut().get_or_insert(error);
        }
        inner.cancel();
        self.prune();
    }

    pub(super) fn forget(&self, peer: Uuid) -> bool {
        if self.links.borrow().values().any(|inner| inner.peer == peer) {
            return false;
        }
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.prune(|other| *other != peer);
        }
        self.peers.borrow_mut().remove(&peer).is_some()
    }

    /// Forgets peers without links, but for a few.
    fn prune(&self) {
        let links = self.links.borrow();
        let mut peers = self.peers.borrow_mut();
        if peers.len() <= links.len() + STRANGERS {
            return;
        }
        let used: std::collections::HashSet<Uuid> =
            links.values().map(|inner| inner.peer).collect();
        peers.retain(|peer, _| used.contains(peer));
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.prune(|peer| used.contains(peer));
        }
    }

    /// Fails the links of lanes that failed.
    fn fail_links(&self) {
        let links: Vec<_> = self.links.borrow().values().cloned().collect();
        for inner in links {
            if let Some(error) = inner.failed_lane() {
                inner.error.borrow_mut().get_or_insert(error);
                let _ = self.machine.borrow_mut().fail(inner.id, Reason::Unreachable);
            }
        }
        for peer in self.peers.borrow_mut().values_mut() {
            if matches!(&peer.control, Some(Control::Endpoint(endpoint, _)) if endpoint.error().is_some())
            {
                peer.control = None;
            }
        }
    }

    /// Closes the links whose lanes are flushed.
    fn flush_closing(&self) {
        let now = Instant::now();
        let closing = self.closing.take();
        for (inner, deadline) in closing {
            let link = Link(Rc::clone(&inner));
            let mode = inner.close.get();
            if inner.close_sent.get() && mode != Some(CloseMode::Cancel) {
                self.deliver_close(inner, deadline);
                continue;
            }
            let done = match inner.state.get() {
                State::Closed(_) | State::Failed(_) => continue,
                _ if mode == Some(CloseMode::Cancel) => {
                    inner.cancel();
                    true
                }
                State::Connected | State::Closing => {
                    inner.queue.is_empty()
                        && !matches!(
                            link.flush(FlushMode::Remote, None),
                            Ok(Posted::InProgress) | Err(PostError::NoResource)
                        )
                }
                // It is flushed once it is connected, or fails at its own deadline.
                _ => false,
            };
            if done {
                inner.state.set(State::Closing);
                let _ = self.machine.borrow_mut().close(inner.id, 0, self.now());
            } else if now >= deadline && !inner.may_connect() {
                let _ = self.machine.borrow_mut().fail(inner.id, Reason::Deadline);
            } else {
                self.closing.borrow_mut().push((inner, deadline));
                self.busy.set(true);
            }
        }
    }

    /// Ends a link whose CLOSE has reached the peer's memory, which may be long before the peer
    /// makes progress.
    fn deliver_close(&self, inner: Rc<Inner>, deadline: Instant) {
        let lane = inner.lanes.endpoint(Kind::Messages);
        match lane.map(|lane| lane.flush(FlushMode::Remote, None)) {
            Some(Ok(Posted::Done)) => {
                let _ = self.machine.borrow_mut().delivered(inner.id, self.now());
            }
            Some(Ok(Posted::InProgress) | Err(PostError::NoResource)) => {
                self.closing.borrow_mut().push((inner, deadline));
                self.busy.set(true);
            }
            // The end of the lane ends the link.
            Some(Err(_)) | None => {}
        }
    }

    fn resume_waiting(&self) {
        for inner in self.waiting.take() {
            let link = Link(Rc::clone(&inner));
            link.hand_over();
            if !inner.queue.is_empty() {
                self.waiting.borrow_mut().push(inner);
                self.busy.set(true);
            }
        }
    }

    fn serve_streams(self: &Rc<Self>) {
        let mut events = Vec::new();
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.progress(Instant::now(), &mut events);
        }
        for event in events {
            match event {
                Event::Frame(name, listener, frame) => {
                    if let Some(frame) = Frame::parse(&frame) {
                        self.busy.set(true);
                        self.on_frame(name, listener, &frame);
                        continue;
                    }
                    if let Ok(message) = Message::from_bytes(&frame)
                        && let Some(streams) = &mut *self.streams.borrow_mut()
                    {
                        streams.identify(name, Uuid(message.uuid));
                    }
                    self.receive(&frame);
                }
                Event::Ended(ended) => self.on_stream_end(&ended),
            }
        }
    }

    /// A control connection ended. If its node ended with it, the lanes of its links have to
    /// notice.
    fn on_stream_end(&self, ended: &Ended) {
        self.end_dial(ended.name, ended.listener.as_deref(), &ended.reason);
        let Some(uuid) = ended.peer else { return };
        if let Some(peer) = self.peers.borrow_mut().get_mut(&uuid)
            && matches!(peer.control, Some(Control::Stream(known)) if known == ended.name)
        {
            (peer.control, peer.trouble) = (None, Some(ended.reason.clone()));
        }
        for inner in self.links.borrow().values().filter(|inner| inner.peer == uuid) {
            inner.check();
            self.machine.borrow_mut().check(inner.id, self.now());
        }
        self.busy.set(true);
    }

    /// Sends a control message: over the messages lane of a connected link, so that it arrives
    /// behind the messages and only while the lane works; otherwise over the way between the nodes.
    fn send(&self, to: Uuid, link: Option<LinkId>, address: &[u8], message: &[u8]) {
        if to == self.uuid {
            return self.inbox.borrow_mut().push_back(message.into());
        }
        let inner = link.and_then(|link| self.link(link));
        let usable = inner.as_ref().filter(|inner| inner.close.get() != Some(CloseMode::Cancel));
        if let Some(lane) = usable.and_then(|inner| inner.lanes.endpoint(Kind::Messages)) {
            match post(lane, message) {
                Ok(()) => return self.note_close(inner.as_ref(), message),
                // It is dropped: the protocol sends it again.
                Err(PostError::NoResource) => return,
                Err(_) => {}
            }
        }
        if let Ok(address) = WorkerAddress::from_bytes(address)
            && address.uuid() == to
        {
            self.remember(&address);
            self.prune();
        }
        match self.control(to) {
            Some(Control::Endpoint(endpoint, waiting)) => {
                send_or_wait(&endpoint, &waiting, message);
            }
            Some(Control::Stream(name)) => {
                if let Some(streams) = &mut *self.streams.borrow_mut() {
                    streams.send(name, message);
                }
            }
            None => {}
        }
    }

    /// After CLOSE was posted on the messages lane, the lane is flushed.
    fn note_close(&self, inner: Option<&Rc<Inner>>, message: &[u8]) {
        let Some(inner) = inner else { return };
        let closes =
            Message::from_bytes(message).is_ok_and(|message| message.kind == MessageKind::Close);
        if closes && !inner.close_sent.replace(true) {
            self.closing.borrow_mut().push((Rc::clone(inner), Instant::now()));
            self.busy.set(true);
        }
    }

    /// The way to a peer, made now if there is none.
    fn control(&self, to: Uuid) -> Option<Control> {
        let known = self.streams.borrow().as_ref().and_then(|streams| streams.to(&to));
        let mut peers = self.peers.borrow_mut();
        let Some(peer) = peers.get_mut(&to) else { return known.map(Control::Stream) };
        if peer.control.is_none() {
            peer.control = match known {
                Some(name) => Some(Control::Stream(name)),
                None => self.open_control(to, &peer.address),
            };
        }
        peer.control.clone()
    }

    fn open_control(&self, to: Uuid, address: &WorkerAddress) -> Option<Control> {
        let entries: Vec<Entry> = address.entries().collect();
        let plan = self.plan(to, &entries, Needs::messages(), &[]);
        let lane = plan.lane(Kind::Control)?;
        let own = self.interfaces.get(usize::from(lane.pair.here))?;
        let peer = entries.get(usize::from(lane.pair.there))?;
        if lane.connects == Connects::ToInterface {
            let endpoint = own.connect_to_interface(peer).ok()?;
            return Some(Control::Endpoint(endpoint, Rc::default()));
        }
        let mut streams = self.streams.borrow_mut();
        streams.as_mut()?.connect(peer.control_address()?, Some(to)).ok().map(Control::Stream)
    }
}

fn post(endpoint: &Endpoint, message: &[u8]) -> Result<(), PostError> {
    let pack = |buffer: &mut [u8]| match buffer.get_mut(..message.len()) {
        Some(room) => {
            room.copy_from_slice(message);
            message.len()
        }
        // Messages are no longer than the shortest buffer of the interfaces.
        None => 0,
    };
    endpoint.am_bcopy(CONTROL, pack).map(drop)
}

/// Posts a message, or has it wait for room.
fn send_or_wait(endpoint: &Endpoint, waiting: &Rc<Cell<u32>>, message: &[u8]) {
    if post(endpoint, message) != Err(PostError::NoResource) || waiting.get() >= WAITING {
        return;
    }
    let (message, count) = (message.to_vec(), Rc::clone(waiting));
    let added = endpoint.pending_add(move |endpoint| {
        if post(endpoint, &message) == Err(PostError::NoResource) {
            return PendingResult::Again;
        }
        count.set(count.get().saturating_sub(1));
        PendingResult::Done
    });
    if added.is_ok() {
        waiting.set(waiting.get() + 1);
    }
}
