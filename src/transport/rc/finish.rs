//! What happens when an operation is complete.

use super::{BUFFER, DATA};
use crate::base::error::OperationError;
use crate::base::panics;
use crate::transport::common::operation::Done;
use crate::transport::common::pool::{Lease, Pool};
use crate::transport::common::registered::{Region, Registered};

/// Finishes an operation whose completion was taken. `collect` reads a result word and returns it to
/// its pool.
#[inline(never)]
pub(crate) fn finish<R: Region>(
    buffers: &Pool<Registered<R>, BUFFER>,
    collect: impl FnOnce(Lease) -> u64,
    done: Done,
    result: Result<(), OperationError>,
) {
    let completion = match done {
        Done::Notify(completion) | Done::Flushed(completion) => Some(completion),
        Done::Canceled(completion) => return completion.finish_canceled(),
        Done::Release { buffer } => return buffers.give(buffer),
        Done::ReleaseNotify { buffer, completion } => {
            buffers.give(buffer);
            Some(completion)
        }
        Done::Unpack { buffer, length, unpack, mut completion } => {
            let mut buffer = buffers.adopt(buffer);
            if result.is_ok()
                && let Some(data) = buffer.bytes()[DATA..].get(..length as usize)
            {
                let finish = || {
                    if let Some(completion) = completion.take() {
                        completion.finish(result);
                    }
                };
                panics::or_else(|| unpack.call(data), finish);
            }
            completion
        }
        Done::Fetch { word, result: value, completion } => {
            let fetched = collect(word);
            if result.is_ok() {
                value.set(fetched);
            }
            completion
        }
        Done::Fetch32 { word, result: value, completion } => {
            let [a, b, c, d, ..] = collect(word).to_ne_bytes();
            if result.is_ok() {
                value.set(u32::from_be_bytes([a, b, c, d]).into());
            }
            completion
        }
    };
    if let Some(completion) = completion {
        completion.finish(result);
    }
}
