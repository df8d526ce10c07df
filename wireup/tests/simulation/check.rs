//! What must hold after each step, and at the end.

use std::time::Duration;

use barewire_wireup::protocol::{Cause, Side, State};

use crate::driver::Half;
use crate::world::World;

const MILLISECOND: Duration = Duration::from_millis(1);

impl World {
    pub(crate) fn on_connected(&mut self, half: usize, requested: bool) -> Result<(), String> {
        let now = self.now;
        let record = &mut self.halves[half];
        if std::mem::replace(&mut record.connected, true) {
            return Err(format!("{} was connected twice", record.link));
        }
        if record.requested != requested {
            return Err(format!("{} is not known to be the user's", record.link));
        }
        if record.lanes.is_empty() {
            return Err(format!("{} is connected without a lane", record.link));
        }
        record.heard = now;
        record.due = None;
        Ok(())
    }

    /// Returns the half at the other end of the first lane.
    fn partner(&self, half: &Half) -> Option<&Half> {
        let (_, _, endpoint) = half.lanes.first()?;
        let other = self.endpoints.get(&self.endpoints.get(endpoint)?.connected_to?)?;
        Some(&self.halves[other.half])
    }

    pub(crate) fn on_ended(&mut self, half: usize, state: State) -> Result<(), String> {
        let record = &self.halves[half];
        let link = record.link;
        let partner = self.partner(record);
        match state {
            State::Closed(Side::Here) if !record.closed => {
                return Err(format!("{link} was closed by nobody"));
            }
            State::Closed(_) if record.connected => {
                let partner = partner.ok_or("a connected link without a partner")?;
                if record.closed && partner.received != record.sent {
                    return Err(format!(
                        "{link} lost messages: {} of {}",
                        partner.received, record.sent
                    ));
                }
                if record.closed && !partner.drained {
                    return Err(format!("{link} was closed before the peer was informed"));
                }
                if !record.closed && !partner.closed {
                    return Err(format!("{link} was closed by nobody"));
                }
            }
            State::Failed(cause) => self.check_cause(record, cause)?,
            State::Closed(_) => {}
            other => return Err(format!("{link} ended as {other:?}")),
        }
        if self.processes[record.place].links.state(link).is_some() {
            return Err(format!("{link} exists after its end"));
        }
        self.halves[half].ended = Some(state);
        self.halves[half].ended_at = self.now;
        self.halves[half].due = None;
        self.discard(half);
        Ok(())
    }

    fn check_cause(&self, half: &Half, cause: Cause) -> Result<(), String> {
        let scenario = &self.scenario;
        let undisturbed = scenario.is_calm() && self.now < scenario.users_leave();
        let possible = match cause {
            Cause::Silent => half.connected && (scenario.liveness > 0 || !undisturbed),
            _ => !undisturbed,
        };
        if possible { Ok(()) } else { Err(format!("{} failed without need: {cause}", half.link)) }
    }

    pub(crate) fn check_step(&self) -> Result<(), String> {
        let scenario = &self.scenario;
        for process in &self.processes {
            let (count, place) = (process.links.half_open(), process.place);
            if count > scenario.half_open.max(2) {
                return Err(format!("{count} half-open links at {place}"));
            }
        }
        for half in self.halves.iter().filter(|half| half.ended.is_none() && half.died.is_none()) {
            let (link, place) = (half.link, half.place);
            let state = self.processes[place].links.state(link);
            if state.is_none() {
                return Err(format!("{link} of {place} vanished"));
            }
            if half.due.is_some_and(|due| self.now > due + MILLISECOND) {
                return Err(format!("{link} of {place} is {state:?} after its deadline"));
            }
            if state == Some(State::Answered) && self.answers_nobody(half) {
                return Err(format!("{link} of {place} still answers a link that ended"));
            }
            if !half.connected || half.closed || half.drain.is_some() {
                continue;
            }
            self.check_lanes(half)?;
        }
        Ok(())
    }

