//! A channel over two networks between two hosts, which are namespaces of this machine. One of the
//! networks is cut while messages are sent.

use std::io::Write as _;
use std::sync::mpsc::{Receiver as Stop, TryRecvError, channel};
use std::thread;

use barewire_channel::mlx5::hca;
use barewire_channel::{Connector, Handle, Key, Listener, Rail, Rails, Usage};

use crate::bench::{Bench, Running, Setup, bench};
use crate::pair::{config, pattern, soft, wait};

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
    say(&format!("handle {}", hex::encode(listener.handle().to_bytes())));
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

fn send(handle: &str, stopped: &Stop<()>) {
    let rails = rails(0);
    let handle = Handle::from_bytes(&hex::decode(handle).unwrap()).unwrap();
    let mut connector = Connector::start(&rails, &handle, &KEY, &config()).unwrap();
    let mut sender = wait("the receiver", || Ok(connector.poll().unwrap())).unwrap();
    let source = rails.allocate(LENGTH, Usage::Send).unwrap();
    let mut number = 0;
    loop {
        let is_last = stopped.try_recv() == Err(TryRecvError::Disconnected);
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

fn end_on(bench: &Bench, host: usize, role: &str) -> Running {
    let mut command = bench.command(host, &std::env::current_exe().unwrap());
    command.args(["hosts::an_end_on_a_host", "--exact", "--nocapture"]).env(ROLE, role);
    Running::start(command)
}

/// Waits until messages go over so many rails.
fn await_rails(sender: &Running, rails: u32) {
    sender.await_line(&format!("sent over {rails}"));
}

/// `eth0` has the control connection as well, with which a channel ends.
#[test]
fn messages_go_on_over_the_rail_that_is_left_when_a_network_is_cut() {
    let Some(bench) = bench(Setup { second: true, ..Setup::TWO }) else { return };
    let receiver = end_on(&bench, 1, "receiver");
    let handle = receiver.line("handle ");
    let sender = end_on(&bench, 0, &format!("sender {handle}"));
    await_rails(&sender, 2);
    bench.plug(1, "eth1", false);
    await_rails(&sender, 1);
    await_rails(&sender, 1);
    sender.stop();
    receiver.await_line("ended");
}
