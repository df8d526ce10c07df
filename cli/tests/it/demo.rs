//! `barewire demo`, end to end.

use crate::support;

use support::{Ended, PATIENCE, TestFile, run, start_with};

/// Checks the rows of the table: every operation over rc_mlx5 with a correct checksum.
#[track_caller]
fn all_checks_held(ended: &Ended) {
    ended.succeeded();
    for operation in ["RDMA write", "active messages", "put ping-pong", "am ping-pong"] {
        let row =
            ended.stdout.lines().find(|line| line.contains("rc_mlx5") && line.contains(operation));
        let row = row.unwrap_or_else(|| panic!("no '{operation}' in: {}", ended.stdout));
        assert!(row.trim_end().ends_with("yes"), "{row}");
    }
    assert!(ended.stdout.contains("emulator"), "{}", ended.stdout);
}

#[test]
fn its_own_binary_by_default() {
    let ended = run(&["demo"]);
    all_checks_held(&ended);
    assert!(ended.stdout.contains("barewire"), "{}", ended.stdout);
}

#[test]
fn small_files_and_the_sizes_around_a_segment() {
    for length in [0, 1, 8, 8191, 8192, 8193] {
        let file = TestFile::new(&format!("demo-{length}"), length);
        let ended = run(&["demo", file.path()]);
        all_checks_held(&ended);
        let bytes = format!(" {length} ");
        assert!(
            ended.stdout.lines().any(|line| line.contains("RDMA write") && line.contains(&bytes))
        );
    }
}

#[test]
fn a_file_of_64_mib() {
    let file = TestFile::new("demo-64m", 64 << 20);
    let ended = run(&["demo", file.path()]);
    all_checks_held(&ended);
    assert!(ended.stdout.contains("67108864"), "{}", ended.stdout);
}

#[test]
fn a_wire_that_loses_packets() {
    let file = TestFile::new("demo-drop", 4 << 20);
    all_checks_held(&run(&["demo", "--faults", "drop=0.01,seed=7", file.path()]));
}

#[test]
fn a_wire_with_every_fault() {
    let file = TestFile::new("demo-faults", 1 << 20);
    let faults = "drop=0.005,duplicate=0.01,reorder=0.01,corrupt=0.005,seed=11";
    let demo = start_with(&["demo", file.path()], &[("BAREWIRE_HCA_FAULTS", faults)]);
    all_checks_held(&demo.end(PATIENCE));
}

#[test]
fn what_the_wire_saw_is_captured() {
    let folder = std::env::temp_dir().join(format!("barewire-capture-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("wire.pcap");
    let source = TestFile::new("demo-capture", 4096);
    let ended = run(&["demo", "--pcap", file.to_str().unwrap(), source.path()]);
    let captures: Vec<Vec<u8>> = folder
        .read_dir()
        .unwrap()
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .collect();
    std::fs::remove_dir_all(&folder).unwrap();
    all_checks_held(&ended);
    // One file per device with more than a header: a capture of microseconds or nanoseconds in the
    // byte order of this machine.
    assert!(captures.len() >= 2, "{} captures", captures.len());
    for capture in captures {
        let magic = u32::from_ne_bytes(*capture.first_chunk().unwrap());
        assert!([0xa1b2_c3d4, 0xa1b2_3c4d].contains(&magic) && capture.len() > 24);
    }
}

#[test]
fn two_at_a_time() {
    let file = TestFile::new("demo-two", 100_000);
    let demos = [(); 2].map(|()| start_with(&["demo", file.path()], &[]));
    for demo in demos {
        all_checks_held(&demo.end(PATIENCE));
    }
}
