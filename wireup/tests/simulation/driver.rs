//! What the owner of a node does: endpoints, data over the first lane, and results.

use std::collections::HashMap;
use std::time::Duration;

use barewire_wireup::protocol::{
    Action, Answer, CallError, Lane, LinkId, Links, Offer, Reason, State, Turn, Uuid,
};

use crate::world::{Endpoint, Event, World};

/// Lanes of this kind carry messages; there is one per link.
const MESSAGES: u8 = 1;
/// Ways to connect it.
const VARIANTS: u8 = 3;

pub(crate) struct Process {
    pub(crate) place: usize,
    pub(crate) incarnation: u32,
    pub(crate) uuid: Uuid,
    pub(crate) links: Links,
    pub(crate) halves: HashMap<LinkId, usize>,
}

impl Process {
    pub(crate) fn new(place: usize, incarnation: u32, uuid: Uuid, links: Links) -> Self {
        Self { place, incarnation, uuid, links, halves: HashMap::new() }
    }
}

/// One end of a link, as its owner sees it.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) place: usize,
    pub(crate) link: LinkId,
    pub(crate) peer: Uuid,
    pub(crate) requested: bool,
    pub(crate) connected: bool,
    /// Closed by this side's user.
    pub(crate) closed: bool,
    pub(crate) ended: Option<State>,
    pub(crate) ended_at: Duration,
    /// When the process died.
    pub(crate) died: Option<Duration>,
    /// When the link must be connected or closed.
    pub(crate) due: Option<Duration>,
    /// Its lanes: kind and way, and the endpoint.
    pub(crate) lanes: Vec<(u8, u8, u64)>,
    refused: Vec<(u8, u8)>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Messages to receive before the close.
    pub(crate) drain: Option<u64>,
    pub(crate) drained: bool,
    /// When the process last received something from the peer.
    pub(crate) heard: Duration,
}

impl Half {
    pub(crate) fn new(place: usize, link: LinkId, peer: Uuid) -> Self {
        Self {
            place,
            link,
            peer,
            requested: false,
            connected: false,
            closed: false,
            ended: None,
            ended_at: Duration::ZERO,
            died: None,
            due: None,
            lanes: Vec::new(),
            refused: Vec::new(),
            sent: 0,
            received: 0,
            drain: None,
            drained: false,
            heard: Duration::ZERO,
        }
    }

    pub(crate) fn may_send(&self) -> bool {
        self.connected && !self.closed && self.drain.is_none()
    }
}

/// A result that a caller reports.
pub(crate) enum Report {
    Offer(LinkId, Turn, Vec<(u8, Reason)>),
    Answer(LinkId, Turn, Offer),
    Complete(LinkId, Turn, Answer),
}

fn text(error: CallError) -> String {
    error.to_string()
}

impl World {
    /// Takes every action of every node.
    pub(crate) fn drive(&mut self) -> Result<(), String> {
        loop {
            let mut idle = true;
            for place in 0..self.processes.len() {
                let links = |world: &mut Self| {
                    let links = &mut world.processes[place].links;
                    links.poll().or_else(|| links.poll_stranger())
                };
                while let Some(action) = links(self) {
                    idle = false;
                    self.act(place, action)?;
                }
            }
            if idle {
                return Ok(());
            }
        }
    }

    fn act(&mut self, place: usize, action: Action) -> Result<(), String> {
        if self.trace && !matches!(action, Action::Send { .. }) {
            println!("{:?} at {place}: {action:?}", self.now);
        }
        match action {
            Action::Vouch { peer, name, address } => {
                let pass = self.processes[place].links.pass(peer, name, self.places[&peer] as u16);
                self.post(peer, &address, &pass)
            }
            Action::Send { to, link, address, message, .. } => {
                if link.is_some_and(|link| {
                    self.processes[place].links.peer(link).is_some_and(|peer| peer != to)
                }) {
                    return Err("a message of a link to another peer".into());
                }
                self.post(to, &address, &message)
            }
            Action::Prepare { link, turn, peer, refused } => {
                self.known(place, link, peer)?;
                self.later(place, Report::Offer(link, turn, refused))
            }
            Action::Answer { link, turn, peer, address, offer } => {
                let half = self.known(place, link, peer)?;
                if address.is_empty() || self.halves[half].connected {
                    return Err(format!("unexpected Answer for {link}"));
                }
                self.later(place, Report::Answer(link, turn, offer))
            }
            Action::Complete { link, turn, answer } => {
                self.later(place, Report::Complete(link, turn, answer))
            }
            Action::Discard { link } => {
                let half = self.existing(place, link)?;
                self.discard(half);
                self.halves[half].lanes.clear();
                Ok(())
            }
            Action::Connected { link, peer, requested } => {
                let half = self.known(place, link, peer)?;
                self.on_connected(half, requested)
            }
            Action::Drain { link, last } => {
                let half = self.existing(place, link)?;
                let due = self.now + self.scenario.deadline();
                let record = &mut self.halves[half];
                if record.drain.replace(last).is_some() {
                    return Err(format!("{link} was drained twice"));
                }
                record.due = Some(due);
                self.try_to_drain(half)
            }
            Action::Ended { link, state } => {
                let half = self.existing(place, link)?;
                self.on_ended(half, state)
            }
        }
    }

