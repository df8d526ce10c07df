//! Runs the examples as separate processes.

#[path = "../../../tests/support/example.rs"]
mod example;

use std::process::Command;

use example::{example, finish};

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
fn output(name: &str) -> String {
    finish(&mut Command::new(example(name))).0
}
