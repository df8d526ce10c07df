//! Control messages of the wire-up protocol, from peers that lie, and those of clients and servers.

use std::time::Duration;

use barewire_wireup::node::frame::Call;
use barewire_wireup::protocol::{
    Action, Answer, CallError, Config, HEADER, Kind, Lane, LinkId, Links, Message, Offer, Reason,
    Secret, Uuid,
};
use bolero::check;

use crate::allocation;
use crate::script::{Script, bytes_to};

const HERE: Uuid = [1; 16];
const THERE: Uuid = [2; 16];
/// Requests, their OFFERs, half-open links, and the actions of one message.
const MEMORY: usize = 16 * (512 + 8192) + (64 << 10);

#[test]
fn any_message() {
    check!().with_generator(bytes_to(300)).for_each(|bytes| {
        match Message::from_bytes(bytes) {
            // A REFUSE is read from every version.
            Ok(message) if message.kind == Kind::Refuse => {
                assert_eq!(message.to_bytes()[3..], bytes[3..]);
            }
            Ok(message) => assert_eq!(*message.to_bytes(), **bytes),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

/// A message whose fields the script chooses among those that have an effect.
fn forge(script: &mut Script<'_>, node: &Links, links: &[LinkId]) -> Vec<u8> {
    let kind = Kind::ALL[usize::from(script.byte()) % Kind::ALL.len()];
    let link = links.get(usize::from(script.byte()) % links.len().max(1));
    let body = script.byte();
    let body = match kind {
        Kind::Close => script.bytes(8).to_vec(),
        Kind::Offer | Kind::Answer | Kind::Ping => script.bytes(usize::from(body)).to_vec(),
        _ => Vec::new(),
    };
    // The peer knows the names, and has a pass; a stranger guesses.
    let name = link.and_then(|link| node.names(*link)).map_or(5, |(name, _)| name);
    let uuid = if script.byte().is_multiple_of(4) { HERE } else { THERE };
    let way = u16::from(script.byte() % 4);
    let pass = Message::from_bytes(&node.pass(uuid, 1, way)).expect("a pass").pass;
    let from = if kind == Kind::Pass { 0 } else { u64::from(script.byte() % 4) };
    let mut bytes = Message {
        kind,
        sn: u32::from(script.byte() % 4),
        from,
        to: if kind == Kind::Offer { 0 } else { name },
        uuid,
        receiver: HERE,
        attempt: script.byte() % 4,
        reason: Reason::from_code(script.byte() * u8::from(kind == Kind::Refuse)),
        offset: u16::from(script.byte() % 4) * 64,
        total: body.len() as u16,
        order: u32::from(script.byte() % 4),
        pass: if matches!(kind, Kind::Offer | Kind::Pass) { pass } else { 0 },
        bytes: &body,
    }
    .to_bytes()
    .into_vec();
    if script.byte().is_multiple_of(2) {
        // The length of the body.
        bytes[HEADER - 20..HEADER - 18].copy_from_slice(&script.number().to_be_bytes());
    }
    script.mutate(&mut bytes);
    bytes
}

/// Does what a message led to; an owner may also not respond.
fn take_actions(node: &mut Links, script: &mut Script<'_>, links: &mut Vec<LinkId>, now: Duration) {
    while let Some(action) = node.poll().or_else(|| node.poll_stranger()) {
        let result = match action {
            Action::Prepare { link, turn, .. } => {
                let offer = Offer { lanes: vec![Lane::default(); 2], ..Offer::default() };
                node.offer(link, turn, &offer, now)
            }
            Action::Answer { link, turn, offer, .. } => {
                if links.len() < 8 && !links.contains(&link) {
                    links.push(link);
                }
                let lanes = offer.lanes.iter().map(|_| Ok(Vec::new())).collect();
                match script.byte() % 4 {
                    0 => Ok(()),
                    1 => node.refuse(link, turn, Reason::Rejected),
                    _ => node.answer(link, turn, &Answer { lanes, private: Vec::new() }, now),
                }
            }
            Action::Complete { link, turn, .. } => node.completed(link, turn, now),
            Action::Drain { link, .. } if script.byte().is_multiple_of(2) => {
                node.drained(link, now)
            }
            _ => Ok(()),
        };
        assert!(
            matches!(result, Ok(()) | Err(CallError::Ended | CallError::Superseded)),
            "{result:?}"
        );
    }
}

#[test]
fn any_control_messages() {
    check!().with_generator(bytes_to(2048)).for_each(|bytes| {
        let held = allocation::peak(|| play(&mut Script::new(bytes)));
        assert!(held <= MEMORY, "{held}");
    });
}

fn play(script: &mut Script<'_>) {
    let liveness = script.byte().is_multiple_of(2).then(|| Duration::from_millis(50));
    let mut node = Links::new(Config {
        requests: 8,
        half_open: 8,
        liveness,
        secret: Secret::from_bytes([7; 32]),
        ..Config::new(HERE, vec![3; 20])
    });
    let (mut links, mut now) = (Vec::new(), Duration::ZERO);
    while !script.is_over() {
        now += Duration::from_millis(u64::from(script.byte() % 32));
        let chosen = links.get(usize::from(script.byte()) % links.len().max(1)).copied();
        match (script.byte() % 8, chosen) {
            (0, _) if links.len() < 8 => {
                let link =
                    node.open(if script.byte().is_multiple_of(4) { HERE } else { THERE }).unwrap();
                links.retain(|open| *open != link);
                links.push(link);
                assert!(node.connect(link, None, now).is_ok());
            }
            (1, Some(link)) => assert!(node.close(link, u64::from(script.byte()), now).is_ok()),
            (2, Some(link)) => assert!(node.fail(link, Reason::NoResources).is_ok()),
            (3, _) => node.tick(now),
            _ => {
                let message = forge(script, &node, &links);
                if let Err(error) = node.receive(&message, now) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        take_actions(&mut node, script, &mut links, now);
        links.retain(|link| node.state(*link).is_some());
        assert!(node.half_open() <= 8);
    }
    // Nothing that a peer sends keeps a link that is not connected, or that its user closes.
    for link in links {
        assert!(node.close(link, 0, now).is_ok());
    }
    for _ in 0..100 {
        let Some(timer) = node.next_timer() else { break };
        now = now.max(timer) + Duration::from_secs(1);
        node.tick(now);
        while node.poll().is_some() {}
    }
    assert_eq!(node.half_open(), 0);
}

#[test]
fn any_call() {
    check!().with_generator(bytes_to(600)).for_each(|bytes| {
        for bytes in [bytes.clone(), [b"bL\x02H", &bytes[..]].concat()] {
            if let Some(call) = Call::parse(&bytes) {
                assert_eq!(call.to_bytes(), bytes);
            }
        }
    });
}
