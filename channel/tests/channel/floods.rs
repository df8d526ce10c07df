//! What floods of a member of the job, and of processes without the key, take of the time and memory
//! of a process that accepts channels and receives over one; and that honest peers connect meanwhile.
//! `BAREWIRE_FLOOD_ROUNDS` is how often each flood is stopped and continued, and `BAREWIRE_FLOODS`
//! names floods if not all are measured.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barewire_channel::handshake::message::Kind;
use barewire_channel::mlx5::hca;
use barewire_channel::{Config, Connector, Handle, HandshakeError, Key, Listener, Rail, Rails};
use barewire_tcp::handshake::Claim;
use barewire_tcp::listener::{Limits, Listener as TcpListener};
use barewire_tcp::socket::RECEIVE;

use crate::control::{self, Guard};
use crate::flood::{self, Other, flood_by_connections, has_no_parent, resident};
use crate::pair::{DEADLINE, config, soft, wait};

pub(crate) const KEY: Key = Key::from_bytes([0x5b; 32]);
const STRANGERS_KEY: Key = Key::from_bytes([0x5c; 32]);
/// The test that is another process.
const OTHER: &str = "floods::the_other_process";
/// Connections that a flood keeps open.
const OPEN: usize = 200;

fn rails() -> Rails {
    let context = soft(hca::Config::default());
    Rails::new(vec![Rail::new("soft0", &context).unwrap()]).unwrap()
}

fn listen(rails: &Rails) -> Listener {
    Listener::bind(rails, "127.0.0.1:0".parse().unwrap(), &KEY, &Config::default()).unwrap()
}

/// A handle with another port.
pub(crate) fn elsewhere(handle: &Handle, port: u16) -> Handle {
    let mut bytes = handle.to_bytes();
    bytes[6..8].copy_from_slice(&port.to_le_bytes());
    Handle::from_bytes(&bytes).unwrap()
}

/// What a connector claims and sends first to the listener of a handle.
pub(crate) fn honest_offer(handle: &Handle, key: &Key) -> (Claim, Vec<u8>) {
    let here = "127.0.0.1:0".parse::<SocketAddr>().unwrap();
    let mut fake = TcpListener::open(here.ip(), key.clone(), Limits::default()).unwrap();
    let handle = elsewhere(handle, fake.address().port());
    let mut connector = Connector::start(&rails(), &handle, key, &config()).unwrap();
    let (mut admitted, mut accepted) = (Vec::new(), None);
    let mut buffer = vec![0; RECEIVE];
    wait("the offer of a connector", || {
        assert!(connector.poll().unwrap().is_none());
        fake.work(Instant::now(), &mut admitted);
        if let Some(newcomer) = admitted.pop() {
            let claim = newcomer.claim;
            accepted = Some((claim, newcomer.welcome().unwrap()));
        }
        let Some((claim, socket)) = &mut accepted else { return Ok(None) };
        let count = socket.receive(&mut buffer).unwrap();
        Ok(count.map(|count| (*claim, buffer[..count].to_vec())))
    })
    .unwrap()
}

/// A frame of this kind with any body.
pub(crate) fn frame(kind: Kind) -> Vec<u8> {
    let body: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(64).collect();
    [&65_u32.to_le_bytes()[..], &[kind as u8], &body].concat()
}

/// Makes channels and closes them, without end.
fn flood_by_channels(handle: &Handle) {
    let (begun, rails) = (Instant::now(), rails());
    while begun.elapsed() < DEADLINE && !has_no_parent() {
        let mut connector = Connector::start(&rails, handle, &KEY, &config()).unwrap();
        while let Ok(None) = connector.poll() {
            std::thread::yield_now();
        }
    }
}

pub(crate) const KINDS: [Kind; 10] = [
    Kind::Offer,
    Kind::Answer,
    Kind::Ready,
    Kind::Go,
    Kind::Refuse,
    Kind::Close,
    Kind::Fence,
    Kind::Try,
    Kind::Made,
    Kind::Use,
];

/// The process that [`Other::start`] starts; nothing otherwise.
#[test]
fn the_other_process() {
    let Some((role, arguments)) = flood::role() else { return };
    let handle = Handle::from_bytes(&hex::decode(&arguments[0]).unwrap()).unwrap();
    let address = handle.address();
    if role == "channels" {
        return flood_by_channels(&handle);
    }
    let (claim, offer) = honest_offer(&handle, &KEY);
    let other = Claim { endpoint: claim.endpoint ^ 1, ..claim };
    match role.as_str() {
        "strangers" => flood_by_connections(address, &STRANGERS_KEY, claim, &[], 0),
        "connections" => flood_by_connections(address, &KEY, claim, &[], 0),
        "silent connections" => flood_by_connections(address, &KEY, claim, &[], OPEN),
        "other claims" => flood_by_connections(address, &KEY, other, &[], 0),
        "offers" => flood_by_connections(address, &KEY, claim, &offer, OPEN),
        "parts of offers" => {
            flood_by_connections(address, &KEY, claim, &offer[..offer.len() - 1], OPEN);
        }
        "several offers" => flood_by_connections(address, &KEY, claim, &offer.repeat(2), OPEN),
        "garbage" => flood_by_connections(address, &KEY, claim, &[255; 16 << 10], OPEN),
        kind => {
            let known = KINDS.into_iter().find(|known| format!("{known:?}") == kind);
            let bytes = frame(known.expect("a role"));
            flood_by_connections(address, &KEY, claim, &bytes, OPEN);
        }
    }
}

