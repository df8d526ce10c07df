//! The workspace according to cargo, and the bench binaries.

use std::path::PathBuf;

use serde_json::Value;

use super::SOON;
use super::budget::Level;
use crate::arm;
use crate::process::{self, Failure, Invocation};
use crate::test::programs::Programs;

/// The crate that counts, whose runner must have the same version.
const HARNESS: &str = "iai-callgrind";

/// Facts from cargo and rustc.
#[derive(Debug)]
pub(super) struct Workspace {
    /// The target folder.
    pub(super) target: PathBuf,
    /// Version of iai-callgrind.
    pub(super) harness: String,
    /// `rustc -V`.
    pub(super) rustc: String,
}

impl Workspace {
    pub(super) fn ask() -> Result<Self, Failure> {
        let ask = Invocation::cargo(&["metadata", "--format-version", "1"]);
        let metadata = process::text(&ask, SOON)?;
        let metadata: Value = serde_json::from_str(&metadata)
            .map_err(|error| Failure::Found(format!("cargo metadata is not JSON: {error}")))?;
        let target = metadata["target_directory"].as_str();
        let packages = metadata["packages"].as_array();
        let harness = packages.into_iter().flatten().find(|package| package["name"] == HARNESS);
        let (Some(target), Some(harness)) =
            (target, harness.and_then(|package| package["version"].as_str()))
        else {
            return Err(Failure::Found(format!(
                "cargo metadata tells no target directory, or no {HARNESS}"
            )));
        };
        let rustc = process::text(&Invocation::new("rustc", &["-V"]), SOON)?;
        Ok(Self { target: PathBuf::from(target), harness: harness.to_owned(), rustc })
    }
}

/// Returns `cargo bench` of the counted binaries, for the baseline processor: without flags,
/// profiles and limits of the environment or cargo's configuration.
pub(super) fn cargo_bench(arguments: &[&str]) -> Invocation {
    cargo_bench_of(&Level::ALL.map(Level::name), arguments, None)
}

/// Returns the same for the named binaries, and for `cpu` if one is named.
pub(super) fn cargo_bench_of(
    benches: &[&str],
    arguments: &[&str],
    cpu: Option<&str>,
) -> Invocation {
    cargo_bench_in(&["barewire-benches"], benches, arguments, cpu)
}

/// Returns the same for binaries of the named packages.
pub(super) fn cargo_bench_in(
    packages: &[&str],
    benches: &[&str],
    arguments: &[&str],
    cpu: Option<&str>,
) -> Invocation {
    let packages = packages.iter().flat_map(|package| ["-p", package]);
    let benches = benches.iter().flat_map(|bench| ["--bench", bench]);
    let bench: Vec<&str> = ["bench"]
        .into_iter()
        .chain(packages)
        .chain(benches)
        .chain(arguments.iter().copied())
        .collect();
    let foreign = ignored();
    let invocation = if foreign.is_empty() {
        Invocation::cargo(&bench)
    } else {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let unset = foreign.iter().flat_map(|name| ["-u", name]);
        Invocation::new("env", &unset.chain([&*cargo]).collect::<Vec<_>>()).with(&bench)
    };
    let flags = cpu.map_or(String::new(), |cpu| format!("-Ctarget-cpu={cpu}"));
    // Even empty, it overrides every other source of flags.
    invocation.environment("CARGO_ENCODED_RUSTFLAGS", &flags)
}

/// Returns the variables of the environment that are removed.
fn ignored() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| bends(name)).collect()
}

/// Names the variables of the environment that would change the counts and are ignored.
pub(super) fn name_ignored() {
    let names = ignored();
    if !names.is_empty() {
        println!(
            "ignored: {}; the counts are for baseline x86-64, and --target-cpu selects another",
            names.join(", ")
        );
    }
}

/// Returns whether a variable changes what is built or counted. `IAI_CALLGRIND_CALLGRIND_LIMITS`
/// would silently replace the limits.
fn bends(variable: &str) -> bool {
    let is_flags = variable.starts_with("CARGO_") && variable.ends_with("RUSTFLAGS");
    is_flags
        || variable == "RUSTFLAGS"
        || variable == "CARGO_BUILD_TARGET"
        || (variable.starts_with("IAI_CALLGRIND_") && variable != "IAI_CALLGRIND_RUNNER")
        || (variable.starts_with("CARGO_PROFILE_") && !variable.starts_with("CARGO_PROFILE_DEV_"))
}

/// A bench binary.
#[derive(Debug)]
pub(super) struct Binary {
    pub(super) level: Level,
    pub(super) path: String,
}

/// Builds the binaries.
pub(super) fn binaries() -> Result<Vec<Binary>, Failure> {
    let programs = Programs::by(cargo_bench(&["--no-run"]))?;
    let binary = |level: Level| Ok(Binary { level, path: programs.bench(level.name())? });
    Level::ALL.into_iter().map(binary).collect()
}

/// Builds the bench of the driver for aarch64, and returns its path.
pub(super) fn aarch64() -> Result<String, Failure> {
    let level = Level::Driver.name();
    let arguments = ["--no-run", "--target", arm::TARGET];
    let build = arm::tools(cargo_bench_of(&[level], &arguments, None))
        // Symbols are enough for a listing.
        .environment("CARGO_PROFILE_BENCH_DEBUG", "0");
    Programs::by(build)?.bench(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_bends_a_count() {
        for variable in [
            "RUSTFLAGS",
            "CARGO_BUILD_RUSTFLAGS",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
            "CARGO_PROFILE_BENCH_OPT_LEVEL",
            "IAI_CALLGRIND_CALLGRIND_LIMITS",
        ] {
            assert!(bends(variable), "{variable}");
        }
        for variable in
            ["PATH", "CARGO_PROFILE_DEV_DEBUG", "RUSTUP_TOOLCHAIN", "CARGO", "IAI_CALLGRIND_RUNNER"]
        {
            assert!(!bends(variable), "{variable}");
        }
    }
}
