//! Carries out what the protocol asks for, and brings its messages to peers.

use std::cell::Cell;
#[cfg(feature = "bootstrap")]
use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::hash_map::Entry as MapEntry;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::report::warn;
use barewire::{Endpoint, FlushMode, MAX_HANDLERS, PeerAddress, PendingResult, PostError, Posted};
use barewire_tcp::share::Slice;

use super::allowance::cost;
use super::frame::Call;
use super::listen::Waiting;
use super::stream::{Ended, Event, Name, Way};
use super::{CONTROL, Incoming, Shared};
use crate::address::{Entry, Uuid, WorkerAddress};
use crate::guard::{Held, Lent, Present};
use crate::link::{CloseMode, Inner, Link, LinkError, State};
use crate::plan::{Connects, Kind, Needs, Pair};
use crate::protocol::{Action, Cause, Kind as MessageKind, LinkId, Message, MessageError, Reason};
use crate::secret::Secret;

/// Control messages to one peer that wait for its lane; the protocol sends again what is dropped.
const WAITING: u32 = 64;
/// Peers without a link whose addresses are kept.
const STRANGERS: usize = 64;
/// Actions of one call: with a peer that answers at once, there is always another.
const ACTIONS: usize = 1024;
/// Endpoints to nodes without a link that are kept.
const REPLIES: usize = 16;

/// After a lane has failed, its links end once so many rounds of progress in a row have received
/// nothing, or after this time. The lane may have failed because the peer closed the link and
/// ended. Then the peer's CLOSE is still to be received, and an interface does not receive from all
/// peers in each round.
const QUIET: u32 = 64;
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a node keeps of a peer.
pub(super) struct Peer {
    address: WorkerAddress,
    /// An endpoint to its interface for control messages, and how many of these wait there.
    control: Option<(Endpoint, Rc<Cell<u32>>)>,
    /// Why its last control connection ended.
    trouble: Option<String>,
    /// When it was used last, in uses of all peers.
    used: u64,
}

/// The way to a node without a link: an interface here, and the peer's.
pub(super) struct Reply {
    here: u8,
    there: PeerAddress,
    endpoint: Endpoint,
}

/// How control messages reach a node.
enum Route {
    /// From an interface here to the peer's.
    Interface(u8, PeerAddress),
    /// By a connection.
    Stream(Way),
}

impl Route {
    /// Returns a number of the route. It depends on a secret, so a peer cannot choose a route that
    /// has the number of another one; by chance, that is rare.
    fn way(&self, secret: &Secret) -> u16 {
        let bytes = match self {
            Self::Interface(here, there) => [&[*here], &there.to_bytes()[..]].concat(),
            Self::Stream(way) => way.there.to_string().into_bytes(),
        };
        secret.proof(&bytes) as u16
    }
}

/// Has the next progress attend when it is dropped.
struct Attention<'a>(&'a Cell<bool>);

impl Drop for Attention<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl Shared {
    /// Receives control messages on every interface, refuses those that have no handler, and notes
    /// endpoints that fail.
    pub(super) fn set_handlers(self: &Rc<Self>) {
        for (number, one) in self.interfaces.iter().enumerate() {
            let node = Rc::downgrade(self);
            // Handler ids are less than 32, and the interface was opened just now.
            let _ = one.interface.set_handler(CONTROL, move |message| {
                if let Some(node) = node.upgrade() {
                    let burden = node.receive(message.data());
                    if burden > 0 {
                        node.refuse(number, burden);
                    }
                }
            });
            for id in (0..MAX_HANDLERS).filter(|id| *id != CONTROL) {
                let node = Rc::downgrade(self);
                let _ = one.interface.set_handler(id, move |_| {
                    if let Some(node) = node.upgrade() {
                        node.refuse(number, 1);
                    }
                });
            }
            let node = Rc::downgrade(self);
            one.interface.set_error_handler(move |_| {
                if let Some(node) = node.upgrade() {
                    let failed = node.failed.get().map_or_else(Instant::now, |(since, _)| since);
                    node.failed.set(Some((failed, 0)));
                    node.busy.set(true);
                }
            });
        }
    }

