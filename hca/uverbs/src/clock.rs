//! The page with which programs convert the time stamps of completions to wall-clock time
//! (mlx5-abi.h: `mlx5_ib_clock_info`).

use std::time::{SystemTime, UNIX_EPOCH};

use zerocopy::{Immutable, IntoBytes};

/// Returns the offset at which the page is mapped: command `MLX5_IB_MMAP_CLOCK_INFO`, version 1, in
/// pages of the kernel.
pub(crate) fn offset() -> u64 {
    (7 << 8) * barewire_hca::host_page() as u64
}
/// Frequency of the device's clock in kHz: it counts nanoseconds.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// `mlx5_ib_clock_info`.
#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct ClockInfo {
    sign: u32,
    reserved: u32,
    nsec: u64,
    cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
    overflow_period: u64,
}

/// A page that never changes: the device's clock runs with the kernel's and only its origin
/// differs.
#[derive(Debug)]
pub(crate) struct ClockPage {
    page: &'static Page,
}

#[derive(Debug)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl ClockPage {
    /// Creates the page for a device whose clock reads `now`.
    pub(crate) fn new(now: u64) -> Self {
        let day =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let info = ClockInfo {
            sign: 0,
            reserved: 0,
            nsec: day.wrapping_sub(now),
            cycles: 0,
            frac: 0,
            mult: 1,
            shift: 0,
            mask: u64::MAX,
            overflow_period: u64::MAX,
        };
        let mut page = Box::new(Page([0; 4096]));
        page.0[..size_of::<ClockInfo>()].copy_from_slice(info.as_bytes());
        Self { page: Box::leak(page) }
    }

    /// Returns its address, which stays valid until the process ends.
    pub(crate) fn address(&self) -> usize {
        self.page.0.as_ptr().addr()
    }
}

const _: () = assert!(size_of::<ClockInfo>() == 56);
