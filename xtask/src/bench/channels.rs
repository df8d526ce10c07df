//! `cargo xtask channels`: channels beside NVIDIA's net_ib, into `benches/CHANNELS.md`. The
//! instructions of each call, and the longest time without a message when a rail is lost.
//!
//! The bench `net` of `barewire-nccl` calls both networks by their tables, on the same two devices
//! of `barewire hca run`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::budget::{self, Budget, Level, Shape};
use super::build::{self, Workspace};
use super::callgrind::{self, Counted, Part};
use super::measure::Count;
use super::peers::Peers;
use super::side_by_side::version;
use super::{SOON, judge, measure, peers, tools};
use crate::compare::{self, statistics::median};
use crate::packages::Install;
use crate::process::{self, Failure, Invocation};
use crate::test::programs as built;
use crate::{libnccl, machine};

const FILE: &str = "benches/CHANNELS.md";
/// The peer's name in `benches/peers/counts.txt`.
const PEER: &str = "net_ib";
/// Messages of a counted run.
const MESSAGES: u64 = 64;
/// Deadline of a counted run under callgrind.
const COUNTED: Duration = Duration::from_mins(5);
/// Deadline of a run that loses a rail; NVIDIA's defaults take half a minute to notice.
const LOST: Duration = Duration::from_mins(4);
/// Milliseconds that a channel may take to continue.
const MUST: f64 = 1000.0;
/// The setting of net_ib that makes others take over.
const FAIL_OVER: (&str, &str) = ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1");

/// The rails and the buffers of a group, by the end of the bench's name.
const SETTINGS: [(&str, [u32; 2]); 3] = [("1", [1, 1]), ("2", [2, 1]), ("group", [1, 8])];

/// The calls, by the start of the bench's name, and the mark that the program sets after each.
const CALLS: [(&str, &str); 6] = [
    ("receive", "after_irecv"),
    ("send", "after_isend"),
    ("not_yet", "after_early"),
    ("nothing", "after_nothing"),
    ("received", "after_received"),
    ("sent", "after_sent"),
];

/// Runs that lose a rail.
struct Stream {
    network: Network,
    /// What is set, as text and in the environment.
    setting: &'static str,
    environment: &'static [(&'static str, &'static str)],
    runs: usize,
}

const STREAMS: [Stream; 4] = [
    Stream { network: Network::Ours, setting: "default", environment: &[], runs: 5 },
    Stream {
        network: Network::NetIb,
        setting: "fail-over on, other settings default",
        environment: &[FAIL_OVER],
        runs: 1,
    },
    Stream {
        network: Network::NetIb,
        setting: "fail-over on, the timeout of barewire (`NCCL_IB_TIMEOUT=12`)",
        environment: &[FAIL_OVER, ("NCCL_IB_TIMEOUT", "12")],
        runs: 5,
    },
    Stream {
        network: Network::NetIb,
        setting: "default: fail-over off",
        environment: &[],
        runs: 1,
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Network {
    Ours,
    NetIb,
}

/// Instructions per call, in tenths, by setting and call; nothing for a call that was not made.
type Calls = [[Option<u64>; CALLS.len()]; SETTINGS.len()];

/// What happened when a rail was lost.
#[derive(Clone, Debug, PartialEq)]
struct Loss {
    /// How the stream of messages ended.
    end: String,
    milliseconds: f64,
    wrong: u64,
}

/// The programs.
struct Programs {
    barewire: String,
    /// The bench `net`.
    net: String,
    library: Result<PathBuf, String>,
    /// Where counts are written.
    folder: PathBuf,
}

/// Measures everything and writes the file.
pub(crate) fn write(install: Install) -> Result<(), Failure> {
    process::watch_signals();
    build::name_ignored();
    let workspace = Workspace::ask()?;
    tools::debian(install, &[tools::VALGRIND])?;
    let runner = tools::runner(install, &workspace)?;
    let programs = Programs::build(install, &workspace)?;
    if let Err(why) = &programs.library {
        println!("{why}");
    }
    let (ran, counts) = measure::run(&workspace, &runner, Some(Level::Channel.name()), None)?;
    ran?;
    let table = programs.count(Network::Ours)?;
    let (mut peer, mut release) = (None, None);
    if programs.library.is_ok() {
        peer = Some(programs.count(Network::NetIb)?);
        release = Some(programs.release()?);
    }
    let mut losses = Vec::new();
    for Stream { network, setting, environment, runs } in STREAMS {
        if network == Network::Ours || programs.library.is_ok() {
            let mut all = Vec::new();
            for _ in 0..runs {
                let loss = programs.lose(network, environment)?;
                println!("{}, {setting}: {loss:?}", network.name());
                all.push(loss);
            }
            losses.push((network, setting, all));
        }
    }
    let valgrind = tools::valgrind_version()?;
    let versions = format!(
        "{}; {}; {valgrind}; libmlx5 {}; libnccl {}",
        compare::machine(),
        workspace.rustc,
        version("ibverbs-providers")?,
        release.as_deref().unwrap_or("not there"),
    );
    let text = render(&versions, &counts, &peers::read()?, &table, peer.as_ref(), &losses);
    process::write(FILE, &text)
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "barewire",
            Self::NetIb => PEER,
        }
    }
}

