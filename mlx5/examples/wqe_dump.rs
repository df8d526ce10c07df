//! Prints what the driver writes for the operations of a golden file: `wqe_dump GOLDEN_FILE`.
//!
//! Every operation of the file (`reference/golden/README.md` describes its lines) is posted through
//! the driver's public functions on a queue over plain memory, without a device. Each prints one
//! JSON line:
//!
//! - `name`;
//! - `sq_hex`: the blocks of the ring, with `ee` for bytes that were not written;
//! - `dbrec`: both words of the doorbell record;
//! - `bf_hex`: the bytes stored to the BlueFlame register.

#[path = "../tests/it/replay/mod.rs"]
mod replay;

use std::env;
use std::fs;
use std::process::ExitCode;

use replay::{Replay, Result, hex};
use serde_json::json;

fn main() -> ExitCode {
    let Some(path) = env::args_os().nth(1) else {
        eprintln!("usage: wqe_dump GOLDEN_FILE");
        return ExitCode::from(2);
    };
    let path = path.to_string_lossy();
    match fs::read_to_string(&*path).map_err(|error| error.to_string()).and_then(|text| dump(&text))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wqe_dump: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dump(text: &str) -> Result<()> {
    for written in Replay::new(text)?.run()? {
        let line = json!({
            "name": written.name,
            "sq_hex": hex(&written.ring),
            "dbrec": hex(&written.record),
            "bf_hex": hex(&written.register),
        });
        println!("{line}");
    }
    Ok(())
}
