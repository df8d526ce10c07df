//! The client of the peer's memory: requests to put, get and change words, and their responses.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use barewire_tcp::outbox::{SendError, Spare};
use barewire_tcp::region::Region;
use barewire_tcp::request::{
    self, Action, Outcome, REQUEST_BYTES, RESPONSE_BYTES, Request, Response,
};

use super::address::RemoteKey;
use super::connection::Connection;
use super::failure::PendingFailure;
use super::reader::{Scratch, Source};
use crate::base::completion::{Completion, Counted, FetchResult, Unpack};
use crate::base::error::{Cause, Operation, PostError};
use crate::base::panics::Panics;

/// A part of a region.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) region: Arc<Region>,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Range {
    /// The first `count` bytes are done.
    fn advance(&mut self, count: usize) {
        self.offset += count;
        self.length -= count;
    }
}

/// What happens when a request is finished, before its completion is counted down.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    /// The data are passed to the caller.
    Unpack(Unpack, usize),
    /// The data are stored in these ranges.
    Scatter(VecDeque<Range>, usize),
    /// The old value is stored.
    Fetch(FetchResult),
}

/// A request whose end matters to the caller.
#[derive(Debug)]
pub(super) struct InFlight {
    /// How many requests are finished once it is.
    number: u64,
    then: Then,
    completion: Option<Counted>,
}

impl InFlight {
    pub(super) fn into_completion(self) -> Option<Counted> {
        self.completion
    }
}

/// Requests that [`RemoteMemoryClient::next`] found to be finished.
#[derive(Debug)]
pub(super) struct Finished<'b> {
    entry: Option<InFlight>,
    data: &'b [u8],
    value: u64,
    /// The number of the last finished request, if room for requests comes back.
    number: Option<u64>,
}

impl Finished<'_> {
    /// Calls back, and returns the number for [`RemoteMemoryClient::finish`] and the number of
    /// events.
    pub(super) fn run(self, panics: &mut Panics) -> (Option<u64>, usize) {
        let Some(entry) = self.entry else { return (self.number, 0) };
        match entry.then {
            Then::Unpack(unpack, _) => panics.catch(|| unpack.call(self.data)),
            Then::Fetch(result) => result.set(self.value),
            Then::Nothing | Then::Scatter(..) => {}
        }
        if let Some(completion) = entry.completion {
            panics.catch(|| completion.finish(Ok(())));
        }
        (self.number, 1)
    }
}

/// The connection to the memory of one process, and the requests on it.
#[derive(Debug)]
pub(super) struct RemoteMemoryClient {
    connection: Connection,
    /// The port and the domain at which the peer serves the memory.
    target: (u16, u64),
    /// Requests ever posted.
    posted: u64,
    /// Requests ever finished, callbacks included.
    finished: u64,
    /// Requests outstanding at once.
    limit: u64,
    /// The number of the last request that returns data.
    last_read: u64,
    /// Puts from local memory wait until so many requests are finished.
    fence: u64,
    /// In the order in which they were posted.
    in_flight: VecDeque<InFlight>,
    /// The beginning of a response.
    held: Vec<u8>,
    /// Bytes that are still to come for the first request in flight.
    data_left: Option<usize>,
}

impl RemoteMemoryClient {
    pub(super) fn new(connection: Connection, key: &RemoteKey, limit: u64) -> Self {
        Self {
            connection,
            target: (key.port, key.domain),
            posted: 0,
            finished: 0,
            limit,
            last_read: 0,
            fence: 0,
            in_flight: VecDeque::new(),
            held: Vec::new(),
            data_left: None,
        }
    }

    /// Returns true if the memory that `key` is for is served here.
    pub(super) fn serves(&self, key: &RemoteKey) -> bool {
        self.target == (key.port, key.domain)
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    // Posting.

    /// How many more requests may be outstanding.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.posted - self.finished)
    }

