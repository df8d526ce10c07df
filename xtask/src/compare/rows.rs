//! The comparisons: a row of `benches/compare.txt` for each measure, with both command lines.

use std::sync::LazyLock;

/// The measured value of a run, and whether less or more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The median latency of a message, in microseconds: less is better.
    Latency,
    /// The mean time of an operation over the whole run, in microseconds: less is better. For
    /// operations shorter than the clock's resolution.
    Time,
    /// Messages per second over the whole run: more is better.
    Rate,
    /// Bytes per second over the whole run: more is better.
    Bandwidth,
    /// Bytes that something takes: less is better.
    Bytes,
    /// The time of a call of the driver, in nanoseconds: less is better.
    Call,
}

impl Measure {
    pub(super) fn is_better(self, ratio: f64, limit: f64) -> bool {
        if self.is_less_better() { ratio <= limit } else { ratio >= limit }
    }

    pub(super) fn is_less_better(self) -> bool {
        matches!(self, Self::Latency | Self::Time | Self::Bytes | Self::Call)
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency | Self::Time => "us",
            Self::Rate => "M msg/s",
            Self::Bandwidth => "GB/s",
            Self::Bytes => "B",
            Self::Call => "ns",
        }
    }

    /// Formats a value with its unit.
    pub(super) fn shown(self, value: f64) -> f64 {
        match self {
            Self::Latency | Self::Time | Self::Bytes | Self::Call => value,
            Self::Rate => value / 1e6,
            Self::Bandwidth => value / 1e9,
        }
    }
}

/// The program of one side, with the client's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `barewire perf`: the transport, and further arguments.
    Perf(&'static str, &'static [&'static str]),
    /// `ucx_perftest` of Debian. Variables of its environment come first.
    Ucx(&'static [&'static str]),
    /// `ucx_perftest` of the newer UCX.
    NewUcx(&'static [&'static str]),
    /// Our bench `connect`.
    Connect(&'static [&'static str]),
    /// `benches/peers/ucp.c` with the value of `UCX_TLS`, over Debian's UCX.
    Ucp(&'static str, &'static str),
    /// The same over the newer UCX.
    NewUcp(&'static str, &'static str),
    /// Two threads of this program that exchange two cache lines.
    PingPong,
    /// `iperf3`, one stream.
    Iperf,
    /// Our bench `sockets`.
    Sockets(&'static [&'static str]),
    /// A program on the software HCA, with its arguments but for the number of calls.
    OnDevice(OnDevice, &'static [&'static str]),
}

/// Programs that time calls on the software HCA. It runs on the program's CPU while the program
/// yields, so that it does not disturb the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDevice {
    /// The bench `mlx5_0`.
    Ours,
    /// `benches/peers/libmlx5.c`.
    Libmlx5,
    /// `benches/peers/uct.c`.
    Uct,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// For `cargo xtask compare NAME`: selects the rows whose names begin with it.
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) measure: Measure,
    /// Our value divided by theirs: the limit and the aim.
    pub(super) must: Option<f64>,
    pub(super) aim: Option<f64>,
    /// Environment of both sides.
    pub(super) iterations: u32,
    pub(super) ours: Program,
    pub(super) theirs: Program,
}

/// The rows of the file.
pub(super) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = include_str!("../../../benches/compare.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| Row::parse(line).unwrap_or_else(|| panic!("not a row: {line}"))).collect()
});

impl Row {
    fn parse(line: &'static str) -> Option<Self> {
        let fields: Vec<&str> = line.split(" | ").collect();
        let [name, what, measure, must, aim, iterations, ours, theirs] = fields[..] else {
            return None;
        };
        let measure = match measure {
            "latency" => Measure::Latency,
            "time" => Measure::Time,
            "rate" => Measure::Rate,
            "bandwidth" => Measure::Bandwidth,
            "bytes" => Measure::Bytes,
            "call" => Measure::Call,
            _ => return None,
        };
        let ratio = |text: &str| if text == "-" { Some(None) } else { text.parse().ok().map(Some) };
        let (must, aim, iterations) = (ratio(must)?, ratio(aim)?, iterations.parse().ok()?);
        let (ours, theirs) = (Program::parse(ours)?, Program::parse(theirs)?);
        Some(Self { name, what, measure, must, aim, iterations, ours, theirs })
    }
}

impl Program {
    fn parse(text: &'static str) -> Option<Self> {
        let words: &'static [&'static str] = text.split(' ').collect::<Vec<_>>().leak();
        Some(match words {
            ["perf", transport, more @ ..] => Self::Perf(transport, more),
            ["ucx", more @ ..] => Self::Ucx(more),
            ["new_ucx", more @ ..] => Self::NewUcx(more),
            ["connect", more @ ..] => Self::Connect(more),
            ["ucp", transports, what] => Self::Ucp(transports, what),
            ["new_ucp", transports, what] => Self::NewUcp(transports, what),
            ["ping_pong"] => Self::PingPong,
            ["iperf3"] => Self::Iperf,
            ["sockets", more @ ..] => Self::Sockets(more),
            ["mlx5_0", more @ ..] => Self::OnDevice(OnDevice::Ours, more),
            ["libmlx5", more @ ..] => Self::OnDevice(OnDevice::Libmlx5, more),
            ["uct", more @ ..] => Self::OnDevice(OnDevice::Uct, more),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_a_must_is_at_least_as_good_as_no_change() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[at + 1..].iter().all(|other| other.name != row.name), "{}", row.name);
            if let (Some(must), Some(aim)) = (row.must, row.aim) {
                assert!(
                    row.measure.is_better(aim, must),
                    "{}: the aim is better than the must",
                    row.name
                );
            }
        }
    }
}
