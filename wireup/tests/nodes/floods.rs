//! The share of a node's time in progress that a flood of a member of the job takes, the memory, and
//! whether the messages of an honest peer arrive meanwhile. `BAREWIRE_FLOOD_ROUNDS` is how often each
//! flood is stopped and continued, and `BAREWIRE_FLOODS` names floods if not all are measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use barewire::PostError;
use barewire_tcp::Key;
use barewire_tcp::frames::frame;
use barewire_tcp::socket::Socket;
use barewire_wireup::address::{Uuid, WorkerAddress};
use barewire_wireup::link::{Options, State};
use barewire_wireup::plan::Kind;
use barewire_wireup::protocol::{Kind as MessageKind, Message};
use barewire_wireup::tag;

use crate::flood::{self, Other, has_no_parent, resident};
use crate::hostile::{CONTROL, claim, message, offer};
use crate::support::{DEADLINE, Side, alone, rules, send, until, until_connected};

const HONEST: &str = "honest";
/// An honest peer that sends messages and awaits nothing. With two honest connections, `tcp` polls none
/// of them directly, which costs twice as much as epoll does: with one, a flood over another one
/// would make turns cheaper.
const ANOTHER: &str = "another";
/// The handler of its messages.
const IGNORED: u8 = 4;
/// The id of a handler that no node here has.
const UNUSED: u8 = 5;
/// The test that is another process.
const OTHER: &str = "floods::the_other_process";

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

/// A connection of a process with this key, or `None` if it is refused.
fn connection(address: SocketAddr, key: [u8; 32]) -> Option<Socket> {
    flood::connection(address, &Key::from_bytes(key), claim(Uuid::random().unwrap()))
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

/// The process that [`flood::Other::start`] starts; nothing otherwise.
#[test]
fn the_other_process() {
    let Some((role, arguments)) = flood::role() else { return };
    let [target, names] = &arguments[..] else { panic!("{arguments:?}") };
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
        ANOTHER => {
            let mut sides = [Side::new(&rules(&names))];
            let link = sides[0].node.connect(&target.parse().unwrap(), Options::default()).unwrap();
            until_connected(&mut sides, &[&link]);
            while !has_no_parent() && link.state() == State::Connected {
                let _ = link.am_short(IGNORED, 0, &[]);
                sides[0].node.progress();
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        "garbage" => flood_a_lane(&names, target, CONTROL, None),
        "links" => flood_by_links(&names, target),
        "tags" => flood_a_lane(&names, target, tag::HANDLER, None),
        "no handler" => flood_a_lane(&names, target, UNUSED, None),
        "empty frames" => flood_by_connections(socket(), [7; 32], &frame(&[]), 40),
        "wrong frames" => flood_by_connections(socket(), [7; 32], &frame(&[1; 80]), 40),
        "requests" => {
            let own = WorkerAddress::certified(&[]).unwrap();
            let length = (own.as_bytes().len() as u16).to_be_bytes();
            let hello = frame(&[b"bL\x02H", &length[..], own.as_bytes(), &[7; 8]].concat());
            flood_by_connections(socket(), [7; 32], &hello, 40);
        }
        "connections" | "connections to the interface" => {
            flood_by_connecting(socket(), [7; 32]);
        }
        "strangers" | "strangers at the interface" => {
            flood_by_connections(socket(), [8; 32], &frame(&[]), 40);
        }
        kind => {
            let known = MessageKind::ALL.into_iter().find(|known| format!("{known:?}") == kind);
            flood_a_lane(&names, target, CONTROL, Some(known.expect("a role")));
        }
    }
}

/// What a flood is sent to.
#[derive(Clone, Copy)]
enum Victim {
    Node,
    Listener,
    /// The listening socket of its `tcp` interface.
    Interface,
}

/// Measures what a flood takes of the turns of progress.
fn measure(role: &str, names: &[&str], victim: Victim) -> flood::Cost {
    let mut sides = [Side::new(&rules(names))];
    let tags = (role == "tags")
        .then(|| tag::Tags::over(&mut sides[0].node, tag::Limits::default()).unwrap());
    sides[0].node.set_handler(IGNORED, |_| ()).unwrap();
    let address = sides[0].node.address();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let start = |role, target: String| Other::start(OTHER, role, &[&target, &names.join(" ")]);
    let _honest = start(HONEST, address.to_string());
    until(&mut sides, "the honest peer", |sides| !sides[0].incoming.borrow().is_empty());
    let link = sides[0].incoming.borrow()[0].clone();
    until_connected(&mut sides, &[&link]);
    until(&mut sides, "its first message", |sides| !sides[0].received.borrow().is_empty());
    let _another = start(ANOTHER, address.to_string());
    until(&mut sides, "the other one", |sides| sides[0].incoming.borrow().len() > 1);
    let incoming = std::mem::take(&mut *sides[0].incoming.borrow_mut());
    sides[0].node.on_peer(|_| ());
    let before = resident();
    let hostile = start(
        role,
        match victim {
            Victim::Node => address.to_string(),
            Victim::Listener => listener.address().to_string(),
            Victim::Interface => {
                let device = address.entries().find_map(|entry| entry.device_address);
                device.and_then(|device| device.socket_address()).expect("of tcp").to_string()
            }
        },
    );
    let [side] = &mut sides;
    let cost = flood::measure(&hostile, before, || {
        side.node.progress();
        // Replies to the honest peer.
        let received = side.received.borrow().last().copied();
        if let Some(number) = received
            && link.am_short(crate::support::ID, number, &[]).is_ok()
        {
            side.received.borrow_mut().clear();
        }
    });
    let all_live = incoming.iter().all(|link| link.state() == State::Connected);
    assert!(all_live, "{role}: an honest link has ended");
    drop(tags);
    cost
}

fn check(floods: impl IntoIterator<Item = (String, &'static [&'static str], Victim)>) {
    for (role, names, victim) in floods.into_iter().filter(|(role, ..)| flood::is_wanted(role)) {
        measure(&role, names, victim).report(&format!("{role} over {names:?}"));
    }
}

const SHM: &[&str] = &["shm"];
const TCP: &[&str] = &["tcp/lo"];

#[test]
fn honest_messages_arrive_beside_a_flood_of_messages_or_of_requests() {
    alone("floods::honest_messages_arrive_beside_a_flood_of_messages_or_of_requests", || {
        let lanes = [SHM, TCP].map(|names| ("Ping".to_owned(), names, Victim::Node));
        check(lanes.into_iter().chain([("requests".to_owned(), SHM, Victim::Listener)]));
    });
}

#[test]
#[ignore = "takes a minute and more"]
fn every_flood_takes_bounded_memory_and_no_honest_link() {
    alone("floods::every_flood_takes_bounded_memory_and_no_honest_link", || {
        let kinds = MessageKind::ALL.map(|kind| format!("{kind:?}"));
        let others = ["garbage", "no handler", "tags", "links"].map(str::to_owned);
        let lanes = kinds.into_iter().chain(others);
        check(lanes.flat_map(|role| [SHM, TCP].map(|names| (role.clone(), names, Victim::Node))));
        let connections = ["empty frames", "wrong frames", "requests", "connections", "strangers"];
        check(connections.map(|role| (role.to_owned(), SHM, Victim::Listener)));
        let interface = ["connections to the interface", "strangers at the interface"];
        check(interface.map(|role| (role.to_owned(), TCP, Victim::Interface)));
    });
}