    /// There may be no room for so many bytes of requests and copied data.
    pub(super) fn is_crowded(&self, bytes: usize) -> bool {
        self.connection.outbox().is_crowded(bytes)
    }

    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// Lets later puts wait for the requests whose data are outstanding: the source of a put may be
    /// the memory that they fill. The target keeps all other orders.
    pub(super) fn fence(&mut self) {
        self.fence = self.last_read;
    }

    /// A fence holds puts from local memory back.
    pub(super) fn is_fenced(&self) -> bool {
        self.finished < self.fence
    }

    /// Posts a request without data.
    pub(super) fn request(
        &mut self,
        spare: &Spare,
        request: Request,
        then: Then,
        completion: Option<&Completion>,
    ) -> Result<(), PostError> {
        if !self.connection.outbox_mut().push(spare, &request.to_bytes()) {
            return Err(PostError::NoResource);
        }
        self.add(then, completion);
        Ok(())
    }

    /// Posts a put of the bytes that `fill` writes, at most `most`. `fill` returns how many.
    ///
    /// # Errors
    /// [`PostError::NoResource`], and those of `fill`.
    pub(super) fn put(
        &mut self,
        spare: &Spare,
        (key, address): (&RemoteKey, u64),
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
        completion: Option<&Completion>,
    ) -> Result<usize, PostError> {
        let outbox = self.connection.outbox_mut();
        let room = outbox.room(spare, REQUEST_BYTES + most).ok_or(PostError::NoResource)?;
        let (head, data) = room.split_at_mut(REQUEST_BYTES);
        let length = fill(&mut data[..most])?;
        let action = Action::Put { length: length as u64 };
        head.copy_from_slice(&Request { token: key.token, address, action }.to_bytes());
        outbox.commit(REQUEST_BYTES + length);
        self.add(Then::Nothing, completion);
        Ok(length)
    }

    /// Posts a put of `length` bytes, which are sent from `ranges`.
    pub(super) fn put_ranges(
        &mut self,
        spare: &Spare,
        (key, address): (&RemoteKey, u64),
        length: usize,
        ranges: VecDeque<Range>,
        completion: Option<&Completion>,
    ) -> Result<(), PostError> {
        let action = Action::Put { length: length as u64 };
        self.request(
            spare,
            Request { token: key.token, address, action },
            Then::Nothing,
            completion,
        )?;
        for range in ranges {
            self.connection.outbox_mut().push_range(range.region, range.offset, range.length);
        }
        Ok(())
    }

    fn add(&mut self, then: Then, completion: Option<&Completion>) {
        self.posted += 1;
        if !matches!(then, Then::Nothing) {
            self.last_read = self.posted;
        }
        if completion.is_some() || !matches!(then, Then::Nothing) {
            let (number, completion) = (self.posted, completion.map(Completion::begin));
            self.in_flight.push_back(InFlight { number, then, completion });
        }
    }

    // Responses.

