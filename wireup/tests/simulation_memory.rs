//! Memory of the state machine: 10^5 virtual peers, and a crowd of requests at once.
//!
//! These tests need a separate binary, because its global allocator counts.

#[path = "../../tests/support/allocator.rs"]
mod allocator;

use std::time::Duration;

use allocator::{held, peak};
use barewire_wireup::protocol::{
    Action, Answer, Cause, Config, Kind, Lane, LinkId, Links, Message, Offer, Reason, State, Uuid,
};

const PEERS: u32 = 100_000;
const HUB: Uuid = [0xff; 16];
/// Limits of WIREUP.md, section 9, group 11.
const PER_KNOWN_PEER: isize = 96;
const PER_CONNECTED_LINK: isize = 1024;

/// With liveness, so that each link has a timer.
fn hub() -> Links {
    Links::new(Config { liveness: Some(Duration::from_mins(1)), ..Config::new(HUB, vec![7; 64]) })
}

/// Uuids as random bytes, or in ascending order, which fills a B-tree's nodes least.
fn uuid(peer: u32, ascending: bool) -> Uuid {
    let number = u128::from(peer);
    let mixed = if ascending {
        number
    } else {
        (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    };
    mixed.to_be_bytes()
}

fn lanes() -> Offer {
    let lane = Lane { kind: 1, endpoint: vec![5; 30], ..Lane::default() };
    Offer { lanes: vec![lane; 3], ..Offer::default() }
}

fn accept(offer: &Offer) -> Answer {
    Answer { lanes: offer.lanes.iter().map(|_| Ok(vec![6; 30])).collect(), private: Vec::new() }
}

/// Reports what an owner without endpoints reports. Returns what is left: messages and reports.
fn report(links: &mut Links, action: Action, now: Duration) -> Option<Action> {
    match action {
        Action::Prepare { link, turn, .. } => links.offer(link, turn, &lanes(), now).unwrap(),
        Action::Answer { link, turn, offer, .. } => {
            links.answer(link, turn, &accept(&offer), now).unwrap();
        }
        Action::Complete { link, turn, .. } => links.completed(link, turn, now).unwrap(),
        Action::Drain { link, .. } => links.drained(link, now).unwrap(),
        other => return Some(other),
    }
    None
}

/// Returns the response of a peer that keeps nothing, if it has one.
fn respond(request: &[u8], answer: &[u8]) -> Option<Box<[u8]>> {
    let request = Message::from_bytes(request).unwrap();
    let (kind, bytes): (_, &[u8]) = match request.kind {
        Kind::Offer => (Kind::Answer, answer),
        Kind::Close => (Kind::Closed, &[]),
        Kind::Closed => (Kind::Done, &[]),
        _ => return None,
    };
    let response = Message {
        kind,
        from: 1,
        to: request.from,
        uuid: request.receiver,
        receiver: request.uuid,
        offset: 0,
        total: bytes.len() as u16,
        pass: 0,
        bytes,
        ..request
    };
    Some(response.to_bytes())
}

/// Lets the hub and its peers finish. Returns how many links were connected and ended meanwhile.
fn settle(hub: &mut Links, answer: &[u8], now: Duration) -> (u32, u32) {
    let (mut connected, mut ended) = (0, 0);
    while let Some(action) = hub.poll() {
        assert!(hub.half_open() <= 64);
        match report(hub, action, now) {
            Some(Action::Send { message, .. }) => {
                if let Some(response) = respond(&message, answer) {
                    hub.receive(&response, now).unwrap();
                }
            }
            Some(Action::Connected { .. }) => connected += 1,
            Some(Action::Ended { state, .. }) => {
                assert!(matches!(state, State::Closed(_)), "{state:?}");
                ended += 1;
            }
            _ => {}
        }
    }
    (connected, ended)
}

/// The body of an ANSWER to [`lanes`], as a machine writes it.
fn answer_body() -> Vec<u8> {
    let mut peers = [Links::new(Config::new([1; 16], Vec::new())), hub()];
    let link = peers[0].open(HUB).unwrap();
    peers[0].connect(link, None, Duration::ZERO).unwrap();
    loop {
        for here in 0..2 {
            let next = |links: &mut Links| links.poll().or_else(|| links.poll_stranger());
            while let Some(action) = next(&mut peers[here]) {
                let message = match report(&mut peers[here], action, Duration::ZERO) {
                    Some(Action::Send { message, .. }) => message,
                    Some(Action::Vouch { peer, name, .. }) => peers[here].pass(peer, name, 0),
                    _ => continue,
                };
                let read = Message::from_bytes(&message).unwrap();
                if read.kind == Kind::Answer {
                    return read.bytes.to_vec();
                }
                peers[1 - here].receive(&message, Duration::ZERO).unwrap();
            }
        }
    }
}

#[test]
fn a_known_peer_takes_96_bytes_a_connected_link_1_kib_and_a_closed_one_nothing() {
    let answer = answer_body();
    for ascending in [false, true] {
        let before = held();
        let mut hub = hub();
        let initial = held();
        let mut known = 0;
        for peer in 0..PEERS {
            hub.open(uuid(peer, ascending)).unwrap();
            // At every size, not only at one that suits the growth of a table.
            if peer >= 1000 {
                known = known.max((held() - initial) * 1000 / (peer as isize + 1));
            }
        }
        assert!(known <= PER_KNOWN_PEER * 1000, "{known}");

        let mut links = Vec::with_capacity(PEERS as usize);
        let (mut connected, mut now) = (0, Duration::from_secs(1));
        let outside = held();
        // A second link with each peer is connected: the first ones stay as they are.
        for peer in 0..PEERS {
            links.push(hub.open(uuid(peer, ascending)).unwrap());
        }
        let second = held();
        for link in &links {
            hub.connect(*link, None, now).unwrap();
            connected += settle(&mut hub, &answer, now).0;
        }
        assert_eq!(connected, PEERS);
        let each = (held() - second) / PEERS as isize + (second - outside) / PEERS as isize;
        assert!(each <= PER_CONNECTED_LINK, "{each}");

        now += Duration::from_secs(1);
        let mut ended = 0;
        for link in &links {
            hub.close(*link, 0, now).unwrap();
            ended += settle(&mut hub, &answer, now).1;
        }
        assert_eq!(ended, PEERS);
        drop(links);
        close_silent_links(&mut hub, &answer, now);
        assert_eq!(held(), initial, "the state before");
        drop(hub);
        assert_eq!(held(), before);
        // Not before: the buffer in which the test harness captures the output is counted as well.
        println!("known peer: {}.{:03} bytes at most", known / 1000, known % 1000);
        println!("connected link: {each} bytes");
    }
}

/// Closes the links that were never connected. Their slots are those from 0 on.
fn close_silent_links(hub: &mut Links, answer: &[u8], now: Duration) {
    let mut bits: u64 = 1;
    while !hub.is_empty() {
        let link = LinkId::from_bits((bits - 1) << 32 | bits);
        hub.close(link, 0, now).unwrap();
        assert_eq!(settle(hub, answer, now), (0, 1));
        bits += 1;
    }
}

/// Nodes that connect to one at the same time, over a wire that loses one message of ten.
fn crowd(peers: usize, requests: usize) -> (usize, usize, Duration) {
    let mut rng = fastrand::Rng::with_seed(1);
    let deadline = Duration::from_secs(10);
    let mut nodes = vec![Links::new(Config { requests, ..Config::new(HUB, vec![7; 64]) })];
    nodes.extend(
        (0..peers as u32).map(|peer| Links::new(Config::new(uuid(peer, false), vec![8; 64]))),
    );
    let place = |to: Uuid, nodes: &[Uuid]| nodes.iter().position(|uuid| *uuid == to).unwrap();
    let mut uuids = vec![HUB];
    uuids.extend((0..peers as u32).map(|peer| uuid(peer, false)));
    for node in &mut nodes[1..] {
        let link = node.open(HUB).unwrap();
        node.connect(link, None, Duration::ZERO).unwrap();
    }
    let (mut connected, mut refused, mut now) = (0, 0, Duration::ZERO);
    while connected + refused < peers {
        assert!(now < deadline, "{connected} connected, {refused} refused");
        for here in 0..nodes.len() {
            nodes[here].tick(now);
            let next = |links: &mut Links| links.poll().or_else(|| links.poll_stranger());
            while let Some(action) = next(&mut nodes[here]) {
                match report(&mut nodes[here], action, now) {
                    Some(Action::Vouch { peer, name, .. }) if rng.u8(..10) > 0 => {
                        let there = place(peer, &uuids);
                        let pass = nodes[here].pass(peer, name, there as u16);
                        nodes[there].receive(&pass, now).unwrap();
                    }
                    Some(Action::Send { to, message, .. }) if rng.u8(..10) > 0 => {
                        let there = place(to, &uuids);
                        nodes[there].receive(&message, now).unwrap();
                    }
                    Some(Action::Connected { .. }) if here > 0 => connected += 1,
                    Some(Action::Ended { state, .. }) if here > 0 => {
                        assert_eq!(state, State::Failed(Cause::Refused(Reason::Busy)));
                        refused += 1;
                    }
                    _ => {}
                }
            }
        }
        assert!(nodes[0].half_open() <= 64);
        now += Duration::from_millis(1);
    }
    (connected, refused, now)
}

#[test]
fn a_thousand_requests_at_once_all_connect() {
    let (connected, refused, time) = crowd(1000, 1024);
    println!("1000 requests, at most 1024: {connected} connected, {refused} refused in {time:?}");
    assert_eq!((connected, refused), (1000, 0));
}

#[test]
fn requests_beyond_the_limit_are_refused_as_busy() {
    let mut hub = Links::new(Config { requests: 100, ..Config::new(HUB, Vec::new()) });
    let mut busy = 0;
    for offer in offers(&hub, 1000, |peer| peer as u16) {
        hub.receive(&offer, Duration::ZERO).unwrap();
        while let Some(action) = hub.poll() {
            if let Action::Send { message, .. } = action {
                let message = Message::from_bytes(&message).unwrap();
                assert_eq!((message.kind, message.reason), (Kind::Refuse, Reason::Busy));
                busy += 1;
            }
        }
    }
    // Those in line are refused before their peers' deadline, and those with their owner, too.
    assert_eq!((busy, hub.len()), (900, 100));
    let mut now = Duration::ZERO;
    while let Some(timer) = hub.next_timer() {
        now = now.max(timer);
        hub.tick(now);
        while let Some(action) = hub.poll() {
            busy += u32::from(matches!(action, Action::Send { .. }));
        }
    }
    assert_eq!((busy, hub.len(), hub.half_open()), (1000, 0, 0));
    assert!(now < Duration::from_secs(10), "{now:?}");
}

/// OFFERs of different peers, as their machines write them once they have the hub's passes.
fn offers(hub: &Links, count: u32, way: fn(u32) -> u16) -> Vec<Box<[u8]>> {
    let offer = |peer: u32| {
        let mut links = Links::new(Config::new(uuid(peer, false), vec![8; 64]));
        let link = links.open(HUB).unwrap();
        links.connect(link, None, Duration::ZERO).unwrap();
        loop {
            let action = links.poll().unwrap();
            if let Some(Action::Send { message, .. }) = report(&mut links, action, Duration::ZERO) {
                let offer = Message::from_bytes(&message).unwrap();
                if offer.pass != 0 {
                    return message;
                }
                let pass = hub.pass(uuid(peer, false), offer.from, way(peer));
                links.receive(&pass, Duration::ZERO).unwrap();
            }
        }
    };
    (0..count).map(offer).collect()
}

/// Nodes that one process invents hold no place that another one needs.
#[test]
fn links_of_another_way_take_the_places_of_the_busiest_one() {
    let config = Config { requests: 100, half_open: 8, ..Config::new(HUB, Vec::new()) };
    let mut hub = Links::new(config);
    let mut offers = offers(&hub, 210, |peer| if peer < 200 { 1 } else { peer as u16 });
    let honest = offers.split_off(200);
    let mut answered = Vec::new();
    let mut take = |hub: &mut Links, offer: &[u8]| {
        hub.receive(offer, Duration::ZERO).unwrap();
        while let Some(action) = hub.poll() {
            match report(hub, action, Duration::ZERO) {
                Some(Action::Send { to, message, .. }) => {
                    let message = Message::from_bytes(&message).unwrap();
                    assert!(matches!(message.kind, Kind::Answer | Kind::Refuse), "{message:?}");
                    if message.kind == Kind::Answer {
                        answered.push(to);
                    }
                }
                Some(Action::Ended { .. }) | None => {}
                other => panic!("{other:?}"),
            }
        }
    };
    for offer in &offers {
        take(&mut hub, offer);
    }
    // Without DONE, they stay half-open.
    assert_eq!((hub.len(), hub.half_open()), (100, 4));
    for offer in &honest {
        take(&mut hub, offer);
    }
    assert_eq!((hub.len(), hub.half_open()), (100, 4));
    // The ten have the four places in turn; of the way that has most, one goes each time.
    for peer in 200..203 {
        assert!(answered.contains(&uuid(peer, false)), "{peer}");
    }
}

/// The bound that the documentation of `Config::requests` states.
#[test]
fn a_flood_of_requests_stays_within_the_stated_bound() {
    let config = Config::new(HUB, vec![7; 64]);
    let bound = config.request_bytes + config.requests * 512 + config.half_open * 8192;
    let mut hub = Links::new(config);
    let offers = offers(&hub, 10_000, |peer| peer as u16);
    let (mut refused, mut most) = (0, 0);
    let held = peak(|| {
        for offer in &offers {
            hub.receive(offer, Duration::ZERO).unwrap();
            most = most.max(hub.len());
            while let Some(action) = hub.poll() {
                refused += u32::from(matches!(action, Action::Send { .. }));
            }
        }
    });
    println!("10000 requests: {held} bytes at most, {refused} refused, {most} links at most");
    assert_eq!((refused, most), (10_000 - 1024, 1024));
    assert!(held <= bound, "{held} of {bound}");
}
