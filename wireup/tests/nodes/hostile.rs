//! What a member of the job can do to another node and its peers, and what it cannot: messages in
//! another node's name, and floods of every message.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use barewire::{Domain, Interface, InterfaceConfig, PostError, TransportId, Worker};
use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::frames::frame;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::listener::Limits;
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_wireup::address::{Entry, Summary, Uuid, WorkerAddress};
use barewire_wireup::link::{Link, Options, State};
use barewire_wireup::node::Node;
use barewire_wireup::plan::Kind;
use barewire_wireup::protocol::{Kind as MessageKind, Message, Reason};
use barewire_wireup::tag::{self, Limits as TagLimits, Tags};
use std::cell::RefCell;
use std::rc::Rc;

use crate::flood::{MOST_MEMORY, resident};
use crate::support::{DEADLINE, Side, alone, rules, send, until, until_connected};

/// The handler of control messages.
pub(crate) const CONTROL: u8 = 30;

/// A control message of `uuid` to `receiver`, about a link that it invents.
pub(crate) fn message(kind: MessageKind, uuid: Uuid, receiver: Uuid) -> Message<'static> {
    let bytes: &[u8] = match kind {
        MessageKind::Close => &[0; 8],
        MessageKind::Offer | MessageKind::Answer => &[0; 64],
        _ => &[],
    };
    Message {
        kind,
        sn: 0,
        from: if kind == MessageKind::Pass { 0 } else { 7 },
        to: if kind == MessageKind::Offer { 0 } else { 9 },
        uuid: uuid.0,
        receiver: receiver.0,
        attempt: 1,
        reason: if kind == MessageKind::Refuse { Reason::Busy } else { Reason::None },
        offset: 0,
        total: bytes.len() as u16,
        order: 1000,
        pass: if kind == MessageKind::Pass { 5 } else { 0 },
        bytes,
    }
}

/// The body of an OFFER with this address and no lanes.
pub(crate) fn offer(address: &WorkerAddress) -> Vec<u8> {
    let length = (address.as_bytes().len() as u16).to_be_bytes();
    [&10_000_u32.to_be_bytes()[..], &length, address.as_bytes(), &[0; 8]].concat()
}

