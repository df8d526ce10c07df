//! Checks that the default build needs no system library, neither its crates nor the binary, and
//! that a build with one transport compiles nothing for the others.

use std::time::Duration;

use crate::process::{self, Failure, Invocation};
use crate::test::programs::Programs;

/// Crates that bind a system library.
const BINDINGS: &[&str] = &["rdma-sys", "rdma-mummy-sys", "ibverbs-sys"];

/// Libraries that every Rust program on Linux loads: the C library, the unwinder, the loader.
const BASE: &[&str] =
    &["linux-vdso", "ld-linux", "libc", "libm", "libgcc_s", "libpthread", "libdl", "librt"];

/// Features of `barewire`, the names of steps that test them alone, and the crates of this
/// workspace that such a build contains besides [`ALWAYS`].
pub(crate) const ALONE: [(&str, &str, &[&str]); 6] = [
    ("", "no transport but self", &[]),
    ("cma", "cma alone", &["barewire-shm"]),
    ("mlx5", "mlx5 alone", &["barewire-layouts", "barewire-mlx5", "barewire-verbs"]),
    ("shm", "shm alone", &["barewire-shm"]),
    (
        "soft",
        "soft alone",
        &["barewire-hca", "barewire-layouts", "barewire-mlx5", "barewire-verbs"],
    ),
    ("tcp", "tcp alone", &["barewire-tcp"]),
];

/// The crates of this workspace that every build of `barewire` contains.
const ALWAYS: [&str; 2] = ["barewire", "barewire-shared-bytes"];

/// The command that lists the crates of the default build.
pub(crate) fn tree() -> Invocation {
    Invocation::cargo(&[
        "tree",
        "-e",
        "normal",
        "--prefix",
        "none",
        "-p",
        "barewire",
        "-p",
        "barewire-cli",
    ])
}

/// Fails with the name of a crate or library that a default build must not have.
pub(crate) fn check(deadline: Duration) -> Result<(), Failure> {
    let crates = process::text(&tree(), deadline)?;
    if let Some(binding) = binding_in(&crates) {
        return Err(Failure::Found(format!(
            "the default build contains {binding}, which needs a system library"
        )));
    }
    for (feature, name, expected) in ALONE {
        let arguments =
            ["tree", "-e", "normal", "--prefix", "none", "-p", "barewire", "--no-default-features"];
        let list = Invocation::cargo(&arguments).with(&["--features", feature]);
        let tree = process::text(&list, deadline)?;
        if let Some(other) = unexpected_in(&tree, expected) {
            return Err(Failure::Found(format!("the build '{name}' contains {other}")));
        }
    }
    let build = Invocation::cargo(&["build", "-p", "barewire-cli", "--bin", "barewire"]);
    let programs = Programs::by(build)?;
    let binary = programs.program("barewire")?.to_string_lossy();
    let libraries = process::text(&Invocation::new("ldd", &[&binary]), deadline)?;
    if let Some(library) = foreign_library_in(&libraries) {
        return Err(Failure::Found(format!("{binary} loads {library}, a system library")));
    }
    let crates = crates.lines().count();
    println!("{crates} crates, none binds a system library; {binary} loads the C library only");
    Ok(())
}

fn binding_in(tree: &str) -> Option<&str> {
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
        .find(|name| BINDINGS.contains(name))
}

/// Returns the first crate of this workspace that is not expected.
fn unexpected_in<'a>(tree: &'a str, expected: &[&str]) -> Option<&'a str> {
    let mut names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.find(|name| {
        name.starts_with("barewire") && !ALWAYS.contains(name) && !expected.contains(name)
    })
}

/// Returns the first library in ldd's output that is not one of the base.
fn foreign_library_in(listing: &str) -> Option<&str> {
    let base = |library: &str| {
        let name = library.rsplit('/').next().unwrap_or(library);
        BASE.iter()
            .any(|base| name.strip_prefix(base).is_some_and(|rest| rest.starts_with(['.', '-'])))
    };
    let libraries = listing.lines().filter_map(|line| line.split_whitespace().next());
    libraries.filter(|word| *word != "statically").find(|library| !base(library))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_binding() {
        assert_eq!(binding_in("barewire v0.2.0\nlibc v0.2.180\n"), None);
        assert_eq!(binding_in("barewire v0.2.0\nrdma-sys v0.3.0 (*)\n"), Some("rdma-sys"));
    }

    #[test]
    fn finds_a_crate_of_another_transport() {
        let tree = "barewire v0.2.0\nbarewire-shm v0.2.0\nlibc v0.2.180\n";
        assert_eq!(unexpected_in(tree, &["barewire-shm"]), None);
        assert_eq!(unexpected_in(tree, &[]), Some("barewire-shm"));
    }

    #[test]
    fn finds_a_foreign_library() {
        let base = "\tlinux-vdso.so.1 (0x0)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x0)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x0)\n\t/lib64/ld-linux-x86-64.so.2 (0x0)\n";
        assert_eq!(foreign_library_in(base), None);
        assert_eq!(foreign_library_in("\tstatically linked\n"), None);
        let more =
            format!("{base}\tlibibverbs.so.1 => /lib/x86_64-linux-gnu/libibverbs.so.1 (0x0)\n");
        assert_eq!(foreign_library_in(&more), Some("libibverbs.so.1"));
        assert_eq!(foreign_library_in("\tlibcrypto.so.3 => not found\n"), Some("libcrypto.so.3"));
    }
}