    /// Takes a message that came over an interface. Returns as how many messages without effect it
    /// counts.
    fn receive(&self, message: &[u8]) -> u64 {
        let mut machine = self.machine.borrow_mut();
        let before = machine.burden();
        // Bytes that are not a message have no effect.
        let _ = machine.receive(message, self.now());
        if !machine.is_idle() {
            self.busy.set(true);
        }
        machine.burden().saturating_sub(before)
    }

    /// A message that counts as so many without effect came over the interface of this number.
    #[cold]
    pub(super) fn refuse(&self, interface: usize, burden: u64) {
        let Some(own) = self.interfaces.get(interface) else { return };
        let burden = u32::try_from(burden).unwrap_or(u32::MAX);
        self.refusals.borrow_mut().count(burden, Instant::now(), || own.interface.hold_sender());
    }

    fn release_senders(&self) {
        let mut refusals = self.refusals.borrow_mut();
        if refusals.release_at().is_some() && refusals.take_release(Instant::now()) {
            for one in &self.interfaces {
                one.interface.release_senders();
            }
        }
    }

    pub(super) fn link(&self, id: LinkId) -> Option<Rc<Inner>> {
        self.links.borrow().get(&id).cloned()
    }

    pub(super) fn link_or_new(self: &Rc<Self>, id: LinkId, peer: Uuid, needs: Needs) -> Rc<Inner> {
        let mut links = self.links.borrow_mut();
        Rc::clone(links.entry(id).or_insert_with(|| {
            let node = Rc::downgrade(self);
            let inner = Inner::new(node, id, peer, needs);
            inner.rank.set(self.ranks.borrow().get(&peer).copied());
            Rc::new(inner)
        }))
    }

    /// Has errors name the ranks of nodes.
    #[cfg(feature = "bootstrap")]
    pub(super) fn set_ranks(&self, ranks: HashMap<Uuid, u32>) {
        for inner in self.links.borrow().values() {
            inner.rank.set(ranks.get(&inner.peer).copied());
        }
        self.ranks.replace(ranks);
    }

    /// Keeps a peer's address.
    pub(super) fn remember(&self, address: &WorkerAddress) {
        let used = self.use_peer();
        match self.peers.borrow_mut().entry(address.uuid()) {
            MapEntry::Vacant(entry) => {
                let (control, trouble) = (None, None);
                entry.insert(Peer { address: address.clone(), control, trouble, used });
            }
            // The shorter address of a peer, for other nodes, does not replace the whole one.
            MapEntry::Occupied(mut entry) => {
                let peer = entry.get_mut();
                peer.used = used;
                if peer.address.as_bytes().len() < address.as_bytes().len() {
                    peer.address = address.clone();
                }
            }
        }
    }

