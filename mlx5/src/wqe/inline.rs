//! WQEs that carry their payload.

use barewire_layouts::tag::TagHeader;
use barewire_layouts::wqe::{DS, InlineHeader};
use zerocopy::transmute;

use super::{Body, Sink, Unit};

/// Payload bytes in the unit of the inline header.
const FIRST: usize = DS - size_of::<InlineHeader>();

/// The remote address if there is one, then inline header, prefix and payload. Parts of the payload
/// that are not whole units are assembled in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline<'a> {
    remote: Option<Unit>,
    first: Option<Unit>,
    middle: &'a [[u8; DS]],
    last: Option<Unit>,
}

impl<'a> Inline<'a> {
    /// `payload` after an inline header. An empty payload has no inline segment, as in libmlx5.
    #[inline(always)]
    pub(crate) fn new(remote: Option<Unit>, payload: &'a [u8]) -> Self {
        Self::after::<false>(remote, transmute!(InlineHeader::new(payload.len() as u32)), payload)
    }

    /// A tag matching header and `payload`, after an inline header of both lengths.
    #[inline(always)]
    pub(crate) fn tagged(header: &TagHeader, payload: &'a [u8]) -> Self {
        let length = (size_of::<TagHeader>() + payload.len()) as u32;
        let (leading, four) = Unit::tagged(InlineHeader::new(length), header);
        Self::after::<true>(Some(leading), four, payload)
    }

    /// `payload` after 4 bytes, given as they are in memory, and a unit in front of them. Without a
    /// payload, the 4 bytes are left out unless `ALWAYS`.
    #[inline(always)]
    fn after<const ALWAYS: bool>(leading: Option<Unit>, four: u32, payload: &'a [u8]) -> Self {
        let first = |bytes: u128| Some(Unit::from_number(u128::from(four) | bytes << 32));
        match payload.split_first_chunk::<FIRST>() {
            Some((head, rest)) => {
                let [a, b, c]: [[u8; 4]; 3] = transmute!(*head);
                let high: u64 = transmute!([b, c]);
                let first = Some(Unit::from_words(
                    u64::from(four) | u64::from(u32::from_le_bytes(a)) << 32,
                    high,
                ));
                let (middle, last) = rest_of(payload, rest);
                Self { remote: leading, first, middle, last }
            }
            None if !ALWAYS && payload.is_empty() => {
                Self { remote: leading, first: None, middle: &[], last: None }
            }
            None => {
                Self { remote: leading, first: first(up_to_16(payload)), middle: &[], last: None }
            }
        }
    }

    /// A prefix and `payload` after an inline header. The prefix, given as its first 4 and other 8
    /// bytes, fills the unit of the header.
    #[inline(always)]
    pub(crate) fn prefixed(remote: Option<Unit>, low: u32, high: u64, payload: &'a [u8]) -> Self {
        let header: u32 = transmute!(InlineHeader::new((FIRST + payload.len()) as u32));
        let first = Unit::from_words(u64::from(header) | u64::from(low) << 32, high);
        let (middle, last) = rest_of(payload, payload);
        Self { remote, first: Some(first), middle, last }
    }
}

impl Body for Inline<'_> {
    #[inline(always)]
    fn units(&self) -> u32 {
        let fixed = u32::from(self.remote.is_some())
            + u32::from(self.first.is_some())
            + u32::from(self.last.is_some());
        fixed + self.middle.len() as u32
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        for unit in [self.remote, self.first].into_iter().flatten() {
            sink.unit(unit);
        }
        for unit in self.middle {
            sink.unit(Unit::load(unit));
        }
        if let Some(last) = self.last {
            sink.unit(last);
        }
    }
}

