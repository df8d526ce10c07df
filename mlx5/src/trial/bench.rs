//! What every test of a family needs.

use std::time::{Duration, Instant};

use crate::context::{Context, ProtectionDomain, Uar};
use crate::error::{Error, system};
use crate::memory::Buffer;
use crate::queue::completion::{Completion, CompletionKind, CompletionQueue, Polled};
use crate::queue::send::PostError;
use crate::rc::RcConfig;
use crate::values::{Access, Port, PortAddress};
use barewire_layouts::wqe::DataSegment;

/// The most time for a completion: more than all retries take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Retries end after some seconds: see [`RcPath::ack_timeout`](crate::RcPath::ack_timeout).
pub(super) const ACK_TIMEOUT: u8 = 14;
/// CQEs of the queue.
const ENTRIES: u32 = 512;
/// Bytes of the memory, a half for each of source and target.
const MEMORY: usize = 8 * 4096;
/// What a test does, in errors.
const OPERATION: &str = "sending through the device to itself";

/// A completion queue, and memory.
pub(super) struct Bench {
    pub(super) context: Context,
    /// The port, with the GID and the partition to test.
    port: Port,
    pub(super) domain: ProtectionDomain,
    pub(super) uar: Uar,
    pub(super) completions: CompletionQueue,
    pub(super) memory: Buffer,
}

/// Why a test failed.
pub(super) enum Failure {
    /// The objects exist, and the device does not do with them what it should.
    Wrong(String),
    /// Something was refused, perhaps for now only.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Failure {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Wrong(reason) => system(OPERATION, reason),
            Self::Refused(error) => error,
        }
    }
}

/// The failure of a test that ran, and whose result is wrong.
pub(super) fn failed(reason: impl Into<String>) -> Failure {
    Failure::Wrong(reason.into())
}

/// The failure of a post.
pub(super) fn posted<T>(result: Result<T, PostError>) -> Result<T, Failure> {
    result.map_err(|error| failed(error.to_string()))
}

/// The bytes of a message.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

impl Bench {
    pub(super) fn new(context: &Context, port: Port) -> Result<Self, Error> {
        let domain = ProtectionDomain::allocate(context)?;
        let uar = Uar::allocate(context)?;
        let completions = CompletionQueue::create(context, &uar, ENTRIES)?;
        let memory = Buffer::allocate(&domain, MEMORY, Access::all())?;
        Ok(Self { context: context.clone(), port, domain, uar, completions, memory })
    }

    pub(super) fn address(&self) -> PortAddress {
        self.port.address
    }

    /// The settings of queue pairs.
    pub(super) fn config(&self) -> RcConfig {
        RcConfig::default().send_blocks(64).port(Some(self.port))
    }

    /// The port, as settings name it.
    pub(super) fn port(&self) -> Port {
        self.port
    }

    pub(super) fn segment(&self, offset: usize, length: usize) -> Result<DataSegment, Failure> {
        let segment = self.memory.region().segment(offset, length);
        segment.ok_or_else(|| failed("the buffer is too short"))
    }

    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        self.memory.write(offset, bytes).map_err(|error| failed(error.to_string()))
    }

    /// Fails if the memory at `offset` is not `bytes`.
    pub(super) fn expect(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        let mut got = vec![0; bytes.len()];
        self.memory.read(offset, &mut got).map_err(|error| failed(error.to_string()))?;
        same(&got, bytes)
    }

    /// Waits for the next completion, at most `time`.
    pub(super) fn within(&mut self, time: Duration) -> Result<Option<Completion>, Failure> {
        let start = Instant::now();
        loop {
            match self.completions.poll().map(Polled::completion) {
                Some(Completion {
                    kind: CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure),
                    ..
                }) => return Err(failed(failure.to_string())),
                Some(completion) => return Ok(Some(completion)),
                None if start.elapsed() > time => return Ok(None),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Waits for the completion of a request.
    pub(super) fn sent(&mut self) -> Result<(), Failure> {
        match self.next()?.kind {
            CompletionKind::Send => Ok(()),
            kind => Err(failed(format!("it completed with {kind:?}"))),
        }
    }

    fn next(&mut self) -> Result<Completion, Failure> {
        self.within(TIMEOUT)?.ok_or_else(|| failed("it did not complete"))
    }

    /// Waits for the completions of a request and of the message that it sent, which is `bytes`:
    /// in its completion, or in the memory at `offset`.
    pub(super) fn exchanged(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let completion = self.next()?;
            match completion.kind {
                CompletionKind::Send => sent = true,
                CompletionKind::Receive if completion.byte_count as usize == bytes.len() => {
                    received = true;
                    match self.completions.inline_data() {
                        Some(data) => same(&data, bytes)?,
                        None => self.expect(offset, bytes)?,
                    }
                }
                kind => {
                    let length = completion.byte_count;
                    return Err(failed(format!("it completed with {kind:?}, {length} bytes")));
                }
            }
        }
        Ok(())
    }

    /// Waits for the next entry that is of a tag list, and returns what `take` makes of it. Fails
    /// if a request fails that completes to `sends`.
    pub(super) fn report<T>(
        &mut self,
        sends: &mut CompletionQueue,
        mut take: impl FnMut(Polled<'_>) -> Option<T>,
    ) -> Result<T, Failure> {
        let start = Instant::now();
        loop {
            if let Some(polled) = self.completions.poll() {
                let kind = polled.kind();
                return take(polled).ok_or_else(|| failed(format!("it completed with {kind:?}")));
            }
            if let Some(CompletionKind::SendError(failure)) =
                sends.poll().map(|polled| polled.completion().kind)
            {
                return Err(failed(failure.to_string()));
            }
            if start.elapsed() > TIMEOUT {
                return Err(failed("it did not complete"));
            }
            std::thread::yield_now();
        }
    }
}

fn same(got: &[u8], wanted: &[u8]) -> Result<(), Failure> {
    if got == wanted { Ok(()) } else { Err(failed("other bytes arrived")) }
}