    fn known(&mut self, place: usize, link: LinkId, peer: Uuid) -> Result<usize, String> {
        let half = self.half(place, link, peer);
        let record = &self.halves[half];
        let good = record.ended.is_none() && record.peer == peer;
        if good { Ok(half) } else { Err(format!("an action for {link}, which ended")) }
    }

    fn existing(&self, place: usize, link: LinkId) -> Result<usize, String> {
        let half = self.processes[place].halves.get(&link).copied();
        let half = half.filter(|half| self.halves[*half].ended.is_none());
        half.ok_or_else(|| format!("an action for {link}, which does not exist"))
    }

    /// Reports a result now or after a while.
    fn later(&mut self, place: usize, result: Report) -> Result<(), String> {
        if self.scenario.result == 0 {
            return self.report(place, result);
        }
        let at = self.now + Duration::from_micros(self.rng.u64(..self.scenario.result));
        let incarnation = self.processes[place].incarnation;
        self.at(at, Event::Result { place, incarnation, result });
        Ok(())
    }

    pub(crate) fn report(&mut self, place: usize, result: Report) -> Result<(), String> {
        let (Report::Offer(link, ..) | Report::Answer(link, ..) | Report::Complete(link, ..)) =
            result;
        let Ok(half) = self.existing(place, link) else { return Ok(()) };
        let now = self.now;
        match result {
            Report::Offer(_, turn, refused) => self.report_offer(half, turn, &refused),
            Report::Answer(_, turn, offer) => self.report_answer(half, turn, &offer),
            Report::Complete(_, turn, answer) => {
                // Before the call, as DONE may be lost and data of the peer not.
                let superseded = self.links(half).state(link) != Some(State::Offered);
                if !superseded && self.halves[half].lanes.len() != answer.lanes.len() {
                    return Err("an answer with another number of lanes".into());
                }
                // Now and then an endpoint cannot be connected, and others are offered.
                let retries = self.rng.u8(..16) == 0;
                if retries && self.links(half).retry(link, turn).is_ok() {
                    return Ok(());
                }
                match self.links(half).completed(link, turn, now) {
                    Ok(()) => {
                        for (index, theirs) in answer.lanes.iter().enumerate() {
                            let theirs =
                                theirs.as_ref().map_err(|_| "a refused lane in Complete")?;
                            let mine = self.halves[half].lanes[index].2;
                            self.endpoints.get_mut(&mine).unwrap().connected_to =
                                Some(endpoint_in(theirs));
                        }
                        Ok(())
                    }
                    Err(CallError::Superseded | CallError::Ended) => Ok(()),
                    Err(error) => Err(text(error)),
                }
            }
        }
    }

    fn report_offer(
        &mut self,
        half: usize,
        turn: Turn,
        refused: &[(u8, Reason)],
    ) -> Result<(), String> {
        let (now, link) = (self.now, self.halves[half].link);
        let record = &mut self.halves[half];
        for (index, _) in refused {
            if let Some((kind, way, _)) = record.lanes.get(usize::from(*index)).copied() {
                record.refused.push((kind, way));
            }
        }
        let refused = record.refused.clone();
        let mut lanes: Vec<_> = (0..VARIANTS).map(|way| (MESSAGES, way)).collect();
        lanes.retain(|lane| !refused.contains(lane));
        lanes.truncate(1);
        if lanes.is_empty() {
            return self.links(half).fail(link, Reason::Unreachable).map_err(text);
        }
        lanes.extend([(2, 0), (3, 0)].iter().filter(|lane| !refused.contains(lane)));
        let made: Vec<_> = lanes.iter().map(|(kind, way)| (*kind, *way, self.unique())).collect();
        let lane = |&(kind, here, endpoint): &(u8, u8, u64)| Lane {
            kind,
            here,
            there: 0,
            endpoint: bytes_of(endpoint),
        };
        let offer = Offer { lanes: made.iter().map(lane).collect(), ..Offer::default() };
        match self.links(half).offer(link, turn, &offer, now) {
            Ok(()) => {
                self.discard(half);
                self.adopt(half, made, |_| None);
                Ok(())
            }
            Err(CallError::Superseded) => Ok(()),
            Err(error) => Err(text(error)),
        }
    }

