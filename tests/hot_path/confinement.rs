//! A child process in which every system call except write and exit is fatal.

use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::support::DEADLINE;

/// Set in the child: the name of the test to run.
const VARIABLE: &str = "BAREWIRE_CONFINED_TEST";
/// Exit code of a child that ran to its end. No other outcome has this code, in particular no child
/// that ran no test.
const WELL: i32 = 77;
const BADLY: i32 = 78;

/// The outcome of a confined child.
pub(crate) struct End {
    status: ExitStatus,
    /// The last output of the child.
    said: String,
}

impl End {
    /// Returns whether the child ran to its end.
    pub(crate) fn is_well(&self) -> bool {
        self.status.code() == Some(WELL)
    }

    /// Returns whether the kernel killed the child because of a system call.
    pub(crate) fn was_caught(&self) -> bool {
        self.status.signal() == Some(libc::SIGSYS)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, after it wrote:\n{}", self.status, self.said)
    }
}

/// Runs the test `name` of this program again in a child, which reaches this function and runs
/// `body`. The result of `body` is not dropped, since that may need system calls.
pub(crate) fn confined<T>(name: &str, body: impl FnOnce() -> T) -> End {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == name) {
        let _kept = body();
        end(WELL);
    }
    let program = std::env::current_exe().expect("a path of this program");
    let mut child = Command::new(program)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child's status") {
            break status;
        }
        if start.elapsed() > DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name}: the child did not end within {DEADLINE:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // Less than the capacity of a pipe.
        let _ = stderr.read_to_string(&mut said);
    }
    End { status, said }
}

/// From now on this thread may write, and end the process; any other system call kills the process
/// with SIGSYS.
pub(crate) fn forbid_system_calls() {
    // Offsets in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    #[cfg(target_arch = "x86_64")]
    const OURS: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const OURS: u32 = 0xc000_00b7;
    let instruction = |code: u32, value: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k: value,
    };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let equals =
        |value, jt, jf| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, jt, jf);
    let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    let mut filter = [
        load(ARCHITECTURE),
        equals(OURS, 0, 4),
        load(NUMBER),
        equals(libc::SYS_write as u32, 3, 0),
        equals(libc::SYS_exit_group as u32, 2, 0),
        equals(libc::SYS_exit as u32, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls read the program, which lives until they return, and change the privileges
    // of this thread only.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused {
        fail("this kernel has no seccomp filters");
    }
}

/// Writes one line to standard error, without the locks and buffers of the standard library.
pub(crate) fn say(line: &str) {
    for text in [line, "\n"] {
        // SAFETY: the bytes are valid for the given length.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}

/// Ends the child with a reason.
pub(crate) fn fail(reason: &str) -> ! {
    say(reason);
    end(BADLY)
}

fn end(code: i32) -> ! {
    // SAFETY: ends the process without running destructors.
    unsafe { libc::_exit(code) }
}
