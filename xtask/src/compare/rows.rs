//! The comparisons: a row for each measure, with both command lines.

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
}

impl Measure {
    pub(super) fn is_better(self, ratio: f64, limit: f64) -> bool {
        if matches!(self, Self::Latency | Self::Time) { ratio <= limit } else { ratio >= limit }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency | Self::Time => "us",
            Self::Rate => "M msg/s",
            Self::Bandwidth => "GB/s",
        }
    }

    /// Formats a value with its unit.
    pub(super) fn shown(self, value: f64) -> f64 {
        match self {
            Self::Latency | Self::Time => value,
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
    /// `ucx_perftest` of Debian.
    Ucx(&'static [&'static str]),
    /// `ucx_perftest` of the newer UCX.
    NewUcx(&'static [&'static str]),
    /// Two threads of this program that exchange two cache lines.
    PingPong,
    /// `iperf3`, one stream.
    Iperf,
    /// Our bench `sockets`.
    Sockets(&'static [&'static str]),
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

const M: u32 = 1_000_000;

macro_rules! posix {
    ($($word:literal),*) => {
        &["-d", "memory", "-x", "posix", $($word),*]
    };
}

/// Returns the first row of the table of shared memory.
const fn shm(
    name: &'static str,
    what: &'static str,
    measure: Measure,
    (must, aim): (f64, f64),
    iterations: u32,
    ours: &'static [&'static str],
    theirs: &'static [&'static str],
) -> Row {
    let (ours, theirs) = (Program::Perf("shm", ours), Program::Ucx(theirs));
    Row { name, what, measure, must: Some(must), aim: Some(aim), iterations, ours, theirs }
}

const AM_LAT_8: Program = Program::Perf("tcp", &["-t", "am_lat", "-s", "8"]);
const AM_BW_8K: Program = Program::Perf("tcp", &["-t", "am_bw", "-s", "8192"]);

/// Returns a row of `tcp`, over the loopback interface.
const fn tcp(
    name: &'static str,
    what: &'static str,
    measure: Measure,
    (must, aim): (Option<f64>, f64),
    iterations: u32,
    ours: Program,
    theirs: Program,
) -> Row {
    Row { name, what, measure, must, aim: Some(aim), iterations, ours, theirs }
}

/// Shared memory, against Debian's UCX.
const SHARED: [Row; 9] = [
    shm(
        "shm_am_lat_8",
        "shm: am short 8 B, latency",
        Measure::Latency,
        (0.97, 0.85),
        M,
        &["-t", "am_lat", "-s", "8"],
        posix!("-t", "am_lat", "-s", "8"),
    ),
    shm(
        "shm_put_lat_8",
        "shm: put short 8 B, latency",
        Measure::Latency,
        (1.0, 0.9),
        M,
        &["-t", "put_lat", "-s", "8"],
        posix!("-t", "put_lat", "-s", "8"),
    ),
    shm(
        "shm_am_bw_8",
        "shm: am short 8 B, rate",
        Measure::Rate,
        (1.5, 3.0),
        20 * M,
        &["-t", "am_bw", "-s", "8"],
        posix!("-t", "am_bw", "-s", "8"),
    ),
    shm(
        "shm_am_bcopy_lat_1k",
        "shm: am bcopy 1 KiB, latency",
        Measure::Latency,
        (0.95, 0.85),
        M,
        &["-t", "am_lat", "-s", "1024", "-D", "bcopy"],
        posix!("-t", "am_lat", "-s", "1024", "-D", "bcopy"),
    ),
    shm(
        "shm_am_bcopy_bw_8k",
        "shm: am bcopy 8 KiB, bandwidth",
        Measure::Bandwidth,
        (1.1, 1.4),
        M,
        &["-t", "am_bw", "-s", "8192", "-D", "bcopy"],
        posix!("-t", "am_bw", "-s", "8192", "-D", "bcopy"),
    ),
    shm(
        "shm_fadd",
        "shm: fetch-add 64 bit, time",
        Measure::Time,
        (1.0, 0.9),
        2 * M,
        &["-t", "fadd"],
        posix!("-t", "fadd", "-s", "8"),
    ),
    shm(
        "shm_cswap",
        "shm: compare-swap 64 bit, time",
        Measure::Time,
        (1.0, 0.9),
        2 * M,
        &["-t", "cswap"],
        posix!("-t", "cswap", "-s", "8"),
    ),
    Row {
        name: "cma_put_bw_64k",
        what: "cma: put 64 KiB, bandwidth",
        measure: Measure::Bandwidth,
        must: Some(1.0),
        aim: Some(1.1),
        iterations: M / 10,
        ours: Program::Perf("cma", &["-t", "put_bw", "-s", "64K", "-D", "zcopy"]),
        theirs: Program::Ucx(&[
            "-d", "memory", "-x", "cma", "-t", "put_bw", "-s", "65536", "-D", "zcopy",
        ]),
    },
    Row {
        name: "cma_put_bw_1m",
        what: "cma: put 1 MiB, bandwidth",
        measure: Measure::Bandwidth,
        must: Some(1.0),
        aim: Some(1.1),
        iterations: M / 100,
        ours: Program::Perf("cma", &["-t", "put_bw", "-s", "1M", "-D", "zcopy"]),
        theirs: Program::Ucx(&[
            "-d", "memory", "-x", "cma", "-t", "put_bw", "-s", "1048576", "-D", "zcopy",
        ]),
    },
];

