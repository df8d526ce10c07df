//! `barewire hca run --explain`, and programs on which the preloaded library has no effect.

use crate::hca::{self, installed};
use crate::support::{self, Ended, PATIENCE, TestFile};
use std::process::Command;

/// Compiles a program of `hca/`; `None` if something is missing.
fn compiled(name: &str) -> Option<TestFile> {
    let header = ("infiniband/verbs.h", "libibverbs-dev");
    hca::compiled(name, header, &["-libverbs", "-lmlx5"])
}

fn explained(options: &[&str], environment: &[(&str, &str)], program: &str) -> Ended {
    let words = [&["hca", "run"], options, &["--", program]].concat();
    let ended = support::start_with(&words, environment).end(PATIENCE);
    assert!(ended.status.success() && ended.stdout == "all were refused\n", "{ended:#?}");
    ended
}

#[test]
fn refused_verbs_are_explained() {
    let Some(program) = compiled("refused") else { return };
    let lines = [
        "ibv_reg_mr is refused: addr, length: the program may not write to all of the 4096 bytes at \
         0x2000: Bad address (os error 14)",
        "ibv_reg_mr is refused: access: REMOTE_WRITE and REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE: \
         Invalid argument (os error 22)",
        "ibv_modify_qp is refused: attr_mask: IBV_QP_PORT is missing for a queue pair of type Rc \
         from RESET to INIT: Invalid argument (os error 22)",
        "ibv_modify_qp is refused: qp_state: a queue pair of type Rc does not go from RESET to RTS: \
         Invalid argument (os error 22)",
        "ibv_create_qp is refused: qp_type: IBV_QPT_RAW_PACKET is not supported: Operation not \
         supported (os error 95)",
        "ibv_create_ah is refused: grh: sgid_index 0 and dgid fe80:: are of different IP versions: \
         Invalid argument (os error 22)",
        "ibv_create_flow is refused: the software HCA does not have it: Operation not supported (os \
         error 95)",
        "ibv_destroy_cq is refused: DESTROY_CQ: queue pairs that complete to the queue still exist: \
         Device or resource busy (os error 16)",
        "ibv_dealloc_pd is refused: DEALLOC_PD: queue pairs or memory keys of the protection domain \
         still exist: Device or resource busy (os error 16)",
    ];
    for (options, environment) in
        [(&["--explain"][..], &[][..]), (&[], &[("BAREWIRE_HCA_EXPLAIN", "yes")])]
    {
        let ended = explained(options, environment, program.path());
        let shown = ended.stderr.lines().map(|line| line.strip_prefix("barewire-hca: "));
        assert!(shown.eq(lines.map(Some)), "{}", ended.stderr);
    }
    assert_eq!(explained(&[], &[], program.path()).stderr, "");
}

/// Each call of the program fails behind a line that begins with its name and has a reason.
#[test]
fn no_missing_verb_fails_without_a_line() {
    let Some(program) = compiled("missing") else { return };
    let ended = support::run(&["hca", "run", "--explain", "--", program.path()]);
    assert!(ended.status.success(), "{ended:#?}");
    let lines: Vec<_> = ended.stderr.lines().collect();
    let (pairs, rest) = lines.as_chunks::<2>();
    assert!(pairs.len() > 10 && rest.is_empty(), "{ended:#?}");
    for [explained, failed] in pairs {
        let name = failed.split_once(" failed: ").unwrap_or_else(|| panic!("{ended:#?}")).0;
        let reason = explained.split_once(" is refused: ");
        let (function, reason) = reason.unwrap_or_else(|| panic!("{failed}: {ended:#?}"));
        assert!(function.contains(name) && reason.contains(": "), "{explained}, {failed}");
    }
}

