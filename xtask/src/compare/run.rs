//! One run of one side: a server and a client, each on its own CPU.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::ping_pong;
use super::rows::{Measure, OnDevice, Program, Row};
use crate::bench::side_by_side::{Programs, UNDER};
use crate::new_ucx::NewUcx;
use crate::process::{Failure, repository};

/// Deadline of a run, which takes a few seconds.
const DEADLINE: Duration = Duration::from_mins(2);
const TICK: Duration = Duration::from_millis(5);

/// The CPUs of server and client, and our programs.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) cpus: [String; 2],
    /// The command line.
    pub(super) barewire: String,
    /// The bench `sockets`.
    pub(super) sockets: String,
    /// The bench `connect`, and `benches/peers/ucp.c` compiled.
    pub(super) connect: String,
    pub(super) ucp: String,
    /// The programs on the software HCA, if a row needs them.
    pub(super) on_device: Option<Programs>,
    /// The newer UCX, if installed.
    pub(super) new_ucx: Option<NewUcx>,
    /// A command prefix that gives priority on a busy machine.
    pub(super) first: Vec<String>,
}

/// A child that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has usually ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the program of a row and returns its value.
pub(super) fn run(row: &Row, program: Program, place: &Place) -> Result<f64, Failure> {
    if program == Program::PingPong {
        return ping_pong::one_way(&place.cpus, ping_pong::ROUNDS);
    }
    let started = Instant::now();
    if let Program::OnDevice(..) = program {
        let client = start(&words(row, program, place, 0, false), &place.cpus[1], Stdio::piped())?;
        return value(row, program, client, started);
    }
    let port = free_port()?;
    let mut server = start(&words(row, program, place, port, true), &place.cpus[0], Stdio::null())?;
    while !listens(port) {
        if ended(&mut server)? || started.elapsed() > DEADLINE {
            return Err(Failure::Found(format!(
                "{}: the server of {program:?} does not listen",
                row.name
            )));
        }
        thread::sleep(TICK);
    }
    let client = start(&words(row, program, place, port, false), &place.cpus[1], Stdio::piped())?;
    value(row, program, client, started)
}

/// Waits for the client, and returns the value that it prints.
fn value(
    row: &Row,
    program: Program,
    mut client: Running,
    started: Instant,
) -> Result<f64, Failure> {
    while !ended(&mut client)? {
        if started.elapsed() > DEADLINE {
            return Err(Failure::Deadline(DEADLINE));
        }
        thread::sleep(TICK);
    }
    let mut text = String::new();
    if let Some(mut stdout) = client.0.stdout.take() {
        stdout.read_to_string(&mut text).map_err(|error| {
            Failure::Found(format!("{}: cannot read the output: {error}", row.name))
        })?;
    }
    let value = match program {
        Program::Perf(..)
        | Program::Sockets(_)
        | Program::Connect(_)
        | Program::Ucp(..)
        | Program::NewUcp(..)
        | Program::OnDevice(..) => perf(&text, row.measure),
        Program::Ucx(_) | Program::NewUcx(_) => ucx(&text, row.measure),
        Program::PingPong => None,
        Program::Iperf => iperf(&text, row.measure),
    };
    value.ok_or_else(|| {
        Failure::Found(format!("{}: {program:?} said nothing of use: {text:?}", row.name))
    })
}

