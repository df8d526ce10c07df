//! Memory of another process, read and written by the kernel in one copy (process_vm_readv(2), "cross memory attach").
#![allow(unsafe_code, reason = "the system calls take addresses of this process")]

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

/// Ranges of this process that one call takes.
pub const MAX_RANGES: usize = 16;

/// A range of this process's memory.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: usize,
}

/// Why another process's memory cannot be reached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// It is not there any more.
    #[error("process {process} has ended")]
    Ended {
        /// Its number.
        process: i32,
    },
    /// The kernel does not let this process.
    #[error("the kernel does not let this process reach the memory of process {process}: {reason}")]
    Denied {
        /// Its number.
        process: i32,
        /// Why, and what would help.
        reason: String,
    },
    /// Another process than the one that told its address.
    #[error("process {process} is not the one that gave the address: {reason}")]
    Other {
        /// Its number.
        process: i32,
        /// How that can be.
        reason: &'static str,
    },
    /// The memory is not there, or cannot be written.
    #[error("process {process} has no such memory")]
    Memory {
        /// Its number.
        process: i32,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The namespace of process numbers that this process lives in, by the kernel's number; 0 if it does not say.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// Yama's restriction of who may look into whom, if there is one.
fn ptrace_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// Lets processes of the same user reach this one's memory where Yama restricts that to parents (ptrace_scope 1).
pub fn admit_peers() {
    if ptrace_scope() == Some(1) {
        // SAFETY: prctl(PR_SET_PTRACER) takes numbers only. If it is refused, peers are told why at their probe.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

/// Another process whose memory can be reached.
#[derive(Debug)]
pub struct Process {
    number: i32,
    /// Readable once it has ended; so its number is not taken for that of a later one.
    ended: OwnedFd,
    looked: Cell<Instant>,
}

/// A process that lived so long ago has not ended and been followed by another of its number: numbers go round once in millions.
const FRESH: Duration = Duration::from_millis(1);

impl Process {
    /// Opens process `number`, and makes sure that it is the one that keeps `secret` at `address`.
    ///
    /// # Errors
    /// Every [`ProcessError`], with the reason.
    pub fn open(number: i32, address: u64, secret: u128) -> Result<Self, ProcessError> {
        let pid = Pid::from_raw(number).ok_or(ProcessError::Ended { process: number })?;
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => ProcessError::Ended { process: number },
            errno => ProcessError::System { call: "pidfd_open", source: errno.into() },
        })?;
        let process = Self { number, ended, looked: Cell::new(Instant::now()) };
        let mut found = [0u8; 16];
        let range = Range { address: (&raw mut found) as u64, length: found.len() };
        // SAFETY: the range is `found`.
        let read = unsafe { process.read(&[range], address) };
        match read {
            Ok(count) if count == found.len() && found == secret.to_ne_bytes() => Ok(process),
            Ok(_) | Err(ProcessError::Memory { .. }) => {
                Err(ProcessError::Other { process: number, reason: OTHER })
            }
            Err(error) => Err(error),
        }
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// It has ended, as far as is known: a look is good for a millisecond.
    pub fn is_ended(&self) -> bool {
        let now = Instant::now();
        if now.duration_since(self.looked.get()) <= FRESH {
            return false;
        }
        self.looked.set(now);
        self.look()
    }

    /// Whether it has ended.
    pub fn look(&self) -> bool {
        let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Copies from its memory at `remote` into the ranges, one after the other. Answers the bytes copied, which may be fewer.
    ///
    /// # Errors
    /// [`ProcessError`]
    ///
    /// # Safety
    /// The ranges are mapped, and may be written as another process could.
    pub unsafe fn read(&self, local: &[Range], remote: u64) -> Result<usize, ProcessError> {
        // SAFETY: handed on.
        unsafe { self.copy(libc::process_vm_readv, "process_vm_readv", local, remote) }
    }

    /// Copies the ranges, one after the other, to its memory at `remote`. Answers the bytes copied, which may be fewer.
    ///
    /// # Errors
    /// [`ProcessError`]
    ///
    /// # Safety
    /// The ranges are mapped.
    pub unsafe fn write(&self, local: &[Range], remote: u64) -> Result<usize, ProcessError> {
        // SAFETY: handed on.
        unsafe { self.copy(libc::process_vm_writev, "process_vm_writev", local, remote) }
    }

    unsafe fn copy(
        &self,
        run: Copy,
        call: &'static str,
        local: &[Range],
        remote: u64,
    ) -> Result<usize, ProcessError> {
        let mut ours = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_RANGES];
        let count = local.len().min(MAX_RANGES);
        for (place, range) in ours.iter_mut().zip(local) {
            *place = libc::iovec { iov_base: range.address as *mut libc::c_void, iov_len: range.length };
        }
        let length = local.iter().take(count).map(|range| range.length).sum();
        let theirs = libc::iovec { iov_base: remote as *mut libc::c_void, iov_len: length };
        // SAFETY: both arrays have so many entries; ours name memory that the caller vouches for, theirs is checked by the kernel.
        let copied =
            unsafe { run(self.number, ours.as_ptr(), count as libc::c_ulong, &raw const theirs, 1, 0) };
        usize::try_from(copied).map_err(|_| self.failed(call, io::Error::last_os_error()))
    }

    #[cold]
    fn failed(&self, call: &'static str, source: io::Error) -> ProcessError {
        let process = self.number;
        match source.raw_os_error() {
            Some(libc::ESRCH) => ProcessError::Ended { process },
            Some(libc::EFAULT) => ProcessError::Memory { process },
            Some(libc::EPERM | libc::ENOSYS) => ProcessError::Denied { process, reason: reason(process) },
            _ => ProcessError::System { call, source },
        }
    }
}

/// Why a process may not be the one that was meant.
const OTHER: &str = "its number was given to another one, or means another one where the address came from";

type Copy = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Why the kernel may have refused, most likely reason first.
fn reason(process: i32) -> String {
    let own = rustix::process::geteuid().as_raw();
    let theirs = fs::metadata(format!("/proc/{process}")).map(|metadata| metadata.uid());
    match (theirs, ptrace_scope()) {
        (Ok(user), _) if user != own && own != 0 => {
            format!("it runs as user {user}, this one as user {own}: run both as one user")
        }
        (_, Some(2..)) => {
            "Yama forbids it (kernel.yama.ptrace_scope is 2 or more): set it to 0 or 1, or grant CAP_SYS_PTRACE".to_owned()
        }
        (_, Some(1)) => "Yama restricts it to parents (kernel.yama.ptrace_scope is 1), and the peer did not admit others: set it to 0"
            .to_owned(),
        _ => "a container's seccomp filter or user namespace forbids it: allow process_vm_readv, or grant CAP_SYS_PTRACE".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_reaches_itself_and_only_with_the_secret() {
        let kept = Box::new(77u128.to_ne_bytes());
        let (number, address) = (std::process::id() as i32, (&raw const *kept) as u64);
        let process = Process::open(number, address, 77).unwrap();
        assert!(!process.look());
        assert!(matches!(Process::open(number, address, 78), Err(ProcessError::Other { .. })));
        assert!(matches!(Process::open(number, 16, 77), Err(ProcessError::Other { .. })));
        assert!(matches!(Process::open(i32::MAX, address, 77), Err(ProcessError::Ended { .. })));
        let (from, mut to) = ([1u8, 2, 3, 4, 5], [0u8; 5]);
        let ranges =
            [(0, 2), (2, 3)].map(|(at, length)| Range { address: (&raw mut to) as u64 + at, length });
        // SAFETY: the ranges are parts of `to`.
        let copied = unsafe { process.read(&ranges, (&raw const from) as u64) }.unwrap();
        assert_eq!((copied, to), (5, from));
    }

    #[test]
    fn an_ended_process_is_noticed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let number = child.id() as i32;
        let process = Process {
            number,
            ended: pidfd_open(Pid::from_raw(number).unwrap(), PidfdFlags::empty()).unwrap(),
            looked: Cell::new(Instant::now()),
        };
        child.wait().unwrap();
        assert!(process.look());
        let mut byte = 0u8;
        let range = Range { address: (&raw mut byte) as u64, length: 1 };
        // SAFETY: the range is `byte`.
        let read = unsafe { process.read(&[range], range.address) };
        assert!(matches!(read, Err(ProcessError::Ended { .. })));
    }
}
