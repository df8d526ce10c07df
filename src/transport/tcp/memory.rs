//! The connection to the peer's memory: what was asked for, and the answers.

use std::collections::VecDeque;
use std::sync::Arc;

use barewire_tcp::region::Region;
use barewire_tcp::request::{ANSWER_BYTES, Answer, Operation as Asked, Outcome, REQUEST_BYTES};

use super::connection::Connection;
use super::domain::RemoteKey;
use super::reader::Scratch;
use super::state::{PendingFailure, State};
use crate::completion::{Completion, FetchResult, Unpack};
use crate::error::{Cause, Operation};
use crate::panics::Panics;

/// Bytes that a request adds to its data.
pub(super) const OVERHEAD: usize = REQUEST_BYTES;

/// What is to be done when a request is finished.
#[derive(Debug)]
pub(super) enum Done {
    /// Tell the caller, if it wants to know.
    Notify(Option<Completion>),
    /// Hand what came to the caller.
    Unpack { unpack: Unpack, length: usize, completion: Option<Completion> },
    /// Put what comes into these ranges.
    Scatter { ranges: VecDeque<Range>, length: usize, completion: Option<Completion> },
    /// Store the value that was fetched.
    Fetch { result: FetchResult, completion: Option<Completion> },
}

/// A part of a region.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) region: Arc<Region>,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// A request that somebody waits for.
#[derive(Debug)]
pub(super) struct InFlight {
    /// How many are finished once it is.
    pub(super) number: u64,
    pub(super) done: Done,
}

impl InFlight {
    pub(super) fn into_completion(self) -> Option<Completion> {
        match self.done {
            Done::Notify(completion)
            | Done::Unpack { completion, .. }
            | Done::Scatter { completion, .. }
            | Done::Fetch { completion, .. } => completion,
        }
    }
}

/// The connection to the memory of one process.
#[derive(Debug)]
pub(super) struct RemoteMemoryClient {
    pub(super) connection: Connection,
    /// Where the process serves it: its target's port and its domain.
    port: u16,
    domain: u64,
    /// Requests ever posted.
    pub(super) posted: u64,
    /// Requests ever finished, callbacks included.
    pub(super) finished: u64,
    /// Those somebody waits for, in order.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Requests outstanding at once.
    limit: u64,
    /// The beginning of an answer.
    rest: Vec<u8>,
    /// The data of the first in flight are coming: how many still.
    coming: Option<usize>,
}

impl RemoteMemoryClient {
    pub(super) fn new(connection: Connection, key: &RemoteKey, limit: u64) -> Self {
        let (port, domain) = (key.port, key.domain);
        Self {
            connection,
            port,
            domain,
            posted: 0,
            finished: 0,
            in_flight: VecDeque::new(),
            limit,
            rest: Vec::new(),
            coming: None,
        }
    }

    /// Leads to the memory that `key` is for.
    pub(super) fn serves(&self, key: &RemoteKey) -> bool {
        (self.port, self.domain) == (key.port, key.domain)
    }

    /// A request was put into the outbox; `done` is what to do when it is finished, if anything.
    pub(super) fn note(&mut self, done: Option<Done>) {
        self.posted += 1;
        if let Some(done) = done {
            self.in_flight.push_back(InFlight { number: self.posted, done });
        }
    }

    /// As many requests are outstanding as may be.
    pub(super) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many more requests may be outstanding.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.posted - self.finished)
    }
}

/// What is to be done next with the bytes that came.
enum Step {
    /// More bytes are needed.
    Wait,
    /// So many bytes were taken.
    Took(usize),
    /// So many bytes are for this.
    Hand {
        unpack: Unpack,
        header: usize,
        length: usize,
        completion: Option<Completion>,
    },
    /// So many bytes were taken, and this many requests are finished.
    Finish {
        took: usize,
        finished: u64,
        value: Option<u64>,
    },
    Fail(PendingFailure),
}

/// The peer does not keep to the protocol.
fn foreign() -> Step {
    Step::Fail(PendingFailure::new(Operation::Unnamed, Cause::RemoteOperation, "its answers make no sense"))
}

