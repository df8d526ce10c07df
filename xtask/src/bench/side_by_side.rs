//! The same operations on `mlx5_0`, the software HCA behind Debian's libraries, in one run:
//! barewire's, libmlx5's and UCX's.
//!
//! Each operation is N calls of a function `measured_*`. Callgrind counts the instructions between
//! its entry and its return; the device's threads and the waiting between batches are not counted.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SOON;
use super::build::Workspace;
use super::callgrind::{self, Counted};
use crate::machine;
use crate::process::{self, Failure, Invocation, Output, repository};
use crate::test::programs as built;

/// The folder of the programs and counts, in the target folder.
const FOLDER: &str = "side-by-side";
/// Calls of each operation.
const CALLS: u64 = 2048;
/// Tenths of UCX's instructions that `rc_verbs` may take.
const VERBS_MUST: u64 = 8;
/// Hundredths of UCX's instructions that the C interface may take, for a zero-copy put and for the
/// other operations.
const INTERFACE_MUST: [u64; 2] = [42, 40];
/// The same for operations of shared memory.
const SHARED_MUST: u64 = 100;
/// The arguments of the command line before a program that is counted or timed. Without the last
/// option, `ibv_post_send` and `ibv_poll_cq` would be those of the software HCA, which call
/// libmlx5's and then run the device.
pub(crate) const UNDER: [&str; 4] = ["hca", "run", "--no-yield", "--"];
/// Deadline of one program under valgrind.
const DEADLINE: Duration = Duration::from_mins(3);

/// A counted library: the heading of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Devx,
    InitObj,
    PostSend,
    Wr,
    /// barewire's `libuct.so.0`, by UCT's C interface.
    Interface,
    Uct,
    Verbs,
    UctVerbs,
}

const PEERS: [Peer; 8] = [
    Peer::Devx,
    Peer::InitObj,
    Peer::PostSend,
    Peer::Wr,
    Peer::Interface,
    Peer::Uct,
    Peer::Verbs,
    Peer::UctVerbs,
];

/// An operation, with its name in each program.
struct Row {
    operation: &'static str,
    /// `None` for shared memory: our `shm` and UCX's `posix`, through UCT's C interface.
    ours: Option<&'static str>,
    /// By `ibv_post_send` or `ibv_poll_cq`, and by `ibv_wr_*`.
    libmlx5: [Option<&'static str>; 2],
    uct: Option<&'static str>,
    /// Our driver has it on objects of libmlx5, too.
    init_obj: bool,
}

const ROWS: [Row; 14] = [
    driver("RDMA write, 8 B inline", "driver.write_8", [Some("post_write_8"), Some("wr_write_8")]),
    driver(
        "RDMA write, 64 B inline",
        "driver.write_64",
        [Some("post_write_64"), Some("wr_write_64")],
    ),
    driver(
        "RDMA write, one SGE",
        "driver.write_sge",
        [Some("post_write_sge"), Some("wr_write_sge")],
    ),
    driver("send, 16 B inline", "driver.send_16", [Some("post_send_16"), Some("wr_send_16")]),
    driver("CQ poll, nothing there", "driver.poll", [Some("poll"), None]),
    driver(
        "datagram (UD), 8 B inline",
        "directed.ud_send_8",
        [Some("post_ud_send_8"), Some("wr_ud_send_8")],
    ),
    by_devx("RDMA write (DC), 8 B inline", "directed.dc_write_8", "wr_dc_write_8"),
    by_devx("RDMA write (XRC), 8 B inline", "directed.xrc_write_8", "wr_xrc_write_8"),
    api("put_short, 8 B", "api.put_short_8", "put_short_8"),
    api("put_zcopy, 4 KiB, with completion", "api.put_zcopy", "put_zcopy"),
    api("am_short, 8 B header and 8 B", "api.am_short_8", "am_short_8"),
    api("progress with nothing to do", "api.progress", "progress"),
    shared("shared memory (shm, posix): am_short, 8 B header and 8 B", "am_short_8"),
    shared("shared memory (shm, posix): progress with nothing to do", "progress"),
];

const fn driver(
    operation: &'static str,
    ours: &'static str,
    libmlx5: [Option<&'static str>; 2],
) -> Row {
    Row { operation, ours: Some(ours), libmlx5, uct: None, init_obj: true }
}

/// An operation of queues that our driver creates by DEVX only.
const fn by_devx(operation: &'static str, ours: &'static str, libmlx5: &'static str) -> Row {
    Row { init_obj: false, ..driver(operation, ours, [None, Some(libmlx5)]) }
}

const fn api(operation: &'static str, ours: &'static str, uct: &'static str) -> Row {
    Row { uct: Some(uct), ..driver(operation, ours, [None; 2]) }
}

const fn shared(operation: &'static str, uct: &'static str) -> Row {
    Row { operation, ours: None, libmlx5: [None; 2], uct: Some(uct), init_obj: false }
}

impl Peer {
    fn heading(self) -> &'static str {
        match self {
            Self::Devx => "barewire, by DEVX",
            Self::InitObj => "barewire, by init_obj",
            Self::PostSend => "libmlx5, ibv_post_send, ibv_poll_cq",
            Self::Wr => "libmlx5, ibv_wr_*",
            Self::Interface => "barewire, UCT's C interface",
            Self::Uct => "UCX rc_mlx5",
            Self::Verbs => "barewire rc_verbs",
            Self::UctVerbs => "UCX rc_verbs",
        }
    }

    /// Returns the program and its arguments for a row, if it has the operation.
    fn program<'a>(
        self,
        row: &Row,
        programs: &'a Programs,
    ) -> Option<(&'a Path, Vec<&'static str>)> {
        let ours = |way| row.ours.map(|name| (programs.ours.as_path(), vec![way, name]));
        let libmlx5 = |name: &'static str| (programs.libmlx5.as_path(), vec!["mlx5_0", name]);
        let uct_on = |transport, device| {
            row.uct.map(|name| (programs.uct.as_path(), vec![transport, device, name]))
        };
        let uct = |transport| uct_on(transport, "mlx5_0:1");
        match self {
            Self::Devx => ours("devx"),
            Self::InitObj => ours("init_obj").filter(|_| row.init_obj),
            Self::PostSend => row.libmlx5[0].map(libmlx5),
            Self::Wr => row.libmlx5[1].map(libmlx5),
            Self::Interface if row.ours.is_none() => uct_on("shm", "memory"),
            Self::Interface => uct_on("rc_mlx5", "soft0:1"),
            Self::Uct if row.ours.is_none() => uct_on("posix", "memory"),
            Self::Uct => uct("rc_mlx5"),
            Self::Verbs => ours("verbs").filter(|_| row.uct.is_some()),
            Self::UctVerbs => uct("rc_verbs").filter(|_| row.ours.is_some()),
        }
    }
}

