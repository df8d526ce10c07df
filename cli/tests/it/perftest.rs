//! `barewire perf` and Debian's `ucx_perftest` with the same arguments: one function parses the
//! output of both.

use crate::port::free_port;
use crate::support;

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::{PATIENCE, TestFile, run};

/// A table: the name of its time, the rank of the percentile, and the lines with numbers.
#[derive(Debug, PartialEq)]
struct Table {
    time: String,
    percentile: String,
    rows: Vec<Row>,
}

/// A name (`Final:`, that of a test, or of a thread) and eight numbers.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    numbers: [f64; 8],
}

/// Parses a table of either tool.
fn table(text: &str) -> Table {
    let mut table = Table { time: String::new(), percentile: String::new(), rows: Vec::new() };
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let Some(time) = cells.get(3).and_then(|cell| cell.strip_suffix(" (usec)")) {
            time.clone_into(&mut table.time);
        }
        if let Some(rank) = cells.get(3).and_then(|cell| cell.strip_suffix("%ile")) {
            rank.clone_into(&mut table.percentile);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, numbers)) = words.len().checked_sub(8).map(|at| words.split_at(at)) else {
            continue;
        };
        let parse = |word: &&str| word.replace(',', "").parse::<f64>().ok();
        let numbers: Option<Vec<f64>> = numbers.iter().map(parse).collect();
        if let Some(numbers) = numbers.and_then(|numbers| numbers.try_into().ok()) {
            table.rows.push(Row { name: name.join(" "), numbers });
        }
    }
    table
}

/// A row of a CSV: names and numbers.
type Fields = (Vec<String>, Vec<f64>);

/// Parses the CSV of either tool: the names of the columns, and the rows.
fn csv(text: &str) -> (Vec<String>, Vec<Fields>) {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let head: Vec<String> = lines.next().unwrap().split(',').map(str::to_owned).collect();
    let names = head.iter().position(|name| name == "iterations").unwrap();
    let rows = lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), head.len(), "{line}");
        let (names, numbers) = fields.split_at(names);
        let numbers = numbers.iter().map(|number| number.trim().parse().unwrap()).collect();
        (names.iter().map(ToString::to_string).collect(), numbers)
    });
    let rows = rows.collect();
    (head, rows)
}

