//! `cargo xtask compare`: `barewire perf` against Debian's `ucx_perftest` and others, in
//! alternating pairs on the same CPUs.

mod ping_pong;
mod rows;
mod run;
#[path = "../../../cli/src/perf/statistics.rs"]
pub(crate) mod statistics;
pub(crate) mod table;

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::bench::side_by_side;
use crate::new_ucx;
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output};
use crate::test::programs::Programs;
use rows::{Program, ROWS, Row};
use run::Place;
use statistics::Estimate;
use table::{Outcome, Verdict};

/// Pairs of runs for each row, after one that is not counted.
const PAIRS: usize = 15;
/// Overrides the number of pairs, for a trial; nothing is written then.
const FEWER: &str = "BAREWIRE_COMPARE_PAIRS";
const BUILD: Duration = Duration::from_mins(20);
const INSTALL: Duration = Duration::from_mins(10);

/// The arguments of `cargo xtask compare`.
#[derive(Debug)]
pub(crate) struct Plan {
    rows: Vec<&'static Row>,
    install: Install,
}

impl Plan {
    /// Parses the arguments.
    ///
    /// # Errors
    /// The reason why they are not understood.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let (mut wanted, mut install) = (None, Install::Missing);
        for word in words {
            match *word {
                "--no-install" => install = Install::Nothing,
                option if option.starts_with('-') => return Err(format!("unknown '{option}'")),
                row if wanted.is_none() => wanted = Some(row),
                more => return Err(format!("one ROW only, not '{more}' as well")),
            }
        }
        let wanted = wanted.unwrap_or_default();
        // Its name, or what the table of results has.
        let is_wanted = |row: &Row| row.name.starts_with(wanted) || row.what.starts_with(wanted);
        let rows: Vec<&'static Row> = ROWS.iter().filter(|row| is_wanted(row)).collect();
        if rows.is_empty() {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            return Err(format!(
                "no row begins with '{wanted}': there are {}, and their measures as in benches/RESULTS.md",
                names.join(", ")
            ));
        }
        Ok(Self { rows, install })
    }
}

