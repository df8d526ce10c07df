//! Arguments of `barewire perf`: the letters of ucx_perftest with their meaning, and additional
//! ones.

use super::{CpuList, PORT, count, cpus, scaled, size};
use crate::test::{Layout, Test};
use barewire_tcp::HostAddress;
use clap::{Args, Parser};
use std::path::PathBuf;
use std::time::Duration;

/// The sizes of the pieces of a message in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

/// More pieces than any transport accepts.
pub(crate) const MOST_PIECES: usize = 64;

fn sizes(text: &str) -> Result<Sizes, String> {
    let pieces: Vec<usize> = text.split(',').map(size).collect::<Result<_, _>>()?;
    if pieces.len() > MOST_PIECES {
        return Err(format!("at most {MOST_PIECES} pieces make a message"));
    }
    let whole = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(*piece));
    whole.map(|_| Sizes(pieces)).ok_or_else(|| "the message is too large".to_owned())
}

/// A series of message sizes, each a multiple of the previous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep(pub(crate) Vec<usize>);

impl Default for Sweep {
    /// The sizes of a plot.
    fn default() -> Self {
        Self((3..=16).map(|power| 1 << power).collect())
    }
}

fn sweep(text: &str) -> Result<Sweep, String> {
    const FORM: &str = "expected FROM:TO or FROM:TO:FACTOR, e.g. 8:64K or 1:1M:4";
    let (first, last, factor) = match *text.split(':').collect::<Vec<_>>() {
        [first, last] => (size(first)?, size(last)?, 2),
        [first, last, factor] => (size(first)?, size(last)?, scaled(factor, 1000)? as usize),
        _ => return Err(FORM.into()),
    };
    if first > last {
        return Err(format!("FROM ({first}) is greater than TO ({last}); {FORM}"));
    }
    if first == 0 || factor < 2 {
        return Err(FORM.into());
    }
    let next = |size: &usize| size.checked_mul(factor).filter(|next| *next <= last);
    Ok(Sweep(std::iter::successors(Some(first), next).collect()))
}

fn rank(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rank) if (0.0..=100.0).contains(&rank) => Ok(rank),
        _ => Err("expected a number from 0 to 100".into()),
    }
}

/// The most time for a cell of a table or a size of a series, unless `--time` gives another.
pub(crate) const CELL: Duration = Duration::from_millis(500);

fn seconds(text: &str) -> Result<Duration, String> {
    let digits = text.strip_suffix('s').unwrap_or(text);
    match digits.parse().map(Duration::try_from_secs_f64) {
        Ok(Ok(time)) if !time.is_zero() => Ok(time),
        _ => Err("expected seconds, e.g. 2 or 0.1".into()),
    }
}

/// Host memory, the only supported kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostMemory;

fn memory(text: &str) -> Result<HostMemory, String> {
    match text {
        "host" | "host,host" => Ok(HostMemory),
        _ => Err("only 'host' memory can be sent".into()),
    }
}

/// The arguments of one test, on the command line or in a line of a batch file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TestArgs {
    /// What to measure [default: am_lat]
    #[arg(short = 't', long)]
    pub(crate) test: Option<Test>,
    /// Transport [default: rc_mlx5]
    #[arg(short = 'x', long)]
    pub(crate) transport: Option<String>,
    /// Device [default: the transport's first]
    #[arg(short = 'd', long)]
    pub(crate) device: Option<String>,
    /// How to send [default: the first that accepts the size]
    #[arg(short = 'D', long)]
    pub(crate) layout: Option<Layout>,
    /// Message size in bytes (K, M and G are powers of 1024), or the sizes of its pieces: 16,48,8K;
    /// of atomics 4 or 8 [default: 8]
    #[arg(short = 's', long = "size", value_name = "SIZES", value_parser = sizes)]
    pub(crate) sizes: Option<Sizes>,
    /// Distance between the starts of a zcopy message's pieces in memory [default: pieces are
    /// adjacent]
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size)]
    pub(crate) stride: Option<usize>,
    /// Messages to measure [default: 100K, however long they take; with --all and in a series as
    /// many as --time allows]
    #[arg(short = 'n', long, value_parser = count, allow_negative_numbers = true)]
    pub(crate) iterations: Option<u64>,
    /// Messages to send before measuring [default: 1K, at most a tenth of the measured ones]
    #[arg(short = 'w', long, value_parser = count, allow_negative_numbers = true)]
    pub(crate) warm_up: Option<u64>,
    /// Zero-copy sends, gets and fetching atomics in flight at once; the table calls this the
    /// window size, as ucx_perftest does, and JSON `outstanding` [default: 1]
    #[arg(short = 'O', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) outstanding: Option<u32>,
    /// Active messages of a stream that the receiver has not acknowledged; 0 for any number. JSON
    /// has it as `window`
    #[arg(short = 'W', long, value_name = "COUNT")]
    pub(crate) window: Option<u32>,
    /// Bytes of a zcopy active message in its header [default: 8, if the transport accepts as many]
    #[arg(short = 'H', long, value_name = "BYTES", value_parser = size)]
    pub(crate) header: Option<usize>,
    /// Rank of the percentile in the table
    #[arg(short = 'R', long, value_name = "RANK", value_parser = rank)]
    pub(crate) rank: Option<f64>,
    /// The target does not progress in one-sided tests
    #[arg(short = 'o', long)]
    pub(crate) passive: bool,
    /// Kind of memory: only host
    #[arg(short = 'm', long, value_name = "KIND", value_parser = memory)]
    pub(crate) memory: Option<HostMemory>,
}

