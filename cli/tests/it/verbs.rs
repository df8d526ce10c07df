//! The tests of `barewire-verbs` that need a device, with the software HCA as the device: Debian's
//! libibverbs and libmlx5 over the kernel's ABI as implemented in `hca/uverbs/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::hca::{self, alone, installed};

/// The built test program; `None` if libibverbs is not installed.
fn tests() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
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

fn build() -> PathBuf {
    let mut cargo = hca::cargo("test");
    cargo.args(["--no-run", "--test", "it"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    if !cfg!(feature = "verbs") {
        cargo.args(["--features", "barewire-verbs/rdma-cm"]);
    }
    let built = cargo.output().expect("cargo starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let messages = String::from_utf8_lossy(&built.stdout);
    let messages =
        messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    // Every crate of the workspace has tests of this name.
    let is_it = |message: &serde_json::Value| {
        let manifest = message["manifest_path"].as_str();
        message["target"]["kind"][0] == "test"
            && manifest.is_some_and(|path| path.ends_with("/verbs/Cargo.toml"))
    };
    let mut programs =
        messages.filter(is_it).filter_map(|message| Some(message["executable"].as_str()?.into()));
    programs.next().expect("cargo names the program")
}

/// All but the tests of refusals.
fn all_pass(options: &[&str]) {
    let Some(program) = tests() else { return };
    let arguments = ["--ignored", "--test-threads=4", "--skip", "refused::"];
    let printed = alone(options, &[&[program.to_str().unwrap()], &arguments[..]].concat());
    println!("{printed}");
    assert!(printed.contains("test result: ok"), "{printed}");
    assert!(!printed.contains("running 0 tests"), "{printed}");
}

#[test]
fn a_refusal_of_devx_says_what_else_there_is() {
    let Some(program) = tests() else { return };
    let test = ["--ignored", "--exact", "refused::a_device_without_devx"];
    let printed = alone(&["--no-devx"], &[&[program.to_str().unwrap()], &test[..]].concat());
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
