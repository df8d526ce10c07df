//! How a bulk transfer is divided among rails.

use std::ops::Range;

/// Bytes of a piece at least; a shorter one costs more than it saves.
const SHORTEST: usize = 16 << 10;
/// Pieces begin at multiples of this, so that no two rails write to one cache line.
const ALIGNMENT: usize = 64;

/// Divides `length` bytes among rails in proportion to their bandwidths.
///
/// Returns a range for each rail, in order and without gaps. The range of a rail whose piece would
/// be shorter than 16 KiB is empty, and the fastest rail takes what is left.
///
/// ```
/// use barewire_wireup::plan::shares;
///
/// assert_eq!(shares(&[2e9, 1e9], 300 << 10), [0..200 << 10, 200 << 10..300 << 10]);
/// assert_eq!(shares(&[2e9, 1e9], 8 << 10), [0..8 << 10, 8 << 10..8 << 10]);
/// ```
pub fn shares(bandwidths: &[f64], length: usize) -> Vec<Range<usize>> {
    let sum: f64 = bandwidths.iter().sum();
    let fastest = (0..bandwidths.len()).max_by(|a, b| bandwidths[*a].total_cmp(&bandwidths[*b]));
    let mut lengths: Vec<usize> = bandwidths
        .iter()
        .map(|bandwidth| {
            let share = (length as f64 * bandwidth / sum) as usize / ALIGNMENT * ALIGNMENT;
            if share < SHORTEST { 0 } else { share }
        })
        .collect();
    if let Some(fastest) = fastest {
        let others: usize = lengths.iter().sum::<usize>() - lengths[fastest];
        lengths[fastest] = length.saturating_sub(others);
    }
    let mut start = 0;
    let ranges = lengths.into_iter().map(|length| {
        let range = start..start + length;
        start = range.end;
        range
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_cover_the_transfer_once_and_follow_the_bandwidths(
            bandwidths in prop::collection::vec(1e6f64..1e12, 1..6),
            length in 0usize..1 << 30,
        ) {
            let shares = shares(&bandwidths, length);
            prop_assert_eq!(shares.len(), bandwidths.len());
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, length));
            let sum: f64 = bandwidths.iter().sum();
            let fastest = bandwidths.iter().copied().fold(0.0, f64::max);
            for (share, bandwidth) in shares.iter().zip(&bandwidths) {
                let ideal = length as f64 * bandwidth / sum;
                let exact = share.len() as f64 >= ideal - ALIGNMENT as f64 && share.len() as f64 <= ideal;
                let short = share.is_empty() && ideal < (SHORTEST + ALIGNMENT) as f64;
                prop_assert!(exact || short || *bandwidth >= fastest, "{:?} of {}", share, ideal);
            }
        }
    }
}
