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

/// The same against the newer UCX, with another limit and aim.
const fn against_new_within(
    row: Row,
    name: &'static str,
    what: &'static str,
    (must, aim): (f64, f64),
) -> Row {
    let row = against_new(row, name, what);
    Row { must: Some(must), aim: Some(aim), ..row }
}

/// The same against the newer UCX.
const fn against_new(row: Row, name: &'static str, what: &'static str) -> Row {
    let theirs = match row.theirs {
        Program::Ucx(words) => Program::NewUcx(words),
        Program::Ucp(transports, what) => Program::NewUcp(transports, what),
        other => other,
    };
    Row { name, what, theirs, ..row }
}

/// Returns a row of links and tagged messages, which have the same must on every transport.
const fn wired(
    name: &'static str,
    what: &'static str,
    measure: Measure,
    (must, aim): (Option<f64>, Option<f64>),
    iterations: u32,
    ours: Program,
    theirs: Program,
) -> Row {
    Row { name, what, measure, must, aim, iterations, ours, theirs }
}

const LESS: (Option<f64>, Option<f64>) = (Some(1.0), Some(0.8));
const MORE: (Option<f64>, Option<f64>) = (Some(1.0), Some(1.2));
const SOONER: (Option<f64>, Option<f64>) = (Some(0.7), Some(0.4));

