//! Tests on `mlx5_0`: the software HCA behind Debian's libibverbs and libmlx5.

use std::path::Path;

use crate::process::{Failure, Invocation};
use crate::test::programs::{Program, Programs};

/// Two devices in each program.
const DEVICES: [&str; 4] = ["hca", "run", "--devices", "2"];

/// The variable that says what software HCAs require of their driver.
pub(crate) const REQUIREMENTS: &str = "BAREWIRE_HCA_REQUIRE";
/// Faults of the packets on a bad wire.
pub(crate) const FAULTS: (&str, &str) =
    ("BAREWIRE_HCA_FAULTS", "drop=0.02,duplicate=0.02,reorder=0.02,seed=7");

/// A way in which the devices are set up, and the transports over them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// The value of `BAREWIRE_MLX5_SETUP`.
    pub(crate) setup: &'static str,
    /// The value of `BAREWIRE_TEST_TRANSPORT`.
    pub(crate) transports: &'static str,
    /// More of the environment.
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

pub(crate) const DEVX: Way = Way {
    name: "by DEVX",
    setup: "devx",
    transports: "rc_mlx5,ud_mlx5,dc_mlx5,xrc_mlx5",
    environment: &[],
};
pub(crate) const INIT_OBJ: Way =
    Way { name: "by init_obj", setup: "init_obj", transports: "rc_mlx5,ud_mlx5", environment: &[] };
pub(crate) const VERBS: Way =
    Way { name: "by verbs", setup: "verbs", transports: "rc_verbs,ud_verbs", environment: &[] };
/// With a receive queue for each endpoint.
pub(crate) const UNSHARED: Way = Way {
    name: "by verbs, no shared receive queue",
    setup: "verbs",
    transports: "rc_verbs",
    environment: &[("BAREWIRE_SHARED_RECEIVE_QUEUE", "no")],
};
/// Commands are not delayed: the many of libmlx5 would make this run four times as long.
pub(crate) const DEMANDING: Way = Way {
    name: "by DEVX, demanding",
    setup: "devx",
    transports: "ud_mlx5",
    environment: &[(REQUIREMENTS, "all,command-delay=0")],
};
pub(crate) const LOSSY: Way = Way {
    name: "by init_obj, lossy",
    setup: "init_obj",
    transports: "ud_mlx5",
    environment: &[FAULTS],
};

/// The modules of the driver's tests that use a device of the machine.
pub(crate) const DRIVER_TESTS: [&str; 8] = [
    "device::",
    "datagrams::",
    "golden::",
    "xrc::",
    "tags::",
    "windows::",
    "striding::",
    "key_changes::",
];

/// Returns a command with the environment by which tests find the devices.
pub(crate) fn with(command: Invocation, way: &Way) -> Invocation {
    let command = command
        .environment("BAREWIRE_MLX5_SETUP", way.setup)
        .environment("BAREWIRE_TEST_DEVICE", "mlx5_0")
        .environment("BAREWIRE_TEST_DEVICES", "mlx5_0:1,mlx5_1:1")
        .environment("BAREWIRE_TEST_TRANSPORT", way.transports);
    let add = |command: Invocation, (name, value): &(&'static str, &str)| {
        command.environment(name, value)
    };
    way.environment.iter().fold(command, add)
}

/// Returns the command that runs a program's tests under `barewire hca run`.
pub(crate) fn on_devices(program: &Program, barewire: &Path, way: &Way) -> Invocation {
    with(program.run().under(&barewire.to_string_lossy(), &[&DEVICES[..], &["--"]].concat()), way)
}

/// Builds the command line and the library for `hca run` beside it, with all features. Returns the
/// path of the program.
pub(crate) fn command_line() -> Result<String, Failure> {
    let programs = Programs::build(&["--all-features"])?;
    Ok(programs.program("barewire")?.to_string_lossy().into_owned())
}
