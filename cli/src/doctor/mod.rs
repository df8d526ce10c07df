//! `barewire doctor`: tests the host, its devices, and every path to them, row by row.

mod child;
mod outcome;
mod report;
mod rows;
mod table;
mod target;

use barewire::TransportId;

use crate::args::{DoctorArgs, DoctorRowArgs};
use crate::error::{Error, one_line};
use crate::output::Output;
use outcome::{Outcome, State};
use report::{Entry, Report};
use table::{ROWS, Scope};
use target::{SOFT, Target};

/// Runs the rows, and prints their outcomes and the verdict.
pub(crate) fn run(args: &DoctorArgs, out: &mut Output) -> Result<(), Error> {
    let (devices, missing) = devices(&args.devices);
    let mut report = Report::new(missing);
    let mut print = |entry: &Entry, first: bool| {
        if args.json {
            return Ok(());
        }
        if first {
            out.line(format!("-- {}", entry.target))?;
        }
        out.line(entry)
    };
    each(&Target::host(), Scope::Host, &mut report, &mut print)?;
    for (device, is_mlx5) in devices {
        each(&device, Scope::Device, &mut report, &mut print)?;
        for path in device.paths(is_mlx5) {
            each(&path, Scope::Path, &mut report, &mut print)?;
        }
    }
    if args.json {
        out.line(format!("{:#}", report.json()))?;
    } else {
        out.line("")?;
        for line in report.verdict() {
            out.line(line)?;
        }
    }
    if let Some(file) = &args.report {
        std::fs::write(file, format!("{:#}\n", report.json()))
            .map_err(|error| outcome::lost(&format!("cannot write {}", file.display()), &error))?;
    }
    match report.failures() {
        0 => Ok(()),
        count => Err(Error::Local(format!("{count} rows failed"))),
    }
}

/// Runs the rows of one target.
fn each(
    target: &Target,
    scope: Scope,
    report: &mut Report,
    print: &mut dyn FnMut(&Entry, bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let first = report.entries.len();
    for row in ROWS.iter().filter(|row| row.scope == scope) {
        let blocked = row.needs.filter(|needed| {
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
    let target = Target { transport, ..Target::device(&args.device) };
    let mut outcome = Outcome::from((row.check)(&target));
    outcome.detail = one_line(&outcome.detail);
    let text = serde_json::to_string(&outcome).map_err(|error| Error::Local(error.to_string()))?;
    out.line(text)
}

/// Sets up every device by every path, each in a separate process, and prints the reason for each
/// path that is rejected.
pub(crate) fn explain(out: &mut Output) -> Result<(), Error> {
    let (devices, missing) = devices(&[]);
    let row = table::find("setup").ok_or_else(|| Error::Local("no row sets up".to_owned()))?;
    for path in devices.iter().flat_map(|(device, is_mlx5)| device.paths(*is_mlx5)) {
        let Outcome { state, detail } = child::run(row, &path)?.0;
        let verdict = if state == State::Ok { "works" } else { "rejected" };
        out.line(format!("{path}: {verdict}: {detail}"))?;
    }
    for reason in missing {
        out.line(format!("devices of this machine: rejected: {reason}"))?;
    }
    Ok(())
}

/// The devices to test and whether libmlx5 supports them, and why there are not more. Without
/// devices of the machine, the software HCA.
fn devices(wanted: &[String]) -> (Vec<(Target, bool)>, Vec<String>) {
    let found = found();
    if !wanted.is_empty() {
        let is_mlx5 = |device: &String| {
            let name = device.split(':').next().unwrap_or_default();
            found.iter().any(|(known, is_mlx5)| known == name && *is_mlx5)
        };
        let target = |device: &String| (Target::device(device), is_mlx5(device));
        return (wanted.iter().map(target).collect(), Vec::new());
    }
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
