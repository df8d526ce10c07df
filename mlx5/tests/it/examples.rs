//! Runs the examples as separate processes.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time for a machine under load.
const DEADLINE: Duration = Duration::from_mins(1);

#[test]
fn embed_mlx5() {
    assert_eq!(output("embed_mlx5"), "wrote and read back \"barewire\", 8 bytes\n");
}

#[test]
fn batch_writer() {
    assert_eq!(output("batch_writer"), "wrote 256 pages, sum 496\n");
}

#[test]
fn recover() {
    let printed = output("recover");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "8 of 16 pages have arrived");
    assert!(lines[1].starts_with("the next one failed: remote access error"), "{printed}");
    assert_eq!(lines[2..], ["the others arrived after the reset"]);
}

/// What the example prints.
fn output(example: &str) -> String {
    // Cargo puts examples beside the tests.
    let here = std::env::current_exe().unwrap();
    let binary =
        here.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(example);
    assert!(
        binary.exists(),
        "{} is not built: cargo build -p barewire-mlx5 --examples",
        binary.display()
    );
    let mut child =
        Command::new(binary).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("the example does not end: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {printed}", output.status);
    printed.into_owned()
}
