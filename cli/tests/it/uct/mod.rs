//! What tests of UCX over these transports have in common, whatever its version.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::fs;
use std::path::Path;
use std::process::Command;

use super::hca::{alone_by, installed};
use super::support::TestFile;

pub(crate) const UCT: &[&str] = &["uct", "run"];

/// The key of the job, for programs that are started separately.
pub(crate) const KEY: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

/// Declares tests, each a call.
macro_rules! cases {
    ($($name:ident = $call:expr;)+) => {$(
        #[test]
        fn $name() {
            $call;
        }
    )+};
}
pub(crate) use cases;

/// Compiles a program of UCX. Returns `None`, and says why, if something is not installed.
pub(crate) fn compiled(
    compiler: &str,
    package: &str,
    source: &Path,
    libraries: &[&str],
) -> Option<TestFile> {
    let headers = Path::new("/usr/include/ucp/api/ucp.h");
    if !installed(compiler, package) || !headers.exists() {
        println!("skipped: no headers of UCX (Debian: libucx-dev)");
        return None;
    }
    let name = source.file_stem().unwrap().to_str().unwrap();
    let program = TestFile::new(&format!("{name}-{compiler}"), 0);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-o", program.path()]).arg(source).args(libraries);
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    Some(program)
}

/// A file of tests for one pair of `ucx_perftest`: a line is a name and options. A test that is not
/// supported ends the program with an error.
pub(crate) struct Batch(pub(crate) String);

impl Batch {
    pub(crate) fn new(name: &str, tests: &[&str]) -> Self {
        let file = format!("barewire-uct-{name}-{}.txt", std::process::id());
        let path = std::env::temp_dir().join(file).to_str().unwrap().to_owned();
        let lines: String = tests.iter().flat_map(|test| [*test, " -t ", *test, "\n"]).collect();
        fs::write(&path, lines).unwrap();
        Self(path)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Every test of messages and puts with every layout but zero copies.
pub(crate) const MESSAGES: [&str; 10] = [
    "am_lat -D short -s 8",
    "am_lat -D shortiov -s 8,16,32",
    "am_lat -D bcopy -s 2000",
    "am_bw -D short -s 128",
    "am_bw -D shortiov -s 8,8",
    "am_bw -D bcopy -s 4000",
    "put_lat -D short -s 8",
    "put_lat -D bcopy -s 2048",
    "put_bw -D short -s 64",
    "put_bw -D bcopy -s 2048",
];

/// Every test of gets and atomics, with every layout but zero copies. Fetches of 4 bytes follow.
pub(crate) const FETCHES: [&str; 6] = [
    "get -D bcopy -s 2048 -O 4",
    "add_lat -s 8",
    "add_mr -s 8",
    "fadd -s 8 -O 4",
    "swap -s 8",
    "cswap -s 8",
];

pub(crate) const FETCHES_OF_4: [&str; 4] =
    ["add_mr -s 4", "fadd -s 4 -O 4", "swap -s 4", "cswap -s 4"];

pub(crate) const ZERO_COPY: [&str; 5] = [
    "am_lat -D zcopy -s 2048",
    "am_bw -D zcopy -s 2048,64 -O 4",
    "put_lat -D zcopy -s 65536",
    "put_bw -D zcopy -s 1024,2048 -O 4",
    "get -D zcopy -s 65536 -O 4",
];

/// The tests of libucp between two processes: protocols over active messages, puts and gets.
pub(crate) const LIBUCP: [&str; 16] = [
    "tag_lat -s 8",
    "tag_bw -s 4000",
    "tag_bw -s 1000000",
    "tag_sync_lat -s 8",
    "tag_sync_bw -s 4000",
    "ucp_am_lat -s 100",
    "ucp_am_bw -s 20000",
    "stream_lat -s 8",
    "stream_bw -s 3000",
    "ucp_put_lat -s 8",
    "ucp_put_bw -s 3000",
    "ucp_get -s 3000",
    "ucp_add -s 8",
    "ucp_fadd -s 8",
    "ucp_swap -s 8",
    "ucp_cswap -s 4",
];

/// A version of UCX, with the headers and libraries that are not where the compiler looks.
#[derive(Clone, Copy)]
pub(crate) struct Version<'a> {
    pub(crate) name: &'a str,
    pub(crate) headers: &'a str,
    pub(crate) libraries: Option<&'a str>,
}

/// Bytes of the largest operations of [`contents`]: over software devices each packet takes time of
/// two processors.
pub(crate) const LARGE: &str = "1000000";
pub(crate) const OVER_DEVICES: &str = "60000";

/// Runs `contents.c`, two processes that check what they exchange by every protocol of libucp, by a
/// command of `barewire` and the words before the program.
pub(crate) fn contents(
    ucx: Version<'_>,
    transports: &str,
    largest: &str,
    (command, before): (&[&str], &[&str]),
) {
    let headers = std::path::Path::new(ucx.headers).join("ucp/api/ucp.h");
    if !installed("cc", "gcc") || !headers.exists() {
        println!("skipped: no {} (Debian: libucx-dev)", headers.display());
        return;
    }
    let program = TestFile::new(&format!("contents-{}-{transports}", ucx.name), 0);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/uct/contents.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-o", program.path(), source, "-I", ucx.headers]);
    if let Some(libraries) = ucx.libraries {
        compiler.arg(format!("-L{libraries}")).arg(format!("-Wl,-rpath,{libraries}"));
        compiler.arg(format!("-Wl,-rpath-link,{libraries}"));
    }
    let compiled = compiler.args(["-lucp", "-lucs"]).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let (selected, key) = (format!("UCX_TLS={transports}"), format!("BAREWIRE_KEY={KEY}"));
    let environment = ["env", &selected, &key];
    let words = [&environment[..], before, &[program.path(), largest]].concat();
    let printed = alone_by(command, &[], &words);
    assert!(printed.contains("contents are right"), "{printed}");
}
