//! A current UCX, from its Python package: the other side of comparisons, and a program of newer
//! headers for tests of `barewire-uct` (`cli/tests/it/uct_newer.rs`).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::packages::Install;
use crate::process::{self, Invocation, Output};

/// The package in the Python Package Index, with its version.
const PACKAGE: &str = "libucx-cu12==1.22.0";
const INSTALL: Duration = Duration::from_mins(5);

/// Its installation.
#[derive(Clone, Debug)]
pub(crate) struct NewUcx {
    pub(crate) program: String,
    /// Its environment, as arguments of env(1).
    pub(crate) libraries: String,
}

/// Finds it in the target folder, or installs it there. The error says why it is left out.
pub(crate) fn find(install: Install) -> Result<NewUcx, String> {
    let folder = process::target().join("ucx-1.22");
    let program = folder.join("libucx/bin/ucx_perftest");
    let left_out = |why: &dyn std::fmt::Display| {
        format!(
            "UCX 1.22: {why}; python3 -m pip install --no-deps --target {} {PACKAGE}",
            folder.display()
        )
    };
    if !program.exists() {
        if install == Install::Nothing {
            return Err(left_out(&"not installed"));
        }
        let folder = folder.to_string_lossy();
        let words = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", &*folder, PACKAGE];
        let pip = Invocation::new("python3", &words);
        println!("{pip}");
        process::run(&pip, INSTALL, Output::Inherit).map_err(|failure| left_out(&failure))?;
    }
    // Not every version of pip makes the files executable.
    for name in ["ucx_perftest", "ucx_info"] {
        fs::set_permissions(program.with_file_name(name), Permissions::from_mode(0o755))
            .map_err(|error| left_out(&error))?;
    }
    Ok(NewUcx {
        program: program.to_string_lossy().into_owned(),
        libraries: format!("LD_LIBRARY_PATH={}", folder.join("libucx/lib").to_string_lossy()),
    })
}
