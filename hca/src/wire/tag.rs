//! The tag that devices with the same key append to each packet on the UDP wire.
//!
//! Any local user can send from an address of 127.0.0.0/8, and nothing in a RoCE packet is secret.
//! So each packet is followed by twelve bytes: `bwt`, the version 1, and a 64-bit keyed hash,
//! little-endian, over the version, both addresses and the packet (HighwayHash under a key of 256
//! bits). A replayed packet passes; like one that the network duplicated, it has a used sequence
//! number.

use std::net::IpAddr;

use highway::{HighwayHash, HighwayHasher};

use crate::address::gid;
use crate::key::Key;

const MARK: [u8; 4] = *b"bwt\x01";
/// Bytes of mark and hash.
pub(super) const BYTES: usize = MARK.len() + 8;

/// Makes and checks tags.
#[derive(Debug)]
pub(super) struct Tags(Key);

impl Tags {
    pub(super) fn new(key: Key) -> Self {
        Self(key)
    }

    /// Returns the tag of `frame`.
    pub(super) fn tag(&self, source: IpAddr, destination: IpAddr, frame: &[u8]) -> [u8; BYTES] {
        // The addresses and the mark have a fixed length, so that no two inputs are the same bytes.
        let mut before = [0; 36];
        before[..16].copy_from_slice(&gid(source));
        before[16..32].copy_from_slice(&gid(destination));
        before[32..].copy_from_slice(&MARK);
        let mut hasher = HighwayHasher::new(highway::Key(self.0.words()));
        hasher.append(&before);
        hasher.append(frame);
        let mut tag = [0; BYTES];
        tag[..4].copy_from_slice(&MARK);
        tag[4..].copy_from_slice(&hasher.finalize64().to_le_bytes());
        tag
    }

    /// Removes the tag of `frame`. Returns false if it has none or a wrong one.
    pub(super) fn take(&self, source: IpAddr, destination: IpAddr, frame: &mut Vec<u8>) -> bool {
        let Some((packet, tag)) = frame.split_last_chunk::<BYTES>() else { return false };
        let wanted = self.tag(source, destination, packet);
        // Constant time: no branch for each byte, so that timing does not reveal how many were
        // right.
        let different = tag.iter().zip(wanted).fold(0, |different, (&a, b)| different | a ^ b);
        let length = packet.len();
        frame.truncate(length);
        std::hint::black_box(different) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn tags() -> Tags {
        Tags::new(KEY.parse().unwrap())
    }

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([127, 7, 0, last])
    }

    /// Devices of other versions must produce the same bytes.
    #[test]
    fn golden_bytes() {
        let v6 = "fd00::1".parse().unwrap();
        let golden = [
            (v4(1), v4(2), &b""[..], GOLDEN_EMPTY),
            (v4(1), v4(2), b"sixteen bytes ok", GOLDEN_SIXTEEN),
            (v6, v6, b"a packet of another length", GOLDEN_IPV6),
        ];
        for (source, destination, packet, hash) in golden {
            let tag = [&b"bwt\x01"[..], &hash].concat();
            assert_eq!(tags().tag(source, destination, packet)[..], tag, "{packet:?}");
            let mut frame = [packet, &tag].concat();
            assert!(tags().take(source, destination, &mut frame));
            assert_eq!(frame, packet);
        }
    }

    const GOLDEN_EMPTY: [u8; 8] = [112, 39, 17, 15, 239, 255, 63, 0];
    const GOLDEN_SIXTEEN: [u8; 8] = [70, 105, 190, 236, 167, 150, 201, 126];
    const GOLDEN_IPV6: [u8; 8] = [53, 232, 21, 127, 155, 141, 53, 9];

    #[test]
    fn every_bit_both_addresses_and_the_key_count() {
        let packet = b"a packet of some bytes";
        let whole = [&packet[..], &tags().tag(v4(1), v4(2), packet)].concat();
        let takes = |tags: &Tags, source, destination, frame: &[u8]| {
            tags.take(source, destination, &mut frame.to_vec())
        };
        assert!(takes(&tags(), v4(1), v4(2), &whole));
        for bit in 0..whole.len() * 8 {
            let mut frame = whole.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(!takes(&tags(), v4(1), v4(2), &frame), "bit {bit}");
        }
        assert!(!takes(&tags(), v4(2), v4(1), &whole));
        assert!(!takes(&tags(), v4(1), v4(3), &whole));
        assert!(!takes(&Tags::new(Key::random().unwrap()), v4(1), v4(2), &whole));
        for length in 0..whole.len() {
            assert!(!takes(&tags(), v4(1), v4(2), &whole[..length]), "{length} bytes");
        }
    }
}
