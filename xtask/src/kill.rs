//! Kills one side of `barewire perf` at a random moment, many times: the other side must end soon
//! and report why.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Failure, Invocation, Output, repository, run};

/// How long the survivor may take to end.
const PROMISE: Duration = Duration::from_secs(5);
/// How long it is observed, to measure how late it is.
const WATCH: Duration = Duration::from_secs(30);
/// How long the second process may take to appear.
const START: Duration = Duration::from_secs(30);
/// The latest moment of a kill after that, in microseconds.
const LATEST: u64 = 400_000;
const BUILD: Duration = Duration::from_mins(30);

const TRANSPORTS: [&str; 7] = ["shm", "cma", "tcp", "rc_mlx5", "ud_mlx5", "rc_verbs", "ud_verbs"];
const TESTS: [&str; 10] =
    ["am_lat", "put_lat", "add_lat", "get", "fadd", "swap", "cswap", "am_bw", "put_bw", "add_mr"];
/// Ways to send, each with its sizes.
const LAYOUTS: [[&str; 2]; 4] =
    [["short", "8"], ["bcopy", "1000"], ["zcopy", "4096"], ["zcopy", "256K"]];

/// The number of kills, the first seed, and the program.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) count: u64,
    pub(crate) seed: u64,
    /// `None` to build it.
    pub(crate) binary: Option<PathBuf>,
}

impl Plan {
    /// Reads `--count`, `--seed` and `--binary`, each with a value.
    pub(crate) fn parse(mut words: &[&str]) -> Result<Self, String> {
        let mut plan = Self { count: 500, seed: 1, binary: None };
        while let [name, value, rest @ ..] = words {
            let number = || value.parse().map_err(|_| format!("'{value}' is no number"));
            match *name {
                "--count" => plan.count = number()?,
                "--seed" => plan.seed = number()?,
                "--binary" => plan.binary = Some(PathBuf::from(value)),
                other => return Err(format!("do not know '{other}'")),
            }
            words = rest;
        }
        if words.is_empty() { Ok(plan) } else { Err(format!("'{}' needs a value", words[0])) }
    }
}

/// The outcome of a kill.
#[derive(Debug)]
struct Death {
    transport: &'static str,
    test: &'static str,
    survivor: &'static str,
    took: Duration,
    /// Why it failed.
    failure: Option<String>,
}

