//! Channels over two networks between two hosts, which are namespaces of this machine. One of the
//! networks is cut while messages are sent: that of a rail, or that of the control connection and
//! of a rail.

use std::io::Write as _;
use std::sync::mpsc::{Receiver as Stop, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use barewire_channel::mlx5::hca;
use barewire_channel::{
    Config, Connector, Error, Failure, Handle, Key, Listener, Rail, Rails, Usage,
};

use crate::bench::{Bench, Running, Setup, bench};
use crate::pair::{DEADLINE, pattern, soft, wait};

/// The last byte of the addresses of this end, its networks in the order of the rails, and the
/// handle of the receiver if it is the sender.
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

/// The control connection fails soon after its network is cut.
fn config() -> Config {
    crate::pair::config().peer_timeout(Duration::from_secs(1))
}

/// A rail over each of the networks.
fn rails(end: &str, networks: &str) -> Rails {
    let rail = |network: &str| {
        let address = format!("10.{network}.0.{end}").parse().unwrap();
        let config = hca::Config::default().address(Some(address));
        let config = config.key(Some("6b".repeat(32).parse().unwrap()));
        Rail::new(&format!("network{network}"), &soft(config)).unwrap()
    };
    Rails::new(networks.split(',').map(rail).collect()).unwrap()
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
    let words: Vec<&str> = role.split(' ').collect();
    let ended = match &words[..] {
        [end, networks] => receive(end, &rails(end, networks)),
        [end, networks, handle] => send(&rails(end, networks), handle, &stopped),
        _ => panic!("{role}"),
    };
    match ended {
        Ok(()) => say("ended"),
        Err(Error::Failed(failure)) => match *failure {
            Failure::Closed { .. } => say("closed in order"),
            _ => say(&format!("failed: {failure}")),
        },
        Err(error) => panic!("{error}"),
    }
}

fn receive(end: &str, rails: &Rails) -> Result<(), Error> {
    let here = format!("10.9.0.{end}:0").parse().unwrap();
    let mut listener = Listener::bind(rails, here, &KEY, &config()).unwrap();
    say(&format!("handle {}", hex::encode(listener.handle().to_bytes())));
    let mut receiver = wait("a sender", || Ok(listener.accept().unwrap()))?;
    // Of the sockets of the host, only the control connection is left.
    drop(listener);
    let target = rails.allocate(LENGTH, Usage::Receive).unwrap();
    let mut bytes = vec![0; LENGTH];
    for number in 0.. {
        let request = wait("room", || receiver.receive(&target, 0, LENGTH, 0))?;
        let received = wait("a message", || receiver.test(request))?;
        if received.sizes() == [0] {
            break;
        }
        target.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(number, LENGTH), "message {number} has wrong bytes");
    }
    wait("the end", || receiver.check().map(|()| None))
}

fn send(rails: &Rails, handle: &str, stopped: &Stop<()>) -> Result<(), Error> {
    let handle = Handle::from_bytes(&hex::decode(handle).unwrap()).unwrap();
    let mut connector = Connector::start(rails, &handle, &KEY, &config()).unwrap();
    let mut sender = wait("the receiver", || Ok(connector.poll().unwrap()))?;
    let source = rails.allocate(LENGTH, Usage::Send).unwrap();
    let mut number = 0;
    loop {
        let is_last = stopped.try_recv() == Err(TryRecvError::Disconnected);
        let length = if is_last { 0 } else { LENGTH };
        source.write(0, &pattern(number, LENGTH)).unwrap();
        let request = wait("a buffer", || sender.send(&source, 0, length, 0))?;
        assert_eq!(wait("the send", || sender.test(request))?, length);
        if is_last {
            return Ok(());
        }
        number += 1;
        if number % ROUND == 0 {
            let used = sender.counters().iter().filter(|rail| rail.in_use).count();
            say(&format!("sent over {used}"));
        }
    }
}