    /// Both ends of each lane are connected to each other, and the lanes are the same.
    fn check_lanes(&self, half: &Half) -> Result<(), String> {
        let link = half.link;
        for (kind, way, endpoint) in &half.lanes {
            let mine = &self.endpoints[endpoint];
            let theirs = mine.connected_to.and_then(|other| self.endpoints.get(&other));
            let theirs = theirs.ok_or_else(|| format!("a lane of {link} is not connected"))?;
            let other = &self.halves[theirs.half];
            if !mine.alive {
                return Err(format!("a lane of {link} was destroyed"));
            }
            let ended = other.ended.is_some() || other.died.is_some();
            if ended && self.overdue(half, other) {
                return Err(format!("{link} does not notice that its peer is {:?}", other.ended));
            }
            if ended || !other.connected {
                continue;
            }
            if theirs.connected_to != Some(*endpoint) {
                return Err(format!("a lane of {link} leads to an endpoint of another link"));
            }
            if !other
                .lanes
                .iter()
                .any(|(k, w, e)| (k, w, Some(*e)) == (kind, way, mine.connected_to))
            {
                return Err(format!("{link} and its peer have different lanes"));
            }
        }
        Ok(())
    }

    /// Whether a half-open link should have ended, because its peer's half ended and no message is
    /// lost.
    fn answers_nobody(&self, half: &Half) -> bool {
        let Some(other) = self.partner(half).filter(|_| self.scenario.lost == 0) else {
            return false;
        };
        let Some(ended) = other.died.or(other.ended.map(|_| other.ended_at)) else { return false };
        // The longest pause before ANSWER is sent again, the way there and back, and the caller.
        let delay = Duration::from_millis(2 * self.scenario.delay + 160);
        self.now > ended + delay + Duration::from_micros(self.scenario.result)
    }

    /// The n-th link here is the n-th there: a link that only the peer opened is one of those that
    /// it opened more often.
    fn check_pairs(&self) -> Result<(), String> {
        for (here, process) in self.processes.iter().enumerate() {
            for (there, peer) in self.processes.iter().enumerate() {
                let count = |place: usize, peer, requested: bool| {
                    let with = |half: &&Half| half.place == place && half.peer == peer;
                    let halves = self.halves.iter().filter(with);
                    halves.filter(|half| half.requested == requested).count()
                };
                let (mine, theirs) =
                    (count(here, peer.uuid, true), count(there, process.uuid, true));
                let most = if here == there { mine % 2 } else { theirs.saturating_sub(mine) };
                let unknown = count(here, peer.uuid, false);
                if unknown > most {
                    return Err(format!(
                        "{unknown} links of {here} with {there} have no user, not {most}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a link should have failed since its peer is dead.
    fn overdue(&self, half: &Half, other: &Half) -> bool {
        let (Some(interval), Some(died)) = (self.scenario.liveness(), other.died) else {
            return false;
        };
        let delay = Duration::from_millis(self.scenario.delay);
        self.now > died.max(half.heard) + delay + interval * 2 + MILLISECOND
    }

    /// Nobody acts, and every deadline has passed.
    pub(crate) fn check_connected(&self) -> Result<(), String> {
        if !self.scenario.is_calm() {
            return Ok(());
        }
        self.check_pairs()?;
        for half in self.halves.iter().filter(|half| half.ended.is_none()) {
            let link = half.link;
            let state = self.processes[half.place].links.state(link);
            let silent = half.due.is_none() && state == Some(State::Idle);
            if state != Some(State::Connected) && !silent {
                return Err(format!("{link} of {} is {state:?}", half.place));
            }
            let partner = self.partner(half);
            if !silent
                && partner.is_none_or(|partner| !partner.connected || partner.ended.is_some())
            {
                return Err(format!("{link} of {} has no partner", half.place));
            }
        }
        Ok(())
    }

    pub(crate) fn check_end(&self) -> Result<(), String> {
        for process in &self.processes {
            let links = &process.links;
            if !links.is_empty() || links.half_open() > 0 || links.next_timer().is_some() {
                return Err(format!("{} links remain at {}", links.len(), process.place));
            }
        }
        if let Some(half) =
            self.halves.iter().find(|half| half.ended.is_none() && half.died.is_none())
        {
            return Err(format!("{} of {} did not end", half.link, half.place));
        }
        if self.endpoints.values().any(|endpoint| endpoint.alive) {
            return Err("an endpoint remains".into());
        }
        Ok(())
    }
}
