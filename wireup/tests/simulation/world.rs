//! Nodes, a wire that loses, doubles and reorders, and the users' operations.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use barewire_wireup::protocol::{Config, LinkId, Links, Message, Reason, Secret, State, Uuid};

use crate::driver::{Half, Process, Report};
use crate::scenario::{Scenario, USERS};

pub(crate) enum Event {
    Control {
        place: usize,
        bytes: Box<[u8]>,
    },
    /// One message over the first lane: to the endpoint, with its number.
    Data {
        endpoint: u64,
        number: u64,
    },
    Result {
        place: usize,
        incarnation: u32,
        result: Report,
    },
    User,
    CloseSome,
    CloseAll,
    Check,
}

/// An end of a lane.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) half: usize,
    pub(crate) connected_to: Option<u64>,
    pub(crate) alive: bool,
    /// When the last message to it arrives: they do not overtake each other.
    pub(crate) last: Duration,
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) rng: fastrand::Rng,
    pub(crate) now: Duration,
    pub(crate) processes: Vec<Process>,
    /// Every half of every link that a driver has known, also of dead processes.
    pub(crate) halves: Vec<Half>,
    pub(crate) endpoints: HashMap<u64, Endpoint>,
    events: BTreeMap<(Duration, u64), Event>,
    pub(crate) places: HashMap<Uuid, usize>,
    counter: u64,
    pub(crate) steps: u64,
    /// Print every message and action.
    pub(crate) trace: bool,
}

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) steps: u64,
    pub(crate) connected: u64,
    pub(crate) closed: u64,
    pub(crate) failed: u64,
}

