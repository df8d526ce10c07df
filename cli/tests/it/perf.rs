//! `barewire perf`: every test, all output formats, both ways to start it.

use crate::support;

use serde_json::Value;
use support::{Ended, PATIENCE, PROMISE, TestFile, run, start, start_with};

const TESTS: [&str; 9] =
    ["am_lat", "put_lat", "add_lat", "get", "fadd", "cswap", "am_bw", "put_bw", "add_mr"];

#[test]
fn every_test_with_both_ends_of_its_own() {
    for test in TESTS {
        let ended = run(&["perf", "-t", test, "-n", "300", "-w", "20"]);
        ended.succeeded();
        let last =
            ended.stdout.lines().find(|line| line.starts_with("Final:")).expect("a final line");
        assert_eq!(last.split_whitespace().nth(1), Some("300"), "{last}");
        assert!(ended.stdout.contains("emulator"), "{}", ended.stdout);
        for column in
            ["# iterations", "50.0%ile", "average", "overall", "bandwidth", "message rate"]
        {
            assert!(ended.stdout.contains(column), "{column}: {}", ended.stdout);
        }
    }
}

#[test]
fn every_test_within_one_process() {
    for test in TESTS.iter().chain(&["swap"]) {
        run(&["perf", "-x", "self", "-d", "memory", "-t", test, "-n", "300", "-w", "20"])
            .succeeded();
    }
    for test in ["add_lat", "fadd", "swap", "cswap", "add_mr"] {
        run(&["perf", "-x", "self", "-t", test, "-s", "4", "-n", "300", "-w", "20"]).succeeded();
    }
    for transport in ["rc_mlx5", "shm", "tcp"] {
        run(&["perf", "-l", "-x", transport, "-t", "am_lat", "-n", "300", "-w", "20"]).succeeded();
    }
}

/// Asserts how many iterations the final line reports.
fn assert_iterations(ended: &Ended, number: &str, what: &str) {
    let last = ended.stdout.lines().find(|line| line.starts_with("Final:"));
    let count = last.and_then(|line| line.split_whitespace().nth(1));
    assert_eq!(count, Some(number), "{what}: {}", ended.stdout);
}

#[test]
fn tagged_messages() {
    for transport in ["shm", "tcp", "rc_mlx5"] {
        // Eager, and by rendezvous.
        for (test, size, number) in
            [("tag_lat", "8", "300"), ("tag_bw", "64K", "50"), ("tag_bw", "1M", "10")]
        {
            let ended =
                run(&["perf", "-x", transport, "-t", test, "-s", size, "-n", number, "-w", "5"]);
            ended.succeeded();
            assert_iterations(&ended, number, &format!("{transport} {test} {size}"));
        }
    }
}

/// The device of the software HCA matches them.
#[test]
fn tagged_messages_that_a_device_matches() {
    for (size, number) in [("8", "300"), ("64K", "50")] {
        let arguments =
            ["perf", "-x", "rc_mlx5", "-t", "tag_lat", "-s", size, "-n", number, "-w", "5"];
        let matching = start_with(&arguments, &[("BAREWIRE_TAG_MATCHING", "yes")]);
        let ended = matching.end(PATIENCE);
        ended.succeeded();
        assert_iterations(&ended, number, size);
    }
}

#[test]
fn channel_messages() {
    for (test, size, number) in
        [("channel_lat", "8", "300"), ("channel_lat", "0", "50"), ("channel_bw", "64K", "200")]
    {
        for loopback in [&[][..], &["-l"]] {
            let arguments = ["perf", "-t", test, "-s", size, "-n", number, "-w", "5"];
            let ended = run(&[&arguments, loopback].concat());
            ended.succeeded();
            assert_iterations(&ended, number, &format!("{test} {size} {loopback:?}"));
        }
    }
    let ended = run(&["perf", "-t", "channel_lat", "-x", "shm"]);
    assert!(ended.failed().contains("transport shm has no channel_lat"), "{ended:#?}");
}

