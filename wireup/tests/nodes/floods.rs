//! The share of a node's time in progress that a flood of a member of the job takes, the memory, and
//! whether the messages of an honest peer arrive meanwhile. `BAREWIRE_FLOOD_ROUNDS` is how often each
//! flood is stopped and continued.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use barewire::PostError;
use barewire_tcp::socket::Socket;
use barewire_tcp::time::cpu_time;
use barewire_wireup::address::{Uuid, WorkerAddress};
use barewire_wireup::link::{Options, State};
use barewire_wireup::plan::Kind;
use barewire_wireup::protocol::{Kind as MessageKind, Message};
use barewire_wireup::tag;
use rustix::process::{Pid, Signal, getppid, kill_process};

use crate::hostile::{CONTROL, MOST_MEMORY, connector, frame, message, offer};
use crate::support::{DEADLINE, Side, alone, resident, rules, send, until, until_connected};

const ROLE: &str = "BAREWIRE_TEST_FLOOD";
const TARGET: &str = "BAREWIRE_TEST_FLOODED";
const NAMES: &str = "BAREWIRE_TEST_FLOODED_OVER";
const HONEST: &str = "honest";
/// Time of the thread between a stop of the flood and its continuation.
const WINDOW: Duration = Duration::from_millis(20);

fn rounds() -> usize {
    std::env::var("BAREWIRE_FLOOD_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

/// A process of this test program; it is killed when this is dropped.
struct Other(Child);

impl Other {
    fn start(role: &str, names: &[&str], target: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "floods::the_other_process", "--nocapture"])
            .env(ROLE, role)
            .env(NAMES, names.join(" "))
            .env(TARGET, target)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control message of a node that does not exist.
fn invented(kind: MessageKind, receiver: Uuid, address: &WorkerAddress) -> Vec<u8> {
    let whole = message(kind, Uuid::random().unwrap(), receiver);
    let body = match kind {
        MessageKind::Offer => offer(address),
        MessageKind::Ping => address.as_bytes().to_vec(),
        _ => whole.bytes.to_vec(),
    };
    Message { total: body.len() as u16, bytes: &body, ..whole }.to_bytes().into_vec()
}

/// Sends messages to a handler without end, over the link of a member of the job.
fn flood_a_lane(names: &[&str], target: &str, handler: u8, kind: Option<MessageKind>) {
    let mut sides = [Side::new(&rules(names))];
    let target: WorkerAddress = target.parse().unwrap();
    let link = sides[0].node.connect(&target, Options::default()).unwrap();
    until_connected(&mut sides, &[&link]);
    let lane = link.lane(Kind::Messages).unwrap().clone();
    let own = sides[0].node.address();
    // Of 64 nodes: making a message costs more time than sending it.
    let messages: Vec<Vec<u8>> = (0..64)
        .map(|_| match kind {
            Some(kind) => invented(kind, target.uuid(), &own),
            None => {
                std::iter::repeat_with(|| fastrand::u8(..)).take(fastrand::usize(..200)).collect()
            }
        })
        .collect();
    let begun = Instant::now();
    for message in messages.iter().cycle() {
        let pack = |room: &mut [u8]| {
            room[..message.len()].copy_from_slice(message);
            message.len()
        };
        match lane.am_bcopy(handler, pack) {
            Ok(_) => {}
            Err(PostError::NoResource) => drop(sides[0].node.progress()),
            Err(error) => panic!("{error}"),
        }
        if begun.elapsed() > DEADLINE || has_no_parent() {
            return;
        }
    }
}

fn has_no_parent() -> bool {
    getppid().is_none_or(Pid::is_init)
}

/// A connection of a process with this key, or `None` if it is refused.
fn connection(address: SocketAddr, key: [u8; 32]) -> Option<Socket> {
    let mut connector = connector(address, key, Uuid::random().unwrap()).ok()?;
    loop {
        match connector.advance(Instant::now()) {
            Ok(None) => std::thread::yield_now(),
            Ok(Some(socket)) => return Some(socket),
            Err(_) => return None,
        }
    }
}

/// Opens connections and sends frames on all of them, without end.
fn flood_by_connections(target: SocketAddr, key: [u8; 32], frame: &[u8], count: usize) {
    let begun = Instant::now();
    let bytes = frame.repeat((64 << 10) / frame.len().max(1));
    let mut sockets = Vec::new();
    while begun.elapsed() < DEADLINE && !has_no_parent() {
        if sockets.len() < count {
            sockets.extend(connection(target, key));
        }
        sockets.retain(|socket| {
            let sent = rustix::io::write(socket, &bytes);
            matches!(sent, Ok(_) | Err(rustix::io::Errno::AGAIN))
        });
    }
}

/// Opens connections and ends them, without end.
fn flood_by_connecting(target: SocketAddr, key: [u8; 32]) {
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE && !has_no_parent() {
        drop(connection(target, key));
    }
}

/// Connects links and closes them, without end.
fn flood_by_links(names: &[&str], target: &str) {
    let mut sides = [Side::new(&rules(names))];
    let target: WorkerAddress = target.parse().unwrap();
    let begun = Instant::now();
    let mut links = Vec::new();
    while begun.elapsed() < DEADLINE && !has_no_parent() {
        if links.len() < 8 {
            links.extend(sides[0].node.connect(&target, Options::default()));
        }
        sides[0].node.progress();
        links.retain(|link: &barewire_wireup::link::Link| match link.state() {
            State::Connected => {
                link.close(barewire_wireup::CloseMode::Cancel);
                true
            }
            State::Closed(_) | State::Failed(_) => false,
            _ => true,
        });
    }
}

/// The process that [`Other::start`] starts; nothing otherwise.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [target, names] = [TARGET, NAMES].map(|name| std::env::var(name).unwrap());
    let names: Vec<&str> = names.split(' ').collect();
    let socket = || target.parse().unwrap();
    match role.as_str() {
        HONEST => {
            let mut sides = [Side::new(&rules(&names))];
            let target = target.parse().unwrap();
            let link = sides[0].node.connect(&target, Options::default()).unwrap();
            until_connected(&mut sides, &[&link]);
            for number in 0.. {
                send(&mut sides, &link, number);
                until(&mut sides, "the reply", |sides| {
                    sides[0].received.borrow().last() == Some(&number)
                        || link.state() != State::Connected
                });
                std::thread::sleep(Duration::from_millis(1));
                if has_no_parent() || link.state() != State::Connected {
                    return;
                }
            }
        }
        "garbage" => flood_a_lane(&names, &target, CONTROL, None),
        "links" => flood_by_links(&names, &target),
        "tags" => flood_a_lane(&names, &target, tag::HANDLER, None),
        "empty frames" => flood_by_connections(socket(), [7; 32], &[0, 0], 40),
        "wrong frames" => flood_by_connections(socket(), [7; 32], &frame(&[1; 80]), 40),
        "requests" => {
            let own = WorkerAddress::certified(&[]).unwrap();
            let length = (own.as_bytes().len() as u16).to_be_bytes();
            let hello = frame(&[b"bL\x02H", &length[..], own.as_bytes(), &[7; 8]].concat());
            flood_by_connections(socket(), [7; 32], &hello, 40);
        }
        "connections" => flood_by_connecting(socket(), [7; 32]),
        "strangers" => flood_by_connections(socket(), [8; 32], &[0, 0], 40),
        kind => {
            let known = MessageKind::ALL.into_iter().find(|known| format!("{known:?}") == kind);
            flood_a_lane(&names, &target, CONTROL, Some(known.expect("a role")));
        }
    }
}

/// Turns of progress in a second of this thread's time.
fn rate(sides: &mut [Side], link: &barewire_wireup::link::Link) -> f64 {
    let begun = cpu_time();
    let mut turns = 0;
    loop {
        for _ in 0..64 {
            sides[0].node.progress();
            turns += 1;
            // Replies to the honest peer.
            let received = sides[0].received.borrow().last().copied();
            if let Some(number) = received
                && link.am_short(crate::support::ID, number, &[]).is_ok()
            {
                sides[0].received.borrow_mut().clear();
            }
        }
        let spent = cpu_time().saturating_sub(begun);
        if spent >= WINDOW {
            return f64::from(turns) / spent.as_secs_f64();
        }
    }
}

/// The rate of windows in which little else disturbed the thread: four of five are slower.
fn best(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 4 / 5]
}