/// Sends a control message over a lane.
fn forge(sides: &mut [Side], lane: &Link, bytes: &[u8]) {
    let pack = |room: &mut [u8]| {
        room[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    until(sides, "room to send", |_| {
        match lane.lane(Kind::Messages).unwrap().am_bcopy(CONTROL, pack) {
            Err(PostError::NoResource) => false,
            sent => sent.is_ok(),
        }
    });
}

/// Names of links that can be guessed.
fn guesses(link: &Link) -> Vec<u64> {
    let bits = link.id().to_bits();
    let near = (1..4).flat_map(|step| [bits.wrapping_sub(step), bits.wrapping_add(step)]);
    near.chain(0..8).chain([bits]).filter(|guess| *guess != 0).collect()
}

/// Three nodes: the first two have a link, which is returned, and the last one is hostile and has a
/// link to the first.
fn triangle(names: &[&str]) -> (Vec<Side>, Link, Link) {
    let mut sides: Vec<_> = (0..3).map(|_| Side::new(&rules(names))).collect();
    let [a, b, c] = &mut sides[..] else { panic!("three") };
    let (honest, hostile) = (a.connect(b), c.connect(a));
    until_connected(&mut sides, &[&honest, &hostile]);
    until(&mut sides, "announced", |sides| {
        !sides[1].incoming.borrow().is_empty() && !sides[0].incoming.borrow().is_empty()
    });
    (sides, honest, hostile)
}

/// Messages travel both ways over the link of the first two nodes.
fn check_link(sides: &mut [Side], link: &Link) {
    let back = sides[1].incoming.borrow()[0].clone();
    let before = [0, 1].map(|at: usize| sides[at].received.borrow().len());
    send(sides, link, 1);
    send(sides, &back, 2);
    until(sides, "a message each", |sides| {
        [0, 1].iter().all(|at| sides[*at].received.borrow().len() > before[*at])
    });
    assert_eq!([link.state(), back.state()], [State::Connected; 2]);
}

#[test]
fn messages_in_the_name_of_a_peer_have_no_effect_on_its_link() {
    let (mut sides, honest, hostile) = triangle(&["shm"]);
    let (a, b) = (sides[0].node.uuid(), sides[1].node.uuid());
    let back = sides[1].incoming.borrow()[0].clone();
    for kind in MessageKind::ALL {
        for to in guesses(&honest) {
            for from in guesses(&back) {
                let whole = message(kind, b, a);
                let to = if kind == MessageKind::Offer { 0 } else { to };
                let from = if kind == MessageKind::Pass { 0 } else { from };
                forge(&mut sides, &hostile, &Message { to, from, ..whole }.to_bytes());
            }
        }
    }
    check_link(&mut sides, &honest);
    // The next link of the two is theirs, too.
    let [first, second, _] = &mut sides[..] else { panic!("three") };
    let links = [first.connect(second), second.connect(first)];
    until_connected(&mut sides, &[&links[0], &links[1]]);
    assert_eq!(sides[0].node.links().len(), 3);
    assert_eq!(sides[1].node.links().len(), 2);
}

/// Also not with the node's own address, which every member of the job knows.
#[test]
fn offers_in_the_name_of_a_node_connect_nothing_and_hinder_no_offer_of_the_node() {
    for is_connected in [true, false] {
        let (mut sides, honest, hostile) = triangle(&["shm"]);
        if !is_connected {
            sides[1] = Side::new(&rules(&["shm"]));
        }
        let (a, b) = (sides[0].node.uuid(), sides[1].node.uuid());
        let own: Vec<Entry> = sides[2].node.address().entries().collect();
        let addresses = [sides[1].node.address(), WorkerAddress::new(b, &own)];
        for sn in 0..4 {
            for address in &addresses {
                let bytes = &offer(address)[..];
                for pass in [0, 1, u64::MAX] {
                    let whole = message(MessageKind::Offer, b, a);
                    let total = bytes.len() as u16;
                    let forged = Message { sn, pass, total, bytes, ..whole };
                    forge(&mut sides, &hostile, &forged.to_bytes());
                }
            }
        }
        let incoming = sides[0].incoming.borrow().len();
        if is_connected {
            check_link(&mut sides, &honest);
            assert_eq!(incoming, 1, "the hostile node's own");
        } else {
            let [first, second, _] = &mut sides[..] else { panic!("three") };
            let link = second.connect(first);
            until_connected(&mut sides, &[&link]);
            until(&mut sides, "announced", |sides| sides[0].incoming.borrow().len() > incoming);
            assert_eq!(sides[0].incoming.borrow()[incoming].peer(), b);
            assert_eq!(sides[0].incoming.borrow().len(), incoming + 1);
        }
    }
}

/// An interface of `shm` that collects control messages, and its address under a uuid.
struct Raw {
    worker: Worker,
    interface: Interface,
    received: Rc<RefCell<Vec<Vec<u8>>>>,
    entries: Vec<Entry>,
}

impl Raw {
    fn open() -> Self {
        let mut worker = Worker::new();
        let domain = Domain::open(&"shm/memory".parse().unwrap()).unwrap();
        let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
        let received: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let messages = Rc::clone(&received);
        let keep = move |message: barewire::Message<'_>| {
            messages.borrow_mut().push(message.data().to_vec());
        };
        interface.set_handler(CONTROL, keep).unwrap();
        let own = interface.address();
        let summary = Summary::of(interface.attributes(), 1);
        let addresses = Some((*own.device(), *own.interface()));
        let entries = vec![Entry::new(TransportId::Shm, 0, summary, addresses)];
        Self { worker, interface, received, entries }
    }
}

/// The uuid is a hash of the address. So the pass, without which an offer has no effect, is not
/// sent to an address under the uuid of another node.
#[test]
fn a_node_gets_a_pass_only_at_the_address_that_its_uuid_certifies() {
    let (mut sides, _, hostile) = triangle(&["shm"]);
    let mut raw = Raw::open();
    let (a, b) = (sides[0].node.uuid(), sides[1].node.uuid());
    let own = WorkerAddress::certified(&raw.entries).unwrap();
    let another = WorkerAddress::new(b, &raw.entries);
    assert!(own.is_certified() && !another.is_certified());
    for address in [&another, &own] {
        let bytes = &offer(address)[..];
        let whole = message(MessageKind::Offer, address.uuid(), a);
        let forged = Message { total: bytes.len() as u16, bytes, ..whole };
        forge(&mut sides, &hostile, &forged.to_bytes());
    }
    until(&mut sides, "the pass of its own node", |_| {
        raw.worker.progress();
        !raw.received.borrow().is_empty()
    });
    let received = raw.received.borrow();
    for bytes in &*received {
        let message = Message::from_bytes(bytes).unwrap();
        assert_eq!((message.kind, Uuid(message.receiver)), (MessageKind::Pass, own.uuid()));
    }
    drop(received);
    assert!(raw.interface.reaches(&raw.interface.address()).is_ok());
}

/// The claim of a connection of a node.
pub(crate) fn claim(uuid: Uuid) -> Claim {
    let number = u128::from_le_bytes(uuid.0);
    Claim {
        purpose: Purpose::Control,
        service: 1,
        endpoint: 0,
        from_service: number as u64,
        from_endpoint: (number >> 64) as u64,
    }
}

/// Begins a connection of a process with this key, which claims to be a node.
pub(crate) fn connector(address: SocketAddr, key: [u8; 32], uuid: Uuid) -> io::Result<Connector> {
    let claim = claim(uuid);
    let limits = Limits { protected: false, ..Limits::default() };
    Connector::start(address, None, &Key::from_bytes(key), claim, DEADLINE, limits)
}

/// A connection of a member of the job, which claims to be a node.
fn keyed(sides: &mut [Side], address: SocketAddr, uuid: Uuid) -> Socket {
    let mut connector = connector(address, [7; 32], uuid).expect("a socket");
    let mut made = None;
    until(sides, "a keyed connection", |_| {
        made = made.take().or_else(|| connector.advance(Instant::now()).expect("connected"));
        made.is_some()
    });
    made.unwrap()
}

/// Sends frames. Returns false if the node has ended the connection.
fn write(sides: &mut [Side], socket: &Socket, mut bytes: &[u8]) -> bool {
    let mut is_open = true;
    until(sides, "room in the connection", |_| {
        match rustix::io::write(socket, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => is_open = false,
        }
        bytes.is_empty() || !is_open
    });
    is_open
}

/// Waits until the node has ended the connection. Returns what it sent before.
fn ended(sides: &mut [Side], socket: &mut Socket) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; RECEIVE]);
    until(sides, "the end of the connection", |_| match socket.receive(&mut buffer) {
        Ok(None) => false,
        Ok(Some(0)) | Err(_) => true,
        Ok(Some(count)) => {
            all.extend_from_slice(&buffer[..count]);
            false
        }
    });
    all
}

