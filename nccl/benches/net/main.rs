//! A network for NCCL under measurement, for `cargo xtask channels`: this crate's table, or NVIDIA's
//! network out of a libnccl, on the RDMA devices of `barewire hca run`.
//!
//! usage: `net barewire|LIBNCCL count RAILS GROUP MESSAGES`, `net barewire|LIBNCCL lose-a-rail`, or
//! `net LIBNCCL version`

#[path = "../../tests/suite/comms.rs"]
#[allow(dead_code, reason = "the rest is for the suite")]
mod comms;
mod count;
#[path = "../../tests/suite/library.rs"]
#[allow(dead_code, reason = "the rest is for the suite")]
mod library;
mod lose;

use std::error::Error;
use std::process::ExitCode;

use library::Library;
use nccl_net_barewire::abi::{self, Code, Net12};
use nccl_net_barewire::ncclNetPlugin_v12 as OURS;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        [network, "count", rails, group, messages] => {
            open(network).and_then(|net| count::run(net, [rails, group, messages]))
        }
        [network, "lose-a-rail"] => open(network).and_then(lose::run),
        [library, "version"] => {
            println!("{}", Library::open(library).version());
            Ok(())
        }
        // `cargo bench` runs every bench; `cargo xtask channels` runs this one with arguments.
        _ => {
            println!("usage: net barewire|LIBNCCL count RAILS GROUP MESSAGES | lose-a-rail");
            return ExitCode::SUCCESS;
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("net: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens a network.
fn open(network: &str) -> Outcome<&'static Net12> {
    let net = if network == "barewire" { &OURS } else { Library::open(network).net_ib() };
    match comms::start(net) {
        // As NVIDIA's, ours is called through a table that the compiler does not know.
        Ok((_, 2..)) => Ok(std::hint::black_box(net)),
        Ok((_, count)) => Err(format!("{count} devices: two are needed").into()),
        Err(code) => Err(format!("init returned {code}").into()),
    }
}

/// Returns an error that names the call, unless its code is that of success.
fn ok(call: &str, code: Code) -> Outcome<()> {
    if code == abi::SUCCESS { Ok(()) } else { Err(format!("{call} returned {code}").into()) }
}