/// What a flood takes.
struct Cost {
    /// Part of the time.
    share: f64,
    /// By how much windows without the flood differ, as a part of the time.
    noise: f64,
    /// Part of a processor that the thread had. What is bounded is a part of the elapsed time.
    processor: f64,
    /// Bytes.
    memory: usize,
}

/// Measures a flood: turns of progress in windows of one duration of the thread's CPU time, with the
/// flood and without it in turn.
fn measure(role: &str, names: &[&str], listens: bool) -> Cost {
    let mut sides = [Side::new(&rules(names))];
    let address = sides[0].node.address();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let _honest = Other::start(HONEST, names, &address.to_string());
    until(&mut sides, "the honest peer", |sides| !sides[0].incoming.borrow().is_empty());
    let link = sides[0].incoming.borrow()[0].clone();
    until_connected(&mut sides, &[&link]);
    until(&mut sides, "its first message", |sides| !sides[0].received.borrow().is_empty());
    let incoming = std::mem::take(&mut *sides[0].incoming.borrow_mut());
    sides[0].node.on_peer(|_| ());
    let before = resident();
    let target = if listens { listener.address().to_string() } else { address.to_string() };
    let hostile = Other::start(role, names, &target);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        rate(&mut sides, &link);
    }
    let (mut quiet, mut flooded) = ([Vec::new(), Vec::new()], Vec::new());
    let (begun, before_windows) = (Instant::now(), cpu_time());
    for round in 0..2 * rounds() {
        hostile.signal(Signal::STOP);
        rate(&mut sides, &link);
        quiet[round % 2].push(rate(&mut sides, &link));
        hostile.signal(Signal::CONT);
        rate(&mut sides, &link);
        flooded.push(rate(&mut sides, &link));
    }
    assert_eq!(link.state(), State::Connected, "{role}");
    drop(incoming);
    let share = 1.0 - best(flooded) / best(quiet.concat());
    let processor = cpu_time().saturating_sub(before_windows).as_secs_f64();
    let processor = processor / begun.elapsed().as_secs_f64();
    let noise = (1.0 - best(quiet[0].clone()) / best(quiet[1].clone())).abs();
    Cost { share, noise, processor, memory: resident().saturating_sub(before) }
}