#[test]
fn pieces_headers_strides_and_windows() {
    for args in [
        &["-t", "am_lat", "-D", "shortiov", "-s", "3,5,16,4"][..],
        &["-t", "am_bw", "-D", "zcopy", "-s", "16,48,1K", "-H", "16", "-O", "4"],
        &["-t", "am_bw", "-W", "1"],
        &["-t", "am_bw", "-W", "0"],
        &["-t", "put_lat", "-D", "zcopy", "-s", "8,100,8", "-i", "128"],
        &["-t", "put_bw", "-D", "zcopy", "-s", "4K", "-O", "8"],
        &["-t", "get", "-D", "zcopy", "-s", "64,64", "-O", "4"],
        &["-t", "fadd", "-O", "4"],
        &["-t", "put_lat", "-o"],
        &["-t", "get", "-o", "-D", "bcopy"],
    ] {
        let mut words = vec!["perf", "-n", "300", "-w", "20"];
        words.extend(args);
        run(&words).succeeded();
    }
}

#[test]
fn a_batch_file_over_several_transports() {
    let file = TestFile::new("batch", 0);
    let tests = "# name, then words\n\none -t am_lat -x rc_mlx5\ntwo -t put_bw -x shm -s 64\nthree -x self\n";
    std::fs::write(file.path(), tests).unwrap();
    let ended = run(&["perf", "-b", file.path(), "-n", "200", "-w", "10", "-f"]);
    ended.succeeded();
    for name in ["one", "two", "three"] {
        let line = ended.stdout.lines().find(|line| line.trim_start().starts_with(name));
        assert_eq!(
            line.and_then(|line| line.split_whitespace().nth(1)),
            Some("200"),
            "{}",
            ended.stdout
        );
    }
    let mut server = start(&["perf", "--listen", "-p", "0"]);
    let port = server.port();
    std::fs::write(file.path(), "one -x shm\ntwo -x shm -t get\n").unwrap();
    let batch = ["perf", "127.0.0.1", "-p", &port, "-b", file.path(), "-n", "200", "--json"];
    let client = start(&batch).end(PATIENCE);
    client.succeeded();
    let value: Value = serde_json::from_str(&client.stdout).unwrap();
    assert_eq!(
        (&value[0]["test"], &value[1]["test"]),
        (&"am_lat".into(), &"get".into()),
        "{value}"
    );
    server.end(PATIENCE).succeeded();
    let table = run(&["perf", "-b", file.path(), "-n", "20"]);
    table.succeeded();
    assert!(table.stdout.contains("+two---"), "{}", table.stdout);
    std::fs::write(file.path(), "one -x shm\ntwo -t none\n").unwrap();
    let ended = run(&["perf", "-b", file.path()]);
    assert!(ended.failed().contains("line 2"), "{ended:#?}");
}

#[test]
fn a_series_of_sizes_and_its_plot() {
    let plot = TestFile::new("plot.svg", 0);
    let ended = run(&[
        "perf",
        "-x",
        "shm",
        "--sweep",
        "8:64K",
        "-n",
        "50",
        "-v",
        "-f",
        "--plot",
        plot.path(),
    ]);
    ended.succeeded();
    assert!(
        ended.stdout.starts_with("test,size,iterations,50.0_percentile_lat,"),
        "{}",
        ended.stdout
    );
    for row in ["am_lat,8,50,", "am_lat,4096,50,", "am_bw,8,50,"] {
        assert!(ended.stdout.lines().any(|line| line.starts_with(row)), "{row}: {}", ended.stdout);
    }
    assert!(ended.stdout.contains("# counters: posted "), "{}", ended.stdout);
    // Sizes that are not possible are reported.
    assert!(
        ended.stdout.contains("sizes left out: am_lat on shm takes messages of"),
        "{}",
        ended.stdout
    );
    let svg = std::fs::read_to_string(plot.path()).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    // A point for each size of both tests that is possible.
    let measured = ended.stdout.lines().filter(|line| line.starts_with("am_")).count();
    assert_eq!(svg.matches("<circle").count(), measured, "{svg}");
    assert!(svg.contains("latency: am_lat") && svg.contains("bandwidth: am_bw"), "{svg}");
    let ended = run(&["perf", "-x", "self", "-n", "50", "--plot", "/nonexistent/plot.svg"]);
    assert!(ended.failed().contains("/nonexistent/plot.svg"), "{ended:#?}");
    let ended = run(&["perf", "-x", "self", "-n", "50", "--plot", "plot.png"]);
    assert!(ended.failed().contains("ends in .svg"), "{ended:#?}");
}

