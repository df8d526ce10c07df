//! `barewire doctor`: tests the host and its RDMA devices, row by row.

mod child;
mod outcome;
mod report;
mod rows;
mod table;
mod target;

use barewire::TransportId;

use crate::args::{DoctorArgs, DoctorRowArgs, PerfArgs, TestArgs};
use crate::control::Message;
use crate::error::{Error, one_line};
use crate::output::{Output, check_file, columns, entry, warning_line, wrapped, write_file};
use crate::peer::Work;
use crate::perf;
use crate::remote::{with_client, with_server};
use crate::transports::{is_first_port, unknown};
use outcome::{Outcome, State};
use report::{Entry, Report};
use table::{ROWS, Row, Scope};
use target::{LOOPBACK, MEMORY, SOFT, Target};

/// What the last message to the doctor of another host is for.
const FAREWELL: &str = "the end";
/// The file of `--report`, in errors.
const REPORT: &str = "the report";

/// Runs the rows, and prints their outcomes and the verdict.
pub(crate) fn run(args: &DoctorArgs, out: &mut Output) -> Result<(), Error> {
    let (devices, missing) = devices(&args.devices)?;
    if let Some(file) = &args.report {
        check_file(REPORT, file)?;
    }
    let mut report = Report::new(missing);
    let mut print = |entry: &Entry, first: bool| {
        if args.json {
            return Ok(());
        }
        if first {
            out.line(format!("-- {}", entry.target))?;
        }
        out.line(entry.text(columns()))
    };
    each(&Target::host(), Scope::Host, &mut report, &mut print)?;
    for (device, is_mlx5) in devices {
        if device.is_rdma() {
            each(&device, Scope::Device, &mut report, &mut print)?;
        }
        for mut path in device.paths(is_mlx5) {
            path.peer = args.peer.clone().map(|host| (host, args.port));
            each(&path, Scope::Path, &mut report, &mut print)?;
        }
    }
    if let Some(host) = &args.peer
        && let Err(error) =
            with_server(host, args.port, Work::Doctor, |link| link.send(&Message::Done, FAREWELL))
    {
        warning_line(&format!("the doctor that listens is left behind: {error}"));
    }
    if args.json {
        out.line(format!("{:#}", report.json()))?;
    } else {
        out.line("")?;
        for line in report.verdict() {
            out.line(wrapped(&line, 4, columns()))?;
        }
    }
    if let Some(file) = &args.report {
        write_file(REPORT, file, &format!("{:#}\n", report.json()))?;
    }
    if args.listen {
        listen(args, out)?;
    }
    match report.failures() {
        0 => Ok(()),
        count => Err(Error::Local(format!("{count} rows failed"))),
    }
}

/// Serves the rows of another host's doctor until it says that it has finished.
fn listen(args: &DoctorArgs, out: &mut Output) -> Result<(), Error> {
    let limits = PerfArgs {
        max_memory: 64 << 20,
        max_messages: Some(100_000),
        test: TestArgs { device: args.devices.first().cloned(), ..TestArgs::default() },
        ..PerfArgs::default()
    };
    let listening = |address: &dyn std::fmt::Display| {
        if args.json {
            return Ok(());
        }
        out.line(format!("waiting for the doctor of another host on {address}"))
    };
    with_client(args.bind, args.port, Work::Doctor, listening, |link| {
        let tests = perf::follow(link, Some(&limits))?;
        Ok((tests == 0).then_some(()))
    })
}

