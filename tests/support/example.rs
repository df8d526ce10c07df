//! Runs an example until it exits.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a machine under load.
const DEADLINE: Duration = Duration::from_mins(2);

/// The program of an example: Cargo puts examples beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folder = here.parent().and_then(|deps| deps.parent()).unwrap();
    let program = folder.join("examples").join(name);
    assert!(program.exists(), "{} is not built: cargo build --examples", program.display());
    program
}

/// Runs a program that must succeed in time. Returns what it printed, and its errors.
pub(crate) fn finish(command: &mut Command) -> (String, String) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("{command:?} does not end: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    (stdout, stderr)
}