impl Programs {
    fn build(install: Install, workspace: &Workspace) -> Result<Self, Failure> {
        let folder = workspace.target.join("channels");
        let bench = build::cargo_bench_in(
            &["barewire-nccl"],
            &["net"],
            &["--features", "verbs", "--no-run"],
            None,
        );
        let net = built::Programs::by(bench)?.bench("net")?;
        Ok(Self {
            barewire: machine::command_line()?,
            net,
            library: libnccl::find(install),
            folder,
        })
    }

    /// Returns the network as the first argument of the program.
    fn network(&self, network: Network) -> String {
        match (network, &self.library) {
            (Network::NetIb, Ok(library)) => library.to_string_lossy().into_owned(),
            _ => "barewire".to_owned(),
        }
    }

    /// Returns the command under which both networks find two devices, with libmlx5's own
    /// functions: see [`super::side_by_side::UNDER`].
    fn devices(&self) -> [&str; 7] {
        [&self.barewire, "hca", "run", "--no-yield", "--devices", "2", "--"]
    }

    /// Returns the command of the program for a network.
    fn command(&self, network: Network) -> Invocation {
        Invocation::new(&self.net, &[&self.network(network)])
            .environment("NCCL_SOCKET_IFNAME", "lo")
    }

    fn release(&self) -> Result<String, Failure> {
        process::text(&self.command(Network::NetIb).with(&["version"]), SOON)
    }

    /// Counts the calls of a network.
    fn count(&self, network: Network) -> Result<Calls, Failure> {
        let mut calls = Calls::default();
        for (counted, (_, [rails, group])) in calls.iter_mut().zip(SETTINGS) {
            let what = Counted {
                functions: "*measured_*",
                parts: Some("*after_*"),
                folder: &self.folder,
                deadline: COUNTED,
            };
            let numbers = [u64::from(rails), u64::from(group), MESSAGES].map(|n| n.to_string());
            let [rails, group, messages] = &numbers;
            let run = self.command(network).with(&["count", rails, group, messages]);
            *counted = shares(&callgrind::count(&what, run.clone(), &self.devices())?);
            println!("{}, {rails} rails, groups of {group}: {counted:?}", network.name());
            // Sends may be late, and then the peer's next call finds more than it should.
            if counted[..2].contains(&None) || counted[4..].contains(&None) {
                return Err(Failure::Found(format!("{run}: calls are missing")));
            }
        }
        Ok(calls)
    }