/// The programs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// The command line; the library for `hca run` is beside it.
    pub(crate) barewire: PathBuf,
    pub(crate) ours: PathBuf,
    pub(crate) libmlx5: PathBuf,
    pub(crate) uct: PathBuf,
    /// barewire's `libuct.so.0`.
    interface: PathBuf,
}

/// Instructions per call, in tenths, by row and peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    ucx: String,
    libmlx5: String,
    rows: Vec<(&'static str, [Option<u64>; PEERS.len()])>,
}

/// Builds and counts everything.
pub(super) fn measure(workspace: &Workspace) -> Result<Table, Failure> {
    let programs = Programs::build_in(&workspace.target)?;
    let folder = workspace.target.join(FOLDER).join("counts");
    let mut rows = Vec::new();
    for row in &ROWS {
        let mut cells = [None; PEERS.len()];
        for (cell, peer) in cells.iter_mut().zip(PEERS) {
            if let Some((program, arguments)) = peer.program(row, &programs) {
                let preload = (peer == Peer::Interface).then_some(programs.interface.as_path());
                let counted = count(&programs.barewire, program, &arguments, preload, &folder)?;
                *cell = Some((counted * 10 + CALLS / 2) / CALLS);
            }
        }
        println!("{}: {}", row.operation, cells.map(tenths).join(" "));
        rows.push((row.operation, cells));
    }
    Ok(Table { ucx: version("libucx0")?, libmlx5: version("ibverbs-providers")?, rows })
}

impl Programs {
    pub(crate) fn build() -> Result<Self, Failure> {
        Self::build_in(&Workspace::ask()?.target)
    }

    fn build_in(target: &Path) -> Result<Self, Failure> {
        let folder = target.join(FOLDER);
        fs::create_dir_all(&folder).map_err(|error| {
            Failure::Found(format!("cannot make {}: {error}", folder.display()))
        })?;
        let compile = |source: &str, libraries: &[&str]| {
            let program = folder.join(source);
            let from = repository().join("benches/peers").join(format!("{source}.c"));
            let (to, from) = (program.to_string_lossy(), from.to_string_lossy());
            let compile =
                Invocation::new("cc", &["-O3", "-Wall", "-Wextra", "-Werror", "-o", &to, &from])
                    .with(libraries);
            println!("{compile}");
            process::run(&compile, SOON, Output::Inherit).map(|()| program)
        };
        let libmlx5 = compile("libmlx5", &["-libverbs", "-lmlx5"])?;
        let uct = compile("uct", &["-luct", "-lucs"])?;
        // One command for both, so that the crates below them are built once.
        let both = ["build", "--profile", "bench", "-p", "barewire-benches", "-p", "barewire-uct"];
        let both = Invocation::cargo(&both).with(&["--lib", "--bench", "mlx5_0"]);
        let both = both.with(&["--features", "barewire-benches/verbs"]);
        let ours = built::Programs::by(both)?.bench("mlx5_0")?.into();
        let interface = target.join("release/libbarewire_uct.so");
        let barewire = machine::command_line()?.into();
        Ok(Self { barewire, ours, libmlx5, uct, interface })
    }
}

