//! Repository tasks. `cargo xtask test` is the check that people and CI run.
#![warn(clippy::all)]

mod arm;
mod bench;
mod closure;
mod commands;
mod compare;
mod conformance;
mod count;
mod deb;
mod documents;
mod fields;
mod foreign;
mod kill;
mod layers;
mod libnccl;
mod machine;
mod many;
mod miri;
mod new_ucx;
mod packages;
mod process;
mod release;
mod report;
mod sanitize;
mod test;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [--deep] [--part NAME]... [--no-install]
       cargo xtask asm|vm|conformance|channels [--no-install]
       cargo xtask bench [ROW|side-by-side] [--target-cpu CPU] [--write] [--no-install]
       cargo xtask kill [--count N] [--seed N] [--binary PATH]
       cargo xtask vm -- COMMAND
       cargo xtask compare [ROW] [--no-install]
       cargo xtask sanitize [address|thread]
       cargo xtask fields NAME=HEADER...
       cargo xtask documents [--deep|--write|--bare [first|both]]
       cargo xtask many|commands|deb|release|layers

  test           what every change must pass: format, lints, tests, doc tests, documentation, models, and
                 the limits of bench. As root on Debian it first installs missing packages, and names them.
                 --deep runs everything else, and records the results in docs/DEEP.md. --part runs one part
                 of either tier; 'cargo xtask test --part' lists them.
  bench          instructions per operation against their limits, and the checks of asm. --write puts the
                 tables into benches/RESULTS.md. A ROW, such as put_short, prints only operations with this
                 text in their name, or those of a binary such as shm: the binaries that have such an
                 operation are built, which takes minutes at first, and counted as a whole. --target-cpu
                 builds for another processor than baseline x86-64, without limits. Needs valgrind and the
                 runner of iai-callgrind, and installs what is missing. side-by-side prints the table of
                 RESULTS.md that counts libmlx5, UCX and barewire on mlx5_0 in one run. The limits are for
                 x86-64. For code of your own: docs/guide/counting.md.
  asm            the assembly of the hottest functions against benches/asm/ (BLESS=1 writes it), that no hot
                 function panics, allocates, calls memcpy, locks or calls a library, and the order of
                 barriers in the code for aarch64, with Debian's gcc-aarch64-linux-gnu.
  vm             boots a guest with an RDMA-capable kernel in plain emulation (qemu) and tests the software
                 HCA against the kernel's Soft-RoCE, and verbs objects on it. BAREWIRE_VM_OPERATIONS sets
                 the number of operations of each kind (500). A COMMAND for sh runs instead, with rxe0.
  conformance    the behaviours of each transport on all devices of this machine, into docs/CONFORMANCE.md.
  compare        times against UCX: barewire perf and ucx_perftest (Debian's ucx-utils; iperf3 as well) in 15
                 alternating pairs, into benches/RESULTS.md: the ratio of the medians with its interval of
                 95 %. A ROW selects the rows whose name or whose measure in the table begins with it:
                 shm_fadd, 'shm: fetch-add', or driver, single calls beside libmlx5 and UCX; an unknown one
                 lists the names. A release build of what the rows need comes first and takes minutes. Needs
                 an idle machine. BAREWIRE_COMPARE_PAIRS=3 for a trial, which writes nothing.
  channels       the calls of channels beside those of NVIDIA's net_ib, in instructions, and the time until
                 messages continue when a rail is lost, into benches/CHANNELS.md. The library is that of the
                 Python package, or the one that BAREWIRE_LIBNCCL names.
  many           the cost of a message with up to 10 000 connected endpoints, into benches/MANY.md.
                 Needs valgrind, and an idle machine for the times.
  miri           tests that need plain memory only, interpreted by Miri. Needs a nightly toolchain.
  sanitize       the conformance suite of the transports that need no other library, under AddressSanitizer
                 and ThreadSanitizer.
  kill           kills one side of barewire perf at random moments, over every transport and test; each
                 survivor must end within 5 s and report why. --count 500, --seed 1, --binary PATH for a
                 program that is already built.
  fields         the fields of commands beside those of public headers such as mlx5_ifc.h, into
                 layouts/fields.txt, which a test compares with the source.
  commands       the commands by which rc_mlx5 and dc_mlx5 connect beside those of UCX (Debian's ucx-utils),
                 on the software HCA, field by field, into layouts/commands.txt.
  deb            a Debian package of the command line with its manual and completions, in target/debian, by
                 cargo-deb.
  release        the files of a release in target/release-files: the package of deb, an archive of the program
                 with its two libraries, a file for containers, and their sums.
  layers         the circles of imports in src/, and imports of a layer above.
  documents      that what documents and --help say holds: commands run, paths and anchors exist, versions,
                 figures and outputs are current. --deep runs every command as printed, also the slow ones;
                 --write writes the figures and outputs; --bare runs README's commands on a bare Debian,
                 made by debootstrap.
  --no-install   installs nothing; features whose packages are missing are left out and named";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["help" | "--help" | "-h"] | [_, "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        ["test", ref words @ ..] => match test::Plan::parse(words) {
            Ok(plan) => test::test(&plan),
            Err(error) => {
                eprintln!("xtask: test: {error}");
                ExitCode::from(2)
            }
        },
        ["fields", ref headers @ ..] if !headers.is_empty() => written(fields::write(headers)),
        ["commands"] => written(commands::write()),
        ["deb"] => written(deb::package()),
        ["release"] => written(release::make().map(drop)),
        ["layers"] => layers::layers(),
        ["documents", ref words @ ..] => documents::documents(words),
        ["bench", ref words @ ..] => match bench::Plan::parse(words) {
            Ok(plan) => bench::bench(&plan),
            Err(error) => {
                eprintln!("xtask: bench: {error}");
                ExitCode::from(2)
            }
        },
        ["asm"] => bench::asm(packages::Install::Missing),
        ["asm", "--no-install"] => bench::asm(packages::Install::Nothing),
        ["vm"] => vm::vm(packages::Install::Missing, None),
        ["vm", "--no-install"] => vm::vm(packages::Install::Nothing, None),
        ["vm", "--", command] => vm::vm(packages::Install::Nothing, Some(command)),
        ["conformance"] => conformance::conformance(packages::Install::Missing),
        ["conformance", "--no-install"] => conformance::conformance(packages::Install::Nothing),
        ["compare", ref words @ ..] => match compare::Plan::parse(words) {
            Ok(plan) => compare::compare(plan),
            Err(error) => {
                eprintln!("xtask: compare: {error}");
                ExitCode::from(2)
            }
        },
        ["channels"] => written(bench::channels(packages::Install::Missing)),
        ["channels", "--no-install"] => written(bench::channels(packages::Install::Nothing)),
        ["many"] => written(many::write()),
        ["miri"] => miri::miri(),
        ["sanitize"] => sanitize::sanitize(None),
        ["sanitize", only @ ("address" | "thread")] => sanitize::sanitize(Some(only)),
        ["kill", ref words @ ..] => match kill::Plan::parse(words) {
            Ok(plan) => kill::kill(&plan),
            Err(error) => {
                eprintln!("xtask: kill: {error}\n{USAGE}");
                ExitCode::from(2)
            }
        },
        [] => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        ["asm" | "vm" | "conformance" | "channels" | "sanitize", unknown, ..] | [unknown, ..] => {
            eprintln!("xtask: unknown command or argument '{unknown}'\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Reports why a table was not written, or is incomplete.
fn written(result: Result<(), process::Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