fn words(row: &Row, program: Program, place: &Place, port: u16, server: bool) -> Vec<String> {
    let (port, iterations) = (port.to_string(), row.iterations.to_string());
    let mut words = place.first.clone();
    let mut add = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
    match (program, server) {
        (Program::Perf(transport, _), true) => {
            add(&[&place.barewire, "perf", "--listen", "-p", &port, "-x", transport]);
        }
        (Program::Perf(transport, more), false) => {
            add(&[&place.barewire, "perf", "127.0.0.1", "--json", "-p", &port, "-x", transport]);
            add(&["-n", &iterations, "-w", "10K"]);
            add(more);
        }
        (Program::PingPong, _) => {}
        (Program::Ucx(more) | Program::NewUcx(more), server) => {
            let variables = more.iter().take_while(|word| word.starts_with("UCX_")).count();
            let (variables, more) = more.split_at(variables);
            add(&[&["env"], variables].concat());
            match (program, &place.new_ucx) {
                (Program::NewUcx(_), Some(new)) => add(&[&new.libraries, &new.program]),
                _ => add(&["ucx_perftest"]),
            }
            if !server {
                add(&["127.0.0.1", "-f", "-v"]);
            }
            add(&["-p", &port, "-n", &iterations, "-w", "10000"]);
            add(more);
        }
        (Program::Connect(more), server) => {
            let side = if server { "listen" } else { "connect" };
            add(&[&place.connect, side, &port, &iterations]);
            add(more);
        }
        (Program::Ucp(transports, what) | Program::NewUcp(transports, what), server) => {
            let side = if server { "listen" } else { "connect" };
            let transports = format!("UCX_TLS={transports}");
            add(&["env", &transports, "UCX_NET_DEVICES=lo"]);
            if let (Program::NewUcp(..), Some(new)) = (program, &place.new_ucx) {
                add(&[&new.libraries]);
            }
            add(&[&place.ucp, side, &port, &iterations, what]);
        }
        (Program::OnDevice(which, arguments), _) => {
            let Some(programs) = &place.on_device else { return words };
            let program = match which {
                OnDevice::Ours => &programs.ours,
                OnDevice::Libmlx5 => &programs.libmlx5,
                OnDevice::Uct => &programs.uct,
            };
            add(&[&programs.barewire.to_string_lossy()]);
            add(&UNDER);
            add(&[&program.to_string_lossy()]);
            add(arguments);
            add(&[&iterations]);
        }
        (Program::Iperf, true) => add(&["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &port]),
        (Program::Iperf, false) => {
            add(&["iperf3", "-c", "127.0.0.1", "-t", "1", "-J", "-p", &port]);
        }
        (Program::Sockets(more), server) => {
            add(&[&place.sockets, if server { "listen" } else { "connect" }, &port, &iterations]);
            add(more);
        }
    }
    words
}

fn start(words: &[String], cpu: &str, stdout: Stdio) -> Result<Running, Failure> {
    let child = Command::new("taskset")
        .args(["-c", cpu])
        .args(words)
        .env("UCX_LOG_LEVEL", "error")
        // Two processes on the loopback interface that did not start each other: `tcp` needs a
        // common key.
        .env("BAREWIRE_KEY", "5a".repeat(32))
        .current_dir(repository())
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|cause| Failure::Start { program: "taskset".to_owned(), cause })?;
    Ok(Running(child))
}

fn ended(child: &mut Running) -> Result<bool, Failure> {
    match child.0.try_wait() {
        Ok(status) => Ok(status.is_some()),
        Err(cause) => Err(Failure::Start { program: "taskset".to_owned(), cause }),
    }
}

fn free_port() -> Result<u16, Failure> {
    let port =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    port.map(|address| address.port())
        .map_err(|error| Failure::Found(format!("no free port: {error}")))
}

/// Returns whether a socket listens on the port, from /proc: a connection would use up the server's
/// one client.
fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&wanted))
                && fields.nth(1) == Some("0A")
        })
    })
}

/// Parses `barewire perf --json`, and programs with the same fields.
fn perf(text: &str, measure: Measure) -> Option<f64> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let field = match measure {
        Measure::Latency => "latency_typical_us",
        Measure::Time => "latency_overall_us",
        Measure::Rate => "message_rate_overall_per_s",
        Measure::Bandwidth => "bandwidth_overall_bytes_per_s",
        Measure::Bytes => "bytes",
        Measure::Call => "nanoseconds",
    };
    json.get(field)?.as_f64()
}

/// Parses `ucx_perftest -f -v`: a line of names and a line of numbers.
fn ucx(text: &str, measure: Measure) -> Option<f64> {
    const MEBIBYTE: f64 = 1024.0 * 1024.0;
    let (name, unit) = match measure {
        Measure::Latency => ("50.0_percentile_lat", 1.0),
        Measure::Time => ("overall_lat", 1.0),
        Measure::Rate => ("overall_mr", 1.0),
        Measure::Bandwidth => ("overall_bw", MEBIBYTE),
        Measure::Bytes | Measure::Call => return None,
    };
    let mut lines = text.lines().skip_while(|line| !line.starts_with("iterations,"));
    let at = lines.next()?.split(',').position(|column| column == name)?;
    let value: f64 = lines.next()?.split(',').nth(at)?.trim().parse().ok()?;
    Some(value * unit)
}

/// Parses `iperf3 -J`: bits per second at the receiver.
fn iperf(text: &str, measure: Measure) -> Option<f64> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    match measure {
        Measure::Bandwidth => Some(json["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let text = "+---+\niterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    200000,0.476,1.659,2.857,4.60,2.5,602918,350044\n";
        assert_eq!(ucx(text, Measure::Latency), Some(0.476));
        assert_eq!(ucx(text, Measure::Rate), Some(350_044.0));
        assert_eq!(ucx(text, Measure::Bandwidth), Some(2.5 * 1_048_576.0));
        assert_eq!(ucx("nothing", Measure::Rate), None);
        let json = r#"{"latency_typical_us": 0.5, "message_rate_overall_per_s": 7.0}"#;
        assert_eq!(perf(json, Measure::Latency), Some(0.5));
        assert_eq!(perf(json, Measure::Bandwidth), None);
        let json = r#"{"end": {"sum_received": {"bits_per_second": 80}}}"#;
        assert_eq!(
            (iperf(json, Measure::Bandwidth), iperf(json, Measure::Rate)),
            (Some(10.0), None)
        );
        assert_eq!(iperf("{}", Measure::Bandwidth), None);
    }

    #[test]
    fn a_listener_is_seen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(listens(listener.local_addr().unwrap().port()));
    }
}
