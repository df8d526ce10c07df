//! Strides of the WQEs of a striding queue (mlx5_ifc.h: `wq.log_wqe_num_of_strides`,
//! `wq.log_wqe_stride_size`).
//!
//! Each WQE of a queue of type [`WqType::LinkedListStriding`](super::rmp::WqType) or
//! [`WqType::CyclicStriding`](super::rmp::WqType) has the same number of strides of the same size.
//! In a queue for InfiniBand messages it has a data segment for each stride. A packet takes one
//! stride, and its completion names it; the device takes the next WQE once every stride of one is
//! taken.

use super::rmp::Wq;
use crate::prm::{View, ViewMut};

/// Number and size of the strides of a WQE, both powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    log_count: u8,
    log_bytes: u8,
}

impl Strides {
    /// log2 of the fewest strides of a WQE, on a device with `ext_stride_num_range` (rdma-core
    /// mlx5dv.h and linux mlx5_ib.h: `MLX5_EXT_MIN_SINGLE_WQE_LOG_NUM_STRIDES`).
    pub const LOG_COUNT_MIN: u8 = 3;
    /// log2 of the most strides of a WQE (mlx5_ib.h: `MLX5_MAX_SINGLE_WQE_LOG_NUM_STRIDES`).
    pub const LOG_COUNT_MAX: u8 = 16;
    /// log2 of the fewest bytes of a stride (mlx5_ib.h: `MLX5_MIN_SINGLE_STRIDE_LOG_NUM_BYTES`).
    pub const LOG_BYTES_MIN: u8 = 6;
    /// log2 of the most bytes of a stride (mlx5_ib.h: `MLX5_MAX_SINGLE_STRIDE_LOG_NUM_BYTES`).
    pub const LOG_BYTES_MAX: u8 = 13;
    /// Added to the field of the number, which is signed: -6 to 7.
    const LOG_COUNT_BIAS: u8 = 9;
    const LOG_COUNT_MASK: u8 = 0xf;

    /// Strides by log2 of their number and size; `None` if no device has them.
    #[inline]
    pub const fn new(log_count: u8, log_bytes: u8) -> Option<Self> {
        if log_count >= Self::LOG_COUNT_MIN
            && log_count <= Self::LOG_COUNT_MAX
            && log_bytes >= Self::LOG_BYTES_MIN
            && log_bytes <= Self::LOG_BYTES_MAX
        {
            Some(Self { log_count, log_bytes })
        } else {
            None
        }
    }

    /// Strides of a WQE.
    #[inline]
    pub const fn count(self) -> u32 {
        1 << self.log_count
    }

    /// Bytes of a stride.
    #[inline]
    pub const fn bytes(self) -> u32 {
        1 << self.log_bytes
    }

    /// Reads the strides of a striding queue; `None` for a number of strides below the least.
    pub fn read(wq: &View<'_, Wq>) -> Option<Self> {
        // Four bits, sign-extended, and then biased.
        let field = wq.get(Wq::LOG_WQE_NUM_OF_STRIDES);
        let sign = 1 << 3;
        let log_count = (field ^ sign) + Self::LOG_COUNT_BIAS - sign;
        Self::new(log_count, wq.get(Wq::LOG_WQE_STRIDE_SIZE) + Self::LOG_BYTES_MIN)
    }

    /// Writes the fields of a striding queue; its type is written separately.
    pub fn write(self, wq: &mut ViewMut<'_, Wq>) {
        let count = self.log_count.wrapping_sub(Self::LOG_COUNT_BIAS) & Self::LOG_COUNT_MASK;
        wq.set(Wq::LOG_WQE_NUM_OF_STRIDES, count)
            .set(Wq::LOG_WQE_STRIDE_SIZE, self.log_bytes - Self::LOG_BYTES_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::Layout;

    #[test]
    fn fields_byte_for_byte() {
        // UCX rc_mlx5_devx.c: 8 strides are -6, 16 are -5, 512 are 0; a stride of 4096 bytes is 6.
        for (log_count, log_bytes, byte, last) in
            [(3, 12, 0xa, 6), (4, 6, 0xb, 0), (9, 13, 0, 7), (16, 8, 7, 2), (8, 10, 0xf, 4)]
        {
            let strides = Strides::new(log_count, log_bytes).unwrap();
            let mut bytes = [0; Wq::BYTES];
            strides.write(&mut ViewMut::new(&mut bytes).unwrap());
            assert_eq!(bytes[0x26..0x28], [byte, last]);
            assert_eq!(Strides::read(&View::new(&bytes).unwrap()), Some(strides));
            assert_eq!((strides.count(), strides.bytes()), (1 << log_count, 1 << log_bytes));
        }
    }

    #[test]
    fn strides_that_no_device_has() {
        for (log_count, log_bytes) in [(2, 6), (17, 6), (3, 5), (3, 14)] {
            assert_eq!(Strides::new(log_count, log_bytes), None);
        }
        let mut bytes = [0; Wq::BYTES];
        // -7 and -8: four and two strides.
        for field in [9, 8] {
            ViewMut::<Wq>::new(&mut bytes).unwrap().set(Wq::LOG_WQE_NUM_OF_STRIDES, field);
            assert_eq!(Strides::read(&View::new(&bytes).unwrap()), None);
        }
    }
}