    /// Reads once. Returns the bytes to pass to [`Self::next`], which are none if the kernel has
    /// stored them, or `None` if there was nothing to read.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn receive<'s>(
        &mut self,
        scratch: &'s mut Scratch,
    ) -> Result<Option<&'s [u8]>, PendingFailure> {
        let Some(socket) = self.connection.socket() else { return Ok(None) };
        let Self { held, in_flight, data_left, .. } = self;
        receive(socket, scratch, held, in_flight, data_left)
    }

    /// Takes the next finished requests from the front of `bytes`. Returns `None` if more bytes are
    /// needed; those that are left the caller passes to [`Self::hold`].
    ///
    /// # Errors
    /// The peer refused a request, or violates the protocol.
    pub(super) fn next<'b>(
        &mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<Finished<'b>>, PendingFailure> {
        if self.data_left.is_some() {
            return self.scatter(bytes);
        }
        let Some((header, data)) = bytes.split_first_chunk::<RESPONSE_BYTES>() else {
            return Ok(None);
        };
        let response = Response::parse(header).map_err(|_| violation())?;
        let number = response.finished;
        let is_altered = response.outcome == Outcome::Altered;
        // The peer counts a request that it could not read.
        if number > self.posted + u64::from(is_altered) || number <= self.finished {
            return Err(violation());
        }
        match response.outcome {
            Outcome::Done => {}
            Outcome::Altered => {
                let detail = "it received changed bytes on the connection to its memory";
                return Err(PendingFailure::new(Operation::Unnamed, Cause::Altered, detail));
            }
            Outcome::Refused => {
                let detail = "its memory refused the access";
                return Err(PendingFailure::new(
                    of(response.operation),
                    Cause::RemoteAccess,
                    detail,
                ));
            }
        }
        // A response covers the requests before it, except those that have data or a value.
        if let Some(entry) = self.in_flight.front().filter(|entry| entry.number < number) {
            if !matches!(entry.then, Then::Nothing) {
                return Err(violation());
            }
            let entry = self.in_flight.pop_front();
            return Ok(Some(Finished { entry, data: &[], value: 0, number: None }));
        }
        let is_get = response.operation == request::Operation::Get;
        let is_right = match self.in_flight.front().filter(|entry| entry.number == number) {
            Some(InFlight { then: Then::Unpack(_, length) | Then::Scatter(_, length), .. }) => {
                is_get && response.value == *length as u64
            }
            Some(InFlight { then: Then::Fetch(_), .. }) => {
                response.operation == request::Operation::Atomic
            }
            _ => !is_get,
        };
        if !is_right {
            return Err(violation());
        }
        self.finished = number - 1;
        let mut taken = 0;
        match self.in_flight.front().map(|entry| &entry.then) {
            Some(Then::Unpack(_, length)) if is_get => {
                if data.len() < *length {
                    return Ok(None);
                }
                taken = *length;
            }
            Some(Then::Scatter(_, length)) if is_get => {
                self.data_left = Some(*length);
                *bytes = data;
                return self.scatter(bytes);
            }
            _ => {}
        }
        let (data, rest) = data.split_at(taken);
        *bytes = rest;
        let entry = self.in_flight.pop_front_if(|entry| entry.number == number);
        Ok(Some(Finished { entry, data, value: response.value, number: Some(number) }))
    }

    /// Stores data in the ranges of the first request in flight.
    fn scatter<'b>(
        &mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<Finished<'b>>, PendingFailure> {
        let (Some(left), Some(InFlight { number, then: Then::Scatter(ranges, _), .. })) =
            (&mut self.data_left, self.in_flight.front_mut())
        else {
            return Err(violation());
        };
        while let Some(range) = ranges.front_mut() {
            if bytes.is_empty() {
                return Ok(None);
            }
            let count = range.length.min(bytes.len()).min(*left);
            let (data, rest) = bytes.split_at(count);
            if range.region.write(range.offset, data).is_err() {
                return Err(freed());
            }
            *bytes = rest;
            *left -= count;
            range.advance(count);
            if range.length > 0 {
                return Ok(None);
            }
            ranges.pop_front();
        }
        let number = Some(*number);
        self.data_left = None;
        Ok(Some(Finished { entry: self.in_flight.pop_front(), data: &[], value: 0, number }))
    }

    /// The callbacks of all requests up to `number` have returned. Room comes back only now, so
    /// that a post by a callback does not overtake requests that wait for it.
    pub(super) fn finish(&mut self, number: u64) {
        // A callback may have ended the endpoint.
        self.finished = self.finished.max(number);
    }

    /// Keeps bytes that [`Self::next`] did not take.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    // The end.

    /// Takes the first request in flight, of an endpoint that ends. Once there is none, all
    /// requests are finished.
    pub(super) fn abandon(&mut self) -> Option<InFlight> {
        let request = self.in_flight.pop_front();
        if request.is_none() {
            self.finished = self.posted;
        }
        request
    }
}

