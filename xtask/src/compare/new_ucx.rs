//! A current UCX: its Python package contains `ucx_perftest`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::packages::Install;
use crate::process::{self, Invocation, Output};

/// The package in the Python Package Index, with its version.
const PACKAGE: &str = "libucx-cu12==1.22.0";
const INSTALL: Duration = Duration::from_mins(5);

/// Its installation.
#[derive(Clone, Debug)]
pub(super) struct NewUcx {
    pub(super) program: String,
    /// Its environment, as arguments of env(1).
    pub(super) libraries: String,
}

/// Finds it under `target`, or installs it there; prints a reason and returns `None` if that fails.
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
    // Not every version of pip makes the file executable.
    if let Err(error) = fs::set_permissions(&program, Permissions::from_mode(0o755)) {
        println!("cannot run {}: {error}", program.display());
        return None;
    }
    let absolute =
        |path: PathBuf| fs::canonicalize(&path).unwrap_or(path).to_string_lossy().into_owned();
    Some(NewUcx {
        program: absolute(program),
        libraries: format!("LD_LIBRARY_PATH={}", absolute(folder.join("libucx/lib"))),
    })
}