fn end_on(bench: &Bench, host: usize, role: &str) -> Running {
    let mut command = bench.command(host, &std::env::current_exe().unwrap());
    command.args(["hosts::an_end_on_a_host", "--exact", "--nocapture"]);
    command.env(ROLE, role);
    Running::start(command)
}

/// A channel from host `from` to the other one, over these networks: its sender and its receiver.
fn channel_from(bench: &Bench, from: usize, networks: &str) -> [Running; 2] {
    let to = 1 - from;
    // The devices of a host have different addresses.
    let end = |host| if from == 0 { host + 1 } else { host + 101 };
    for (network, interface) in [(9, "eth0"), (10, "eth1")] {
        for host in [0, 1].into_iter().filter(|_| from == 1) {
            let words = format!("addr add 10.{network}.0.{}/24 dev {interface}", end(host));
            bench.ip(host, &words);
        }
    }
    let receiver = end_on(bench, to, &format!("{} {networks}", end(to)));
    let handle = receiver.line("handle ");
    [end_on(bench, from, &format!("{} {networks} {handle}", end(from))), receiver]
}

/// Waits until messages go over so many rails.
fn await_rails(sender: &Running, rails: u32) {
    sender.await_line(&format!("sent over {rails}"));
}

/// Waits until neither host has a control connection any more.
fn await_cut(bench: &Bench) {
    const ESTABLISHED: &str = "01";
    let begun = Instant::now();
    let is_open = |host| {
        let sockets = bench.connections(host);
        sockets.lines().any(|line| line.split_whitespace().nth(3) == Some(ESTABLISHED))
    };
    while is_open(0) || is_open(1) {
        assert!(begun.elapsed() < DEADLINE, "a control connection is left");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn messages_go_on_over_the_rail_that_is_left_when_a_network_is_cut() {
    let Some(bench) = bench(Setup { second: true, ..Setup::TWO }) else { return };
    let [sender, receiver] = channel_from(&bench, 0, "9,10");
    await_rails(&sender, 2);
    bench.plug(1, "eth1", false);
    await_rails(&sender, 1);
    await_rails(&sender, 1);
    sender.stop();
    receiver.await_line("closed in order");
}

/// `eth0`, network 9, has the control connections.
fn without_the_control_connection(networks: &str) {
    let Some(bench) = bench(Setup { second: true, ..Setup::TWO }) else { return };
    let channels = [0, 1].map(|host| channel_from(&bench, host, networks));
    let each = |rails| channels.iter().for_each(|[sender, _]| await_rails(sender, rails));
    each(2);
    bench.plug(1, "eth0", false);
    each(1);
    await_cut(&bench);
    // A round that was under way, and one that was not.
    each(1);
    each(1);
    // The rail comes back without a control connection, and then the other one fails.
    bench.plug(1, "eth0", true);
    each(2);
    bench.plug(1, "eth1", false);
    each(1);
    for [sender, receiver] in channels {
        sender.stop();
        receiver.await_line("closed in order");
    }
}

#[test]
fn a_channel_outlives_its_control_connection_with_the_first_rail() {
    without_the_control_connection("9,10");
}

#[test]
fn a_channel_outlives_its_control_connection_with_the_last_rail() {
    without_the_control_connection("10,9");
}

#[test]
fn a_peer_that_vanishes_is_noticed_without_the_control_connection() {
    let Some(mut bench) = bench(Setup { second: true, ..Setup::TWO }) else { return };
    let [sender, receiver] = channel_from(&bench, 0, "9,10");
    await_rails(&sender, 2);
    bench.plug(1, "eth0", false);
    await_cut(&bench);
    await_rails(&sender, 1);
    await_rails(&sender, 1);
    bench.lose(1);
    let begun = Instant::now();
    let failure = sender.line("failed: ");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(failure.contains("is lost"), "{failure}");
    drop(receiver);
}
