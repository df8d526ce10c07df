//! What a member of the job takes over the control connection of a channel that it has: of the time
//! of the thread that uses the other end, and of its memory; and that another channel of this
//! thread loses nothing. The variables of the environment are those of `floods.rs`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as Door, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barewire_channel::handshake::message::{End, Epoch, Held, Message, QueuePairs, first_frame};
use barewire_channel::mlx5::{Enhancements, hca};
use barewire_channel::{
    Connector, HANDLE_BYTES, Handle, Listener, Receiver, Region, Request, Sender, Usage,
};
use barewire_tcp::listener::{Limits, Listener as TcpListener};
use barewire_tcp::socket::RECEIVE;

use crate::flood::{self, Line, Other, has_no_parent, resident};
use crate::floods::{KEY, KINDS, elsewhere, frame};
use crate::pair::{DEADLINE, Shape, config, connect, rails_of, wait};

/// The test that is another process.
const OTHER: &str = "control::the_other_process";
/// The rail that fails or is said to fail; the other one keeps the channel.
const PLACE: u8 = 0;
const RAILS: usize = 2;
/// Bytes of frames that are sent at once.
const BATCH: usize = 8 << 10;
/// Buffers that are announced before the flood of a sender.
const BUFFERS: usize = 8;
const SIZE: usize = 64;
/// Turns between posts of a victim.
const TURNS: u32 = 1 << 14;