/// Measures floods, and prints the shares: on a machine with other load they mean little.
fn check(lanes: &[String], connections: &[&str]) {
    let lanes = lanes
        .iter()
        .flat_map(|role| [&["shm"][..], &["tcp/lo"]].map(|names| (role.as_str(), names, false)));
    let connections = connections.iter().map(|role| (*role, &["shm"][..], true));
    for (role, names, listens) in lanes.chain(connections) {
        let Cost { share, noise, processor, memory } = measure(role, names, listens);
        println!(
            "{role} over {names:?}: {:.1} % (noise {:.1} %, with {:.0} % of a processor), {} KiB",
            share * 100.0,
            noise * 100.0,
            processor * 100.0,
            memory >> 10
        );
        assert!(memory < MOST_MEMORY, "{role} over {names:?}: {memory} bytes");
    }
}

#[test]
fn honest_messages_arrive_beside_a_flood_of_messages_or_of_requests() {
    alone("floods::honest_messages_arrive_beside_a_flood_of_messages_or_of_requests", || {
        check(&["Ping".to_owned()], &["requests"]);
    });
}

#[test]
#[ignore = "takes a minute and more"]
fn every_flood_takes_bounded_memory_and_no_honest_link() {
    alone("floods::every_flood_takes_bounded_memory_and_no_honest_link", || {
        let kinds = MessageKind::ALL.map(|kind| format!("{kind:?}"));
        let others = ["garbage", "tags", "links"].map(str::to_owned);
        let lanes: Vec<String> = kinds.into_iter().chain(others).collect();
        check(&lanes, &["empty frames", "wrong frames", "requests", "connections", "strangers"]);
    });
}