fn control_of(node: &Node) -> SocketAddr {
    node.address().entries().find_map(|entry| entry.control_address()).expect("a control port")
}

#[test]
fn a_connection_that_names_another_node_gets_none_of_its_messages() {
    for claims_other in [false, true] {
        let mut sides: Vec<_> = (0..2).map(|_| Side::new(&rules(&["tcp/lo"]))).collect();
        let (a, b) = (sides[0].node.uuid(), sides[1].node.uuid());
        let claimed = if claims_other { b } else { Uuid::random().unwrap() };
        let address = control_of(&sides[0].node);
        let mut socket = keyed(&mut sides, address, claimed);
        let forged = message(MessageKind::Pong, b, a).to_bytes();
        write(&mut sides, &socket, &frame(&forged));
        if !claims_other {
            assert!(ended(&mut sides, &mut socket).is_empty());
        }
        let [here, there] = &mut sides[..] else { panic!("two") };
        let links = [here.connect(there), there.connect(here)];
        until_connected(&mut sides, &[&links[0], &links[1]]);
        if claims_other {
            let mut buffer = vec![0; RECEIVE];
            assert!(socket.receive(&mut buffer).is_ok_and(|got| got.is_none()), "a message for B");
        }
        until(&mut sides, "a message", |sides| {
            let _ = links[0].am_short(crate::support::ID, 3, &[]);
            !sides[1].received.borrow().is_empty()
        });
    }
}

