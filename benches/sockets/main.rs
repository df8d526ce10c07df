//! Comparisons for `tcp` that `barewire perf` cannot express: messages of 16 bytes back and forth
//! between two processes, over a bare socket that both ends poll, or over some of many connections
//! of `tcp`. Used by `cargo xtask compare`.
//!
//! usage: `sockets listen|connect PORT ROUNDS bare|many [CONNECTIONS BUSY]`

mod bare;
mod many;
mod times;

use std::process::ExitCode;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Rounds before the measured ones.
const WARM_UP: u32 = 10_000;
const DEADLINE: Duration = Duration::from_mins(1);

/// The command line.
struct Plan {
    listens: bool,
    port: u16,
    rounds: u32,
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [side, port, rounds, "bare"] => plan(side, port, rounds).and_then(|plan| bare::run(&plan)),
        [side, port, rounds, "many", connections, busy] => plan(side, port, rounds)
            .and_then(|plan| many::run(&plan, connections.parse()?, busy.parse()?)),
        // `cargo bench` runs every bench; this one is a part of `cargo xtask compare`.
        _ => {
            println!("usage: sockets listen|connect PORT ROUNDS bare|many [CONNECTIONS BUSY]");
            return ExitCode::SUCCESS;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sockets: {error}");
            ExitCode::FAILURE
        }
    }
}

fn plan(side: &str, port: &str, rounds: &str) -> Outcome<Plan> {
    let listens = match side {
        "listen" => true,
        "connect" => false,
        other => return Err(format!("'{other}' is neither 'listen' nor 'connect'").into()),
    };
    Ok(Plan { listens, port: port.parse()?, rounds: rounds.parse()? })
}

/// Spins until `done`, and checks the clock now and then.
fn spin(what: &str, mut done: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let start = Instant::now();
    let mut looks = 0u32;
    while !done()? {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(1 << 16) && start.elapsed() > DEADLINE {
            return Err(format!("{what}: not done after {DEADLINE:?}").into());
        }
    }
    Ok(())
}