/// Compares the rows of the plan, and writes the table.
pub(crate) fn compare(plan: Plan) -> ExitCode {
    match check(plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn check(Plan { rows, install }: Plan) -> Result<(), Failure> {
    process::watch_signals();
    for (program, package) in [("ucx_perftest", "ucx-utils"), ("iperf3", "iperf3")] {
        let wanted = rows.iter().any(|row| row.theirs.is_of(program));
        if wanted && !packages::on_path(program) {
            packages::debian(install, &[package], INSTALL)?;
        }
        if wanted && !packages::on_path(program) {
            return Err(Failure::Found(format!("{program} is missing: apt-get install {package}")));
        }
    }
    let fewer = std::env::var(FEWER).ok().and_then(|count| count.parse().ok());
    let count: usize = fewer.unwrap_or(PAIRS);
    let on_device = rows.iter().any(|row| matches!(row.ours, Program::OnDevice(..)));
    let on_device = if on_device { Some(side_by_side::Programs::build()?) } else { None };
    let place = place(install, on_device, &rows)?;
    // Two comparisons at a time would disturb each other, also of different checkouts. No file is
    // created: another user could put a link in its place.
    let lock = fs::File::open(std::env::temp_dir());
    let locked = lock.and_then(|lock| lock.lock().map(|()| lock));
    let _lock = locked
        .map_err(|error| Failure::Found(format!("cannot take the lock of comparisons: {error}")))?;
    let mut outcomes = Vec::new();
    let mut failed = Vec::new();
    for row in rows {
        if row.theirs.is_new_ucx() && place.new_ucx.is_none() {
            println!("{:<26} is left out", row.name);
            continue;
        }
        let pairs = match measure(row, count, &place) {
            Ok(pairs) => pairs,
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            // The other rows are not lost.
            Err(failure) => {
                println!("{:<26} failed: {failure}", row.name);
                failed.push(row.name);
                continue;
            }
        };
        let outcome = Outcome { row, pairs };
        let Estimate { ratio, low, high } = outcome.estimate();
        let note = match outcome.verdict() {
            Verdict::Met => "",
            Verdict::Undecided => "  undecided",
            Verdict::Missed => "  the must is missed",
        };
        println!("{:<26} ratio {ratio:.3} ({low:.3} to {high:.3}){note}", row.name);
        outcomes.push(outcome);
    }
    if count != PAIRS {
        for outcome in &outcomes {
            println!("{:<26} {:?}", outcome.row.name, outcome.pairs);
        }
        println!("{count} of {PAIRS} pairs, by {FEWER}: nothing is written");
    } else if !outcomes.is_empty() {
        table::write(&outcomes, &circumstances(&place))?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    let failed = failed.join(", ");
    Err(Failure::Found(format!("rows that failed, and are as they were in the table: {failed}")))
}

/// Returns the values of both programs of `count` pairs of runs.
fn measure(row: &Row, count: usize, place: &Place) -> Result<Vec<(f64, f64)>, Failure> {
    let mut pairs = Vec::new();
    // The first pair warms up: it finds programs and libraries on disk, and the CPUs at rest.
    for pair in 0..=count {
        // The first of a pair alternates, so that drift favours neither.
        let (ours, theirs) = if pair % 2 == 0 {
            let ours = run::run(row, row.ours, place)?;
            (ours, run::run(row, row.theirs, place)?)
        } else {
            let theirs = run::run(row, row.theirs, place)?;
            (run::run(row, row.ours, place)?, theirs)
        };
        if pair > 0 {
            pairs.push((ours, theirs));
        }
    }
    Ok(pairs)
}

/// Builds our programs that the rows need, and selects the first two CPUs that this process may
/// use.
fn place(
    install: Install,
    on_device: Option<side_by_side::Programs>,
    rows: &[&Row],
) -> Result<Place, Failure> {
    let needs =
        |wanted: fn(Program) -> bool| rows.iter().any(|row| wanted(row.ours) || wanted(row.theirs));
    let bench = |name| {
        let build = ["build", "--release", "-p", "barewire-benches", "--bench", name];
        Programs::by(Invocation::cargo(&build))?.bench(name)
    };
    let sockets = needs(|program| matches!(program, Program::Sockets(_)));
    let sockets = if sockets { bench("sockets")? } else { String::new() };
    let connect = needs(|program| matches!(program, Program::Connect(_)));
    let connect = if connect { bench("connect")? } else { String::new() };
    process::run(
        &Invocation::cargo(&["build", "--release", "-p", "barewire-cli"]),
        BUILD,
        Output::Inherit,
    )?;
    let in_target = |name: &str| process::target().join(name).to_string_lossy().into_owned();
    let ucp = in_target("compare-ucp");
    if needs(|program| matches!(program, Program::Ucp(..) | Program::NewUcp(..))) {
        // Without the headers of UCX (Debian: libucx-dev), only the rows that need them fail.
        let source = process::repository().join("benches/peers/ucp.c");
        let source = source.to_string_lossy();
        let flags = ["-O3", "-Wall", "-Wextra", "-Werror", "-o", &ucp, &source, "-lucp", "-lucs"];
        let compiled = process::run(&Invocation::new("cc", &flags), BUILD, Output::Inherit);
        if let Err(failure) = compiled {
            println!("benches/peers/ucp.c is not built: {failure}");
        }
    }
    let cpus: Vec<String> = allowed_cpus().into_iter().take(2).map(|cpu| cpu.to_string()).collect();
    let Ok(cpus) = <[String; 2]>::try_from(cpus) else {
        return Err(Failure::Found("two CPUs are needed, one for each side".to_owned()));
    };
    // With real-time priority, if permitted, so that other processes do not change the rates. Round
    // robin, since UCX's tcp connects in a thread that needs the CPU that the first one spins on.
    let first = if packages::is_root() {
        ["chrt", "-r", "1"].map(str::to_owned).to_vec()
    } else {
        Vec::new()
    };
    let new_ucx = if needs(Program::is_new_ucx) {
        new_ucx::find(install).inspect_err(|why| println!("{why}")).ok()
    } else {
        None
    };
    Ok(Place {
        cpus,
        barewire: in_target("release/barewire"),
        sockets,
        connect,
        ucp,
        on_device,
        new_ucx,
        first,
    })
}

/// Returns the CPUs that this process may use.
fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Returns the first line that a program prints, to be quoted.
fn says(program: &str, arguments: &[&str]) -> String {
    match process::text(&Invocation::new(program, arguments), Duration::from_secs(10)) {
        Ok(text) => text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned(),
        Err(_) => format!("no {program}"),
    }
}

/// Returns a short description of the machine, with the date.
pub(crate) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let [date, kernel] = [says("date", &["-u", "+%F"]), says("uname", &["-r"])];
    format!("{model}, Linux {kernel}, {date}")
}

/// Returns the machine and its CPUs that are used, and the versions.
fn circumstances(place: &Place) -> String {
    let count = thread::available_parallelism().map_or(0, usize::from);
    let [ours, theirs] = &place.cpus;
    let ucx = says("ucx_info", &["-v"]);
    format!("CPUs {ours} and {theirs} of {count}, {}; {PAIRS} pairs, {ucx}", machine())
}

impl Program {
    /// Returns whether the newer UCX runs it.
    fn is_new_ucx(self) -> bool {
        matches!(self, Self::NewUcx(_) | Self::NewUcp(..))
    }

    /// Returns whether the process runs the program of this name.
    fn is_of(self, name: &str) -> bool {
        match self {
            Self::Ucx(_) => name == "ucx_perftest",
            Self::Iperf => name == "iperf3",
            Self::Perf(..)
            | Self::Sockets(_)
            | Self::NewUcx(_)
            | Self::PingPong
            | Self::Connect(_)
            | Self::Ucp(..)
            | Self::NewUcp(..)
            | Self::OnDevice(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<&'static str> {
        Plan::parse(words).unwrap().rows.iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_selected_by_their_names_and_by_those_of_the_table() {
        assert_eq!(names(&["shm_fadd"]), ["shm_fadd", "shm_fadd_new"]);
        assert_eq!(names(&["shm: fetch"]), ["shm_fadd", "shm_fadd_new"]);
        assert_eq!(names(&[]).len(), ROWS.len());
    }

    #[test]
    fn arguments_are_understood_in_any_order_or_named() {
        for words in [&["shm_fadd", "--no-install"], &["--no-install", "shm_fadd"]] {
            let plan = Plan::parse(words).unwrap();
            assert_eq!((plan.rows.len(), plan.install), (2, Install::Nothing));
        }
        assert_eq!(Plan::parse(&[]).unwrap().install, Install::Missing);
        for (bad, named) in [
            (&["--fast"][..], "'--fast'"),
            (&["shm", "tcp"], "'tcp'"),
            (&["carrier pigeon"], "shm_fadd"),
        ] {
            let error = Plan::parse(bad).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
