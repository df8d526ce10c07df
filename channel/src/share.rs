//! Cutting a message into one share per rail.

/// Shares begin at multiples of this, since NCCL's LL128 protocol needs aligned parts of 128 bytes
/// to be written in order.
const UNIT: u64 = 128;

/// Returns the bytes of every share but the last, which may be shorter: the smallest multiple of
/// 128 with which `rails` shares suffice. `rails` is 1 to 8.
#[inline(always)]
pub(crate) fn share_bytes(length: u64, rails: usize) -> u64 {
    // Each divisor is a constant, so that the compiler multiplies instead.
    let part = match rails {
        0 | 1 => length,
        2 => length.div_ceil(2),
        3 => length.div_ceil(3),
        4 => length.div_ceil(4),
        5 => length.div_ceil(5),
        6 => length.div_ceil(6),
        7 => length.div_ceil(7),
        _ => length.div_ceil(8),
    };
    part.wrapping_add(UNIT - 1) & !(UNIT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_message_in_units() {
        let lengths = (0..=4 * 1024).chain((1 << 30) - 130..=(1 << 30) + 130);
        for length in lengths {
            for rails in 1..=8 {
                let bytes = share_bytes(length, rails);
                assert_eq!(bytes % UNIT, 0);
                assert!(bytes * rails as u64 >= length, "{length} over {rails}");
                assert!(bytes < length.div_ceil(rails as u64) + UNIT);
            }
        }
    }
}