/// See [`RemoteMemoryClient::receive`].
fn receive<'s>(
    source: &mut impl Source,
    scratch: &'s mut Scratch,
    held: &mut Vec<u8>,
    in_flight: &mut VecDeque<InFlight>,
    data_left: &mut Option<usize>,
) -> Result<Option<&'s [u8]>, PendingFailure> {
    let closed = || {
        let detail = "it closed the connection to its memory";
        PendingFailure::new(Operation::Unnamed, Cause::Disconnected, detail)
    };
    let failed =
        |operation, error: io::Error| PendingFailure::of_sending(operation, &SendError::Io(error));
    // Records have to be verified before anything is stored.
    if held.is_empty()
        && !source.has_records()
        && let Some(left @ 1..) = data_left
        && let Some(InFlight { then: Then::Scatter(ranges, _), .. }) = in_flight.front_mut()
        && let Some(range) = ranges.front_mut()
        && range.region.is_contiguous()
    {
        let count = match source.read_region(&range.region, range.offset, range.length.min(*left)) {
            Ok(None) => return Ok(None),
            Ok(Some(0)) => return Err(closed()),
            Ok(Some(count)) => count,
            Err(None) => return Err(freed()),
            Err(Some(error)) => return Err(failed(Operation::Get, error)),
        };
        range.advance(count);
        if range.length == 0 {
            ranges.pop_front();
        }
        *left -= count;
        return Ok(Some(&[]));
    }
    match scratch.fill(held, source, usize::MAX) {
        Ok(None) => Ok(None),
        Ok(Some(0)) => Err(closed()),
        Ok(Some(count)) => {
            let length = held.len() + count;
            held.clear();
            Ok(Some(scratch.bytes(length)))
        }
        Err(error) => Err(failed(Operation::Unnamed, error)),
    }
}

fn of(operation: request::Operation) -> Operation {
    match operation {
        request::Operation::Put => Operation::Put,
        request::Operation::Get => Operation::Get,
        request::Operation::Atomic => Operation::Atomic,
    }
}

fn violation() -> PendingFailure {
    let detail = "its responses violate the protocol";
    PendingFailure::new(Operation::Unnamed, Cause::RemoteOperation, detail)
}

