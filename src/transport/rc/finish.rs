//! What happens when an operation is complete.

use std::sync::atomic::Ordering;

use super::{BUFFER, DATA};
use crate::error::OperationError;
use crate::panics;
use crate::transport::common::operation::Done;
use crate::transport::common::pool::Pool;
use crate::transport::common::registered::{Buffer, Region, Registered};

/// Finishes an operation whose completion was taken. `slot` is that of its result word.
#[inline(never)]
pub(crate) fn finish<R: Region>(
    buffers: &Pool<Registered<R>, BUFFER>,
    results: &Buffer<R>,
    done: Done,
    slot: u32,
    result: Result<(), OperationError>,
) {
    let completion = match done {
        Done::Notify(completion) | Done::Flushed(completion) => Some(completion),
        Done::Canceled(completion) => return completion.finish(Ok(())),
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
        Done::Fetch { result: value, completion } => {
            if result.is_ok()
                && let Some(word) = results.word(slot as usize * 8)
            {
                value.set(word.load(Ordering::Acquire));
            }
            completion
        }
        Done::Fetch32 { result: value, completion } => {
            if result.is_ok()
                && let Some(word) = results.word(slot as usize * 8)
            {
                let [a, b, c, d, ..] = word.load(Ordering::Acquire).to_ne_bytes();
                value.set(u32::from_be_bytes([a, b, c, d]).into());
            }
            completion
        }
    };
    if let Some(completion) = completion {
        completion.finish(result);
    }
}
