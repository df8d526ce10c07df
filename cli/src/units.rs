//! Times, sizes and rates as text.

use std::time::Duration;

/// A value with three significant digits in a suitable unit: `scaled(1234.0, 1000.0, ["B", "kB"])`
/// is `1.23 kB`.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", units[unit])
}

/// `8 B`, `8.19 kB`, `67.1 MB`.
pub(crate) fn bytes(count: u64) -> String {
    if count < 1000 {
        format!("{count} B")
    } else {
        scaled(count as f64, 1000.0, &["B", "kB", "MB", "GB", "TB"])
    }
}

/// `1.23 us`, `45.6 ms`, `7.89 s`.
pub(crate) fn time(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    if nanoseconds < 1000 {
        format!("{nanoseconds} ns")
    } else {
        scaled(nanoseconds as f64, 1000.0, &["ns", "us", "ms", "s"])
    }
}

/// The bandwidth as `1.23 GB/s`; `-` if either is zero.
pub(crate) fn rate(count: u64, time: Duration) -> String {
    if count == 0 || time.is_zero() {
        return "-".into();
    }
    scaled(count as f64 / time.as_secs_f64(), 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// The message rate as `310 k msg/s`; `-` if either is zero.
pub(crate) fn message_rate(count: u64, time: Duration) -> String {
    if count == 0 || time.is_zero() {
        return "-".into();
    }
    scaled(count as f64 / time.as_secs_f64(), 1000.0, &["msg/s", "k msg/s", "M msg/s", "G msg/s"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_can_read_it() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(8192), "8.19 kB");
        assert_eq!(bytes(64 << 20), "67.1 MB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(time(Duration::from_nanos(999)), "999 ns");
        assert_eq!(time(Duration::from_nanos(1234)), "1.23 us");
        assert_eq!(time(Duration::from_micros(45_678)), "45.7 ms");
        assert_eq!(time(Duration::from_secs(789)), "789 s");
        assert_eq!(rate(2_000_000_000, Duration::from_secs(1)), "2.00 GB/s");
        assert_eq!(rate(0, Duration::from_secs(1)), "-");
        assert_eq!(rate(1, Duration::ZERO), "-");
        assert_eq!(message_rate(310_000, Duration::from_secs(1)), "310 k msg/s");
    }
}
