//! What the test programs of this crate share.

use std::path::Path;
use std::process::Command;

/// Copies the running program to `path`, for every user to execute.
///
/// Another process writes the copy: the kernel executes no file that is open for writing, and a child
/// that another test starts meanwhile inherits the descriptors of this process.
pub(crate) fn copy_of_this_program(path: &Path) {
    let mut copy = Command::new("install");
    copy.arg("--mode=755").arg(std::env::current_exe().unwrap()).arg(path);
    assert!(copy.status().unwrap().success());
}
