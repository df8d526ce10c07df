//! Invalid command lines, `barewire info`, and output without a reader.

use crate::support;

use std::io::Read;
use std::process::{Command, Stdio};
use support::{PATIENCE, run, start, start_with};

#[test]
fn bad_command_lines_are_one_line_and_code_2() {
    let bad: &[&[&str]] = &[
        &["dance"],
        &["--dance"],
        &["demo", "a", "b"],
        &["info", "--yaml"],
        &["hello", "-b", "-z"],
        &["hello", "-s"],
        &["hello", "-s", "many"],
        &["hello", "-s", "-1"],
        &["hello", "-s", "1000000000"],
        &["hello", "-p", "99999"],
        &["hello", "-n", "localhost", "-a", "127.0.0.1"],
        &["hello", "-a", "not an address"],
        &["hello", "-t", "self"],
        &["perf", "-t", "am_lta"],
        &["perf", "-n", "0"],
        &["perf", "-n", "18446744073709551615", "-w", "18446744073709551615"],
        &["perf", "-c", "one"],
        &["perf", "-c", "9-3"],
        &["perf", "-c", "1023"],
        &["perf", "-n", "-1"],
        &["perf", "-O", "0"],
        &["demo", "--faults", "gremlins=1", "/etc/hostname"],
        &["hca", "run", "--faults", "drop=2", "--", "true"],
        &["perf", "-t", "fadd", "-s", "16"],
        &["perf", "-t", "put_lat", "-s", "0"],
        &["perf", "-t", "am_bw", "-s", "1G"],
        &["perf", "-a", "127.0.0.1"],
        &["perf", "--listen", "localhost"],
        &["perf", "--listen", "--json"],
        &["perf", "--listen", "-l"],
        &["perf", "--sweep", "8"],
        &["perf", "--sweep", "1G:2G"],
        &["perf", "-x", "self", "-t", "put_bw", "-D", "zcopy", "-s", "8,8", "-i", "4"],
        &["perf", "-m", "cuda"],
        &["perf", "-R", "101"],
        &["perf", "-x", "self", "localhost"],
        &["second"],
        &["second", "1", "demo"],
        &["second", "-1", "demo"],
    ];
    for args in bad {
        let ended = run(args);
        ended.failed();
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {ended:#?}");
        assert!(ended.stdout.is_empty(), "{args:?}: {ended:#?}");
    }
}

#[test]
fn no_words_print_the_help_and_end_with_code_2() {
    for (args, words) in [(&[][..], "Usage: barewire"), (&["hca"], "Usage: barewire hca")] {
        let ended = run(args);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {ended:#?}");
        assert!(ended.stderr.contains(words) && ended.stdout.is_empty(), "{args:?}: {ended:#?}");
    }
}

#[test]
fn a_key_is_made_once_and_only_its_owner_reads_it() {
    use std::os::unix::fs::PermissionsExt;

    let file = support::TestFile::new("made.key", 0);
    let ended = run(&["key", file.path()]);
    assert!(ended.failed().contains("was not changed"), "{ended:#?}");
    std::fs::remove_file(file.path()).unwrap();
    run(&["key", file.path()]).succeeded();
    let mode = std::fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    run(&["info", "--to", "127.0.0.1", "--key-file", file.path()]).succeeded();
}

#[test]
fn what_is_not_there_is_one_line_and_code_1() {
    let bad: &[(&[&str], &str)] = &[
        (&["demo", "/nonexistent/file"], "/nonexistent/file"),
        (&["demo", "/tmp"], "not a regular file"),
        (&["demo", "/dev/zero"], "not a regular file"),
        (&["perf", "-x", "shm", "--plot", "/nonexistent/x.svg"], "cannot write the plot"),
        (&["doctor", "--report", "/nonexistent/r.json"], "cannot write the report"),
        (&["perf", "--key-file", "/tmp"], "not a regular file"),
    ];
    for (args, words) in bad {
        let ended = run(args);
        assert!(ended.failed().contains(words), "{args:?}: {ended:#?}");
        assert_eq!(ended.status.code(), Some(1), "{args:?}: {ended:#?}");
    }
}

#[test]
fn unknown_names_are_named_with_what_is_there_and_a_similar_one_and_are_code_2() {
    let bad: &[(&[&str], &str)] = &[
        (&["hello", "-t", "carrier_pigeon"], "carrier_pigeon"),
        (&["hello", "-d", "mlx5_0:1"], "mlx5_0:1"),
        (&["perf", "-x", "carrier_pigeon"], "rc_mlx5"),
        (&["perf", "-x", "shmm"], "; tip: 'shm' is similar"),
        (&["perf", "-d", "soft7:1"], "soft0:1; tip: 'soft0:1' is similar"),
        (&["perf", "-d", "nothere"], "unknown device of rc_mlx5 'nothere': there are soft0:1"),
        (&["demo", "-d", "memry"], "; tip: 'memory' is similar"),
        (&["info", "-t", "carrier_pigeon"], "rc_mlx5"),
        (&["info", "shmm", "tcp"], "unknown transport 'shmm'"),
        (&["info", "-d", "soft7"], "soft0:1"),
        (&["doctor", "-d", "nothere"], "unknown device 'nothere': there are soft0:1, memory"),
        (&["doctor", "-d", "soft0:1", "-d", "shm"], "unknown device 'shm'"),
    ];
    for (args, words) in bad {
        let ended = run(args);
        assert!(ended.failed().contains(words), "{args:?}: {ended:#?}");
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {ended:#?}");
        assert!(ended.stdout.is_empty(), "{args:?}: {ended:#?}");
    }
}

#[test]
fn hosts_that_are_not_there_are_one_line_and_code_1() {
    let bad: &[(&[&str], &str)] = &[
        (&["hello", "-n", "localhost.invalid"], "localhost.invalid"),
        // TEST-NET-1 (RFC 5737) belongs to no host.
        (&["hello", "-a", "192.0.2.1"], "192.0.2.1"),
    ];
    for (args, words) in bad {
        let ended = start_with(args, &[("BAREWIRE_KEY", &"5a".repeat(32))]).end(PATIENCE);
        assert!(ended.failed().contains(words), "{args:?}: {ended:#?}");
        assert_eq!(ended.status.code(), Some(1), "{args:?}: {ended:#?}");
    }
}

#[test]
fn help_and_version_succeed() {
    let ended = run(&["--version"]);
    ended.succeeded();
    assert_eq!(ended.stdout.trim(), concat!("barewire ", env!("CARGO_PKG_VERSION")));
    for args in [
        &["--help"][..],
        &["demo", "-h"],
        &["info", "-h"],
        &["hello", "-h"],
        &["perf", "--help"],
        &["help"],
        &["help", "perf"],
        &["help", "hca", "run"],
    ] {
        let ended = run(args);
        ended.succeeded();
        assert!(ended.stdout.contains("Usage: barewire"), "{ended:#?}");
    }
}

#[test]
fn info_is_a_line_for_each_transport_and_each_reason() {
    let ended = run(&["info"]);
    ended.succeeded();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("transport  device"), "{}", ended.stdout);
    for (transport, operations) in
        [("self", "put get am"), ("rc_mlx5", "put get am"), ("ud_mlx5", "am"), ("cma", "put get")]
    {
        let of = |line: &&&str| line.split_whitespace().next() == Some(transport);
        let found: Vec<_> = lines.iter().filter(of).collect();
        assert_eq!(found.len(), 1, "{transport}: {}", ended.stdout);
        assert!(found[0].contains(operations), "{transport}: {}", ended.stdout);
    }
    assert!(ended.stdout.contains("\nabsent "), "{}", ended.stdout);
}

#[test]
fn info_names_every_limit_if_asked() {
    let ended = run(&["info", "-v"]);
    ended.succeeded();
    for words in
        ["component self", "device memory", "transport self", "device soft0:1", "transport rc_mlx5"]
    {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    for words in ["put", "get", "active message", "atomic 64 bit", "absent "] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    let one = run(&["info", "shm"]);
    one.succeeded();
    assert!(one.stdout.contains("transport shm") && one.stdout.contains("atomic 64 bit"));
    assert!(!one.stdout.contains("transport self"), "{}", one.stdout);
}

#[test]
fn info_in_json_says_the_same() {
    let ended = run(&["info", "--json"]);
    ended.succeeded();
    let value: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let components = value["components"].as_array().unwrap();
    let mlx5 = components.iter().find(|component| component["name"] == "mlx5").unwrap();
    let transport = &mlx5["devices"][0]["transports"][0];
    assert_eq!(transport["name"], "rc_mlx5");
    assert!(transport["put"]["max_short_bytes"].as_u64().unwrap() >= 8);
    for absent in components.iter().flat_map(|component| component["absent"].as_array().unwrap()) {
        assert!(!absent["reason"].as_str().unwrap().is_empty(), "{absent}");
    }
}

/// `barewire info | head -1`
#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in
        [&["info"][..], &["info", "--json"], &["--help"], &["perf", "-x", "self", "-n", "10"]]
    {
        let mut child = Command::new(env!("CARGO_BIN_EXE_barewire"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let mut others = stderr.lines().filter(|line| !line.contains(support::DEBUG_BUILD));
        assert!(child.wait().unwrap().success() && others.next().is_none(), "{args:?}: {stderr}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_barewire")).arg("info").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(support::one_line(&stderr).contains("cannot write the output"), "{stderr}");
}

#[test]
fn asking_leaves_nothing_behind() {
    let mut info = start(&["info"]);
    let second = info.second();
    assert_eq!(second, None);
    info.end(PATIENCE).succeeded();
}

#[test]
fn info_lists_only_what_is_asked_for() {
    let ended = run(&["info", "-t", "shm", "-t", "rc_mlx5", "-d", "soft0"]);
    ended.succeeded();
    let text = &ended.stdout;
    assert!(text.contains("transport rc_mlx5") && text.contains("device soft0:1"), "{text}");
    assert!(!text.contains("transport shm") && !text.contains("ud_mlx5"), "{text}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?}: {text}");
}

/// As a shell does.
#[test]
fn a_program_that_cannot_start_has_the_codes_of_a_shell() {
    for (program, code) in [("/nonexistent/program", 127), ("/tmp", 126)] {
        let ended = run(&["hca", "run", "--", program]);
        assert_eq!(ended.status.code(), Some(code), "{ended:#?}");
        assert!(ended.stderr.contains(program), "{ended:#?}");
    }
}

#[test]
fn a_transport_in_place_of_a_host_is_explained() {
    let ended = run(&["perf", "shm", "-t", "tag_bw"]);
    assert!(ended.failed().starts_with("shm is a transport, not a host: use -x shm"), "{ended:#?}");
}

/// The help, and the error of a wrong name, have the same list.
#[test]
fn the_help_lists_every_fault() {
    let list = words_of(&run(&["hca", "run", "--faults", "gremlins=1", "--", "true"]).stderr);
    let list = list.split_once("use ").unwrap().1;
    let list = &list[..list.find("or seed").unwrap()];
    assert!(list.starts_with("drop, ") && list.contains("fatal_after"), "{list}");
    for command in [&["hca", "run", "--help"][..], &["demo", "--help"]] {
        let help = words_of(&run(command).stdout);
        assert!(help.contains(list), "{help}");
    }
}

/// Returns a text on one line, with one space between words.
fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