/// The same against the newer UCX.
const fn against_new(row: Row, name: &'static str, what: &'static str) -> Row {
    let theirs = match row.theirs {
        Program::Ucx(words) => Program::NewUcx(words),
        other => other,
    };
    Row { name, what, theirs, ..row }
}

pub(super) const ROWS: &[Row] = &[
    SHARED[0],
    SHARED[1],
    SHARED[2],
    SHARED[3],
    SHARED[4],
    SHARED[5],
    SHARED[6],
    SHARED[7],
    SHARED[8],
    Row {
        name: "shm_am_lat_8_bare",
        what: "shm: am short 8 B, latency, against a bare ping-pong of two cache lines",
        must: None,
        aim: Some(1.1),
        theirs: Program::PingPong,
        ..SHARED[0]
    },
    against_new(SHARED[0], "shm_am_lat_8_new", "shm: am short 8 B, latency, against UCX 1.22"),
    against_new(SHARED[1], "shm_put_lat_8_new", "shm: put short 8 B, latency, against UCX 1.22"),
    against_new(SHARED[2], "shm_am_bw_8_new", "shm: am short 8 B, rate, against UCX 1.22"),
    against_new(
        SHARED[3],
        "shm_am_bcopy_lat_1k_new",
        "shm: am bcopy 1 KiB, latency, against UCX 1.22",
    ),
    against_new(
        SHARED[4],
        "shm_am_bcopy_bw_8k_new",
        "shm: am bcopy 8 KiB, bandwidth, against UCX 1.22",
    ),
    against_new(SHARED[5], "shm_fadd_new", "shm: fetch-add 64 bit, time, against UCX 1.22"),
    against_new(SHARED[6], "shm_cswap_new", "shm: compare-swap 64 bit, time, against UCX 1.22"),
    against_new(SHARED[7], "cma_put_bw_64k_new", "cma: put 64 KiB, bandwidth, against UCX 1.22"),
    against_new(SHARED[8], "cma_put_bw_1m_new", "cma: put 1 MiB, bandwidth, against UCX 1.22"),
    tcp(
        "tcp_am_lat_8",
        "tcp: am short 8 B, latency",
        Measure::Latency,
        (Some(0.95), 0.8),
        M / 10,
        AM_LAT_8,
        Program::Ucx(&["-d", "lo", "-x", "tcp", "-t", "am_lat", "-s", "8"]),
    ),
    tcp(
        "tcp_am_lat_8_sockets",
        "tcp: am short 8 B, latency, against bare sockets that spin",
        Measure::Latency,
        (None, 1.1),
        M / 10,
        AM_LAT_8,
        Program::Sockets(&["bare"]),
    ),
    tcp(
        "tcp_am_bw_8",
        "tcp: am short 8 B, rate",
        Measure::Rate,
        (Some(8.0), 30.0),
        M / 5,
        Program::Perf("tcp", &["-t", "am_bw", "-s", "8"]),
        Program::Ucx(&["-d", "lo", "-x", "tcp", "-t", "am_bw", "-s", "8"]),
    ),
    tcp(
        "tcp_am_bw_8k",
        "tcp: am short 8 KiB, bandwidth",
        Measure::Bandwidth,
        (Some(1.5), 2.5),
        M / 5,
        AM_BW_8K,
        Program::Ucx(&["-d", "lo", "-x", "tcp", "-t", "am_bw", "-s", "8192"]),
    ),
    tcp(
        "tcp_am_bw_8k_iperf3",
        "tcp: am short 8 KiB, bandwidth, against iperf3",
        Measure::Bandwidth,
        (None, 0.9),
        M / 5,
        AM_BW_8K,
        Program::Iperf,
    ),
    tcp(
        "tcp_am_zcopy_bw_1m_iperf3",
        "tcp: am zcopy 1 MiB, bandwidth, against iperf3",
        Measure::Bandwidth,
        (Some(0.8), 0.95),
        M / 200,
        Program::Perf("tcp", &["-t", "am_bw", "-s", "1M", "-D", "zcopy"]),
        Program::Iperf,
    ),
    tcp(
        "tcp_am_lat_8_many",
        "tcp: am short 8 B, latency, 100 busy of 2000 connections against one",
        Measure::Latency,
        (Some(1.3), 1.1),
        M / 10,
        Program::Sockets(&["many", "2000", "100"]),
        Program::Sockets(&["many", "1", "1"]),
    ),
];

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
