//! A current UCX: what its makers publish for Python, which has `ucx_perftest` in it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::packages::Install;
use crate::process::{self, Invocation, Output};

/// The package in the Python Package Index, of a version that the table names.
const PACKAGE: &str = "libucx-cu12==1.22.0";
const INSTALL: Duration = Duration::from_mins(5);

/// Where it is.
#[derive(Clone, Debug)]
pub(super) struct NewUcx {
    pub(super) program: String,
    /// What its environment needs, as env(1) takes it.
    pub(super) libraries: String,
}

/// Finds it under `target`, or has it installed there; `None` if it cannot be had, with a word about it.
pub(super) fn find(install: Install, target: &str) -> Option<NewUcx> {
    let folder = PathBuf::from(target).join("ucx-1.22");
    let program = folder.join("libucx/bin/ucx_perftest");
    if !program.exists() && install == Install::Missing {
        let folder = folder.to_string_lossy();
        let words = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", &*folder, PACKAGE];
        let pip = Invocation::new("python3", &words);
        println!("{pip}");
        if let Err(failure) = process::run(&pip, INSTALL, Output::Inherit) {
            println!("not installed: {failure}");
        }
    }
    if !program.exists() {
        println!(
            "UCX 1.22 is not there: python3 -m pip install --no-deps --target {} {PACKAGE}",
            folder.display()
        );
        return None;
    }
    // Not every version of pip makes it a program.
    if let Err(error) = fs::set_permissions(&program, Permissions::from_mode(0o755)) {
        println!("cannot run {}: {error}", program.display());
        return None;
    }
    let absolute = |path: PathBuf| fs::canonicalize(&path).unwrap_or(path).to_string_lossy().into_owned();
    Some(NewUcx {
        program: absolute(program),
        libraries: format!("LD_LIBRARY_PATH={}", absolute(folder.join("libucx/lib"))),
    })
}