/// A line of a batch file. The name of the test is at the position of a program name.
#[derive(Debug, Parser)]
#[command(disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    test: TestArgs,
}

impl TestArgs {
    /// Parses a line of a batch file: the words after the name of the test. Omitted arguments are
    /// inherited from `self`.
    pub(crate) fn refined(&self, line: &[&str]) -> Result<Self, clap::Error> {
        let Line { test: line } = Line::try_parse_from(line)?;
        let outer = self.clone();
        Ok(Self {
            test: line.test.or(outer.test),
            transport: line.transport.or(outer.transport),
            device: line.device.or(outer.device),
            layout: line.layout.or(outer.layout),
            sizes: line.sizes.or(outer.sizes),
            stride: line.stride.or(outer.stride),
            iterations: line.iterations.or(outer.iterations),
            warm_up: line.warm_up.or(outer.warm_up),
            outstanding: line.outstanding.or(outer.outstanding),
            window: line.window.or(outer.window),
            header: line.header.or(outer.header),
            rank: line.rank.or(outer.rank),
            passive: line.passive || outer.passive,
            memory: line.memory.or(outer.memory),
        })
    }
}

#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  barewire perf --all                                     # every transport
  barewire perf -x shm -t put_bw -D zcopy -s 64K -O 16    # one test
  barewire perf -x tcp -t am_lat --sweep 8:8K -f -v       # sizes, as CSV
  barewire perf --all -t put_lat --sweep 8:64K --plot latency.svg
  barewire perf -x tcp --listen -a 192.0.2.1 --key-file job.key
  barewire perf -x tcp -t am_lat 192.0.2.1 --key-file job.key
  printf '%s\\n' 'lat -t am_lat' 'bw -t put_bw -s 64K -n 2K' > tests.txt
  barewire perf -x shm -b tests.txt                       # tests lat and bw
perftest's -a is --sweep 2:8M, and its --report_gbits has no counterpart: JSON has bytes per \
second.

A single test sends 100K messages and has no limit of time: on a busy machine, or over the \
software HCA, choose fewer, such as -n 2K. Times of busy CPUs vary from one test to the next by \
more than a factor of 10: compare those of an idle machine only.

Letters mean what they mean to ucx_perftest. Without HOST and --listen both ends run here, the \
server in a second process; as one of two ranks (mpirun -n 2, srun -n 2) rank 0 is the server \
and rank 1 measures.

Without a key, a server serves its own user on this machine, over a unix socket. With a key, it \
listens on TCP and serves those who know it. It takes the tests, their sizes and counts from the \
client, within --max-memory and --max-messages. What it is told itself, the client must agree \
with. A client that fails or is refused is a warning, and the server waits for the next one; \
after one that succeeds it ends.

Each line of a batch file is a test: its name, then words of this command line. Several files \
are combined, every line of one with every line of the next.

