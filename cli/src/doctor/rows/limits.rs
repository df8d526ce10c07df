//! Queues at their limits.

use barewire::{Completion, Endpoint, Flags, PostError, Posted};

use super::super::outcome::{Checked, ensure};
use super::super::target::Target;
use super::{pattern, session};
use crate::session::Remote;

/// The longest message.
const LONG: usize = 16 << 20;
/// Endpoints of one interface.
const ENDPOINTS: usize = 64;

/// Posts until the queue is full, sends the longest slice list, a long message, and opens many
/// endpoints.
pub(in super::super) fn limits(target: &Target) -> Checked {
    const DURING: &str = "a full queue";
    let mut session = session(target)?;
    let attributes = session.attributes().clone();
    let mut found = Vec::new();
    let endpoint = session.endpoint.clone();
    if attributes.flags.contains(Flags::PUT_ZCOPY) {
        let (own, source) = (session.allocate(LONG)?, session.allocate(LONG)?);
        let Remote { address, key } = session.exchange(&own, LONG)?;
        let mut depth = 0_u64;
        loop {
            match endpoint.put_short(&depth.to_ne_bytes(), address, &key) {
                Ok(()) => depth += 1,
                Err(PostError::NoResource) => break,
                Err(error) => return Err(error.into()),
            }
        }
        session.flush(DURING, depth * 8)?;
        let word = own.load_u64(0)?;
        ensure(word + 1 == depth, || format!("write {word} of {depth} is the last that arrived"))?;
        found.push(format!("{depth} writes in the queue"));

        let count = attributes.put.max_iov.min(64);
        let bytes = pattern(1, 64 * count);
        source.write(0, &bytes)?;
        let slices =
            (0..count).map(|at| source.slice(64 * at, 64)).collect::<Result<Vec<_>, _>>()?;
        let mut put = |slices: &[_], bytes: &[u8]| -> Checked<()> {
            let completion = Completion::counter();
            let post = || endpoint.put_zcopy(slices, address, &key, Some(&completion));
            if session.wait.post(DURING, post)? == Posted::InProgress {
                session.wait.complete(DURING, &completion, bytes.len() as u64)?;
            }
            session.flush(DURING, bytes.len() as u64)?;
            let mut read = vec![0; bytes.len()];
            own.read(0, &mut read)?;
            ensure(read == bytes, || format!("{} bytes arrived wrong", bytes.len()))
        };
        put(&slices, &bytes)?;
        found.push(format!("{count} slices"));
        if attributes.put.max_zcopy >= LONG {
            let bytes = pattern(5, LONG);
            source.write(0, &bytes)?;
            put(&[source.slice(0, LONG)?], &bytes)?;
            found.push(format!("a message of {} MiB", LONG >> 20));
        }
    }
    if attributes.flags.contains(Flags::CONNECT_TO_EP) {
        let count = ENDPOINTS.min(attributes.max_endpoints.saturating_sub(2) as usize);
        let endpoints = (0..count).map(|_| Endpoint::new(&session.interface));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        found.push(format!("{} more endpoints", endpoints.len()));
    }
    Ok(found.join(", "))
}