/// Runs a pair of `ucx_perftest` with these arguments; `None` if it is not installed.
fn theirs(words: &[&str]) -> Option<String> {
    let port = free_port().to_string();
    let start = |more: &[&str], out: Stdio| {
        let mut command = Command::new("ucx_perftest");
        command.args(more).args(["-p", &port]).args(words).env("UCX_LOG_LEVEL", "error");
        command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).spawn()
    };
    let Ok(mut server) = start(&[], Stdio::null()) else {
        println!("left out: ucx_perftest is not installed (Debian's package ucx-utils)");
        return None;
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        // It accepts one client, so a test connection is not possible.
        let client = start(&["127.0.0.1"], Stdio::piped()).unwrap();
        let pid = client.id();
        let guard = thread::spawn(move || client.wait_with_output().unwrap());
        while !guard.is_finished() {
            if Instant::now() > deadline {
                support::signal(pid, libc::SIGKILL);
                support::signal(server.id(), libc::SIGKILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let output = guard.join().unwrap();
        let ended = server.try_wait().unwrap().is_some();
        let late = Instant::now() > deadline;
        if output.status.success() || ended || late {
            let _ = server.kill();
            let _ = server.wait();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && !late, "ucx_perftest {words:?}: {text}");
            return Some(text);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn ours(words: &[&str]) -> String {
    let ended = run(&[&["perf"], words].concat());
    ended.succeeded();
    ended.stdout
}

/// Checks that the numbers are plausible: iterations, times, bandwidths, rates.
#[track_caller]
fn is_sound(row: &Row, size: f64, iterations: f64) {
    let [count, percentile, average, overall, _, bandwidth, _, rate] = row.numbers;
    assert!((count - iterations).abs() < 0.5, "{row:?}");
    assert!(percentile > 0.0 && average > 0.0 && overall > 0.0 && rate > 0.0, "{row:?}");
    let of_rate = rate * size / 1024.0 / 1024.0;
    assert!((bandwidth - of_rate).abs() <= 0.02 + of_rate / 100.0, "{row:?} {of_rate}");
    // Both are rounded: the time to a nanosecond.
    assert!((overall * rate / 1e6 - 1.0).abs() < 0.01 + 0.001 / overall, "{row:?}");
}

#[test]
fn the_same_words_and_the_same_tables() {
    for (test, layout, size, time) in [
        ("am_lat", "short", "8", "latency"),
        ("am_lat", "bcopy", "1024", "latency"),
        ("put_lat", "short", "8", "latency"),
        ("add_lat", "short", "8", "latency"),
        ("fadd", "short", "8", "latency"),
        ("cswap", "short", "8", "latency"),
        ("get", "bcopy", "64", "latency"),
        ("am_bw", "bcopy", "4096", "overhead"),
        ("put_bw", "short", "8", "overhead"),
        ("add_mr", "short", "8", "overhead"),
    ] {
        let words = [
            "-t", test, "-D", layout, "-s", size, "-n", "3000", "-w", "100", "-W", "64", "-R", "90",
        ];
        let mine = table(&ours(&[&["-x", "shm"], &words[..]].concat()));
        let Some(text) = theirs(&[&["-x", "posix", "-d", "memory"], &words[..]].concat()) else {
            return;
        };
        for table in [&mine, &table(&text)] {
            assert_eq!(
                (table.time.as_str(), table.percentile.as_str()),
                (time, "90.0"),
                "{test} {table:?}"
            );
            let last = table.rows.last().unwrap_or_else(|| panic!("{test}: no rows in {text}"));
            assert_eq!(last.name, "Final:", "{test} {table:?}");
            is_sound(last, size.parse().unwrap(), 3000.0);
        }
    }
}

#[test]
fn over_tcp_too() {
    let words = ["-t", "am_bw", "-D", "bcopy", "-s", "256", "-n", "2000", "-w", "100", "-f", "-N"];
    let mine = table(&ours(&[&["-x", "tcp"], &words[..]].concat()));
    let Some(text) = theirs(&[&["-x", "tcp", "-d", "lo"], &words[..]].concat()) else { return };
    for table in [mine, table(&text)] {
        let [row] = &*table.rows else { panic!("{table:?}") };
        assert_eq!(row.name, "");
        is_sound(row, 256.0, 2000.0);
    }
}

#[test]
fn the_same_batch_files_and_the_same_csv() {
    let (one, two) = (TestFile::new("one", 0), TestFile::new("two", 0));
    std::fs::write(one.path(), "# tests\nlat -t am_lat\n\nbw -t am_bw\n").unwrap();
    std::fs::write(two.path(), "small -s 8\nlarge -s 512 -D bcopy\n").unwrap();
    let words = ["-b", one.path(), "-b", two.path(), "-n", "1000", "-w", "10", "-v", "-f"];
    let mine = csv(&ours(&[&["-x", "shm"], &words[..]].concat()));
    // Both of its ends read the files.
    let Some(text) = theirs(&[&["-x", "posix", "-d", "memory"], &words[..]].concat()) else {
        return;
    };
    let other = csv(&text);
    assert_eq!(mine.0, other.0);
    let names = |(_, rows): &(_, Vec<Fields>)| -> Vec<Vec<String>> {
        rows.iter().map(|(names, _)| names.clone()).collect()
    };
    assert_eq!(names(&mine), names(&other));
    for (_, numbers) in mine.1.iter().chain(&other.1) {
        assert!(
            (numbers[0] - 1000.0).abs() < 0.5 && numbers.iter().all(|number| *number >= 0.0),
            "{numbers:?}"
        );
    }
    // The table of the same tests: a line with the names precedes each.
    let words = ["-b", one.path(), "-b", two.path(), "-n", "1000", "-w", "10"];
    let mine = ours(&[&["-x", "shm"], &words[..]].concat());
    let Some(text) = theirs(&[&["-x", "posix", "-d", "memory"], &words[..]].concat()) else {
        return;
    };
    let separators = |text: &str| -> Vec<String> {
        let named =
            |line: &&str| line.starts_with('+') && line[1..].starts_with(char::is_alphabetic);
        text.lines().filter(named).map(str::to_owned).collect()
    };
    assert_eq!(separators(&mine), separators(&text));
    assert_eq!(separators(&mine).len(), 4, "{mine}");
}