fn devices() -> Vec<hca::Device> {
    (0..RAILS).map(|_| hca::Device::open(hca::Config::default()).unwrap()).collect()
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Carries a handshake from a connection that it accepts to a listener.
struct Relay {
    listener: TcpListener,
    target: SocketAddr,
}

impl Relay {
    fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::open(local().ip(), KEY, Limits::default()).unwrap();
        Self { listener, target }
    }

    fn port(&self) -> u16 {
        self.listener.address().port()
    }

    /// Returns the accepted connection and that to the listener, once `over` is set.
    fn run(mut self, over: &AtomicBool) -> [Line; 2] {
        let mut admitted = Vec::new();
        wait("a connection to the relay", || {
            self.listener.work(Instant::now(), &mut admitted);
            std::thread::sleep(Duration::from_micros(100));
            Ok((!admitted.is_empty()).then_some(()))
        })
        .unwrap();
        let newcomer = admitted.pop().unwrap();
        let onward = flood::connection(self.target, &KEY, newcomer.claim).unwrap();
        let (mut onward, mut accepted) =
            (Line::new(onward), Line::new(newcomer.welcome().unwrap()));
        loop {
            // What was sent before the end is carried, too.
            let is_over = over.load(Ordering::Acquire);
            carry(&mut accepted, &mut onward);
            carry(&mut onward, &mut accepted);
            if is_over {
                return [accepted, onward];
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// The messages of a handshake have room in a socket.
fn carry(from: &mut Line, to: &mut Line) {
    let mut buffer = vec![0; RECEIVE];
    if let Some(count) = from.socket.receive(&mut buffer).unwrap() {
        assert!(to.send(&buffer[..count]).unwrap());
    }
}

/// The hostile end of a channel. Its devices respond as they should.
struct Hostile {
    /// Used no more.
    _end: Box<dyn std::any::Any>,
    devices: Vec<hca::Device>,
    /// To the victim.
    line: Line,
    /// To the end that is used no more.
    _inner: Line,
    received: Vec<u8>,
}

impl Hostile {
    /// A sender that is connected to the listener of a handle.
    fn sender(handle: &Handle) -> Self {
        let (devices, over) = (devices(), AtomicBool::new(false));
        let rails = rails_of(&devices, Shape::Equal);
        let relay = Relay::new(handle.address());
        let handle = elsewhere(handle, relay.port());
        std::thread::scope(|scope| {
            let relay = scope.spawn(|| relay.run(&over));
            let mut connector = Connector::start(&rails, &handle, &KEY, &config()).unwrap();
            let end = wait("a sender", || Ok(connector.poll().unwrap())).unwrap();
            over.store(true, Ordering::Release);
            let [inner, line] = relay.join().unwrap();
            Self { _end: Box::new(end), devices, line, _inner: inner, received: Vec::new() }
        })
    }

    /// A receiver that has announced so many buffers. The victim gets its handle over a connection
    /// to `victim`.
    fn receiver(victim: SocketAddr, buffers: usize) -> Self {
        let (devices, over) = (devices(), AtomicBool::new(false));
        let rails = rails_of(&devices, Shape::Equal);
        let mut listener = Listener::bind(&rails, local(), &KEY, &config()).unwrap();
        let relay = Relay::new(listener.handle().address());
        let handle = elsewhere(&listener.handle(), relay.port());
        TcpStream::connect(victim).unwrap().write_all(&handle.to_bytes()).unwrap();
        std::thread::scope(|scope| {
            let relay = scope.spawn(|| relay.run(&over));
            let mut end = wait("a receiver", || Ok(listener.accept().unwrap())).unwrap();
            let target = rails.allocate(SIZE, Usage::Receive).unwrap();
            for _ in 0..buffers {
                let _ = end.receive(&target, 0, SIZE, 0).unwrap().unwrap();
            }
            over.store(true, Ordering::Release);
            let [line, inner] = relay.join().unwrap();
            let end = Box::new((end, target));
            Self { _end: end, devices, line, _inner: inner, received: Vec::new() }
        })
    }

    /// Takes what the victim has sent, if the victim is there.
    fn receive(&mut self) -> Option<()> {
        let mut buffer = vec![0; RECEIVE];
        while let Some(count) = self.line.socket.receive(&mut buffer).ok()? {
            if count == 0 {
                return None;
            }
            self.received.extend_from_slice(&buffer[..count]);
        }
        Some(())
    }

    /// Sends all of the bytes, and drops what the victim has sent.
    fn send(&mut self, bytes: &[u8]) -> Option<()> {
        let mut is_sent = self.line.send(bytes).ok()?;
        self.receive()?;
        self.received.clear();
        while !is_sent && !has_no_parent() {
            self.receive()?;
            self.received.clear();
            std::thread::yield_now();
            is_sent = self.line.send(&[]).ok()?;
        }
        is_sent.then_some(())
    }

    /// The next message of the victim.
    fn message(&mut self) -> Option<Message> {
        loop {
            if let Some((message, length)) = first_frame(&self.received).unwrap() {
                self.received.drain(..length);
                return Some(message);
            }
            self.receive()?;
            if has_no_parent() {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Lets the victim lose a rail, and returns when the victim says so.
    fn lose(&mut self) -> Option<()> {
        std::thread::sleep(Duration::from_millis(100));
        assert!(self.devices[usize::from(PLACE)].inject(hca::Fault::LinkDown));
        while !matches!(self.message()?, Message::Fence { .. }) {}
        Some(())
    }
}

fn at(epoch: u32) -> Epoch {
    Epoch { place: PLACE, epoch }
}

/// Queue pairs that do not exist.
fn pairs() -> QueuePairs {
    QueuePairs { ends: vec![End { number: 0x00ab_cdef, psn: 0 }], enhancements: Enhancements::NONE }
}

fn fence(epoch: u32, taken: Vec<u32>) -> Vec<u8> {
    let held = Held { taken, ..Held::default() };
    Message::Fence { at: at(epoch), cause: None, held }.to_frame()
}

/// A rail fails and is tried again, without end.
fn flood_by_fences(hostile: &mut Hostile, uses: bool, at_once: usize) -> Option<()> {
    let mut bytes = Vec::new();
    for epoch in 0.. {
        bytes.extend(fence(epoch, Vec::new()));
        bytes.extend(Message::Try { at: at(epoch + 1), pairs: pairs() }.to_frame());
        if uses {
            bytes.extend(Message::Use { at: at(epoch + 1) }.to_frame());
        }
        if bytes.len() >= BATCH {
            bytes.chunks(at_once).try_for_each(|part| hostile.send(part))?;
            bytes.clear();
        }
    }
    None
}

/// As above, at the end that tries the rail.
fn flood_a_sender_by_fences(hostile: &mut Hostile) -> Option<()> {
    hostile.send(&fence(0, vec![0]))?;
    loop {
        if let Message::Try { at, .. } = hostile.message()? {
            let made = Message::Made { at, pairs: pairs() }.to_frame();
            hostile.send(&[made, fence(at.epoch, vec![0])].concat())?;
        }
    }
}

/// The process that [`Other::start`] starts; nothing otherwise.
#[test]
fn the_other_process() {
    let Some((role, arguments)) = flood::role() else { return };
    let ended = match role.as_str() {
        "fences to a sender" | "MADE of a lost rail" | "a sender's lost rail" => {
            // What a victim has sent it does not let a peer deny.
            let buffers = if role == "fences to a sender" { 0 } else { BUFFERS };
            let mut hostile = Hostile::receiver(arguments[0].parse().unwrap(), buffers);
            match role.as_str() {
                "fences to a sender" => flood_a_sender_by_fences(&mut hostile),
                "a sender's lost rail" => hostile.lose().and_then(|()| hostile.stay()),
                _ => hostile.repeat(&Message::Made { at: at(0), pairs: pairs() }),
            }
        }
        role => {
            let handle = Handle::from_bytes(&hex::decode(&arguments[0]).unwrap()).unwrap();
            if role == "frames" {
                return flood_by_frames(&handle);
            }
            let mut hostile = Hostile::sender(&handle);
            match role {
                "fences" => flood_by_fences(&mut hostile, false, BATCH),
                "fences and uses" => flood_by_fences(&mut hostile, true, BATCH),
                "single bytes" => flood_by_fences(&mut hostile, false, 1),
                "a lost rail" => hostile.lose().and_then(|()| hostile.stay()),
                "USE of a lost rail" => hostile.repeat(&Message::Use { at: at(0) }),
                role => panic!("{role}"),
            }
        }
    };
    assert_eq!(ended, None);
}

impl Hostile {
    /// Does nothing, until the end.
    fn stay(&mut self) -> Option<()> {
        while !has_no_parent() {
            self.receive()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Repeats a message about a rail that the victim has lost.
    fn repeat(&mut self, message: &Message) -> Option<()> {
        self.lose()?;
        let frames = message.to_frame().repeat(BATCH / 32);
        loop {
            self.send(&frames)?;
        }
    }
}

/// Sends frames of each kind over channels that end with them, without end.
fn flood_by_frames(handle: &Handle) {
    let frames = KINDS.map(frame).into_iter().chain([vec![0; 4], vec![255; BATCH]]);
    for frame in frames.collect::<Vec<_>>().iter().cycle() {
        let mut hostile = Hostile::sender(handle);
        let _ = hostile.send(frame);
        while hostile.receive().is_some() {
            if has_no_parent() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// An end of a channel that a hostile peer has.
enum Victim {
    Receivers(Vec<(Receiver, Option<Request>)>, Region),
    Sender(Box<Sender>, Region, Vec<Request>),
}

impl Victim {
    fn turn(&mut self, posts: bool, errors: &mut Vec<String>) {
        match self {
            Self::Receivers(receivers, target) => receivers.retain_mut(|(receiver, request)| {
                let is_first = request.is_none();
                if (posts || is_first)
                    && let Ok(Some(posted)) = receiver.receive(target, 0, SIZE, 0)
                {
                    request.get_or_insert(posted);
                }
                let tested = request.map_or(Ok(None), |request| receiver.test(request));
                if let Err(error) = &tested {
                    errors.push(error.to_string());
                }
                tested.is_ok()
            }),
            Self::Sender(sender, source, requests) => {
                if requests.is_empty() || posts {
                    requests.extend(sender.send(source, 0, SIZE, 0).unwrap());
                }
                requests.retain(|request| sender.test(*request).unwrap().is_none());
            }
        }
    }
}

/// Ends another thread of a test, also if the test fails.
pub(crate) struct Guard<'a>(pub(crate) &'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Measures what a flood takes of the turns of a thread with a channel of a hostile peer, and one
/// of an honest peer.
fn measure(role: &str) {
    let rails = rails_of(&devices(), Shape::Equal);
    let mut listener = Listener::bind(&rails, local(), &KEY, &config()).unwrap();
    let (sender, receiver) = connect(&rails, &rails, &config(), &config());
    let (mut sender, mut receiver) = (sender.unwrap(), receiver.unwrap());
    let source = rails.allocate(SIZE, Usage::Send).unwrap();
    let target = rails.allocate(SIZE, Usage::Receive).unwrap();
    let is_sender = role.contains("sender") || role.contains("MADE");
    let (over, received) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let guard = Guard(&over);
        // The honest peer.
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let sent = sender.send(&source, 0, SIZE, 0).unwrap();
                let is_over = || over.load(Ordering::Acquire);
                while sent.is_some_and(|sent| !is_over() && sender.test(sent).unwrap().is_none()) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let before = resident();
        let hostile;
        let mut victim = if is_sender {
            let door = Door::bind(local()).unwrap();
            hostile = Other::start(OTHER, role, &[&door.local_addr().unwrap().to_string()]);
            let mut handle = [0; HANDLE_BYTES];
            door.accept().unwrap().0.read_exact(&mut handle).unwrap();
            let handle = Handle::from_bytes(&handle).unwrap();
            let mut connector = Connector::start(&rails, &handle, &KEY, &config()).unwrap();
            let end = wait("a sender", || Ok(connector.poll().unwrap())).unwrap();
            Victim::Sender(Box::new(end), source.clone(), Vec::new())
        } else {
            hostile = Other::start(OTHER, role, &[&hex::encode(listener.handle().to_bytes())]);
            let end = wait("a receiver", || Ok(listener.accept().unwrap())).unwrap();
            Victim::Receivers(vec![(end, None)], target.clone())
        };
        let (mut turns, mut request, mut errors) = (0_u32, None, Vec::new());
        let mut turn = || {
            turns = turns.wrapping_add(1);
            victim.turn(turns % TURNS == 0, &mut errors);
            match request {
                None => request = receiver.receive(&target, 0, SIZE, 0).unwrap(),
                Some(waiting) if receiver.test(waiting).unwrap().is_some() => {
                    request = None;
                    received.fetch_add(1, Ordering::AcqRel);
                }
                Some(_) => {}
            }
            if role == "frames"
                && let Ok(Some(receiver)) = listener.accept()
                && let Victim::Receivers(receivers, _) = &mut victim
            {
                receivers.push((receiver, None));
            }
        };
        let cost = flood::measure(&hostile, before, &mut turn);
        let (begun, wanted) = (Instant::now(), received.load(Ordering::Acquire) + 10);
        while received.load(Ordering::Acquire) < wanted {
            turn();
            assert!(begun.elapsed() < DEADLINE, "{role}: an honest message does not arrive");
        }
        drop(guard);
        println!("{wanted} honest messages, the last 10 in {:?}", begun.elapsed());
        cost.report(role);
        assert_eq!(errors.is_empty(), role != "frames", "{role}: {:?}", errors.first());
    });
}

const ROLES: [&str; 9] = [
    "fences",
    "fences and uses",
    "single bytes",
    "a lost rail",
    "USE of a lost rail",
    "fences to a sender",
    "a sender's lost rail",
    "MADE of a lost rail",
    "frames",
];

/// Measures every flood.
pub(crate) fn measure_all() {
    ROLES.iter().filter(|role| flood::is_wanted(role)).for_each(|role| measure(role));
}