    fn use_peer(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    pub(super) fn address_of(&self, peer: &Uuid) -> Option<WorkerAddress> {
        if *peer == self.uuid {
            return Some(self.address.clone());
        }
        self.peers.borrow().get(peer).map(|peer| peer.address.clone())
    }

    /// Does everything that can be done now, after the interfaces have `received` so many events.
    /// Returns the number of events.
    pub(super) fn attend(self: &Rc<Self>, received: usize) -> usize {
        self.busy.set(false);
        // After a panic of the user's code, the next progress does what is left.
        let attention = Attention(&self.busy);
        let events = self.attend_to_all(received);
        std::mem::forget(attention);
        events
    }

    fn attend_to_all(self: &Rc<Self>, received: usize) -> usize {
        let now = self.now();
        self.release_senders();
        let delivered = self.deliver_waiting();
        self.serve_streams();
        let calls = self.attend_to_dials() + self.requests.take();
        self.attend_to_trials();
        self.flush_closing();
        self.resume_waiting();
        self.keep_alive(now);
        let mut machine = self.machine.borrow_mut();
        if machine.next_timer().is_some_and(|time| time <= now) {
            machine.tick(now);
        }
        drop(machine);
        let events = self.act_all();
        self.reply_to_strangers();
        self.announce();
        if let Some((since, quiet)) = self.failed.get() {
            let quiet = if received == 0 { quiet + 1 } else { 0 };
            self.failed.set(Some((since, quiet)));
            if quiet > QUIET || since.elapsed() > LAST_WORDS {
                self.failed.set(None);
                self.fail_links();
            }
            self.busy.set(true);
        }
        events + delivered + calls
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
            Action::Send { to, link, message, .. } => {
                self.send(Uuid(to), link, &message, true);
            }
            Action::Vouch { .. } => self.reply(action),
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
        inner.names.set(self.machine.borrow().names(id).unwrap_or_default());
        inner.state.set(State::Connected);
        let link = Link(Rc::clone(&inner));
        if !requested && let Some(address) = self.address_of(&link.peer()) {
            self.announced.borrow_mut().push_back(Incoming { link: link.clone(), address });
        }
        // Before the user's code runs: what is left of it after a panic continues with the next
        // progress.
        self.waiting.borrow_mut().push_back(Rc::clone(&inner));
        link.hand_over();
        if inner.queue.is_empty() {
            self.waiting.borrow_mut().pop_back();
        }
        self.announce();
    }

    /// Passes the links that peers have made to the user.
    fn announce(&self) {
        while let Some(mut handler) = Lent::take(&self.on_peer) {
            let Some(incoming) = self.announced.borrow_mut().pop_front() else { return };
            if let Some(handler) = handler.get() {
                handler(incoming);
            }
        }
        // Without a handler, such a link waits for a call of `connect`.
        drop(self.announced.take());
    }

    fn ended(&self, id: LinkId, state: State) {
        self.making.borrow_mut().remove(&id);
        let Some(inner) = self.links.borrow_mut().remove(&id) else { return };
        inner.state.set(state);
        self.endings.set(self.endings.get() + 1);
        inner.ending.set(self.endings.get());
        if let State::Failed(cause) = state {
            let peer = inner.name();
            let known = self.peers.borrow();
            let trouble = known.get(&inner.peer).and_then(|peer| peer.trouble.clone());
            drop(known);
            let error = match (cause, trouble) {
                (Cause::Deadline(_), Some(trouble)) => LinkError::Connect {
                    peer,
                    cause,
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
            streams.forget(&peer);
        }
        self.peers.borrow_mut().remove(&peer).is_some()
    }

    /// Forgets the peers without links that were used first, but for a few. A client that waits is
    /// not forgotten.
    fn prune(&self) {
        let links = self.links.borrow();
        let mut peers = self.peers.borrow_mut();
        if peers.len() <= links.len() + STRANGERS {
            return;
        }
        let with_link: HashSet<Uuid> = links.values().map(|inner| inner.peer).collect();
        let mut streams = self.streams.borrow_mut();
        let mut unused: Vec<_> = peers
            .iter()
            .filter(|(uuid, _)| !with_link.contains(uuid))
            .filter(|(uuid, _)| !streams.as_ref().is_some_and(|streams| streams.has_request(uuid)))
            .map(|(uuid, peer)| (peer.used, *uuid))
            .collect();
        unused.sort_unstable();
        let most = unused.len().saturating_sub(STRANGERS / 2);
        for (_, uuid) in unused.into_iter().take(most) {
            peers.remove(&uuid);
            if let Some(streams) = &mut *streams {
                streams.forget(&uuid);
            }
        }
    }

    /// Checks the devices of the peers of connected links, if it is time. A link that is being
    /// connected has a deadline instead: the peer's device may not know its endpoint yet.
    fn keep_alive(&self, now: Duration) {
        let Some((interval, next)) = &self.keepalive else { return };
        if now < next.get() {
            return;
        }
        next.set(now.saturating_add(*interval));
        let links: Vec<_> = self.links.borrow().values().cloned().collect();
        for inner in links.iter().filter(|inner| inner.state.get() == State::Connected) {
            inner.check_devices();
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
            let error = peer.control.as_ref().and_then(|(endpoint, _)| endpoint.error());
            if let Some(error) = error {
                peer.control = None;
                peer.trouble = Some(error.to_string());
            }
        }
        self.replies.borrow_mut().retain(|reply| reply.endpoint.error().is_none());
    }

    /// Closes the links whose lanes are flushed.
    fn flush_closing(&self) {
        let now = Instant::now();
        for held in Present::of(&self.closing) {
            if self.close_flushed(&held, now) {
                drop(held.take());
            } else {
                self.busy.set(true);
            }
        }
    }

    /// Closes a link if its lanes are flushed. Returns whether nothing is left to do.
    fn close_flushed(&self, held: &Held<'_, (Rc<Inner>, Instant)>, now: Instant) -> bool {
        let Some((inner, deadline)) = held.get() else { return true };
        let link = Link(Rc::clone(inner));
        let mode = inner.close.get();
        if inner.close_sent.get() && mode != Some(CloseMode::Cancel) {
            return self.deliver_close(inner);
        }
        let done = match inner.state.get() {
            State::Closed(_) | State::Failed(_) => return true,
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
        } else if now >= *deadline && !inner.may_connect() {
            let _ = self.machine.borrow_mut().fail(inner.id, Reason::Deadline);
        } else {
            return false;
        }
        true
    }

    /// Ends a link whose CLOSE has reached the peer's memory, which may be long before the peer
    /// makes progress. Returns false until then.
    fn deliver_close(&self, inner: &Rc<Inner>) -> bool {
        let lane = inner.lanes.endpoint(Kind::Messages);
        match lane.map(|lane| lane.flush(FlushMode::Remote, None)) {
            Some(Ok(Posted::Done)) => {
                let _ = self.machine.borrow_mut().delivered(inner.id, self.now());
                true
            }
            Some(Ok(Posted::InProgress) | Err(PostError::NoResource)) => false,
            // The end of the lane ends the link.
            Some(Err(_)) | None => true,
        }
    }

    /// Hands over the requests of links that were connected.
    fn resume_waiting(&self) {
        for held in Present::of(&self.waiting) {
            let Some(inner) = held.get().cloned() else { continue };
            Link(Rc::clone(&inner)).hand_over();
            if inner.queue.is_empty() {
                drop(held.take());
            } else {
                self.busy.set(true);
            }
        }
    }

    fn serve_streams(self: &Rc<Self>) {
        let mut events = Vec::new();
        let mut spending = None;
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            let now = Instant::now();
            if streams.progress(now, &mut events) {
                spending = self.allowance.borrow().begin(now);
            }
            if let Some(slice) = spending {
                streams.receive(slice, &mut events);
            }
            let spent = streams.take_spent();
            if !spent.is_zero() {
                self.allowance.borrow_mut().spend(spent, now);
            }
        }
        for event in events {
            match event {
                Event::Frame(name, listener, frame) => {
                    let take = || self.on_bytes(name, listener, &frame);
                    // What this node has called for is no other node's cost.
                    let is_free = self.dialing(name).is_some();
                    let taken = Slice::during(spending.as_mut(), is_free, take);
                    if let Err(reason) = taken {
                        let mut streams = self.streams.borrow_mut();
                        let ended =
                            streams.as_mut().and_then(|streams| streams.expel(name, reason));
                        drop(streams);
                        if let Some(ended) = ended {
                            self.on_stream_end(&ended);
                        }
                    }
                }
                Event::Ended(ended) => self.on_stream_end(&ended),
            }
        }
        if let Some(slice) = spending {
            self.allowance.borrow_mut().end(slice);
        }
    }

    /// Takes a frame of a control connection. The error is why the connection has to end.
    fn on_bytes(
        self: &Rc<Self>,
        name: Name,
        listener: Option<Rc<Waiting>>,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        self.busy.set(true);
        if let Some(call) = Call::parse(bytes) {
            let is_known = self.on_call(name, listener, &call);
            return if is_known { Ok(()) } else { Err("it sent a request that is not allowed") };
        }
        let sender = match Message::from_bytes(bytes) {
            // A process that was restarted responds in the name of the one before.
            Ok(Message { kind: MessageKind::Refuse | MessageKind::Gone, .. })
            | Err(MessageError::Version { .. }) => None,
            Ok(message) => Some(Uuid(message.uuid)),
            Err(_) => return Err("it sent bytes that are no message"),
        };
        let mut streams = self.streams.borrow_mut();
        let Some(streams) = streams.as_mut() else { return Ok(()) };
        if sender.is_some_and(|sender| !streams.is_of(name, sender)) {
            return Err("it sent a message in the name of another node");
        }
        let mut machine = self.machine.borrow_mut();
        let before = machine.burden();
        let received = machine.receive_via(bytes, name.0, self.now());
        let burden = machine.burden().saturating_sub(before);
        drop(machine);
        if burden > 0 {
            self.allowance.borrow_mut().spend(cost(burden), Instant::now());
        }
        if received == Ok(true) && sender.is_some() {
            streams.prove(name);
        }
        Ok(())
    }

    /// A control connection ended. If its node ended with it, the lanes of its links have to
    /// notice.
    fn on_stream_end(&self, ended: &Ended) {
        self.busy.set(true);
        self.end_dial(ended);
        let Some(uuid) = ended.peer else { return };
        if let Some(peer) = self.peers.borrow_mut().get_mut(&uuid) {
            peer.trouble = Some(ended.reason.clone());
        }
        let links = self.links.borrow();
        let links: Vec<_> = links.values().filter(|inner| inner.peer == uuid).cloned().collect();
        if let Some(pair) = ended.pair {
            let is_news = self.block(uuid, pair, &ended.reason, ended.is_refused);
            if ended.is_refused {
                self.fail_refused(uuid, &links);
            }
            // A peer that has ended is no news for connected links, which end as well.
            if is_news && links.iter().any(|inner| inner.may_connect()) {
                self.report_way(uuid, pair, &ended.reason);
            }
        }
        for inner in links {
            inner.check();
            self.machine.borrow_mut().check(inner.id, self.now());
        }
    }

    /// Sends a control message: over the messages lane of a connected link, so that it arrives
    /// behind the messages and only while the lane works; otherwise over the way between the nodes.
    /// Without room it waits, if it may.
    fn send(&self, to: Uuid, link: Option<LinkId>, message: &[u8], may_wait: bool) {
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
        let known = self.streams.borrow().as_ref().and_then(|streams| streams.to(&to));
        if let Some(name) = known.or_else(|| self.open_control(to)) {
            if let Some(streams) = &mut *self.streams.borrow_mut() {
                streams.send(name, message);
            }
            return;
        }
        let peers = self.peers.borrow();
        let control = peers.get(&to).and_then(|peer| peer.control.clone());
        drop(peers);
        match control {
            Some((endpoint, waiting)) if may_wait => send_or_wait(&endpoint, &waiting, message),
            Some((endpoint, _)) => drop(post(&endpoint, message)),
            None => {}
        }
    }

    /// Makes the way to a peer, if there is none. Returns it if it is a connection.
    fn open_control(&self, to: Uuid) -> Option<Name> {
        let used = self.use_peer();
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&to)?;
        peer.used = used;
        if peer.control.is_some() {
            return None;
        }
        let route = self.route(&peer.address)?;
        match route {
            Route::Interface(here, there) => {
                let own = self.interfaces.get(usize::from(here))?;
                let replies = self.replies.borrow();
                let known = replies.iter().find(|reply| reply.here == here && reply.there == there);
                let known = known.map(|reply| reply.endpoint.clone());
                drop(replies);
                let endpoint = match known.map_or_else(|| own.interface.connect(&there), Ok) {
                    Ok(endpoint) => endpoint,
                    Err(error) => {
                        peer.trouble = Some(error.to_string());
                        return None;
                    }
                };
                peer.control = Some((endpoint, Rc::default()));
                None
            }
            Route::Stream(way) => {
                let mut streams = self.streams.borrow_mut();
                let result = streams.as_mut()?.connect_to(way, to);
                if let Err(error) = &result {
                    self.block(to, way.pair, &error.to_string(), false);
                    peer.trouble = Some(error.to_string());
                }
                result.ok()
            }
        }
    }

    /// How control messages reach the node with this address.
    fn route(&self, address: &WorkerAddress) -> Option<Route> {
        let (uuid, entries) = (address.uuid(), address.entries().collect::<Vec<Entry>>());
        let plan = self.plan(uuid, &entries, Needs::messages(), &[]);
        let lane = plan.lane(Kind::Control)?;
        let own = self.interfaces.get(usize::from(lane.pair.here))?;
        let peer = entries.get(usize::from(lane.pair.there))?;
        Some(match lane.connects {
            Connects::ToInterface => Route::Interface(lane.pair.here, own.peer(peer)),
            _ => Route::Stream(Way {
                pair: lane.pair,
                here: own.host?,
                there: peer.control_address()?,
            }),
        })
    }

    /// Warns that control messages to a peer take another way than between this pair, if that may
    /// be better.
    fn report_way(&self, peer: Uuid, failed: Pair, reason: &str) {
        let Some(address) = self.address_of(&peer) else { return };
        let Some(Route::Stream(way)) = self.route(&address) else { return };
        let is_refused = self.blocked.borrow().refused(peer, way.pair).is_some();
        if way.pair != failed && !is_refused {
            let entries: Vec<Entry> = address.entries().collect();
            let [failed, other] = [failed, way.pair].map(|pair| self.name_of(pair, &entries));
            warn(&format!(
                "no control connection to node {peer} {failed}: {reason}; trying {other}"
            ));
        }
    }

    /// Replies to nodes that may not be those which they name, as far as there is time for it.
    fn reply_to_strangers(&self) {
        if !self.machine.borrow().has_strangers() {
            return;
        }
        let Some(slice) = self.allowance.borrow().begin(Instant::now()) else { return };
        while !slice.is_over(Duration::ZERO) {
            let Some(action) = self.machine.borrow_mut().poll_stranger() else { break };
            self.reply(action);
        }
        self.allowance.borrow_mut().end(slice);
    }

    /// Replies to a node that may not be the one which it names. The reply is dropped if it cannot
    /// be sent now, and nothing of the node is kept but the way to its address, for a while.
    fn reply(&self, action: Action) {
        let (to, address, via, message) = match action {
            Action::Vouch { peer, name, address } => (Uuid(peer), address, 0, Err(name)),
            Action::Send { to, address, via, message, .. } => (Uuid(to), address, via, Ok(message)),
            _ => return,
        };
        if let Ok(message) = &message {
            if to == self.uuid {
                return self.inbox.borrow_mut().push_back(message.clone());
            }
            if let Some(streams) = self.streams.borrow_mut().as_mut().filter(|_| via != 0) {
                return streams.send(Name(via), message);
            }
            if address.is_empty() {
                // About a link that has ended, or in a peer's name: the peer knows.
                return self.send(to, None, message, false);
            }
        }
        // A pass is for the address only, by whatever way the message came.
        let address = WorkerAddress::from_bytes(&address);
        let Ok(address) = address.as_ref() else { return };
        if address.uuid() != to || !address.is_certified() {
            return;
        }
        let Some(route) = self.route(address) else { return };
        let message = match message {
            Ok(message) => message,
            Err(name) => {
                let way = route.way(&self.secret.borrow());
                self.machine.borrow().pass(to.0, name, way)
            }
        };
        match route {
            Route::Interface(here, there) => self.post_reply(here, there, &message),
            Route::Stream(way) => {
                let mut streams = self.streams.borrow_mut();
                let Some(streams) = streams.as_mut() else { return };
                let known = streams.to(&to);
                let name = known.or_else(|| streams.connect_to_stranger(way, to).ok());
                if let Some(name) = name {
                    streams.send(name, &message);
                }
            }
        }
    }

    fn post_reply(&self, here: u8, there: PeerAddress, message: &[u8]) {
        let mut replies = self.replies.borrow_mut();
        let known = replies.iter().position(|reply| reply.here == here && reply.there == there);
        let reply = if let Some(reply) = known.and_then(|at| replies.remove(at)) {
            reply
        } else {
            let own = self.interfaces.get(usize::from(here));
            let Some(Ok(endpoint)) = own.map(|own| own.interface.connect(&there)) else { return };
            Reply { here, there, endpoint }
        };
        // It is dropped without room: the peer repeats its message.
        let _ = post(&reply.endpoint, message);
        replies.push_back(reply);
        let oldest = if replies.len() > REPLIES { replies.pop_front() } else { None };
        drop(replies);
        drop(oldest);
    }

    /// After CLOSE was posted on the messages lane, the lane is flushed.
    fn note_close(&self, inner: Option<&Rc<Inner>>, message: &[u8]) {
        let Some(inner) = inner else { return };
        let closes =
            Message::from_bytes(message).is_ok_and(|message| message.kind == MessageKind::Close);
        if closes && !inner.close_sent.replace(true) {
            self.closing.borrow_mut().push_back((Rc::clone(inner), Instant::now()));
            self.busy.set(true);
        }
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