#[test]
fn the_heading_names_the_time_that_is_measured() {
    let file = TestFile::new("heading.txt", 0);
    std::fs::write(file.path(), "latency -t am_lat\nstream -t put_bw\n").unwrap();
    for (more, time) in [
        (&["-t", "am_lat"][..], " latency (usec)"),
        (&["-t", "am_lat", "--sweep", "8:16"], " latency (usec)"),
        (&["-t", "put_bw", "--sweep", "8:16"], " overhead (usec)"),
        (&["-b", file.path()], " time (usec)"),
    ] {
        let ended = run(&[&["perf", "-x", "self", "-n", "50"], more].concat());
        ended.succeeded();
        assert!(ended.stdout.contains(time), "{more:?}: {}", ended.stdout);
    }
}

#[test]
fn transports_that_lack_the_operation_are_named() {
    let plot = TestFile::new("lacking.svg", 0);
    let of_puts = ["perf", "--all", "-t", "put_lat", "--sweep", "8:1K", "-n", "20", "--plot"];
    let ended = run(&[&of_puts[..], &[plot.path()]].concat());
    ended.succeeded();
    let note = "Without such an operation: ud_mlx5.";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
    let svg = std::fs::read_to_string(plot.path()).unwrap();
    assert!(svg.contains(note), "{svg}");
}

#[test]
fn every_transport_of_this_machine() {
    let ended = run(&["perf", "--all", "-n", "100"]);
    ended.succeeded();
    for transport in ["self", "rc_mlx5", "shm", "cma", "tcp"] {
        let line = ended.stdout.lines().find(|line| line.trim_start().starts_with(transport));
        assert!(
            line.is_some_and(|line| line.contains("/s") && line.contains('s')),
            "{}",
            ended.stdout
        );
    }
    let ended = run(&["perf", "--all", "-n", "100", "-t", "put_bw", "-s", "64", "--json"]);
    ended.succeeded();
    let value: Value = serde_json::from_str(&ended.stdout).unwrap();
    let measured = |name: &str| {
        value["tests"]
            .as_array()
            .unwrap()
            .iter()
            .any(|test| test["transport"] == name && test["size_bytes"] == 64)
    };
    assert!(["self", "rc_mlx5", "shm", "cma", "tcp"].into_iter().all(measured), "{value}");
    assert!(value["absent"].is_array() && value["failed"] == serde_json::json!([]), "{value}");
}

#[test]
fn rows_are_printed_when_they_are_finished() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    for (options, row) in [
        (&["--all", "--time", "0.01"][..], "self       memory"),
        (&["--all", "--sweep", "8:1K", "--time", "0.005"], "self       memory   am_lat"),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_barewire"))
            .arg("perf")
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().contains(" tests of up to "));
        assert!(lines.next().unwrap().starts_with("transport  device"));
        let first = lines.next().unwrap();
        assert!(first.starts_with(row), "{first}");
        assert!(child.try_wait().unwrap().is_none(), "the first row came with the last");
        // What is doubtful depends on the machine, and is one line for scripts.
        let widest = lines
            .filter(|line| !line.starts_with("doubtful"))
            .map(|line| line.chars().count())
            .max();
        assert!(widest <= Some(100), "{widest:?}");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn slow_tests_of_a_series_send_fewer_messages() {
    let ended = run(&["perf", "--sweep", "8:16", "--time", "0.001", "--json"]);
    ended.succeeded();
    let tests: Value = serde_json::from_str(&ended.stdout).unwrap();
    for test in tests.as_array().unwrap() {
        let count = test["iterations"].as_u64().unwrap();
        assert!((20..2000).contains(&count), "{tests:#}");
    }
    assert!(run(&["perf", "--all", "--time", "0"]).failed().contains("expected seconds"));
}

#[test]
fn every_way_of_sending() {
    for (test, sizes) in [
        ("am_lat", &["0", "7", "8", "100", "4096", "8000"][..]),
        ("am_bw", &["1", "64", "8000"]),
        ("put_lat", &["1", "8", "300", "8000", "256K"]),
        ("put_bw", &["1", "2000", "64K"]),
        ("get", &["1", "4096", "256K"]),
    ] {
        for size in sizes {
            run(&["perf", "-t", test, "-s", size, "-n", "30", "-w", "5"]).succeeded();
        }
    }
}

#[test]
fn a_server_and_a_client() {
    let mut server = start(&["perf", "--listen", "-p", "0", "-x", "rc_mlx5", "-d", "soft0:1"]);
    let port = server.port();
    let client = start(&[
        "perf",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        "put_lat",
        "-x",
        "rc_mlx5",
        "-d",
        "soft0:1",
        "-n",
        "200",
    ]);
    client.end(PATIENCE).succeeded();
    server.end(PATIENCE).succeeded();
}

