//! NVIDIA's libnccl, whose loader of plugins and whose own network judge channels: from its Python
//! package.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::packages::Install;
use crate::process::{self, Failure, Invocation, Output};

/// The variable that names another library, also for the tests.
pub(crate) const VARIABLE: &str = "BAREWIRE_LIBNCCL";
/// The package in the Python Package Index, with its version.
const PACKAGE: &str = "nvidia-nccl-cu12==2.32.3";
/// The package has 350 MB, and a check must not wait for it longer.
const DOWNLOAD: Duration = Duration::from_mins(2);
const EXTRACT: Duration = Duration::from_mins(1);

/// Finds the library under the target folder, or installs it there. Only the library is kept, and
/// without its code for GPUs. The error says why it is left out.
pub(crate) fn find(install: Install) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Ok(PathBuf::from(path));
    }
    let folder = process::target().join("nccl-2.32.3");
    let library = folder.join("libnccl.so.2");
    if library.exists() {
        return Ok(library);
    }
    let left_out = |why: &dyn std::fmt::Display| {
        format!(
            "NVIDIA's libnccl, beside channels: {why}; set {VARIABLE} to the libnccl.so.2 of the Python package {PACKAGE}"
        )
    };
    if install == Install::Nothing {
        return Err(left_out(&"not installed, as asked"));
    }
    let download = folder.join("download");
    let outcome = download_to(&download).and_then(|wheel| extract(&wheel, &library));
    let _ = fs::remove_dir_all(&download);
    match outcome {
        Ok(()) => Ok(library),
        Err(failure) => Err(left_out(&failure)),
    }
}

/// Downloads the package to a folder, and returns its path.
fn download_to(folder: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::Found(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let to = folder.to_string_lossy();
    // pip's cache, and its folder for temporary files, would have the package as well.
    let words = ["-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--dest", &*to];
    let pip = Invocation::new("python3", &words).with(&[PACKAGE]).environment("TMPDIR", &to);
    println!("{pip}");
    process::run(&pip, DOWNLOAD, Output::Inherit)?;
    let mut files = fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path());
    let wheel = files.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| Failure::Found("pip downloaded no wheel".to_owned()))
}

fn extract(wheel: &Path, library: &Path) -> Result<(), Failure> {
    // Renamed when complete, so that a later run does not take a partial file for the library.
    let partial = wheel.with_file_name("libnccl.so.2");
    let script = process::repository().join("xtask/src/libnccl.py");
    let [script, wheel, to] = [&script, wheel, &partial].map(|path| path.to_string_lossy());
    let extract = Invocation::new("python3", &[&script, &wheel, &to]);
    println!("{extract}");
    process::run(&extract, EXTRACT, Output::Inherit)?;
    fs::rename(&partial, library)
        .map_err(|error| Failure::Found(format!("{}: {error}", library.display())))
}