fn freed() -> PendingFailure {
    let detail = "local memory was freed before the data for it had arrived";
    PendingFailure::new(Operation::Get, Cause::LocalAccess, detail)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use barewire_tcp::request::Change;
    use proptest::prelude::*;

    use crate::transport::Domain as _;

    use super::super::domain::{Domain, Memory};
    use super::super::poller::Token;
    use super::super::reader::tests::{Pieces, cut};
    use super::*;
    use crate::base::memory::Access;

    const KEY: RemoteKey = RemoteKey { port: 1, domain: 2, token: 3 };
    const LIMIT: u64 = 64;

    /// A client without a socket, and a model of the target that executes its requests.
    struct Pair {
        client: RemoteMemoryClient,
        spare: Spare,
        /// The target's memory. Its addresses begin at zero.
        memory: Vec<u8>,
        /// Bytes of requests that the target has read.
        read: usize,
        executed: u64,
        responses: Vec<u8>,
    }

    impl Pair {
        fn new() -> Self {
            Self {
                client: RemoteMemoryClient::new(Connection::new(Token::Memory(0)), &KEY, LIMIT),
                spare: Spare::default(),
                memory: (0..=255).collect(),
                read: 0,
                executed: 0,
                responses: Vec::new(),
            }
        }

        fn put(&mut self, address: u64, data: &[u8], completion: Option<&Completion>) {
            let fill = |room: &mut [u8]| {
                room.copy_from_slice(data);
                Ok(data.len())
            };
            let put = self.client.put(&self.spare, (&KEY, address), data.len(), fill, completion);
            assert_eq!(put, Ok(data.len()));
        }

        fn request(
            &mut self,
            address: u64,
            action: Action,
            then: Then,
            completion: Option<&Completion>,
        ) {
            let request = Request { token: KEY.token, address, action };
            assert_eq!(self.client.request(&self.spare, request, then, completion), Ok(()));
        }

        fn get(
            &mut self,
            address: u64,
            length: usize,
            then: Then,
            completion: Option<&Completion>,
        ) {
            self.request(address, Action::Get { length: length as u64 }, then, completion);
        }

        fn fetch_add(&mut self, address: u64, operand: u64) -> FetchResult {
            let result = FetchResult::new();
            let action =
                Action::Atomic { change: Change::Add, width: 8, fetch: true, operand, compare: 0 };
            self.request(address, action, Then::Fetch(result.clone()), None);
            result
        }

        fn respond(&mut self, outcome: Outcome, operation: request::Operation, value: u64) {
            let response = Response { finished: self.executed, outcome, operation, value };
            self.responses.extend(response.to_bytes());
        }

        /// Executes all requests. Puts are covered by the next response, or by one at the end.
        fn execute(&mut self) {
            let mut bytes = vec![0; 1 << 16];
            let count = self.client.connection.outbox().copy(self.read, &mut bytes).unwrap();
            let mut rest = &bytes[..count];
            let mut is_covered = true;
            while let Some((header, behind)) = rest.split_first_chunk::<REQUEST_BYTES>() {
                let request = Request::parse(header).unwrap();
                assert_eq!(request.token, KEY.token);
                rest = behind;
                self.executed += 1;
                let at = request.address as usize;
                is_covered = true;
                match request.action {
                    Action::Put { length } => {
                        let (data, behind) = rest.split_at(length as usize);
                        self.memory[at..at + data.len()].copy_from_slice(data);
                        rest = behind;
                        is_covered = false;
                    }
                    Action::Get { length } => {
                        self.respond(Outcome::Done, request.operation(), length);
                        self.responses.extend(&self.memory[at..at + length as usize]);
                    }
                    Action::Atomic { operand, .. } => {
                        let old = u64::from_le_bytes(self.memory[at..at + 8].try_into().unwrap());
                        let new = old.wrapping_add(operand).to_le_bytes();
                        self.memory[at..at + 8].copy_from_slice(&new);
                        self.respond(Outcome::Done, request.operation(), old);
                    }
                }
            }
            if !is_covered {
                self.respond(Outcome::Done, request::Operation::Put, 0);
            }
            self.read += count;
        }

        /// Receives the responses in pieces of these sizes. Returns the number of events.
        fn receive(&mut self, sizes: &[usize], records: bool) -> Result<usize, PendingFailure> {
            let mut source =
                Pieces { pieces: cut(&std::mem::take(&mut self.responses), sizes), records };
            let mut scratch = Scratch::new().unwrap();
            let mut events = 0;
            loop {
                let RemoteMemoryClient { held, in_flight, data_left, .. } = &mut self.client;
                let Some(mut bytes) =
                    receive(&mut source, &mut scratch, held, in_flight, data_left)?
                else {
                    return Ok(events);
                };
                while let Some(finished) = self.client.next(&mut bytes)? {
                    let (number, callbacks) = finished.run(&mut Panics::default());
                    events += callbacks;
                    self.client.finish(number.unwrap_or(0));
                }
                self.client.hold(bytes);
            }
        }
    }

    fn local(length: usize) -> (Domain, Memory) {
        let domain = Domain::open("lo").unwrap();
        let memory = domain.allocate(length, Access::LOCAL_WRITE).unwrap();
        (domain, memory)
    }

    fn scatter(domain: &Domain, memory: &Memory, parts: &[(usize, usize)]) -> Then {
        let region = domain.region(memory.local_key()).unwrap();
        let range = |&(offset, length)| Range { region: Arc::clone(&region), offset, length };
        Then::Scatter(parts.iter().map(range).collect(), parts.iter().map(|part| part.1).sum())
    }

    /// An unpacker, and what it got.
    fn collector() -> (Unpack, Rc<RefCell<Vec<u8>>>) {
        let found = Rc::new(RefCell::new(Vec::new()));
        let copy = Rc::clone(&found);
        (Unpack::new(move |data| copy.borrow_mut().extend_from_slice(data)), found)
    }

    #[test]
    fn requests_complete_in_order() {
        let (domain, memory) = local(64);
        for (records, size) in [(false, 1), (false, 30), (true, 7), (true, 1000)] {
            let mut pair = Pair::new();
            let done = Completion::counter();
            let (unpack, unpacked) = collector();
            pair.put(8, &[1; 8], Some(&done));
            pair.put(16, &[2; 4], None);
            pair.get(6, 4, Then::Unpack(unpack, 4), Some(&done));
            let fetched = pair.fetch_add(8, 1);
            pair.get(8, 12, scatter(&domain, &memory, &[(40, 5), (0, 7)]), Some(&done));
            pair.get(0, 0, scatter(&domain, &memory, &[]), None);
            assert_eq!(
                (pair.client.posted(), pair.client.finished(), pair.client.room()),
                (6, 0, LIMIT - 6)
            );
            pair.execute();
            assert_eq!(pair.receive(&[size], records), Ok(5));
            assert_eq!((done.pending(), done.status()), (0, Ok(())));
            assert_eq!(*unpacked.borrow(), [6, 7, 1, 1]);
            assert_eq!(fetched.get(), 0x0101_0101_0101_0101);
            let mut bytes = [0; 45];
            memory.read(0, &mut bytes).unwrap();
            assert_eq!(
                (&bytes[..7], &bytes[40..]),
                (&[1, 1, 1, 2, 2, 2, 2][..], &[2, 1, 1, 1, 1][..])
            );
            assert_eq!((pair.client.finished(), pair.client.room()), (6, LIMIT));
        }
    }

    #[test]
    fn room_comes_back_after_the_callbacks() {
        let mut pair = Pair::new();
        let done = Completion::counter();
        (0..2).for_each(|_| pair.put(0, &[1], Some(&done)));
        pair.execute();
        let responses = std::mem::take(&mut pair.responses);
        let (mut bytes, mut rooms) = (&responses[..], Vec::new());
        while let Some(finished) = pair.client.next(&mut bytes).unwrap() {
            let (number, _) = finished.run(&mut Panics::default());
            rooms.push((pair.client.room(), number));
        }
        assert_eq!((rooms, done.pending()), (vec![(LIMIT - 2, None), (LIMIT - 1, Some(2))], 0));
        pair.client.finish(2);
        assert_eq!(pair.client.room(), LIMIT);
    }

    #[test]
    fn requests_of_an_endpoint_that_ends_are_abandoned() {
        let mut pair = Pair::new();
        pair.put(0, &[1], Some(&Completion::counter()));
        let _ = pair.fetch_add(8, 1);
        assert!(pair.client.abandon().is_some_and(|request| request.into_completion().is_some()));
        assert!(pair.client.abandon().is_some_and(|request| request.into_completion().is_none()));
        assert_eq!(pair.client.finished(), 0);
        assert!(pair.client.abandon().is_none());
        assert_eq!(pair.client.finished(), 2);
    }

    #[test]
    fn refusals_name_the_operation() {
        for (outcome, cause) in
            [(Outcome::Refused, Cause::RemoteAccess), (Outcome::Altered, Cause::Altered)]
        {
            let mut pair = Pair::new();
            pair.put(0, &[1], None);
            pair.executed = 1;
            pair.respond(outcome, request::Operation::Put, 0);
            let failure = pair.receive(&[], false).unwrap_err();
            let operation =
                if cause == Cause::Altered { Operation::Unnamed } else { Operation::Put };
            assert_eq!((failure.cause, failure.operation), (cause, operation));
        }
    }

    #[test]
    fn violations_of_the_protocol_fail() {
        use request::Operation::{Atomic, Get, Put};
        // The requests are a put, a get of four bytes and a fetch-and-add.
        for (finished, operation, value) in [
            (0, Put, 0),
            (4, Put, 0),
            (1, Get, 0),
            (2, Get, 5),
            (2, Put, 0),
            (2, Atomic, 4),
            (3, Atomic, 0),
        ] {
            let mut pair = Pair::new();
            pair.put(0, &[1], Some(&Completion::counter()));
            pair.get(0, 4, Then::Unpack(collector().0, 4), None);
            let _ = pair.fetch_add(0, 1);
            pair.executed = finished;
            pair.respond(Outcome::Done, operation, value);
            let failure = pair.receive(&[], false).unwrap_err();
            assert_eq!(failure.cause, Cause::RemoteOperation, "{finished} {operation:?} {value}");
            // What is outstanding can still be finished.
            assert!(std::iter::from_fn(|| pair.client.abandon()).count() >= 2);
        }
        let mut pair = Pair::new();
        pair.responses = vec![0xff; RESPONSE_BYTES];
        assert_eq!(pair.receive(&[], false).unwrap_err().cause, Cause::RemoteOperation);
    }

    #[test]
    fn data_for_freed_memory_fail() {
        for records in [false, true] {
            let (domain, memory) = local(8);
            let mut pair = Pair::new();
            pair.get(0, 8, scatter(&domain, &memory, &[(0, 8)]), None);
            pair.execute();
            drop(memory);
            assert_eq!(
                pair.receive(&[RESPONSE_BYTES, 8], records).unwrap_err().cause,
                Cause::LocalAccess
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_requests_see_the_memory_in_order(
            requests in proptest::collection::vec((0u8..4, 0u64..200, 0usize..40, any::<u8>()), 1..40),
            sizes in proptest::collection::vec(1usize..90, 1..6),
            records: bool,
        ) {
            let (domain, memory) = local(40 * 40);
            let mut pair = Pair::new();
            let mut model = pair.memory.clone();
            let (mut gets, mut scattered, mut fetches) = (Vec::new(), Vec::new(), Vec::new());
            for (i, (kind, address, length, byte)) in requests.iter().copied().enumerate() {
                let at = address as usize;
                let expected = model[at..at + length].to_vec();
                match kind {
                    0 => {
                        pair.put(address, &vec![byte; length], None);
                        model[at..at + length].fill(byte);
                    }
                    1 => {
                        let (unpack, found) = collector();
                        pair.get(address, length, Then::Unpack(unpack, length), None);
                        gets.push((found, expected));
                    }
                    2 => {
                        let parts: &[_] = if length == 0 { &[] } else { &[(40 * i, length)] };
                        pair.get(address, length, scatter(&domain, &memory, parts), None);
                        scattered.push((40 * i, expected));
                    }
                    _ => {
                        let old = u64::from_le_bytes(model[at..at + 8].try_into().unwrap());
                        fetches.push((pair.fetch_add(address, byte.into()), old));
                        model[at..at + 8].copy_from_slice(&old.wrapping_add(byte.into()).to_le_bytes());
                    }
                }
            }
            pair.execute();
            prop_assert!(pair.receive(&sizes, records).is_ok());
            prop_assert_eq!(pair.client.finished(), requests.len() as u64);
            prop_assert!(pair.memory == model);
            for (found, expected) in gets {
                prop_assert_eq!(&*found.borrow(), &expected);
            }
            for (offset, expected) in scattered {
                let mut found = vec![0; expected.len()];
                memory.read(offset, &mut found).unwrap();
                prop_assert_eq!(found, expected);
            }
            for (found, old) in fetches {
                prop_assert_eq!(found.get(), old);
            }
        }
    }
}
