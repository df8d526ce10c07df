//! Many connections at once, and listeners that end among requests.

use super::{Duration, EventType, PORT, SocketAddr, TCP, connected, pair, settle};

/// Reads all events, and returns how many there were of one type.
fn count(side: &mut super::Side, of: EventType) -> usize {
    let mut found = 0;
    while let Some(event) = side.try_event() {
        found += usize::from(event.event == of as u32);
    }
    found
}

#[test]
fn a_thousand_connections_begin_and_end() {
    const MANY: usize = 1000;
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    let clients: Vec<u32> = (0..MANY).map(|_| a.connect(TCP, b.address)).collect();
    settle(&mut a, &mut b);
    let mut servers = Vec::new();
    while let Some(request) = b.try_event() {
        assert_eq!(request.event, EventType::ConnectRequest as u32);
        servers.push(request.id);
    }
    assert_eq!(servers.len(), MANY);
    for &server in &servers {
        b.accept(server, &[]).unwrap();
    }
    settle(&mut a, &mut b);
    assert_eq!(count(&mut a, EventType::ConnectResponse), MANY);
    for &client in &clients {
        a.confirm(client).unwrap();
    }
    settle(&mut a, &mut b);
    assert_eq!(count(&mut b, EventType::Established), MANY);
    assert_eq!((a.state.links.len(), b.state.links.len()), (MANY, MANY));
    // Half of them end by the client, half by the server.
    for (place, (&client, &server)) in clients.iter().zip(&servers).enumerate() {
        if place % 2 == 0 {
            a.state.disconnect(a.channel, client, a.now).unwrap();
        } else {
            b.state.disconnect(b.channel, server, b.now).unwrap();
        }
    }
    settle(&mut a, &mut b);
    assert_eq!(count(&mut a, EventType::Disconnected), MANY / 2);
    assert_eq!(count(&mut b, EventType::Disconnected), MANY / 2);
    // The other side responds by its own call.
    for (&client, &server) in clients.iter().zip(&servers) {
        a.state.disconnect(a.channel, client, a.now).unwrap();
        b.state.disconnect(b.channel, server, b.now).unwrap();
    }
    settle(&mut a, &mut b);
    assert_eq!(count(&mut a, EventType::Disconnected), MANY / 2);
    assert_eq!(count(&mut b, EventType::Disconnected), MANY / 2);
    for (&client, &server) in clients.iter().zip(&servers) {
        a.state.remove(client, a.now);
        b.state.remove(server, b.now);
    }
    b.state.remove(listener, b.now);
    settle(&mut a, &mut b);
    for side in [&mut a, &mut b] {
        side.wait(Duration::from_secs(4));
        let state = &side.state;
        assert!(state.links.is_empty() && state.ids.is_empty() && state.deadline().is_none());
    }
}

/// Some requests arrive before the listener ends, and were read by the program or not, others
/// after.
#[test]
fn requests_around_the_end_of_a_listener_get_a_response() {
    const EACH: usize = 20;
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    let clients: Vec<u32> = (0..2 * EACH).map(|_| a.connect(TCP, b.address)).collect();
    settle(&mut a, &mut b);
    let read: Vec<u32> = (0..EACH).map(|_| b.event().1.id).collect();
    let late: Vec<u32> = (0..EACH).map(|_| a.connect(TCP, b.address)).collect();
    b.state.remove(listener, b.now);
    settle(&mut a, &mut b);
    assert_eq!(count(&mut a, EventType::Rejected), EACH);
    // Those that the program has read are its own to accept.
    for &server in &read {
        b.accept(server, &[]).unwrap();
    }
    settle(&mut a, &mut b);
    assert_eq!(count(&mut a, EventType::ConnectResponse), EACH);
    // The late ones are repeated, until no listener is expected any more.
    for _ in 0..4 {
        a.wait(Duration::from_secs(5));
        b.wait(Duration::from_secs(5));
        settle(&mut a, &mut b);
    }
    assert_eq!(count(&mut a, EventType::Rejected), late.len());
    for &client in clients.iter().chain(&late) {
        a.state.remove(client, a.now);
    }
    for &server in &read {
        b.state.remove(server, b.now);
    }
    settle(&mut a, &mut b);
    for side in [&mut a, &mut b] {
        side.wait(Duration::from_secs(5));
        assert!(side.state.links.is_empty() && side.state.ids.is_empty());
    }
}

#[test]
fn connections_of_a_closed_file_end() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let pairs: Vec<_> = (0..3).map(|_| connected(&mut a, &mut b)).collect();
    let waiting = a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    // As when the program closes its event channel, or ends.
    b.state.close(b.channel, b.now);
    settle(&mut a, &mut b);
    let mut ended = Vec::new();
    while let Some(event) = a.try_event() {
        ended.push((event.id, event.event));
    }
    ended.sort_unstable();
    let mut expected: Vec<(u32, u32)> =
        pairs.iter().map(|&(client, _)| (client, EventType::Disconnected as u32)).collect();
    expected.push((waiting, EventType::Rejected as u32));
    expected.sort_unstable();
    assert_eq!(ended, expected);
    assert!(b.state.ids.is_empty() && b.state.channels.is_empty());
    for (client, _) in pairs {
        a.state.remove(client, a.now);
    }
    settle(&mut a, &mut b);
    b.wait(Duration::from_secs(2));
    assert!(b.state.links.is_empty());
}

#[test]
fn a_bound_port_that_gets_no_listener_is_refused_in_the_end() {
    let (mut a, mut b) = pair();
    let id = b.create(TCP);
    b.state.bind(b.channel, id, SocketAddr::from(([0; 4], PORT)), true).unwrap();
    b.state.expect_listener(id, b.now);
    let client = a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    assert!(a.try_event().is_none());
    b.wait(Duration::from_secs(4));
    a.wait(Duration::from_secs(4));
    settle(&mut a, &mut b);
    let (kind, event) = a.event();
    assert_eq!((kind, event.id), (EventType::Rejected, client));
    assert_eq!(b.state.deadline(), None);
}

#[test]
fn an_identifier_keeps_the_address_that_it_was_bound_to() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let id = a.create(TCP);
    let own = SocketAddr::from(([192, 0, 2, 2], 4711));
    a.state.bind(a.channel, id, own, true).unwrap();
    a.state.resolve_address(a.channel, id, (None, true), b.address).unwrap();
    assert_eq!(a.state.ids[&id].source.map(|source| source.socket), Some(own));
    // A peer sees the address of the device.
    a.state.resolve_route(a.channel, id).unwrap();
    let mut command: super::Connect = super::FromZeros::new_zeroed();
    (command.id, command.conn_param) = (id, super::parameters(7, &[]));
    a.state.connect(a.channel, &command, Some(b.address.ip()), a.now).unwrap();
    settle(&mut a, &mut b);
    let request = b.event().1.id;
    let seen = SocketAddr::new(a.address.ip(), own.port());
    assert_eq!(b.state.ids[&request].destination.map(|seen| seen.socket), Some(seen));
}
