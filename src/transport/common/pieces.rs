//! Payloads in several pieces.

use crate::base::capability::{AmBcopy, AmShort};
use crate::base::error::PostError;
use crate::transport::common::message::SHORT_HEADER;

/// Payloads up to this size are gathered on the stack, longer ones in a buffer of the interface.
const SMALL: usize = 256;

/// Implements `am_short_iov` for a transport whose `am_short` takes `limit` bytes, and whose longer
/// messages look the same to the receiver.
pub(crate) fn am_short_iov(
    endpoint: &(impl AmShort + AmBcopy),
    limit: usize,
    id: u8,
    header: u64,
    pieces: &[&[u8]],
) -> Result<(), PostError> {
    let length = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
    if length > limit {
        return Err(PostError::too_long(length, limit));
    }
    if length <= SMALL {
        let mut payload = [0; SMALL];
        return endpoint.am_short(id, header, gather(&mut payload, pieces)?);
    }
    let pack = |buffer: &mut [u8]| match buffer.split_first_chunk_mut::<SHORT_HEADER>() {
        Some((front, payload)) => {
            *front = header.to_le_bytes();
            gather(payload, pieces).map_or(usize::MAX, |payload| SHORT_HEADER + payload.len())
        }
        None => usize::MAX,
    };
    endpoint.am_bcopy(id, pack).map(drop)
}

/// Copies the pieces, one after the other, to the front of `buffer` and returns that part.
pub(crate) fn gather<'b>(buffer: &'b mut [u8], pieces: &[&[u8]]) -> Result<&'b [u8], PostError> {
    let mut length = 0;
    for piece in pieces {
        let Some(place) = buffer.get_mut(length..).and_then(|rest| rest.get_mut(..piece.len()))
        else {
            let all = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
            return Err(PostError::too_long(all, buffer.len()));
        };
        place.copy_from_slice(piece);
        length += piece.len();
    }
    Ok(buffer.get(..length).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fill_a_buffer_and_no_more() {
        let mut buffer = [0; 5];
        assert_eq!(gather(&mut buffer, &[]), Ok(&[][..]));
        assert_eq!(gather(&mut buffer, &[b"ab", b"", b"cde"]), Ok(&b"abcde"[..]));
        let limit = PostError::TooLong { length: 6, limit: 5 };
        assert_eq!(gather(&mut buffer, &[b"abcd", b"ef"]), Err(limit));
    }
}
