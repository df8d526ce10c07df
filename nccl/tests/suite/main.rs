//! The behaviours of channels through tables for NCCL: this plugin's, this plugin through NVIDIA's
//! loader and adapters, and NVIDIA's own network, which is the judge of the suite.
//!
//! The last two need `BAREWIRE_LIBNCCL`, the path of a libnccl.so.2 with its symbols, such as that
//! of the package `nvidia-nccl-cu12` on PyPI; NVIDIA's own network needs RDMA devices as well.
//! `cargo xtask test` installs the library and runs this:
//!
//! ```text
//! NCCL_SOCKET_IFNAME=lo BAREWIRE_LIBNCCL=... barewire hca run --devices 2 -- \
//!     cargo test -p barewire-nccl --test suite
//! ```

mod channel;
mod comms;
mod library;
#[path = "../../../channel/tests/suite/mod.rs"]
mod suite;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::LazyLock;

use comms::Comms;
use library::Library;
use libtest_mimic::{Arguments, Failed, Trial};
use nccl_net_barewire::abi::Net12;
use nccl_net_barewire::ncclNetPlugin_v12 as OURS;

type Behaviour = fn(&mut Comms);

/// The behaviours with their names.
#[macro_export]
macro_rules! list {
    (@each ; $($behaviour:ident)+) => {
        &[$((stringify!($behaviour), suite::$behaviour as Behaviour),)+]
    };
}

const BEHAVIOURS: &[(&str, Behaviour)] = behaviours! { list };

/// Behaviours in which NVIDIA's network 2.32.3 differs. Each is tested in a separate process.
const FAILED_BY_NET_IB: &[(&str, &str)] = &[
    (
        "calls_find_nothing_when_all_requests_are_outstanding",
        "its 33rd irecv is accepted: it has 256 requests, of which 32 are used",
    ),
    (
        "sends_of_a_group_do_not_wait_for_each_other",
        "the sends of a group are posted when all of them are there",
    ),
    (
        "a_send_longer_than_its_buffer_fails_at_both_ends",
        "the send is cut to the length of the buffer, without an error",
    ),
    ("requests_are_tested_once", "a request that is complete is reported as complete again"),
    (
        "wrong_arguments_are_refused_without_effect",
        "ranges outside of the registered memory are accepted, and end the comm later",
    ),
    ("a_closed_sender_is_noticed", "the receiver waits for ever"),
    ("a_closed_receiver_is_noticed", "the sender waits for ever for an announcement"),
];

/// Set in the processes that ask NVIDIA's network.
const CHILD: &str = "BAREWIRE_SUITE_CHILD";

static LIBRARY: LazyLock<Option<Library>> =
    LazyLock::new(|| std::env::var("BAREWIRE_LIBNCCL").ok().map(|path| Library::open(&path)));

/// The plugin that was built with this test.
fn plugin() -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    let name = "libnccl_net_barewire.so";
    let folders = own.ancestors().skip(1).take(2);
    let mut found = folders.map(|folder| folder.join(name)).filter(|path| path.exists());
    found.next().expect("the plugin beside this program")
}

fn open(net: &'static Net12, rails: usize) -> Comms {
    Comms::open(net, rails, suite::SIZE)
}

fn trials(driver: &str, open: impl Fn() -> Comms + Clone + Send + 'static) -> Vec<Trial> {
    let trial = |(name, behaviour): &(&str, Behaviour)| {
        let (open, behaviour) = (open.clone(), *behaviour);
        Trial::test(format!("{driver}::{name}"), move || {
            behaviour(&mut open());
            Ok(())
        })
    };
    BEHAVIOURS.iter().map(trial).collect()
}

/// Tests that are reported as ignored.
fn skipped(driver: &str, reason: &str) -> Vec<Trial> {
    eprintln!("{driver} is skipped: {reason}");
    let trial = |(name, _): &(&str, Behaviour)| {
        // With `--ignored`, they fail for this reason.
        let reason = reason.to_owned();
        Trial::test(format!("{driver}::{name}"), move || Err(reason.into())).with_ignored_flag(true)
    };
    BEHAVIOURS.iter().map(trial).collect()
}

/// Runs a behaviour over NVIDIA's network in another process, since it may wait for ever or crash.
fn judge(name: &'static str) -> Result<(), Failed> {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new("timeout")
        .arg("100")
        .arg(own)
        .args([&format!("net_ib::{name}"), "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("BAREWIRE_SUITE_SECONDS", "8")
        .output()?;
    let known = FAILED_BY_NET_IB.iter().find(|(behaviour, _)| *behaviour == name);
    match (output.status.success(), known) {
        (true, None) => Ok(()),
        (true, Some(_)) => Err("NVIDIA's network does this now: take it off the list".into()),
        (false, Some((_, how))) => {
            eprintln!("net_ib fails {name}: {how}");
            Ok(())
        }
        (false, None) => Err(format!(
            "{}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

fn net_ib() -> Result<&'static Net12, &'static str> {
    let library = LIBRARY.as_ref().ok_or("BAREWIRE_LIBNCCL names no libnccl")?;
    let net = library.net_ib();
    match comms::start(net) {
        Ok((_, count)) if count > 0 => Ok(net),
        _ => Err("no RDMA device: run under barewire hca run"),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // SAFETY: no other thread exists yet. The plugin that NVIDIA's loader loads reads it.
    unsafe { std::env::set_var("BAREWIRE_NCCL_DEVICES", "soft0,soft1") };
    let mut all = Vec::new();
    if std::env::var_os(CHILD).is_some() {
        all.extend(trials("net_ib", || open(net_ib().expect("a network"), 1)));
        return libtest_mimic::run(&arguments, all).exit_code();
    }
    nccl_net_barewire::use_devices("soft0,soft1");
    if let Some(library) = &*LIBRARY {
        eprintln!("libnccl {}", library.version());
    }
    for rails in [1, 2] {
        all.extend(trials(&format!("table_{rails}"), move || open(&OURS, rails)));
    }
    for version in 6..=12 {
        let driver = format!("loader_v{version}");
        all.extend(match &*LIBRARY {
            None => skipped(&driver, "no BAREWIRE_LIBNCCL"),
            Some(library) => {
                let net = library.adapted(&plugin(), version);
                trials(&driver, move || open(net, 1))
            }
        });
    }
    if let Err(reason) = net_ib() {
        all.extend(skipped("net_ib", reason));
    } else {
        all.extend(
            BEHAVIOURS
                .iter()
                .map(|(name, _)| Trial::test(format!("net_ib::{name}"), move || judge(name))),
        );
    }
    libtest_mimic::run(&arguments, all).exit_code()
}