/// The kernel refuses more than the limit for programs without CAP_IPC_LOCK, which root is run
/// without here. By default the model does not.
#[test]
fn memory_beyond_the_limit_is_refused_on_request() {
    if !installed("prlimit", "util-linux") || !installed("setpriv", "util-linux") {
        return;
    }
    let Some(program) = compiled("memlock") else { return };
    // SAFETY: no arguments, and no error.
    let root = unsafe { libc::geteuid() } == 0;
    let confined = ["setpriv", "--bounding-set=-ipc_lock"];
    let confined = if root { &confined[..] } else { &[] };
    let limited = [&["prlimit", "--memlock=65536:65536"], confined, &[program.path()]].concat();
    let run = |options: &[&str]| {
        let words = [&["hca", "run"], options, &["--"], &limited].concat();
        support::run(&words)
    };
    let ended = run(&["--memlock", "--explain"]);
    let refused = "half: registered\nmore: ENOMEM\nafter it: registered\nrights: changed\nplace: \
                   ENOMEM\n";
    assert!(ended.status.success() && ended.stdout == refused, "{ended:#?}");
    let reason = "ibv_reg_mr is refused: RLIMIT_MEMLOCK: 16 pages more than 8 are over the limit of \
                  16 (ulimit -l 64): Cannot allocate memory (os error 12)";
    assert!(ended.stderr.contains(reason), "{ended:#?}");
    let ended = run(&[]);
    let registered = "half: registered\nmore: registered\nrights: changed\nplace: changed\n";
    assert_eq!(ended.stdout, registered, "{ended:#?}");
}

#[test]
fn a_key_file_is_the_key_of_the_devices() {
    hca::library();
    let (file, digits) = (TestFile::new("job.key", 0), "6b".repeat(32));
    std::fs::write(file.path(), &digits).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(file.path(), private).unwrap();
    let script = "echo $BAREWIRE_HCA_KEY";
    let ended = support::run(&["hca", "run", "--key-file", file.path(), "--", "sh", "-c", script]);
    assert_eq!((ended.stdout.trim(), ended.stderr.as_str()), (digits.as_str(), ""), "{ended:#?}");
}

#[test]
fn a_static_program_gets_a_warning() {
    if !installed("cc", "gcc") {
        return;
    }
    let program = TestFile::new("static", 0);
    let source = TestFile::new("static.c", 0);
    std::fs::write(source.path(), "int main(void) { return 3; }").unwrap();
    let arguments = ["-static", "-x", "c", source.path(), "-o", program.path()];
    let compiled = Command::new("cc").args(arguments).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let ended = support::run(&["hca", "run", "--", program.path()]);
    let warned = ended.stderr.starts_with("barewire: warning: ")
        && ended.stderr.ends_with(" is statically linked: it does not load libbarewire_hca.so\n");
    assert!(ended.status.code() == Some(3) && warned, "{ended:#?}");
}

/// Each device sends each packet twice: the program reads it in its counters, and the user at its
/// end.
#[test]
fn injected_faults_are_counted() {
    let Some(program) = compiled("transfer") else { return };
    let run = |options: &[&str]| {
        let words = [&["hca", "run", "--devices", "2"], options, &["--", program.path()]].concat();
        let ended = support::run(&words);
        assert!(ended.status.success(), "{ended:#?}");
        ended
    };
    let ended = run(&["--explain", "--faults", "duplicate=1"]);
    assert!(!ended.stdout.starts_with("0 duplicates"), "{ended:#?}");
    for device in ["mlx5_0", "mlx5_1"] {
        let start = format!("barewire-hca: {device} handed ");
        let line = ended.stderr.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
        let twice = line.split(", ").find_map(|part| part.strip_suffix(" duplicated")).unwrap();
        assert!(line.contains(": 0 dropped, ") && twice != "0", "{ended:#?}");
    }
    let ended = run(&[]);
    assert!(ended.stdout.starts_with("0 duplicates") && ended.stderr.is_empty(), "{ended:#?}");
}

/// A forked child inherits what its parent has registered for its end.
#[test]
fn parent_and_child_each_print_their_counts_once() {
    let Some(program) = compiled("child") else { return };
    let words = ["hca", "run", "--explain", "--faults", "duplicate=1", "--", program.path()];
    let ended = support::run(&words);
    assert!(ended.status.success(), "{ended:#?}");
    assert_eq!(ended.stderr.matches("barewire-hca: mlx5_0 handed ").count(), 2, "{ended:#?}");
}