/// The part `rest` at the end of `payload` as whole units, and the remainder.
#[inline(always)]
fn rest_of<'a>(payload: &[u8], rest: &'a [u8]) -> (&'a [[u8; DS]], Option<Unit>) {
    let (middle, tail) = rest.as_chunks::<DS>();
    if tail.is_empty() {
        return (middle, None);
    }
    // If there are at least 16 bytes, the tail is the last 16 shifted, without a byte loop.
    let last = match payload.last_chunk::<DS>() {
        Some(last) => u128::from_le_bytes(*last) >> (8 * (DS - tail.len())),
        None => up_to_16(tail),
    };
    (middle, Some(Unit::from_number(last)))
}

/// At most 16 bytes as a number in memory order, padded with zeros. Two overlapping loads replace a
/// loop.
#[inline(always)]
fn up_to_16(bytes: &[u8]) -> u128 {
    let shift = |by: usize| 8 * by as u32;
    let length = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        u128::from(u64::from_le_bytes(*first))
            | u128::from(u64::from_le_bytes(*last)) << shift(length - 8)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let number = u64::from(u32::from_le_bytes(*first))
            | u64::from(u32::from_le_bytes(*last)) << shift(length - 4);
        u128::from(number)
    } else if let [first, .., last] = bytes {
        let number = u32::from(*first)
            | u32::from(bytes[length / 2]) << shift(length / 2)
            | u32::from(*last) << shift(length - 1);
        u128::from(number)
    } else {
        bytes.first().map_or(0, |byte| u128::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use barewire_layouts::wqe::RemoteAddressSegment;

    use super::*;

    #[test]
    fn short_runs_of_every_length() {
        let bytes: [u8; 16] = core::array::from_fn(|at| at as u8 + 1);
        for length in 0..=16 {
            let mut wanted = [0; 16];
            wanted[..length].copy_from_slice(&bytes[..length]);
            assert_eq!(up_to_16(&bytes[..length]).to_le_bytes(), wanted, "{length}");
        }
    }

    struct Collect(Vec<u8>);

    impl Sink for Collect {
        fn unit(&mut self, unit: Unit) {
            let mut place = core::mem::MaybeUninit::<Unit>::uninit();
            // SAFETY: a local of the size and alignment of a unit, read after it was written.
            self.0.extend(unsafe {
                unit.store(core::ptr::NonNull::from(&mut place).cast());
                core::mem::transmute::<Unit, [u8; 16]>(place.assume_init())
            });
        }
    }

    /// Compares every length, with and without remote address and prefix, with the concatenated
    /// bytes.
    #[test]
    fn payloads_of_every_length() {
        let bytes: [u8; 240] = core::array::from_fn(|at| at as u8 + 1);
        let remote = RemoteAddressSegment::new(0x1122, 0x33);
        // Miri needs a minute for all lengths; every 13th still covers every remainder of a unit.
        let step = if cfg!(miri) { 13 } else { 1 };
        for (remote, prefix) in [(None, None), (Some(remote), None), (None, Some([0xaa; 12]))] {
            for length in (0..=220).step_by(step) {
                let payload = &bytes[..length];
                let leading = remote.as_ref().map(Unit::remote);
                let body = prefix.map_or_else(
                    || Inline::new(leading, payload),
                    |prefix| {
                        let (low, high) = Unit::split_prefix(prefix);
                        Inline::prefixed(leading, low, high, payload)
                    },
                );
                let mut wanted = vec![];
                if remote.is_some() {
                    wanted.extend([0, 0, 0, 0, 0, 0, 0x11, 0x22, 0, 0, 0, 0x33, 0, 0, 0, 0]);
                }
                let carried = length + if prefix.is_some() { 12 } else { 0 };
                if carried > 0 {
                    wanted.extend((carried as u32 | 1 << 31).to_be_bytes());
                    wanted.extend(prefix.iter().flatten());
                    wanted.extend(&bytes[..length]);
                    wanted.resize(wanted.len().next_multiple_of(16), 0);
                }
                let mut collect = Collect(Vec::new());
                body.emit(&mut collect);
                assert_eq!(collect.0, wanted, "{length} bytes, {remote:?}, {prefix:?}");
                assert_eq!(body.units() as usize * 16, wanted.len());
            }
        }
    }
}
