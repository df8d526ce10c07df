//! Writes that are not acknowledged, when the rail that carries them has failed.

use barewire_layouts::wqe::Opcode;
use barewire_mlx5::WqeIndex;

use super::{MAX_INLINE, NO_OWNER, Pair, Queues, SEND_BLOCKS};

/// The bit of a segment's length that says that data follows (`MLX5_INLINE_SEG`).
const INLINE: u32 = 1 << 31;

impl Queues {
    /// The writes that were posted and are not acknowledged. For a sender, after all completions
    /// were taken.
    pub(crate) fn doubtful(&self) -> Doubt {
        let of_pair = |pair: &Pair| {
            let send = &pair.queues.send;
            let open = (send.posted() as u16).wrapping_sub(pair.tail);
            let share = |at: u16| {
                let index = pair.tail.wrapping_add(at);
                let bytes = send.ring_bytes(WqeIndex(index), 1);
                Share::from_wqe(&bytes, pair.owners[usize::from(index) % SEND_BLOCKS])
            };
            (pair.immediates, (0..open).filter_map(share).collect())
        };
        Doubt { pairs: self.pairs().map(of_pair).collect() }
    }
}

/// A write that was posted: a share of a message, or the record of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) remote: u64,
    /// `None` for a message of a group.
    pub(crate) immediate: Option<u32>,
    /// The bytes, if the WQE has them.
    pub(crate) inline: Option<[u8; MAX_INLINE]>,
    pub(crate) owner: u16,
}

impl Share {
    /// Reads what [`Queues::write_share`], [`Queues::write_plain`] or [`Queues::write_inline`] has
    /// written. Returns `None`
    /// for other WQEs.
    fn from_wqe(bytes: &[u8], owner: u16) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        let long = |at| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let has_immediate = word(0) as u8 == Opcode::RdmaWriteImmediate as u8;
        if !has_immediate && owner == NO_OWNER {
            return None;
        }
        // A share without bytes has no data segment: two units instead of three.
        let (address, length) = if word(4) & 0x3f < 3 { (0, 0) } else { (long(40), word(32)) };
        let immediate = has_immediate.then(|| word(12));
        let (remote, data) = (long(16), bytes.get(36..).and_then(<[u8]>::first_chunk));
        if length & INLINE == 0 {
            return Some(Self { address, length, remote, immediate, inline: None, owner });
        }
        let inline = data.copied();
        Some(Self { address: 0, length: length & !INLINE, remote, immediate, inline, owner })
    }
}

/// Writes that must go over one queue pair in this order, because the immediate of the last one
/// says that all have arrived. Without an immediate, the group is not complete.
pub(crate) type Part = Vec<Share>;

/// The writes over a rail of which the sender does not know whether they arrived.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// By queue pair: the immediates posted so far, and the writes that are not acknowledged.
    pairs: Vec<(u64, Vec<Share>)>,
}

impl Doubt {
    /// The writes.
    pub(crate) fn shares(&mut self) -> impl Iterator<Item = &mut Share> {
        self.pairs.iter_mut().flat_map(|(_, shares)| shares)
    }

    /// Determines by the immediates that the peer has taken on each queue pair which writes have
    /// `arrived`: those up to the last of these immediates. Returns the others.
    pub(crate) fn resolve(
        self,
        taken: &[u32],
        mut arrived: impl FnMut(Share),
    ) -> Result<Vec<Part>, &'static str> {
        if taken.len() != self.pairs.len() {
            return Err("a FENCE for other queue pairs");
        }
        let mut missing = Vec::new();
        for ((posted, shares), taken) in self.pairs.into_iter().zip(taken) {
            let lost = (posted as u32).wrapping_sub(*taken) as usize;
            let open = shares.iter().filter(|share| share.immediate.is_some()).count();
            // Fewer than were acknowledged, or more than were posted.
            let mut there = open.checked_sub(lost);
            let there = there.as_mut().ok_or("a FENCE whose counts contradict acknowledgements")?;
            let mut part = Part::new();
            for share in shares {
                if *there > 0 {
                    *there -= usize::from(share.immediate.is_some());
                    arrived(share);
                    continue;
                }
                part.push(share);
                if share.immediate.is_some() {
                    missing.push(std::mem::take(&mut part));
                }
            }
            missing.extend(Some(part).filter(|part| !part.is_empty()));
        }
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(immediate: Option<u32>) -> Share {
        Share { address: 0, length: 0, remote: 0, immediate, inline: None, owner: 0 }
    }

    fn doubt(posted: u64, open: u32) -> Doubt {
        Doubt { pairs: vec![(posted, (0..open).map(|at| share(Some(at))).collect())] }
    }

    #[test]
    fn counts_tell_which_shares_arrived() {
        let arrived = |posted, open, taken| {
            let mut arrived = 0;
            let missing = doubt(posted, open).resolve(&[taken], |_| arrived += 1)?;
            assert_eq!(missing.len() as u32 + arrived, open);
            Ok::<_, &str>(arrived)
        };
        assert_eq!(arrived(10, 3, 7), Ok(0));
        assert_eq!(arrived(10, 3, 9), Ok(2));
        assert_eq!(arrived(10, 3, 10), Ok(3));
        arrived(10, 3, 6).unwrap_err();
        arrived(10, 3, 11).unwrap_err();
        // The count wraps.
        assert_eq!(arrived(1 << 32, 2, u32::MAX), Ok(1));
        assert_eq!(arrived((1 << 32) + 1, 2, 0), Ok(1));
        doubt(1, 1).resolve(&[], |_| {}).unwrap_err();
    }

    /// Of a group, everything up to an immediate that was taken has arrived, and nothing is known
    /// of what follows the last one.
    #[test]
    fn groups_stay_together() {
        let writes = [None, None, Some(1), None, Some(2), Some(3), None, None];
        for (taken, there, lengths) in
            [(2, 0, &[3, 2, 1, 2][..]), (3, 3, &[2, 1, 2]), (4, 5, &[1, 2]), (5, 6, &[2])]
        {
            let shares = writes.map(share).to_vec();
            let doubt = Doubt { pairs: vec![(5, shares)] };
            let mut arrived = 0;
            let missing = doubt.resolve(&[taken], |_| arrived += 1).unwrap();
            assert_eq!(arrived, there);
            assert_eq!(missing.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        }
        let complete = Doubt { pairs: vec![(5, writes.map(share)[..6].to_vec())] };
        assert_eq!(complete.resolve(&[5], |_| {}), Ok(Vec::new()));
    }
}