    fn report_answer(&mut self, half: usize, turn: Turn, offer: &Offer) -> Result<(), String> {
        let (now, link) = (self.now, self.halves[half].link);
        if self.chance(self.scenario.refused / 4) {
            let reason = self.some_reason();
            return match self.links(half).refuse(link, turn, reason) {
                Ok(()) | Err(CallError::Superseded) => Ok(()),
                Err(error) => Err(text(error)),
            };
        }
        let mut made = Vec::new();
        let mut theirs = HashMap::new();
        let mut answer = Answer::default();
        for lane in &offer.lanes {
            if self.chance(self.scenario.refused) {
                answer.lanes.push(Err(self.some_reason()));
                continue;
            }
            let endpoint = self.unique();
            made.push((lane.kind, lane.here, endpoint));
            theirs.insert(endpoint, endpoint_in(&lane.endpoint));
            answer.lanes.push(Ok(bytes_of(endpoint)));
        }
        match self.links(half).answer(link, turn, &answer, now) {
            Ok(()) => {
                self.discard(half);
                self.adopt(half, made, |endpoint| theirs.get(&endpoint).copied());
                Ok(())
            }
            Err(CallError::Superseded) => Ok(()),
            Err(error) => Err(text(error)),
        }
    }

    fn adopt(
        &mut self,
        half: usize,
        made: Vec<(u8, u8, u64)>,
        connected_to: impl Fn(u64) -> Option<u64>,
    ) {
        for (_, _, endpoint) in &made {
            let connected_to = connected_to(*endpoint);
            let new = Endpoint { half, connected_to, alive: true, last: self.now };
            self.endpoints.insert(*endpoint, new);
        }
        self.halves[half].lanes = made;
    }

    /// Destroys the endpoints of a link.
    pub(crate) fn discard(&mut self, half: usize) {
        for (_, _, endpoint) in &self.halves[half].lanes {
            if let Some(endpoint) = self.endpoints.get_mut(endpoint) {
                endpoint.alive = false;
            }
        }
    }

    fn links(&mut self, half: usize) -> &mut Links {
        &mut self.processes[self.halves[half].place].links
    }

    pub(crate) fn close(&mut self, half: usize) -> Result<(), String> {
        let now = self.now;
        let due = now + self.scenario.deadline();
        let record = &mut self.halves[half];
        if std::mem::replace(&mut record.closed, true) {
            return Ok(());
        }
        let (link, sent) = (record.link, record.sent);
        record.due = Some(due);
        self.links(half).close(link, sent, now).map_err(text)
    }

    pub(crate) fn send_data(&mut self, half: usize) {
        let record = &mut self.halves[half];
        record.sent += 1;
        let number = record.sent;
        let lane = record.lanes.iter().find(|(kind, ..)| *kind == MESSAGES);
        let to = lane.and_then(|(_, _, endpoint)| self.endpoints[endpoint].connected_to);
        let Some(endpoint) = to else { return };
        let delay = self.delay();
        // A destroyed endpoint receives nothing.
        let Some(target) = self.endpoints.get_mut(&endpoint) else { return };
        target.last = target.last.max(self.now + delay);
        let at = target.last;
        self.at(at, Event::Data { endpoint, number });
    }

    pub(crate) fn receive_data(&mut self, endpoint: u64, number: u64) -> Result<(), String> {
        let Some(target) = self.endpoints.get(&endpoint).filter(|endpoint| endpoint.alive) else {
            return Ok(());
        };
        let half = target.half;
        let now = self.now;
        let record = &mut self.halves[half];
        record.received += 1;
        record.heard = now;
        if record.received != number {
            return Err(format!("message {number} arrived as number {}", record.received));
        }
        let link = record.link;
        self.links(half).heard(link, now);
        self.try_to_drain(half)
    }

    fn try_to_drain(&mut self, half: usize) -> Result<(), String> {
        let record = &mut self.halves[half];
        let Some(last) = record.drain else { return Ok(()) };
        if record.received > last {
            return Err(format!("{} messages arrived, the peer sent {last}", record.received));
        }
        if record.received < last || record.drained || record.ended.is_some() {
            return Ok(());
        }
        record.drained = true;
        let (link, now) = (record.link, self.now);
        self.links(half).drained(link, now).map_err(text)
    }
}

/// The address of an endpoint, long enough that messages are split.
fn bytes_of(endpoint: u64) -> Vec<u8> {
    let mut bytes = endpoint.to_be_bytes().to_vec();
    bytes.resize(40, 0);
    bytes
}

fn endpoint_in(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
