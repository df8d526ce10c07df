//! The tests of `barewire-verbs` that need a device, with the software HCA as the device: Debian's
//! libibverbs and libmlx5 over the kernel's ABI as implemented in `hca/uverbs/`.

mod support;

#[path = "hca/mod.rs"]
mod hca;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use hca::{alone, installed};

/// The tests that a device passes, and one that it must refuse.
const TESTS: [&str; 7] = ["devx", "direct", "events", "memory", "objects", "posting", REFUSED];
const REFUSED: &str = "refused";

/// The built test programs; `None` if libibverbs is not installed.
fn tests() -> Option<&'static [PathBuf]> {
    static BUILT: OnceLock<Option<Vec<PathBuf>>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let found =
            Command::new("pkg-config").args(["--exists", "libibverbs", "librdmacm"]).status();
        if !installed("ibv_devinfo", "ibverbs-utils") || !found.is_ok_and(|found| found.success()) {
            hca::skipped(
                "libibverbs and librdmacm for development",
                "libibverbs-dev librdmacm-dev",
            );
            return None;
        }
        Some(build())
    });
    built.as_deref()
}

fn build() -> Vec<PathBuf> {
    let mut cargo = hca::cargo("test");
    cargo
        .arg("--no-run")
        .args(TESTS.iter().flat_map(|name| ["--test", name]))
        .args(["--message-format", "json-render-diagnostics"]);
    if !cfg!(feature = "verbs") {
        cargo.args(["--features", "barewire-verbs/rdma-sys"]);
    }
    let built = cargo.output().expect("cargo starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let messages = String::from_utf8_lossy(&built.stdout);
    let messages =
        messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let programs: Vec<PathBuf> = messages
        .filter(|message| message["target"]["kind"][0] == "test")
        .filter_map(|message| Some(message["executable"].as_str()?.into()))
        .collect();
    assert_eq!(programs.len(), TESTS.len(), "{programs:?}");
    programs
}

fn all_pass(options: &[&str]) {
    for program in tests().unwrap_or_default().iter().filter(|program| !is_refused(program)) {
        let printed = alone(options, &[program.to_str().unwrap(), "--ignored", "--test-threads=4"]);
        println!("{printed}");
        assert!(printed.contains("test result: ok"), "{printed}");
        assert!(!printed.contains("running 0 tests"), "{printed}");
    }
}

fn is_refused(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REFUSED))
}

#[test]
fn a_refusal_of_devx_says_what_else_there_is() {
    let Some(program) = tests().unwrap_or_default().iter().find(|program| is_refused(program))
    else {
        return;
    };
    let arguments = [program.to_str().unwrap(), "--ignored", "--exact", "a_device_without_devx"];
    let printed = alone(&["--no-devx"], &arguments);
    assert!(printed.contains("1 passed"), "{printed}");
}

#[test]
fn objects_work_on_ethernet() {
    all_pass(&[]);
}

#[test]
fn objects_work_on_infiniband() {
    all_pass(&["--ib"]);
}
