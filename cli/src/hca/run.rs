//! Starts the program and waits for it.

use super::tree::Tree;
use crate::args::HcaRunArgs;
use crate::error::{Error, local};
use crate::preload::{self, Library};
use barewire_hca::ADDRESS_VARIABLE;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

const LIBRARY: Library = Library {
    file: "libbarewire_hca.so",
    package: "barewire-hca-uverbs",
    installed: "barewire-hca-preload",
};

/// Options of AddressSanitizer.
const ASAN_VARIABLE: &str = "ASAN_OPTIONS";

/// Returns the options of AddressSanitizer for the program and its children. GCC's runtime refuses
/// to start behind a preloaded library, which could allocate memory past it; this library calls the
/// functions that the runtime replaces, wherever it stands.
fn sanitized() -> OsString {
    let mut options = OsString::from("verify_asan_link_order=0");
    if let Some(own) = std::env::var_os(ASAN_VARIABLE).filter(|own| !own.is_empty()) {
        // The last of an option counts.
        options.push(":");
        options.push(own);
    }
    options
}

/// Options of valgrind.
const VALGRIND_VARIABLE: &str = "VALGRIND_OPTS";

/// Returns the options of valgrind for the program and its children; `None` if the path is one that
/// valgrind would divide.
fn suppressed(tree: &Tree) -> io::Result<Option<OsString>> {
    let file = tree.suppressions()?;
    let Some(file) = file.to_str().filter(|file| !file.contains(char::is_whitespace)) else {
        return Ok(None);
    };
    let mut options = OsString::from(format!("--suppressions={file}"));
    if let Some(own) = std::env::var_os(VALGRIND_VARIABLE).filter(|own| !own.is_empty()) {
        options.push(" ");
        options.push(own);
    }
    Ok(Some(options))
}

/// Runs the program with the library preloaded. Returns its exit code, or 128 plus the number of
/// the signal that ended it.
pub(super) fn run(args: &HcaRunArgs) -> Result<ExitCode, Error> {
    if args.address.len() > args.devices {
        let (addresses, devices) = (args.address.len(), args.devices);
        return Err(Error::Usage(format!("{addresses} addresses for {devices} devices")));
    }
    let mut command = preload::command(&LIBRARY, &args.program)?;
    // Dropped after the program has ended: only this process removes the tree.
    let failed = |error: io::Error| local("cannot make the devices' part of /sys", &error);
    let first = std::env::var(ADDRESS_VARIABLE).ok().and_then(|text| text.parse().ok());
    let addresses = match &args.address[..] {
        [] => Vec::from_iter(first),
        given => given.to_vec(),
    };
    let keys = &args.required.0.partition_keys;
    let tree =
        Tree::new(args.devices, args.ports, args.link(), keys, &addresses).map_err(failed)?;
    if let Some(options) = suppressed(&tree).map_err(failed)? {
        command.env(VALGRIND_VARIABLE, options);
    }
    command
        .env("SYSFS_PATH", tree.root())
        .env("BAREWIRE_HCA_DEVICES", args.devices.to_string())
        .env("BAREWIRE_HCA_PORTS", args.ports.to_string())
        .env("BAREWIRE_HCA_LINK", if args.ib { "ib" } else { "roce" })
        .env("BAREWIRE_HCA_REQUIRE", args.required.0.to_string())
        .env("BAREWIRE_HCA_DEVX", if args.no_devx { "no" } else { "yes" })
        .env("BAREWIRE_HCA_YIELD", if args.no_yield { "no" } else { "yes" })
        // UCX 1.13 would otherwise patch mmap and bypass the library.
        .env("UCX_MEM_MMAP_HOOK_MODE", "none")
        .env(ASAN_VARIABLE, sanitized());
    if args.memlock {
        command.env("BAREWIRE_HCA_MEMLOCK", "yes");
    }
    if args.explain {
        command.env("BAREWIRE_HCA_EXPLAIN", "yes");
    }
    if !args.address.is_empty() {
        let addresses: Vec<_> = args.address.iter().map(ToString::to_string).collect();
        command.env("BAREWIRE_HCA_ADDRESSES", addresses.join(","));
    }
    if let Some(faults) = &args.faults {
        command.env("BAREWIRE_HCA_FAULTS", faults);
    }
    preload::run(command)
}
