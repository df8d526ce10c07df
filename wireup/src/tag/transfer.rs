//! Moves the payload of a rendezvous over one or several rails.

use std::ops::Range;

use barewire::{Cause, Completion, Endpoint, FlushMode, Hold, PostError, RemoteKey};

use super::buffer::Buffer;
use super::lanes::{Lane, Lanes};
use super::protocol::{Moved, Transfer};
use crate::plan::shares;

/// Longest part of a payload that one post moves: other requests get their turn in between.
const PART: usize = 1 << 20;

/// A lane, and the share of the payload that it carries.
#[derive(Debug)]
struct Rail {
    lane: Lane,
    key: RemoteKey,
    /// What is left to be posted.
    left: Range<usize>,
}

/// A get or put in parts.
#[derive(Debug)]
pub(super) struct Mover {
    pub(super) transfer: Transfer<Buffer>,
    /// Rails of one transport, each with something to carry.
    rails: Vec<Rail>,
    /// The rail that posts now.
    current: usize,
    puts: bool,
    /// All is posted, for puts also the flush.
    complete: bool,
    failed: Option<Cause>,
    /// Counts the posts under way.
    completion: Completion,
    /// Keeps the completion pending until the last post.
    hold: Option<Hold>,
}

/// Divides a payload among the rails of the fastest one's transport. The others are dropped.
fn divide(rails: &mut Vec<Rail>, length: usize) {
    let bandwidth = |rail: &Rail| rail.lane.attributes.bandwidth;
    let fastest = rails.iter().max_by(|a, b| bandwidth(a).total_cmp(&bandwidth(b)));
    let transport = fastest.map(|rail| rail.lane.endpoint.transport());
    rails.retain(|rail| Some(rail.lane.endpoint.transport()) == transport);
    let bandwidths: Vec<_> = rails.iter().map(bandwidth).collect();
    for (rail, share) in rails.iter_mut().zip(shares(&bandwidths, length)) {
        rail.left = share;
    }
    rails.retain(|rail| !rail.left.is_empty());
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
    /// Divides the payload among the lanes that the peer's keys and this end have in common and
    /// that are of the fastest one's transport, in proportion to their bandwidths. `ended` is
    /// called inside progress when the last operation has ended. `None` if there is no such lane.
    pub(super) fn new(
        transfer: Transfer<Buffer>,
        puts: bool,
        lanes: &Lanes,
        ended: impl FnMut() + 'static,
    ) -> Option<Self> {
        let mut ended = ended;
        let able = transfer.keys.iter().filter_map(|(number, key)| {
            let (_, lane) = lanes.usable().find(|(at, _)| *at == usize::from(number))?;
            let limits = if puts { &lane.attributes.put } else { &lane.attributes.get };
            let able = limits.max_zcopy > 0 && limits.min_zcopy <= 1;
            let key = lane.domain.unpack_key(key).ok().filter(|_| able)?;
            Some(Rail { lane: lane.clone(), key, left: 0..transfer.length })
        });
        let mut rails: Vec<_> = able.collect();
        if rails.len() > 1 {
            divide(&mut rails, transfer.length);
        }
        rails.first()?;
        let completion = Completion::new(move |_| ended());
        let hold = Some(completion.hold());
        let (current, complete, failed) = (0, false, None);
        Some(Self { transfer, rails, current, puts, complete, failed, completion, hold })
    }

    /// The endpoint that posts now.
    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        self.rails.get(self.current).map(|rail| &rail.lane.endpoint)
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
        // After an error, what is posted would only end in error, too.
        let Some(rail) = self.rails.get(self.current).filter(|_| self.completion.status().is_ok())
        else {
            self.finish();
            return Ok(());
        };
        let Rail { lane, key, left } = rail;
        if left.is_empty() {
            if self.puts {
                let _ = lane.endpoint.flush(FlushMode::Remote, Some(&self.completion))?;
            }
            self.current += 1;
            return Ok(());
        }
        let limits = if self.puts { &lane.attributes.put } else { &lane.attributes.get };
        let (from, part) = (left.start, left.len().min(limits.max_zcopy).min(PART));
        let remote = self.transfer.address.wrapping_add(from as u64);
        let post = self.transfer.buffer.registered(&lane.domain, |memory, _| {
            let slice = [memory.slice(from, part).map_err(|_| PostError::OutOfRange)?];
            if self.puts {
                lane.endpoint.put_zcopy(&slice, remote, key, Some(&self.completion))
            } else {
                lane.endpoint.get_zcopy(&slice, remote, key, Some(&self.completion))
            }
        });
        let _ = post.map_err(|_| PostError::ForeignMemory)??;
        if let Some(rail) = self.rails.get_mut(self.current) {
            rail.left.start += part;
        }
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
                let error = self.endpoint().and_then(Endpoint::error);
                error.map_or(Cause::Flushed, |error| error.cause)
            }
            PostError::KeyExpired | PostError::AccessDenied | PostError::OutOfRange => {
                Cause::RemoteAccess
            }
            PostError::Closed | PostError::Forked => Cause::Canceled,
            _ => Cause::LocalOperation,
        }
    }
}