/// Connects, one after the other, until the end. Returns an error of a connector.
fn connect(
    handle: &Handle,
    over: &AtomicBool,
    connected: &AtomicU32,
) -> Result<(), HandshakeError> {
    let rails = rails();
    while !over.load(Ordering::Acquire) {
        let mut connector = Connector::start(&rails, handle, &KEY, &Config::default())?;
        while connector.poll()?.is_none() {
            if over.load(Ordering::Acquire) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        connected.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Measures what a flood takes of the turns of a thread that accepts channels.
fn measure(role: &str) {
    let rails = rails();
    let mut listener = listen(&rails);
    let handle = listener.handle();
    let (over, connected) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut accepted = VecDeque::new();
    let mut turn = |listener: &mut Listener| {
        if let Ok(Some(receiver)) = listener.accept() {
            accepted.push_back(receiver);
            if accepted.len() > 4 {
                accepted.pop_front();
            }
        }
    };
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| connect(&handle, &over, &connected));
        let begun = Instant::now();
        while connected.load(Ordering::Acquire) < 8 {
            turn(&mut listener);
            assert!(begun.elapsed() < DEADLINE, "{role}: no honest peer");
        }
        let before = resident();
        let hostile = Other::start(OTHER, role, &[&hex::encode(handle.to_bytes())]);
        let cost = flood::measure(&hostile, before, || turn(&mut listener));
        let begun = Instant::now();
        let wanted = connected.load(Ordering::Acquire) + 3;
        while connected.load(Ordering::Acquire) < wanted && !honest.is_finished() {
            turn(&mut listener);
            assert!(begun.elapsed() < DEADLINE, "{role}: an honest peer is not connected");
        }
        over.store(true, Ordering::Release);
        honest.join().unwrap().unwrap_or_else(|error| panic!("{role}: {error}"));
        println!("{} honest channels, the last 3 in {:?}", wanted, begun.elapsed());
        cost.report(role);
    });
}

/// Connections of a member of the job that name rails and do not go on take all that a listener
/// has.
#[test]
fn offers_without_end_make_room_for_a_channel() {
    const MOST: usize = 64;
    let rails = rails();
    let mut listener = listen(&rails);
    let handle = listener.handle();
    let (claim, offer) = honest_offer(&handle, &KEY);
    let over = AtomicBool::new(false);
    let accept = |listener: &mut Listener| {
        // A peer that does not go on is dropped.
        listener.accept().ok().flatten()
    };
    std::thread::scope(|scope| {
        let guard = Guard(&over);
        let hostile = scope.spawn(|| {
            let connect = || flood::connection(handle.address(), &KEY, claim).map(flood::Line::new);
            let mut lines: Vec<_> = std::iter::from_fn(connect).take(MOST).collect();
            for line in &mut lines {
                assert!(line.send(&offer).unwrap());
            }
            lines
        });
        let begun = Instant::now();
        while !hostile.is_finished() {
            accept(&mut listener);
            assert!(begun.elapsed() < DEADLINE, "the hostile connections are not accepted");
        }
        let lines = hostile.join().unwrap();
        assert_eq!(lines.len(), MOST);
        // While the hostile ones are read, and answered as far as there is room, none is silent:
        // the honest peer is refused, and tries again.
        let honest = scope.spawn(|| {
            let mut connector = Connector::start(&rails, &handle, &KEY, &config()).unwrap();
            wait("a place for the honest peer", || Ok(connector.poll().unwrap())).unwrap()
        });
        let begun = Instant::now();
        while !honest.is_finished() {
            accept(&mut listener);
            assert!(begun.elapsed() < DEADLINE, "the honest peer is not connected");
        }
        drop(guard);
        let _ = honest.join().unwrap();
    });
}

#[test]
#[ignore = "takes a minute and more"]
fn every_flood_takes_bounded_memory_and_no_honest_channel() {
    let kinds = KINDS.map(|kind| format!("{kind:?}"));
    let others = [
        "strangers",
        "connections",
        "silent connections",
        "other claims",
        "offers",
        "parts of offers",
        "several offers",
        "garbage",
        "channels",
    ];
    let roles = others.map(str::to_owned).into_iter().chain(kinds);
    roles.filter(|role| flood::is_wanted(role)).for_each(|role| measure(&role));
    control::measure_all();
}