/// Runs a program on the software HCA under callgrind. Returns the instructions of all its measured
/// calls.
fn count(
    barewire: &Path,
    program: &Path,
    arguments: &[&str],
    preload: Option<&Path>,
    folder: &Path,
) -> Result<u64, Failure> {
    let run = Invocation::new(&program.to_string_lossy(), arguments).with(&[&CALLS.to_string()]);
    let run = match preload {
        Some(library) => run.environment("LD_PRELOAD", &library.to_string_lossy()),
        None => run,
    };
    let what = Counted { functions: "*measured_*", parts: None, folder, deadline: DEADLINE };
    let barewire = barewire.to_string_lossy();
    let under = [&[&*barewire], &UNDER[..]].concat();
    let parts = callgrind::count(&what, run.clone(), &under)?;
    let counted = parts.iter().map(|part| part.instructions).sum();
    // A function that is missing or was optimised away counts nothing.
    if counted < CALLS * 3 {
        return Err(Failure::Found(format!("{run}: {counted} instructions in {CALLS} calls")));
    }
    Ok(counted)
}

/// Returns the version of a Debian package.
pub(super) fn version(package: &str) -> Result<String, Failure> {
    process::text(&Invocation::new("dpkg-query", &["-W", "-f=${Version}", package]), SOON)
}

fn tenths(value: Option<u64>) -> String {
    value.map_or(String::new(), |value| format!("{}.{}", value / 10, value % 10))
}

impl Table {
    /// A table without rows, of these versions.
    #[cfg(test)]
    pub(super) fn none(version: String) -> Self {
        Self { ucx: version.clone(), libmlx5: version, rows: Vec::new() }
    }

    /// Returns what one of barewire's takes relative to UCX's, and whether it is more than `most`
    /// hundredths; nothing without both.
    fn ratio(cells: &[Option<u64>; PEERS.len()], [ours, theirs]: [Peer; 2], most: u64) -> String {
        let cell = |wanted| cells[PEERS.iter().position(|&peer| peer == wanted)?];
        let (Some(ours), Some(theirs)) = (cell(ours), cell(theirs)) else { return String::new() };
        let missed = if ours * 100 > theirs * most { " **missed**" } else { "" };
        format!("{:.2}{missed}", ours as f64 / theirs as f64)
    }

    /// Returns the section of `benches/RESULTS.md`.
    pub(super) fn render(&self, text: &mut String) {
        let _ = write!(
            text,
            "\n## Side by side: `mlx5_0`, in one run\n\n\
             The software HCA behind Debian's libibverbs and libmlx5 ({}), as `barewire hca run` has it; UCX is Debian's ({}), which \
             is built with assertions. {CALLS} calls of one function that is never inlined, posts in batches of 16 \
             (64 through a transport API), each carried out before the next; instructions per call: those of the function and of \
             what it calls, without the call itself and the loop, for all alike. `ibv_post_send` includes filling in its request, and \
             libmlx5 its locks: `MLX5_SINGLE_THREADED=1` takes 10 away from each call. \
             The programs are `benches/mlx5_0/` and \
             `benches/peers/*.c`.\n\n| operation |",
            self.libmlx5, self.ucx,
        );
        for peer in PEERS {
            let _ = write!(text, " {} |", peer.heading());
        }
        let [zcopy, others] = INTERFACE_MUST;
        let _ = write!(
            text,
            " C interface, of UCX's (at most 0.{others}, put_zcopy 0.{zcopy}, shared memory 1.00) |"
        );
        let _ = write!(text, " rc_verbs, of UCX's (at most 0.{VERBS_MUST}) |");
        text.push_str("\n|---|");
        text.push_str(&"---:|".repeat(PEERS.len() + 2));
        text.push('\n');
        for (operation, cells) in &self.rows {
            let _ = write!(text, "| {operation} |");
            for cell in cells {
                let _ = write!(text, " {} |", tenths(*cell));
            }
            let most = match operation {
                zero_copy if zero_copy.starts_with("put_zcopy") => zcopy,
                shared if shared.starts_with("shared") => SHARED_MUST,
                _ => others,
            };
            let interface = Self::ratio(cells, [Peer::Interface, Peer::Uct], most);
            let verbs = Self::ratio(cells, [Peer::Verbs, Peer::UctVerbs], VERBS_MUST * 10);
            let _ = writeln!(text, " {interface} | {verbs} |");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_for_every_peer_that_has_the_operation() {
        let rows = vec![(
            "put_short, 8 B",
            [Some(583), Some(583), None, None, Some(810), Some(2750), Some(3200), Some(3900)],
        )];
        let table = Table { ucx: "1.13.1-1".to_owned(), libmlx5: "44.0-2".to_owned(), rows };
        let mut text = String::new();
        table.render(&mut text);
        assert!(
            text.contains(
                "| put_short, 8 B | 58.3 | 58.3 |  |  | 81.0 | 275.0 | 320.0 | 390.0 | 0.29 | 0.82 **missed** |\n"
            ),
            "{text}"
        );
    }
}
