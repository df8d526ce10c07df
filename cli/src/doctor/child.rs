//! Rows in processes of their own, so that a hung queue or a signal costs one row.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use barewire::TransportId;

use super::outcome::{Outcome, lost};
use super::table::Row;
use super::target::{SETUP, Target};
use crate::child::end_with_parent;
use crate::error::{Error, one_line};

/// How often the parent looks whether the child has ended.
const TICK: Duration = Duration::from_millis(2);
/// An orphan ends this much later than its parent would have ended it.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the row in a child and returns its outcome and its time.
pub(super) fn run(row: &Row, target: &Target) -> Result<(Outcome, Duration), Error> {
    let started = Instant::now();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("barewire")
        .args(["doctor-row", row.name, &target.device])
        .args(target.transport.map(TransportId::name))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some((host, port)) = &target.peer {
        command.args(["--peer", host, "--port", &port.to_string()]);
    }
    if let Some(setup) = target.setup {
        command.env(SETUP, setup);
    }
    end_with_parent(&mut command);
    let failed = |error: io::Error| lost("cannot start the process of a row", &error);
    let mut running = Running(command.spawn().map_err(failed)?);
    let [stdout, stderr] =
        [running.0.stdout.take().map(read_all), running.0.stderr.take().map(read_all)];
    let ended = running.wait(row.deadline).map_err(failed)?;
    drop(running);
    let [stdout, stderr] = [text(stdout), text(stderr)];
    let outcome = ended.map_or_else(
        || Outcome::failed(format!("it did not end within {} s", row.deadline.as_secs())),
        |status| outcome(status, &stdout, &stderr),
    );
    Ok((outcome, started.elapsed()))
}

/// What the child printed, or how it ended.
fn outcome(status: ExitStatus, stdout: &str, stderr: &str) -> Outcome {
    match serde_json::from_str(stdout.trim()) {
        Ok(outcome) if status.success() => outcome,
        _ => Outcome::failed(format!("its process ended with {status}: {}", one_line(stderr))),
    }
}

/// A child, which is killed on drop.
struct Running(Child);

impl Running {
    /// Waits until the child has ended; `None` after the deadline.
    fn wait(&mut self, deadline: Duration) -> io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if started.elapsed() > deadline {
                return Ok(None);
            }
            thread::sleep(TICK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the child has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads in a thread, since a child must not wait for room in a pipe.
fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn text(reader: Option<JoinHandle<String>>) -> String {
    reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
}

/// Called in the child: makes it end some time after the row's deadline, should its parent have
/// ended before the kernel watched it.
pub(super) fn end_in_time(row: &Row) {
    let seconds = row.deadline.saturating_add(GRACE).as_secs();
    // SAFETY: alarm takes no pointers.
    unsafe { libc::alarm(u32::try_from(seconds).unwrap_or(u32::MAX)) };
}