CSV has times in microseconds, bandwidth in MiB per second and rates in messages per second, as \
that of ucx_perftest, and sizes of a series in bytes. Lines that begin with # are no rows: the \
counters of the endpoint behind each test, and notes.")]
pub(crate) struct PerfArgs {
    /// Host of the server to measure against
    #[arg(conflicts_with_all = ["listen", "loopback"])]
    pub(crate) host: Option<String>,
    /// Run as the server until the tests of one client have succeeded
    #[arg(long, conflicts_with_all = [
        "iterations", "warm_up", "time", "json", "csv", "batch", "sweep", "all", "plot", "loopback", "final_only", "numeric", "info",
    ])]
    pub(crate) listen: bool,
    #[command(flatten)]
    pub(crate) test: TestArgs,
    /// Measure a series of message sizes: FROM:TO doubles, FROM:TO:FACTOR multiplies
    #[arg(long, value_name = "SIZES", value_parser = sweep, conflicts_with_all = ["sizes", "batch"])]
    pub(crate) sweep: Option<Sweep>,
    /// Measure every transport of this machine and print one table [default: the common tests]
    #[arg(long, conflicts_with_all = ["host", "transport", "device", "batch", "loopback", "csv"])]
    pub(crate) all: bool,
    /// Seconds that each cell of --all and each size of a series may take; slow ones send fewer
    /// messages [default: 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["iterations", "batch"])]
    pub(crate) time: Option<Duration>,
    /// Read tests from a file
    #[arg(short = 'b', long, value_name = "FILE")]
    pub(crate) batch: Vec<PathBuf>,
    /// Measure within one process: the endpoint is connected to its own interface
    #[arg(short = 'l', long)]
    pub(crate) loopback: bool,
    /// CPUs to run on, e.g. 0,2-3; the ends of a pair on this machine run on two of them [default:
    /// all]
    #[arg(short = 'c', long, value_parser = cpus)]
    pub(crate) cpus: Option<CpuList>,
    /// Control port of the server
    #[arg(short = 'p', long, default_value_t = PORT)]
    pub(crate) port: u16,
    /// Memory that a test of a client may use on the server (K, M and G are powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, requires = "listen")]
    pub(crate) max_memory: usize,
    /// Messages, including warm-up, that a test of a client may send [default: unlimited]
    #[arg(long, value_name = "COUNT", value_parser = count, requires = "listen")]
    pub(crate) max_messages: Option<u64>,
    /// Address to listen on as the server, with a key [default: 127.0.0.1]
    #[arg(short = 'a', long = "bind", value_name = "ADDRESS", requires = "listen")]
    pub(crate) bind: Option<HostAddress>,
    /// Listen on ::1 as the server, with a key, unless an address is given
    #[arg(short = '6', long, requires = "listen")]
    pub(crate) ipv6: bool,
    /// Print only the final numbers
    #[arg(short = 'f', long)]
    pub(crate) final_only: bool,
    /// Separate thousands
    #[arg(short = 'N', long)]
    pub(crate) numeric: bool,
    /// Print CSV, with the endpoint's counters in lines that begin with #
    #[arg(short = 'v', long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print more percentiles, the median with an interval, and the endpoint's counters
    #[arg(short = 'I', long)]
    pub(crate) info: bool,
    /// Print JSON: an object, or a list of objects for several tests; the median, or the percentile
    /// of -R, is `latency_typical_us`
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw latency, and for streams bandwidth, over the message size, one line per transport, to
    /// an SVG file, named *.svg
    #[arg(long, value_name = "FILE", conflicts_with = "batch")]
    pub(crate) plot: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_series() {
        assert_eq!(sizes("16,48,8K"), Ok(Sizes(vec![16, 48, 8192])));
        assert_eq!(sweep("8:64"), Ok(Sweep(vec![8, 16, 32, 64])));
        assert_eq!(sweep("1:1M:1024"), Ok(Sweep(vec![1, 1024, 1 << 20])));
        assert_eq!(sweep("8:8"), Ok(Sweep(vec![8])));
        for bad in ["", "8", "8:", "0:8", "8:4", "8:64:1", "8:64:0", "1:2:3:4"] {
            assert!(sweep(bad).is_err(), "{bad}");
        }
        assert!(sweep("64K:8").unwrap_err().starts_with("FROM (65536) is greater than TO (8)"));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds("2s"), Ok(Duration::from_secs(2)));
        for bad in ["", "s", "0", "-1", "NaN", "inf", "1e30", "1m"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        for bad in ["", "8,", ",", "8,x", "16G,17179869183G"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
        assert_eq!(sweep("1:18446744073709551615").unwrap().0.len(), 64);
    }

    #[test]
    fn a_line_refines_what_is_around_it() {
        let outer = TestArgs { iterations: Some(5), rank: Some(99.0), ..TestArgs::default() };
        let line = outer.refined(&["name", "-t", "put_bw", "-D", "shortiov", "-n", "7"]).unwrap();
        assert_eq!(
            (line.test, line.iterations, line.rank),
            (Some(Test::PutBw), Some(7), Some(99.0))
        );
        assert_eq!(line.layout, Some(Layout::ShortIov));
        for bad in [
            &["name", "-t", "nothing"][..],
            &["name", "more"],
            &["name", "-h"],
            &["name", "-p", "1"],
        ] {
            assert!(outer.refined(bad).is_err(), "{bad:?}");
        }
    }
}
