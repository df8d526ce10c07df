//! Moves the payload of a rendezvous over a lane.

use barewire::{Cause, Completion, Endpoint, FlushMode, Hold, PostError, RemoteKey};

use super::buffer::Buffer;
use super::lanes::{Lane, Lanes};
use super::protocol::{Moved, Transfer};

/// Longest part of a payload that one post moves: other requests get their turn in between.
const PART: usize = 1 << 20;

/// A get or put in parts.
#[derive(Debug)]
pub(super) struct Mover {
    pub(super) transfer: Transfer<Buffer>,
    lane: Lane,
    key: RemoteKey,
    puts: bool,
    /// Bytes that were posted.
    posted: usize,
    /// All is posted, for puts also the flush.
    complete: bool,
    failed: Option<Cause>,
    /// Counts the posts under way.
    completion: Completion,
    /// Keeps the completion pending until the last post.
    hold: Option<Hold>,
}

/// What became of a [`Mover::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything is posted; the completion is awaited.
    Posted,
    /// No resources.
    Blocked,
    /// The transfer has ended.
    Ended(Moved),
}

impl Mover {
    /// Chooses the fastest lane that the peer's keys and this end have in common. `ended` is called
    /// inside progress when the last operation has ended. `None` if there is no such lane.
    pub(super) fn new(
        transfer: Transfer<Buffer>,
        puts: bool,
        lanes: &Lanes,
        ended: impl FnMut() + 'static,
    ) -> Option<Self> {
        let mut ended = ended;
        let (lane, key) = transfer
            .keys
            .iter()
            .filter_map(|(number, key)| {
                let (_, lane) = lanes.usable().find(|(at, _)| *at == usize::from(number))?;
                let limits = if puts { &lane.attributes.put } else { &lane.attributes.get };
                let able = limits.max_zcopy > 0 && limits.min_zcopy <= 1;
                let key = lane.domain.unpack_key(key).ok().filter(|_| able)?;
                Some((lane.clone(), key))
            })
            .max_by(|(a, _), (b, _)| a.attributes.bandwidth.total_cmp(&b.attributes.bandwidth))?;
        let completion = Completion::new(move |_| ended());
        let hold = Some(completion.hold());
        Some(Self {
            transfer,
            lane,
            key,
            puts,
            posted: 0,
            complete: false,
            failed: None,
            completion,
            hold,
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.lane.endpoint
    }

    /// Posts as much as there are resources for.
    pub(super) fn advance(&mut self) -> Progress {
        while !self.complete {
            match self.post() {
                Ok(()) => {}
                Err(PostError::NoResource) => return Progress::Blocked,
                Err(error) => {
                    self.failed = Some(self.cause(error));
                    self.finish();
                }
            }
        }
        if self.completion.pending() > 0 {
            return Progress::Posted;
        }
        let failed = self.completion.status().err().map(|error| error.cause);
        // The first cause: later operations only report that the endpoint has failed.
        Progress::Ended(failed.or(self.failed).map_or(Moved::Done, Moved::Failed))
    }

    fn post(&mut self) -> Result<(), PostError> {
        let Transfer { buffer, length, address, .. } = &self.transfer;
        if self.completion.status().is_err() {
            // What is posted now would only end in error, too.
            self.finish();
            return Ok(());
        }
        if self.posted == *length {
            if self.puts {
                let _ = self.lane.endpoint.flush(FlushMode::Remote, Some(&self.completion))?;
            }
            self.finish();
            return Ok(());
        }
        let limits = if self.puts { &self.lane.attributes.put } else { &self.lane.attributes.get };
        let part = (length - self.posted).min(limits.max_zcopy).min(PART);
        let remote = address.wrapping_add(self.posted as u64);
        let post = buffer.registered(&self.lane.domain, |memory, _| {
            let slice = [memory.slice(self.posted, part).map_err(|_| PostError::OutOfRange)?];
            let (endpoint, key) = (&self.lane.endpoint, &self.key);
            if self.puts {
                endpoint.put_zcopy(&slice, remote, key, Some(&self.completion))
            } else {
                endpoint.get_zcopy(&slice, remote, key, Some(&self.completion))
            }
        });
        let _ = post.map_err(|_| PostError::ForeignMemory)??;
        self.posted += part;
        Ok(())
    }

    /// Nothing more is posted.
    fn finish(&mut self) {
        self.complete = true;
        self.hold = None;
    }

    fn cause(&self, error: PostError) -> Cause {
        match error {
            PostError::EndpointFailed => {
                self.lane.endpoint.error().map_or(Cause::Flushed, |error| error.cause)
            }
            PostError::KeyExpired | PostError::AccessDenied | PostError::OutOfRange => {
                Cause::RemoteAccess
            }
            PostError::Closed | PostError::Forked => Cause::Canceled,
            _ => Cause::LocalOperation,
        }
    }
}
