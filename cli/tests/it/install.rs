//! What `cargo install` installs: the programs of the package, and nothing else.

use crate::hca;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 3] = [
    env!("CARGO_BIN_EXE_barewire"),
    env!("CARGO_BIN_EXE_barewire-hca-preload"),
    env!("CARGO_BIN_EXE_barewire-uct-preload"),
];

/// A folder with copies of the programs, as `~/.cargo/bin` is.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("barewire-install-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // Another process writes the copies: the kernel executes no file that is open for writing,
        // and a child that another test starts meanwhile inherits the descriptors of this process.
        let copy = Command::new("install").args(PROGRAMS).arg(&folder).status();
        assert!(copy.unwrap().success());
        Self(folder)
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(self.0.join("barewire"));
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}\n{stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn hca_run_works_where_cargo_installs() {
    if hca::installed("ibv_devinfo", "ibverbs-utils") {
        let shown = Installed::new("hca").run(&["hca", "run", "--", "ibv_devinfo"]);
        assert!(shown.contains("mlx5_0") && shown.contains("PORT_ACTIVE"), "{shown}");
    }
}

#[test]
fn uct_run_works_where_cargo_installs() {
    if hca::installed("ucx_info", "ucx-utils") {
        let shown = Installed::new("uct").run(&["uct", "run", "--", "ucx_info", "-d"]);
        assert!(shown.contains("rc_mlx5") && shown.contains("soft0:1"), "{shown}");
    }
}

/// Scripts that complete each command, and a page of the manual for each.
#[test]
fn completions_and_manual_name_every_command() {
    let installed = Installed::new("texts");
    let help = installed.run(&["--help"]);
    let commands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        // The command prints the help of other commands, and the manual has no page for it.
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.len() > 9 && commands.contains(&"perf"), "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let script = installed.run(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
        // Commands that the program starts itself are for nobody else.
        assert!(!script.contains("doctor-row"), "{shell}");
    }
    let script = installed.0.join("completion.bash");
    fs::write(&script, installed.run(&["completions", "bash"])).unwrap();
    let checked = Command::new("bash").arg("-n").arg(&script).status().unwrap();
    assert!(checked.success());

    let folder = installed.0.join("man1");
    installed.run(&["man", folder.to_str().unwrap()]);
    for command in commands {
        let page = fs::read_to_string(folder.join(format!("barewire-{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(command), "{page}");
    }
    let page = fs::read_to_string(folder.join("barewire-hca-run.1")).unwrap();
    assert!(page.contains("demand") || page.contains("mtu"), "{page}");
    let page = fs::read_to_string(folder.join("barewire.1")).unwrap();
    assert!(page.contains(env!("CARGO_PKG_VERSION")), "{page}");
    assert!(!folder.join("barewire-second.1").exists());
}