#[test]
fn a_connection_ends_at_the_first_frame_that_no_node_sends() {
    let mut sides = [Side::new(&rules(&["tcp/lo"]))];
    let (own, a) = (Uuid::random().unwrap(), sides[0].node.uuid());
    let address = control_of(&sides[0].node);
    let honest = message(MessageKind::Ping, own, a).to_bytes();
    let hello = [b"bL\x02H\0\0", &[0; 8][..]].concat();
    let wrong: [Vec<u8>; 5] = [
        frame(&[]),
        frame(&[1]),
        frame(&[0; 80]),
        frame(&honest[..79]),
        // A request of a client, but not at a listener.
        frame(&hello),
    ];
    for bytes in wrong {
        let mut socket = keyed(&mut sides, address, own);
        write(&mut sides, &socket, &frame(&honest));
        let (mut count, mut buffer) = (0, vec![0; RECEIVE]);
        until(&mut sides, "the reply to a message that is in order", |_| {
            count = socket.receive(&mut buffer).expect("open").unwrap_or(0);
            count > 0
        });
        let reply = Message::from_bytes(&buffer[4..count]).expect("a message");
        assert_eq!(reply.kind, MessageKind::Gone);
        write(&mut sides, &socket, &bytes);
        assert!(ended(&mut sides, &mut socket).is_empty());
    }
}

/// Counts the replies to PINGs of unknown links, each of which is a frame that was read.
#[test]
fn a_progress_reads_a_bounded_number_of_frames_of_all_connections() {
    /// As the module of connections has it.
    const FRAMES: usize = 64;
    let mut sides = [Side::new(&rules(&["tcp/lo"]))];
    let a = sides[0].node.uuid();
    let address = control_of(&sides[0].node);
    let own: Vec<_> = (0..8).map(|_| Uuid::random().unwrap()).collect();
    let mut sockets: Vec<_> = own.iter().map(|own| keyed(&mut sides, address, *own)).collect();
    for (socket, own) in sockets.iter().zip(&own) {
        let ping = frame(&message(MessageKind::Ping, *own, a).to_bytes());
        // Not more than the kernel takes at once: the node makes no progress.
        assert_eq!(rustix::io::write(socket, &ping.repeat(100)), Ok(100 * ping.len()));
    }
    let gone = frame(&message(MessageKind::Gone, a, a).to_bytes()).len();
    let (mut read, mut buffer) = ([0; 8], vec![0; RECEIVE]);
    let begun = Instant::now();
    while read.contains(&0) {
        assert!(begun.elapsed() < DEADLINE, "{read:?}");
        sides[0].node.progress();
        let before: usize = read.iter().sum();
        for (socket, read) in sockets.iter_mut().zip(&mut read) {
            while let Ok(Some(count @ 1..)) = socket.receive(&mut buffer) {
                *read += count / gone;
            }
        }
        let now: usize = read.iter().sum();
        assert!(now - before <= FRAMES, "{} in one progress", now - before);
    }
}

/// Offers, whole and in parts, and PINGs, of nodes that one process invents.
#[test]
fn floods_of_messages_take_bounded_memory_and_an_honest_link_is_connected_meanwhile() {
    alone(
        "hostile::floods_of_messages_take_bounded_memory_and_an_honest_link_is_connected_meanwhile",
        flood_with_every_message,
    );
}