/// Links and tagged messages, against UCX's endpoints and tags.
const WIRED: [Row; 11] = [
    wired(
        "wire_address",
        "wire-up: address of self, shm, cma and tcp over one device",
        Measure::Bytes,
        (None, None),
        2,
        Program::Connect(&["address", "self,shm,cma,tcp/lo"]),
        Program::Ucp("self,posix,cma,tcp", "address"),
    ),
    wired(
        "wire_connect_shm",
        "wire-up: shm, from connect to the first message",
        Measure::Latency,
        SOONER,
        500,
        Program::Connect(&["time", "shm,cma"]),
        Program::Ucp("posix,cma", "time"),
    ),
    wired(
        "wire_connect_tcp",
        "wire-up: tcp, from connect to the first message",
        Measure::Latency,
        SOONER,
        200,
        Program::Connect(&["time", "tcp/lo"]),
        Program::Ucp("tcp", "time"),
    ),
    wired(
        "wire_memory_shm",
        "wire-up: shm, resident memory per endpoint",
        Measure::Bytes,
        (None, None),
        200,
        Program::Connect(&["memory", "shm,cma"]),
        Program::Ucp("posix,cma", "memory"),
    ),
    wired(
        "wire_memory_tcp",
        "wire-up: tcp, resident memory per endpoint",
        Measure::Bytes,
        (None, None),
        200,
        Program::Connect(&["memory", "tcp/lo"]),
        Program::Ucp("tcp", "memory"),
    ),
    wired(
        "wire_tag_lat_8_shm",
        "tags: shm, 8 B, latency",
        Measure::Latency,
        LESS,
        M / 2,
        Program::Perf("shm", &["-t", "tag_lat", "-s", "8"]),
        Program::Ucx(&["UCX_TLS=posix,cma", "-t", "tag_lat", "-s", "8"]),
    ),
    wired(
        "wire_tag_lat_8_tcp",
        "tags: tcp, 8 B, latency",
        Measure::Latency,
        LESS,
        M / 10,
        Program::Perf("tcp", &["-t", "tag_lat", "-s", "8"]),
        Program::Ucx(&["UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "-t", "tag_lat", "-s", "8"]),
    ),
    wired(
        "wire_tag_bw_64k_shm",
        "tags: shm, 64 KiB, bandwidth",
        Measure::Bandwidth,
        MORE,
        M / 10,
        Program::Perf("shm", &["-t", "tag_bw", "-s", "64K"]),
        Program::Ucx(&["UCX_TLS=posix,cma", "-t", "tag_bw", "-s", "65536"]),
    ),
    wired(
        "wire_tag_bw_1m_shm",
        "tags: shm, 1 MiB, bandwidth",
        Measure::Bandwidth,
        MORE,
        M / 100,
        Program::Perf("shm", &["-t", "tag_bw", "-s", "1M"]),
        Program::Ucx(&["UCX_TLS=posix,cma", "-t", "tag_bw", "-s", "1048576"]),
    ),
    wired(
        "wire_tag_bw_64k_tcp",
        "tags: tcp, 64 KiB, bandwidth",
        Measure::Bandwidth,
        MORE,
        M / 50,
        Program::Perf("tcp", &["-t", "tag_bw", "-s", "64K"]),
        Program::Ucx(&["UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "-t", "tag_bw", "-s", "65536"]),
    ),
    wired(
        "wire_tag_bw_1m_tcp",
        "tags: tcp, 1 MiB, bandwidth",
        Measure::Bandwidth,
        MORE,
        M / 500,
        Program::Perf("tcp", &["-t", "tag_bw", "-s", "1M"]),
        Program::Ucx(&["UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "-t", "tag_bw", "-s", "1048576"]),
    ),
];

/// Calls that a run of a program on the software HCA times.
const CALLS: u32 = 16_384;
/// The limit and the aim of the driver's times, relative to libmlx5 and to UCX.
const OF_LIBMLX5: (Option<f64>, Option<f64>) = (Some(0.5), Some(0.25));
const OF_UCX: (Option<f64>, Option<f64>) = (Some(0.7), Some(0.5));

/// Returns a row of the driver's times.
const fn call(
    name: &'static str,
    what: &'static str,
    (must, aim): (Option<f64>, Option<f64>),
    iterations: u32,
    ours: &'static [&'static str],
    (peer, theirs): (OnDevice, &'static [&'static str]),
) -> Row {
    let (ours, theirs) = (Program::OnDevice(OnDevice::Ours, ours), Program::OnDevice(peer, theirs));
    Row { name, what, measure: Measure::Call, must, aim, iterations, ours, theirs }
}

macro_rules! of_libmlx5 {
    ($name:literal, $what:literal, $calls:expr, $ours:literal, $theirs:literal) => {
        call(
            $name,
            concat!("driver: ", $what),
            OF_LIBMLX5,
            $calls,
            &["devx", concat!("driver.", $ours)],
            (OnDevice::Libmlx5, &["mlx5_0", $theirs]),
        )
    };
}

macro_rules! of_ucx {
    ($name:literal, $what:literal, $operation:literal) => {
        call(
            $name,
            concat!("rc_mlx5: ", $what, ", against UCX rc_mlx5"),
            OF_UCX,
            CALLS,
            &["devx", concat!("api.", $operation)],
            (OnDevice::Uct, &["rc_mlx5", "mlx5_0:1", $operation]),
        )
    };
}

/// Times of single calls, beside libmlx5 and UCX.
const CALLED: [Row; 11] = [
    of_libmlx5!(
        "driver_write_8",
        "RDMA write, 8 B inline, against ibv_wr_*",
        CALLS,
        "write_8",
        "wr_write_8"
    ),
    of_libmlx5!(
        "driver_write_8_post",
        "RDMA write, 8 B inline, against ibv_post_send",
        CALLS,
        "write_8",
        "post_write_8"
    ),
    of_libmlx5!(
        "driver_write_sge",
        "RDMA write, one SGE, against ibv_wr_*",
        CALLS,
        "write_sge",
        "wr_write_sge"
    ),
    of_libmlx5!(
        "driver_batch",
        "one of 16 writes by one doorbell, against ibv_wr_*",
        CALLS / 16,
        "batch",
        "wr_batch"
    ),
    of_libmlx5!(
        "driver_poll",
        "CQ poll, nothing there, against ibv_poll_cq",
        CALLS,
        "poll",
        "poll"
    ),
    of_libmlx5!(
        "driver_reap",
        "one send CQE polled and reaped, against ibv_poll_cq",
        CALLS,
        "reap",
        "reap"
    ),
    of_ucx!("driver_put_short_8", "put_short, 8 B", "put_short_8"),
    of_ucx!("driver_put_zcopy", "put_zcopy, 4 KiB, with completion", "put_zcopy"),
    of_ucx!("driver_am_short_8", "am_short, 8 B header and 8 B", "am_short_8"),
    of_ucx!("driver_finish", "progress that finishes one put_zcopy", "finish"),
    // Missed. The time of a message in ns, 64 at a time, beside 15.2 of UCX:
    // - received in a buffer: 22.6, in huge pages 20.4;
    // - and the line of the next buffer requested (PREFETCHT0): 21.2;
    // - received in the CQE and copied to the buffer: 16.6, in huge pages 15.2;
    // - received and handled in the CQE, as it is now: 13.8;
    // - received in a buffer whose bytes are not read: 13.9.
    // The rest is the CQEs, the list of WQEs, and the first call after a turn of the device.
    of_ucx!("driver_receive", "progress, per am_short received", "receive"),
];

macro_rules! against_new {
    ($at:literal, $name:literal, $what:literal) => {
        against_new(WIRED[$at], $name, concat!($what, ", against UCX 1.22"))
    };
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
        must: Some(1.15),
        aim: Some(1.1),
        theirs: Program::PingPong,
        ..SHARED[0]
    },
    against_new_within(
        SHARED[0],
        "shm_am_lat_8_new",
        "shm: am short 8 B, latency, against UCX 1.22",
        (0.90, 0.80),
    ),
    against_new_within(
        SHARED[1],
        "shm_put_lat_8_new",
        "shm: put short 8 B, latency, against UCX 1.22",
        (0.95, 0.85),
    ),
    against_new_within(
        SHARED[2],
        "shm_am_bw_8_new",
        "shm: am short 8 B, rate, against UCX 1.22",
        (2.0, 3.0),
    ),
    against_new_within(
        SHARED[3],
        "shm_am_bcopy_lat_1k_new",
        "shm: am bcopy 1 KiB, latency, against UCX 1.22",
        (0.90, 0.80),
    ),
    against_new(
        SHARED[4],
        "shm_am_bcopy_bw_8k_new",
        "shm: am bcopy 8 KiB, bandwidth, against UCX 1.22",
    ),
    against_new(SHARED[5], "shm_fadd_new", "shm: fetch-add 64 bit, time, against UCX 1.22"),
    against_new_within(
        SHARED[6],
        "shm_cswap_new",
        "shm: compare-swap 64 bit, time, against UCX 1.22",
        (0.90, 0.80),
    ),
    against_new_within(
        SHARED[7],
        "cma_put_bw_64k_new",
        "cma: put 64 KiB, bandwidth, against UCX 1.22",
        (1.05, 1.10),
    ),
    against_new_within(
        SHARED[8],
        "cma_put_bw_1m_new",
        "cma: put 1 MiB, bandwidth, against UCX 1.22",
        (1.05, 1.10),
    ),
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
    CALLED[0],
    CALLED[1],
    CALLED[2],
    CALLED[3],
    CALLED[4],
    CALLED[5],
    CALLED[6],
    CALLED[7],
    CALLED[8],
    CALLED[9],
    CALLED[10],
    WIRED[0],
    WIRED[1],
    WIRED[2],
    WIRED[3],
    WIRED[4],
    WIRED[5],
    WIRED[6],
    WIRED[7],
    WIRED[8],
    WIRED[9],
    WIRED[10],
    against_new!(
        0,
        "wire_address_new",
        "wire-up: address of self, shm, cma and tcp over one device"
    ),
    against_new!(1, "wire_connect_shm_new", "wire-up: shm, from connect to the first message"),
    against_new!(2, "wire_connect_tcp_new", "wire-up: tcp, from connect to the first message"),
    against_new!(3, "wire_memory_shm_new", "wire-up: shm, resident memory per endpoint"),
    against_new!(4, "wire_memory_tcp_new", "wire-up: tcp, resident memory per endpoint"),
    against_new!(5, "wire_tag_lat_8_shm_new", "tags: shm, 8 B, latency"),
    against_new!(6, "wire_tag_lat_8_tcp_new", "tags: tcp, 8 B, latency"),
    against_new!(7, "wire_tag_bw_64k_shm_new", "tags: shm, 64 KiB, bandwidth"),
    against_new!(8, "wire_tag_bw_1m_shm_new", "tags: shm, 1 MiB, bandwidth"),
    against_new!(9, "wire_tag_bw_64k_tcp_new", "tags: tcp, 64 KiB, bandwidth"),
    against_new!(10, "wire_tag_bw_1m_tcp_new", "tags: tcp, 1 MiB, bandwidth"),
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