impl State {
    /// Takes the answers that came. Answers how many events there were.
    pub(super) fn receive_answers(&self, scratch: &mut Scratch) -> usize {
        let heard = match self.memory.try_borrow_mut().as_deref_mut() {
            Ok(Some(memory)) => memory.receive(scratch),
            // Not connected, or a `pack` function makes progress.
            Ok(None) | Err(_) => return 0,
        };
        let bytes = match heard {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return 0,
            Err(failure) => {
                self.fail(failure);
                return 1;
            }
        };
        let mut panics = Panics::default();
        let mut at = 0;
        let mut events = 1;
        while self.gate.is_alive() {
            let step = match self.memory.borrow_mut().as_mut() {
                Some(memory) => memory.step(&bytes[at..]),
                None => break,
            };
            match step {
                Step::Wait => break,
                Step::Took(count) => at += count,
                Step::Hand { unpack, header, length, completion } => {
                    let data = &bytes[at + header..at + header + length];
                    at += header + length;
                    panics.catch(|| unpack.call(data));
                    if let Some(completion) = completion {
                        panics.catch(|| completion.count_down(Ok(())));
                    }
                    self.one_finished();
                    events += 1;
                }
                Step::Finish { took, finished, value } => {
                    at += took;
                    events += self.finish_up_to(finished, value, &mut panics);
                }
                Step::Fail(failure) => self.fail(failure),
            }
        }
        if let Some(memory) = self.memory.borrow_mut().as_mut() {
            memory.rest.extend_from_slice(&bytes[at..]);
        }
        panics.catch(|| self.settle());
        events
    }

    /// The first in flight is finished.
    fn one_finished(&self) {
        if let Some(memory) = self.memory.borrow_mut().as_mut() {
            memory.finished += 1;
        }
        self.short.set(false);
    }

    /// Tells those who wait for requests up to the `finished`th; the last of them fetched `value`, if it fetched. Room comes back after
    /// that, so that a post of a callback does not overtake requests that wait for it.
    fn finish_up_to(&self, finished: u64, value: Option<u64>, panics: &mut Panics) -> usize {
        let mut count = 0;
        loop {
            let entry = self
                .memory
                .borrow_mut()
                .as_mut()
                .and_then(|memory| memory.in_flight.pop_front_if(|entry| entry.number <= finished));
            let Some(entry) = entry else { break };
            if let (Done::Fetch { result, .. }, Some(value)) = (&entry.done, value) {
                result.set(value);
            }
            count += 1;
            if let Some(completion) = entry.into_completion() {
                panics.catch(|| completion.count_down(Ok(())));
            }
        }
        if let Some(memory) = self.memory.borrow_mut().as_mut() {
            // Unless a callback gave everything up.
            memory.finished = memory.finished.max(finished);
        }
        self.short.set(false);
        count
    }
}