fn flood_with_every_message() {
    const ROUNDS: usize = 1500;
    let (mut sides, honest, hostile) = triangle(&["shm"]);
    let mut raw = Raw::open();
    let a = sides[0].node.uuid();
    let invented = |number: usize| match number % 3 {
        // Its own address, under many uuids.
        0 => WorkerAddress::certified(&raw.entries).unwrap(),
        // One that is not certified.
        1 => WorkerAddress::new(Uuid::random().unwrap(), &raw.entries),
        // Nowhere.
        _ => WorkerAddress::certified(&[]).unwrap(),
    };
    let fresh = Side::new(&rules(&["shm"]));
    sides.push(fresh);
    let before = resident();
    let mut link = None;
    for round in 0..ROUNDS {
        for kind in MessageKind::ALL {
            let address = invented(round);
            let whole = message(kind, address.uuid(), a);
            let body = match kind {
                MessageKind::Offer => offer(&address),
                MessageKind::Ping => address.as_bytes().to_vec(),
                _ => whole.bytes.to_vec(),
            };
            let total = body.len() as u16;
            let forged = Message { total, bytes: &body, ..whole };
            forge(&mut sides, &hostile, &forged.to_bytes());
            if kind == MessageKind::Offer {
                // And a part of one that is longer.
                let part = Message { total: 8192, bytes: &[255; 64], ..forged };
                forge(&mut sides, &hostile, &part.to_bytes());
            }
        }
        raw.worker.progress();
        if round == ROUNDS / 2 {
            let [a, _, _, fresh] = &mut sides[..] else { panic!("four") };
            link = Some(fresh.connect(a));
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown <= MOST_MEMORY, "{grown} bytes");
    let link = link.unwrap();
    until_connected(&mut sides, &[&link]);
    check_link(&mut sides, &honest);
}

/// Counts the messages that a node receives before it holds their sender.
#[test]
fn the_sender_of_many_messages_without_a_handler_is_held_and_an_honest_link_is_not() {
    /// As the account of such messages has it, with what the ring of a sender has room for.
    const MOST: usize = 5000 + 16_384;
    /// An id without a handler.
    const UNUSED: u8 = 5;
    for tags in [false, true] {
        let (mut sides, honest, hostile) = triangle(&["shm"]);
        let _tags = tags.then(|| Tags::over(&mut sides[0].node, TagLimits::default()).unwrap());
        let id = if tags { tag::HANDLER } else { UNUSED };
        let lane = hostile.lane(Kind::Messages).unwrap().clone();
        let (mut sent, mut refused) = (0, 0);
        // A sender that is not held finds room again after few turns.
        while refused < 1000 {
            match lane.am_short(id, 0, &[7; 20]) {
                Ok(()) => (sent, refused) = (sent + 1, 0),
                Err(PostError::NoResource) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(sent < 2 * MOST, "it is not held");
            sides[0].node.progress();
        }
        assert!(sent >= 5000, "only {sent} messages");
        check_link(&mut sides, &honest);
    }
}

/// Each connection is of another node that does not exist, has sent a message, and begins a long one.
#[test]
fn connections_that_begin_long_messages_take_bounded_memory() {
    alone("hostile::connections_that_begin_long_messages_take_bounded_memory", begin_long_messages);
}

fn begin_long_messages() {
    const CONNECTIONS: usize = 250;
    let mut sides: Vec<_> = (0..2).map(|_| Side::new(&rules(&["tcp/lo"]))).collect();
    let (control, a) = (control_of(&sides[0].node), sides[0].node.uuid());
    let begun = [&16_000_u32.to_le_bytes()[..], &[1; 15_000]].concat();
    let before = resident();
    let mut sockets = Vec::new();
    for _ in 0..CONNECTIONS {
        let uuid = Uuid::random().unwrap();
        let socket = keyed(&mut sides, control, uuid);
        let whole = frame(&message(MessageKind::Ping, uuid, a).to_bytes());
        write(&mut sides, &socket, &[whole, begun.clone()].concat());
        sockets.push(socket);
    }
    let (mut ended, mut buffer) = (0, vec![0; RECEIVE]);
    until(&mut sides, "the end of some", |_| {
        sockets.retain_mut(|socket| match socket.receive(&mut buffer) {
            Ok(Some(0)) | Err(_) => {
                ended += 1;
                false
            }
            Ok(_) => true,
        });
        // 2 MiB may wait.
        ended >= CONNECTIONS - (2 << 20) / 15_000
    });
    let grown = resident().saturating_sub(before);
    assert!(grown <= MOST_MEMORY / 4, "{grown} bytes");
    let [a, b] = &mut sides[..] else { panic!("two") };
    let link = b.connect(a);
    until_connected(&mut sides, &[&link]);
    assert!(!sockets.is_empty());
}

/// A process that gets passes for many nodes offers links, and never connects them.
#[test]
fn half_open_links_of_invented_nodes_hold_up_no_honest_one() {
    let (mut sides, _, hostile) = triangle(&["shm"]);
    let mut raw = Raw::open();
    let a = sides[0].node.uuid();
    let nodes: Vec<_> = (0..400).map(|_| WorkerAddress::certified(&raw.entries).unwrap()).collect();
    let mut passes = std::collections::HashMap::new();

    let begun = Instant::now();
    while passes.len() < nodes.len() {
        assert!(begun.elapsed() < DEADLINE, "{} passes", passes.len());
        for node in nodes.iter().filter(|node| !passes.contains_key(&node.uuid())).take(30) {
            let bytes = &offer(node)[..];
            let whole = message(MessageKind::Offer, node.uuid(), a);
            let forged = Message { total: bytes.len() as u16, bytes, ..whole };
            forge(&mut sides, &hostile, &forged.to_bytes());
        }
        sides[0].node.progress();
        raw.worker.progress();
        for bytes in raw.received.take() {
            let message = Message::from_bytes(&bytes).unwrap();
            if message.kind == MessageKind::Pass {
                passes.insert(Uuid(message.receiver), message.pass);
            }
        }
    }
    let mut flood = |sides: &mut Vec<Side>| {
        for node in &nodes {
            let mut lane = offer(node);
            // One lane for messages, between the first interfaces.
            let at = lane.len() - 2;
            lane[at - 1] = 1;
            lane.splice(at..at, [1, 0, 0, 0]);
            let whole = message(MessageKind::Offer, node.uuid(), a);
            let (pass, total) = (passes[&node.uuid()], lane.len() as u16);
            let forged = Message { pass, total, bytes: &lane, ..whole };
            forge(sides, &hostile, &forged.to_bytes());
            raw.worker.progress();
        }
    };
    flood(&mut sides);
    let fresh = Side::new(&rules(&["shm"]));
    sides.push(fresh);
    let [a, _, _, fresh] = &mut sides[..] else { panic!("four") };
    let link = fresh.connect(a);
    let begun = Instant::now();
    while link.state() != State::Connected {
        flood(&mut sides);
        assert!(begun.elapsed() < DEADLINE, "{:?} {:?}", link.state(), link.error());
    }
}

#[test]
fn a_client_asks_once_on_a_connection_and_in_its_own_name() {
    let mut sides: Vec<_> = (0..2).map(|_| Side::new(&rules(&["shm"]))).collect();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let other = sides[1].node.address();
    let hello = |address: &WorkerAddress| {
        let length = (address.as_bytes().len() as u16).to_be_bytes();
        frame(&[b"bL\x02H", &length[..], address.as_bytes(), &[7; 8]].concat())
    };
    // Twice.
    let mut socket = keyed(&mut sides, listener.address(), other.uuid());
    write(&mut sides, &socket, &hello(&other).repeat(2));
    assert!(ended(&mut sides, &mut socket).is_empty());
    assert!(listener.next().is_none(), "its request has ended with it");
    // In the name of a node that the connection does not belong to.
    let mut socket = keyed(&mut sides, listener.address(), Uuid::random().unwrap());
    write(&mut sides, &socket, &hello(&other));
    assert!(ended(&mut sides, &mut socket).is_empty());
    // With an address that the uuid does not certify.
    let wrong = WorkerAddress::new(Uuid([3; 16]), &[]);
    let mut socket = keyed(&mut sides, listener.address(), wrong.uuid());
    write(&mut sides, &socket, &hello(&wrong));
    assert!(ended(&mut sides, &mut socket).is_empty());
    assert!(listener.next().is_none());
}

/// The server connects a link to the node that the request names, and that node refuses the link.
#[test]
fn a_request_in_the_name_of_a_node_that_has_sent_none_leads_to_no_link() {
    let mut sides: Vec<_> = (0..2).map(|_| Side::new(&rules(&["shm"]))).collect();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let other = sides[1].node.address();
    let length = (other.as_bytes().len() as u16).to_be_bytes();
    let hello = frame(&[b"bL\x02H", &length[..], other.as_bytes(), &[7; 8]].concat());
    let socket = keyed(&mut sides, listener.address(), other.uuid());
    write(&mut sides, &socket, &hello);
    let mut request = None;
    until(&mut sides, "the request", |_| {
        request = listener.next();
        request.is_some()
    });
    let link = request.unwrap().accept(Options::default()).unwrap();
    until(&mut sides, "the refusal", |_| matches!(link.state(), State::Failed(_)));
    assert!(sides[1].node.links().is_empty() && sides[1].incoming.borrow().is_empty());
}

#[test]
fn one_node_cannot_take_all_places_of_a_listener() {
    let mut sides: Vec<_> = (0..3).map(|_| Side::new(&rules(&["shm"]))).collect();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let hostile = sides[1].node.address();
    let length = (hostile.as_bytes().len() as u16).to_be_bytes();
    let hello = frame(&[b"bL\x02H", &length[..], hostile.as_bytes(), &[7; 8]].concat());
    let mut sockets = Vec::new();
    for _ in 0..300 {
        let socket = keyed(&mut sides, listener.address(), hostile.uuid());
        write(&mut sides, &socket, &hello);
        sockets.push(socket);
    }
    // For those that find no place, the connection ends.
    let (mut refused, mut buffer) = (0, vec![0; RECEIVE]);
    until(&mut sides, "the end of 44 connections", |_| {
        sockets.retain_mut(|socket| match socket.receive(&mut buffer) {
            Ok(Some(0)) | Err(_) => {
                refused += 1;
                false
            }
            Ok(_) => true,
        });
        assert!(refused <= 44);
        refused == 44
    });
    let dial =
        sides[2].node.dial(listener.address(), b"honest", Options::default()).expect("a call");
    let mut of_hostile = 0;
    let mut accepted = None;
    until(&mut sides, "the honest client", |_| {
        while let Some(request) = listener.next() {
            if request.data() == b"honest" {
                accepted = Some(request.accept(Options::default()).expect("accepted"));
                return true;
            }
            of_hostile += 1;
            std::mem::forget(request);
        }
        false
    });
    assert_eq!(of_hostile, 256);
    until(&mut sides, "accepted", |_| dial.poll().is_some());
    let link = dial.poll().unwrap().unwrap();
    until_connected(&mut sides, &[&link, &accepted.unwrap()]);
}

#[test]
fn a_client_that_waits_is_kept_when_other_links_end() {
    let mut sides: Vec<_> = (0..2).map(|_| Side::new(&rules(&["shm"]))).collect();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let dial = sides[1].node.dial(listener.address(), b"", Options::default()).expect("a call");
    let mut request = None;
    until(&mut sides, "the request", |_| {
        request = listener.next();
        request.is_some()
    });
    // More nodes come and go than a node remembers.
    for _ in 0..80 {
        let mut guest = Side::new(&rules(&["shm"]));
        let link = guest.connect(&sides[0]);
        sides.push(guest);
        until_connected(&mut sides, &[&link]);
        link.close(barewire_wireup::CloseMode::Flush);
        until(&mut sides, "closed", |_| matches!(link.state(), State::Closed(_)));
        sides.pop();
    }
    let link = request.unwrap().accept(Options::default()).expect("the client is there");
    until(&mut sides, "accepted", |_| dial.poll().is_some());
    until_connected(&mut sides, &[&link, &dial.poll().unwrap().unwrap()]);
}

/// The client connects again when it was refused for lack of room, until its own deadline.
#[test]
fn a_client_that_finds_the_server_busy_asks_again() {
    let mut sides: Vec<_> = (0..2).map(|_| Side::new(&rules(&["shm"]))).collect();
    let listener = sides[0].node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    // Its own requests take all places that one node may have.
    let soon = Options::default().deadline(Duration::from_mins(1));
    let dials: Vec<_> = (0..270)
        .map(|_| sides[1].node.dial(listener.address(), b"", soon).expect("a call"))
        .collect();
    let mut requests = Vec::new();
    until(&mut sides, "256 requests", |_| {
        while let Some(request) = listener.next() {
            requests.push(request);
        }
        requests.len() >= 256
    });
    let mut accepted = Vec::new();
    until(&mut sides, "every answer", |_| {
        while let Some(request) = requests.pop().or_else(|| listener.next()) {
            accepted.push(request.accept(Options::default()).expect("accepted"));
        }
        dials.iter().all(|dial| dial.poll().is_some())
    });
    assert!(dials.iter().all(|dial| dial.poll().unwrap().is_ok()));
    assert_eq!(accepted.len(), dials.len());
}