/// Runs the rows of one target.
fn each(
    target: &Target,
    scope: Scope,
    report: &mut Report,
    print: &mut dyn FnMut(&Entry, bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let first = report.entries.len();
    let here = |row: &&Row| match row.scope {
        Scope::Queues => scope == Scope::Path && target.is_rdma(),
        Scope::Family => scope == Scope::Path && target.transport == Some(TransportId::RcMlx5),
        Scope::Peer => scope == Scope::Path && target.peer.is_some(),
        own => own == scope,
    };
    for row in ROWS.iter().filter(here) {
        // What is not set up has no other rows, also where the row before these is left out.
        let needed = row.needs.into_iter().chain(row.needs.map(|_| "setup"));
        let blocked = needed.into_iter().find(|needed| {
            let mut before = report.entries[first..].iter();
            before.any(|entry| entry.row.name == *needed && entry.outcome.state != State::Ok)
        });
        let (outcome, took) = match blocked {
            Some(needed) => {
                (Outcome::skipped(format!("it needs '{needed}'")), std::time::Duration::ZERO)
            }
            None => child::run(row, target)?,
        };
        report.entries.push(Entry { row, target: target.clone(), outcome, took });
        let last = report.entries.len() - 1;
        print(&report.entries[last], last == first)?;
    }
    Ok(())
}

/// The process of one row: prints its outcome as JSON.
pub(crate) fn row(args: &DoctorRowArgs, out: &mut Output) -> Result<(), Error> {
    let unknown = || Error::Usage(format!("there is no row '{}'", args.row));
    let row = table::find(&args.row).ok_or_else(unknown)?;
    child::end_in_time(row);
    let transport = args.transport.as_deref().map(str::parse::<TransportId>).transpose();
    let transport = transport.map_err(|error| Error::Usage(error.to_string()))?;
    let peer = args.peer.clone().map(|host| (host, args.port));
    let target = Target { transport, peer, ..Target::device(&args.device) };
    let mut outcome = Outcome::from((row.check)(&target));
    outcome.detail = one_line(&outcome.detail);
    let text = serde_json::to_string(&outcome).map_err(|error| Error::Local(error.to_string()))?;
    out.line(text)
}

/// Sets up every device by every path, each in a separate process, and prints the reason for each
/// path that is rejected.
pub(crate) fn explain(out: &mut Output) -> Result<(), Error> {
    let (devices, missing) = rdma_devices();
    let row = table::find("setup").ok_or_else(|| Error::Local("no row sets up".to_owned()))?;
    for path in devices.iter().flat_map(|(device, is_mlx5)| device.paths(*is_mlx5)) {
        let Outcome { state, detail } = child::run(row, &path)?.0;
        let verdict = if state == State::Ok { "works" } else { "rejected" };
        out.line(entry(&format!("{path}: {verdict}: {detail}")))?;
    }
    for reason in missing {
        out.line(entry(&format!("devices of this machine: rejected: {reason}")))?;
    }
    Ok(())
}

/// The devices to test and whether libmlx5 supports them, and why there are not more.
type Devices = (Vec<(Target, bool)>, Vec<String>);

/// The devices of the command line. Without a choice, those of the machine or the software HCA,
/// memory and the loopback.
fn devices(wanted: &[String]) -> Result<Devices, Error> {
    if wanted.is_empty() {
        let (mut targets, reasons) = rdma_devices();
        targets.extend([MEMORY, LOOPBACK].map(|device| (Target::device(device), false)));
        return Ok((targets, reasons));
    }
    let found = found();
    let target = |device: &String| {
        let device = if is_first_port(SOFT, device) { SOFT } else { device };
        let (target, name) = (Target::device(device), name(device));
        let is_mlx5 = found.iter().any(|(known, is_mlx5)| known == name && *is_mlx5);
        // What this build cannot open is skipped, with the reason.
        let others = barewire_verbs::probe().into_iter().map(|finding| finding.device);
        let others = others.filter(|device| device != barewire_verbs::MACHINE);
        let known: Vec<String> =
            found.iter().map(|(known, _)| known.clone()).chain(others).collect();
        // The transports say which addresses this host has.
        if target.is_soft() || !target.is_rdma() || known.iter().any(|known| known == name) {
            return Ok((target, is_mlx5));
        }
        let known =
            known.iter().map(String::as_str).chain([SOFT, MEMORY, "addresses of this host"]);
        Err(unknown("device", device, known))
    };
    Ok((wanted.iter().map(target).collect::<Result<_, _>>()?, Vec::new()))
}

/// The name of a device without the port.
fn name(device: &str) -> &str {
    device.split(':').next().unwrap_or_default()
}

/// The devices of the machine with queues, or the software HCA and the reasons.
fn rdma_devices() -> Devices {
    let found = found();
    if !found.is_empty() {
        let target = |(name, is_mlx5)| (Target::device(&format!("{name}:1")), is_mlx5);
        return (found.into_iter().map(target).collect(), Vec::new());
    }
    let reasons = barewire_verbs::probe().into_iter().map(|finding| {
        let lack = "this build lacks the feature verbs".to_owned();
        let reason = if finding.usable { lack } else { finding.reason };
        format!("{}: {reason}", finding.device)
    });
    (vec![(Target::device(SOFT), true)], reasons.collect())
}

/// The devices of libibverbs, which are not opened, and whether libmlx5 supports them.
#[cfg(feature = "verbs")]
fn found() -> Vec<(String, bool)> {
    let devices = barewire_verbs::devices().unwrap_or_default();
    devices.into_iter().map(|device| (device.name, device.is_mlx5)).collect()
}

#[cfg(not(feature = "verbs"))]
fn found() -> Vec<(String, bool)> {
    Vec::new()
}