    /// Runs a stream of messages that loses a rail.
    fn lose(
        &self,
        network: Network,
        environment: &[(&'static str, &str)],
    ) -> Result<Loss, Failure> {
        let [barewire, devices @ ..] = self.devices();
        let mut run = self.command(network).with(&["lose-a-rail"]).under(barewire, &devices);
        for (name, value) in environment {
            run = run.environment(name, value);
        }
        let text = process::text(&run, LOST)
            .map_err(|failure| Failure::Found(format!("{failure}; to see why: {run}")))?;
        text.lines().find_map(loss).ok_or_else(|| Failure::Found(format!("{run}: {text:?}")))
    }
}

/// Returns the mean of each call after the warm-up, in tenths.
fn shares(parts: &[Part]) -> [Option<u64>; CALLS.len()] {
    let warm = parts.iter().position(|part| part.mark.contains("after_warm_up")).unwrap_or(0);
    CALLS.map(|(_, wanted)| {
        let counted = parts[warm..].iter().filter(|part| part.mark.contains(wanted));
        let counted: Vec<u64> = counted.map(|part| part.instructions).collect();
        let count = counted.len() as u64;
        (count > 0).then(|| (counted.iter().sum::<u64>() * 10 + count / 2) / count)
    })
}

fn loss(line: &str) -> Option<Loss> {
    let value: Value = serde_json::from_str(line).ok()?;
    Some(Loss {
        end: value["end"].as_str()?.to_owned(),
        milliseconds: value["milliseconds"].as_f64()?,
        wrong: value["wrong"].as_u64()?,
    })
}

/// Returns the cell of a bench.
fn cell(calls: &Calls, bench: &str) -> Option<u64> {
    let (call, setting) = bench.rsplit_once('_')?;
    let row = SETTINGS.iter().position(|(name, _)| *name == setting)?;
    calls[row][CALLS.iter().position(|(name, _)| *name == call)?]
}

fn render(
    versions: &str,
    counts: &[Count],
    peers: &Peers,
    table: &Calls,
    peer: Option<&Calls>,
    losses: &[(Network, &str, Vec<Loss>)],
) -> String {
    let mut text = format!(
        "# Channels beside NVIDIA's net_ib\n\n\
         Written by `cargo xtask channels`; edits are lost. {versions}.\n\n\
         net_ib is NCCL's own network for RDMA devices, taken out of NVIDIA's library, on memory of the host and without a GPU. Both \
         networks run on the same software HCA, an emulator: its instructions are not counted, and its times are not those of a device.\n\n\
         # Instructions per call\n\n\
         Messages of 64 KiB, each completed before the next. *Rust API* is the bench `channel`, which calls `Sender` and `Receiver`. \
         *plugin* (`libnccl-net-barewire.so`) and *net_ib* are called by the same program through their tables of version 12, on two \
         devices of `barewire hca run`: our driver by DEVX, net_ib through libibverbs and libmlx5; the mean of {MESSAGES} messages. *must* \
         and *aim* are for the Rust API, and *ratio* is the Rust API divided by net_ib.\n\n",
    );
    let theirs = |budget: &Budget| match peer {
        Some(calls) => cell(calls, budget.bench),
        None => peers.instructions(budget, PEER).map(|count| count * 10),
    };
    if peer.is_none() {
        text.push_str(
            "**The library was not there: the numbers of net_ib are those of `benches/peers/counts.txt`.**\n\n",
        );
    }
    text.push_str(
        "| call | must | aim | Rust API | plugin | net_ib | ratio |\n|---|---:|---:|---:|---:|---:|---:|\n",
    );
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let tenths =
        |value: Option<u64>| value.map_or(String::new(), |value| judge::decimal(value as i64));
    for budget in
        budget::all().filter(|one| one.level == Level::Channel && one.shape == Shape::Held)
    {
        let Some(instructions) = judge::counted(budget, counts) else { continue };
        let ours = judge::tenths(budget, instructions);
        let missed = if budget.holds_must(instructions) { "" } else { " **missed**" };
        let theirs = theirs(budget);
        let ratio =
            theirs.map_or(String::new(), |theirs| format!("{:.2}", ours as f64 / theirs as f64));
        let _ = writeln!(
            text,
            "| {} | {}{missed} | {} | {} | {} | {} | {ratio} |",
            budget.operation,
            number(budget.must),
            number(budget.aim),
            tenths(Some(ours)),
            tenths(cell(table, budget.bench)),
            tenths(theirs),
        );
    }
    let _ = write!(
        text,
        "\n# A rail is lost under load\n\n\
         A stream of messages of 64 KiB over two devices, eight at a time, until the link of one device goes down. The time is the \
         longest one without a complete message from then on, or the time until an error, over the plugin's tables; with several runs, the median and the \
         longest. Required of barewire: at most {} s.\n\n\
         | network | settings | runs | median | longest | wrong messages | end |\n|---|---|---:|---:|---:|---:|---|\n",
        MUST / 1000.0,
    );
    for (network, setting, all) in losses {
        let times: Vec<f64> = all.iter().map(|loss| loss.milliseconds / 1000.0).collect();
        let longest = times.iter().copied().fold(0.0, f64::max);
        let missed =
            if *network == Network::Ours && longest > MUST / 1000.0 { " **missed**" } else { "" };
        let ends: BTreeSet<&str> = all.iter().map(|loss| loss.end.as_str()).collect();
        let end = Vec::from_iter(ends).join(", ");
        let _ = writeln!(
            text,
            "| {} | {setting} | {} | {:.2} s | {longest:.2} s{missed} | {} | {end} |",
            network.name(),
            all.len(),
            median(times),
            all.iter().map(|loss| loss.wrong).sum::<u64>(),
        );
    }
    if peer.is_none() {
        text.push_str("\nnet_ib was not measured: the library was not there.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::callgrind::tests::part;
    use super::*;

    #[test]
    fn calls_before_the_end_of_the_warm_up_do_not_count() {
        let mut parts = vec![
            part(12, "after_sent", 300),
            part(3, "after_irecv", 9000),
            part(4, "after_warm_up", 0),
            part(10, "after_irecv", 700),
            part(11, "after_irecv", 801),
            part(9, "after_late", 5),
        ];
        parts.sort();
        let none = None;
        assert_eq!(shares(&parts), [Some(7505), none, none, none, none, Some(3000)]);
    }

    #[test]
    fn without_the_library_the_file_says_so() {
        let counts: Vec<Count> = budget::all()
            .map(|budget| Count {
                bench: format!(
                    "{}::{}::{}",
                    budget.level.name(),
                    budget.shape.name(),
                    budget.bench
                ),
                instructions: 150 * budget.operations,
            })
            .collect();
        let mut table = Calls::default();
        table[1][0] = Some(2000);
        let lost =
            [Loss { end: "all messages arrived".to_owned(), milliseconds: 1500.0, wrong: 0 }];
        let losses = [(Network::Ours, "default", lost.to_vec())];
        let text = render("here", &counts, &peers::read().unwrap(), &table, None, &losses);
        assert!(text.contains("are those of `benches/peers/counts.txt`"), "{text}");
        assert!(text.contains("| 270 | 185 | 150.0 | 200.0 | 924.0 | 0.16 |"), "{text}");
        assert!(
            text.contains("| 1 | 1.50 s | 1.50 s **missed** | 0 | all messages arrived |"),
            "{text}"
        );
        let mut theirs = Calls::default();
        theirs[0][3] = Some(1995);
        let text = render("here", &counts, &peers::read().unwrap(), &table, Some(&theirs), &losses);
        assert!(
            text.contains(
                "| 1 rail: test, nothing | 30 **missed** | 15 | 150.0 |  | 199.5 | 0.75 |"
            ),
            "{text}"
        );
        assert!(text.contains("| group of 8: send | 195 | 130 | 150.0 |"), "{text}");
        assert!(!text.contains("counts.txt"), "{text}");
    }

    #[test]
    fn every_bench_has_a_cell() {
        let full = [[Some(1); CALLS.len()]; SETTINGS.len()];
        for budget in budget::all().filter(|budget| budget.level == Level::Channel) {
            // Neither net_ib nor the plugin has standby rails.
            let expected = (!budget.bench.ends_with("_standby")).then_some(1);
            assert_eq!(cell(&full, budget.bench), expected, "{}", budget.bench);
        }
    }
}