pub(crate) fn run(scenario: &Scenario) -> Result<Totals, String> {
    let mut world = World::new(*scenario);
    world.run().map_err(|error| format!("at {:?}: {error}", world.now))
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let mut world = Self {
            scenario,
            rng: fastrand::Rng::with_seed(!scenario.seed),
            now: Duration::from_millis(1),
            processes: Vec::new(),
            halves: Vec::new(),
            endpoints: HashMap::new(),
            events: BTreeMap::new(),
            places: HashMap::new(),
            counter: 0,
            steps: 0,
            trace: std::env::var_os("TRACE").is_some(),
        };
        for place in 0..scenario.nodes {
            let process = world.start(place, 0);
            world.processes.push(process);
        }
        for _ in 0..scenario.operations {
            let at = USERS.mul_f64(world.rng.f64());
            world.at(at, Event::User);
        }
        let end = scenario.users_leave();
        world.at(end, Event::Check);
        world.at(end, Event::CloseSome);
        world.at(end + Duration::from_secs(1), Event::CloseAll);
        world
    }

    fn start(&mut self, place: usize, incarnation: u32) -> Process {
        let mut uuid = [0; 16];
        self.rng.fill(&mut uuid);
        self.places.insert(uuid, place);
        let config = Config {
            segment: self.scenario.segment,
            deadline: self.scenario.deadline(),
            half_open: self.scenario.half_open,
            requests: self.scenario.requests,
            liveness: self.scenario.liveness(),
            first_sn: 0_u32.wrapping_sub(self.scenario.wrap & !1),
            first_generation: 0_u32.wrapping_sub(self.scenario.wrap).max(1),
            secret: Secret::from_bytes(
                self.rng.u128(..).to_le_bytes().repeat(2).try_into().unwrap(),
            ),
            ..Config::new(uuid, vec![place as u8; 20])
        };
        Process::new(place, incarnation, uuid, Links::new(config))
    }

    pub(crate) fn at(&mut self, time: Duration, event: Event) {
        self.counter += 1;
        self.events.insert((time, self.counter), event);
    }

    pub(crate) fn unique(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn run(&mut self) -> Result<Totals, String> {
        loop {
            self.steps += 1;
            if self.steps > 2_000_000 {
                return Err("the run does not end".into());
            }
            let event = self.events.first_key_value().map(|((time, _), _)| *time);
            let timer =
                self.processes.iter().filter_map(|process| process.links.next_timer()).min();
            let Some(next) = event.into_iter().chain(timer).min() else { break };
            self.now = self.now.max(next);
            if timer.is_some_and(|timer| timer <= self.now) {
                let now = self.now;
                self.processes.iter_mut().for_each(|process| process.links.tick(now));
            } else if let Some((_, event)) = self.events.pop_first() {
                self.happen(event)?;
            }
            self.drive()?;
            self.check_step()?;
        }
        self.check_end()?;
        let count = |wanted: fn(&Half) -> bool| {
            self.halves.iter().filter(|half| wanted(half)).count() as u64
        };
        Ok(Totals {
            steps: self.steps,
            connected: count(|half| half.connected),
            closed: count(|half| matches!(half.ended, Some(State::Closed(_)))),
            failed: count(|half| matches!(half.ended, Some(State::Failed(_)))),
        })
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Control { place, bytes } => {
                let now = self.now;
                let process = &mut self.processes[place];
                process.links.receive(&bytes, now).map_err(|error| error.to_string())?;
            }
            Event::Data { endpoint, number } => self.receive_data(endpoint, number)?,
            Event::Result { place, incarnation, result } => {
                if self.processes[place].incarnation == incarnation {
                    self.report(place, result)?;
                }
            }
            Event::User => self.operate()?,
            Event::Check => self.check_connected()?,
            Event::CloseSome => self.close_all(50)?,
            Event::CloseAll => self.close_all(100)?,
        }
        Ok(())
    }

    /// Sends a control message, with the faults of the scenario.
    pub(crate) fn post(&mut self, to: Uuid, address: &[u8], bytes: &[u8]) -> Result<(), String> {
        let message = Message::from_bytes(bytes).map_err(|error| format!("sent: {error}"))?;
        if bytes.len() > self.scenario.segment
            && message.kind != barewire_wireup::protocol::Kind::Ping
        {
            return Err(format!("{:?} of {} bytes", message.kind, bytes.len()));
        }
        let place = self.places[&to];
        if self.trace {
            let Message { kind, sn, from, to, attempt, reason, offset, total, .. } = message;
            println!(
                "{:?} {kind:?} to {place}: sn {sn} {from:x} -> {to:x} offer {attempt} {reason} {offset}/{total}",
                self.now
            );
        }
        if !address.is_empty() && *address != [place as u8; 20] {
            return Err("a message to another address than the peer's".into());
        }
        let copies = if self.chance(self.scenario.lost) {
            0
        } else if self.chance(self.scenario.doubled) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay = self.delay();
            self.at(self.now + delay, Event::Control { place, bytes: bytes.into() });
        }
        Ok(())
    }

    pub(crate) fn delay(&mut self) -> Duration {
        Duration::from_micros(10 + self.rng.u64(..=self.scenario.delay * 1000))
    }

    pub(crate) fn chance(&mut self, of_100: u8) -> bool {
        self.rng.u8(..100) < of_100
    }

    /// A user does something.
    fn operate(&mut self) -> Result<(), String> {
        let mut place = self.rng.usize(..self.processes.len());
        let mut other = self.rng.usize(..self.processes.len());
        if self.scenario.star {
            (place, other) = (place.max(1) % self.processes.len(), 0);
        }
        match self.rng.u8(..100) {
            0..10 => return self.open(place, other, false),
            10..40 => self.send_some(),
            40..55 if self.scenario.closes => return self.close_one(),
            55..60 if self.scenario.restarts => self.restart(other),
            _ => return self.open(place, other, true),
        }
        Ok(())
    }

    fn open(&mut self, place: usize, other: usize, connect: bool) -> Result<(), String> {
        if self.scenario.together && place != other {
            self.open_here(other, place, connect)?;
        }
        self.open_here(place, other, connect)
    }

    fn open_here(&mut self, place: usize, other: usize, connect: bool) -> Result<(), String> {
        let (peer, now, deadline) =
            (self.processes[other].uuid, self.now, self.scenario.deadline());
        let process = &mut self.processes[place];
        let link = process.links.open(peer).ok_or("the table is full")?;
        if connect {
            process.links.connect(link, None, now).map_err(|error| error.to_string())?;
        }
        let half = self.half(place, link, peer);
        let half = &mut self.halves[half];
        if half.requested {
            return Err(format!("{link} was opened twice"));
        }
        half.requested = true;
        half.due = (connect && !half.connected).then_some(now + deadline);
        Ok(())
    }

    fn restart(&mut self, place: usize) {
        let incarnation = self.processes[place].incarnation + 1;
        let process = self.start(place, incarnation);
        let old = std::mem::replace(&mut self.processes[place], process);
        let gone: Vec<usize> = old.halves.values().copied().collect();
        for half in gone {
            self.halves[half].died.get_or_insert(self.now);
            self.discard(half);
        }
    }

    fn close_one(&mut self) -> Result<(), String> {
        let open = self.open_halves();
        let Some(half) = self.rng.choice(&open).copied() else { return Ok(()) };
        self.close(half)
    }

    fn close_all(&mut self, of_100: u8) -> Result<(), String> {
        for half in self.open_halves() {
            if self.chance(of_100) {
                self.close(half)?;
            }
        }
        Ok(())
    }

    fn open_halves(&self) -> Vec<usize> {
        let open = |half: &Half| half.ended.is_none() && half.died.is_none();
        (0..self.halves.len()).filter(|index| open(&self.halves[*index])).collect()
    }

    fn send_some(&mut self) {
        let mut open = self.open_halves();
        open.retain(|half| self.halves[*half].may_send());
        let Some(half) = self.rng.choice(&open).copied() else { return };
        for _ in 0..self.rng.u8(1..5) {
            self.send_data(half);
        }
    }

    /// Returns the caller's record of a link.
    pub(crate) fn half(&mut self, place: usize, link: LinkId, peer: Uuid) -> usize {
        let next = self.halves.len();
        let index = *self.processes[place].halves.entry(link).or_insert(next);
        if index == next {
            self.halves.push(Half::new(place, link, peer));
        }
        index
    }

    pub(crate) fn some_reason(&mut self) -> Reason {
        *self.rng.choice(&[Reason::Unreachable, Reason::NoResources, Reason::Unsupported]).unwrap()
    }
}
