//! `barewire doctor`, on the software HCA of the process and on `mlx5_0`.

#[cfg(feature = "verbs")]
use crate::hca;
use crate::support;

use std::fs;

use serde_json::Value;
#[cfg(feature = "verbs")]
use support::Ended;
use support::PATIENCE;

/// The rows of a report, as `device transport setup row`, with their states and details.
fn rows(report: &str) -> Vec<(String, String, String)> {
    let report: Value = serde_json::from_str(report).expect("the report is JSON");
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let row = |row: &Value| {
        let name = ["transport", "setup", "row"].map(|field| word(&row[field])).join(" ");
        (name, word(&row["state"]), word(&row["detail"]))
    };
    report["rows"].as_array().expect("it has rows").iter().map(row).collect()
}

/// The names of the rows that failed.
fn failures(rows: &[(String, String, String)]) -> Vec<&str> {
    rows.iter().filter(|(_, state, _)| state == "fail").map(|(name, ..)| name.as_str()).collect()
}

#[test]
fn every_row_passes_on_the_software_hca() {
    let file = std::env::temp_dir().join(format!("barewire-doctor-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let ended = support::run(&["doctor", "-d", "soft0", "--report", path]);
    let report = fs::read_to_string(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    ended.succeeded();
    assert!(ended.stdout.contains("verdict: rc_mlx5 on soft0:1 works"), "{}", ended.stdout);
    let rows = rows(&report);
    assert_eq!(failures(&rows), [""; 0], "{rows:#?}");
    let skipped = rows.iter().filter(|(_, state, _)| state == "skip").map(|(name, ..)| name);
    // It has active messages only, and a queue pair as that of rc_mlx5.
    let without = [
        "ud_mlx5 - readback",
        "ud_mlx5 - atomics",
        "ud_mlx5 - errors",
        "dc_mlx5 - readback",
        "xrc_mlx5 - readback",
    ];
    assert_eq!(skipped.collect::<Vec<_>>(), without);
    for name in ["host", "device", "port"] {
        assert!(rows.iter().any(|(row, ..)| *row == format!("- - {name}")), "{name}: {rows:#?}");
    }
    for name in [
        "setup",
        "capabilities",
        "memory",
        "doorbells",
        "objects",
        "rmp",
        "xrq",
        "dc",
        "xrc",
        "ud",
        "data",
        "atomics",
    ] {
        let name = format!("rc_mlx5 - {name}");
        assert!(rows.iter().any(|(row, ..)| *row == name), "{name}: {rows:#?}");
    }
}

#[test]
fn every_row_passes_on_memory_and_the_loopback() {
    let ended = support::run(&["doctor", "-d", "memory", "-d", "127.0.0.1", "--json"]);
    ended.succeeded();
    let rows = rows(&ended.stdout);
    assert_eq!(failures(&rows), [""; 0], "{rows:#?}");
    for transport in ["shm", "cma", "tcp"] {
        for row in ["setup", "data"] {
            let name = format!("{transport} - {row}");
            let passed = |(row, state, _): &(String, String, String)| *row == name && state == "ok";
            assert!(rows.iter().any(passed), "{name}: {rows:#?}");
        }
    }
    let atomics = rows.iter().find(|(row, ..)| row == "tcp - atomics").expect("a row");
    assert_eq!(atomics.1, "ok", "{rows:#?}");
}

/// The doctor that listens serves every path of the other one, and ends with it.
#[test]
fn two_doctors_test_the_paths_between_them() {
    let mut listener = support::start(&["doctor", "-d", "soft0:1", "--listen", "-p", "0"]);
    let port = listener.port();
    let ended =
        support::run(&["doctor", "-d", "soft0:1", "--json", "--peer", "localhost", "-p", &port]);
    ended.succeeded();
    let rows = rows(&ended.stdout);
    for name in ["rc_mlx5 - peer", "ud_mlx5 - peer"] {
        let (_, state, detail) = rows.iter().find(|row| row.0 == name).expect("a path");
        assert!(state == "ok" && detail.contains("GB/s"), "{name}: {detail}");
    }
    listener.end(PATIENCE).succeeded();
    let alone = support::run(&[
        "doctor-row",
        "peer",
        "soft0:1",
        "rc_mlx5",
        "--peer",
        "localhost",
        "--port",
        &port,
    ]);
    alone.succeeded();
    assert!(alone.stdout.contains("\"fail\""), "{alone:#?}");
}

#[test]
fn a_row_that_does_not_exist_is_one_line() {
    let ended = support::run(&["doctor-row", "stars", "soft0:1"]);
    assert_eq!(ended.failed(), "there is no row 'stars'");
}

#[test]
fn every_path_is_explained() {
    let ended = support::run(&["info", "--explain"]);
    ended.succeeded();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    for path in ["self/memory", "shm/memory"] {
        assert!(lines.contains(&&*format!("{path}: works")), "{lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("rc_mlx5 on ")), "{lines:#?}");
    let ends = |line: &&str| line.contains(": works") || line.contains(": rejected: ");
    assert!(lines.iter().all(ends), "{lines:#?}");
}

/// Killed at any moment, it leaves no process and no file.
#[test]
fn a_killed_doctor_leaves_nothing_behind() {
    let folder = std::env::temp_dir().join(format!("barewire-doctor-kill-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    for row in 0..8 {
        let environment = [("TMPDIR", folder.to_str().unwrap())];
        let mut doctor = support::start_with(&["doctor", "-d", "soft0:1"], &environment);
        for _ in 0..row {
            // The next row has its own process.
            doctor.second();
            std::thread::yield_now();
        }
        let child = doctor.second();
        support::signal(doctor.pid(), libc::SIGKILL);
        if let Some(child) = child {
            assert!(support::gone_within(child, PATIENCE), "row {row} still runs");
        }
        // It waits for all processes that hold the output.
        doctor.end(PATIENCE);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir(&folder).expect("it is empty");
}

#[cfg(feature = "verbs")]
mod mlx5_0 {
    use super::*;

    /// Runs `barewire hca run OPTIONS -- barewire doctor --json`.
    fn doctor(options: &[&str]) -> Option<Ended> {
        if !hca::installed("ibv_devinfo", "ibverbs-utils") {
            return None;
        }
        let barewire = [env!("CARGO_BIN_EXE_barewire"), "doctor", "--json"];
        let arguments = [&["hca", "run"], options, &["--"], &barewire].concat();
        Some(support::start(&arguments).end(PATIENCE))
    }

    const PATHS: [&str; 7] = [
        "rc_mlx5 devx",
        "rc_mlx5 init_obj",
        "ud_mlx5 -",
        "dc_mlx5 -",
        "xrc_mlx5 -",
        "rc_verbs -",
        "ud_verbs -",
    ];

    #[test]
    fn every_row_passes_on_every_path() {
        let Some(ended) = doctor(&[]) else { return };
        ended.succeeded();
        let rows = rows(&ended.stdout);
        assert_eq!(failures(&rows), [""; 0], "{rows:#?}");
        let readback = rows.iter().find(|(row, ..)| row == "rc_mlx5 devx readback").unwrap();
        assert!(readback.2.contains("in the kernel's queue pairs"), "{readback:?}");
        // The kernel counts events of our queue pairs.
        assert!(!readback.2.contains("counter_set_id"), "{readback:?}");
        for path in PATHS {
            let data = format!("{path} data");
            let passed = |(row, state, _): &(String, String, String)| *row == data && state == "ok";
            assert!(rows.iter().any(passed), "{path}: {rows:#?}");
        }
    }

    /// What the driver copes with fails no row, and the row says how.
    #[test]
    fn demanding_ports_and_hosts_fail_no_row() {
        // Options that do not exclude each other share a run: each run starts 60 processes.
        for (options, ways) in [
            (
                &["--mtu", "1500", "--udp-ports", "1000-1009", "--lag", "2", "--iommu"][..],
                &[
                    ("- - port", "path MTU 1024 bytes, to which"),
                    ("rc_mlx5 devx capabilities", "1000-1009"),
                    ("rc_mlx5 devx memory", "at 4 offsets"),
                ][..],
            ),
            (
                &["--ib", "--grh-required", "--no-wc", "--real-time-clock"],
                &[
                    ("- - port", "global route required: used"),
                    ("rc_mlx5 init_obj doorbells", "no BlueFlame"),
                    ("rc_mlx5 devx capabilities", "the device's default format"),
                ],
            ),
            // Those of which only traffic can show that the driver copes.
            (
                &[
                    "--relaxed-only",
                    "--exact-doorbells",
                    "--pkeys",
                    "7fff:8001",
                    "--max-qps",
                    "256",
                ],
                &[("rc_mlx5 devx capabilities", "memory keys with relaxed order of writes only")],
            ),
        ] {
            let Some(ended) = doctor(options) else { return };
            let rows = rows(&ended.stdout);
            assert_eq!(failures(&rows), [""; 0], "{options:?}: {rows:#?}");
            for (row, how) in ways {
                let found = rows.iter().find(|(name, ..)| name == row);
                let detail = found.map_or("", |(.., detail)| detail);
                assert!(detail.contains(how), "{options:?}: {row}: {detail}");
            }
        }
    }

    /// Each row is a process with a device of its own, which is removed during the first traffic.
    #[test]
    fn a_removed_device_fails_the_row_that_has_traffic_and_says_so() {
        let Some(ended) = doctor(&["--unplug-after", "100"]) else { return };
        let rows = rows(&ended.stdout);
        // Endpoints of ud_verbs fail after the peer's time-out, which is longer than a row waits.
        let rows_with_traffic = [
            "rc_mlx5 devx doorbells",
            "rc_mlx5 init_obj doorbells",
            "ud_mlx5 - data",
            "dc_mlx5 - data",
            "xrc_mlx5 - data",
            "rc_verbs - data",
            "ud_verbs - data",
        ];
        assert_eq!(failures(&rows), rows_with_traffic, "{rows:#?}");
        let prompt = &rows_with_traffic[..6];
        for (name, _, detail) in rows.iter().filter(|row| prompt.contains(&&*row.0)) {
            assert!(detail.contains("DEVICE_FATAL"), "{name}: {detail}");
        }
    }

    /// The device refuses objects of a family, or accepts them and drops all packets to them: only
    /// the rows of the family fail. DC receives from a shared receive queue.
    #[test]
    fn a_family_that_does_not_work_fails_its_rows_only() {
        for (options, failed) in [
            (["--refuse", "rmp"], &["rc_mlx5 devx rmp", "rc_mlx5 devx dc"][..]),
            (
                ["--deaf", "dct:xrc:ud"],
                &["rc_mlx5 devx dc", "rc_mlx5 devx xrc", "rc_mlx5 devx ud", "ud_mlx5 - setup"],
            ),
        ] {
            let Some(ended) = doctor(&options) else { return };
            let rows = rows(&ended.stdout);
            assert_eq!(failures(&rows), failed, "{options:?}: {rows:#?}");
            let passed =
                |name: &str| rows.iter().any(|(row, state, _)| row == name && state == "ok");
            for row in ["rc_mlx5 devx data", "rc_mlx5 init_obj ud", "ud_verbs - data"] {
                assert!(passed(row), "{options:?}: {row}: {rows:#?}");
            }
        }
    }

    /// What the driver does not cope with fails the row that tests it, and those that need the row
    /// are skipped.
    #[test]
    fn what_a_host_refuses_fails_its_row_only() {
        for (options, failed) in [
            (&["--no-devx"][..], &["rc_mlx5 devx setup"][..]),
            (&["--no-devx-qps"], &["rc_mlx5 devx setup"]),
            // Too few for 16 queue pairs in turns, or for the endpoints of the last row.
            (
                &["--max-qps", "8"],
                &[
                    "rc_mlx5 devx doorbells",
                    "rc_mlx5 init_obj doorbells",
                    "xrc_mlx5 - limits",
                    "rc_verbs - limits",
                ],
            ),
        ] {
            let Some(ended) = doctor(options) else { return };
            assert!(ended.failed().contains("rows failed"), "{ended:#?}");
            let rows = rows(&ended.stdout);
            if options == ["--no-devx-qps"] {
                let barewire = [env!("CARGO_BIN_EXE_barewire"), "info", "--explain"];
                let words = [&["hca", "run"], options, &["--"], &barewire].concat();
                let explained = support::start(&words).end(PATIENCE).stdout;
                let wanted = "rc_mlx5 on mlx5_0:1, by devx: rejected: ";
                let line = explained.lines().find(|line| line.starts_with(wanted));
                assert!(line.is_some_and(|line| line.contains("limit exceeded")), "{explained}");
                assert!(explained.contains("mlx5_0:1, by init_obj: works"), "{explained}");
            }
            assert_eq!(failures(&rows), failed, "{options:?}: {rows:#?}");
        }
    }
}
