//! README's two commands on a bare machine: Debian without anything but a C linker and a Rust
//! toolchain, in a clone, with an empty home.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::markdown::{Block, Mark};
use super::{SOON, at, blocks, read};
use crate::packages::{self, Install};
use crate::process::{self, Failure, Invocation, Output, repository};

/// The commands of README to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commands {
    First,
    Both,
}

const DEBIAN: &str = "bookworm";

/// What README asks for besides Rust; without `libc6-dev`, gcc cannot link.
const LINKER: &str = "--include=gcc,libc6-dev";

/// Enters the machine, whose root is `$1`, with the toolchain `$2`, and runs `$3` in the clone. The
/// mounts end with the process. The certificates are those by which this machine reaches the
/// registries.
const ENTER: &str = r#"
set -e
mkdir -p "$1/usr/local/rust" "$1/etc/ssl/certs"
mount --bind "$2" "$1/usr/local/rust"
mount --bind /etc/ssl/certs "$1/etc/ssl/certs"
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
mount -t proc proc "$1/proc"
cp /etc/resolv.conf "$1/etc/resolv.conf"
exec chroot "$1" /usr/bin/env -i HOME=/home/reader PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin \
    /bin/sh -exc "cd /home/reader/barewire; $3"
"#;

/// Makes the machine anew and runs the commands of README on it.
pub(super) fn run(commands: Commands) -> Result<(), Failure> {
    const MINUTES_OF_FIRST: u64 = 60;
    const MINUTES_OF_BOTH: u64 = 240;
    let (documents, _) = read()?;
    let readme = documents.iter().find(|document| document.path == "README.md");
    let block = readme.and_then(|readme| readme.blocks.iter().find(|block| is_bare(block)));
    let block =
        block.ok_or_else(|| Failure::Found(format!("README has no block '{}'", blocks::BARE)))?;
    let (script, minutes) = match commands {
        Commands::First => (block.code.lines().next().unwrap_or_default(), MINUTES_OF_FIRST),
        Commands::Both => (block.code.as_str(), MINUTES_OF_BOTH),
    };
    let folder = repository().join("target/bare");
    make(&folder)?;
    let toolchain = toolchain()?;
    println!("on a bare Debian {DEBIAN}:\n{script}");
    let enter = Invocation::new("unshare", &["--mount", "--pid", "--fork", "--kill-child"])
        .with(&["sh", "-c", ENTER, "enter", &folder.display().to_string(), &toolchain, script]);
    process::run(&enter, Duration::from_mins(minutes), Output::Inherit)?;
    fs::remove_dir_all(&folder).map_err(|error| at(&folder, &error))
}

fn is_bare(block: &Block) -> bool {
    block.mark == Some(Mark::NotRun(blocks::BARE.to_owned()))
}

/// Makes the root of a machine with a clone of the last commit.
fn make(folder: &Path) -> Result<(), Failure> {
    debian(folder, &[LINKER])?;
    let clone = Invocation::new("git", &["clone", "--quiet", "--no-hardlinks", "."])
        .with(&[&format!("{}/home/reader/barewire", folder.display())]);
    println!("{clone}");
    process::run(&clone, SOON, Output::Inherit)
}

/// Makes the root of a machine anew, by debootstrap with further `options`.
pub(crate) fn debian(folder: &Path, options: &[&str]) -> Result<(), Failure> {
    const INSTALL: Duration = Duration::from_mins(20);
    if !packages::is_root() {
        return Err(Failure::Found("only root can make the root of a machine".to_owned()));
    }
    if !packages::on_path("debootstrap") {
        packages::debian(Install::Missing, &["debootstrap"], INSTALL)?;
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| at(folder, &error))?;
    }
    let root = folder.display().to_string();
    let debootstrap =
        Invocation::new("debootstrap", &["--variant=minbase"]).with(options).with(&[DEBIAN, &root]);
    println!("{debootstrap}");
    process::run(&debootstrap, INSTALL, Output::Inherit)
}

/// Returns the folder of the toolchain that compiles this repository.
fn toolchain() -> Result<String, Failure> {
    process::text(&Invocation::new("rustc", &["--print", "sysroot"]), SOON)
}
