//! Two processes, each with an independent implementation of a reliable connected queue pair, run
//! the same script against each other: one on the software HCA with barewire's driver, the other on
//! a device of the kernel (Soft-RoCE) with libibverbs. They share no code.
//!
//! ```text
//! barewire-interop rxe0 --listen 10.98.0.1 --port 7001
//! barewire-interop software --address 10.98.0.2 --connect 10.98.0.1 --port 7001 --operations 500
//! ```
//!
//! `cargo xtask vm` runs it in a guest. `BAREWIRE_HCA_FAULTS` and `BAREWIRE_HCA_PCAP` have their
//! usual effect.

mod arguments;
mod content;
#[cfg(feature = "rdma-sys")]
mod kernel;
mod link;
mod script;
mod side;
mod software;

use std::error::Error;
use std::process::ExitCode;

use arguments::{Arguments, Role};
use link::Link;
use side::Side;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("barewire-interop: {error}\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("barewire-interop: {}: {error}", arguments.device);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut side = open(arguments)?;
    let (mut link, plan) = match arguments.role {
        Role::Listen { address, port } => Link::listen(address, port)?,
        Role::Connect { address, port, plan } => Link::connect(address, port, plan)?,
    };
    let outcome =
        link.introduce(side.endpoint()).and_then(|peer| side.connect(&peer)).and_then(|()| {
            script::run(&mut *side, &mut link, plan, matches!(arguments.role, Role::Connect { .. }))
        });
    let outcome = outcome.and_then(|()| side.finish());
    if let Err(error) = &outcome {
        link.give_up(&error.to_string());
    }
    outcome
}

fn open(arguments: &Arguments) -> Result<Box<dyn Side>> {
    if arguments.device == software::NAME {
        return Ok(Box::new(software::Software::open(arguments.address)?));
    }
    #[cfg(feature = "rdma-sys")]
    return Ok(Box::new(kernel::Kernel::open(&arguments.device)?));
    #[cfg(not(feature = "rdma-sys"))]
    Err("built without the feature rdma-sys: there is only the device 'software'".into())
}
