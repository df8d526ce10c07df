//! The checks in the guest, and how its console reports the outcome.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Prefix of the lines of the console that are for this program.
const MARK: &str = "vm: ";

/// A shell script that must succeed.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) name: String,
    /// Seconds in the guest after which it has failed.
    seconds: u64,
    script: String,
}

/// The programs that the checks run.
pub(super) struct Programs {
    /// The program of `tests/interop`.
    pub(super) interop: PathBuf,
    /// The tests of `verbs/`.
    pub(super) verbs: PathBuf,
    /// The command line, with the feature `verbs`.
    pub(super) barewire: PathBuf,
    /// The tests of single transports.
    pub(super) transport: PathBuf,
    /// The conformance suite.
    pub(super) conformance: PathBuf,
}

/// The functions of the checks, which their scripts call.
const FUNCTIONS: &str = ". ./xtask/src/vm/checks.sh";

impl Check {
    /// A check by functions of [`FUNCTIONS`].
    fn by(functions: &str, name: &str, seconds: u64) -> Self {
        let script = format!("{FUNCTIONS}\n{functions}\n");
        Self { name: name.to_owned(), seconds, script }
    }
}

/// The checks of this repository.
pub(super) fn all(programs: &Programs, operations: u64) -> Vec<Check> {
    // The time of the slowest operation, with loss and a busy machine, and the time to start.
    let seconds = 100 + operations / 5;
    let mut checks = [
        ("network", "rxe0 on a pair of network devices", 60),
        ("interop 7001", "software HCA and rdma_rxe", seconds),
        ("loss\ninterop 7002\nno_loss", "software HCA and rdma_rxe with 1 % loss", seconds),
        ("rdma_cm", "rdma_cm between software HCA and rdma_rxe", 120),
        ("verbs", "objects of verbs on rdma_rxe", 200),
        ("transport", "rc_verbs on rdma_rxe", 300),
        ("datagrams", "ud_verbs on rdma_rxe", 200),
        ("command_line", "command line over rc_verbs", 120),
        ("wire", "rxe1 behind a router", 60),
        ("two_devices", "rc_verbs and ud_verbs with 1 % loss", 120),
        ("gone", "a port that goes down, a peer that is killed", 120),
        ("namespaces\nsockets\nno_loss", "tcp with loss, delay and reordering", 240),
        ("namespaces\ncut_link", "tcp over a link that is cut", 60),
        ("refused", "refusals", 60),
    ]
    .map(|(functions, name, seconds)| Check::by(functions, name, seconds));
    let variables = format!(
        "INTEROP='{}' TESTS='{}' BAREWIRE='{}' TRANSPORT='{}' CONFORMANCE='{}' OPERATIONS={operations}\n",
        programs.interop.display(),
        programs.verbs.display(),
        programs.barewire.display(),
        programs.transport.display(),
        programs.conformance.display(),
    );
    for check in &mut checks {
        check.script.insert_str(0, &variables);
    }
    checks.into()
}

/// A single command of the caller's.
pub(super) fn one(command: &str) -> Vec<Check> {
    let (name, script) = ("command".to_owned(), command.to_owned());
    let network = Check::by("network", "rxe0 on a pair of network devices", 3600);
    vec![network, Check { name, seconds: 3600, script }]
}

/// Returns the shell script that runs the checks in the guest, in `folder`. It ends at the first
/// failure.
pub(super) fn script(checks: &[Check], folder: &Path) -> String {
    let mut text = format!("cd '{}'\necho '{MARK}booted'\n", folder.display());
    for Check { name, seconds, script } in checks {
        let _ = write!(
            text,
            "cat > /run/check <<'END-OF-CHECK'\n{script}END-OF-CHECK\n\
             if timeout {seconds} /bin/sh -eu /run/check; then\n    echo \"{MARK}passed {name} ($(cut -d. -f1 /proc/uptime) s)\"\n\
             else\n    echo \"{MARK}failed {name}: status $? after at most {seconds} s\"\n    exit\nfi\n"
        );
    }
    text.push_str("echo 'vm: end'\n");
    text
}

/// The console's output so far.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) passed: u64,
    complaint: Option<String>,
    booted: bool,
    ended: bool,
}

impl Verdict {
    /// Takes one line of the console.
    pub(super) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        // The firmware and the kernel write control characters before the first lines.
        let Some(at) = line.find(MARK) else {
            if line.contains("Kernel panic") {
                self.complain(line);
            }
            return;
        };
        match &line[at + MARK.len()..] {
            "booted" => self.booted = true,
            "end" => self.ended = true,
            text if text.starts_with("passed ") => self.passed += 1,
            text => self.complain(text),
        }
    }

    fn complain(&mut self, text: &str) {
        self.complaint.get_or_insert_with(|| text.to_owned());
    }

    /// Returns why the guest did not complete all of `checks`, if so.
    pub(super) fn complaint(&self, checks: usize) -> Option<String> {
        match &self.complaint {
            Some(complaint) => Some(complaint.clone()),
            None if !self.booted => Some("the guest did not come up to its first check".to_owned()),
            None if !self.ended => {
                Some(format!("the guest ended after {} of {checks} checks", self.passed))
            }
            None if self.passed != checks as u64 => {
                Some(format!("{} of {checks} checks passed", self.passed))
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(console: &[&str]) -> Verdict {
        let mut verdict = Verdict::default();
        for line in console {
            verdict.read(line);
        }
        verdict
    }

    #[test]
    fn a_whole_run_is_good() {
        let verdict = verdict(&[
            "SeaBIOS\r\n",
            "\u{1b}[2Jvm: booted\r\n",
            "chatter vm\r\n",
            "vm: passed one (3 s)\r\n",
            "vm: end\r\n",
        ]);
        assert_eq!((verdict.passed, verdict.complaint(1)), (1, None));
        assert_eq!(verdict.complaint(2).as_deref(), Some("1 of 2 checks passed"));
    }

    #[test]
    fn whatever_is_missing_is_said() {
        let complaint = |console: &[&str]| verdict(console).complaint(1).unwrap();
        assert_eq!(complaint(&["SeaBIOS"]), "the guest did not come up to its first check");
        assert_eq!(
            complaint(&["vm: booted", "vm: passed one (3 s)"]),
            "the guest ended after 1 of 1 checks"
        );
        assert_eq!(complaint(&["vm: booted", "vm: failed one: status 1"]), "failed one: status 1");
        assert_eq!(complaint(&["vm: broken no root over 9p"]), "broken no root over 9p");
        let panic = "[    1.0] Kernel panic - not syncing: VFS";
        assert_eq!(complaint(&[panic]), panic);
    }

    #[test]
    fn the_script_runs_each_check_and_ends() {
        let text = script(&one("true\n"), Path::new("/work/tree"));
        assert!(text.starts_with("cd '/work/tree'\necho 'vm: booted'\n"), "{text}");
        assert!(text.contains("<<'END-OF-CHECK'\ntrue\nEND-OF-CHECK\n"), "{text}");
        assert!(text.ends_with("echo 'vm: end'\n"), "{text}");
    }
}