#[test]
fn a_server_and_a_client_that_disagree() {
    let mut server = start(&["perf", "--listen", "-p", "0", "-t", "get"]);
    let port = server.port();
    let client = start(&["perf", "127.0.0.1", "-p", &port, "-t", "put_lat"]).end(PROMISE);
    assert!(client.failed().contains("put_lat"), "{client:#?}");
    server.warning("get", PROMISE);
    start(&["perf", "127.0.0.1", "-p", &port, "-t", "get", "-n", "10"]).end(PATIENCE).succeeded();
    assert!(server.end(PATIENCE).status.success());
}

#[test]
fn json_has_the_numbers_with_their_units() {
    let ended = run(&["perf", "-t", "am_lat", "-n", "200", "-w", "10", "-s", "64", "--json"]);
    ended.succeeded();
    let value: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(value["test"], "am_lat");
    assert_eq!(value["transport"], "rc_mlx5");
    assert_eq!(value["iterations"], 200);
    assert_eq!(value["size_bytes"], 64);
    assert_eq!(value["emulator"], true);
    assert_eq!(value["debug_build"], cfg!(debug_assertions));
    let share = value["cpu_share"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&share), "{value}");
    // The clock's unit is measured again in between.
    let [median, typical] = [&value["latency_percentiles_us"]["p50"], &value["latency_typical_us"]]
        .map(|value| value.as_f64().unwrap());
    assert!((median / typical - 1.0).abs() < 0.001, "{value}");
    for name in [
        "latency_typical_us",
        "latency_average_us",
        "latency_overall_us",
        "bandwidth_average_bytes_per_s",
        "bandwidth_overall_bytes_per_s",
        "message_rate_average_per_s",
        "message_rate_overall_per_s",
    ] {
        assert!(value[name].as_f64().unwrap() > 0.0, "{name}: {value}");
    }
    // Half a round trip each, so this many messages fit into the time.
    let latency = value["latency_overall_us"].as_f64().unwrap();
    let rate = value["message_rate_overall_per_s"].as_f64().unwrap();
    assert!((latency * rate / 1e6 - 1.0).abs() < 0.01, "{value}");
}

#[test]
fn a_debug_build_says_so() {
    let words = ["perf", "-x", "self", "-n", "10", "-v"];
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_barewire")).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let is_debug = cfg!(debug_assertions);
    for text in [output.stdout, output.stderr] {
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.contains(support::DEBUG_BUILD), is_debug, "{text}");
    }
}

#[test]
fn a_test_without_memory_for_its_messages_prints_no_table() {
    let ended = run(&["perf", "-x", "self", "-t", "put_lat", "-s", "8000G"]);
    ended.failed();
    assert_eq!(ended.stdout, "", "{ended:#?}");
}

/// The CPUs that a process may run on, as the kernel lists them.
fn allowed(pid: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().to_owned()
}

#[test]
fn the_ends_of_a_pair_run_on_two_cpus() {
    let ended = run(&["perf", "-x", "shm", "-n", "100", "--json"]);
    ended.succeeded();
    let value: Value = serde_json::from_str(&ended.stdout).unwrap();
    let several = allowed("self").contains([',', '-']);
    assert_eq!(value["cpus"][0] != value["cpus"][1], several, "{value}");
    // The threads of an emulated device need the CPUs as well.
    let ended = run(&["perf", "-x", "rc_mlx5", "-n", "100", "--json"]);
    ended.succeeded();
    let value: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&value["cpus"], &value["emulator"]), (&Value::Null, &Value::Bool(true)), "{value}");
    let first = allowed("self");
    let first = first.split([',', '-']).next().unwrap();
    let ended = run(&["perf", "-x", "shm", "-c", first, "-n", "100"]);
    ended.succeeded();
    assert!(ended.stdout.contains("Both ends ran on CPU"), "{}", ended.stdout);
}

#[test]
fn cpus_are_pinned() {
    // The first CPU that this process may run on.
    let list = allowed("self");
    let first = list.split([',', '-']).next().unwrap();
    let mut perf = start(&["perf", "-c", first, "-n", "100000000"]);
    let second = perf.second().expect("it runs");
    for pid in [perf.pid(), second] {
        assert_eq!(allowed(&pid.to_string()), first);
    }
}