impl RemoteMemoryClient {
    /// Takes what came: the bytes to be looked at, which are none if the system put them where they belong. `None` if nothing came.
    fn receive<'s>(&mut self, scratch: &'s mut Scratch) -> Result<Option<&'s [u8]>, PendingFailure> {
        let gone = || {
            PendingFailure::new(
                Operation::Unnamed,
                Cause::Disconnected,
                "it closed the connection to its memory",
            )
        };
        if self.rest.is_empty()
            && let Some(left @ 1..) = self.coming
            && let Some(socket) = self.connection.socket()
            && !socket.is_protected()
            && let Some(InFlight { done: Done::Scatter { ranges, .. }, .. }) = self.in_flight.front_mut()
            && let Some(range) = ranges.front_mut()
        {
            let count = match range.region.receive(range.offset, range.length.min(left), socket) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => return Err(gone()),
                Ok(Some(count)) => count,
                Err(None) => return Err(freed()),
                Err(Some(error)) => return Err(PendingFailure::of_sending(Operation::Get, &error.into())),
            };
            range.offset += count;
            range.length -= count;
            if range.length == 0 {
                ranges.pop_front();
            }
            self.coming = Some(left - count);
            return Ok(Some(&[]));
        }
        let Some(socket) = self.connection.socket() else { return Ok(None) };
        match scratch.fill(&self.rest, socket, usize::MAX) {
            Ok(None) => Ok(None),
            Ok(Some(0)) => Err(gone()),
            Ok(Some(count)) => {
                let held = self.rest.len();
                self.rest.clear();
                Ok(Some(scratch.bytes(held + count)))
            }
            Err(error) => Err(PendingFailure::of_sending(Operation::Unnamed, &error.into())),
        }
    }

    /// Looks at what came.
    fn step(&mut self, bytes: &[u8]) -> Step {
        if let Some(left) = self.coming {
            return self.scatter(bytes, left);
        }
        let Some((header, data)) = bytes.split_first_chunk::<ANSWER_BYTES>() else { return Step::Wait };
        let Ok(answer) = Answer::parse(header) else { return foreign() };
        let altered = answer.outcome == Outcome::Altered;
        if answer.finished > self.posted + u64::from(altered) || answer.finished <= self.finished {
            return foreign();
        }
        if answer.outcome == Outcome::Altered {
            let detail = "its end found the bytes of the connection to its memory changed on the way";
            return Step::Fail(PendingFailure::new(Operation::Unnamed, Cause::Altered, detail));
        }
        if answer.outcome == Outcome::Refused {
            let operation = match answer.operation {
                Asked::Put => Operation::Put,
                Asked::Get => Operation::Get,
                Asked::Atomic => Operation::Atomic,
            };
            return Step::Fail(PendingFailure::new(
                operation,
                Cause::RemoteAccess,
                "its memory refused the access",
            ));
        }
        // The first in flight that this answer does not merely cover.
        let before = self.in_flight.front().is_some_and(|entry| entry.number < answer.finished);
        if before && self.covers_data(answer.finished) {
            // Gets and fetches before it are answered one by one.
            return foreign();
        }
        if before {
            return Step::Finish { took: 0, finished: answer.finished - 1, value: None };
        }
        let exact = self.in_flight.front().filter(|entry| entry.number == answer.finished);
        match exact.map(|entry| &entry.done) {
            Some(Done::Unpack { length, .. } | Done::Scatter { length, .. })
                if answer.operation != Asked::Get || answer.value != *length as u64 =>
            {
                foreign()
            }
            Some(Done::Unpack { length, .. }) => {
                let length = *length;
                if data.len() < length {
                    return Step::Wait;
                }
                self.finished = answer.finished - 1;
                match self.in_flight.pop_front().map(|entry| entry.done) {
                    Some(Done::Unpack { unpack, completion, .. }) => {
                        Step::Hand { unpack, header: ANSWER_BYTES, length, completion }
                    }
                    _ => foreign(),
                }
            }
            Some(Done::Scatter { length: 0, .. }) => {
                Step::Finish { took: ANSWER_BYTES, finished: answer.finished, value: None }
            }
            Some(Done::Scatter { length, .. }) => {
                self.coming = Some(*length);
                self.finished = answer.finished - 1;
                Step::Took(ANSWER_BYTES)
            }
            Some(Done::Fetch { .. }) if answer.operation == Asked::Atomic => {
                Step::Finish { took: ANSWER_BYTES, finished: answer.finished, value: Some(answer.value) }
            }
            Some(Done::Fetch { .. }) => foreign(),
            // Whatever it was, nobody waits for data.
            _ if answer.operation == Asked::Get => foreign(),
            _ => Step::Finish { took: ANSWER_BYTES, finished: answer.finished, value: None },
        }
    }

    /// One in flight before `number` waits for an answer of its own.
    fn covers_data(&self, number: u64) -> bool {
        let mut before = self.in_flight.iter().take_while(|entry| entry.number < number);
        before.any(|entry| !matches!(entry.done, Done::Notify(_)))
    }

    /// Puts data into the ranges of the first in flight, which waits for `left` bytes.
    fn scatter(&mut self, bytes: &[u8], left: usize) -> Step {
        let Some(InFlight { number, done: Done::Scatter { ranges, .. } }) = self.in_flight.front_mut() else {
            return foreign();
        };
        let number = *number;
        let bytes = &bytes[..left.min(bytes.len())];
        let mut taken = 0;
        while let Some(range) = ranges.front_mut()
            && taken < bytes.len()
        {
            let count = range.length.min(bytes.len() - taken);
            if range.region.write(range.offset, &bytes[taken..taken + count]).is_err() {
                return Step::Fail(freed());
            }
            taken += count;
            range.offset += count;
            range.length -= count;
            if range.length == 0 {
                ranges.pop_front();
            }
        }
        if taken == left {
            self.coming = None;
            return Step::Finish { took: taken, finished: number, value: None };
        }
        self.coming = Some(left - taken);
        if taken == 0 { Step::Wait } else { Step::Took(taken) }
    }
}

fn freed() -> PendingFailure {
    PendingFailure::new(Operation::Get, Cause::LocalAccess, "local memory was freed while data came for it")
}