/// A child that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has usually ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the plan and prints the table. Fails if a survivor ended late or without a reason.
pub(crate) fn kill(plan: &Plan) -> ExitCode {
    match deaths(plan) {
        Ok(deaths) => report(plan, &deaths),
        Err(failure) => {
            eprintln!("xtask: kill: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Kills as often as `plan` says.
///
/// # Errors
/// A survivor did not end in time, or did not report why.
pub(crate) fn check(plan: &Plan) -> Result<(), Failure> {
    let deaths = deaths(plan)?;
    match deaths.iter().filter(|(_, death)| death.failure.is_some()).count() {
        0 => Ok(()),
        failed => Err(Failure::Found(format!("{failed} of {} survivors failed", deaths.len()))),
    }
}

fn deaths(plan: &Plan) -> Result<Vec<(u64, Death)>, Failure> {
    if plan.binary.is_none() {
        run(&Invocation::cargo(&["build", "-p", "barewire-cli"]), BUILD, Output::Inherit)?;
    }
    let built = || repository().join("target/debug/barewire");
    let binary = plan.binary.clone().unwrap_or_else(built);
    let mut program = Program { binary, works: BTreeMap::new() };
    let transports: Vec<&str> =
        TRANSPORTS.into_iter().filter(|name| program.takes(name, "", ["", ""])).collect();
    if transports.is_empty() {
        return Err(Failure::Found("no transport joins two processes here".into()));
    }
    let mut deaths = Vec::new();
    for seed in plan.seed..plan.seed.saturating_add(plan.count) {
        let death = program.kill_one(seed, &transports)?;
        if let Some(failure) = &death.failure {
            println!("seed {seed}: {} {}: {failure}", death.transport, death.test);
        }
        deaths.push((seed, death));
    }
    Ok(deaths)
}

struct Program {
    binary: PathBuf,
    /// The combinations that the program accepts, as far as they were tried.
    works: BTreeMap<[&'static str; 4], bool>,
}

impl Program {
    fn perf(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("perf")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Returns whether the transport runs the test in this way; without a test, whether it is
    /// available.
    fn takes(
        &mut self,
        transport: &'static str,
        test: &'static str,
        [layout, size]: [&'static str; 2],
    ) -> bool {
        let key = [transport, test, layout, size];
        if let Some(known) = self.works.get(&key) {
            return *known;
        }
        let mut words = vec!["-x", transport, "-n", "10", "-w", "0"];
        if test.is_empty() {
            words.extend(["-t", "put_bw", "-D", "zcopy", "-s", "4096"]);
            if transport.starts_with("ud_") {
                words.splice(6.., ["-t", "am_lat"]);
            }
        } else {
            words.extend(["-t", test, "-D", layout, "-s", size]);
        }
        let works = self.perf(&words).output().is_ok_and(|output| output.status.success());
        self.works.insert(key, works);
        works
    }

    /// The kill follows from the seed, except for its moment within microseconds.
    fn kill_one(&mut self, seed: u64, transports: &[&'static str]) -> Result<Death, Failure> {
        let mut random = fastrand::Rng::with_seed(seed);
        let cells = transports.len() as u64;
        // Every transport meets every test.
        let transport = transports[(seed % cells) as usize];
        let first = seed / cells;
        let ways = LAYOUTS.len() as u64;
        let way = random.u64(..ways);
        let candidates =
            (0..TESTS.len() as u64).flat_map(|test| (0..ways).map(move |layout| (test, layout)));
        let mut found = None;
        for (test, layout) in candidates {
            let test = TESTS[((first + test) % TESTS.len() as u64) as usize];
            let layout = LAYOUTS[((way + layout) % ways) as usize];
            if self.takes(transport, test, layout) {
                found = Some((test, layout));
                break;
            }
        }
        let Some((test, [layout, size])) = found else {
            return Err(Failure::Found(format!("no test runs over {transport}")));
        };
        let words =
            ["-x", transport, "-t", test, "-D", layout, "-s", size, "-n", "1000G", "-w", "0"];
        let start = |cause| Failure::Start { program: self.binary.display().to_string(), cause };
        let mut running = Running(self.perf(&words).spawn().map_err(start)?);
        let mut stderr = running.0.stderr.take();
        let (sender, ended) = channel();
        thread::spawn(move || {
            let mut text = String::new();
            if let Some(stderr) = &mut stderr {
                // Both processes hold it, so the read ends with the last of them.
                let _ = stderr.read_to_string(&mut text);
            }
            let _ = sender.send((Instant::now(), text));
        });
        let pid = running.0.id();
        let Some(second) = second_of(pid) else {
            return Err(Failure::Found(format!(
                "seed {seed}: no second process of: perf {}",
                words.join(" ")
            )));
        };
        thread::sleep(Duration::from_micros(random.u64(..LATEST)));
        let (victim, survivor, name) = match random.u64(..2) {
            0 => (pid, second, "second"),
            _ => (second, pid, "first"),
        };
        let killed = Instant::now();
        end(victim);
        let mut death = Death { transport, test, survivor: name, took: WATCH, failure: None };
        match ended.recv_timeout(WATCH) {
            Ok((end, text)) => {
                death.took = end.saturating_duration_since(killed);
                death.failure = judge(&death, &text);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                end(survivor);
                death.failure =
                    Some(format!("the {name} process did not end in {} s", WATCH.as_secs()));
            }
        }
        death.failure =
            death.failure.map(|failure| format!("{failure} (barewire perf {})", words.join(" ")));
        Ok(death)
    }
}

/// Returns what is wrong with the survivor's end.
fn judge(death: &Death, text: &str) -> Option<String> {
    let victim = if death.survivor == "first" { "the second process" } else { "the first process" };
    let line = text.lines().find(|line| line.starts_with("barewire: error: "));
    if death.took > PROMISE {
        return Some(format!(
            "the {} process took {:.1} s: {text}",
            death.survivor,
            death.took.as_secs_f64()
        ));
    }
    match line {
        Some(line) if line.contains(victim) && text.lines().count() == 1 => None,
        _ => Some(format!(
            "the {} process did not say in one line what happened: '{text}'",
            death.survivor
        )),
    }
}

/// Returns the child of `parent`, once it exists and runs another program.
fn second_of(parent: u32) -> Option<u32> {
    let started = Instant::now();
    while started.elapsed() < START {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        let mut pids = children.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
        let is_second = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|words| words.starts_with(b"barewire\0second"))
        };
        if let Some(pid) = pids.find(is_second) {
            return Some(pid);
        }
        thread::sleep(Duration::from_micros(200));
    }
    None
}

/// Kills our child, or a child of it that existed a moment ago.
fn end(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn report(plan: &Plan, deaths: &[(u64, Death)]) -> ExitCode {
    let mut cells: BTreeMap<(&str, &str), Vec<Duration>> = BTreeMap::new();
    for (_, death) in deaths {
        cells.entry((death.transport, death.test)).or_default().push(death.took);
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{:<10} {:<8} {:>5} {:>11} {:>12}",
        "transport", "test", "kills", "median ms", "longest ms"
    );
    for ((transport, test), times) in &mut cells {
        times.sort_unstable();
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{transport:<10} {test:<8} {:>5} {:>11.1} {:>12.1}",
            times.len(),
            milliseconds(median),
            milliseconds(longest)
        );
    }
    let failed: Vec<_> =
        deaths.iter().filter_map(|(seed, death)| Some((seed, death.failure.as_ref()?))).collect();
    println!("{} kills, {} survivors late or without a reason", deaths.len(), failed.len());
    let binary =
        plan.binary.as_ref().map_or(String::new(), |path| format!(" --binary {}", path.display()));
    for (seed, failure) in &failed {
        println!("cargo xtask kill --count 1 --seed {seed}{binary}: {failure}");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        let plan = Plan::parse(&["--seed", "7", "--count", "20"]).unwrap();
        assert_eq!((plan.seed, plan.count, plan.binary), (7, 20, None));
        for bad in [&["--seed"][..], &["--seed", "x"], &["--moment", "1"]] {
            assert!(Plan::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_survivor_names_the_other_in_one_line_and_in_time() {
        let death =
            |took| Death { transport: "shm", test: "get", survivor: "first", took, failure: None };
        let soon = death(Duration::from_millis(2));
        let line = "barewire: error: lost the second process (pid 7) during get: it ended with signal: 9 (SIGKILL)\n";
        assert_eq!(judge(&soon, line), None);
        assert!(judge(&soon, "").is_some());
        assert!(judge(&soon, &line.replace("second", "first")).is_some());
        assert!(judge(&soon, &format!("thread 'main' panicked\n{line}")).is_some());
        assert!(judge(&death(Duration::from_secs(6)), line).unwrap().contains("6.0 s"));
    }
}
