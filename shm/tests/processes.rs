//! A segment between two processes: this test binary and a second run of it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use barewire_shm::{Segment, receive, send};

const ROLE: &str = "BAREWIRE_SHM_TEST_ROLE";
const PATIENCE: Duration = Duration::from_mins(1);
const SIZE: usize = 300_000;

fn pattern(index: usize) -> u8 {
    (index % 251) as u8
}

/// The other process: does nothing in a normal run of the tests. Its socket is its standard input.
#[test]
fn other_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let segment = receive(&socket, SIZE).unwrap();
    let mut bytes = vec![0; SIZE];
    segment.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().enumerate().all(|(index, &byte)| byte == pattern(index)));
    bytes.reverse();
    segment.write(0, &bytes).unwrap();
    socket.write_all(b"!").unwrap();
    if role == "stay" {
        // Until the first process kills this one.
        let _ = socket.read(&mut [0]);
    }
}

/// Runs the other process and returns what its segment holds in the end, and the signal that ended it.
fn exchange(role: &str) -> (Vec<u8>, Option<i32>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let segment = Segment::create("two processes", SIZE).unwrap();
    segment.write(0, &(0..SIZE).map(pattern).collect::<Vec<_>>()).unwrap();
    send(&ours, &segment).unwrap();
    let answered = (&ours).read_exact(&mut [0]);
    if role == "stay" || answered.is_err() {
        other.kill().unwrap();
    }
    let status = other.wait().unwrap();
    answered.unwrap();
    let mut bytes = vec![0; SIZE];
    segment.read(0, &mut bytes).unwrap();
    (bytes, status.signal())
}

#[test]
fn two_processes_share_a_segment() {
    let (bytes, signal) = exchange("end");
    assert_eq!(signal, None);
    assert!(bytes.iter().rev().enumerate().all(|(index, &byte)| byte == pattern(index)));
}

#[test]
fn a_segment_outlives_a_killed_process() {
    let (bytes, signal) = exchange("stay");
    assert_eq!(signal, Some(9), "killed");
    assert!(bytes.iter().rev().enumerate().all(|(index, &byte)| byte == pattern(index)));
}
