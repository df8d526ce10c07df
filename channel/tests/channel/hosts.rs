//! A channel over two networks between two hosts, which are namespaces of this machine. One of the
//! networks is cut while messages are sent.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver as Lines, channel};
use std::thread;

use barewire_channel::mlx5::hca;
use barewire_channel::{Connector, Handle, Key, Listener, Rail, Rails, Usage};

use crate::bench::{Bench, Setup, bench};
use crate::pair::{DEADLINE, config, pattern, soft, wait};

/// The host of this process, and the handle of the receiver if it is the sender.
const ROLE: &str = "BAREWIRE_TEST_CHANNEL_HOST";
const KEY: Key = Key::from_bytes([0x5a; 32]);
const LENGTH: usize = 100_000;
/// Messages between two lines of output.
const ROUND: u64 = 50;

fn say(line: &str) {
    // Libtest has begun a line.
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
}

/// A rail over each network of the host.
fn rails(host: u8) -> Rails {
    let rail = |network: u8| {
        let config = hca::Config::default().address(Some([10, network, 0, host + 1].into()));
        let config = config.key(Some("6b".repeat(32).parse().unwrap()));
        Rail::new(&format!("network{network}"), &soft(config)).unwrap()
    };
    Rails::new(vec![rail(9), rail(10)]).unwrap()
}

/// Sends or receives until its standard input ends; nothing unless it is started for that.
#[test]
fn an_end_on_a_host() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (stop, stopped) = channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        drop(stop);
    });
    match role.split_once(' ') {
        None => receive(),
        Some((_, handle)) => send(handle, &stopped),
    }
}

fn receive() {
    let rails = rails(1);
    let mut listener =
        Listener::bind(&rails, "10.9.0.2:0".parse().unwrap(), &KEY, &config()).unwrap();
    let handle = listener.handle().to_bytes();
    say(&format!("handle {}", handle.map(|byte| format!("{byte:02x}")).concat()));
    let mut receiver = wait("a sender", || Ok(listener.accept().unwrap())).unwrap();
    let target = rails.allocate(LENGTH, Usage::Receive).unwrap();
    let mut bytes = vec![0; LENGTH];
    for number in 0.. {
        let request = wait("room", || receiver.receive(&target, 0, LENGTH, 0)).unwrap();
        let received = wait("a message", || receiver.test(request)).unwrap();
        if received.sizes() == [0] {
            return say("ended");
        }
        target.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(number, LENGTH), "message {number} has wrong bytes");
    }
}

fn send(handle: &str, stopped: &Lines<()>) {
    let rails = rails(0);
    let bytes: Vec<u8> = (0..handle.len() / 2)
        .map(|at| u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let handle = Handle::from_bytes(&bytes).unwrap();
    let mut connector = Connector::start(&rails, &handle, &KEY, &config()).unwrap();
    let mut sender = wait("the receiver", || Ok(connector.poll().unwrap())).unwrap();
    let source = rails.allocate(LENGTH, Usage::Send).unwrap();
    let mut number = 0;
    loop {
        let is_last = stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected);
        let length = if is_last { 0 } else { LENGTH };
        source.write(0, &pattern(number, LENGTH)).unwrap();
        let request = wait("a buffer", || sender.send(&source, 0, length, 0)).unwrap();
        assert_eq!(wait("the send", || sender.test(request)).unwrap(), length);
        if is_last {
            return say("ended");
        }
        number += 1;
        if number % ROUND == 0 {
            let used = sender.counters().iter().filter(|rail| rail.in_use).count();
            say(&format!("sent over {used}"));
        }
    }
}

/// An end on a host.
struct End {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<String>,
    log: Vec<String>,
}

impl End {
    fn start(mut command: Command) -> Self {
        command.args(["hosts::an_end_on_a_host", "--exact", "--nocapture"]);
        command.stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Self { input: child.stdin.take(), child, lines, log: Vec::new() }
    }

    /// What follows `prefix` in the next line that begins with it.
    fn line(&mut self, prefix: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(DEADLINE);
            let line = line.unwrap_or_else(|error| panic!("{error}: {:#?}", self.log));
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.to_owned();
            }
            self.log.push(line);
        }
    }

    fn await_rails(&mut self, used: &str) {
        while self.line("sent over ") != used {}
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn end_on(bench: &Bench, host: usize, role: &str) -> End {
    let mut command = bench.command(host, &std::env::current_exe().unwrap());
    command.env(ROLE, role);
    End::start(command)
}

/// `eth0` has the control connection as well, with which a channel ends.
#[test]
fn messages_go_on_over_the_rail_that_is_left_when_a_network_is_cut() {
    let Some(bench) = bench(Setup { second: true, ..Setup::TWO }) else { return };
    let mut receiver = end_on(&bench, 1, "receiver");
    let handle = receiver.line("handle ");
    let mut sender = end_on(&bench, 0, &format!("sender {handle}"));
    sender.await_rails("2");
    bench.plug(1, "eth1", false);
    sender.await_rails("1");
    sender.await_rails("1");
    sender.input = None;
    sender.line("ended");
    receiver.line("ended");
}
